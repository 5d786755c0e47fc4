"""Codecs made from declared fields: Python source per struct and version, compiled at first use.

Specialising makes them fast and keeps them simple: a compiled reader does not test the version, and
a run of fixed-size fields is a single call into `struct`.
"""

import struct as fixed
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.wire import values
from millstream.wire.fields import Field, Kind
from millstream.wire.primitives import Reader, Writer

if TYPE_CHECKING:
    from millstream.wire.schema import Struct

_FRESH: Final = object()
"""Default of constructor arguments whose real default must not be shared."""


class Form(NamedTuple):
    """What a codec is specialised for."""

    version: int
    is_flexible: bool
    """Compact lengths, and tagged fields at the end of every struct."""
    is_served: bool = False
    """A request that a broker reads to serve it: unknown tagged fields are skipped, and each number
    of an array counts as an item."""


class _Source:
    """A function under construction: its lines, and the objects these refer to."""

    def __init__(self, head: str, **names: Any) -> None:
        self.lines = [head]
        self.names = names

    def add(self, line: str, **names: Any) -> None:
        self.lines.append(f"    {line}")
        self.names.update(names)

    def compile(self, title: str) -> Callable[..., Any]:
        function = self.lines[0].split()[1].partition("(")[0]
        code = compile("\n".join(self.lines), f"<{title}>", "exec")
        exec(code, self.names)  # noqa: S102 - our own text, made only from the declarations
        made: Callable[..., Any] = self.names[function]
        return made


def _is_positional(field: Field, version: int) -> bool:
    """Whether this version has it at its position, as opposed to absent or tagged."""
    return field.tag is None and version in field.versions


def _runs(struct: "type[Struct]", version: int) -> list[list[Field]]:
    """The positional fields of a version; adjacent ones of fixed size are grouped."""
    runs: list[list[Field]] = []
    for field in struct.FIELDS:
        if not _is_positional(field, version):
            continue
        if runs and field.kind in values.FORMATS and runs[-1][0].kind in values.FORMATS:
            runs[-1].append(field)
        else:
            runs.append([field])
    return runs


def _layout(run: list[Field]) -> fixed.Struct:
    return fixed.Struct(">" + "".join(values.FORMATS[one.kind] for one in run))


def _known_tags(struct: "type[Struct]", version: int) -> dict[int, Field]:
    tagged = [(one.tag, one) for one in struct.FIELDS if version in one.versions]
    return {tag: one for tag, one in tagged if tag is not None}


def _null_of(field: Field) -> int:
    """The byte that stands for a null struct."""
    return values.NULL_STRUCT if field.tag is None else values.NULL_STRUCT_IN_TAG


# -- constructor -------------------------------------------------------------------------------


def constructor_of(struct: "type[Struct]") -> Callable[..., None]:
    """`__init__` with a keyword per field."""
    parameters = [f"{one.name}=default_{one.name}" for one in struct.FIELDS]
    head = ", ".join(["def __init__(self, *", *parameters, "unknown_tags=NO_TAGS):"])
    source = _Source(head, NO_TAGS=values.NO_TAGS, FRESH=_FRESH)
    for field in struct.FIELDS:
        name = field.name
        fresh, names = _default_of(field)
        source.names.update({f"default_{name}": _FRESH} | names)
        is_shared = f"default_{name}" in names
        source.add(
            f"self.{name} = {name}"
            if is_shared
            else f"self.{name} = {fresh} if {name} is FRESH else {name}"
        )
    source.add("self.unknown_tags = unknown_tags")
    return source.compile(f"constructor of {struct.__name__}")


def _default_of(field: Field) -> tuple[str, dict[str, Any]]:
    """An expression for the default, and the objects that it refers to."""
    if field.declared_default is not None and field.kind is Kind.ARRAY:
        return "[]", {}
    if field.declared_default is not None and field.kind is Kind.STRUCT:
        return f"struct_{field.name}()", {f"struct_{field.name}": field.struct}
    return f"default_{field.name}", {f"default_{field.name}": field.declared_default}


# -- reader ------------------------------------------------------------------------------------


@cache
def reader_of(struct: "type[Struct]", form: Form) -> Reader:
    """Reads a struct of one version, field by field in declared order."""
    source = _Source("def read(view, at):", uuid_of=values.uuid_of, NO_TAGS=values.NO_TAGS)
    source.add("self = new(struct)", new=object.__new__, struct=struct)
    for run in _runs(struct, form.version):
        first = run[0]
        if first.kind in values.FORMATS:
            _add_fixed_read(source, run)
        else:
            reader = f"read_{first.name}"
            names = {reader: _value_reader(first, form)}
            source.add(f"self.{first.name}, at = {reader}(view, at)", **names)
    for field in struct.FIELDS:
        if not _is_positional(field, form.version):
            default, names = _default_of(field)
            source.add(f"self.{field.name} = {default}", **names)
    _add_tags_read(source, struct, form)
    source.add("return self, at")
    return source.compile(f"reader of {struct.__name__} v{form.version}")


def _add_fixed_read(source: _Source, run: list[Field]) -> None:
    layout = _layout(run)
    unpack = f"unpack_{run[0].name}"
    targets = "".join(f"self.{one.name}, " for one in run)
    source.add(f"{targets}= {unpack}(view, at)", **{unpack: layout.unpack_from})
    source.add(f"at += {layout.size}")
    for field in run:
        if field.kind is Kind.UUID:
            source.add(f"self.{field.name} = uuid_of(self.{field.name})")


def _add_tags_read(source: _Source, struct: "type[Struct]", form: Form) -> None:
    if not form.is_flexible:
        source.add("self.unknown_tags = NO_TAGS")
        return
    known = {
        tag: values.TagReader(one.name, _value_reader(one, form))
        for tag, one in _known_tags(struct, form.version).items()
    }
    read_tags = values.read_known_tags if form.is_served else values.read_tags
    source.add("if view[at]:", read_tags=read_tags, known=known)
    source.add("    self.unknown_tags, at = read_tags(view, at, self, known)")
    source.add("else:")
    source.add("    self.unknown_tags = NO_TAGS")
    source.add("    at += 1")


def _value_reader(field: Field, form: Form) -> Reader:
    """Reads a value that is not part of a run."""
    may_be_null = form.version in field.nullable
    if field.element is not None:
        array_form = values.ArrayForm(form.is_flexible, may_be_null)
        if field.element in values.NUMBERS:
            weight = 1 if form.is_served else values.NUMBERS_PER_ITEM
            return values.number_array_reader(array_form, field.element, numbers_per_item=weight)
        read = _kind_reader(field.element, field.struct, form)
        size_min = _kind_bytes_min(field.element, field.struct, form)
        return values.array_reader(array_form, read, max(size_min, 1))
    if may_be_null and field.struct is not None:
        return values.nullable_struct_reader(reader_of(field.struct, form), _null_of(field))
    return _kind_reader(field.kind, field.struct, form, may_be_null=may_be_null)


def _kind_reader(
    kind: Kind, struct: "type[Struct] | None", form: Form, *, may_be_null: bool = False
) -> Reader:
    if struct is not None:
        return reader_of(struct, form)
    if kind in values.FORMATS:
        return values.fixed_reader(kind)
    string_form = values.StringForm(kind is Kind.STRING, form.is_flexible, may_be_null)
    return values.STRING_READERS[string_form]


def _kind_bytes_min(kind: Kind, struct: "type[Struct] | None", form: Form) -> int:
    """The minimum encoded size of a value: bounds the count of an array."""
    if struct is not None:
        positional = [one for one in struct.FIELDS if _is_positional(one, form.version)]
        return sum(_bytes_min(one, form) for one in positional) + form.is_flexible
    if kind in values.FORMATS:
        return fixed.calcsize(">" + values.FORMATS[kind])
    if form.is_flexible:
        return 1
    return 2 if kind is Kind.STRING else 4


def _bytes_min(field: Field, form: Form) -> int:
    if field.struct is not None and form.version in field.nullable:
        return 1
    struct = field.struct if field.kind is Kind.STRUCT else None
    return _kind_bytes_min(field.kind, struct, form)


# -- writer ------------------------------------------------------------------------------------


@cache
def writer_of(struct: "type[Struct]", form: Form) -> Writer:
    """Writes a struct of one version; ValueError for values that it cannot encode."""
    source = _Source("def write(out, self):")
    title = f"{struct.__name__} v{form.version}"
    for field in struct.FIELDS:
        _add_check(source, field, form.version, title)
    for run in _runs(struct, form.version):
        first = run[0]
        if first.kind in values.FORMATS:
            pack = f"pack_{first.name}"
            given = ", ".join(
                f"self.{one.name}{'.bytes' if one.kind is Kind.UUID else ''}" for one in run
            )
            source.add(f"out += {pack}({given})", **{pack: _layout(run).pack})
        else:
            writer = f"write_{first.name}"
            source.add(f"{writer}(out, self.{first.name})", **{writer: _value_writer(first, form)})
    _add_tags_write(source, struct, form, title)
    return source.compile(f"writer of {title}")


def _add_check(source: _Source, field: Field, version: int, title: str) -> None:
    name = field.name
    if version in field.versions:
        if field.nullable and version not in field.nullable:
            source.add(f"if self.{name} is None:")
            source.add(f"    raise ValueError('{name} is null, which {title} cannot carry')")
    elif not field.ignorable:
        source.add(f"if self.{name} != default_{name}:", **{f"default_{name}": field.default})
        source.add(f"    raise ValueError('{name} is set, which {title} cannot carry')")


def _add_tags_write(source: _Source, struct: "type[Struct]", form: Form, title: str) -> None:
    known = {
        tag: values.TagWriter(one.name, one.default, _value_writer(one, form))
        for tag, one in _known_tags(struct, form.version).items()
    }
    if not form.is_flexible:
        source.add("if self.unknown_tags:")
        source.add(f"    raise ValueError('{title} cannot carry tagged fields')")
    elif known:
        source.add("write_tags(out, self, known)", write_tags=values.write_tags, known=known)
    else:
        source.add("if self.unknown_tags:")
        source.add("    write_tags(out, self, known)", write_tags=values.write_tags, known=known)
        source.add("else:")
        source.add("    out.append(0)")


def _value_writer(field: Field, form: Form) -> Writer:
    """Writes a value that is not part of a run."""
    may_be_null = form.version in field.nullable
    if field.element is not None:
        array_form = values.ArrayForm(form.is_flexible, may_be_null)
        if field.element in values.NUMBERS:
            return values.number_array_writer(array_form, field.element)
        return values.array_writer(array_form, _kind_writer(field.element, field.struct, form))
    if may_be_null and field.struct is not None:
        return values.nullable_struct_writer(writer_of(field.struct, form), _null_of(field))
    return _kind_writer(field.kind, field.struct, form, may_be_null=may_be_null)


def _kind_writer(
    kind: Kind, struct: "type[Struct] | None", form: Form, *, may_be_null: bool = False
) -> Writer:
    if struct is not None:
        return writer_of(struct, form)
    if kind in values.FORMATS:
        return values.fixed_writer(kind)
    string_form = values.StringForm(kind is Kind.STRING, form.is_flexible, may_be_null)
    return values.STRING_WRITERS[string_form]

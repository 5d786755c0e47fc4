"""Every message of the catalogue, filled in different ways from its own declaration."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from hypothesis import strategies as st

from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import all_keys, request_type, response_type
from millstream.wire.fields import Field, Kind
from millstream.wire.schema import Message, Struct

INTEGER_BITS = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
UNKNOWN_TAG = 1_000
"""Above every number that Kafka has given out."""


class Case(NamedTuple):
    """One version of one message."""

    message: type[Message]
    version: int

    @property
    def is_flexible(self) -> bool:
        first = self.message.FLEXIBLE_FROM
        return first is not None and self.version >= first

    def __str__(self) -> str:
        return f"{self.message.__name__} v{self.version}"


def messages_of(key: ApiKey) -> tuple[type[Message], type[Message]]:
    return request_type(key), response_type(key)


def cases(key: ApiKey) -> Iterator[Case]:
    for message in messages_of(key):
        for version in message.VERSIONS:
            yield Case(message, version)


def edge_cases(key: ApiKey) -> Iterator[Case]:
    """The newest version, and the newest without compact lengths and tags."""
    for message in messages_of(key):
        newest = message.VERSIONS[-1]
        last_plain = newest if message.FLEXIBLE_FROM is None else message.FLEXIBLE_FROM - 1
        for version in sorted({last_plain, newest} & set(message.VERSIONS)):
            yield Case(message, version)


def structs_of(struct: type[Struct]) -> Iterator[type[Struct]]:
    """The struct and all those inside it."""
    yield struct
    for field in struct.FIELDS:
        if field.struct is not None:
            yield from structs_of(field.struct)


def all_structs() -> set[type[Struct]]:
    return {one for key in all_keys() for top in messages_of(key) for one in structs_of(top)}


# -- filling -----------------------------------------------------------------------------------


class Choices(Protocol):
    """Decides what is put into a message."""

    def value(self, kind: Kind) -> Any: ...

    def is_null(self) -> bool: ...

    def is_set(self) -> bool:
        """Whether a tagged field gets a value."""

    def count(self) -> int:
        """Items of an array."""

    def unknown_tags(self) -> dict[int, bytes]: ...


def fill(case: Case, choices: Choices) -> Any:
    """A message that this version can carry."""
    return _fill(case.message, case, choices)


def _fill(struct: type[Struct], case: Case, choices: Choices) -> Struct:
    given: dict[str, Any] = {}
    for field in struct.FIELDS:
        if case.version not in field.versions:
            continue
        if field.tag is None or choices.is_set():
            given[field.name] = _value(field, case, choices)
    if case.is_flexible:
        given["unknown_tags"] = choices.unknown_tags()
    return struct(**given)


def _value(field: Field, case: Case, choices: Choices) -> Any:
    if case.version in field.nullable and choices.is_null():
        return None
    if field.kind is Kind.ARRAY:
        return [_item(field, field.element, case, choices) for _ in range(choices.count())]
    return _item(field, field.kind, case, choices)


def _item(field: Field, kind: Kind | None, case: Case, choices: Choices) -> Any:
    if field.struct is not None:
        return _fill(field.struct, case, choices)
    assert kind is not None
    return choices.value(kind)


FULL_VALUES: dict[Kind, Any] = {
    Kind.BOOLEAN: True,
    Kind.INT8: -128,
    Kind.INT16: -32768,
    Kind.UINT16: 65535,
    Kind.INT32: -(2**31),
    Kind.INT64: -(2**63),
    Kind.FLOAT64: -1.5,
    Kind.UUID: UUID(int=2**128 - 2),
    Kind.STRING: "näme",
    Kind.BYTES: b"\x00\xff",
    Kind.RECORDS: b"batch",
}


@dataclasses.dataclass
class Always:
    """The same everywhere: everything set, or everything null and empty."""

    is_full: bool
    items: int = 0
    tags: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def value(self, kind: Kind) -> Any:
        return FULL_VALUES[kind] if self.is_full else type(FULL_VALUES[kind])(*self._zero(kind))

    def _zero(self, kind: Kind) -> tuple[Any, ...]:
        return ("0" * 32,) if kind is Kind.UUID else ()

    def is_null(self) -> bool:
        return not self.is_full

    def is_set(self) -> bool:
        return self.is_full

    def count(self) -> int:
        return self.items

    def unknown_tags(self) -> dict[int, bytes]:
        return dict(self.tags)


FULL = Always(is_full=True, items=2)
EMPTY = Always(is_full=False)
STRANGE = Always(is_full=True, items=2, tags={UNKNOWN_TAG: b"", UNKNOWN_TAG + 5: b"later"})
"""As a newer peer may send it: with tags we do not know, in every struct."""
SHORT = Always(is_full=True, items=1, tags={UNKNOWN_TAG: b"x"})
"""Everything is there, once: for tests that go over every byte."""


def _integers(kind: Kind) -> st.SearchStrategy[int]:
    if kind is Kind.UINT16:
        return st.integers(0, 65535)
    half = 2 ** (INTEGER_BITS[kind] - 1)
    return st.integers(-half, half - 1)


VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    **{kind: _integers(kind) for kind in (*INTEGER_BITS, Kind.UINT16)},
    Kind.BOOLEAN: st.booleans(),
    Kind.FLOAT64: st.floats(allow_nan=False),
    Kind.UUID: st.uuids(),
    Kind.STRING: st.one_of(st.text(max_size=5), st.just("é" * 70)),
    Kind.BYTES: st.one_of(st.binary(max_size=5), st.just(b"x" * 130)),
    Kind.RECORDS: st.binary(max_size=5),
}
TAGS = st.dictionaries(st.integers(UNKNOWN_TAG, 2**32 - 1), st.binary(max_size=4), max_size=2)


class Drawn:
    """Drawn by hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def value(self, kind: Kind) -> Any:
        return self._draw(VALUES[kind])

    def is_null(self) -> bool:
        return bool(self._draw(st.booleans()))

    def is_set(self) -> bool:
        return bool(self._draw(st.booleans()))

    def count(self) -> int:
        return int(self._draw(st.integers(0, 2)))

    def unknown_tags(self) -> dict[int, bytes]:
        return dict(self._draw(TAGS))

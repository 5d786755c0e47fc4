"""Structs and messages: classes whose fields are declared in our notation (`fields.py`).

Creating such a class only collects its fields. The constructor, and one reader and one writer per
version, are compiled when they are first needed (`codec.py`): a broker meets a handful of the
thousand codecs that the catalogue describes.
"""

from collections.abc import Mapping
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import TYPE_CHECKING, Any, ClassVar, Self, dataclass_transform

from millstream.wire import codec
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.fields import Field, versions_from
from millstream.wire.primitives import Bytes, MalformedFrame, Reader, Writer
from millstream.wire.values import (
    TooManyItems,
    begin_message,
    begin_request,
    message_items_max,
    request_items_max,
)


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Turns declared fields into slots, and keeps the declarations as `FIELDS`."""

    def __new__(
        cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: Any
    ) -> "StructType":
        """A slot and a class attribute cannot share a name: the body loses the declarations."""
        fields = {key: value for key, value in body.items() if isinstance(value, Field)}
        for key, field in fields.items():
            field.name = key
            del body[key]
        body.setdefault("__slots__", tuple(fields))
        body["FIELDS"] = tuple(fields.values())
        return super().__new__(cls, name, bases, body, **options)


class Struct(metaclass=StructType):
    """A group of fields. The constructor takes them by keyword; each has Kafka's default."""

    __slots__ = ("unknown_tags",)
    __hash__ = None  # type: ignore[assignment] # it can change

    FIELDS: ClassVar[tuple[Field, ...]]
    """All fields of all versions, in wire order."""

    if TYPE_CHECKING:  # mypy makes the constructor from the fields; so do we, at run time.
        unknown_tags: Mapping[int, bytes] = {}
    else:

        def __init__(self, **values: Any) -> None:
            """Runs once per class: replaces itself by the compiled constructor."""
            compiled = codec.constructor_of(type(self))
            type(self).__init__ = compiled
            compiled(self, **values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = (*(field.name for field in self.FIELDS), "unknown_tags")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __repr__(self) -> str:
        """Only fields that differ from the default; of bytes only the size: they may be secret."""
        shown = [
            f"{field.name}={_value_text(value)}"
            for field in self.FIELDS
            if (value := getattr(self, field.name)) != field.default
        ]
        if self.unknown_tags:
            shown.append(f"unknown_tags={sorted(self.unknown_tags)}")
        return f"{type(self).__name__}({', '.join(shown)})"


def _value_text(value: object) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, Bytes) else repr(value)


class Message(Struct):
    """A whole request or response (or, without a key, a message embedded in another)."""

    __slots__ = ()

    API_KEY: ClassVar[ApiKey]
    VERSIONS: ClassVar[range]
    FLEXIBLE_FROM: ClassVar[int | None]

    _readers: ClassVar[dict[int, Reader]]
    _served_readers: ClassVar[dict[int, Reader]]
    _writers: ClassVar[dict[int, Writer]]

    def __init_subclass__(
        cls, *, key: ApiKey | None = None, versions: str = "", flexible_from: int | None = None
    ) -> None:
        cls._readers, cls._served_readers, cls._writers = {}, {}, {}
        if key is None:
            cls.VERSIONS, cls.FLEXIBLE_FROM = versions_from(versions), flexible_from
        else:
            cls.API_KEY = key
            cls.VERSIONS, cls.FLEXIBLE_FROM = APIS[key]

    @classmethod
    def decode(cls, data: Bytes, version: int) -> Self:
        """The message that is all of `data`. Fields of bytes are views into `data`."""
        message, at = cls.decode_front(data, version)
        if at != len(data):
            raise MalformedFrame(f"{cls.__name__} v{version}: {len(data) - at} bytes left", at=at)
        return message

    @classmethod
    def decode_front(cls, data: Bytes, version: int) -> tuple[Self, int]:
        """The message at the start of `data`, and where it ends."""
        read = cls._readers.get(version) or cls._compile_reader(version)
        view = memoryview(data)
        begin_message()
        try:
            return read(view, 0)
        except (MalformedFrame, StructError, IndexError) as error:
            raise cls._malformed(error, version, message_items_max()) from None

    @classmethod
    def decode_served(cls, data: Bytes, version: int, *, is_whole: bool = False) -> Self:
        """The request at the start of `data`, as a broker reads it to serve it.

        Its items are limited (`REQUEST_ITEMS_MAX`), unknown tagged fields are skipped, and trailing
        bytes are ignored unless it must be `is_whole`, as Kafka does: some clients send them.
        """
        read = cls._served_readers.get(version) or cls._compile_served_reader(version)
        view = memoryview(data)
        begin_request()
        try:
            message, at = read(view, 0)
        except (MalformedFrame, StructError, IndexError) as error:
            raise cls._malformed(error, version, request_items_max()) from None
        if is_whole and at != len(view):
            raise MalformedFrame(f"{cls.__name__} v{version}: {len(view) - at} bytes left", at=at)
        return message  # type: ignore[no-any-return]

    @classmethod
    def _malformed(cls, error: Exception, version: int, items_max: int) -> MalformedFrame:
        name = f"{cls.__name__} v{version}"
        if isinstance(error, TooManyItems):
            return TooManyItems(f"{name}: more than {items_max} items in one message", at=error.at)
        if isinstance(error, MalformedFrame):
            return type(error)(f"{name}: {error.what}", at=error.at)
        return MalformedFrame(f"{name} is cut off")

    def encode(self, version: int) -> bytes:
        """The body in that version. ValueError for values it cannot encode (see `fields.py`)."""
        write = self._writers.get(version) or self._compile_writer(version)
        out = bytearray()
        try:
            write(out, self)
        except StructError as error:
            raise ValueError(f"{type(self).__name__} v{version}: {error}") from None
        return bytes(out)

    @classmethod
    def _compile_reader(cls, version: int) -> Reader:
        read = cls._readers[version] = codec.reader_of(cls, cls._form(version))
        return read

    @classmethod
    def _compile_served_reader(cls, version: int) -> Reader:
        form = cls._form(version)._replace(is_served=True)
        read = cls._served_readers[version] = codec.reader_of(cls, form)
        return read

    @classmethod
    def _compile_writer(cls, version: int) -> Writer:
        write = cls._writers[version] = codec.writer_of(cls, cls._form(version))
        return write

    @classmethod
    def _form(cls, version: int) -> codec.Form:
        if version not in cls.VERSIONS:
            raise ValueError(f"{cls.__name__} has no version {version}")
        is_flexible = cls.FLEXIBLE_FROM is not None and version >= cls.FLEXIBLE_FROM
        return codec.Form(version, is_flexible)

"""Functions for compiled codecs: fixed-size values, arrays, nullable structs, tagged fields."""

import struct as fixed
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import local
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from millstream.model.limits import MESSAGE_ITEMS_MAX, REQUEST_ITEMS_MAX
from millstream.wire import primitives
from millstream.wire.fields import Kind
from millstream.wire.primitives import (
    MalformedFrame,
    Reader,
    Writer,
    read_unsigned_varint,
    write_unsigned_varint,
)

T = TypeVar("T")

NUMBERS_PER_ITEM: Final = 8
"""In an array of numbers, as many of them count as one item: they are decoded all at once. Not so
in a request: there each counts, because a number names a partition, of which the broker makes an
object or more to serve it."""

NO_TAGS: Final[Mapping[int, bytes]] = MappingProxyType({})
"""Shared by all structs without unknown tags, which are nearly all."""

FORMATS: Final = {
    Kind.BOOLEAN: "?",
    Kind.INT8: "b",
    Kind.INT16: "h",
    Kind.UINT16: "H",
    Kind.INT32: "i",
    Kind.INT64: "q",
    Kind.FLOAT64: "d",
    Kind.UUID: "16s",
}
"""Format characters of the fixed-size types for the struct module."""

NUMBERS: Final = frozenset(FORMATS) - {Kind.UUID}
"""Those that `struct` converts directly."""

TAG_BYTES_MIN: Final = 2
"""A tagged field has at least a number and a size, one byte each."""

TOO_MANY: Final = "too many items"
"""The message class, which knows the limit, says it better."""


class StringForm(NamedTuple):
    """Which of the eight encodings of strings and byte strings."""

    is_text: bool
    is_compact: bool
    may_be_null: bool


STRING_READERS: Final[dict[StringForm, Reader]] = {
    StringForm(True, False, False): primitives.read_string,
    StringForm(True, False, True): primitives.read_nullable_string,
    StringForm(True, True, False): primitives.read_compact_string,
    StringForm(True, True, True): primitives.read_nullable_compact_string,
    StringForm(False, False, False): primitives.read_bytes,
    StringForm(False, False, True): primitives.read_nullable_bytes,
    StringForm(False, True, False): primitives.read_compact_bytes,
    StringForm(False, True, True): primitives.read_nullable_compact_bytes,
}
STRING_WRITERS: Final[dict[StringForm, Writer]] = {
    StringForm(True, False, False): primitives.write_string,
    StringForm(True, False, True): primitives.write_nullable_string,
    StringForm(True, True, False): primitives.write_compact_string,
    StringForm(True, True, True): primitives.write_nullable_compact_string,
    StringForm(False, False, False): primitives.write_bytes,
    StringForm(False, False, True): primitives.write_nullable_bytes,
    StringForm(False, True, False): primitives.write_compact_bytes,
    StringForm(False, True, True): primitives.write_nullable_compact_bytes,
}


@lru_cache(maxsize=1024)
def uuid_of(raw: bytes) -> UUID:
    """Cached, because the same topic ids repeat and building one is slow."""
    return UUID(bytes=raw)


# -- one fixed-size value, in a tag or an array --------------------------------------------------


def fixed_reader(kind: Kind) -> Reader:
    layout = fixed.Struct(">" + FORMATS[kind])

    def read(view: memoryview, at: int) -> tuple[Any, int]:
        (value,) = layout.unpack_from(view, at)
        return (uuid_of(value) if kind is Kind.UUID else value), at + layout.size

    return read


def fixed_writer(kind: Kind) -> Writer:
    layout = fixed.Struct(">" + FORMATS[kind])

    def write(out: bytearray, value: Any) -> None:
        out += layout.pack(value.bytes if kind is Kind.UUID else value)

    return write


# -- arrays ------------------------------------------------------------------------------------


class ArrayForm(NamedTuple):
    """How an array counts its items, and whether it may be null."""

    is_compact: bool
    may_be_null: bool

    @property
    def read_length(self) -> Reader:
        return primitives.read_compact_length if self.is_compact else primitives.read_int32

    @property
    def write_length(self) -> Writer:
        return primitives.write_compact_length if self.is_compact else primitives.write_int32


class TooManyItems(MalformedFrame):
    """A message has more items in its arrays, or tagged fields, than may be decoded."""


class _Budget(local):
    """Items that the message being decoded may still have; each thread decodes its own."""

    left = 0
    limit: int | None = None


_budget: Final = _Budget()


def begin_message() -> None:
    """Must be called before a message is decoded, unless `begin_request` is."""
    limit = _budget.limit
    _budget.left = MESSAGE_ITEMS_MAX if limit is None else limit


def begin_request() -> None:
    """Must be called before a request is decoded that is to be served."""
    limit = _budget.limit
    _budget.left = REQUEST_ITEMS_MAX if limit is None else limit


def count_items(count: int, at: int) -> None:
    """Count items that are about to be decoded; raises TooManyItems."""
    _budget.left -= count
    if _budget.left < 0:
        raise TooManyItems(f"more than {request_items_max()} items in one request", at=at)


def request_items_max() -> int:
    """How many items a request may have that this thread decodes now."""
    limit = _budget.limit
    return REQUEST_ITEMS_MAX if limit is None else limit


def message_items_max() -> int:
    """How many items any other message may have that this thread decodes now."""
    limit = _budget.limit
    return MESSAGE_ITEMS_MAX if limit is None else limit


def read_within(items_max: int, read: Callable[[], T]) -> T:
    """Decode a message of at most that many items; raises TooManyItems early for a larger one.

    For callers that must not block while a large one is decoded: they try, and on TooManyItems
    decode it in another thread.
    """
    _budget.limit = items_max
    try:
        return read()
    finally:
        _budget.limit = None


def array_reader(form: ArrayForm, read_item: Reader, item_bytes_min: int) -> Reader:
    """An array of anything; the count is checked against the available bytes first."""
    read_length = form.read_length

    def read(view: memoryview, at: int) -> tuple[list[Any] | None, int]:
        count, at = read_length(view, at)
        if count == -1 and form.may_be_null:
            return None, at
        if not 0 <= count <= (len(view) - at) // item_bytes_min:
            raise _wrong_count(view, at, count)
        _budget.left -= count
        if _budget.left < 0:
            raise TooManyItems(TOO_MANY, at=at)
        items = []
        for _ in range(count):
            item, at = read_item(view, at)
            items.append(item)
        return items, at

    return read


def number_array_reader(
    form: ArrayForm, kind: Kind, *, numbers_per_item: int = NUMBERS_PER_ITEM
) -> Reader:
    """An array of numbers, all unpacked at once."""
    read_length, letter = form.read_length, FORMATS[kind]
    number_bytes = fixed.calcsize(">" + letter)

    def read(view: memoryview, at: int) -> tuple[list[Any] | None, int]:
        count, at = read_length(view, at)
        if count == -1 and form.may_be_null:
            return None, at
        if not 0 <= count <= (len(view) - at) // number_bytes:
            raise _wrong_count(view, at, count)
        _budget.left -= count // numbers_per_item
        if _budget.left < 0:
            raise TooManyItems(TOO_MANY, at=at)
        items = fixed.unpack_from(f">{count}{letter}", view, at)
        return list(items), at + count * number_bytes

    return read


def _wrong_count(view: memoryview, at: int, count: int) -> MalformedFrame:
    return MalformedFrame(f"array of {count} items in {len(view) - at} bytes", at=at)


def array_writer(form: ArrayForm, write_item: Writer) -> Writer:
    write_length = form.write_length

    def write(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            write_length(out, -1)
            return
        write_length(out, len(items))
        for item in items:
            write_item(out, item)

    return write


def number_array_writer(form: ArrayForm, kind: Kind) -> Writer:
    write_length, letter = form.write_length, FORMATS[kind]

    def write(out: bytearray, items: Sequence[Any] | None) -> None:
        if items is None:
            write_length(out, -1)
            return
        write_length(out, len(items))
        out += fixed.pack(f">{len(items)}{letter}", *items)

    return write


# -- nullable structs --------------------------------------------------------------------------


NULL_STRUCT: Final = 0xFF
NULL_STRUCT_IN_TAG: Final = 0
"""In a tag Kafka encodes null the same way for all types."""


def nullable_struct_reader(read_struct: Reader, null: int = NULL_STRUCT) -> Reader:
    """A leading byte says whether it is null."""

    def read(view: memoryview, at: int) -> tuple[Any, int]:
        marker = view[at]
        if marker == null:
            return None, at + 1
        if marker != 1:
            raise MalformedFrame(f"marker of a struct is {marker}", at=at)
        return read_struct(view, at + 1)

    return read


def nullable_struct_writer(write_struct: Writer, null: int = NULL_STRUCT) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        out.append(null if value is None else 1)
        if value is not None:
            write_struct(out, value)

    return write


# -- tagged fields -----------------------------------------------------------------------------


class TagReader(NamedTuple):
    """A tagged field that this version knows."""

    name: str
    read: Reader


class TagWriter(NamedTuple):
    """A tagged field that this version knows."""

    name: str
    default: Any
    write: Writer


def read_tags(
    view: memoryview, at: int, target: Any, known: Mapping[int, TagReader]
) -> tuple[Mapping[int, bytes], int]:
    """Set the known ones on `target`; return the others as bytes."""
    unknown: dict[int, bytes] = {}
    at = _read_tags(view, at, target, known, unknown)
    return unknown or NO_TAGS, at


def read_known_tags(
    view: memoryview, at: int, target: Any, known: Mapping[int, TagReader]
) -> tuple[Mapping[int, bytes], int]:
    """As `read_tags`, for a broker, which has no use for the others: they are skipped."""
    return NO_TAGS, _read_tags(view, at, target, known, None)


def _read_tags(
    view: memoryview,
    at: int,
    target: Any,
    known: Mapping[int, TagReader],
    unknown: dict[int, bytes] | None,
) -> int:
    """Numbers must ascend. Each field counts as an item of the message."""
    count, at = read_tag_count(view, at)
    _budget.left -= count
    if _budget.left < 0:
        raise TooManyItems(TOO_MANY, at=at)
    previous = -1
    for _ in range(count):
        tag, at, stop = read_tag(view, at, previous)
        previous = tag
        field = known.get(tag)
        if field is not None:
            value, used = field.read(view[at:stop], 0)
            if used != stop - at:
                raise MalformedFrame(f"tag {tag} uses {used} of its {stop - at} bytes", at=at)
            setattr(target, field.name, value)
        elif unknown is not None:
            unknown[tag] = bytes(view[at:stop])
        at = stop
    return at


def read_tag_count(view: memoryview, at: int) -> tuple[int, int]:
    """How many tagged fields follow; refused if there cannot be so many."""
    count, at = read_unsigned_varint(view, at)
    if count > (len(view) - at) // TAG_BYTES_MIN:
        raise MalformedFrame(f"{count} tagged fields in {len(view) - at} bytes", at=at)
    return count, at


def read_tag(view: memoryview, at: int, previous: int) -> tuple[int, int, int]:
    """The number of a tagged field, and where its value begins and ends."""
    tag, at = read_unsigned_varint(view, at)
    if tag <= previous:
        raise MalformedFrame(f"tag {tag} after {previous}", at=at)
    size, at = read_unsigned_varint(view, at)
    stop = at + size
    if stop > len(view):
        raise MalformedFrame(f"tag {tag} of {size} bytes in {len(view) - at}", at=at)
    return tag, at, stop


def write_tags(out: bytearray, source: Any, known: Mapping[int, TagWriter]) -> None:
    """Write known fields that differ from their default, and the unknown ones that were kept."""
    unknown = source.unknown_tags
    encoded: dict[int, Any] = {tag: raw for tag, raw in unknown.items() if tag not in known}
    for tag, field in known.items():
        value = getattr(source, field.name)
        if value != field.default:
            raw = encoded[tag] = bytearray()
            field.write(raw, value)
    write_unsigned_varint(out, len(encoded))
    for tag, raw in sorted(encoded.items()):
        write_unsigned_varint(out, tag)
        write_unsigned_varint(out, len(raw))
        out += raw

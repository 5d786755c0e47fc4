"""The protocol's primitive types: varints, strings, byte strings, and the error for bad bytes.

A reader takes `(view, at)` and returns `(value, end position)`; a writer takes `(out, value)`.
Readers check every length against the available bytes before they slice or allocate, so a frame can
never make us allocate more than its own size.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from millstream.model.errors import OperatingError

Bytes = bytes | bytearray | memoryview
"""Type of a bytes field; a decoded one is a view into the frame, not a copy."""

Reader = Callable[[memoryview, int], tuple[Any, int]]
Writer = Callable[[bytearray, Any], None]

STRING_BYTES_MAX: Final = 0x7FFF
"""Longest string of the protocol: its first encoding has an int16 length."""
UNSIGNED_VARINT_MAX: Final = 0xFFFF_FFFF

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")


class MalformedFrame(OperatingError):
    """Bytes that violate the protocol; the only error for that."""

    def __init__(self, what: str, *, at: int | None = None) -> None:
        self.what, self.at = what, at
        super().__init__(what if at is None else f"{what} at byte {at}")


# -- varints -----------------------------------------------------------------------------------


def _read_bits(view: memoryview, at: int, bits: int) -> tuple[int, int]:
    """Seven bits a byte, lowest first; longer than `bits` needs, or above their range, is bad."""
    value = 0
    start = at
    try:
        for shift in range(0, bits, 7):
            byte = view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> bits:
                    raise MalformedFrame(f"varint above {bits} bits", at=start)
                return value, at
    except IndexError:
        raise MalformedFrame("varint is cut off", at=start) from None
    raise MalformedFrame(f"varint longer than {at - start} bytes", at=start)


def read_unsigned_varint(view: memoryview, at: int) -> tuple[int, int]:
    """At most five bytes and 32 bits."""
    if at < len(view) and (byte := view[at]) < 0x80:
        return byte, at + 1
    return _read_bits(view, at, 32)


def read_varint(view: memoryview, at: int) -> tuple[int, int]:
    """Zigzag, 32 bits."""
    value, at = _read_bits(view, at, 32)
    return (value >> 1) ^ -(value & 1), at


def read_varlong(view: memoryview, at: int) -> tuple[int, int]:
    """Zigzag, 64 bits, at most ten bytes."""
    value, at = _read_bits(view, at, 64)
    return (value >> 1) ^ -(value & 1), at


def _write_bits(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_unsigned_varint(out: bytearray, value: int) -> None:
    """ValueError for values that do not fit 32 bits: the reader would refuse them."""
    if not 0 <= value <= UNSIGNED_VARINT_MAX:
        raise ValueError(f"{value} is not a uint32")
    _write_bits(out, value)


def write_varint(out: bytearray, value: int) -> None:
    """Zigzag, 32 bits."""
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"{value} is not an int32")
    _write_bits(out, (value << 1) ^ (value >> 31))


def write_varlong(out: bytearray, value: int) -> None:
    """Zigzag, 64 bits."""
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} is not an int64")
    _write_bits(out, (value << 1) ^ (value >> 63))


# -- lengths: -1 and, in compact form, 0 mean null ---------------------------------------------


def read_int16(view: memoryview, at: int) -> tuple[int, int]:
    if len(view) - at < 2:
        raise MalformedFrame("int16 is cut off", at=at)
    return INT16.unpack_from(view, at)[0], at + 2


def read_int32(view: memoryview, at: int) -> tuple[int, int]:
    if len(view) - at < 4:
        raise MalformedFrame("int32 is cut off", at=at)
    return INT32.unpack_from(view, at)[0], at + 4


def read_compact_length(view: memoryview, at: int) -> tuple[int, int]:
    """Length plus one as a varint; -1 for null, like the other encodings."""
    if at < len(view) and (byte := view[at]) < 0x80:
        return byte - 1, at + 1
    value, at = _read_bits(view, at, 32)
    return value - 1, at


def write_int32(out: bytearray, value: int) -> None:
    out += INT32.pack(value)


def write_compact_length(out: bytearray, length: int) -> None:
    if length < 0x7F:
        out.append(length + 1)
    else:
        write_unsigned_varint(out, length + 1)


# -- strings -----------------------------------------------------------------------------------


def _text(view: memoryview, size: int, at: int) -> tuple[str, int]:
    stop = at + size
    if size < 0:
        raise MalformedFrame("null or negative length for a string", at=at)
    if size > STRING_BYTES_MAX or stop > len(view):
        raise MalformedFrame(f"string of {size} bytes in {len(view) - at}", at=at)
    try:
        return str(view[at:stop], "utf-8"), stop
    except UnicodeDecodeError:
        raise MalformedFrame("string is not UTF-8", at=at) from None


def read_string(view: memoryview, at: int) -> tuple[str, int]:
    return _text(view, *read_int16(view, at))


def read_nullable_string(view: memoryview, at: int) -> tuple[str | None, int]:
    size, at = read_int16(view, at)
    return (None, at) if size == -1 else _text(view, size, at)


def read_compact_string(view: memoryview, at: int) -> tuple[str, int]:
    # Nearly all are short, and every request has some: their case is inlined.
    if at < len(view) and 0 < (byte := view[at]) < 0x80 and at + byte <= len(view):
        try:
            return str(view[at + 1 : at + byte], "utf-8"), at + byte
        except UnicodeDecodeError:
            raise MalformedFrame("string is not UTF-8", at=at + 1) from None
    return _text(view, *read_compact_length(view, at))


def read_nullable_compact_string(view: memoryview, at: int) -> tuple[str | None, int]:
    if at < len(view) and view[at]:
        return read_compact_string(view, at)
    size, at = read_compact_length(view, at)
    return (None, at) if size == -1 else _text(view, size, at)


def _encoded(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"string of {len(raw)} bytes; the protocol allows {STRING_BYTES_MAX}")
    return raw


def write_string(out: bytearray, text: str) -> None:
    raw = _encoded(text)
    out += INT16.pack(len(raw))
    out += raw


def write_nullable_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out += b"\xff\xff"
    else:
        write_string(out, text)


def write_compact_string(out: bytearray, text: str) -> None:
    raw = _encoded(text)
    write_compact_length(out, len(raw))
    out += raw


def write_nullable_compact_string(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
    else:
        write_compact_string(out, text)


# -- byte strings ------------------------------------------------------------------------------


def _slice(view: memoryview, size: int, at: int) -> tuple[memoryview, int]:
    stop = at + size
    if size < 0:
        raise MalformedFrame("null or negative length for bytes", at=at)
    if stop > len(view):
        raise MalformedFrame(f"{size} bytes in {len(view) - at}", at=at)
    return view[at:stop], stop


def read_bytes(view: memoryview, at: int) -> tuple[memoryview, int]:
    return _slice(view, *read_int32(view, at))


def read_nullable_bytes(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    size, at = read_int32(view, at)
    return (None, at) if size == -1 else _slice(view, size, at)


def read_compact_bytes(view: memoryview, at: int) -> tuple[memoryview, int]:
    return _slice(view, *read_compact_length(view, at))


def read_nullable_compact_bytes(view: memoryview, at: int) -> tuple[memoryview | None, int]:
    size, at = read_compact_length(view, at)
    return (None, at) if size == -1 else _slice(view, size, at)


def write_bytes(out: bytearray, value: Bytes) -> None:
    out += INT32.pack(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: Bytes | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        write_bytes(out, value)


def write_compact_bytes(out: bytearray, value: Bytes) -> None:
    write_compact_length(out, len(value))
    out += value


def write_nullable_compact_bytes(out: bytearray, value: Bytes | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_bytes(out, value)

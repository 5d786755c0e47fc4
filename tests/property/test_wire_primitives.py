"""Numbers, strings and byte strings of the protocol, over their whole range and every prefix."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire import primitives as p

ReadNumber = Callable[[memoryview, int], tuple[int, int]]
WriteNumber = Callable[[bytearray, int], None]

UNSIGNED = (p.read_unsigned_varint, p.write_unsigned_varint, st.integers(0, 2**32 - 1), 5)
VARINT = (p.read_varint, p.write_varint, st.integers(-(2**31), 2**31 - 1), 5)
VARLONG = (p.read_varlong, p.write_varlong, st.integers(-(2**63), 2**63 - 1), 10)
NUMBERS = pytest.mark.parametrize(
    ("read", "write", "numbers", "bytes_max"),
    [UNSIGNED, VARINT, VARLONG],
    ids=["unsigned", "varint", "varlong"],
)
TEXTS = st.text(max_size=200)
BLOBS = st.binary(max_size=200)
STRINGS: list[tuple[Any, Any, st.SearchStrategy[Any]]] = [
    (p.read_string, p.write_string, TEXTS),
    (p.read_nullable_string, p.write_nullable_string, st.none() | TEXTS),
    (p.read_compact_string, p.write_compact_string, TEXTS),
    (p.read_nullable_compact_string, p.write_nullable_compact_string, st.none() | TEXTS),
    (p.read_bytes, p.write_bytes, BLOBS),
    (p.read_nullable_bytes, p.write_nullable_bytes, st.none() | BLOBS),
    (p.read_compact_bytes, p.write_compact_bytes, BLOBS),
    (p.read_nullable_compact_bytes, p.write_nullable_compact_bytes, st.none() | BLOBS),
]


def written(write: Any, value: Any) -> bytes:
    out = bytearray()
    write(out, value)
    return bytes(out)


def plain_varint(raw: bytes) -> int:
    """The definition, spelled out: seven bits a byte, lowest first."""
    return sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(raw))


@NUMBERS
@given(data=st.data())
def test_numbers_come_back_and_no_prefix_does(
    data: st.DataObject, read: ReadNumber, write: WriteNumber, numbers: Any, bytes_max: int
) -> None:
    number = data.draw(numbers)
    raw = written(write, number)
    assert len(raw) <= bytes_max
    assert read(memoryview(b"?" + raw + b"?"), 1) == (number, 1 + len(raw))
    for size in range(len(raw)):
        with pytest.raises(p.MalformedFrame):
            read(memoryview(raw[:size]), 0)


@NUMBERS
def test_longer_than_the_limit_is_refused(
    read: ReadNumber, write: WriteNumber, numbers: Any, bytes_max: int
) -> None:
    """Also where the bytes too many say zero."""
    for tail in (b"\x00", b"\x01", b"\x80\x00"):
        with pytest.raises(p.MalformedFrame):
            read(memoryview(b"\x80" * bytes_max + tail), 0)
    assert read(memoryview(b"\x80" * (bytes_max - 1) + b"\x00"), 0) == (0, bytes_max)


@given(raw=st.binary(max_size=12))
def test_a_varint_is_its_definition_or_refused(raw: bytes) -> None:
    size = next((at + 1 for at, byte in enumerate(raw) if byte < 0x80), len(raw) + 1)
    value = plain_varint(raw[:size])
    is_good = size <= min(len(raw), 5) and value < 2**32
    try:
        assert p.read_unsigned_varint(memoryview(raw), 0) == (value, size)
        assert p.read_compact_length(memoryview(raw), 0) == (value - 1, size)
        assert is_good
    except p.MalformedFrame:
        assert not is_good


def test_short_varints_completely() -> None:
    for first, second in product(range(256), range(128)):
        raw = bytes([first, second])
        size = 1 if first < 0x80 else 2
        expected = (plain_varint(raw[:size]), size)
        assert p.read_unsigned_varint(memoryview(raw), 0) == expected


@pytest.mark.parametrize(
    ("number", "raw"),
    [(0, "00"), (-1, "01"), (63, "7e"), (-64, "7f"), (64, "8001"), (-(2**31), "ffffffff0f")],
)
def test_zigzag(number: int, raw: str) -> None:
    assert written(p.write_varint, number).hex() == raw


@pytest.mark.parametrize(
    ("write", "number"),
    [
        (p.write_unsigned_varint, -1),
        (p.write_unsigned_varint, 2**32),
        (p.write_varint, 2**31),
        (p.write_varint, -(2**31) - 1),
        (p.write_varlong, 2**63),
        (p.write_varlong, -(2**63) - 1),
    ],
)
def test_numbers_out_of_range_are_not_written(write: WriteNumber, number: int) -> None:
    with pytest.raises(ValueError, match="is not a"):
        write(bytearray(), number)


@pytest.mark.parametrize(
    ("read", "write", "values"), STRINGS, ids=[row[0].__name__ for row in STRINGS]
)
@given(data=st.data())
def test_strings_come_back_and_no_prefix_does(
    data: st.DataObject, read: Any, write: Any, values: Any
) -> None:
    value = data.draw(values)
    raw = written(write, value)
    assert read(memoryview(b"?" + raw + b"?"), 1) == (value, 1 + len(raw))
    for size in range(len(raw)):
        with pytest.raises(p.MalformedFrame):
            read(memoryview(raw[:size]), 0)


@pytest.mark.parametrize("read", [p.read_string, p.read_compact_string])
def test_null_is_refused_where_a_string_must_be(read: Any) -> None:
    raw = b"\xff\xff" if read is p.read_string else b"\x00"
    with pytest.raises(p.MalformedFrame, match="null"):
        read(memoryview(raw), 0)


@pytest.mark.parametrize("read", [p.read_bytes, p.read_compact_bytes])
def test_null_is_refused_where_bytes_must_be(read: Any) -> None:
    raw = b"\xff\xff\xff\xff" if read is p.read_bytes else b"\x00"
    with pytest.raises(p.MalformedFrame, match="null"):
        read(memoryview(raw), 0)


@pytest.mark.parametrize(
    ("read", "raw"),
    [(p.read_nullable_string, b"\xff\xfe"), (p.read_nullable_bytes, b"\x80\x00\x00\x00")],
)
def test_only_minus_one_is_null(read: Any, raw: bytes) -> None:
    with pytest.raises(p.MalformedFrame, match="negative"):
        read(memoryview(raw + b"x" * 9), 0)


def test_strings_end_at_32767_bytes() -> None:
    longest = "x" * p.STRING_BYTES_MAX
    for write, read in (
        (p.write_string, p.read_string),
        (p.write_compact_string, p.read_compact_string),
    ):
        raw = written(write, longest)
        assert read(memoryview(raw), 0) == (longest, len(raw))
        with pytest.raises(ValueError, match="32768"):
            write(bytearray(), longest + "x")
    too_long = b"\x81\x80\x02" + b"x" * 0x8000
    with pytest.raises(p.MalformedFrame, match="32768"):
        p.read_compact_string(memoryview(too_long), 0)


def test_a_string_must_be_utf8() -> None:
    with pytest.raises(p.MalformedFrame, match="UTF-8"):
        p.read_compact_string(memoryview(b"\x03\xc3\x28"), 0)


def test_bytes_are_a_view_of_the_frame() -> None:
    frame = bytearray(b"\x04abc")
    view, _ = p.read_compact_bytes(memoryview(frame), 0)
    frame[1] = ord("z")
    assert bytes(view) == b"zbc"

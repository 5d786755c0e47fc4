"""Batches walked, found and stamped, on known bytes; every test runs on both twins."""

import gc
import struct
import tracemalloc
from array import array
from functools import partial
from itertools import chain
from typing import Any

import pytest

from kits.kernels.kernel_twins import twins
from kits.kernels.record_bytes import SIZE_MAX, batch
from millstream.kernels.errors import MalformedRecords, Reason

both = pytest.mark.parametrize("kernel", twins("batches"))

INT64_MAX = 2**63 - 1


def rows_of(kernel: Any, buffer: bytes | bytearray, start: int = 0) -> list[list[int]]:
    rows, end, reason = kernel.walk(buffer, start, len(buffer), check_crc=True, size_max=SIZE_MAX)
    assert (end, reason) == (len(buffer), Reason.NONE)
    assert rows.typecode == "q"
    width = kernel.ROW_FIELDS
    return [list(rows[at : at + width]) for at in range(0, len(rows), width)]


def flat(rows: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(rows))


def walk_reason(kernel: Any, data: bytes, *, size_max: int = SIZE_MAX) -> tuple[int, int]:
    _, end, reason = kernel.walk(data, 0, len(data), check_crc=True, size_max=size_max)
    return end, reason


@both
def test_walk_gives_every_field_of_every_batch(kernel: Any) -> None:
    first = batch(b"abc", base_offset=40, count=3, attributes=0x0013, producer=(9, 4, 77))
    second = batch(b"", base_offset=43, count=0, last_offset_delta=6, max_timestamp=-5)
    rows = rows_of(kernel, b"skip" + first + second, start=4)
    assert rows == [
        [4, 64, 40, 42, 7, 0x13, 1_000, 2_000, 9, 4, 77, 3],
        [68, 61, 43, 49, 7, 0, 1_000, -5, -1, -1, -1, 0],
    ]
    assert rows[0][kernel.POSITION] == 4
    assert rows[0][kernel.SIZE] == 64
    assert rows[0][kernel.BASE_OFFSET] == 40
    assert rows[0][kernel.LAST_OFFSET] == 42
    assert rows[0][kernel.LEADER_EPOCH] == 7
    assert rows[0][kernel.ATTRIBUTES] == 0x13
    assert rows[0][kernel.BASE_TIMESTAMP] == 1_000
    assert rows[0][kernel.MAX_TIMESTAMP] == 2_000
    assert rows[0][kernel.PRODUCER_ID] == 9
    assert rows[0][kernel.PRODUCER_EPOCH] == 4
    assert rows[0][kernel.BASE_SEQUENCE] == 77
    assert rows[0][kernel.RECORD_COUNT] == 3


@both
def test_walk_reads_extreme_fields(kernel: Any) -> None:
    data = batch(
        base_offset=INT64_MAX - 2**31 + 1,
        count=0,
        last_offset_delta=2**31 - 1,
        leader_epoch=-1,
        attributes=-32768,
        base_timestamp=-(2**63),
        max_timestamp=INT64_MAX,
        producer=(INT64_MAX, 32767, 2**31 - 1),
    )
    row = [0, 61, INT64_MAX - 2**31 + 1, INT64_MAX, -1, -32768, -(2**63), INT64_MAX]
    assert rows_of(kernel, data) == [[*row, INT64_MAX, 32767, 2**31 - 1, 0]]


@both
def test_walk_takes_any_buffer_and_many_batches(kernel: Any) -> None:
    data = b"".join(batch(bytes(at), base_offset=at) for at in range(100))
    expected = rows_of(kernel, data)
    assert [row[kernel.BASE_OFFSET] for row in expected] == list(range(100))
    for buffer in (
        bytearray(data),
        memoryview(data),
        memoryview(bytearray(data)),
        array("b", data),
    ):
        rows, end, reason = kernel.walk(buffer, 0, len(data), check_crc=True, size_max=SIZE_MAX)
        assert (rows, end, reason) == (array("q", flat(expected)), len(data), 0)


@both
def test_walk_of_nothing(kernel: Any) -> None:
    assert kernel.walk(b"", 0, 0, check_crc=True, size_max=SIZE_MAX) == (array("q"), 0, 0)
    assert kernel.walk(b"abc", 2, 2, check_crc=True, size_max=SIZE_MAX) == (array("q"), 2, 0)


@both
def test_walk_stops_short_at_every_truncation(kernel: Any) -> None:
    first, second = batch(b"payload"), batch(b"more", base_offset=1)
    for cut in range(1, len(second)):
        data = first + second[:cut]
        rows, end, reason = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
        assert (len(rows), end, reason) == (kernel.ROW_FIELDS, len(first), Reason.SHORT)


@both
@pytest.mark.parametrize("position", range(21, 70))
def test_walk_finds_every_flipped_bit_the_crc_covers(kernel: Any, position: int) -> None:
    for bit in range(8):
        data = bytearray(batch(b"123456789"))
        data[position] ^= 1 << bit
        assert walk_reason(kernel, bytes(data)) == (0, Reason.CRC)
        _, end, _ = kernel.walk(data, 0, len(data), check_crc=False, size_max=SIZE_MAX)
        assert end in (0, len(data))


@both
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"base_offset": -1}, Reason.OFFSETS),
        ({"last_offset_delta": -1, "count": 0}, Reason.OFFSETS),
        ({"base_offset": INT64_MAX - 4, "count": 6}, Reason.OFFSETS),
        ({"count": -1, "last_offset_delta": 3}, Reason.COUNT),
        ({"count": 5, "last_offset_delta": 3}, Reason.COUNT),
        ({"attributes": 5}, Reason.CODEC),
        ({"attributes": 7}, Reason.CODEC),
        ({"magic": 0}, Reason.MAGIC),
        ({"magic": 1}, Reason.MAGIC),
        ({"magic": 3}, Reason.MAGIC),
        ({"magic": -1}, Reason.MAGIC),
    ],
)
def test_walk_refuses_wrong_fields(kernel: Any, fields: dict[str, int], reason: Reason) -> None:
    good = batch(b"xy")
    data = good + batch(b"xy", **fields)  # type: ignore[arg-type]
    assert walk_reason(kernel, data) == (len(good), reason)


@both
def test_walk_takes_every_known_codec_and_the_last_possible_offset(kernel: Any) -> None:
    for codec in range(5):
        assert walk_reason(kernel, batch(attributes=codec | 0x78)) == (61, Reason.NONE)
    assert walk_reason(kernel, batch(base_offset=INT64_MAX - 4, count=5)) == (61, Reason.NONE)


@both
@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 48, 2**31 - 1])
def test_walk_refuses_a_claimed_length_before_it_trusts_it(kernel: Any, length: int) -> None:
    data = bytearray(batch(b"xyz"))
    struct.pack_into(">i", data, 8, length)
    assert walk_reason(kernel, bytes(data)) == (0, Reason.LENGTH)
    assert walk_reason(kernel, bytes(200)) == (0, Reason.LENGTH)


@both
def test_walk_limit_counts_the_whole_batch(kernel: Any) -> None:
    data = batch(b"xyz")
    assert walk_reason(kernel, data, size_max=len(data)) == (len(data), Reason.NONE)
    assert walk_reason(kernel, data, size_max=len(data) - 1) == (0, Reason.LENGTH)
    assert walk_reason(kernel, data[:12], size_max=len(data) - 1) == (0, Reason.LENGTH)


@both
def test_walk_tells_old_formats_from_damage(kernel: Any) -> None:
    """A message of magic 0 or 1 may be shorter than a batch's header."""
    old = struct.pack(">qiIbb", 0, 14, 0, 1, 0) + bytes(8)
    assert walk_reason(kernel, old) == (0, Reason.MAGIC)


@both
@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 62), (62, 62), (-2, -1)])
def test_wrong_range_is_the_callers_error(kernel: Any, start: int, stop: int) -> None:
    data = batch()
    with pytest.raises(ValueError, match="range"):
        kernel.walk(data, start, stop, check_crc=False, size_max=SIZE_MAX)
    with pytest.raises(ValueError, match="range"):
        kernel.find_offset(data, start, stop, 0)
    with pytest.raises(ValueError, match="range"):
        kernel.find_timestamp(data, start, stop, 0)


@both
def test_no_call_keeps_the_buffer(kernel: Any) -> None:
    """A held export would make the connection's buffer impossible to grow."""
    data = bytearray(batch(b"xyz"))
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    kernel.assign_offsets(data, rows, 1, 1)
    kernel.set_leader_epoch(data, rows, 1)
    kernel.set_append_time(data, rows, 1)
    kernel.find_offset(data, 0, len(data), 5)
    for wrong in (
        partial(kernel.walk, data, 3, 2, check_crc=True, size_max=SIZE_MAX),
        partial(kernel.assign_offsets, data, rows, INT64_MAX, 1),
        partial(kernel.set_append_time, data, array("q", [1] * 12), 1),
    ):
        with pytest.raises(ValueError, match=r"range|row|offsets"):
            wrong()
    data.extend(b"grows")


@both
def test_assigned_offsets_follow_each_other_and_keep_the_crc(kernel: Any) -> None:
    data = bytearray(
        batch(b"a", base_offset=5, count=3) + batch(b"b", count=1, last_offset_delta=9) + batch()
    )
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    assert kernel.assign_offsets(data, rows, 1_000, 42) == 1_014
    again = rows_of(kernel, data)
    assert list(rows) == flat(again)
    assert [row[2:5] for row in again] == [[1000, 1002, 42], [1003, 1012, 42], [1013, 1013, 42]]


@both
def test_offsets_beyond_int64_are_refused_and_nothing_changes(kernel: Any) -> None:
    data = bytearray(batch(count=3) + batch(count=3))
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    before = bytes(data), rows[:]
    with pytest.raises(MalformedRecords) as caught:
        kernel.assign_offsets(data, rows, INT64_MAX - 5, 1)
    assert caught.value.reason is Reason.OFFSETS
    assert (bytes(data), rows) == before
    assert kernel.assign_offsets(data, rows, INT64_MAX - 6, 1) == INT64_MAX


@both
def test_leader_epoch_alone(kernel: Any) -> None:
    data = bytearray(batch(base_offset=5) + batch(base_offset=6))
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    kernel.set_leader_epoch(data, rows, 2**31 - 1)
    assert [row[2:5] for row in rows_of(kernel, data)] == [[5, 5, 2**31 - 1], [6, 6, 2**31 - 1]]
    assert list(rows) == flat(rows_of(kernel, data))


@both
def test_append_time_marks_the_batch_and_renews_its_crc(kernel: Any) -> None:
    before = [batch(b"a" * 50, base_offset=5, attributes=0x14), batch(b"b", max_timestamp=-1)]
    data = bytearray(b"".join(before))
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    kernel.set_append_time(data, rows, 1_700_000_000_000)
    after = [
        batch(b"a" * 50, base_offset=5, attributes=0x1C, max_timestamp=1_700_000_000_000),
        batch(b"b", attributes=8, max_timestamp=1_700_000_000_000),
    ]
    assert bytes(data) == b"".join(after)
    assert list(rows) == flat(rows_of(kernel, data))


@both
@pytest.mark.parametrize(
    "row",
    [
        [0, 61, 0, 0],
        [-1, 61, 0, 0],
        [1, 100, 0, 0],
        [40, 61, 0, 0],
        [0, 60, 0, 0],
        [0, 62, 5, 4],
        [0, 62, -3, 0],
        [0, 62, 0, 2**31],
        [2**62, 2**62, 0, 0],
        [0, 62, 0, -(2**63)],
    ],
)
def test_rows_outside_the_buffer_are_never_written_through(kernel: Any, row: list[int]) -> None:
    data = bytearray(60 if row == [0, 61, 0, 0] else 100)
    rows = array("q", [*row, *[0] * 8])
    for call in (
        partial(kernel.assign_offsets, data, rows, 0, 0),
        partial(kernel.set_leader_epoch, data, rows, 0),
        partial(kernel.set_append_time, data, rows, 0),
        partial(kernel.set_leader_epoch, data, array("q", [0] * 11), 0),
        partial(kernel.set_leader_epoch, data, array("i", [0] * 12), 0),
    ):
        with pytest.raises(ValueError, match="row"):
            call()
    assert not any(data)


@both
def test_wrong_stamps_are_the_callers_error(kernel: Any) -> None:
    data = bytearray(batch())
    rows, *_ = kernel.walk(data, 0, len(data), check_crc=True, size_max=SIZE_MAX)
    for call in (
        partial(kernel.assign_offsets, data, rows, -1, 0),
        partial(kernel.assign_offsets, data, rows, 0, -2),
        partial(kernel.assign_offsets, data, rows, 0, 2**31),
        partial(kernel.set_leader_epoch, data, rows, 2**31),
    ):
        with pytest.raises(ValueError, match=r"base offset|epoch"):
            call()
    assert bytes(data) == batch()
    with pytest.raises(BufferError):
        kernel.set_leader_epoch(bytes(data), rows, 1)


@both
def test_find_offset_by_headers_alone(kernel: Any) -> None:
    batches = [batch(bytes(10), base_offset=at, count=5) for at in (100, 105, 120)]
    data = b"".join(batches)
    size = len(batches[0])
    found = {offset: kernel.find_offset(data, 0, len(data), offset) for offset in range(99, 126)}
    assert found[99] == found[104] == (0, size)
    assert found[105] == found[109] == (size, size)
    assert found[110] == found[124] == (2 * size, size)
    assert found[125] == (3 * size, -1)
    assert kernel.find_offset(data, size, len(data), 0) == (size, size)


@both
def test_find_goes_on_where_the_window_ends(kernel: Any) -> None:
    """A reader sees a file through a window: the position says where to read next."""
    first, second = batch(bytes(500)), batch(bytes(10), base_offset=1)
    data = first + second
    assert kernel.find_offset(data, 0, 60, 0) == (0, -1)
    assert kernel.find_offset(data, 0, 61, 0) == (0, len(first))
    assert kernel.find_offset(data, 0, 61, 1) == (len(first), -1)
    assert kernel.find_offset(data, 0, len(first) + 60, 1) == (len(first), -1)
    assert kernel.find_offset(data, len(first), len(first) + 61, 1) == (len(first), len(second))
    assert kernel.find_offset(data, 5, 5, 1) == (5, -1)


@both
def test_find_timestamp_takes_the_first_batch_that_reaches_it(kernel: Any) -> None:
    times = (50, 70, 60, 90)
    data = b"".join(batch(base_offset=at, max_timestamp=time) for at, time in enumerate(times))
    wanted = {40: 0, 50: 0, 51: 1, 70: 1, 71: 3, 90: 3}
    for time, index in wanted.items():
        assert kernel.find_timestamp(data, 0, len(data), time) == (61 * index, 61)
    assert kernel.find_timestamp(data, 0, len(data), 91) == (244, -1)


@both
@pytest.mark.parametrize(
    "damage",
    [(8, b"\0\0\0\x30"), (8, b"\xff\xff\xff\xff"), (16, b"\1"), (0, b"\x80"), (23, b"\xff")],
)
def test_find_stops_at_a_malformed_header(kernel: Any, damage: tuple[int, bytes]) -> None:
    position, wrong = damage
    second = bytearray(batch(base_offset=1))
    second[position : position + len(wrong)] = wrong
    data = batch() + second
    assert kernel.find_offset(data, 0, len(data), 1) == (61, -2)
    assert kernel.find_timestamp(data, 0, len(data), 10**15) == (61, -2)


@both
def test_walk_never_allocates_what_a_header_claims(kernel: Any) -> None:
    data = bytearray(batch())
    struct.pack_into(">i", data, 8, 2**31 - 1)
    gc.collect()
    tracemalloc.start()
    try:
        result = kernel.walk(data, 0, len(data), check_crc=True, size_max=2**32)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert result == (array("q"), 0, Reason.SHORT)

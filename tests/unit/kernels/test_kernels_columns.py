"""Batches made by hand into columns; every test runs on both twins."""

import tracemalloc
from array import array
from typing import Any

import pytest

from kits.kernels.column_batches import (
    HEADER,
    Record,
    batch_bytes,
    batch_of,
    columns_of,
    int64s,
    record_bytes,
    records_of,
    varint,
)
from kits.kernels.kernel_twins import twins
from millstream.kernels import columns
from millstream.kernels.column_types import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_FIELDS,
    COLUMN_BYTES_MAX,
    DECODE_ROW_COST,
    FLAG_CONTROL,
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    LAST_OFFSET,
    LEADER_EPOCH,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    ROW_START,
    ROW_STOP,
    BatchOptions,
    DecodeOptions,
)
from millstream.kernels.errors import MalformedRecords, Reason

on_both_decoders = pytest.mark.parametrize("kernel", twins("column_decode"))

A = Record(b"a", b"first", 10)
B = Record(None, b"second", 11)
C = Record(b"", None, 9, ((b"h", b"v"), (b"", None)))
ABC = (A, B, C)


def decode(kernel: Any, data: bytes | bytearray, **options: Any) -> Any:
    return kernel.decode(data, 0, len(data), DecodeOptions(**options))


def reason_of(kernel: Any, data: bytes | bytearray, **options: Any) -> Reason:
    with pytest.raises(MalformedRecords) as caught:
        decode(kernel, data, **options)
    assert type(caught.value) is MalformedRecords
    assert caught.value.position == 0
    return caught.value.reason


def test_the_front_module_offers_what_the_kernels_have() -> None:
    batch = columns.encode(columns_of(ABC), 0, 3)
    assert records_of(columns.decode(batch, 0, len(batch))) == list(ABC)
    assert all(hasattr(columns, name) for name in columns.__all__)


@on_both_decoders
def test_nulls_empties_and_headers_come_out_as_they_went_in(kernel: Any) -> None:
    data = batch_of(ABC, base_offset=100)
    decoded = decode(kernel, data)
    assert records_of(decoded) == list(ABC)
    assert int64s(decoded.offsets) == [100, 101, 102]
    assert (decoded.position, decoded.next_offset) == (len(data), 103)
    assert bytes(decoded.flags) == b"\0\0\0"


@on_both_decoders
def test_nothing_decodes_to_empty_columns_and_moves_nothing(kernel: Any) -> None:
    for data in (b"", batch_of(ABC)[:16], batch_of(ABC)[:-1]):
        decoded = decode(kernel, data, first_offset=7)
        assert records_of(decoded) == []
        assert (decoded.position, decoded.next_offset, len(decoded.batches)) == (0, 7, 0)


@on_both_decoders
def test_many_batches_become_one_output_and_a_cut_last_one_is_no_error(kernel: Any) -> None:
    whole = batch_of(ABC) + batch_of((B,), base_offset=3)
    data = whole + batch_of(ABC, base_offset=4)[:-1]
    decoded = decode(kernel, data)
    assert records_of(decoded) == [*ABC, B]
    assert (decoded.position, decoded.next_offset) == (len(whole), 4)


@on_both_decoders
def test_only_the_range_between_start_and_stop_is_read(kernel: Any) -> None:
    batch = batch_of(ABC)
    decoded = kernel.decode(b"x" * 5 + batch + b"y" * 99, 5, 5 + len(batch))
    assert records_of(decoded) == list(ABC)
    assert decoded.position == 5 + len(batch)


@on_both_decoders
@pytest.mark.parametrize(
    ("attributes", "flags"),
    [
        (0x20, FLAG_CONTROL),
        (0x10, FLAG_TRANSACTIONAL),
        (0x30, FLAG_CONTROL | FLAG_TRANSACTIONAL),
        (0x08, FLAG_LOG_APPEND_TIME),
        (0x40, 0),
    ],
)
def test_flags_tell_what_the_batch_was(kernel: Any, attributes: int, flags: int) -> None:
    data = batch_of((A,)) + batch_of((B, A), base_offset=1, attributes=attributes)
    assert bytes(decode(kernel, data).flags) == bytes([0, flags, flags])


@on_both_decoders
def test_log_append_time_gives_every_record_the_batch_time(kernel: Any) -> None:
    data = batch_of(ABC, attributes=0x08, max_timestamp=777)
    assert int64s(decode(kernel, data).columns.timestamps) == [777] * 3
    data = batch_of(ABC, base_timestamp=5, max_timestamp=777)
    assert int64s(decode(kernel, data).columns.timestamps) == [10, 11, 9]


@on_both_decoders
def test_each_batch_is_described_for_read_committed(kernel: Any) -> None:
    data = batch_of(ABC, base_offset=5, last_offset_delta=9, leader_epoch=3)
    data += batch_of(
        (A,), base_offset=20, attributes=0x30, producer_id=2**40, producer_epoch=7, leader_epoch=4
    )
    rows = decode(kernel, data, first_offset=6).batches
    assert isinstance(rows, array)
    assert len(rows) == 2 * BATCH_FIELDS
    names = (
        ROW_START, ROW_STOP, BASE_OFFSET, LAST_OFFSET, PRODUCER_ID, PRODUCER_EPOCH, ATTRIBUTES,
        LEADER_EPOCH,
    )  # fmt: skip
    assert [rows[name] for name in names] == [0, 2, 5, 14, -1, -1, 0, 3]
    assert [rows[BATCH_FIELDS + name] for name in names] == [2, 3, 20, 20, 2**40, 7, 0x30, 4]


@on_both_decoders
def test_records_below_the_first_offset_are_dropped_with_their_headers(kernel: Any) -> None:
    data = batch_of((C, C, A), base_offset=10)
    decoded = decode(kernel, data, first_offset=11)
    assert records_of(decoded) == [C, A]
    assert int64s(decoded.offsets) == [11, 12]
    assert decoded.columns.headers.rows == 2


@on_both_decoders
def test_a_batch_below_the_first_offset_is_passed_by_its_header(kernel: Any) -> None:
    broken = batch_bytes(b"\xff" * 20, record_count=2, crc=1)
    decoded = decode(kernel, broken + batch_of((B,), base_offset=2), first_offset=2)
    assert records_of(decoded) == [B]
    assert len(decoded.batches) == BATCH_FIELDS


@on_both_decoders
def test_the_next_offset_passes_compacted_and_empty_batches(kernel: Any) -> None:
    hole = record_bytes(A, offset_delta=1) + record_bytes(B, offset_delta=5)
    data = batch_bytes(hole, record_count=2, last_offset_delta=9)
    data += batch_bytes(b"", record_count=0, base_offset=10, last_offset_delta=4)
    data += batch_bytes(b"", record_count=0, base_offset=15, last_offset_delta=4, attributes=4)
    decoded = decode(kernel, data)
    assert int64s(decoded.offsets) == [1, 5]
    assert decoded.next_offset == 20
    assert len(decoded.batches) == 3 * BATCH_FIELDS


@on_both_decoders
def test_the_end_offset_cuts_inside_a_batch_and_the_rest_can_follow(kernel: Any) -> None:
    first = batch_of(ABC)
    data = first + batch_of(ABC, base_offset=3)
    head = decode(kernel, data, end_offset=4)
    assert (head.position, head.next_offset) == (len(first), 4)
    assert records_of(head) == [*ABC, A]
    rest = kernel.decode(data, head.position, len(data), DecodeOptions(first_offset=4))
    assert records_of(rest) == [B, C]
    assert (rest.position, rest.next_offset) == (len(data), 6)


@on_both_decoders
def test_the_end_offset_at_a_boundary_or_in_a_gap_stops_before_the_next_batch(kernel: Any) -> None:
    first = batch_of(ABC)
    data = first + batch_bytes(b"junk", base_offset=9, crc=1)
    for end_offset in (3, 5, 9):
        decoded = decode(kernel, data, end_offset=end_offset)
        assert records_of(decoded) == list(ABC)
        assert (decoded.position, decoded.next_offset) == (len(first), end_offset)
    nothing = decode(kernel, data, first_offset=4, end_offset=2)
    assert (nothing.columns.rows, nothing.position, nothing.next_offset) == (0, 0, 4)


@on_both_decoders
def test_the_byte_bound_stops_at_a_batch_boundary_but_never_before_one_batch(kernel: Any) -> None:
    batches = [batch_of(ABC, base_offset=3 * index) for index in range(4)]
    data = b"".join(batches)
    cost = len(batches[0]) - HEADER.size + 3 * DECODE_ROW_COST
    for bytes_max, count in ((0, 1), (cost, 1), (2 * cost - 1, 1), (2 * cost, 2), (4 * cost, 4)):
        decoded = decode(kernel, data, bytes_max=bytes_max)
        assert decoded.columns.rows == 3 * count
        assert decoded.next_offset == 3 * count
        assert decoded.position == count * len(batches[0])


@on_both_decoders
def test_headers_can_be_left_out(kernel: Any) -> None:
    decoded = decode(kernel, batch_of(ABC), with_headers=False)
    assert decoded.columns.headers is None
    assert records_of(decoded) == [record._replace(headers=()) for record in ABC]


@on_both_decoders
def test_validity_is_right_across_bytes_and_growth(kernel: Any) -> None:
    records = [
        Record(None if index % 3 else b"k", b"v" * (index % 5) if index % 7 else None, index)
        for index in range(1003)
    ]
    data = b"".join(
        batch_of(records[start : start + size], base_offset=start, base_timestamp=2)
        for start, size in ((0, 1), (1, 2), (3, 500), (503, 500))
    )
    assert records_of(decode(kernel, data)) == records


@on_both_decoders
def test_a_flipped_bit_fails_the_crc_unless_it_is_not_asked_for(kernel: Any) -> None:
    data = bytearray(batch_of(ABC))
    data[-1] ^= 1
    assert reason_of(kernel, data) is Reason.CRC
    data = bytearray(batch_of((A,)))
    data[-2] ^= 1
    assert records_of(decode(kernel, data, check_crc=False)) == [A._replace(value=b"firsu")]


@on_both_decoders
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"magic": 1}, Reason.MAGIC),
        ({"length": 48}, Reason.LENGTH),
        ({"length": -1}, Reason.LENGTH),
        ({"base_offset": -1}, Reason.OFFSETS),
        ({"last_offset_delta": -1}, Reason.OFFSETS),
        ({"base_offset": 2**63 - 3}, Reason.OFFSETS),
        ({"last_offset_delta": 1}, Reason.COUNT),
        ({"record_count": -1}, Reason.COUNT),
        ({"record_count": 2}, Reason.COUNT),
        ({"record_count": 4, "last_offset_delta": 9}, Reason.COUNT),
        ({"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 1}, Reason.COUNT),
        ({"attributes": 5}, Reason.CODEC),
        ({"attributes": 7}, Reason.CODEC),
    ],
)
def test_a_wrong_batch_header_is_refused(
    kernel: Any, fields: dict[str, int], reason: Reason
) -> None:
    assert reason_of(kernel, batch_of(ABC, **fields)) is reason


GOOD = record_bytes(A, offset_delta=0)[1:]


@on_both_decoders
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(GOOD + b"\0", Reason.RECORD, id="a byte too many"),
        pytest.param(GOOD[:-1], Reason.RECORD, id="a byte too few"),
        pytest.param(b"\0\0\0\x05" + b"x" * 9, Reason.RECORD, id="key size -3"),
        pytest.param(b"\0\0\0\x14" + b"x" * 9, Reason.RECORD, id="key beyond the record"),
        pytest.param(b"\0\0\0\x01\x05\0" + b"x" * 9, Reason.RECORD, id="value size -3"),
        pytest.param(b"\0\0\0\x01\x14" + b"x" * 9, Reason.RECORD, id="value beyond the record"),
        pytest.param(b"\0\0\0\x01\x01\x01", Reason.RECORD, id="-1 headers"),
        pytest.param(b"\0\0\0\x01\x01" + varint(2**31 - 1), Reason.RECORD, id="many headers"),
        pytest.param(b"\0\0\0\x01\x01\x02\x01\x01", Reason.RECORD, id="header without key"),
        pytest.param(b"\0\0\0\x01\x01\x02\0\x03", Reason.RECORD, id="header value size -2"),
        pytest.param(
            b"\0" + b"\x80" * 10 + b"\0" + b"\0\x01\x01\0", Reason.RECORD, id="long varlong"
        ),
        pytest.param(
            b"\0\0" + b"\x80" * 5 + b"\0" + b"\x01\x01\0", Reason.RECORD, id="long varint"
        ),
        pytest.param(b"\0\0\x01\x01\x01\0", Reason.OFFSETS, id="offset delta -1"),
        pytest.param(b"\0\0\x02\x01\x01\0", Reason.OFFSETS, id="offset delta beyond the last"),
        pytest.param(
            b"\0" + varint(2**63 - 1) + b"\0\x01\x01\0", Reason.RECORD, id="time beyond int64"
        ),
    ],
)
def test_a_wrong_record_is_refused(kernel: Any, body: bytes, reason: Reason) -> None:
    data = batch_bytes(varint(len(body)) + body, base_timestamp=1)
    assert reason_of(kernel, data) is reason


@on_both_decoders
@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param(varint(-1) + b"\0" * 9, Reason.RECORD, id="record size -1"),
        pytest.param(varint(0) + b"\0" * 9, Reason.RECORD, id="record size 0"),
        pytest.param(varint(10) + b"\0" * 9, Reason.RECORD, id="record beyond the batch"),
        pytest.param(b"\xff" * 9, Reason.RECORD, id="endless size"),
        pytest.param(varint(len(GOOD)) + GOOD + b"\0", Reason.COUNT, id="bytes after the last"),
        pytest.param(b"", Reason.COUNT, id="no record at all"),
    ],
)
def test_a_wrong_payload_is_refused(kernel: Any, payload: bytes, reason: Reason) -> None:
    assert reason_of(kernel, batch_bytes(payload)) is reason


@on_both_decoders
def test_bits_that_a_number_cannot_hold_are_dropped_as_kafka_does(kernel: Any) -> None:
    body = b"\0\0" + b"\x80\x80\x80\x80\x70" + b"\x01\x01\0"
    data = batch_bytes(varint(len(body)) + body)
    assert int64s(decode(kernel, data).offsets) == [0]


@on_both_decoders
def test_offsets_that_do_not_increase_are_refused(kernel: Any) -> None:
    twice = record_bytes(A, offset_delta=1) * 2
    assert (
        reason_of(kernel, batch_bytes(twice, record_count=2, last_offset_delta=5)) is Reason.OFFSETS
    )
    first = batch_of(ABC, base_offset=4)
    with pytest.raises(MalformedRecords) as caught:
        decode(kernel, first + batch_of(ABC, base_offset=6))
    assert (caught.value.reason, caught.value.position) == (Reason.OFFSETS, len(first))


@on_both_decoders
def test_an_error_tells_the_batch_so_that_those_before_it_can_be_had(kernel: Any) -> None:
    good = batch_of(ABC)
    data = good + batch_bytes(b"\xff" * 30, base_offset=3)
    with pytest.raises(MalformedRecords) as caught:
        decode(kernel, data)
    assert caught.value.position == len(good)
    assert records_of(kernel.decode(data, 0, caught.value.position)) == list(ABC)


@on_both_decoders
def test_compressed_batches_that_do_not_decompress_are_refused(kernel: Any) -> None:
    good = batch_of((A,))
    for codec in range(1, 5):
        data = good + batch_bytes(b"\xf0 no such thing", base_offset=1, attributes=codec)
        with pytest.raises(MalformedRecords) as caught:
            decode(kernel, data)
        assert caught.value.reason in {Reason.COMPRESSION, Reason.TOO_LARGE}
        assert caught.value.position == len(good)


@on_both_decoders
@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_decompresses_to_more_than_allowed_is_refused(kernel: Any, codec: int) -> None:
    records = [Record(None, bytes(1000))] * 100
    data = columns.encode(columns_of(records), 0, 100, BatchOptions(codec=codec))
    assert len(data) < 10_000
    assert reason_of(kernel, data, batch_bytes_max=50_000) is Reason.TOO_LARGE
    assert records_of(decode(kernel, data, batch_bytes_max=150_000)) == records


@on_both_decoders
def test_claims_do_not_become_memory(kernel: Any) -> None:
    """A count, record size, key size or header count of two billion in a batch of 100 bytes."""
    huge = 2**31 - 1
    payloads = [
        b"\0" * 40,
        varint(huge) + b"\0" * 40,
        varint(20) + b"\0\0\0" + varint(huge) + b"\0" * 30,
        varint(20) + b"\0\0\0\x01\x01" + varint(huge) + b"\0" * 30,
    ]
    tracemalloc.start()
    try:
        for payload in payloads:
            for count in (1, huge):
                data = batch_bytes(payload, record_count=count, last_offset_delta=huge)
                reason_of(kernel, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@on_both_decoders
def test_wrong_arguments_are_the_callers_error(kernel: Any) -> None:
    for start, stop in ((-1, 2), (3, 2), (0, 4)):
        with pytest.raises(ValueError, match="inside a buffer"):
            kernel.decode(b"abc", start, stop)
    with pytest.raises(ValueError, match="contiguous"):
        kernel.decode(memoryview(b"abcdef")[::2], 0, 3)
    options: Any = DecodeOptions
    for wrong in (
        {"first_offset": -1}, {"end_offset": -1}, {"bytes_max": COLUMN_BYTES_MAX + 1},
        {"batch_bytes_max": 2**31}, {"first_offset": 2**63},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="outside"):
            options(**wrong)

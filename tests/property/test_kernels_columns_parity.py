"""The column kernels on random and corrupted input: what goes in comes out, and twins agree."""

from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.kernels.column_batches import (
    Record,
    batch_bytes,
    columns_of,
    int64s,
    parse_batch,
    plainly,
    records_of,
)
from kits.kernels.kernel_twins import compiled, plain, twins
from millstream.kernels.column_types import (
    FLAG_CONTROL,
    FLAG_LOG_APPEND_TIME,
    FLAG_TRANSACTIONAL,
    BatchOptions,
    DecodeOptions,
)
from millstream.kernels.compression import decompress
from millstream.kernels.errors import MalformedRecords

on_both = pytest.mark.parametrize(
    ("decoder", "encoder"),
    [
        pytest.param(*one.values, *two.values, id=str(one.id), marks=one.marks)
        for one, two in zip(twins("column_decode"), twins("column_encode"), strict=True)
    ],
)
needs_both = pytest.mark.skipif(
    compiled("column_decode") is None, reason="the compiled column kernels are not built"
)

# Two cores are shared with other tests: a slow example is no failure.
unhurried = settings(deadline=None)

fields = st.none() | st.binary(max_size=8) | st.integers(60, 300).map(bytes)
times = st.integers(-(2**62), 2**62 - 1) | st.integers(0, 5)
headers = st.lists(st.tuples(st.binary(max_size=5), fields), max_size=3).map(tuple)
records = st.builds(Record, key=fields, value=fields, timestamp_ms=times, headers=headers)
record_lists = st.lists(records, min_size=1, max_size=40)
batch_options = st.builds(
    BatchOptions,
    codec=st.integers(0, 4),
    base_offset=st.integers(0, 2**63 - 2**31 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    producer_id=st.integers(-1, 2**63 - 1),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
    is_transactional=st.booleans(),
    is_control=st.booleans(),
    append_time_ms=st.none() | st.integers(-1, 2**63 - 1),
)


def outcome(kernel: Any, data: bytes, options: DecodeOptions) -> object:
    """What a twin makes of the bytes. Anything but columns or MalformedRecords goes through."""
    try:
        return plainly(kernel.decode(data, 0, len(data), options))
    except MalformedRecords as error:
        return error.reason, error.position


@on_both
@unhurried
@given(rows=record_lists, options=batch_options, skip=st.integers(0, 9))
def test_what_is_encoded_parses_and_decodes_to_the_same(
    decoder: Any, encoder: Any, rows: list[Record], options: BatchOptions, skip: int
) -> None:
    skip = min(skip, len(rows) - 1)
    batch = bytes(encoder.encode(columns_of(rows, skip=skip), 0, len(rows) - skip, options))
    rows = rows[skip:]
    payload = decompress(options.codec, batch[61:], 2**20) if options.codec else None
    header, parsed = parse_batch(batch, payload)
    assert parsed == rows
    assert (header.producer_id, header.producer_epoch) == (
        options.producer_id, options.producer_epoch,
    )  # fmt: skip
    assert (header.base_sequence, header.leader_epoch) == (
        options.base_sequence, options.leader_epoch,
    )  # fmt: skip
    decoded = decoder.decode(batch, 0, len(batch))
    append_time_ms = options.append_time_ms
    if append_time_ms is not None:
        rows = [row._replace(timestamp_ms=append_time_ms) for row in rows]
    assert records_of(decoded) == rows
    assert header.max_timestamp == max(row.timestamp_ms for row in rows)
    first = options.base_offset
    assert int64s(decoded.offsets) == list(range(first, first + len(rows)))
    flags = FLAG_CONTROL * options.is_control | FLAG_TRANSACTIONAL * options.is_transactional
    flags |= FLAG_LOG_APPEND_TIME * (append_time_ms is not None)
    assert set(bytes(decoded.flags)) == {flags}
    assert decoded.next_offset == first + len(rows)


@on_both
@unhurried
@given(
    rows=record_lists,
    size_max=st.integers(0, 2000),
    codec=st.integers(0, 4),
    cuts=st.lists(st.integers(0, 40), min_size=2, max_size=2).map(sorted),
    bytes_max=st.integers(0, 4000),
)
def test_decoding_in_pieces_gives_every_wanted_record_once(
    decoder: Any, encoder: Any, rows: list[Record], size_max: int, codec: int,
    cuts: list[int], bytes_max: int,
) -> None:  # fmt: skip
    options = BatchOptions(codec=codec)
    batches = encoder.encode_many(columns_of(rows), 0, len(rows), options, size_max=size_max)
    data = b"".join(bytes(batch) for batch, _ in batches)
    first_offset, end_offset = cuts
    wanted = DecodeOptions(first_offset=first_offset, end_offset=end_offset, bytes_max=bytes_max)
    seen: list[Record] = []
    position = 0
    while wanted.first_offset < end_offset and position < len(data):
        decoded = decoder.decode(data, position, len(data), wanted)
        assert decoded.next_offset > wanted.first_offset or decoded.position > position
        seen += records_of(decoded)
        position = decoded.position
        wanted = replace(wanted, first_offset=decoded.next_offset)
    assert seen == rows[first_offset:end_offset]


@needs_both
@unhurried
@given(
    rows=record_lists,
    options=batch_options,
    size_max=st.integers(0, 2000),
    selection=st.none() | st.lists(st.integers(0, 39), max_size=60),
)
def test_both_twins_encode_the_same_bytes(
    rows: list[Record], options: BatchOptions, size_max: int, selection: list[int] | None
) -> None:
    columns_in = columns_of(rows)
    chosen = None
    stop = len(rows)
    if selection is not None:
        chosen = array("q", [row % len(rows) for row in selection])
        stop = len(chosen)
    answers = []
    for kernel in (compiled("column_encode"), plain("column_encode")):
        assert kernel is not None
        fit = kernel.rows_that_fit(columns_in, 0, stop, size_max=size_max, selection=chosen)
        many = kernel.encode_many(columns_in, 0, stop, options, size_max=size_max, selection=chosen)
        assert [rows for _, rows in many[:1]] == ([fit] if stop else [])
        answers.append((fit, many))
    assert answers[0] == answers[1]


def mangled(data: bytes, changes: list[tuple[float, int]], cut: float) -> bytes:
    out = bytearray(data)
    for where, byte in changes:
        out[int(where * len(out))] = byte
    return bytes(out[: len(out) - int(cut * len(out))])


places = st.floats(0, 1, exclude_max=True)
changes = st.lists(st.tuples(places, st.integers(0, 255)), max_size=4)


@needs_both
@unhurried
@given(
    rows=record_lists,
    codec=st.sampled_from([0, 0, 0, 1, 2, 3, 4]),
    size_max=st.integers(100, 2000),
    change=changes,
    cut=st.just(0.0) | places,
    with_headers=st.booleans(),
    check_crc=st.sampled_from([False, False, True]),
    bounds=st.tuples(st.integers(0, 30), st.none() | st.integers(0, 60), st.integers(0, 5000)),
)
def test_both_twins_agree_on_damaged_batches(
    rows: list[Record], codec: int, size_max: int, change: list[tuple[float, int]], cut: float,
    with_headers: bool, check_crc: bool, bounds: tuple[int, int | None, int],
) -> None:  # fmt: skip
    many = plain("column_encode").encode_many(
        columns_of(rows), 0, len(rows), BatchOptions(codec=codec), size_max=size_max
    )
    data = mangled(b"".join(bytes(batch) for batch, _ in many), change, cut)
    options = DecodeOptions(
        first_offset=bounds[0], end_offset=bounds[1], bytes_max=bounds[2],
        with_headers=with_headers, check_crc=check_crc, batch_bytes_max=2**16,
    )  # fmt: skip
    assert outcome(compiled("column_decode"), data, options) == outcome(
        plain("column_decode"), data, options
    )


@needs_both
@unhurried
@given(
    payload=st.lists(
        st.sampled_from([b"\0", b"\1", b"\2", b"\x0c", b"\x0e", b"\x14", b"\x80", b"\xff"]),
        max_size=60,
    ).map(b"".join),
    count=st.integers(0, 5),
    attributes=st.sampled_from([0, 8]),
)
def test_both_twins_agree_on_random_records(payload: bytes, count: int, attributes: int) -> None:
    """Bytes that are nearly records: small sizes, nulls, zeros and long varints."""
    data = batch_bytes(payload, record_count=count, last_offset_delta=9, attributes=attributes)
    for with_headers in (True, False):
        options = DecodeOptions(with_headers=with_headers)
        assert outcome(compiled("column_decode"), data, options) == outcome(
            plain("column_decode"), data, options
        )

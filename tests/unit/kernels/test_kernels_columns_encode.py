"""Columns made by hand into batches; every test runs on both twins."""

from array import array
from dataclasses import replace
from typing import Any

import pytest

from kits.kernels.column_batches import Record, columns_of, parse_batch, record_bytes
from kits.kernels.kernel_twins import twins
from millstream.kernels.column_types import (
    BatchOptions,
    BinaryColumn,
    HeaderColumn,
    RecordColumns,
)

on_both_encoders = pytest.mark.parametrize("kernel", twins("column_encode"))

A = Record(b"a", b"first", 10)
B = Record(None, b"second", 11)
C = Record(b"", None, 9, ((b"h", b"v"), (b"", None)))
ABC = (A, B, C)


@on_both_encoders
def test_an_encoded_batch_parses_field_by_field(kernel: Any) -> None:
    options = BatchOptions(
        base_offset=50, leader_epoch=6, producer_id=2**41, producer_epoch=3, base_sequence=17,
        is_transactional=True,
    )  # fmt: skip
    header, records = parse_batch(bytes(kernel.encode(columns_of(ABC), 0, 3, options)))
    assert records == list(ABC)
    assert header.base_offset == 50
    assert header.leader_epoch == 6
    assert header.attributes == 0x10
    assert header.last_offset_delta == 2
    assert (header.base_timestamp, header.max_timestamp) == (10, 11)
    assert (header.producer_id, header.producer_epoch) == (2**41, 3)
    assert (header.base_sequence, header.record_count) == (17, 3)


@on_both_encoders
def test_defaults_make_a_plain_producer_batch(kernel: Any) -> None:
    header, _ = parse_batch(bytes(kernel.encode(columns_of(ABC), 1, 3)))
    assert header._replace(crc=0, length=0) == (0, 0, -1, 2, 0, 0, 1, 11, 11, -1, -1, -1, 2)


@on_both_encoders
def test_the_level_reaches_the_codec(kernel: Any) -> None:
    words = columns_of([Record(None, b"%d " % (row * row) * 40, row) for row in range(200)])
    sizes = [
        len(kernel.encode(words, 0, 200, BatchOptions(codec=1, level=level))) for level in (1, 9)
    ]
    assert sizes[1] < sizes[0]
    with pytest.raises(ValueError, match="level"):
        kernel.encode(words, 0, 200, BatchOptions(codec=1, level=77))


@on_both_encoders
def test_control_and_append_time_bits(kernel: Any) -> None:
    options = BatchOptions(is_control=True, append_time_ms=99)
    header, _ = parse_batch(bytes(kernel.encode(columns_of(ABC), 0, 3, options)))
    assert (header.attributes, header.max_timestamp, header.base_timestamp) == (0x28, 99, 10)


@on_both_encoders
def test_a_row_range_and_a_selection_of_rows(kernel: Any) -> None:
    records = [Record(b"%d" % index, None, index) for index in range(10)]
    columns_in = columns_of(records)
    assert parse_batch(bytes(kernel.encode(columns_in, 3, 7)))[1] == records[3:7]
    selection = array("q", [9, 1, 1, 0, 5])
    batch = kernel.encode(columns_in, 1, 5, selection=selection)
    assert parse_batch(bytes(batch))[1] == [records[row] for row in (1, 1, 0, 5)]


@on_both_encoders
@pytest.mark.parametrize("skip", [1, 3, 9])
def test_arrow_slices_are_taken_as_they_stand(kernel: Any, skip: int) -> None:
    records = [ABC[index % 3]._replace(timestamp_ms=index) for index in range(20)]
    batch = kernel.encode(columns_of(records, skip=skip), 0, 20 - skip)
    assert parse_batch(bytes(batch))[1] == records[skip:]


@on_both_encoders
def test_missing_columns_are_null_in_every_row(kernel: Any) -> None:
    bare = RecordColumns(rows=2, timestamps=array("q", [1, 2]), keys=None, values=None)
    assert parse_batch(bytes(kernel.encode(bare, 0, 2)))[1] == [
        Record(None, None, 1), Record(None, None, 2),
    ]  # fmt: skip


@on_both_encoders
def test_buffers_may_stand_at_odd_addresses(kernel: Any) -> None:
    def odd(buffer: Any) -> memoryview:
        return memoryview(b"x" + bytes(buffer))[1:]

    plain = columns_of((A, A))
    assert plain.values is not None
    values = replace(plain.values, offsets=odd(plain.values.offsets))
    moved = replace(plain, timestamps=odd(plain.timestamps), values=values)
    selection = odd(array("q", [1, 0]))
    batch = kernel.encode(moved, 0, 2, selection=selection)
    assert parse_batch(bytes(batch))[1] == [A, A]


@on_both_encoders
def test_many_batches_keep_their_size_and_continue_offsets_and_sequences(kernel: Any) -> None:
    records = [Record(b"k" * (index % 20), b"v" * 50, 1000 + index) for index in range(200)]
    options = BatchOptions(base_offset=7, producer_id=1, producer_epoch=0, base_sequence=2**31 - 30)
    batches = kernel.encode_many(columns_of(records), 0, 200, options, size_max=1000)
    seen: list[Record] = []
    for batch, rows in batches:
        header, some = parse_batch(bytes(batch))
        assert len(batch) <= 1000
        assert rows == len(some) == header.record_count
        assert header.base_offset == 7 + len(seen)
        assert header.base_sequence == (2**31 - 30 + len(seen)) % 2**31
        # The next record would not have fitted.
        if len(seen) + rows < 200:
            extra = record_bytes(records[len(seen) + rows], offset_delta=rows)
            assert len(batch) + len(extra) > 990
        seen += some
    assert seen == records
    assert kernel.encode_many(columns_of(records), 5, 5, size_max=1000) == []


@on_both_encoders
def test_rows_that_fit_is_exact_and_at_least_one(kernel: Any) -> None:
    records = [Record(b"k", bytes(index), 5) for index in range(100)]
    columns_in = columns_of(records)
    for rows in (1, 2, 10, 70):
        size = len(kernel.encode(columns_in, 3, 3 + rows))
        assert kernel.rows_that_fit(columns_in, 3, 100, size_max=size) == rows
        assert kernel.rows_that_fit(columns_in, 3, 100, size_max=size - 1) == max(rows - 1, 1)
    assert kernel.rows_that_fit(columns_in, 0, 100, size_max=-5) == 1
    assert kernel.rows_that_fit(columns_in, 0, 100, size_max=2**70) == 100
    assert kernel.rows_that_fit(columns_in, 4, 4, size_max=100) == 0


def binary(offsets: list[int], data: bytes = b"abc", **more: Any) -> BinaryColumn:
    return BinaryColumn(offsets=array("i", offsets), data=data, **more)


NO_HEADERS = HeaderColumn(
    list_offsets=array("i", [0, 0, 0]), rows=0, keys=binary([0]), values=binary([0])
)
ONE_HEADER = HeaderColumn(
    list_offsets=array("i", [0, 1, 1]), rows=1, keys=binary([0, 1]), values=binary([0, 1])
)


@on_both_encoders
@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"rows": -1}, id="rows negative"),
        pytest.param({"timestamps": array("q", [0])}, id="timestamps short"),
        pytest.param({"keys": binary([0, 1])}, id="key offsets short"),
        pytest.param({"keys": binary([0, 2, 1])}, id="key offsets backwards"),
        pytest.param({"keys": binary([-1, 1, 2])}, id="key offsets negative"),
        pytest.param({"values": binary([0, 1, 4])}, id="value beyond the data"),
        pytest.param({"values": binary([0, 1, 2], validity=b"")}, id="validity short"),
        pytest.param({"values": binary([0, 1, 2], first=1)}, id="slice beyond the offsets"),
        pytest.param({"values": binary([0, 1, 2], first=-1)}, id="slice negative"),
        pytest.param(
            {"headers": replace(NO_HEADERS, list_offsets=array("i", [0, 0]))}, id="lists short"
        ),
        pytest.param(
            {"headers": replace(NO_HEADERS, list_offsets=array("i", [0, 1, 1]))},
            id="list beyond the headers",
        ),
        pytest.param({"headers": replace(ONE_HEADER, rows=2)}, id="header keys short"),
        pytest.param(
            {"headers": replace(ONE_HEADER, keys=binary([0, 1], validity=b"\0"))},
            id="header key null",
        ),
        pytest.param(
            {"headers": replace(ONE_HEADER, values=binary([0, 4]))}, id="header value beyond"
        ),
        pytest.param({"timestamps": array("q", [-(2**63), 2**63 - 1])}, id="times too far apart"),
    ],
)
def test_columns_that_do_not_fit_their_buffers_are_refused(
    kernel: Any, wrong: dict[str, Any]
) -> None:
    right = RecordColumns(
        rows=2, timestamps=array("q", [0, 0]), keys=binary([0, 1, 2]), values=binary([0, 1, 3])
    )
    assert len(parse_batch(bytes(kernel.encode(right, 0, 2)))[1]) == 2
    with pytest.raises(ValueError):  # noqa: PT011
        kernel.encode(replace(right, **wrong), 0, 2)


@on_both_encoders
def test_rows_and_selections_outside_are_refused(kernel: Any) -> None:
    columns_in = columns_of(ABC)
    for start, stop in ((-1, 2), (2, 1), (0, 4), (1, 1)):
        with pytest.raises(ValueError):  # noqa: PT011
            kernel.encode(columns_in, start, stop)
    for row in (-1, 3, 2**62):
        with pytest.raises(ValueError, match="selected row"):
            kernel.encode(columns_in, 0, 2, selection=array("q", [0, row]))
    with pytest.raises(ValueError, match="inside 1 rows"):
        kernel.encode(columns_in, 0, 2, selection=array("q", [0]))


@on_both_encoders
def test_the_offsets_of_a_null_are_not_looked_at(kernel: Any) -> None:
    odd = RecordColumns(
        rows=2,
        timestamps=array("q", [0, 0]),
        keys=None,
        values=binary([0, 99, 1], validity=b"\0"),
    )
    assert [record.value for record in parse_batch(bytes(kernel.encode(odd, 0, 2)))[1]] == [
        None, None,
    ]  # fmt: skip


def test_batch_options_out_of_range_are_refused() -> None:
    options: Any = BatchOptions
    for wrong in (
        {"codec": 5}, {"base_offset": -1}, {"producer_epoch": 2**15}, {"base_sequence": -2},
        {"leader_epoch": 2**31}, {"producer_id": 2**63}, {"append_time_ms": 2**63},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="outside"):
            options(**wrong)

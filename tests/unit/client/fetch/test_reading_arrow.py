"""Columns of records as Spark's Kafka source has them, whatever the records are."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kits.kernels.column_batches import Record, batch_of
from millstream.client.errors import ConfigInvalid, RecordsUnreadable
from millstream.client.fetch.arrow import FIELDS, BatchMaker, schema_of
from millstream.client.fetch.chunks import Chunk
from millstream.client.fetch.decoder import BatchShape, Decoder
from millstream.kernels.columns import decode
from millstream.model.ids import Offset, TopicPartition

HERE = TopicPartition("päge-views", 3)
ALL = tuple(FIELDS)


def batch_with(data: bytes, columns: tuple[str, ...] = ALL) -> Any:
    made = BatchMaker(HERE, columns).batch(decode(data, 0, len(data)))
    made.validate(full=True)
    return made


def chunk_of(data: bytes, *, start: int = 0, stop: int) -> Chunk:
    return Chunk(HERE, memoryview(data), Offset(start), Offset(stop), (), len(data))


def test_types_are_exactly_those_that_spark_compares_with() -> None:
    told = {name: str(one.type) for name, one in FIELDS.items()}
    assert told == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int32",
        "offset": "int64",
        "timestamp": "timestamp[us, tz=UTC]",
        "timestampType": "int32",
        "headers": "list<element: struct<key: string, value: binary>>",
    }
    assert all(one.nullable for one in FIELDS.values())
    assert FIELDS["headers"].type.value_field.nullable
    made = batch_with(batch_of([Record(b"k", b"v", 5, ((b"h", None),))]))
    assert made.schema == schema_of(ALL)


def test_every_kind_of_row() -> None:
    records = [
        Record(None, b"", 0),
        Record(b"", None, -1, ((b"a", b"1"), (b"a", None), (b"", b""))),
        Record(b"k" * 300, b"v" * 3000, 1_700_000_000_123, ()),
        Record(None, None, 5, ((b"\xc3\xa9", b"2"),)),
    ]
    rows = batch_with(batch_of(records, base_offset=40)).to_pylist()
    assert [row["key"] for row in rows] == [one.key for one in records]
    assert [row["value"] for row in rows] == [one.value for one in records]
    assert [row["offset"] for row in rows] == [40, 41, 42, 43]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {
        ("päge-views", 3, 0)
    }
    assert [row["headers"] for row in rows] == [
        None,
        [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "", "value": b""}],
        None,
        [{"key": "é", "value": b"2"}],
    ]
    times = batch_with(batch_of(records)).column("timestamp").cast(pa.int64()).to_pylist()
    assert times == [0, -1000, 1_700_000_000_123_000, 5000]


def test_times_of_the_append_among_those_of_creation() -> None:
    created = batch_of([Record(b"k", b"v", 7)])
    appended = batch_of([Record(b"k", b"v", 7)] * 2, base_offset=1, attributes=8, max_timestamp=99)
    made = batch_with(created + appended)
    assert made.column("timestampType").to_pylist() == [0, 1, 1]
    assert made.column("timestamp").cast(pa.int64()).to_pylist() == [7000, 99_000, 99_000]


@pytest.mark.parametrize("time_ms", [2**63 - 1, -(2**63), 2**60])
def test_times_beyond_what_microseconds_hold_are_the_last_that_they_hold(time_ms: int) -> None:
    data = batch_of([Record(b"k", b"v", time_ms)], base_timestamp=time_ms)
    (found,) = batch_with(data, ("timestamp",)).column(0).cast(pa.int64()).to_pylist()
    assert found == (1 if time_ms > 0 else -1) * ((2**63 - 1) // 1000 * 1000)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82b", "\ufffdb"),
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xed\xa0", "\ufffd"),
        (b"\xed\xa0x", "\ufffdx"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
        (b"\xc0\xaf", "\ufffd\ufffd"),
    ],
)
def test_header_keys_that_are_no_text_read_as_in_java(key: bytes, text: str) -> None:
    """What `new String(bytes, UTF_8)` of Java 17 gives."""
    data = batch_of([Record(None, None, 0, ((b"good", b"1"), (key, b"2")))])
    (headers,) = batch_with(data, ("headers",)).column(0).to_pylist()
    assert headers == [{"key": "good", "value": b"1"}, {"key": text, "value": b"2"}]


def test_buffers_are_wrapped_and_not_copied() -> None:
    data = batch_of([Record(b"key", b"value" * 100, 5)] * 50)
    decoded = decode(data, 0, len(data))
    made = BatchMaker(HERE, ("value", "offset", "key")).batch(decoded)
    keys, values = decoded.columns.keys, decoded.columns.values
    assert keys is not None
    assert values is not None
    for array, buffer in ((made.column(0), values.data), (made.column(2), keys.data)):
        assert array.buffers()[2].address == np.frombuffer(memoryview(buffer), np.uint8).ctypes.data
    offsets = np.frombuffer(memoryview(decoded.offsets), np.int64)
    assert made.column(1).buffers()[1].address == offsets.ctypes.data


def test_unknown_and_repeated_columns_are_refused() -> None:
    for wrong in (("offsets",), ("key", "value", "key")):
        with pytest.raises(ConfigInvalid):
            schema_of(wrong)


def test_batches_are_cut_by_rows_and_bytes_and_say_where_to_go_on() -> None:
    data = b"".join(
        batch_of([Record(b"k", b"v" * 50, 5)] * 10, base_offset=10 * at) for at in range(10)
    )
    for shape in (
        BatchShape(columns=("offset",), batch_rows_max=7),
        BatchShape(columns=("offset",), batch_bytes=1),
        BatchShape(columns=("offset",), batch_bytes=3000, batch_rows_max=4),
    ):
        found: list[int] = []
        for one in Decoder(shape).batches(chunk_of(data, start=3, stop=95)):
            assert 0 < one.batch.num_rows <= min(10 if shape.batch_bytes == 1 else 100, 100)
            assert one.batch.num_rows <= shape.batch_rows_max
            found += one.batch.column(0).to_pylist()
            assert one.next_offset == found[-1] + 1
        assert found == list(range(3, 95))


def test_what_comes_before_a_damaged_batch_is_read() -> None:
    good = [batch_of([Record(b"k", b"v", 5)] * 3, base_offset=3 * at) for at in range(3)]
    bad = bytearray(good[2])
    bad[-1] ^= 1
    chunk = chunk_of(good[0] + good[1] + bad, stop=9)
    found: list[int] = []

    def take() -> None:
        for one in Decoder(BatchShape(columns=("offset",))).batches(chunk):
            found.extend(one.batch.column(0).to_pylist())

    with pytest.raises(RecordsUnreadable, match="CRC") as error:
        take()
    assert found == list(range(6))
    assert error.value.offset == 6
    unchecked = Decoder(BatchShape(columns=("offset",), checks_crcs=False)).batches(chunk)
    assert sum(one.batch.num_rows for one in unchecked) == 9


def test_a_client_that_reads_no_columns_loads_no_arrow() -> None:
    import subprocess
    import sys

    script = (
        "import sys, millstream.client.blocking as b;"
        "b.BlockingClient.read_columns; assert 'pyarrow' not in sys.modules, 'loaded'"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

"""Plain rows are what the Arrow columns of the same records have, whatever the records are."""

import random
from typing import Any

import pyarrow as pa
import pytest

from kits.kernels.column_batches import Record, batch_of
from millstream.client.errors import RecordsUnreadable
from millstream.client.fetch.arrow import FIELDS
from millstream.client.fetch.chunks import AbortedTransaction, Chunk
from millstream.client.fetch.decoder import BatchShape, Decoder
from millstream.client.fetch.python_rows import PythonDecoder, PythonRows
from millstream.model.ids import Offset, ProducerId, TopicPartition

HERE = TopicPartition("päge-views", 3)
EVERY_KIND = [
    Record(None, b"", 0),
    Record(b"", None, -1, ((b"a", b"1"), (b"a", None), (b"", b""))),
    Record(b"k" * 300, b"v" * 3000, 1_700_000_000_123, ()),
    Record(None, None, 5, ((b"\xc3\xa9", b"2"),)),
    Record(b"\xff", b"\xed\xa0\x80", 2**63 - 1, ((b"\xff\xed\xa0\x80x", b"\xff"),)),
    Record(b"k", b"v", -(2**63)),
]


def chunk_of(data: bytes, stop: int, *, start: int = 0, aborted: Any = ()) -> Chunk:
    return Chunk(HERE, memoryview(data), Offset(start), Offset(stop), tuple(aborted), len(data))


def plain(chunk: Chunk) -> list[PythonRows]:
    return list(PythonDecoder(with_headers=True, checks_crcs=True).batches(chunk))


def rows_of(found: list[PythonRows]) -> list[tuple[Any, ...]]:
    return [
        row
        for one in found
        for row in zip(
            one.offsets(),
            one.timestamps_ms(),
            one.are_append_times(),
            one.keys(),
            one.values(),
            one.headers(),
            strict=True,
        )
    ]


def arrow_rows(chunk: Chunk) -> list[tuple[Any, ...]]:
    found = []
    for one in Decoder(BatchShape(columns=tuple(FIELDS))).batches(chunk):
        times = one.batch.column("timestamp").cast(pa.int64()).to_pylist()
        rest = one.batch.drop_columns(["timestamp"]).to_pylist()
        for time_us, row in zip(times, rest, strict=True):
            assert (row["topic"], row["partition"]) == HERE
            headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
            is_append = bool(row["timestampType"])
            found.append(
                (row["offset"], time_us // 1000, is_append, row["key"], row["value"], headers)
            )
    return found


def same(chunk: Chunk) -> list[tuple[Any, ...]]:
    rows = rows_of(plain(chunk))
    assert rows == arrow_rows(chunk)
    return rows


def test_every_kind_of_row() -> None:
    appended = batch_of(EVERY_KIND, base_offset=6, attributes=8, max_timestamp=99)
    rows = same(chunk_of(batch_of(EVERY_KIND) + appended, 12))
    assert len(rows) == 12
    assert [row[2] for row in rows] == [False] * 6 + [True] * 6


def test_part_of_a_batch() -> None:
    assert [row[0] for row in same(chunk_of(batch_of(EVERY_KIND), 5, start=2))] == [2, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_random_rows(seed: int) -> None:
    rng = random.Random(seed)

    def text() -> bytes | None:
        return None if rng.random() < 0.2 else rng.randbytes(rng.randrange(6))

    data, end = b"", 0
    for _ in range(rng.randrange(1, 6)):
        records = [
            Record(
                text(),
                text(),
                rng.randrange(10**12),
                tuple((text() or b"", text()) for _ in range(rng.choice((0, 0, 1, 3)))),
            )
            for _ in range(rng.randrange(1, 40))
        ]
        data += batch_of(records, base_offset=end, attributes=rng.choice((0, 8)))
        end += len(records)
    start = rng.randrange(end)
    assert len(same(chunk_of(data, end, start=start))) == end - start


def test_aborted_rows_and_markers_are_left_out() -> None:
    parts = [
        batch_of([Record(b"a", b"1", 1)] * 2, base_offset=0, attributes=16, producer_id=7),
        batch_of([Record(b"b", b"2", 1)] * 3, base_offset=2),
        batch_of([Record(b"\0\0\0\0", b"\0" * 6, 1)], base_offset=5, attributes=48, producer_id=7),
        batch_of([Record(b"c", b"3", 1)], base_offset=6, attributes=16, producer_id=7),
    ]
    aborted = [AbortedTransaction(ProducerId(7), Offset(0))]
    rows = same(chunk_of(b"".join(parts), 7, aborted=aborted))
    assert [row[0] for row in rows] == [2, 3, 4, 6]


def test_first_rows_and_where_to_go_on() -> None:
    (found,) = plain(chunk_of(batch_of(EVERY_KIND), 6))
    assert (found.row_count, found.next_offset) == (6, 6)
    some = found.first(4)
    assert (some.row_count, some.next_offset, some.offsets()) == (4, 4, [0, 1, 2, 3])
    assert found.first(99) == found


def test_malformed_batch_is_told_behind_what_is_good() -> None:
    good, bad = batch_of(EVERY_KIND), bytearray(batch_of(EVERY_KIND, base_offset=6))
    bad[-1] ^= 1
    found = PythonDecoder(with_headers=True, checks_crcs=True).batches(chunk_of(good + bad, 12))
    assert next(found).row_count == 6
    with pytest.raises(RecordsUnreadable):
        next(found)

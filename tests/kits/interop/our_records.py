"""Records out of our column kernels and our log, in the form in which clients saw Kafka's."""

from array import array
from typing import Any, NamedTuple

from typing_extensions import Buffer

from kits.interop.kafka_reference import ReferenceRecord
from millstream.kernels import columns
from millstream.kernels.column_types import BinaryColumn, HeaderColumn
from millstream.model.ids import Offset
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation

READ_BYTES = 20_000


class OurRecord(NamedTuple):
    """A record and what its batch says of it."""

    record: ReferenceRecord
    is_control: bool
    producer_id: int


def decode_all(data: bytes, first_offset: int = 0) -> list[OurRecord]:
    """Every record of the whole batches in `data`, with those of control batches."""
    options = columns.DecodeOptions(first_offset=first_offset)
    return rows_of(columns.decode(data, 0, len(data), options))


def rows_of(decoded: columns.Decoded) -> list[OurRecord]:
    """The columns as records."""
    table = decoded.columns
    keys, values = _binary(table.keys, table.rows), _binary(table.values, table.rows)
    offsets, timestamps = _numbers("q", decoded.offsets), _numbers("q", table.timestamps)
    headers = _headers(table.headers, table.rows)
    flags = bytes(memoryview(decoded.flags))
    producers = _producers(decoded)
    return [
        OurRecord(
            ReferenceRecord(
                offset=offsets[row],
                is_append_time=bool(flags[row] & columns.FLAG_LOG_APPEND_TIME),
                timestamp_ms=timestamps[row],
                key=keys[row],
                value=values[row],
                headers=headers[row],
            ),
            is_control=bool(flags[row] & columns.FLAG_CONTROL),
            producer_id=producers[row],
        )
        for row in range(table.rows)
    ]


def visible(records: list[OurRecord]) -> list[ReferenceRecord]:
    """What a consumer that reads uncommitted data is shown."""
    return [ours.record for ours in records if not ours.is_control]


def read_uncommitted(log: Log) -> list[ReferenceRecord]:
    """Everything up to the high watermark, in several reads."""
    records, offset = [], log.log_start
    while offset < log.high_watermark:
        result = log.read(offset, size_max=READ_BYTES, isolation=Isolation.HIGH_WATERMARK)
        found = _decode_from(result.data.read(), offset)
        records += visible(rows_of(found))
        assert found.next_offset > offset
        offset = Offset(found.next_offset)
    return records


def read_committed(log: Log) -> list[ReferenceRecord]:
    """Everything up to the last stable offset without what was aborted, as a client filters it."""
    records: list[ReferenceRecord] = []
    offset = log.log_start
    while offset < log.last_stable_offset:
        result = log.read(offset, size_max=READ_BYTES, isolation=Isolation.COMMITTED)
        found = _decode_from(result.data.read(), offset)
        aborted = [(a.producer_id, a.first_offset, a.last_offset) for a in result.aborted]
        records += [
            ours.record
            for ours in rows_of(found)
            if not ours.is_control
            and not any(
                ours.producer_id == producer and first <= ours.record.offset <= last
                for producer, first, last in aborted
            )
        ]
        assert found.next_offset > offset
        offset = Offset(found.next_offset)
    return records


def _decode_from(data: bytes, offset: int) -> columns.Decoded:
    return columns.decode(data, 0, len(data), columns.DecodeOptions(first_offset=offset))


def _producers(decoded: columns.Decoded) -> list[int]:
    producers = [-1] * decoded.columns.rows
    for at in range(0, len(decoded.batches), columns.BATCH_FIELDS):
        batch = decoded.batches[at : at + columns.BATCH_FIELDS]
        for row in range(batch[columns.ROW_START], batch[columns.ROW_STOP]):
            producers[row] = batch[columns.PRODUCER_ID]
    return producers


def _numbers(kind: str, buffer: Buffer) -> "array[Any]":
    numbers: array[Any] = array(kind)
    numbers.frombytes(bytes(memoryview(buffer)))
    return numbers


def _binary(column: BinaryColumn | None, rows: int) -> list[bytes | None]:
    if column is None:
        return [None] * rows
    bounds, data = _numbers("i", column.offsets), bytes(memoryview(column.data))
    valid = None if column.validity is None else bytes(memoryview(column.validity))
    return [
        data[bounds[row] : bounds[row + 1]]
        if valid is None or valid[row // 8] >> row % 8 & 1
        else None
        for row in range(rows)
    ]


def _headers(column: HeaderColumn | None, rows: int) -> list[tuple[tuple[str, bytes | None], ...]]:
    if column is None:
        return [()] * rows
    bounds = _numbers("i", column.list_offsets)
    names, values = _binary(column.keys, column.rows), _binary(column.values, column.rows)
    pairs = [((name or b"").decode(), value) for name, value in zip(names, values, strict=True)]
    return [tuple(pairs[bounds[row] : bounds[row + 1]]) for row in range(rows)]

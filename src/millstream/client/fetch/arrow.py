"""Decoded records as an Arrow record batch, with the columns of Spark's Kafka source.

Buffers are wrapped, not copied, and only requested columns are made. Types are exactly those that
Spark compares with: binary and string with 32-bit offsets, no dictionaries, everything nullable.

As in Spark's connector: `timestamp` is the CreateTime of the record or, with
`message.timestamp.type=LogAppendTime`, the time of the append (`timestampType` 0 and 1), and one
that was never set is -1 ms, not null. Header keys that are not UTF-8 have replacement characters,
as in Java's strings. A time that does not fit into microseconds, where the connector fails, is
clipped.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from millstream.client.errors import ConfigInvalid
from millstream.client.fetch.texts import MILLIS_MAX, java_text
from millstream.kernels.columns import (
    ATTRIBUTES,
    BATCH_FIELDS,
    FLAG_LOG_APPEND_TIME,
    BinaryColumn,
    Decoded,
    HeaderColumn,
)
from millstream.model.ids import TopicPartition

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", _HEADER))

FIELDS: Final = {
    one.name: one
    for one in (
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    )
}
"""All columns, in the order of Spark's source."""

DEFAULT_COLUMNS: Final = tuple(name for name in FIELDS if name != "headers")

_MICROS_PER_MILLI: Final = 1000
_APPEND_TIME: Final = 8
"""The attribute bit of a batch whose records have the time of the append."""

Make = Callable[[Decoded], pa.Array]


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """In the order of the names; raises ConfigInvalid for an unknown one."""
    unknown = [name for name in columns if name not in FIELDS]
    if unknown:
        raise ConfigInvalid(f"unknown column {unknown[0]!r}; the columns are {', '.join(FIELDS)}")
    if len(set(columns)) != len(columns):
        raise ConfigInvalid("a column is requested twice; name each once")
    return pa.schema([FIELDS[name] for name in columns])


class BatchMaker:
    """Makes the batches of one partition."""

    def __init__(self, partition: TopicPartition, columns: Sequence[str]) -> None:
        self.schema = schema_of(columns)
        self.partition = partition
        self._same: dict[tuple[str, str | int], pa.Array] = {}
        """Columns that repeat one value, at the greatest length so far."""
        makers: dict[str, Make] = {
            "key": lambda one: _binary(one.columns.keys, one.columns.rows),
            "value": lambda one: _binary(one.columns.values, one.columns.rows),
            "topic": self._topic,
            "partition": self._index,
            "offset": _offsets,
            "timestamp": _timestamps,
            "timestampType": self._timestamp_types,
            "headers": lambda one: _headers(one.columns.headers, one.columns.rows),
        }
        self._makers = [makers[name] for name in columns]

    def batch(self, decoded: Decoded) -> pa.RecordBatch:
        """All rows."""
        arrays = [make(decoded) for make in self._makers]
        if not arrays:  # rows without columns are still rows
            return pa.RecordBatch.from_struct_array(
                pa.StructArray.from_buffers(pa.struct([]), decoded.columns.rows, [None])
            )
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _repeated(self, name: str, value: str | int, rows: int) -> pa.Array:
        found = self._same.get((name, value))
        if found is None or len(found) < rows:
            scalar = pa.scalar(value, FIELDS[name].type)
            found = self._same[name, value] = pa.repeat(scalar, rows)
        return found.slice(0, rows)

    def _topic(self, decoded: Decoded) -> pa.Array:
        return self._repeated("topic", self.partition.topic, decoded.columns.rows)

    def _index(self, decoded: Decoded) -> pa.Array:
        return self._repeated("partition", self.partition.partition, decoded.columns.rows)

    def _timestamp_types(self, decoded: Decoded) -> pa.Array:
        batches = np.frombuffer(memoryview(decoded.batches), np.int64).reshape(-1, BATCH_FIELDS)
        of_append = (batches[:, ATTRIBUTES] & _APPEND_TIME) != 0
        if of_append.all() or not of_append.any():
            return self._repeated("timestampType", int(of_append.any()), decoded.columns.rows)
        flags = np.frombuffer(memoryview(decoded.flags), np.uint8)
        return pa.array((flags & FLAG_LOG_APPEND_TIME != 0).astype(np.int32))


def _binary(column: BinaryColumn | None, rows: int, kind: pa.DataType | None = None) -> pa.Array:
    kind = pa.binary() if kind is None else kind
    if column is None:
        return pa.nulls(rows, kind)
    validity = pa.py_buffer(column.validity) if column.validity is not None else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, rows, buffers, offset=column.first)


def _offsets(decoded: Decoded) -> pa.Array:
    buffers = [None, pa.py_buffer(decoded.offsets)]
    return pa.Array.from_buffers(pa.int64(), decoded.columns.rows, buffers)


def _timestamps(decoded: Decoded) -> pa.Array:
    millis = np.frombuffer(memoryview(decoded.columns.timestamps), np.int64)
    micros = millis * _MICROS_PER_MILLI
    if len(millis) and (int(millis.max()) > MILLIS_MAX or int(millis.min()) < -MILLIS_MAX):
        micros = millis.clip(-MILLIS_MAX, MILLIS_MAX) * _MICROS_PER_MILLI
    return pa.Array.from_buffers(TIMESTAMP, len(millis), [None, pa.py_buffer(micros)])


def _headers(column: HeaderColumn | None, rows: int) -> pa.Array:
    if column is None or not column.rows:
        return pa.nulls(rows, HEADERS)
    pairs = pa.StructArray.from_arrays(
        [_header_keys(column), _binary(column.values, column.rows)], fields=list(_HEADER)
    )
    is_failure = np.diff(np.frombuffer(memoryview(column.list_offsets), np.int32))
    # Spark's source has null where a record has no headers, not an empty list.
    validity = pa.py_buffer(np.packbits(is_failure != 0, bitorder="little"))
    buffers = [validity, pa.py_buffer(column.list_offsets)]
    return pa.Array.from_buffers(HEADERS, rows, buffers, children=[pairs])


def _header_keys(column: HeaderColumn) -> pa.Array:
    keys = _binary(column.keys, column.rows)
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(one) for one in keys.to_pylist()], pa.string())

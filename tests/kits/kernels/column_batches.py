"""Record batches built and parsed with only struct, and columns seen through pyarrow.

A third writing of the format, apart from both twins of the column kernels, so that an error the
twins share still shows.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from millstream.kernels.column_types import BinaryColumn, Decoded, HeaderColumn, RecordColumns

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_TYPE = pa.list_(
    pa.struct([pa.field("key", pa.binary(), nullable=False), pa.field("value", pa.binary())])
)


class Record(NamedTuple):
    """One record, as a reader of the columns or of a batch sees it."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


class Header(NamedTuple):
    """The fixed fields of a batch, in their order on the wire."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def varint(number: int) -> bytes:
    rest = number * 2 if number >= 0 else -number * 2 - 1
    out = b""
    while True:
        out += bytes([rest % 128 + (128 if rest > 127 else 0)])
        rest //= 128
        if not rest:
            return out


def field(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record_bytes(record: Record, *, offset_delta: int, base_timestamp: int = 0) -> bytes:
    body = b"\0" + varint(record.timestamp_ms - base_timestamp) + varint(offset_delta)
    body += field(record.key) + field(record.value) + varint(len(record.headers))
    body += b"".join(field(key) + field(value) for key, value in record.headers)
    return varint(len(body)) + body


def batch_bytes(payload: bytes, **fields: int) -> bytes:
    """A batch around a payload; fields not named are those of a plain batch."""
    count = fields.get("record_count", 1)
    header = Header(
        base_offset=0, length=HEADER.size - 12 + len(payload), leader_epoch=-1, magic=2, crc=0,
        attributes=0, last_offset_delta=max(count - 1, 0), base_timestamp=0, max_timestamp=0,
        producer_id=-1, producer_epoch=-1, base_sequence=-1, record_count=count,
    )._replace(**fields)  # fmt: skip
    packed = HEADER.pack(*header)
    if "crc" not in fields:
        packed = HEADER.pack(*header._replace(crc=crc32c(packed[21:] + payload)))
    return packed + payload


def batch_of(records: Sequence[Record], **fields: int) -> bytes:
    payload = b"".join(
        record_bytes(record, offset_delta=index, base_timestamp=fields.get("base_timestamp", 0))
        for index, record in enumerate(records)
    )
    return batch_bytes(payload, **{"record_count": len(records), **fields})


class Parser:
    """Reads numbers and fields one after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        self.at += size
        assert 0 <= size <= len(self.data)
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        rest, factor = 0, 1
        while True:
            byte = self.take(1)[0]
            rest += byte % 128 * factor
            factor *= 128
            if byte < 128:
                return rest // 2 if rest % 2 == 0 else -(rest // 2) - 1

    def field(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def parse_batch(batch: bytes, payload: bytes | None = None) -> tuple[Header, list[Record]]:
    """Header and records of one whole batch; `payload` is its decompressed records."""
    header = Header._make(HEADER.unpack_from(batch))
    assert header.length == len(batch) - 12
    assert header.magic == 2
    assert header.crc == crc32c(batch[21:])
    whole = Parser(batch[HEADER.size :] if payload is None else payload)
    records = []
    for index in range(header.record_count):
        one = Parser(whole.take(whole.varint()))
        assert one.take(1) == b"\0"
        timestamp_ms = header.base_timestamp + one.varint()
        assert one.varint() == index
        key, value = one.field(), one.field()
        headers = [(one.field() or b"", one.field()) for _ in range(one.varint())]
        assert one.at == len(one.data)
        records.append(Record(key, value, timestamp_ms, tuple(headers)))
    assert whole.at == len(whole.data)
    return header, records


def binary_column(array: Any) -> BinaryColumn:
    validity, offsets, data = array.buffers()
    return BinaryColumn(offsets=offsets, data=data or b"", validity=validity, first=array.offset)


def columns_of(records: Sequence[Record], *, skip: int = 0) -> RecordColumns:
    """The records as pyarrow lays them out; `skip` records are cut off by an Arrow slice."""
    keys = pa.array([record.key for record in records], pa.binary())[skip:]
    values = pa.array([record.value for record in records], pa.binary())[skip:]
    timestamps = pa.array([record.timestamp_ms for record in records], pa.int64())
    lists = pa.array(
        [[{"key": key, "value": value} for key, value in r.headers] for r in records], HEADER_TYPE
    )[skip:]
    header_keys, header_values = (lists.values.field(place) for place in range(2))
    return RecordColumns(
        rows=len(records) - skip,
        timestamps=timestamps.buffers()[1][8 * skip :],
        keys=binary_column(keys),
        values=binary_column(values),
        headers=HeaderColumn(
            list_offsets=lists.buffers()[1],
            rows=len(header_keys),
            keys=binary_column(header_keys),
            values=binary_column(header_values),
            validity=lists.buffers()[0],
            first=lists.offset,
        ),
    )


def arrow_binary(column: BinaryColumn, rows: int) -> Any:
    buffers = [column.validity, column.offsets, column.data]
    array = pa.Array.from_buffers(
        pa.binary(), rows, [None if part is None else pa.py_buffer(part) for part in buffers]
    )
    array.validate(full=True)
    assert (column.validity is None) == (array.null_count == 0)
    return array


def arrow_headers(column: HeaderColumn, rows: int) -> Any:
    children = [arrow_binary(column.keys, column.rows), arrow_binary(column.values, column.rows)]
    structs = pa.Array.from_buffers(HEADER_TYPE.value_type, column.rows, [None], children=children)
    lists = pa.Array.from_buffers(
        HEADER_TYPE, rows, [None, pa.py_buffer(column.list_offsets)], children=[structs]
    )
    lists.validate(full=True)
    return lists


def int64s(buffer: Any) -> list[int]:
    return memoryview(buffer).cast("B").cast("q").tolist()


def records_of(decoded: Decoded) -> list[Record]:
    """What pyarrow sees in the decoded columns."""
    columns = decoded.columns
    rows = columns.rows
    assert columns.keys is not None
    assert columns.values is not None
    headers: list[list[dict[str, Any]]] = [[]] * rows
    if columns.headers is not None:
        headers = arrow_headers(columns.headers, rows).to_pylist()
    assert len(memoryview(decoded.flags)) == rows
    return [
        Record(key, value, timestamp_ms, tuple((one["key"], one["value"]) for one in several))
        for key, value, timestamp_ms, several in zip(
            arrow_binary(columns.keys, rows).to_pylist(),
            arrow_binary(columns.values, rows).to_pylist(),
            int64s(columns.timestamps),
            headers,
            strict=True,
        )
    ]


def plainly(decoded: Decoded) -> tuple[Any, ...]:
    """Everything decoded as plain values, to compare two twins byte for byte."""

    def flat(value: Any) -> Any:
        if value is None or isinstance(value, int):
            return value
        if hasattr(value, "__slots__") and hasattr(value, "__dataclass_fields__"):
            return tuple(flat(getattr(value, name)) for name in value.__dataclass_fields__)
        return bytes(memoryview(value).cast("B"))

    return tuple(flat(getattr(decoded, name)) for name in decoded.__dataclass_fields__)

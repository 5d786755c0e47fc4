"""Arrow record batches as rows to write, without copying their buffers.

Columns are found by name, as in Spark's Kafka sink: `value` (required), `key`, `headers`, `topic`,
`partition`, `timestamp`. Slices keep their offsets and nothing is copied; large and view types are
converted to 32-bit offsets, dictionaries are decoded.
"""

from array import array
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import Buffer

from millstream.client.produce.errors import ColumnInvalid, RowInvalid
from millstream.client.produce.rows import Rows, Topics
from millstream.kernels.column_types import BinaryColumn, HeaderColumn, RecordColumns
from millstream.kernels.partition_types import Int32Column

COLUMNS: Final = ("value", "key", "headers", "topic", "partition", "timestamp")

_INT64_BYTES: Final = 8
_MS: Final = pa.timestamp("ms")


def rows_of(batch: pa.RecordBatch, *, topic: str | None, now_ms: int) -> Rows:
    """Raises ColumnInvalid or RowInvalid; `topic` overrides a column of that name."""
    _check_names(batch)
    columns = RecordColumns(
        rows=batch.num_rows,
        timestamps=_timestamps(_column(batch, "timestamp"), batch.num_rows, now_ms),
        keys=_binary("key", _column(batch, "key")),
        values=_binary("value", _column(batch, "value")),
        headers=_headers(_column(batch, "headers")),
    )
    return Rows(
        columns,
        _topics(_column(batch, "topic"), topic),
        _partitions(_column(batch, "partition")),
    )


def _check_names(batch: pa.RecordBatch) -> None:
    names = batch.schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        known = ", ".join(COLUMNS)
        raise ColumnInvalid(unknown[0], f"is unknown; the columns of a record are {known}")
    if "value" not in names:
        raise ColumnInvalid("value", "is missing; add it, it may be all null")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ColumnInvalid(twice[0], "occurs twice; keep one of them")


def _column(batch: pa.RecordBatch, name: str) -> Any:
    """None if it is missing, or has the type null."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    column = batch.column(index)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return None if pa.types.is_null(column.type) else column


def _cast(name: str, column: Any, to: pa.DataType, *, safe: bool = True) -> Any:
    try:
        return column.cast(to, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ColumnInvalid(name, f"{column.type} cannot be written ({error})") from None


def _binary(name: str, column: Any) -> BinaryColumn | None:
    if column is None:
        return None
    kind = column.type
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        column = _to_binary(name, column)
    validity, offsets, data = column.buffers()
    return BinaryColumn(
        offsets=offsets if offsets is not None and offsets.size else bytes(4),
        data=data if data is not None else b"",
        validity=validity if column.null_count else None,
        first=column.offset,
    )


def _to_binary(name: str, column: Any) -> Any:
    kind, types = column.type, pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return _cast(name, column, pa.string())
    if (
        types.is_large_binary(kind)
        or types.is_binary_view(kind)
        or types.is_fixed_size_binary(kind)
    ):
        return _cast(name, column, pa.binary())
    raise ColumnInvalid(name, f"is {kind}; convert it to string or binary")


def _headers(column: Any) -> HeaderColumn | None:
    if column is None:
        return None
    kind = column.type
    if pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        column = _cast("headers", column, pa.list_(kind.value_type))
        kind = column.type
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise ColumnInvalid("headers", f"is {kind}; list<struct<key, value>> is wanted")
    names = {field.name for field in kind.value_type}
    if names != {"key", "value"}:
        raise ColumnInvalid("headers", f"is {kind}; list<struct<key, value>> is wanted")
    validity, offsets = column.buffers()[:2]
    parts = column.values
    keys = _binary("headers.key", parts.field("key")) if len(parts) else None
    if parts.null_count or (len(parts) and keys is None) or parts.field("key").null_count:
        raise ColumnInvalid("headers", "a header, or its key, is null")
    nothing = BinaryColumn(offsets=bytes(4 * (len(parts) + 1)), data=b"")
    values = parts.field("value")
    return HeaderColumn(
        list_offsets=offsets if offsets is not None and offsets.size else bytes(4),
        rows=len(parts),
        keys=keys if keys is not None else nothing,
        values=_header_values(values),
        validity=validity if column.null_count else None,
        first=column.offset,
    )


def _header_values(values: Any) -> BinaryColumn:
    found = None if pa.types.is_null(values.type) else _binary("headers.value", values)
    if found is not None:
        return found
    count = len(values)
    return BinaryColumn(offsets=bytes(4 * (count + 1)), data=b"", validity=bytes((count + 7) // 8))


def _topics(column: Any, topic: str | None) -> Topics:
    if topic is not None:
        return Topics([topic], None)
    if column is None:
        raise ColumnInvalid("topic", "is missing, and no topic was given for all rows; add one")
    if column.null_count:
        raise RowInvalid(
            _first(pc.is_null(column)), "has no topic; set it, or give a topic for all rows"
        )
    kind, types = column.type, pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        column = _cast("topic", column, pa.string())
    elif not types.is_string(kind):
        raise ColumnInvalid("topic", f"is {kind}; it must be string")
    coded = column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    if len(names) == 1:
        return Topics(names, None)
    indices = coded.indices
    return Topics(names, _numbers(indices, 4))


def _first(mask: Any) -> int:
    return int(pc.index(mask, value=True).as_py())


def _partitions(column: Any) -> Int32Column | None:
    if column is None:
        return None
    if not pa.types.is_integer(column.type):
        raise ColumnInvalid("partition", f"is {column.type}; it must be int32")
    if not pa.types.is_int32(column.type):
        column = _cast("partition", column, pa.int32())
    validity, values = column.buffers()
    return Int32Column(
        values=values,
        validity=validity if column.null_count else None,
        first=column.offset,
    )


def _timestamps(column: Any, rows: int, now_ms: int) -> Buffer:
    if column is None:
        return array("q", (now_ms,)) * rows
    if pa.types.is_timestamp(column.type):
        if column.type.unit != "ms":
            # Like Spark's sink: truncated to milliseconds.
            column = _cast("timestamp", column, pa.timestamp("ms", column.type.tz), safe=False)
        column = column.view(pa.int64())
    if not pa.types.is_int64(column.type):
        raise ColumnInvalid("timestamp", f"is {column.type}; it must be a timestamp, or int64 (ms)")
    if column.null_count:
        column = column.fill_null(now_ms)
    if rows and pc.min(column).as_py() < 0:
        row = _first(pc.less(column, 0))
        raise RowInvalid(row, f"its timestamp, {column[row]} ms, is negative")
    return _numbers(column, _INT64_BYTES)


def _numbers(column: Any, width: int) -> Buffer:
    """The values of a column without nulls, from its first row on."""
    data = column.buffers()[1]
    if data is None:
        return b""
    return memoryview(data)[width * column.offset : width * (column.offset + len(column))]

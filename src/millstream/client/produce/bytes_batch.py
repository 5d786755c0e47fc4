"""A batch of keys and values as bytes, for writing without pyarrow.

It implements the part of `pyarrow.RecordBatch` that the producer uses.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from millstream.client.produce.rows import Rows, Topics
from millstream.kernels.column_types import BinaryColumn, RecordColumns
from millstream.kernels.partition_types import Int32Column

_OFFSET_BYTES: Final = 4


class BytesSchema(NamedTuple):
    """Batches with equal schemas can be concatenated."""

    has_keys: bool
    partition: int | None

    def equals(self, other: object) -> bool:
        return self == other


class _Column:
    """Concatenated values, and where each begins."""

    __slots__ = ("data", "offsets")

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.offsets = array("i", accumulate(map(len, texts), initial=0))
        self.data = b"".join(texts)

    def texts(self, start: int, stop: int) -> list[bytes]:
        data = self.data
        return [data[begin:end] for begin, end in pairwise(self.offsets[start : stop + 1])]


class BytesBatch(NamedTuple):
    """Rows of one topic; made by `bytes_batch`. Implements `RowBatch`."""

    columns: tuple[_Column, ...]
    """Values, and keys if there are any."""
    schema: BytesSchema
    num_rows: int
    start: int = 0

    @property
    def nbytes(self) -> int:
        start, stop = self.start, self.start + self.num_rows
        used = sum(one.offsets[stop] - one.offsets[start] for one in self.columns)
        return used + _OFFSET_BYTES * (self.num_rows + 1) * len(self.columns)

    def slice(self, start: int, length: int, /) -> "BytesBatch":
        """Without a copy."""
        rows = min(length, self.num_rows - start)
        return self._replace(start=self.start + start, num_rows=rows)

    def texts(self, column: int) -> list[bytes]:
        return self.columns[column].texts(self.start, self.start + self.num_rows)

    def rows(self, *, topic: str, now_ms: int) -> Rows:
        """As the kernels take them."""
        values, *keys = [
            BinaryColumn(offsets=one.offsets, data=one.data, first=self.start)
            for one in self.columns
        ]
        records = RecordColumns(
            rows=self.num_rows,
            timestamps=array("q", (now_ms,)) * self.num_rows,
            keys=keys[0] if keys else None,
            values=values,
        )
        partitions = None
        if self.schema.partition is not None:
            partitions = Int32Column(values=array("i", (self.schema.partition,)) * self.num_rows)
        return Rows(records, Topics([topic], None), partitions)


def bytes_batch(
    values: Sequence[bytes], *, keys: Sequence[bytes] | None = None, partition: int | None = None
) -> BytesBatch:
    """With or without keys; all rows go to one partition if that is given."""
    columns = (_Column(values),) if keys is None else (_Column(values), _Column(keys))
    return BytesBatch(columns, BytesSchema(keys is not None, partition), len(values))


def concat_bytes(batches: Sequence[BytesBatch]) -> BytesBatch:
    """Concatenate batches of the same schema."""
    if len(batches) == 1:
        return batches[0]
    schema = batches[0].schema
    values = [one for batch in batches for one in batch.texts(0)]
    keys = [one for batch in batches for one in batch.texts(1)] if schema.has_keys else None
    return bytes_batch(values, keys=keys, partition=schema.partition)

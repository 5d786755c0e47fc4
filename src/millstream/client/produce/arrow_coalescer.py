"""Coalesces small batches, so that each does not become a record batch of its own."""

from typing import Any, NamedTuple, cast

from millstream.client.produce.batches import Source
from millstream.client.produce.bytes_batch import BytesBatch, BytesSchema, concat_bytes
from millstream.client.produce.rows import RowBatch


class Portion(NamedTuple):
    """The gathered rows, as one batch."""

    batch: RowBatch
    topic: str | None
    source: Source


class Gatherer:
    """Gathers batches of one schema and one topic until there are enough."""

    def __init__(self, *, bytes_min: int) -> None:
        self._bytes_min = bytes_min
        self._batches: list[RowBatch] = []
        self._writes: list[int] = []
        self._topic: str | None = None
        self.bytes = 0

    def takes(self, size: int) -> bool:
        """Whether a batch of that size is small enough to be gathered."""
        return size < self._bytes_min

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def is_full(self) -> bool:
        return self.bytes >= self._bytes_min

    def fits(self, schema: Any, topic: str | None) -> bool:
        """Whether a batch can be added to the gathered ones."""
        if not self._batches:
            return True
        known: Any = self._batches[0].schema
        is_same_kind = isinstance(schema, BytesSchema) == isinstance(known, BytesSchema)
        return topic == self._topic and is_same_kind and bool(schema.equals(known))

    def add(self, batch: RowBatch, topic: str | None, write: int) -> None:
        self._batches.append(batch)
        self._writes.append(write)
        self._topic = topic
        self.bytes += batch.nbytes

    def take(self) -> Portion | None:
        """Everything gathered, or None."""
        if not self._batches:
            return None
        starts: list[int] = []
        rows = 0
        for one in self._batches:
            starts.append(rows)
            rows += one.num_rows
        source = Source(tuple(self._writes), tuple(starts))
        portion = Portion(_together(self._batches), self._topic, source)
        self._batches, self._writes, self.bytes = [], [], 0
        return portion

    def put_back(self, portion: Portion) -> None:
        """Undo `take`: it could not be sent yet; nothing was added since."""
        writes, starts = portion.source
        ends = [*starts[1:], portion.batch.num_rows]
        for write, start, end in zip(writes, starts, ends, strict=True):
            self.add(portion.batch.slice(start, end - start), portion.topic, write)


def _together(batches: list[RowBatch]) -> RowBatch:
    if isinstance(batches[0], BytesBatch):
        return concat_bytes(cast("list[BytesBatch]", batches))
    import pyarrow as pa

    return cast("RowBatch", pa.concat_batches(batches))

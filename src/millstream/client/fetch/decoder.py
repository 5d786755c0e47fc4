"""Decodes chunks into Arrow record batches of a good size, lazily."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from millstream.client.fetch.aborted import Visibility
from millstream.client.fetch.arrow import DEFAULT_COLUMNS, BatchMaker, schema_of
from millstream.client.fetch.chunks import Chunk
from millstream.client.fetch.options import ReadOptions
from millstream.client.fetch.parts import BATCH_BYTES, PartitionBatch, decoded_parts
from millstream.client.settings import ClientSettings
from millstream.kernels.columns import COLUMN_BYTES_MAX, Decoded, DecodeOptions
from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX

if TYPE_CHECKING:
    from millstream.client.fetch.aborted import Mask

BATCH_ROWS_MAX: Final = 20_000
"""Bounds batches of small records: the consumer holds one at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Columns and sizes of the batches of a read."""

    columns: Sequence[str] = DEFAULT_COLUMNS
    batch_bytes: int = BATCH_BYTES
    """Target size; a single stored batch may be larger."""
    batch_rows_max: int = BATCH_ROWS_MAX
    checks_crcs: bool = True


def shape_of(
    settings: ClientSettings, columns: Sequence[str] | None, options: ReadOptions
) -> BatchShape:
    """Of a read with these options; raises ConfigInvalid for unknown columns."""
    columns = DEFAULT_COLUMNS if columns is None else tuple(columns)
    schema_of(columns)
    return BatchShape(
        columns=columns,
        batch_bytes=BATCH_BYTES if options.batch_bytes is None else options.batch_bytes,
        batch_rows_max=max(1, options.batch_rows_max or BATCH_ROWS_MAX),
        checks_crcs=settings.check_crcs,
    )


class Decoder:
    """Decodes the chunks of one read."""

    def __init__(self, shape: BatchShape) -> None:
        self._shape = shape
        self._with_headers = "headers" in shape.columns
        self._bytes_max = max(1, min(shape.batch_bytes, COLUMN_BYTES_MAX))
        self._makers: dict[TopicPartition, BatchMaker] = {}

    def batches(self, chunk: Chunk) -> Iterator[PartitionBatch]:
        """At least one unless the chunk has no visible rows. Raises RecordsUnreadable."""
        maker = self._makers.get(chunk.partition)
        if maker is None:
            maker = BatchMaker(chunk.partition, self._shape.columns)
            self._makers[chunk.partition] = maker
        visibility = Visibility(chunk.aborted)
        for decoded in decoded_parts(chunk, self._options):
            kept = visibility.kept(decoded)
            if decoded.columns.rows:
                yield from self._split(maker, decoded, kept)

    def _split(
        self, maker: BatchMaker, decoded: Decoded, kept: "Mask | None"
    ) -> Iterator[PartitionBatch]:
        """The visible rows, in batches of at most `batch_rows_max`."""
        whole, rows_max = maker.batch(decoded), self._shape.batch_rows_max
        if kept is not None:
            whole = whole.filter(pa.array(kept))
        rows, start = whole.num_rows, 0
        if rows > rows_max:
            offsets = np.frombuffer(memoryview(decoded.offsets), np.int64)
            offsets = offsets if kept is None else offsets[kept]
            while rows - start > rows_max:
                stop = start + rows_max
                next_offset = Offset(int(offsets[stop - 1]) + 1)
                yield PartitionBatch(maker.partition, whole.slice(start, rows_max), next_offset)
                start = stop
        if rows:
            yield PartitionBatch(maker.partition, whole.slice(start), Offset(decoded.next_offset))

    def _options(self, first_offset: Offset, end_offset: Offset) -> DecodeOptions:
        return DecodeOptions(
            first_offset=first_offset,
            end_offset=end_offset,
            with_headers=self._with_headers,
            check_crc=self._shape.checks_crcs,
            batch_bytes_max=DECOMPRESSED_BATCH_BYTES_MAX,
            bytes_max=self._bytes_max,
        )

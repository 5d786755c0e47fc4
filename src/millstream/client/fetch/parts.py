"""Decodes chunks part by part: common to Arrow batches and Python rows."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.client.errors import RecordsUnreadable
from millstream.client.fetch.chunks import Chunk
from millstream.kernels.columns import Decoded, DecodeOptions, decode
from millstream.kernels.errors import MalformedRecords
from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import MIB

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES: Final = 4 * MIB
"""Of records in one Arrow batch: more brings nothing in Spark, below 2,000 rows it is slower."""


class PartitionBatch(NamedTuple):
    """Rows of one partition."""

    partition: TopicPartition
    batch: "pa.RecordBatch"
    next_offset: Offset
    """Where to continue after these rows."""


def decoded_parts(
    chunk: Chunk, options: Callable[[Offset, Offset], DecodeOptions]
) -> Iterator[Decoded]:
    """In order, each as large as the options for [first, end) allow. Raises RecordsUnreadable."""
    position, offset, end = 0, chunk.start, len(chunk.records)
    malformed: MalformedRecords | None = None
    while offset < chunk.stop and chunk.records:
        try:
            decoded = decode(chunk.records, position, end, options(offset, chunk.stop))
        except MalformedRecords as error:
            malformed, end = error, error.position  # what comes before it is valid
            if end > position:
                continue
            break
        if decoded.next_offset == offset:
            break  # no complete batch is left: the next one is the malformed one
        position, offset = decoded.position, Offset(decoded.next_offset)
        yield decoded
    if offset < chunk.stop and chunk.records:
        why = str(malformed) if malformed is not None else "incomplete"
        raise RecordsUnreadable(chunk.partition, offset=offset, why=why)

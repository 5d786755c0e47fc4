"""Input and output of a read: ranges of offsets, limits, and chunks of a partition's log."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from millstream.model.ids import Offset, ProducerId, TopicId, TopicPartition

if TYPE_CHECKING:
    from millstream.client.settings import ClientSettings


class ReadRange(NamedTuple):
    """Which records of a partition: `[start, end)`."""

    partition: TopicPartition
    start: Offset
    end: Offset | None = None
    """None: no end, also records that are written later."""
    topic_id: TopicId | None = None
    """The topic that the offsets belong to; default: the one that is found first."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read_committed reader must skip."""

    producer_id: ProducerId
    first_offset: Offset


class Chunk(NamedTuple):
    """Batches of one partition from a response; none where the log has a gap."""

    partition: TopicPartition
    records: memoryview
    start: Offset
    """The first batch may have records before it, which are skipped."""
    stop: Offset
    """Where the next chunk begins: after the last complete batch, or the end of the range."""
    aborted: tuple[AbortedTransaction, ...]
    charge_bytes: int
    """Bytes to release with this chunk: the whole response, if it is the last chunk of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How much a read may fetch and buffer; names and meaning are Kafka's where it has them."""

    fetch_bytes_max: int
    partition_bytes_max: int
    prefetch_bytes_max: int
    """Of buffered responses and those in flight together. One batch is always fetched, however
    large."""
    fetch_bytes_min: int
    wait_ms_max: int
    is_committed: bool

    @classmethod
    def of(cls, settings: "ClientSettings", *, is_committed: bool | None = None) -> "FetchLimits":
        """Those of the settings; `is_committed` defaults to `isolation.level`."""
        return cls(
            fetch_bytes_max=settings.fetch_max_bytes,
            partition_bytes_max=settings.max_partition_fetch_bytes,
            prefetch_bytes_max=settings.prefetch_max_bytes,
            fetch_bytes_min=settings.fetch_min_bytes,
            wait_ms_max=settings.fetch_max_wait_ms,
            is_committed=settings.is_read_committed if is_committed is None else is_committed,
        )

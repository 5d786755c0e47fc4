"""What is asked for and what comes: ranges of offsets, limits, and pieces of a partition's log."""

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
    """None: for ever, also those that are yet to come."""
    topic_id: TopicId | None = None
    """The topic that the offsets are of; without it, the one that is found first."""


class AbortedTransaction(NamedTuple):
    """A transaction whose records a reader of committed ones must leave out."""

    producer_id: ProducerId
    first_offset: Offset


class Chunk(NamedTuple):
    """Batches of one partition as an answer brought them; none where the log has a gap."""

    partition: TopicPartition
    records: memoryview
    start: Offset
    """Records before it are in the first batch, and are not wanted."""
    stop: Offset
    """Where the next chunk begins: behind the last whole batch, or the end of the range."""
    aborted: tuple[AbortedTransaction, ...]
    charge_bytes: int
    """What is free again when this chunk is used up: its whole answer, if it is the last of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """How much a read may ask for and hold; names and meaning are Kafka's where it has them."""

    fetch_bytes_max: int
    partition_bytes_max: int
    prefetch_bytes_max: int
    """Of answers that came and were not used, and of those under way, together. One batch comes in
    any case, however large."""
    fetch_bytes_min: int
    wait_ms_max: int
    is_committed: bool

    @classmethod
    def of(cls, settings: "ClientSettings", *, is_committed: bool | None = None) -> "FetchLimits":
        """Those of the settings; `isolation.level` unless told otherwise."""
        return cls(
            fetch_bytes_max=settings.fetch_max_bytes,
            partition_bytes_max=settings.max_partition_fetch_bytes,
            prefetch_bytes_max=settings.prefetch_max_bytes,
            fetch_bytes_min=settings.fetch_min_bytes,
            wait_ms_max=settings.fetch_max_wait_ms,
            is_committed=settings.is_read_committed if is_committed is None else is_committed,
        )

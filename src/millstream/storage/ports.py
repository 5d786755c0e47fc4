"""What a partition's log promises to those who keep their own state in it.

Groups and transactions write to and read from partitions without knowing how they are replicated:
replication implements `PartitionLog`, the broker hands it to the coordinators.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from millstream.model.errors import OperatingError
from millstream.model.ids import (
    NO_OFFSET,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicId,
    TopicPartition,
)
from millstream.storage.log.log import ReadResult
from millstream.storage.log.reader import Isolation
from millstream.storage.producers.machine import Origin


class AppendOutcome(NamedTuple):
    """What became of an append; with an error nothing else counts but `log_start`."""

    base_offset: Offset = NO_OFFSET
    last_offset: Offset = NO_OFFSET
    append_time_ms: TimestampMs | None = None
    """The broker's timestamp where the topic asks for it, else None."""
    log_start: Offset = NO_OFFSET
    is_duplicate: bool = False
    error: OperatingError | None = None


AppendDone = Callable[[AppendOutcome], None]


class LeadershipListener(Protocol):
    """Told when this broker begins and ends to lead a partition, and what counts meanwhile."""

    def leadership_gained(self, log: "PartitionLog", leader_epoch: LeaderEpoch) -> None:
        """Everything below the log's end at this moment must be read before serving from it."""

    def leadership_lost(self, log: "PartitionLog") -> None:
        """Nothing may be answered from what was read: another broker may write by now."""

    def high_watermark_moved(self, log: "PartitionLog") -> None:
        """More of the log counts. It may be that `append_now` has not returned yet."""


class PartitionLog(Protocol):
    """One partition as its leader offers it. One thread, nothing here waits."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> TopicId: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def log_start(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def last_stable_offset(self) -> Offset: ...

    @property
    def log_end(self) -> Offset: ...

    def append(
        self,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        done: AppendDone,
        origin: Origin = Origin.CLIENT,
    ) -> None:
        """Write batches; `done` is called once, now or later, with the outcome.

        With acks=-1 that is when the high watermark has passed them, otherwise when they are
        written as durably as the topic asks. Errors come through `done` too.
        """

    def append_now(
        self, records: bytes | bytearray | memoryview, *, origin: Origin = Origin.COORDINATOR
    ) -> AppendOutcome:
        """Write batches as with acks=-1, and return as soon as the log has taken them.

        They count when the high watermark has passed them, which whoever watches hears of. Raises
        OperatingError where the log does not take them: then nothing was written.
        """

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        """Batches from the one that holds `offset` on; raises OperatingError."""

    def watch_leadership(self, listener: LeadershipListener) -> None:
        """Tell the listener of every change; of the current leadership at once."""

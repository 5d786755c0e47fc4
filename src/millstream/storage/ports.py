"""What a partition's log offers to services that keep their state in it.

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
    """The result of an append; with an error only `log_start` is valid besides it."""

    base_offset: Offset = NO_OFFSET
    last_offset: Offset = NO_OFFSET
    append_time_ms: TimestampMs | None = None
    """The broker's timestamp if the topic uses LogAppendTime, else None."""
    log_start: Offset = NO_OFFSET
    is_duplicate: bool = False
    error: OperatingError | None = None


AppendDone = Callable[[AppendOutcome], None]


class LeadershipListener(Protocol):
    """Notified when this broker gains or loses leadership, and when records are committed."""

    def leadership_gained(self, log: "PartitionLog", leader_epoch: LeaderEpoch) -> None:
        """Everything below the log's current end must be read before serving from it."""

    def leadership_lost(self, log: "PartitionLog") -> None:
        """Nothing may be served from what was read: another broker may write by now."""

    def high_watermark_moved(self, log: "PartitionLog") -> None:
        """More of the log is committed. It may be that `append_now` has not returned yet."""


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
        written as durably as the topic requires. Errors are passed to `done` too.
        """

    def append_now(
        self, records: bytes | bytearray | memoryview, *, origin: Origin = Origin.COORDINATOR
    ) -> AppendOutcome:
        """Write batches as with acks=-1, and return as soon as they are in the log.

        They are committed when the high watermark has passed them, of which listeners are
        notified. Raises OperatingError where the log refuses them: then nothing was written.
        """

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        """Batches from the one that holds `offset` on; raises OperatingError."""

    def watch_leadership(self, listener: LeadershipListener) -> None:
        """Notify the listener of every change; of the current leadership at once."""

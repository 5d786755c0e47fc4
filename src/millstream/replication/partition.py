"""The leader of one partition: who may write and read, and when that counts.

Today the set of in-sync replicas is this broker alone, so the high watermark follows the log's end
as soon as the records are as durable as the topic asks (`flush.messages`). The two steps are kept
apart because they will part: with followers, acks=1 waits for the first, acks=all for the second.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from millstream.kernels.slots import NOTHING_NEW
from millstream.model.errors import FencedLeaderEpoch, OperatingError, UnknownPartition
from millstream.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.model.invariant import invariant
from millstream.replication.errors import NotEnoughReplicas, UnknownLeaderEpoch
from millstream.storage.flush import FlushDone
from millstream.storage.log import Log, ReadResult
from millstream.storage.log_reader import EMPTY_SLICE, Isolation, ReadSlice
from millstream.storage.ports import AppendDone, AppendOutcome, LeadershipListener
from millstream.storage.producers import Origin
from millstream.storage.validation import Allowance, Checked
from millstream.wire.errors import ErrorCode

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0

Flush = Callable[[Log, FlushDone], None]
Waiter = tuple[Offset, Callable[[OperatingError | None], None]]


class Reader(Protocol):
    """A fetch that waits for more to read."""

    def progressed(self, mark: Any) -> None:
        """The high watermark moved, or there is an error to be told; `mark` as it was left."""


class LeaderFacts(NamedTuple):
    """What the cluster's metadata says of a partition that this broker leads."""

    topic_id: TopicId
    leader_epoch: LeaderEpoch
    replica_count: int
    in_sync_count: int
    in_sync_min: int
    """`min.insync.replicas` of the topic."""


class LeaderHome(NamedTuple):
    """What all partitions share."""

    flush: Flush
    """Group commit: `LogManager.flush`."""
    wake: Callable[["Partition"], None]
    """Let the readers of the partition look again, soon."""


class Partition:
    """See the module's docstring. Implements `storage.ports.PartitionLog`."""

    __slots__ = (
        "_acknowledged",
        "_facts",
        "_flushes",
        "_home",
        "_is_closed",
        "_listeners",
        "_replicated",
        "_settled",
        "bytes_out",
        "in_sync_wanted",
        "leader_epoch",
        "log",
        "partition",
        "readers",
        "slot",
        "topic_id",
    )

    def __init__(self, log: Log, facts: LeaderFacts, home: LeaderHome) -> None:
        self.log = log
        self.slot = log.slot
        """The log's numbers; reading them here is several times faster than through the log."""
        self.partition: TopicPartition = log.partition
        self._home = home
        self.topic_id: TopicId = facts.topic_id
        self.leader_epoch: LeaderEpoch = facts.leader_epoch
        self.readers: dict[Reader, Any] = {}
        """Fetches that wait, with a mark of theirs; a dictionary as they leave in any order."""
        self.bytes_out = 0
        """Record bytes handed to consumers."""
        self._settled = log.log_end
        """Everything below is as durable as the topic asks."""
        self._flushes = 0
        """Appends whose flush is not done."""
        self._acknowledged: deque[Waiter] = deque()
        self._replicated: deque[Waiter] = deque()
        self._listeners: list[LeadershipListener] = []
        self._is_closed = False
        # The leader is all of the ISR: whatever it has is replicated.
        self._advance_high_watermark(log.log_end)
        self._lead(facts)

    def __repr__(self) -> str:
        return f"Partition({self.partition}, epoch {self.leader_epoch})"

    # -- facts -----------------------------------------------------------------------------

    @property
    def log_start(self) -> Offset:
        return self.log.log_start

    @property
    def log_end(self) -> Offset:
        return self.log.log_end

    @property
    def high_watermark(self) -> Offset:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        return self.log.last_stable_offset

    def configure(self, facts: LeaderFacts) -> None:
        """Take over changed metadata; a leader epoch only goes up (I-15)."""
        invariant(
            facts.leader_epoch >= self.leader_epoch,
            "I-15 a leader epoch went down",
            partition=self.partition,
            ours=self.leader_epoch,
            theirs=facts.leader_epoch,
        )
        self._lead(facts)

    def _lead(self, facts: LeaderFacts) -> None:
        self._facts = facts
        self.leader_epoch = facts.leader_epoch
        # As Kafka since 4.0: more than there are replicas cannot be asked for.
        self.in_sync_wanted = min(facts.in_sync_min, facts.replica_count)
        self.log.start_leading(facts.leader_epoch, after_commit=self.after_commit)
        self.slot.is_all_plain = facts.in_sync_count >= self.in_sync_wanted

    def check_leader_epoch(self, current: int) -> None:
        """Compare what the client believes with what is so; -1 makes no claim (KIP-320)."""
        if current in (-1, self.leader_epoch):
            return
        ours, theirs = self.leader_epoch, LeaderEpoch(current)
        if current < ours:
            raise FencedLeaderEpoch(ours=ours, theirs=theirs)
        raise UnknownLeaderEpoch(ours=ours, theirs=theirs)

    def watch_leadership(self, listener: LeadershipListener) -> None:
        """Tell the listener of every change; of the current leadership at once."""
        self._listeners.append(listener)
        listener.leadership_gained(self, self.leader_epoch)

    # -- append ----------------------------------------------------------------------------

    def append(
        self,
        records: bytes | bytearray | memoryview | Checked,
        *,
        acks: int,
        done: AppendDone,
        origin: Origin = Origin.CLIENT,
        allowance: Allowance | None = None,
    ) -> None:
        """Write; `done` is called once: at once, or when flush and high watermark allow it.

        TooLargeForNow is raised, and `done` not called, where the batches decompress to more than
        the allowance: the caller has them checked elsewhere and comes again.
        """
        try:
            if acks == ACKS_ALL:
                self._check_replicas()
            appended = self.log.append_as_leader(
                records, leader_epoch=self.leader_epoch, origin=origin, allowance=allowance
            )
        except OperatingError as error:
            self._on_refusal()
            done(AppendOutcome(log_start=self.log.log_start, error=error))
            return
        if not appended.is_duplicate:
            self.after_commit()
        outcome = AppendOutcome(
            appended.base_offset,
            appended.last_offset,
            appended.append_time_ms,
            self.log.log_start,
            appended.is_duplicate,
        )
        end = Offset(appended.last_offset + 1)
        if end <= (self.log.high_watermark if acks == ACKS_ALL else self._settled):
            done(outcome)
            return
        # A duplicate waits as well: the first one may not be durable yet, and what a retry is
        # told counts as much (I-01).
        waiting = self._replicated if acks == ACKS_ALL else self._acknowledged
        waiting.append((end, partial(_finish, done, outcome)))

    def after_commit(self) -> None:
        """Batches were written to the log: let them count once they are durable enough."""
        log = self.log
        if not self._flushes and log.unflushed_records < log.config.flush_messages:
            self._settle(self.slot.log_end)
            return
        # Kafka's acknowledgement implies the flush that the topic asks for. Whoever comes while
        # one runs joins the next: an earlier record must not count later than a newer one.
        self._flushes += 1
        self._home.flush(log, partial(self._flushed, log.log_end))

    def _flushed(self, end: Offset, error: OperatingError | None) -> None:
        self._flushes -= 1
        if self._is_closed:
            return
        if error is None:
            self._settle(end)
            return
        for waiting in (self._acknowledged, self._replicated):
            _fail(waiting, end, error)
        if self.slot.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR):
            self._home.wake(self)
        self._on_refusal()

    def _settle(self, end: Offset) -> None:
        if end <= self._settled:
            return
        self._settled = end
        if self._acknowledged:
            _wake(self._acknowledged, end)
        self._advance_high_watermark(end)

    def _advance_high_watermark(self, end: Offset) -> None:
        """With this broker alone in sync, what it holds is what everybody holds (I-09)."""
        slot = self.slot
        if end <= slot.high_watermark:
            return
        has_waiting = slot.waiting
        self.log.set_high_watermark(end)
        if self._replicated:
            _wake(self._replicated, slot.high_watermark)
        if self.readers or has_waiting:
            self._home.wake(self)

    def _check_replicas(self) -> None:
        in_sync = self._facts.in_sync_count
        if in_sync < self.in_sync_wanted:
            raise NotEnoughReplicas(self.partition, in_sync=in_sync, wanted=self.in_sync_wanted)

    def _on_refusal(self) -> None:
        """A directory that failed has something to tell those who wait for records, too."""
        if self.readers and self.log.failure is not None:
            self._home.wake(self)

    # -- read ------------------------------------------------------------------------------

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        """Batches from the one that holds `offset` on, as far as the reader may see.

        Most readers come back for what was written since they reached the end. The slot remembers
        where that is, so their batches need not be searched for in the file.
        """
        slot = self.slot
        if slot.is_decided and isolation is not Isolation.LOG_END and self.is_usable:
            data = self.tail(offset, size_max)
            if data is not None:
                end = slot.high_watermark
                return ReadResult(data, end, end, slot.log_start, [])
        return self.log.read(offset, size_max=size_max, isolation=isolation)

    def tail(self, offset: int, size_max: int) -> ReadSlice | None:
        """Everything from `offset` on, if that is known to begin a batch and may be seen.

        Ask only while the log's slot `is_decided` and this is usable.
        """
        slot = self.slot
        position = slot.tail(offset, size_max)
        if position >= 0:
            return ReadSlice(slot.tail_file, position, slot.position - position, is_fresh=True)
        return EMPTY_SLICE if position == NOTHING_NEW else None

    def visible_end(self, isolation: Isolation) -> Offset:
        """Where such a reader's view ends (I-07)."""
        slot = self.slot
        if isolation is Isolation.LOG_END:
            return Offset(slot.log_end)
        if isolation is Isolation.HIGH_WATERMARK or slot.is_decided:
            return Offset(slot.high_watermark)
        return self.log.last_stable_offset

    @property
    def is_usable(self) -> bool:
        """Whether it is still led here, and has not failed."""
        return not self._is_closed and self.log.failure is None

    # -- the end ---------------------------------------------------------------------------

    def close(self, error: OperatingError | None = None) -> None:
        """This broker leads it no longer: whoever waits is told so."""
        if self._is_closed:
            return
        self._is_closed = True
        self.log.stop_leading()
        self.slot.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        reason = error or UnknownPartition(self.partition)
        for waiting in (self._acknowledged, self._replicated):
            _fail(waiting, None, reason)
        for listener in self._listeners:
            listener.leadership_lost(self)
        self._listeners.clear()
        if self.readers:
            self._home.wake(self)


def _finish(done: AppendDone, outcome: AppendOutcome, error: OperatingError | None) -> None:
    done(outcome if error is None else AppendOutcome(log_start=outcome.log_start, error=error))


def _wake(waiting: deque[Waiter], end: Offset) -> None:
    while waiting and waiting[0][0] <= end:
        waiting.popleft()[1](None)


def _fail(waiting: deque[Waiter], end: Offset | None, error: OperatingError) -> None:
    """Tell those that wait for something up to `end`; all of them where it is None."""
    while waiting and (end is None or waiting[0][0] <= end):
        waiting.popleft()[1](error)

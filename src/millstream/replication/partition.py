"""The leader of one partition: who may write and read, and when a record is committed.

First the records become as durable here as the topic requires (`flush.messages`): acks=1 waits for
that. Then all in-sync replicas have them and the high watermark passes: acks=all, and readers, wait
for that. Where this broker is the only replica the second follows from the first at once.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from millstream.model.errors import (
    OperatingError,
    OutOfOrderSequence,
    UnknownPartition,
    without_frames,
)
from millstream.model.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
)
from millstream.model.invariant import invariant
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
    UnknownReplica,
)
from millstream.replication.isr_port import IsrAnswer, IsrProposal
from millstream.replication.leader import FollowerFetch, LeaderReplicas, LeaderState, ProposedIsr
from millstream.replication.readable import ReadableReplica
from millstream.storage.flush import FlushDone
from millstream.storage.log.log import Log
from millstream.storage.ports import AppendDone, AppendOutcome, LeadershipListener
from millstream.storage.producers.machine import Origin
from millstream.storage.validation import Allowance, CheckedRecords
from millstream.wire.errors import ErrorCode

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0

Flush = Callable[[Log, FlushDone], None]
Waiter = tuple[Offset, Callable[[OperatingError | None], None]]


class LowWatermarkWaiter(Protocol):
    """Waits until no live replica has the deleted records any more."""

    def low_watermark_moved(self, leader: "Partition") -> None:
        """The low watermark may have moved, or the leadership was lost. Called often."""


class LeaderFacts(NamedTuple):
    """What the cluster's metadata says about a partition that this broker leads."""

    topic_id: TopicId
    leader: BrokerId
    """This broker."""
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    in_sync_min: int
    """`min.insync.replicas` of the topic."""
    partition_epoch: int = 0
    unfit: tuple[BrokerId, ...] = ()
    """Replicas that are lost, or have no room: the controller adds none of them to the ISR."""

    @property
    def state(self) -> LeaderState:
        # As Kafka since 4.0: never more than there are replicas.
        effective_min_isr = min(self.in_sync_min, len(self.replicas))
        return LeaderState(
            self.leader_epoch,
            self.partition_epoch,
            self.replicas,
            self.isr,
            effective_min_isr,
            self.unfit,
        )


class LeaderContext(NamedTuple):
    """What all led partitions share."""

    flush: Flush
    """Group commit: `LogManager.flush`."""
    wake: Callable[["Partition"], None]
    """Let the waiting fetches of the partition check again, soon."""
    cluster: ReplicationDependencies


class Partition(ReadableReplica):
    """See the module's docstring. Implements `storage.ports.PartitionLog`."""

    __slots__ = (
        "_acked_end",
        "_acknowledged",
        "_context",
        "_epoch_start",
        "_flushes",
        "_listeners",
        "_others",
        "_replicated",
        "_state",
        "broker_id",
        "low_watermark_waiters",
    )

    def __init__(self, log: Log, facts: LeaderFacts, context: LeaderContext) -> None:
        super().__init__(log, facts.topic_id)
        self._context = context
        self.broker_id: BrokerId = facts.leader
        self._acked_end = log.log_end
        """Everything below is as durable as the topic requires, so acks=1 may be answered."""
        self._flushes = 0
        """Appends whose flush is not done yet."""
        self._acknowledged: deque[Waiter] = deque()
        self._replicated: deque[Waiter] = deque()
        self.low_watermark_waiters: dict[LowWatermarkWaiter, None] = {}
        self._listeners: list[LeadershipListener] = []
        self._others: LeaderReplicas | None = None
        """None: this broker is the only replica."""
        self._lead(facts)

    def __repr__(self) -> str:
        return f"Partition({self.partition}, epoch {self.leader_epoch})"

    # -- facts -----------------------------------------------------------------------------

    @property
    def state(self) -> LeaderState:
        """Replicas and in-sync replicas, by the metadata or the controller's last answer."""
        return self._state if self._others is None else self._others.state

    @property
    def others(self) -> LeaderReplicas | None:
        """The followers; None where this broker is the only replica."""
        return self._others

    def can_be_replaced(self) -> bool:
        """Whether another replica is in sync: it has what is committed, and can lead."""
        return len(self.state.isr) > 1

    def configure(self, facts: LeaderFacts) -> None:
        """Apply changed metadata; a leader epoch only goes up (I-15)."""
        invariant(
            facts.leader_epoch >= self.leader_epoch,
            "I-15 a leader epoch went down",
            partition=self.partition,
            ours=self.leader_epoch,
            theirs=facts.leader_epoch,
        )
        self._lead(facts)

    def _lead(self, facts: LeaderFacts) -> None:
        state, now_s = facts.state, self._context.cluster.monotonic_s()
        is_new = facts.leader_epoch != self.leader_epoch
        if is_new:
            self.leader_epoch = facts.leader_epoch
            self.log.start_leading(facts.leader_epoch, after_write=self.after_write)
            self._epoch_start = self.log.log_end
        self._state = state
        others = self._others
        if others is not None:
            others.configure(state, epoch_start=self._epoch_start, now_s=now_s)
        elif len(state.replicas) > 1:
            self._others = LeaderReplicas(
                self.broker_id,
                state,
                epoch_start=self._epoch_start,
                now_s=now_s,
                epoch_of=self._context.cluster.epoch_of,
            )
        self._on_state()
        if is_new:
            for listener in self._listeners:
                listener.leadership_gained(self, self.leader_epoch)
            self._wake_all()  # fetches of the old epoch must be answered

    def _on_state(self) -> None:
        """The in-sync replicas, or how many are required, may have changed."""
        state = self.state
        self.slot.allows_fast_path_acks_all = is_enough = len(state.isr) >= state.effective_min_isr
        if not is_enough:
            error = NotEnoughReplicasAfterAppend(
                self.partition, in_sync=len(state.isr), required=state.effective_min_isr
            )
            _fail(self._replicated, None, error)
            if self.slot.fail_waiting(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
                self._context.wake(self)
        self._notify_low_watermark_waiters()  # a replica that was waited for may be dead
        self._replicate()

    def _wake_all(self) -> None:
        if self.readers or self.follower_readers:
            self.has_updates = True
            self._context.wake(self)

    def watch_leadership(self, listener: LeadershipListener) -> None:
        """Notify the listener of every change, and of the current leadership at once."""
        self._listeners.append(listener)
        listener.leadership_gained(self, self.leader_epoch)

    # -- append ----------------------------------------------------------------------------

    def append(
        self,
        records: bytes | bytearray | memoryview | CheckedRecords,
        *,
        acks: int,
        done: AppendDone,
        origin: Origin = Origin.CLIENT,
        allowance: Allowance | None = None,
    ) -> None:
        """Write; `done` is called once: at once, or when flush and high watermark allow it.

        TooLargeForNow is raised, and `done` not called, where the batches decompress to more than
        the allowance: the caller has them checked in a worker thread and appends again.
        """
        try:
            if acks == ACKS_ALL:
                self._check_replicas()
            appended = self.log.append_as_leader(
                records, leader_epoch=self.leader_epoch, origin=origin, allowance=allowance
            )
        except OperatingError as error:
            self._wake_if_failed()
            done(AppendOutcome(log_start=self.log.log_start, error=self._producer_error(error)))
            return
        if not appended.is_duplicate:
            self.after_write()
        outcome = AppendOutcome(
            appended.base_offset,
            appended.last_offset,
            appended.append_time_ms,
            self.log.log_start,
            appended.is_duplicate,
        )
        end = Offset(appended.last_offset + 1)
        if end <= (self.log.high_watermark if acks == ACKS_ALL else self._acked_end):
            done(outcome)
            return
        # A duplicate waits as well: the original may not be durable yet, and the answer to a retry
        # promises just as much (I-01).
        waiting = self._replicated if acks == ACKS_ALL else self._acknowledged
        waiting.append((end, partial(_finish, done, outcome)))

    def append_now(
        self, records: bytes | bytearray | memoryview, *, origin: Origin = Origin.COORDINATOR
    ) -> AppendOutcome:
        """Append as with acks=-1 without waiting; raises OperatingError, with nothing written."""
        try:
            self._check_replicas()
            appended = self.log.append_as_leader(
                records, leader_epoch=self.leader_epoch, origin=origin
            )
        except OperatingError:
            self._wake_if_failed()
            raise
        self.after_write()
        return AppendOutcome(
            appended.base_offset,
            appended.last_offset,
            appended.append_time_ms,
            self.log.log_start,
        )

    def after_write(self) -> None:
        """Batches were written to the log: advance the acked end once they are durable enough."""
        log = self.log
        if self.follower_readers:
            self._context.wake(self)
        if not self._flushes and log.unflushed_records < log.config.flush_messages:
            self._advance_acked_end(self.slot.log_end)
            return
        # Kafka's acknowledgement implies the flush that the topic requires. Appends during a flush
        # join the next one: an earlier record must not be acknowledged later than a newer one.
        self._flushes += 1
        self._context.flush(log, partial(self._flushed, log.log_end))

    def _flushed(self, end: Offset, error: OperatingError | None) -> None:
        self._flushes -= 1
        if self._is_closed:
            return
        if error is None:
            self._advance_acked_end(end)
            return
        for waiting in (self._acknowledged, self._replicated):
            _fail(waiting, end, error)
        if self.slot.fail_waiting(ErrorCode.KAFKA_STORAGE_ERROR):
            self._context.wake(self)
        self._wake_if_failed()

    def _advance_acked_end(self, end: Offset) -> None:
        if end <= self._acked_end:
            return
        self._acked_end = end
        if self._acknowledged:
            _wake(self._acknowledged, end)
        if self._others is None:
            self._advance_high_watermark(end)
        else:
            self._replicate()

    def _replicate(self) -> None:
        """Move the high watermark to where all in-sync replicas are (I-09)."""
        others = self._others
        self._advance_high_watermark(
            self._acked_end if others is None else others.high_watermark(self._acked_end)
        )

    def _advance_high_watermark(self, end: Offset) -> None:
        """It never goes down (I-06): a truncated follower is behind what is committed already."""
        slot = self.slot
        if end <= slot.high_watermark:
            return
        has_waiting = slot.waiting
        self.log.set_high_watermark(end)
        if self._replicated:
            _wake(self._replicated, slot.high_watermark)
        for listener in self._listeners:
            listener.high_watermark_moved(self)
        if self.readers or has_waiting:
            self.has_updates = True
            self._context.wake(self)

    def _check_replicas(self) -> None:
        state = self.state
        if len(state.isr) < state.effective_min_isr:
            raise NotEnoughReplicas(
                self.partition, in_sync=len(state.isr), required=state.effective_min_isr
            )

    def _producer_error(self, error: OperatingError) -> OperatingError:
        """The error that a refused producer gets.

        While cut off from the coordination service there may be another leader, which has what is
        missing here (I-18). A producer that gets OUT_OF_ORDER_SEQUENCE_NUMBER starts over and
        writes its unanswered records twice (I-20); one that gets NOT_LEADER_OR_FOLLOWER finds the
        new leader.
        """
        if isinstance(error, OutOfOrderSequence) and not self._context.cluster.may_propose():
            return NotLeader(self.partition)
        return without_frames(error)

    def _wake_if_failed(self) -> None:
        """A failed log directory must also fail the fetches that wait for records."""
        if self.log.failure is not None:
            self._wake_all()

    # -- followers, and what they have ------------------------------------------------------

    def check_high_watermark_known(self) -> None:
        """Raise OffsetNotAvailable while it may still be below the previous leader's."""
        if self._others is not None and self.slot.high_watermark < self._epoch_start:
            raise OffsetNotAvailable(self.partition)

    def check_follower(
        self, replica_id: BrokerId, broker_epoch: BrokerEpoch, *, named_epoch: int
    ) -> None:
        """Raise what Kafka answers a broker that is no replica, or an older incarnation of one.

        With UnknownReplica the follower takes our metadata for stale, with NotLeader its own.
        """
        others = self._others
        if others is None or others.progress_of(replica_id) is None:
            if named_epoch >= 0:
                raise UnknownReplica(self.partition, replica_id)
            raise NotLeader(self.partition)
        if others.is_stale(replica_id, broker_epoch):
            raise NotLeader(self.partition)

    def follower_fetched(self, fetch: FollowerFetch) -> None:
        """Record the fetch of a follower that was checked: it has everything before `offset`."""
        others, slot = self._others, self.slot
        if others is None or not slot.log_start <= fetch.offset <= slot.log_end:
            return
        cluster = self._context.cluster
        now_s = cluster.monotonic_s()
        if not others.note_fetch(fetch, leader_end=slot.log_end, now_s=now_s):
            return
        self._notify_low_watermark_waiters()
        if fetch.broker_id not in others.maximal_isr:
            others.update_catching_up(own_end=slot.log_end, now_s=now_s, lag_s=cluster.lag_max_s())
            self._propose(now_s)
        self._replicate()

    @property
    def low_watermark(self) -> Offset:
        """Below it no live replica has any records."""
        others, start = self._others, self.log.log_start
        return start if others is None else others.low_watermark(start)

    def start_moved(self) -> None:
        """Records were deleted: waiting follower fetches are answered without new records."""
        if self.follower_readers:
            self._context.wake(self)

    def _notify_low_watermark_waiters(self) -> None:
        for waiter in list(self.low_watermark_waiters):
            waiter.low_watermark_moved(self)

    def check_lag(self) -> None:
        """Periodically: propose to remove the followers that have been behind for too long."""
        others = self._others
        if others is None or self._is_closed:
            return
        cluster = self._context.cluster
        now_s = cluster.monotonic_s()
        others.update_catching_up(own_end=self.slot.log_end, now_s=now_s, lag_s=cluster.lag_max_s())
        others.note_caught_up(self.slot.log_end, now_s)
        self._propose(now_s)
        self._replicate()

    def _propose(self, now_s: float) -> None:
        others, cluster = self._others, self._context.cluster
        if others is None or others.is_proposing or cluster.proposals is None:
            return
        if self._is_closed or not cluster.may_propose():
            return  # I-18: while cut off from the coordination service nothing is changed
        slot = self.slot
        change = others.next_proposal(
            high_watermark=slot.high_watermark,
            own_end=slot.log_end,
            now_s=now_s,
            lag_s=cluster.lag_max_s(),
        )
        if change is None:
            return
        others.note_proposed(change)
        cluster.note_isr_change(before=len(others.state.isr), after=len(change.isr))
        cluster.proposals.propose(
            IsrProposal(
                self.partition,
                self.topic_id,
                change.leader_epoch,
                change.partition_epoch,
                change.isr,
            ),
            partial(self._on_isr_answer, change),
        )

    def _on_isr_answer(self, proposed: ProposedIsr, answer: IsrAnswer) -> None:
        others, now_s = self._others, self._context.cluster.monotonic_s()
        if self._is_closed or others is None:
            return
        if others.answered(proposed, answer, now_s):
            self._on_state()
            self._propose(now_s)  # one proposal at a time: the next may be due

    # -- the end ---------------------------------------------------------------------------

    def close(self, error: OperatingError | None = None) -> None:
        """This broker no longer leads it: all waiting requests are failed."""
        if self._is_closed:
            return
        self._is_closed = True
        self.log.stop_leading()
        self.slot.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        reason = error or UnknownPartition(self.partition)
        self.has_updates = True
        for waiting in (self._acknowledged, self._replicated):
            _fail(waiting, None, reason)
        self._notify_low_watermark_waiters()
        for listener in self._listeners:
            listener.leadership_lost(self)
        self._listeners.clear()
        # Also without readers: answers of the connection core may have become ready.
        self._context.wake(self)


def _finish(done: AppendDone, outcome: AppendOutcome, error: OperatingError | None) -> None:
    done(outcome if error is None else AppendOutcome(log_start=outcome.log_start, error=error))


def _wake(waiting: deque[Waiter], end: Offset) -> None:
    while waiting and waiting[0][0] <= end:
        waiting.popleft()[1](None)


def _fail(waiting: deque[Waiter], end: Offset | None, error: OperatingError) -> None:
    """Fail those that wait for something up to `end`; all of them where it is None."""
    while waiting and (end is None or waiting[0][0] <= end):
        waiting.popleft()[1](error)

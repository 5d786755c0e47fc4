"""A partition that this broker follows: what to ask its leader for, and what an answer means.

Nothing here waits. A fetch names the leader epoch that the follower believes in and the epoch of
its last record; the leader answers with records only where the two logs agree so far. So every
answer with records of the current epoch is also the reconciliation in that epoch (I-12).
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from millstream.model.errors import OperatingError, StorageFailed
from millstream.model.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
)
from millstream.model.invariant import invariant
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.readable import ReadableReplica
from millstream.storage.epochs import EpochEnd
from millstream.storage.flush import FlushDone
from millstream.storage.log.log import Log
from millstream.wire.errors import ErrorCode

NO_LEADER: Final = BrokerId(-1)


class FollowerState(NamedTuple):
    """What the metadata says of a partition that another broker leads."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    leader: BrokerId
    """NO_LEADER where nobody can lead it."""
    is_in_sync: bool = True
    """Whether this broker is."""


class Asked(NamedTuple):
    """What the leader is asked for; an answer counts only while this is still so."""

    leader_epoch: LeaderEpoch
    offset: Offset
    """Everything below it is here: asking is acknowledging."""
    last_epoch: LeaderEpoch
    log_start: Offset


class FetchedPart(NamedTuple):
    """What a leader answered of one partition."""

    error: int
    high_watermark: int
    log_start: int
    diverging: EpochEnd | None
    """The leader's largest epoch not above our last, and where that ends in its log."""
    records: memoryview | bytes


class Next(Enum):
    """What to do with the partition after an answer."""

    ASK = auto()
    """Go on."""
    WAIT = auto()
    """Until a flush is done: then `FollowerContext.ready` is called."""
    VOID = auto()
    """The answer was to something else, and what it told is lost: the leader must tell it again."""
    BACK_OFF = auto()
    """Later, for the same may happen again."""
    METADATA = auto()
    """Not before the metadata names another leader epoch."""
    OUT_OF_RANGE = auto()
    """Find out where the leader's log begins and ends, then `begin_anew`."""
    FAILED = auto()
    """Its log cannot be used before a restart."""


class FollowerCounts:
    """Of all followed partitions of a broker."""

    __slots__ = ("bytes_in", "truncations", "unclean_truncations")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.truncations = 0
        self.unclean_truncations = 0
        """Below the high watermark: after an unclean election records that counted are gone."""


class FollowerContext(NamedTuple):
    """What all followed partitions share."""

    flush: Callable[[Log, FlushDone], None]
    wake: Callable[["Follower"], None]
    """Let the readers of the partition look again, soon."""
    counts: FollowerCounts
    cluster: ReplicationDependencies
    ready: Callable[["Follower"], None]
    """A flush is done that was waited for: more may be fetched."""


class Follower(ReadableReplica):
    """See the module's docstring. Consumers may read it as far as it knows to be replicated."""

    __slots__ = (
        "_context",
        "_flushes",
        "last_error",
        "state",
    )

    def __init__(
        self, log: Log, topic_id: TopicId, state: FollowerState, context: FollowerContext
    ) -> None:
        super().__init__(log, topic_id)
        self.state = state
        self.leader_epoch = state.leader_epoch
        self._context = context
        self._flushes = 0
        self.last_error: OperatingError | int | None = None
        """Why it is not followed right now; a number is the leader's."""

    def __repr__(self) -> str:
        return f"Follower({self.partition}, {self.state})"

    @property
    def is_limited(self) -> bool:
        """Whether what it gets counts for the throttle, and waits for it."""
        return self.is_throttled and not self.state.is_in_sync

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def follow(self, state: FollowerState) -> None:
        """Another leader, or another epoch of it; what was asked before is void."""
        invariant(
            state[:2] >= self.state[:2],
            "I-15 a partition's state went back",
            partition=self.partition,
            ours=self.state,
            theirs=state,
        )
        self.state = state
        self.leader_epoch = state.leader_epoch
        self._tell_readers()

    def close(self) -> None:
        """This broker follows it no longer: answers that come later are not for it."""
        self._is_closed = True
        self._tell_readers()

    def _tell_readers(self) -> None:
        if self.readers:
            self.has_news = True
            self._context.wake(self)

    # -- asking ----------------------------------------------------------------------------

    def ask(self) -> Asked | None:
        """What to ask for now; None while a flush is under way, or nobody leads."""
        if self._is_closed or self._flushes or self.state.leader == NO_LEADER:
            return None
        log = self.log
        return Asked(self.state.leader_epoch, log.log_end, log.latest_epoch, log.log_start)

    def prepare(self) -> Next:
        """Before the first request in an epoch. A log of records without epochs cannot be
        compared: only what is below the high watermark is known to agree (KIP-101).
        """
        log = self.log
        if log.latest_epoch != NO_LEADER_EPOCH or log.log_end == log.high_watermark:
            return Next.ASK
        try:
            self._cut(log.high_watermark)
        except OperatingError as error:
            return self._after(error)
        return Next.ASK

    # -- answers ---------------------------------------------------------------------------

    def take(self, asked: Asked, part: FetchedPart) -> Next:
        """Do what the answer says. Of a request that is not what would be asked now: nothing."""
        if asked != self.ask():
            return Next.VOID
        try:
            if part.error:
                return self._refused(part.error)
            if part.diverging is not None:
                self._truncate(part.diverging)
                return Next.ASK
            if len(part.records):
                self._append(asked, part.records)
            self._follow_marks(part)
        except OperatingError as error:
            return self._after(error)
        self.last_error = None
        return self._flush_if_due()

    def _append(self, asked: Asked, records: memoryview | bytes) -> None:
        log = self.log
        invariant(
            asked.leader_epoch == self.state.leader_epoch and asked.offset == log.log_end,
            "I-12 records of a leader whose log was not compared with ours",
            partition=self.partition,
            asked=asked,
            log_end=log.log_end,
        )
        # Ranges leave from the file. Who was deposed, truncates its log and follows another while
        # our answer is under way may send us its own batches and then that leader's, and with
        # those nobody would see later that the logs differ before them.
        log.append_as_follower(records, is_cut=True, epoch_max=asked.leader_epoch)
        self._context.counts.bytes_in += len(records)

    def _follow_marks(self, part: FetchedPart) -> None:
        """What counted stays counted: a new leader may know less of it for a while (I-06)."""
        log = self.log
        high = Offset(min(part.high_watermark, log.log_end))
        if high > log.high_watermark:
            log.set_high_watermark(high)
            self._tell_readers()
        start = Offset(min(part.log_start, log.high_watermark))
        if start > log.log_start:
            log.advance_log_start(start)

    def _flush_if_due(self) -> Next:
        """Asking for more acknowledges what came: not before it is as durable as asked for."""
        log = self.log
        if log.unflushed_records < log.config.flush_messages:
            return Next.ASK
        self._flushes += 1
        self._context.flush(log, self._flushed)
        return Next.WAIT if self._flushes else Next.ASK

    def _flushed(self, error: OperatingError | None) -> None:
        self._flushes -= 1
        self.last_error = error
        if not self._is_closed:
            self._context.ready(self)

    # -- truncation ------------------------------------------------------------------------

    def _truncate(self, theirs: EpochEnd) -> None:
        """Cut back to where the logs may agree; the next answer tells whether they do.

        KIP-279: where we do not have the leader's epoch at all our largest one below it is the
        next candidate, and so on back.
        """
        log = self.log
        ours = log.end_offset_for_epoch(theirs.epoch)
        if theirs.end_offset < 0:
            target = log.high_watermark  # it knows nothing of such epochs: an old log of Kafka's
        elif ours.epoch < 0 or ours.epoch == theirs.epoch:
            target = Offset(min(theirs.end_offset, log.log_end))
            if ours.epoch == theirs.epoch:
                target = min(target, ours.end_offset)
        else:
            target = min(ours.end_offset, log.log_end)
        if target >= log.log_end:
            # No leader of ours says so: with nothing to cut the same answer would come for ever.
            raise OperatingError(f"{self.partition} parts at {theirs}, and ends at {log.log_end}")
        self._cut(target)

    def _cut(self, target: Offset) -> None:
        log, counts = self.log, self._context.counts
        high = log.high_watermark
        counts.truncations += 1
        if target < log.log_start:
            log.truncate_fully(target)
        else:
            # Only the leader's word brings us here with less than what counted (I-08).
            log.truncate_to(target, is_unclean=target < high)
        if log.log_end < high:
            counts.unclean_truncations += 1
            self._context.cluster.on_unclean(self.partition, high, log.log_end)

    def begin_anew(self, *, leader_start: Offset, leader_end: Offset) -> Next:
        """After OUT_OF_RANGE: as Kafka, keep what the leader may have too, or begin at its start.

        The caller has asked in the epoch of `state`, and that has not changed since.
        """
        log = self.log
        try:
            if leader_end < log.log_end:
                self._cut(leader_end)
            elif log.log_end < leader_start:
                self._context.counts.truncations += 1
                log.truncate_fully(leader_start)
                log.set_high_watermark(leader_start)
        except OperatingError as error:
            return self._after(error)
        # Where neither holds, the leader has our end by now, or tells in its next answer.
        return Next.ASK

    # -- errors ----------------------------------------------------------------------------

    def _refused(self, code: int) -> Next:
        self.last_error = code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return Next.OUT_OF_RANGE
        if code == ErrorCode.FENCED_LEADER_EPOCH:
            return Next.METADATA
        return Next.BACK_OFF

    def _after(self, error: OperatingError) -> Next:
        self.last_error = error
        if isinstance(error, StorageFailed) or self.log.failure is not None:
            return Next.FAILED
        return Next.BACK_OFF

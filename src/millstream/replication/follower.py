"""A partition that this broker follows: what to fetch from its leader, and what a response means.

Nothing here waits. A fetch names the follower's current leader epoch and the epoch of its last
record; the leader sends records only where the two logs agree up to there. So every response with
records in the current epoch is also the reconciliation for that epoch (I-12).
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
    """What the metadata says about a partition that another broker leads."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    leader: BrokerId
    """NO_LEADER where no replica can lead it."""
    is_in_sync: bool = True
    """Whether this broker is in sync."""


class FetchPosition(NamedTuple):
    """What is fetched from the leader; a response is valid only while this is unchanged."""

    leader_epoch: LeaderEpoch
    offset: Offset
    """Everything below it is in this log: a fetch is also an acknowledgement."""
    last_epoch: LeaderEpoch
    log_start: Offset


class FetchedPart(NamedTuple):
    """A leader's response for one partition."""

    error: int
    high_watermark: int
    log_start: int
    diverging: EpochEnd | None
    """The leader's largest epoch not above our last one, and where that epoch ends in its log."""
    records: memoryview | bytes


class Next(Enum):
    """What to do with the partition after a response."""

    FETCH = auto()
    """Fetch more."""
    WAIT = auto()
    """Wait until a flush is done: then `FollowerContext.ready` is called."""
    VOID = auto()
    """The response was to an obsolete position and is dropped: the leader must send its content
    again."""
    BACK_OFF = auto()
    """Fetch later: the same error may happen again."""
    METADATA = auto()
    """Fetch only once the metadata names another leader epoch."""
    OUT_OF_RANGE = auto()
    """Find out where the leader's log begins and ends, then call `resume_out_of_range`."""
    FAILED = auto()
    """The log cannot be used before a restart."""


class FollowerCounts:
    """Counters over all followed partitions of a broker."""

    __slots__ = ("bytes_in", "truncations", "unclean_truncations")

    def __init__(self) -> None:
        self.bytes_in = 0
        self.truncations = 0
        self.unclean_truncations = 0
        """Truncations below the high watermark: after an unclean election committed records are
        gone."""


class FollowerContext(NamedTuple):
    """What all followed partitions share."""

    flush: Callable[[Log, FlushDone], None]
    wake: Callable[["Follower"], None]
    """Let the waiting fetches of the partition check again, soon."""
    counts: FollowerCounts
    cluster: ReplicationDependencies
    ready: Callable[["Follower"], None]
    """Called when a flush is done that was waited for: more may be fetched."""


class Follower(ReadableReplica):
    """See the module's docstring. Consumers may read it up to the high watermark that it knows."""

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
        """Why fetching it fails right now; a number is the leader's error code."""

    def __repr__(self) -> str:
        return f"Follower({self.partition}, {self.state})"

    @property
    def is_limited(self) -> bool:
        """Whether its fetches are subject to the replication throttle."""
        return self.is_throttled and not self.state.is_in_sync

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    def can_be_replaced(self) -> bool:
        """Whether what is damaged here can be fetched again."""
        return self.state.leader != NO_LEADER

    def follow(self, state: FollowerState) -> None:
        """Follow another leader, or another epoch of it; fetches sent before are obsolete."""
        invariant(
            state[:2] >= self.state[:2],
            "I-15 a partition's state went back",
            partition=self.partition,
            ours=self.state,
            theirs=state,
        )
        self.state = state
        self.leader_epoch = state.leader_epoch
        self._notify_readers()

    def close(self) -> None:
        """This broker no longer follows it: responses that arrive later are dropped."""
        self._is_closed = True
        self._notify_readers()

    def _notify_readers(self) -> None:
        if self.readers:
            self.has_updates = True
            self._context.wake(self)

    # -- fetching --------------------------------------------------------------------------

    def fetch_position(self) -> FetchPosition | None:
        """What to fetch next; None while a flush is under way, or the partition has no leader."""
        if self._is_closed or self._flushes or self.state.leader == NO_LEADER:
            return None
        log = self.log
        return FetchPosition(self.state.leader_epoch, log.log_end, log.latest_epoch, log.log_start)

    def prepare(self) -> Next:
        """Prepare the log for the first fetch in an epoch. A log of records without epochs cannot
        be compared with the leader's: only what is below the high watermark is known to agree
        (KIP-101).
        """
        log = self.log
        if log.latest_epoch != NO_LEADER_EPOCH or log.log_end == log.high_watermark:
            return Next.FETCH
        try:
            self._cut(log.high_watermark)
        except OperatingError as error:
            return self._after(error)
        return Next.FETCH

    # -- answers ---------------------------------------------------------------------------

    def take(self, position: FetchPosition, part: FetchedPart) -> Next:
        """Apply a response; one to an obsolete position changes nothing."""
        if position != self.fetch_position():
            return Next.VOID
        try:
            if part.error:
                return self._refused(part.error)
            if part.diverging is not None:
                self._truncate(part.diverging)
                return Next.FETCH
            if len(part.records):
                self._append(position, part.records)
            self._follow_marks(part)
        except OperatingError as error:
            return self._after(error)
        self.last_error = None
        return self._flush_if_due()

    def _append(self, position: FetchPosition, records: memoryview | bytes) -> None:
        log = self.log
        invariant(
            position.leader_epoch == self.state.leader_epoch and position.offset == log.log_end,
            "I-12 records of a leader whose log was not compared with ours",
            partition=self.partition,
            position=position,
            log_end=log.log_end,
        )
        # Leaders send ranges straight from the file. A leader that is deposed, truncates its log
        # and follows another one while our response is under way may send its own batches followed
        # by the new leader's, and then no later comparison would show that the logs differ before
        # them.
        log.append_as_follower(records, is_cut=True, epoch_max=position.leader_epoch)
        self._context.counts.bytes_in += len(records)

    def _follow_marks(self, part: FetchedPart) -> None:
        """The high watermark never goes back: a new leader may know less for a while (I-06)."""
        log = self.log
        high = Offset(min(part.high_watermark, log.log_end))
        if high > log.high_watermark:
            log.set_high_watermark(high)
            self._notify_readers()
        start = Offset(min(part.log_start, log.high_watermark))
        if start > log.log_start:
            log.advance_log_start(start)

    def _flush_if_due(self) -> Next:
        """The next fetch acknowledges what arrived: not before it is as durable as the topic
        requires.
        """
        log = self.log
        if log.unflushed_records < log.config.flush_messages:
            return Next.FETCH
        self._flushes += 1
        self._context.flush(log, self._flushed)
        return Next.WAIT if self._flushes else Next.FETCH

    def _flushed(self, error: OperatingError | None) -> None:
        self._flushes -= 1
        self.last_error = error
        if not self._is_closed:
            self._context.ready(self)

    # -- truncation ------------------------------------------------------------------------

    def _truncate(self, theirs: EpochEnd) -> None:
        """Truncate to where the logs may agree; the next response shows whether they do.

        KIP-279: where we do not have the leader's epoch at all our largest one below it is the
        next candidate, and so on back.
        """
        log = self.log
        ours = log.end_offset_for_epoch(theirs.epoch)
        if theirs.end_offset < 0:
            target = log.high_watermark  # the leader has no such epochs: an old log of Kafka's
        elif ours.epoch < 0 or ours.epoch == theirs.epoch:
            target = Offset(min(theirs.end_offset, log.log_end))
            if ours.epoch == theirs.epoch:
                target = min(target, ours.end_offset)
        else:
            target = min(ours.end_offset, log.log_end)
        if target >= log.log_end:
            # Our leaders never send this: with nothing to truncate the same response would repeat
            # forever.
            raise OperatingError(
                f"{self.partition} diverges at {theirs}, but ends at {log.log_end}"
            )
        self._cut(target)

    def _cut(self, target: Offset) -> None:
        log, counts = self.log, self._context.counts
        high = log.high_watermark
        counts.truncations += 1
        if target < log.log_start:
            log.truncate_fully(target)
        else:
            # Only the leader's response can require truncation below the high watermark (I-08).
            log.truncate_to(target, is_unclean=target < high)
        if log.log_end < high:
            counts.unclean_truncations += 1
            self._context.cluster.on_unclean(self.partition, high, log.log_end)

    def resume_out_of_range(self, *, leader_start: Offset, leader_end: Offset) -> Next:
        """After OUT_OF_RANGE: as Kafka, keep what the leader may also have, or begin at its log
        start.

        The caller found the offsets in the epoch of `state`, which has not changed since.
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
        # Where neither holds, the leader has our end by now, or its next response shows otherwise.
        return Next.FETCH

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

"""A replica of a partition that can be read, whether this broker leads or follows it."""

from typing import Any, Protocol

from millstream.kernels.slots import NOTHING_NEW
from millstream.model.errors import FencedLeaderEpoch
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.replication.errors import UnknownLeaderEpoch
from millstream.storage.epochs import UNDEFINED_EPOCH_END, EpochEnd
from millstream.storage.log.log import Log, ReadResult
from millstream.storage.log.reader import EMPTY_SLICE, Isolation, ReadSlice


class Reader(Protocol):
    """A fetch that waits for more to read."""

    def progressed(self, mark: Any) -> None:
        """The high watermark moved, or there is an error to report; `mark` as it was stored."""


class ReadableReplica:
    """What a leader and a follower have in common."""

    __slots__ = (
        "_is_closed",
        "bytes_out",
        "bytes_to_followers",
        "follower_readers",
        "has_updates",
        "is_throttled",
        "leader_epoch",
        "log",
        "partition",
        "readers",
        "slot",
        "topic_id",
    )

    def __init__(self, log: Log, topic_id: TopicId) -> None:
        self.log = log
        self.slot = log.slot
        """The log's numbers; reading them here is several times faster than through the log."""
        self.partition: TopicPartition = log.partition
        self.topic_id: TopicId = topic_id
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.readers: dict[Reader, Any] = {}
        """Fetches that wait, each with a mark of its own; a dictionary because they leave in any
        order."""
        self.follower_readers: dict[Reader, Any] = {}
        """Fetches of followers, which wait for the log's end and not for the high watermark."""
        self.has_updates = False
        """Whether `readers` must check again; follower fetches check whenever they are woken."""
        self.bytes_out = 0
        """Record bytes handed to consumers."""
        self.bytes_to_followers = 0
        self.is_throttled = False
        """Whether copies of it to replicas that are not in sync are limited (KIP-73)."""
        self._is_closed = False

    def count_out(self, size_bytes: int, *, is_follower: bool) -> None:
        """Record bytes were handed out."""
        if is_follower:
            self.bytes_to_followers += size_bytes
        else:
            self.bytes_out += size_bytes

    # -- facts -----------------------------------------------------------------------------

    @property
    def log_start(self) -> Offset:
        return self.slot.log_start

    @property
    def log_end(self) -> Offset:
        return self.slot.log_end

    @property
    def high_watermark(self) -> Offset:
        return self.slot.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        return self.log.last_stable_offset

    def check_leader_epoch(self, current: int) -> None:
        """Check the leader epoch that the client names against ours; -1 names none (KIP-320)."""
        if current in (-1, self.leader_epoch):
            return
        ours, theirs = self.leader_epoch, LeaderEpoch(current)
        if current < ours:
            raise FencedLeaderEpoch(ours=ours, theirs=theirs)
        raise UnknownLeaderEpoch(ours=ours, theirs=theirs)

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

        Call it only while the log's slot `is_decided` and this replica is usable.
        """
        slot = self.slot
        position = slot.tail(offset, size_max)
        if position >= 0:
            return ReadSlice(slot.tail_file, position, slot.position - position, is_fresh=True)
        return EMPTY_SLICE if position == NOTHING_NEW else None

    def end_tail(self, offset: int, size_max: int) -> ReadSlice | None:
        """The same for a follower: everything, wherever the high watermark is."""
        slot = self.slot
        position = slot.end_tail(offset, size_max)
        if position >= 0:
            return ReadSlice(slot.tail_file, position, slot.position - position, is_fresh=True)
        return EMPTY_SLICE if position == NOTHING_NEW else None

    def visible_end(self, isolation: Isolation) -> Offset:
        """Where the view of a reader with this isolation ends (I-07)."""
        slot = self.slot
        if isolation is Isolation.LOG_END:
            return Offset(slot.log_end)
        if isolation is Isolation.HIGH_WATERMARK or slot.is_decided:
            return Offset(slot.high_watermark)
        return self.log.last_stable_offset

    @property
    def is_usable(self) -> bool:
        """Whether it is still led or followed as it was created, and its log has not failed."""
        return not self._is_closed and self.log.failure is None

    def end_of_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        """Where an epoch ended, for comparing logs (KIP-101, KIP-279, KIP-320).

        Kafka's leader notes its epoch when it is elected, ours with the first batch: in between
        the log's end is where the leader's epoch begins.
        """
        if epoch < 0:
            return UNDEFINED_EPOCH_END
        newest = self.log.latest_epoch
        if not newest < epoch <= self.leader_epoch:
            return self.log.end_offset_for_epoch(epoch)
        is_own = epoch == self.leader_epoch or newest == NO_LEADER_EPOCH
        return EpochEnd(epoch if is_own else newest, self.log.log_end)

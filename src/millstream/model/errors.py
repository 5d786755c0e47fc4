"""What can go wrong while operating, as types that carry what the caller needs to recover.

These are operating errors, not bugs (bugs are `InvariantViolated`). One place in the broker turns
them into wire codes.
"""

from collections.abc import Mapping
from typing import TypeVar

from millstream.model.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
)

E = TypeVar("E", bound=BaseException)


class OperatingError(Exception):
    """Base of every error that is caused by the outside world, not by our code."""


def without_frames(error: E) -> E:
    """The error without the frames it was raised through, and without those of its causes.

    For every error that is kept, returned or sent instead of raised on. Frames keep what a request
    brought: a batch that decompressed to 64 MiB, the list of a million results that this error is
    an item of. Such a list, in a frame of its own item, is a cycle: it stays until a collection of
    all objects, which a broker runs once an hour.
    """
    one: BaseException | None = error
    while one is not None:
        cause = one.__cause__ or one.__context__
        one.__traceback__ = one.__cause__ = one.__context__ = None
        one = cause
    return error


class OffsetOutOfRange(OperatingError):
    """An offset below the log's start or above its end."""

    def __init__(self, *, requested: Offset, start: Offset, end: Offset) -> None:
        self.requested, self.start, self.end = requested, start, end
        super().__init__(f"offset {requested} is outside [{start}, {end}]")


class CorruptRecords(OperatingError):
    """A batch that does not verify: refused on append, cut off in recovery."""


class InvalidRecords(OperatingError):
    """A batch that verifies but breaks a rule: offsets, timestamps, missing keys, counts."""


class BatchTooLarge(OperatingError):
    """A batch above `max.message.bytes` or above the segment's size."""

    def __init__(self, *, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes
        super().__init__(f"batch of {size_bytes} bytes, the limit is {limit_bytes}")


class OutOfOrderSequence(OperatingError):
    """A gap in a producer's sequence numbers: accepting it would lose or reorder records."""


class StaleProducerEpoch(OperatingError):
    """A batch or marker of an older incarnation of the producer (I-21)."""

    def __init__(
        self, *, producer_id: ProducerId, ours: ProducerEpoch, theirs: ProducerEpoch
    ) -> None:
        self.producer_id, self.ours, self.theirs = producer_id, ours, theirs
        super().__init__(f"producer {producer_id}: epoch {theirs} is older than {ours}")


class InvalidTransactionState(OperatingError):
    """A transactional batch or marker that does not fit the producer's state."""


class UnexpectedAppendOffset(OperatingError):
    """A follower was handed batches that do not continue its log."""

    def __init__(self, *, expected: Offset, got: Offset) -> None:
        self.expected, self.got = expected, got
        super().__init__(f"log ends at {expected}, batch starts at {got}")


class FencedLeaderEpoch(OperatingError):
    """A request of an older leader epoch than ours."""

    def __init__(self, *, ours: LeaderEpoch, theirs: LeaderEpoch) -> None:
        self.ours, self.theirs = ours, theirs
        super().__init__(f"leader epoch {theirs} is older than {ours}")


class StorageFailed(OperatingError):
    """The log directory of this partition failed; the partition is offline on this broker."""

    def __init__(self, directory: str, cause: str) -> None:
        self.directory, self.cause = directory, cause
        super().__init__(f"log directory {directory} failed: {cause}")


class AllDirectoriesFailed(OperatingError):
    """Nothing is left that this broker could serve."""

    def __init__(self, causes: Mapping[str, str]) -> None:
        """`causes` by directory."""
        self.causes = causes
        text = "; ".join(f"{path}: {cause}" for path, cause in causes.items())
        super().__init__(f"every log directory failed: {text}")


class UnknownPartition(OperatingError):
    """No such partition on this broker."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        super().__init__(f"{partition} is not on this broker")


class UnknownTopicId(OperatingError):
    """No topic has this id: it was deleted, or this broker has no metadata of it yet."""

    def __init__(self, topic_id: TopicId) -> None:
        self.topic_id = topic_id
        super().__init__(f"there is no topic with id {topic_id}")


class InconsistentTopicId(OperatingError):
    """A partition directory belongs to another incarnation of the topic."""


class LogDirectoryLocked(OperatingError):
    """Another process uses the log directory."""


class InvalidTimestamp(OperatingError):
    """A record's timestamp is too far from the broker's clock for this topic."""


class TooManyOpenFiles(OperatingError):
    """No descriptor left for the call. Nothing was changed; it works again once some are closed."""


class DiskFull(OperatingError):
    """No room for the append. Nothing was changed; it works again once there is space."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(f"no space left in log directory {directory}")


class LogDirectoryClosed(OperatingError):
    """The log directory was not started, or was closed: without its lock nothing may be touched."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        super().__init__(f"log directory {directory} is not open; call start() first")

"""Where each leader epoch begins in a partition's log, and where it ends.

Followers and consumers ask "where did epoch N end?" to find the point up to which two logs agree
(KIP-101, KIP-279, KIP-320). Kept in memory; `leader-epoch-checkpoint` is its image on disk.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from millstream.model.ids import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from millstream.model.invariant import invariant
from millstream.runtime.disk import Disk, write_all_atomically
from millstream.storage.directories.checkpoints import (
    INT32_MAX,
    INT64_MAX,
    CorruptCheckpoint,
    encode_entries,
    parse_number,
    read_entries,
)


class EpochStart(NamedTuple):
    """The first offset written in an epoch."""

    epoch: LeaderEpoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """The answer to OffsetForLeaderEpoch: the offset after the epoch's last one."""

    epoch: LeaderEpoch
    end_offset: Offset


UNDEFINED_EPOCH_END: Final = EpochEnd(NO_LEADER_EPOCH, NO_OFFSET)


class LeaderEpochs:
    """Epochs and their start offsets, both strictly increasing (I-10).

    `dirty` says that the file is outdated. A new epoch must be saved before its first batch is
    flushed, or a restart would not know it. Truncations may be saved later: the loader
    cuts a stale file from both ends again.
    """

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self) -> None:
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[Offset] = []
        self.dirty = False

    @classmethod
    def load(cls, disk: Disk, path: str) -> Self:
        """Read the file; empty when it is missing. Raises CorruptCheckpoint."""
        loaded = cls()
        for line_number, line in read_entries(disk, path):
            numbers = line.split()
            epoch = parse_number(numbers[0], INT32_MAX) if len(numbers) == 2 else None
            start = parse_number(numbers[1], INT64_MAX) if len(numbers) == 2 else None
            if epoch is None or start is None:
                raise CorruptCheckpoint(path, line_number, f"not 'epoch offset': {line!r}")
            if loaded._epochs and (epoch <= loaded._epochs[-1] or start <= loaded._starts[-1]):
                raise CorruptCheckpoint(path, line_number, f"not above the line before: {line!r}")
            loaded._epochs.append(LeaderEpoch(epoch))
            loaded._starts.append(Offset(start))
        return loaded

    def encode(self) -> bytes:
        """The file's content."""
        self._check_monotonic()
        starts = zip(self._epochs, self._starts, strict=True)
        return encode_entries(f"{epoch} {start}" for epoch, start in starts)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch with an entry; NO_LEADER_EPOCH when there is none."""
        return self._epochs[-1] if self._epochs else NO_LEADER_EPOCH

    @property
    def earliest(self) -> LeaderEpoch:
        """The oldest epoch with an entry; NO_LEADER_EPOCH when there is none."""
        return self._epochs[0] if self._epochs else NO_LEADER_EPOCH

    def entries(self) -> list[EpochStart]:
        """All entries, oldest first."""
        return [EpochStart(*pair) for pair in zip(self._epochs, self._starts, strict=True)]

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """Note that `epoch` begins at `start_offset`; True when that changed anything.

        The latest epoch keeps its start. Otherwise the newest fact wins: later entries that
        contradict it (a higher epoch, or a start at or after this one) describe a log tail that
        no longer exists and are dropped.
        """
        invariant(epoch >= 0 and start_offset >= 0, "I-10 epoch entry below zero", epoch=epoch)
        if self._epochs and epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        kept_count = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        self._keep_first(kept_count)
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True
        return True

    def end_offset_for(self, epoch: LeaderEpoch, log_end: Offset) -> EpochEnd:
        """The largest known epoch <= `epoch` and where it ended.

        Undefined for an epoch above all known ones. Below all known ones: that epoch's data is
        gone from this log, so the answer is where the first known epoch starts.
        """
        if epoch < 0 or not self._epochs:
            return UNDEFINED_EPOCH_END
        if epoch == self._epochs[-1]:
            return EpochEnd(epoch, log_end)
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED_EPOCH_END
        found = self._epochs[above - 1] if above else epoch
        return EpochEnd(found, self._starts[above])

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        """The epoch that wrote `offset`; NO_LEADER_EPOCH below the first entry."""
        above = bisect_right(self._starts, offset)
        return self._epochs[above - 1] if above else NO_LEADER_EPOCH

    def truncate_from_end(self, end_offset: Offset) -> None:
        """Drop the epochs that begin at or after the log's new end."""
        self._keep_first(bisect_left(self._starts, end_offset))
        self._check_monotonic()

    def truncate_from_start(self, start_offset: Offset) -> None:
        """Drop the epochs that end before the log's new start; the one it cuts now begins there."""
        above = bisect_right(self._starts, start_offset)
        if above == 0 or (above == 1 and self._starts[0] == start_offset):
            return
        del self._epochs[: above - 1]
        del self._starts[: above - 1]
        self._starts[0] = start_offset
        self.dirty = True
        self._check_monotonic()

    def clear(self) -> None:
        """Forget every entry: the log starts again."""
        self._keep_first(0)

    def _keep_first(self, count: int) -> None:
        if count < len(self._epochs):
            del self._epochs[count:]
            del self._starts[count:]
            self.dirty = True

    def _check_monotonic(self) -> None:
        invariant(
            all(map(int.__lt__, self._epochs, self._epochs[1:]))
            and all(map(int.__lt__, self._starts, self._starts[1:])),
            "I-10 leader epochs out of order",
            entries=self.entries(),
        )


class EpochFile:
    """The `leader-epoch-checkpoint` of one log, as its writers share it.

    Flush jobs write it in another thread while the owner may truncate and write it too. One of
    them at a time, never an older state over a newer one, and nothing once the log is gone: its
    directory may belong to a new partition by then. While `lock` is held the directory exists.
    """

    __slots__ = ("_images", "_is_retired", "lock", "path", "written")

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.written = 0
        """Number of the newest image in the file."""
        self._images = 0
        self._is_retired = False

    def image(self, epochs: LeaderEpochs) -> "EpochImage":
        """What the file must contain; `epochs` is taken as saved from now on."""
        self._images += 1
        epochs.dirty = False
        return EpochImage(self, self._images, epochs.encode())

    def retire(self) -> None:
        """The log is gone; waits for a writer to end."""
        with self.lock:
            self._is_retired = True

    @property
    def is_retired(self) -> bool:
        return self._is_retired


class EpochImage(NamedTuple):
    """A state of an epoch file on its way to the disk."""

    file: EpochFile
    number: int
    content: bytes

    @property
    def is_wanted(self) -> bool:
        return self.number > self.file.written and not self.file.is_retired


def save_image(disk: Disk, image: EpochImage) -> None:
    """Replace the file, durably. Raises OSError."""
    with image.file.lock:
        write_images(disk, [image])


def write_images(disk: Disk, images: Sequence[EpochImage]) -> set[str]:
    """Replace files whose locks are held, durably; the directories whose names were synced."""
    wanted = [image for image in images if image.is_wanted]
    write_all_atomically(disk, {image.file.path: image.content for image in wanted})
    for image in wanted:
        image.file.written = image.number
    return {image.file.path.rpartition("/")[0] for image in wanted}

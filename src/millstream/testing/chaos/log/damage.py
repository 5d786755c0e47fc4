"""Damage to the files of a killed writer, and the log end that must follow from it."""

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from millstream.kernels import batches
from millstream.runtime.disk import Disk
from millstream.runtime.randomness import Randomness
from millstream.storage import names
from millstream.storage.segments.file_walk import FileWalk


class Damage(Enum):
    """What was done to the files."""

    NONE = "nothing"
    TRUNCATED = "last segment truncated"
    FLIPPED = "byte flipped in the unflushed tail"
    INDEX = "index removed"
    CHECKPOINT = "checkpoint cut or removed"


class BatchLocation(NamedTuple):
    """The position of a batch and its offsets, [first, end)."""

    segment: int
    position: int
    size: int
    first: int
    end: int
    producer_id: int


class LogFiles(NamedTuple):
    """The segments of a partition, read by other code than recovery uses."""

    directory: str
    sizes: dict[int, int]
    """Bytes per segment, by base offset."""
    locations: list[BatchLocation]
    """Every whole batch up to the first bad byte."""

    @property
    def last_base(self) -> int:
        return max(self.sizes)

    @property
    def log_end(self) -> int:
        return self.locations[-1].end if self.locations else self.last_base

    def path(self, base: int, suffix: str = names.LOG) -> str:
        return f"{self.directory}/{base:020d}{suffix}"


def scan_log_files(disk: Disk, directory: str) -> LogFiles:
    """Read all segments up to the first byte that is not part of a valid batch."""
    parsed = [names.parse_segment_file(name) for name in disk.list_directory(directory)]
    bases = sorted(one[0] for one in parsed if one is not None and one[1:] == (names.LOG, ""))
    files = LogFiles(directory, {}, [])
    for base in bases:
        with disk.open_read(files.path(base)) as file:
            files.sizes[base] = file.size()
    for segment, size in files.sizes.items():
        with disk.open_read(files.path(segment)) as file:
            walk = FileWalk(file, start=0, stop=size, check_crc=True)
            for step in walk:
                rows = step.rows
                for row in range(0, len(rows), batches.ROW_FIELDS):
                    location = BatchLocation(
                        segment,
                        rows[row + batches.POSITION] + step.shift,
                        rows[row + batches.SIZE],
                        rows[row + batches.BASE_OFFSET],
                        rows[row + batches.LAST_OFFSET] + 1,
                        rows[row + batches.PRODUCER_ID],
                    )
                    files.locations.append(location)
        if walk.valid_end != size:
            break
    return files


DamageFunction = Callable[[Disk, LogFiles, Randomness, int], int | None]
"""Damages the files and returns the log end afterwards; None when there was nothing to damage."""


def damage(
    disk: Disk, files: LogFiles, chance: Randomness, *, unflushed_from: int
) -> tuple[Damage, int]:
    """Damage the files in one way, or not at all; the log must then end at the returned offset.

    `unflushed_from` is the first offset whose flush was never acknowledged.
    """
    kind = chance.choice(list(Damage))
    end = (
        _DAMAGE_FUNCTIONS[kind](disk, files, chance, unflushed_from)
        if kind in _DAMAGE_FUNCTIONS
        else None
    )
    return (Damage.NONE, files.log_end) if end is None else (kind, end)


def _truncate(disk: Disk, files: LogFiles, chance: Randomness, _unflushed_from: int) -> int | None:
    base = files.last_base
    if not files.sizes[base]:
        return None
    size = chance.integer(0, files.sizes[base])
    with disk.open_write(files.path(base)) as file:
        file.truncate(size)
    left = [
        one for one in files.locations if one.segment != base or one.position + one.size <= size
    ]
    return left[-1].end if left else base


_UNPROTECTED: Final = (range(8), range(12, 16))
"""Base offset and leader epoch: the CRC does not cover them, so a change cannot be detected."""


def _flip(disk: Disk, files: LogFiles, chance: Randomness, unflushed_from: int) -> int | None:
    tail = [one for one in files.locations if one.first >= unflushed_from]
    if not tail:
        return None
    batch = chance.choice(tail)
    covered = [at for at in range(batch.size) if not any(at in part for part in _UNPROTECTED)]
    at = batch.position + chance.choice(covered)
    with disk.open_write(files.path(batch.segment)) as file:
        byte = file.read_at(at, 1)[0]
        file.write_at(at, bytes([byte ^ 1 << chance.integer(0, 8)]))
    return batch.first


def _remove_index(
    disk: Disk, files: LogFiles, chance: Randomness, _unflushed_from: int
) -> int | None:
    suffix = chance.choice([names.OFFSET_INDEX, names.TIME_INDEX])
    paths = [files.path(base, suffix) for base in files.sizes]
    existing = [path for path in paths if disk.exists(path)]
    if not existing:
        return None
    disk.remove(chance.choice(existing))
    return files.log_end


def _damage_checkpoint(
    disk: Disk, files: LogFiles, chance: Randomness, _unflushed_from: int
) -> int | None:
    root = files.directory.rpartition("/")[0]
    paths = [f"{root}/{names.RECOVERY_POINTS}", f"{root}/{names.HIGH_WATERMARKS}"]
    path = chance.choice([*paths, f"{files.directory}/{names.LEADER_EPOCHS}"])
    if not disk.exists(path):
        return None
    if chance.chance(0.5):
        disk.remove(path)
    else:
        with disk.open_write(path) as file:
            file.truncate(chance.integer(0, file.size() + 1))
    return files.log_end


_DAMAGE_FUNCTIONS: Final[dict[Damage, DamageFunction]] = {
    Damage.TRUNCATED: _truncate,
    Damage.FLIPPED: _flip,
    Damage.INDEX: _remove_index,
    Damage.CHECKPOINT: _damage_checkpoint,
}

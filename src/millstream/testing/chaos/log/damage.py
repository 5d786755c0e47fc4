"""Damage to the files of a killed writer, and where the log must end because of it."""

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


class BatchSpot(NamedTuple):
    """Where a batch lies and what it holds, [first, end)."""

    segment: int
    position: int
    size: int
    first: int
    end: int
    producer_id: int


class LogFiles(NamedTuple):
    """The segments of a partition, read apart from the code that recovers them."""

    directory: str
    sizes: dict[int, int]
    """Bytes per segment, by base offset."""
    spots: list[BatchSpot]
    """Every whole batch up to the first bad byte."""

    @property
    def last_base(self) -> int:
        return max(self.sizes)

    @property
    def log_end(self) -> int:
        return self.spots[-1].end if self.spots else self.last_base

    def path(self, base: int, suffix: str = names.LOG) -> str:
        return f"{self.directory}/{base:020d}{suffix}"


def look(disk: Disk, directory: str) -> LogFiles:
    """Walk all segments; stops at the first byte that is no valid batch."""
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
                    spot = BatchSpot(
                        segment,
                        rows[row + batches.POSITION] + step.shift,
                        rows[row + batches.SIZE],
                        rows[row + batches.BASE_OFFSET],
                        rows[row + batches.LAST_OFFSET] + 1,
                        rows[row + batches.PRODUCER_ID],
                    )
                    files.spots.append(spot)
        if walk.valid_end != size:
            break
    return files


Harm = Callable[[Disk, LogFiles, Randomness, int], int | None]
"""Does it and returns the log's end afterwards; None when there was nothing to harm."""


def damage(
    disk: Disk, files: LogFiles, chance: Randomness, *, unflushed_from: int
) -> tuple[Damage, int]:
    """Do one kind of damage, or none; the log must then end at the returned offset.

    `unflushed_from` is the first offset that was never told durable.
    """
    kind = chance.choice(list(Damage))
    end = _HARM[kind](disk, files, chance, unflushed_from) if kind in _HARM else None
    return (Damage.NONE, files.log_end) if end is None else (kind, end)


def _truncate(disk: Disk, files: LogFiles, chance: Randomness, _unflushed_from: int) -> int | None:
    base = files.last_base
    if not files.sizes[base]:
        return None
    size = chance.integer(0, files.sizes[base])
    with disk.open_write(files.path(base)) as file:
        file.truncate(size)
    left = [one for one in files.spots if one.segment != base or one.position + one.size <= size]
    return left[-1].end if left else base


_UNPROTECTED: Final = (range(8), range(12, 16))
"""Base offset and leader epoch: the CRC does not cover them, so nobody can notice."""


def _flip(disk: Disk, files: LogFiles, chance: Randomness, unflushed_from: int) -> int | None:
    tail = [spot for spot in files.spots if spot.first >= unflushed_from]
    if not tail:
        return None
    spot = chance.choice(tail)
    places = [at for at in range(spot.size) if not any(at in part for part in _UNPROTECTED)]
    at = spot.position + chance.choice(places)
    with disk.open_write(files.path(spot.segment)) as file:
        byte = file.read_at(at, 1)[0]
        file.write_at(at, bytes([byte ^ 1 << chance.integer(0, 8)]))
    return spot.first


def _remove_index(
    disk: Disk, files: LogFiles, chance: Randomness, _unflushed_from: int
) -> int | None:
    suffix = chance.choice([names.OFFSET_INDEX, names.TIME_INDEX])
    paths = [files.path(base, suffix) for base in files.sizes]
    there = [path for path in paths if disk.exists(path)]
    if not there:
        return None
    disk.remove(chance.choice(there))
    return files.log_end


def _harm_checkpoint(
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


_HARM: Final[dict[Damage, Harm]] = {
    Damage.TRUNCATED: _truncate,
    Damage.FLIPPED: _flip,
    Damage.INDEX: _remove_index,
    Damage.CHECKPOINT: _harm_checkpoint,
}

"""Cleans up the files of a partition directory after a crash, a kill or an interrupted swap.

Compaction writes `.cleaned` files, syncs them, and then renames in this order, with a directory
sync after every step: indexes to `.swap`, log to `.swap`, replaced segments to `.deleted`,
indexes to their final names, log to its final name. So a `.log.swap` means that the new segment is
complete and must take its place; any other `.swap` without it is a leftover.
"""

from dataclasses import dataclass, field

from millstream.model.ids import Offset
from millstream.runtime.disk import Disk
from millstream.storage import names
from millstream.storage.segments.file_walk import FileWalk


@dataclass(slots=True)
class PartitionFiles:
    """What a tidy partition directory holds."""

    log_sizes: dict[Offset, int] = field(default_factory=dict)
    snapshots: list[Offset] = field(default_factory=list)
    finished_swaps: int = 0


SegmentFile = tuple[Offset, str, str]
"""Base offset, kind and state."""


def tidy(disk: Disk, directory: str) -> PartitionFiles:
    """Remove leftovers, finish interrupted swaps, list what is left. Safe to repeat."""
    kept = _remove_leftovers(disk, directory, disk.list_directory(directory))
    swaps = sorted(base for base, kind, state in kept if (kind, state) == (names.LOG, names.SWAP))
    for base in swaps:
        _finish_swap(disk, directory, base)
    if swaps:  # listed again only then: a start does this for every partition
        kept = _parse(disk.list_directory(directory))
    files = PartitionFiles(finished_swaps=len(swaps))
    final = [(base, kind) for base, kind, state in kept if not state]
    logs = {base for base, kind in final if kind == names.LOG}
    for base, kind in final:
        path = names.segment_path(directory, base, kind)
        if kind == names.LOG:
            files.log_sizes[base] = disk.size(path)
        elif kind == names.SNAPSHOT:
            files.snapshots.append(base)
        elif base not in logs:
            disk.remove(path)  # an index whose segment is gone
    return files


def _parse(present: list[str]) -> list[SegmentFile]:
    parsed = map(names.parse_segment_file, present)
    return [one for one in parsed if one is not None]


def _remove_leftovers(disk: Disk, directory: str, present: list[str]) -> list[SegmentFile]:
    """What remains of the files of segments."""
    parsed = _parse(present)
    complete = {base for base, kind, state in parsed if (kind, state) == (names.LOG, names.SWAP)}
    kept = []
    for base, kind, state in parsed:
        is_leftover = state in (names.DELETED, names.CLEANED, names.TEMPORARY) or (
            state == names.SWAP and base not in complete
        )
        if is_leftover:
            disk.remove(names.segment_path(directory, base, kind) + state)
        else:
            kept.append((base, kind, state))
    for name in (names.LEADER_EPOCHS, names.PARTITION_METADATA):
        if name + names.TEMPORARY in present:
            disk.remove(f"{directory}/{name}{names.TEMPORARY}")
    return kept


def _finish_swap(disk: Disk, directory: str, base: Offset) -> None:
    swap = names.segment_path(directory, base, names.LOG) + names.SWAP
    end = _end_offset(disk, swap, base)
    replaced = {
        one
        for one, kind, state in _parse(disk.list_directory(directory))
        if (kind, state) == (names.LOG, "") and (one == base or base <= one < end)
    }
    _remove_segments(disk, directory, replaced)
    disk.sync_directory(directory)
    for suffix in names.SEGMENT_SUFFIXES[1:]:
        path = names.segment_path(directory, base, suffix)
        if disk.exists(path + names.SWAP):
            disk.rename(path + names.SWAP, path)
    disk.sync_directory(directory)
    disk.rename(swap, names.segment_path(directory, base, names.LOG))
    disk.sync_directory(directory)


def _remove_segments(disk: Disk, directory: str, replaced: set[Offset]) -> None:
    """Remove old segments, each log last: while it is there, a repetition finds the rest too."""
    for base in sorted(replaced):
        for suffix in reversed(names.SEGMENT_SUFFIXES):
            path = names.segment_path(directory, base, suffix)
            if disk.exists(path):
                disk.remove(path)


def _end_offset(disk: Disk, path: str, base: Offset) -> Offset:
    end = base
    with disk.open_read(path) as file:
        walk = FileWalk(file, start=0, stop=file.size(), check_crc=False)
        for step in walk:
            end = Offset(step.last_offset + 1)
    return end

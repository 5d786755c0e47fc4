"""Which copy of a partition is valid when a move between log directories was interrupted.

A move ends with one rename: the copy in the target directory loses its `-future`. Whatever happens
around that, exactly one copy is used afterwards:

- the copy still has its `-future`: it is incomplete, the source stays and the move starts again;
- source and target both have the partition's name, and the source is marked `moving-away` to that
  target: the target is valid. Nothing was written to the source after the mark;
- both have the name, and the source has no such mark: the broker could not make the rename durable,
  removed the mark and went on writing to the source. The target, which is marked `moved-here`, is a
  leftover.

So `moving-away` is durable before the rename, and removed before anything is written after a failed
one. Both marks of a move have the same number, which identifies its two sides even if disks were
mounted at other paths meanwhile. A source whose target cannot be read may be outdated and is not
used, and neither is a target whose source cannot be read, until it is marked that the source was
retired.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.model.errors import StorageFailed
from millstream.model.ids import TopicPartition
from millstream.runtime.disk import Disk, read_whole, remove_tree
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory

SOURCE_RETIRED: Final = ""
"""In place of the source in `moved-here`: the target is valid, whatever became of the source."""

_UNIQUE: Final = re.compile(r"[0-9a-f]{32}")


class Mark(NamedTuple):
    """The content of a mark file: which move, and its target (or its source)."""

    unique: str
    other_directory: str
    """Path of the other log directory."""

    def encode(self) -> bytes:
        """The file's content."""
        return f"{self.unique}\n{self.other_directory}\n".encode()


def read_mark(disk: Disk, path: str) -> Mark | None:
    """The mark in the file; None when it is missing or was not written by us."""
    try:
        lines = read_whole(disk, path).decode().split("\n")
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    if len(lines) != 3 or lines[2] or not _UNIQUE.fullmatch(lines[0]):
        return None
    return Mark(lines[0], lines[1])


def remove_mark(disk: Disk, directory: str, name: str) -> None:
    """Remove a mark, durably; nothing to do where the mark or the whole directory is gone."""
    with suppress(FileNotFoundError):
        disk.remove(f"{directory}/{name}")
        disk.sync_directory(directory)


@dataclass(slots=True)
class MoveResolution:
    """How the start resolved moves that were under way."""

    interrupted: dict[TopicPartition, str] = field(default_factory=dict)
    """Moves to start again, with their target directories."""
    unusable: dict[TopicPartition, tuple[str, str]] = field(default_factory=dict)
    """Partitions whose valid copy may be in a directory that is offline: where, and why."""
    removed: list[str] = field(default_factory=list)
    """Copies that were not valid; they are removed."""


def resolve_interrupted_moves(
    directories: Sequence[LogDirectory], found: Mapping[str, list[TopicPartition]]
) -> MoveResolution:
    """Remove what interrupted moves left; copies that are not valid are removed from `found`.

    `found` has the partitions of every usable directory. A directory that fails records it.
    """
    resolution = MoveResolution()
    usable = {one.path: one for one in directories if one.path in found}
    absent = {one.absent_from or one.path for one in directories if one.path not in found}
    for directory in usable.values():
        with suppress(StorageFailed), directory.fail_on_error():
            _remove_unfinished(directory, resolution)
    holders: dict[TopicPartition, list[LogDirectory]] = {}
    for path, partitions in found.items():
        for partition in partitions:
            holders.setdefault(partition, []).append(usable[path])
    is_whole = len(usable) == len(directories)
    for partition, candidates in holders.items():
        with suppress(StorageFailed):
            valid = _keep_valid(partition, candidates, usable.keys() - absent, resolution)
            valid = _without_doubtful(partition, valid, absent, resolution)
            for directory in candidates:
                if directory not in valid:
                    found[directory.path].remove(partition)
            if is_whole:
                for directory in valid:
                    with directory.fail_on_error():
                        remove_mark(
                            directory.disk, directory.partition_path(partition), names.MOVED_HERE
                        )
    return resolution


def _remove_unfinished(directory: LogDirectory, resolution: MoveResolution) -> None:
    for name in directory.disk.list_directory(directory.path):
        partition = names.parse_future_directory(name)
        path = f"{directory.path}/{name}"
        if partition is not None and directory.disk.is_directory(path):
            remove_tree(directory.disk, path)
            resolution.removed.append(path)
            resolution.interrupted[partition] = directory.path


def _keep_valid(
    partition: TopicPartition,
    candidates: Sequence[LogDirectory],
    usable: Collection[str],
    resolution: MoveResolution,
) -> list[LogDirectory]:
    """The directories whose copy may be valid, after the others were removed."""
    arrived = [
        (directory, _mark(directory, partition, names.MOVED_HERE)) for directory in candidates
    ]
    kept = []
    for directory in candidates:
        away = _mark(directory, partition, names.MOVING_AWAY)
        if away is None:
            kept.append(directory)
        elif any(
            here is not None and here.unique == away.unique
            for other, here in arrived
            if other is not directory
        ):
            _clear_away(directory, partition, away.unique, resolution)
        elif away.other_directory in usable:
            with directory.fail_on_error():
                remove_mark(directory.disk, directory.partition_path(partition), names.MOVING_AWAY)
            kept.append(directory)
        else:
            resolution.unusable[partition] = (
                directory.path,
                f"{partition} in {directory.path} may have moved to {away.other_directory},"
                " which is not usable."
                f" To use this copy nevertheless, remove {names.MOVING_AWAY} from it",
            )
    if partition in resolution.unusable:
        return []
    return _without_withdrawn(partition, kept, resolution) if len(kept) > 1 else kept


def _without_doubtful(
    partition: TopicPartition,
    candidates: list[LogDirectory],
    absent: Collection[str],
    resolution: MoveResolution,
) -> list[LogDirectory]:
    """None, if the only copy is marked `moved-here` from a directory that cannot be read: the
    source may not have been retired, and then has all that was written since.
    """
    for directory in candidates if len(candidates) == 1 else ():
        here = _mark(directory, partition, names.MOVED_HERE)
        if here is not None and here.other_directory in absent:
            resolution.unusable[partition] = (
                directory.path,
                f"{partition} in {directory.path} may still be in {here.other_directory},"
                " which is not usable."
                f" To use this copy nevertheless, remove {names.MOVED_HERE} from it",
            )
            return []
    return candidates


def _without_withdrawn(
    partition: TopicPartition, candidates: Sequence[LogDirectory], resolution: MoveResolution
) -> list[LogDirectory]:
    """A copy marked `moved-here` beside a source that was not retired was never used."""
    arrived = {
        directory.path: _mark(directory, partition, names.MOVED_HERE) for directory in candidates
    }
    kept = [directory for directory in candidates if arrived[directory.path] is None]
    if len(kept) != 1:
        return list(candidates)
    for directory in candidates:
        mark = arrived[directory.path]
        if mark is not None:
            _clear_away(directory, partition, mark.unique, resolution)
    return kept


def _mark(directory: LogDirectory, partition: TopicPartition, name: str) -> Mark | None:
    with directory.fail_on_error():
        return read_mark(directory.disk, f"{directory.partition_path(partition)}/{name}")


def _clear_away(
    directory: LogDirectory, partition: TopicPartition, unique: str, resolution: MoveResolution
) -> None:
    """Renamed as a whole first: half a copy, perhaps without its mark, could pass for valid."""
    path = directory.partition_path(partition)
    deleted_path = f"{directory.path}/{names.deleted_directory(partition, unique)}"
    with directory.fail_on_error():
        directory.disk.rename(path, deleted_path)
        directory.disk.sync_directory(directory.path)
        remove_tree(directory.disk, deleted_path)
    resolution.removed.append(path)

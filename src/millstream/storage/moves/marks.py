"""Which copy of a partition counts when a move between log directories was interrupted.

A move ends with one renaming: the copy in the target directory loses its `-future`. Whatever
happens around that, exactly one copy is used afterwards:

- the copy still has its `-future`: it is incomplete, the source stays and the move begins again;
- source and target both have the partition's name, and the source says `moving-away` to that
  target: the target counts. Nothing was written to the source after it;
- both have the name, and the source does not say so: the broker could not make the renaming
  durable, took its word back and went on writing to the source. The target, which says
  `moved-here`, is a leftover.

So `moving-away` is durable before the renaming, and taken back before anything is written after a
failed one. Both marks of a move carry the same number, which tells its two sides even where disks
were mounted elsewhere meanwhile. A source whose target cannot be looked at may be outdated and is
not used, and neither is a target whose source cannot, until it is settled that the source let go.
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

SETTLED: Final = ""
"""In place of the source in `moved-here`: the target counts, whatever became of the source."""

_UNIQUE: Final = re.compile(r"[0-9a-f]{32}")


class Mark(NamedTuple):
    """What a mark file says: which move, and where to (or where from)."""

    unique: str
    place: str
    """Path of the other log directory."""

    def encode(self) -> bytes:
        """The file's content."""
        return f"{self.unique}\n{self.place}\n".encode()


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
class SettledMoves:
    """What the start found out about moves that were under way."""

    interrupted: dict[TopicPartition, str] = field(default_factory=dict)
    """Moves to begin again, with the directory they lead to."""
    unusable: dict[TopicPartition, tuple[str, str]] = field(default_factory=dict)
    """Partitions whose valid copy may be in a directory that is offline: where, and why."""
    removed: list[str] = field(default_factory=list)
    """Copies that do not count; they are gone now."""


def resolve_interrupted_moves(
    directories: Sequence[LogDirectory], found: Mapping[str, list[TopicPartition]]
) -> SettledMoves:
    """Clear away what interrupted moves left; `found` loses the copies that do not count.

    `found` has the partitions of every usable directory. A directory that fails here notes it.
    """
    settled = SettledMoves()
    usable = {one.path: one for one in directories if one.path in found}
    absent = {one.absent_from or one.path for one in directories if one.path not in found}
    for directory in usable.values():
        with suppress(StorageFailed), directory.failing():
            _remove_unfinished(directory, settled)
    holders: dict[TopicPartition, list[LogDirectory]] = {}
    for path, partitions in found.items():
        for partition in partitions:
            holders.setdefault(partition, []).append(usable[path])
    is_whole = len(usable) == len(directories)
    for partition, places in holders.items():
        with suppress(StorageFailed):
            counting = _keep_valid(partition, places, usable.keys() - absent, settled)
            counting = _without_doubtful(partition, counting, absent, settled)
            for place in places:
                if place not in counting:
                    found[place.path].remove(partition)
            if is_whole:
                for place in counting:
                    with place.failing():
                        remove_mark(place.disk, place.partition_path(partition), names.MOVED_HERE)
    return settled


def _remove_unfinished(directory: LogDirectory, settled: SettledMoves) -> None:
    for name in directory.disk.list_directory(directory.path):
        partition = names.parse_future_directory(name)
        path = f"{directory.path}/{name}"
        if partition is not None and directory.disk.is_directory(path):
            remove_tree(directory.disk, path)
            settled.removed.append(path)
            settled.interrupted[partition] = directory.path


def _keep_valid(
    partition: TopicPartition,
    places: Sequence[LogDirectory],
    usable: Collection[str],
    settled: SettledMoves,
) -> list[LogDirectory]:
    """The places whose copy may count, after those that do not were cleared away."""
    arrived = [(place, _mark(place, partition, names.MOVED_HERE)) for place in places]
    kept = []
    for place in places:
        away = _mark(place, partition, names.MOVING_AWAY)
        if away is None:
            kept.append(place)
        elif any(
            here is not None and here.unique == away.unique
            for other, here in arrived
            if other is not place
        ):
            _clear_away(place, partition, away.unique, settled)
        elif away.place in usable:
            with place.failing():
                remove_mark(place.disk, place.partition_path(partition), names.MOVING_AWAY)
            kept.append(place)
        else:
            settled.unusable[partition] = (
                place.path,
                f"{partition} in {place.path} may have moved to {away.place}, which is not usable."
                f" To use this copy nevertheless, remove {names.MOVING_AWAY} from it",
            )
    if partition in settled.unusable:
        return []
    return _without_withdrawn(partition, kept, settled) if len(kept) > 1 else kept


def _without_doubtful(
    partition: TopicPartition,
    places: list[LogDirectory],
    absent: Collection[str],
    settled: SettledMoves,
) -> list[LogDirectory]:
    """Nothing, if the one copy says `moved-here` from a directory that cannot be looked at: the
    source may not have let go of it, and then has all that was written since.
    """
    for place in places if len(places) == 1 else ():
        here = _mark(place, partition, names.MOVED_HERE)
        if here is not None and here.place in absent:
            settled.unusable[partition] = (
                place.path,
                f"{partition} in {place.path} may still be in {here.place}, which is not usable."
                f" To use this copy nevertheless, remove {names.MOVED_HERE} from it",
            )
            return []
    return places


def _without_withdrawn(
    partition: TopicPartition, places: Sequence[LogDirectory], settled: SettledMoves
) -> list[LogDirectory]:
    """A copy that says `moved-here` beside one that did not let go was never used."""
    arrived = {place.path: _mark(place, partition, names.MOVED_HERE) for place in places}
    kept = [place for place in places if arrived[place.path] is None]
    if len(kept) != 1:
        return list(places)
    for place in places:
        mark = arrived[place.path]
        if mark is not None:
            _clear_away(place, partition, mark.unique, settled)
    return kept


def _mark(place: LogDirectory, partition: TopicPartition, name: str) -> Mark | None:
    with place.failing():
        return read_mark(place.disk, f"{place.partition_path(partition)}/{name}")


def _clear_away(
    place: LogDirectory, partition: TopicPartition, unique: str, settled: SettledMoves
) -> None:
    """Renamed as a whole first: half a copy, perhaps without its mark, could pass for valid."""
    path = place.partition_path(partition)
    doomed = f"{place.path}/{names.deleted_directory(partition, unique)}"
    with place.failing():
        place.disk.rename(path, doomed)
        place.disk.sync_directory(place.path)
        remove_tree(place.disk, doomed)
    settled.removed.append(path)

"""One partition found in several log directories: which copy counts.

A creation that failed in one directory is repeated in another, and what it left in the first may
still be there, or come back with a power loss. It never held a record, which tells it from the
partition itself. And a topic that was deleted and created again while a directory was offline has
its old logs in there, which the deletion's note tells from the new ones.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

from millstream.model.errors import OperatingError, StorageFailed
from millstream.model.ids import TopicId, TopicPartition
from millstream.runtime.disk import Disk, remove_tree
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.directories.partition_metadata import read_topic_id

_FILES_OF_A_NEW_PARTITION: Final = (names.PARTITION_METADATA, names.LEADER_EPOCHS)


def resolve_duplicate_copies(
    usable: Sequence[LogDirectory],
    found: Mapping[str, list[TopicPartition]],
    surplus: list[str],
    *,
    deleted: Collection[TopicId] = (),
) -> dict[TopicPartition, tuple[str, str]]:
    """Keep one copy of a partition that is in several directories, or none: `found` loses the rest.

    Returns the partitions of which none is kept: a place, and the reason. Copies of the `deleted`
    topics do not count. A directory that fails notes it.
    """
    holders: dict[TopicPartition, list[LogDirectory]] = {}
    for directory in usable:
        for partition in found[directory.path]:
            holders.setdefault(partition, []).append(directory)
    undecided: dict[TopicPartition, tuple[str, str]] = {}
    for partition, places in holders.items():
        if len(places) == 1:
            continue
        kept: LogDirectory | None = None
        with suppress(StorageFailed):
            living = _without_deleted(partition, places, surplus, deleted)
            kept = keep_one_copy(partition, living, surplus)
        for place in places:
            if place is not kept:
                found[place.path].remove(partition)
        if kept is None:
            paths = [place.path for place in places]
            reason = f"{partition} is both in {' and in '.join(paths)}"
            undecided[partition] = paths[0], reason
    return undecided


def _without_deleted(
    partition: TopicPartition,
    places: Sequence[LogDirectory],
    surplus: list[str],
    deleted: Collection[TopicId],
) -> Sequence[LogDirectory]:
    """The copies of topics that exist; all of them if none does, for the metadata to decide."""
    dead = []
    for place in places if deleted else ():
        path = f"{place.partition_path(partition)}/{names.PARTITION_METADATA}"
        with place.failing(), suppress(OperatingError):
            if read_topic_id(place.disk, path) in deleted:
                dead.append(place)
    if len(dead) == len(places):
        return places
    for place in dead:
        surplus.append(place.partition_path(partition))
        with place.failing():
            remove_tree(place.disk, place.partition_path(partition))
    return [place for place in places if place not in dead]


def keep_one_copy(
    partition: TopicPartition, places: Sequence[LogDirectory], surplus: list[str]
) -> LogDirectory | None:
    """The directory whose copy counts; None when only the operator can know.

    The paths of the others are added to `surplus`. They are removed, unless they are of another
    topic: without its neighbour at a later start an empty one would pass for the partition.
    Raises StorageFailed.
    """
    topic_ids = {}
    used = []
    for place in places:
        path = place.partition_path(partition)
        with place.failing():
            if _has_history(place.disk, path):
                used.append(place)
            try:
                topic_id = read_topic_id(place.disk, f"{path}/{names.PARTITION_METADATA}")
            except OperatingError:
                return None
        if topic_id is not None:
            topic_ids[place.path] = topic_id
    is_one_topic = len(set(topic_ids.values())) <= 1
    if len(used) > 1 or not (used or is_one_topic):
        return None
    kept = used[0] if used else max(places, key=lambda place: place.path in topic_ids)
    for place in places:
        if place is not kept:
            surplus.append(place.partition_path(partition))
            with place.failing():
                if is_one_topic:
                    remove_tree(place.disk, place.partition_path(partition))
    return kept


def _has_history(disk: Disk, path: str) -> bool:
    """Whether there is more than what a creation leaves."""
    for name in disk.list_directory(path):
        if name.removesuffix(names.TEMPORARY) in _FILES_OF_A_NEW_PARTITION:
            continue
        parsed = names.parse_segment_file(name)
        if parsed is None:
            return True
        base_offset, kind, _ = parsed
        if base_offset > 0 or (kind == names.LOG and disk.size(f"{path}/{name}")):
            return True
    return False

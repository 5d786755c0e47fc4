"""One partition found in several log directories: which copy is valid.

A creation that failed in one directory is repeated in another, and what it left in the first may
still exist, or come back with a power loss. It never held a record, which distinguishes it from the
partition itself. And a topic that was deleted and created again while a directory was offline has
its old logs in there, which are recognized by the ids of deleted topics.
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
    """Keep one copy of a partition that is in several directories, or none; the rest is removed
    from `found`.

    Returns the partitions of which none is kept: a directory, and the reason. Copies of the
    `deleted` topics are not valid. A directory that fails records it.
    """
    holders: dict[TopicPartition, list[LogDirectory]] = {}
    for directory in usable:
        for partition in found[directory.path]:
            holders.setdefault(partition, []).append(directory)
    undecided: dict[TopicPartition, tuple[str, str]] = {}
    for partition, candidates in holders.items():
        if len(candidates) == 1:
            continue
        kept: LogDirectory | None = None
        with suppress(StorageFailed):
            living = _without_deleted(partition, candidates, surplus, deleted)
            kept = keep_one_copy(partition, living, surplus)
        for directory in candidates:
            if directory is not kept:
                found[directory.path].remove(partition)
        if kept is None:
            paths = [directory.path for directory in candidates]
            reason = f"{partition} is both in {' and in '.join(paths)}"
            undecided[partition] = paths[0], reason
    return undecided


def _without_deleted(
    partition: TopicPartition,
    candidates: Sequence[LogDirectory],
    surplus: list[str],
    deleted: Collection[TopicId],
) -> Sequence[LogDirectory]:
    """The copies of topics that exist; all of them if none does, for the metadata to decide."""
    dead = []
    for directory in candidates if deleted else ():
        path = f"{directory.partition_path(partition)}/{names.PARTITION_METADATA}"
        with directory.fail_on_error(), suppress(OperatingError):
            if read_topic_id(directory.disk, path) in deleted:
                dead.append(directory)
    if len(dead) == len(candidates):
        return candidates
    for directory in dead:
        surplus.append(directory.partition_path(partition))
        with directory.fail_on_error():
            remove_tree(directory.disk, directory.partition_path(partition))
    return [directory for directory in candidates if directory not in dead]


def keep_one_copy(
    partition: TopicPartition, candidates: Sequence[LogDirectory], surplus: list[str]
) -> LogDirectory | None:
    """The directory whose copy is valid; None when only the operator can know.

    The paths of the others are added to `surplus`. They are removed, unless they are of another
    topic: at a later start without the other copy an empty one would be taken for the partition.
    Raises StorageFailed.
    """
    topic_ids = {}
    used = []
    for directory in candidates:
        path = directory.partition_path(partition)
        with directory.fail_on_error():
            if _has_history(directory.disk, path):
                used.append(directory)
            try:
                topic_id = read_topic_id(directory.disk, f"{path}/{names.PARTITION_METADATA}")
            except OperatingError:
                return None
        if topic_id is not None:
            topic_ids[directory.path] = topic_id
    is_one_topic = len(set(topic_ids.values())) <= 1
    if len(used) > 1 or not (used or is_one_topic):
        return None
    kept = used[0] if used else max(candidates, key=lambda directory: directory.path in topic_ids)
    for directory in candidates:
        if directory is not kept:
            surplus.append(directory.partition_path(partition))
            with directory.fail_on_error():
                if is_one_topic:
                    remove_tree(directory.disk, directory.partition_path(partition))
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

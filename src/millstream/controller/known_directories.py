"""The log directories that this broker has used, and what to do when one of them is missing.

A disk that is not mounted, or a typo in `log.dirs`, must not look like a partition that was never
written: recreated in another directory, it would be lost silently. So every directory is identified
by the id in its `meta.properties`, and while one is absent all partitions that are in no other stay
offline. Which partitions those are is determined by scanning, not stored: a partition is where its
log is, also after a crash in the middle of a move, and a separate list could only disagree.

An absent directory from which nothing is missing was removed on purpose; it is forgotten. Giving up
the partitions of any other is the operator's decision: removing its file from the metadata.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.controller.documents import KnownDirectory
from millstream.controller.identity import MetaProperties
from millstream.controller.image import ClusterImage
from millstream.model.ids import TopicId, TopicPartition
from millstream.runtime.disk import Disk
from millstream.storage import names
from millstream.storage.directories.log_directory import MissingDirectory
from millstream.storage.directories.partition_metadata import format_topic_id


@dataclass(slots=True)
class DirectoryPlan:
    """What a start does with absent directories."""

    withheld: list[MissingDirectory] = field(default_factory=list)
    """Absent, and partitions are missing; they need not be in `log.dirs`."""
    forgotten: list[KnownDirectory] = field(default_factory=list)
    """Absent, and nothing is missing."""

    def is_withheld(self, path: str) -> bool:
        """Whether what is at the path must not be touched: it may be an empty mount point."""
        return any(one.name == path for one in self.withheld)


class DirectoryFacts(NamedTuple):
    """The input of the decision."""

    configured: Sequence[str]
    found: Mapping[str, MetaProperties]
    """The properties of the directories that can be read."""
    count_missing: Callable[[], int]
    """How many partitions are in none of them; called only when a directory is absent."""
    file_of: Callable[[KnownDirectory], str]
    """The metadata file that records a directory."""


def plan_directories(known: Iterable[KnownDirectory], facts: DirectoryFacts) -> DirectoryPlan:
    """Which directories stay offline, and which are no longer known."""
    present = {properties.directory_id for properties in facts.found.values()}
    # A path that cannot be read may be any directory: the log manager takes it offline.
    unreadable = set(facts.configured).difference(facts.found)
    absent = [
        one for one in known if one.directory_id not in present and one.path not in unreadable
    ]
    plan = DirectoryPlan()
    missing_count = facts.count_missing() if absent else 0
    if not missing_count:
        plan.forgotten = absent
        return plan
    plan.withheld = [
        MissingDirectory(_display_name(one, facts), one.path, _reason(one, missing_count, facts))
        for one in absent
    ]
    return plan


def _display_name(one: KnownDirectory, facts: DirectoryFacts) -> str:
    """The path, with the id where another directory is at that path now."""
    current = facts.found.get(one.path)
    is_taken = current is not None and current.directory_id is not None
    return f"{one.path} ({_text(one)})" if is_taken else one.path


def _reason(one: KnownDirectory, missing_count: int, facts: DirectoryFacts) -> str:
    if one.path not in facts.configured:
        what = "it is not in log.dirs any more"
    elif one.path in facts.found and facts.found[one.path].directory_id is not None:
        what = "another directory is mounted there"
    else:
        what = "it is not mounted there, or its meta.properties is gone"
    return (
        f"the log directory with id {_text(one)} is missing: {what}. Partitions that are in no"
        f" other directory stay offline, {missing_count} of them. Bring it back and restart; or, to"
        f" give up what it held, stop the broker, remove {facts.file_of(one)} and start again"
    )


def _text(one: KnownDirectory) -> str:
    return format_topic_id(TopicId(one.directory_id))


# -- scanning ----------------------------------------------------------------------------------


def missing_partitions(
    disk: Disk, directories: Iterable[str], image: ClusterImage
) -> set[TopicPartition]:
    """Partitions of the metadata of which no directory has a log that is certainly the current
    copy.
    """
    missing = {one for topic in image.topics.values() for one in topic.names_of_partitions()}
    for directory in directories:
        missing -= _complete_partitions_in(disk, directory)
    return missing


def _complete_partitions_in(disk: Disk, directory: str) -> set[TopicPartition]:
    """Partitions without an interrupted move: with one, the copy may be the obsolete one."""
    try:
        found = set()
        for name in disk.list_directory(directory):
            partition = names.parse_partition_directory(name)
            marks = (f"{directory}/{name}/{mark}" for mark in names.MOVE_MARKS)
            if partition is not None and not any(disk.exists(one) for one in marks):
                found.add(partition)
    except OSError:
        return set()  # it will be reported as failed; its partitions are not available
    return found

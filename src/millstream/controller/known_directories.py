"""The log directories that this broker has had, and what to do when one of them is not there.

A disk that is not mounted, or a typing error in `log.dirs`, must not look like a partition that was
never written: begun anew elsewhere it would be lost without a word. So every directory is known by
the id in its `meta.properties`, and while one is absent all partitions that are nowhere else stay
offline. Which partitions those are is found out, not written down: a partition is where its log
is, also after a crash in the middle of a move, and a list of its own could only disagree.

An absent directory that nothing is missing from was taken away on purpose; it is forgotten. To
give up what another one held is the operator's word: he removes its file from the metadata.
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
    """What the start makes of the directories."""

    withheld: list[MissingDirectory] = field(default_factory=list)
    """Absent, and partitions are missing; not all of them are in `log.dirs`."""
    forgotten: list[KnownDirectory] = field(default_factory=list)
    """Absent, and nothing is missing."""

    def is_withheld(self, path: str) -> bool:
        """Whether what is at the path must not be touched: it may be an empty mount point."""
        return any(one.name == path for one in self.withheld)


class Surroundings(NamedTuple):
    """What the decision is made from."""

    configured: Sequence[str]
    found: Mapping[str, MetaProperties]
    """What the directories say that can be read."""
    count_missing: Callable[[], int]
    """How many partitions are in none of them; asked only when a directory is absent."""
    file_of: Callable[[KnownDirectory], str]
    """The file by which the metadata knows a directory."""


def plan_directories(known: Iterable[KnownDirectory], around: Surroundings) -> DirectoryPlan:
    """Which directories stay offline, and which are no longer known."""
    present = {properties.directory_id for properties in around.found.values()}
    # A path that cannot be read stands for whatever is there: the log manager takes it offline.
    unreadable = set(around.configured).difference(around.found)
    absent = [
        one for one in known if one.directory_id not in present and one.path not in unreadable
    ]
    plan = DirectoryPlan()
    missing_count = around.count_missing() if absent else 0
    if not missing_count:
        plan.forgotten = absent
        return plan
    plan.withheld = [
        MissingDirectory(_told_as(one, around), one.path, _reason(one, missing_count, around))
        for one in absent
    ]
    return plan


def _told_as(one: KnownDirectory, around: Surroundings) -> str:
    """Its path; with its id where another directory has that path now."""
    there = around.found.get(one.path)
    is_taken = there is not None and there.directory_id is not None
    return f"{one.path} ({_text(one)})" if is_taken else one.path


def _reason(one: KnownDirectory, missing_count: int, around: Surroundings) -> str:
    if one.path not in around.configured:
        what = "it is not in log.dirs any more"
    elif one.path in around.found and around.found[one.path].directory_id is not None:
        what = "another directory is mounted there"
    else:
        what = "it is not mounted there, or its meta.properties is gone"
    return (
        f"the log directory with id {_text(one)} is missing: {what}. Partitions that are nowhere"
        f" else stay offline, {missing_count} of them. Bring it back and start again; or, to give"
        f" up what it held, stop the broker, remove {around.file_of(one)} and start again"
    )


def _text(one: KnownDirectory) -> str:
    return format_topic_id(TopicId(one.directory_id))


# -- what is there -----------------------------------------------------------------------------


def missing_partitions(
    disk: Disk, directories: Iterable[str], image: ClusterImage
) -> set[TopicPartition]:
    """Partitions of the metadata of which no directory surely has the log that counts."""
    missing = {one for topic in image.topics.values() for one in topic.names_of_partitions()}
    for directory in directories:
        missing -= _surely_in(disk, directory)
    return missing


def _surely_in(disk: Disk, directory: str) -> set[TopicPartition]:
    """A copy that a move was interrupted with may be the one that does not count."""
    try:
        found = set()
        for name in disk.list_directory(directory):
            partition = names.parse_partition_directory(name)
            marks = (f"{directory}/{name}/{mark}" for mark in names.MOVE_MARKS)
            if partition is not None and not any(disk.exists(one) for one in marks):
                found.add(partition)
    except OSError:
        return set()  # it will be told as failed; what is in it is not there for us
    return found

"""Kafka's file and directory names for partitions, segments and leftovers."""

import re
from typing import Final

from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import TOPIC_NAME_LENGTH_MAX

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
SEGMENT_SUFFIXES: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)

DELETED: Final = ".deleted"
"""Renamed away, to be removed after a delay; removed at start."""
CLEANED: Final = ".cleaned"
"""Being written by compaction; worthless after a crash."""
SWAP: Final = ".swap"
"""Complete output of compaction, about to replace its inputs; finished at start."""
TEMPORARY: Final = ".tmp"
STRAY: Final = ".stray"
"""A segment file that does not continue its log, set aside at a start; only an
operator removes it."""

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"

DELETED_DIRECTORY: Final = "-delete"
"""Suffix of a partition directory whose topic is gone."""

FUTURE_DIRECTORY: Final = "-future"
"""Suffix of a copy that will replace a partition's directory in another log directory."""

MOVED_HERE: Final = "moved-here"
"""In a moved partition's directory until the one it came from is gone; ours, Kafka ignores it."""
MOVING_AWAY: Final = "moving-away"
"""In the directory a partition moves out of: a finished copy in the target replaces it."""
MOVE_MARKS: Final = (MOVED_HERE, MOVING_AWAY)

ROOM_PROBE: Final = ".room-probe"
"""Written to a log directory briefly, to find out whether a full disk accepts writes again."""

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
"""Kafka's own Raft log: found in its directories, never ours to serve."""

INT64_MAX: Final = 2**63 - 1
PARTITION_MAX: Final = 2**31 - 1
FILE_NAME_BYTES_MAX: Final = 255

_OFFSET_DIGITS: Final = 20
_SEGMENT_FILE: Final = re.compile(
    r"(?P<base>[0-9]{20})(?P<kind>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)(?P<state>\.\w+)?"
)
_LEGAL_TOPIC: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")
_PARTITION_DIRECTORY: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})"
)
_DELETED_DIRECTORY: Final = re.compile(r".+\.[0-9a-f]{32}-delete")
_FUTURE_DIRECTORY: Final = re.compile(r"(?P<partition>.+)\.[0-9a-f]{32}-future")


def segment_path(directory: str, base_offset: Offset, suffix: str) -> str:
    """Path of one file of the segment, e.g. `.../00000000000000000042.log`."""
    return f"{directory}/{base_offset:0{_OFFSET_DIGITS}d}{suffix}"


def parse_segment_file(name: str) -> tuple[Offset, str, str] | None:
    """(base offset, kind, state) of a segment's file name; state is '' or e.g. '.swap'."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match["base"]) > INT64_MAX:
        return None
    return Offset(int(match["base"])), match["kind"], match["state"] or ""


def is_legal_topic(topic: str) -> bool:
    """Whether Kafka allows the name; it is also what keeps paths inside the log directory."""
    return _LEGAL_TOPIC.fullmatch(topic) is not None and topic not in (".", "..")


def is_legal_partition(partition: TopicPartition) -> bool:
    """Whether its directory's name leads back to it and to a log of ours."""
    return (
        is_legal_topic(partition.topic)
        and partition.topic != CLUSTER_METADATA_TOPIC
        and 0 <= partition.partition <= PARTITION_MAX
        and str(partition.partition).isdigit()
    )


def partition_directory(partition: TopicPartition) -> str:
    """Name of the partition's directory inside a log directory."""
    return f"{partition.topic}-{partition.partition}"


def parse_partition_directory(name: str) -> TopicPartition | None:
    """The partition a directory belongs to, or None when it is something else."""
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    partition = TopicPartition(match["topic"], int(match["partition"]))
    return partition if is_legal_partition(partition) else None


def deleted_directory(partition: TopicPartition, unique: str) -> str:
    """Kafka's form, `unique` being 32 hexadecimal digits.

    A long topic name is cut: the whole must stay within the 255 bytes of a file name.
    """
    room = FILE_NAME_BYTES_MAX - len(unique) - len(DELETED_DIRECTORY) - 1
    return f"{partition_directory(partition)[:room]}.{unique}{DELETED_DIRECTORY}"


def is_deleted_directory(name: str) -> bool:
    """Whether the directory is a deleted partition's, and not a user's `do-not-delete`."""
    return _DELETED_DIRECTORY.fullmatch(name) is not None


def future_directory(partition: TopicPartition, unique: str) -> str | None:
    """Kafka's name for the copy of a partition that moves; None when it is no legal file name."""
    name = f"{partition_directory(partition)}.{unique}{FUTURE_DIRECTORY}"
    return name if len(name) <= FILE_NAME_BYTES_MAX else None


def parse_future_directory(name: str) -> TopicPartition | None:
    """The partition that was on its way into this directory, or None when it is something else."""
    match = _FUTURE_DIRECTORY.fullmatch(name)
    return None if match is None else parse_partition_directory(match["partition"])

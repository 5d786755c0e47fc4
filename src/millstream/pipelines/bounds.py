"""Where a query starts and ends, as its options say: before any request to a broker."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from millstream.model.ids import Offset, TimestampMs, TopicPartition


class Edge(Enum):
    """One of the two ends of every partition."""

    EARLIEST = "earliest"
    LATEST = "latest"


class NoMatch(Enum):
    """`startingOffsetsByTimestampStrategy`: what to do when no record is that late."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every partition; -1 is latest, -2 earliest."""

    offsets: Mapping[TopicPartition, Offset]


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """A time for every partition: the first record that is not older."""

    timestamps: Mapping[TopicPartition, TimestampMs]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """One time for all partitions, whichever there are."""

    timestamp: TimestampMs


Bound = Edge | AtOffsets | AtTimestamps | AtTimestamp

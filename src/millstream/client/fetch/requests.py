"""Encodes the requests of the machine for a version of Fetch.

Without a fetch session: a session saves naming the partitions that have nothing new, but ties them
to one connection and one order, and a read of few partitions in large responses gains nothing.
"""

from typing import Final
from uuid import UUID

from millstream.client.fetch.chunks import FetchLimits
from millstream.client.fetch.machine import FetchRequestSpec, PartitionFetchSpec
from millstream.rpc.connection import Connection
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FIRST_WITH_IDS: Final = 13
"""Names topics by id."""
FIRST_WITH_LAST_EPOCH: Final = 12
"""Has `last_fetched_epoch`, with which a leader detects that its log was truncated since."""

_VERSIONS: Final = range(4, 19)
_VERSIONS_BY_NAME: Final = range(4, FIRST_WITH_IDS)
_COMMITTED: Final = 1
_NO_ID: Final = UUID(int=0)


def fetch_version(connection: Connection, *, has_ids: bool) -> int:
    """The highest common version; without ids of all topics one with topic names."""
    return connection.version_of(FetchRequest, _VERSIONS if has_ids else _VERSIONS_BY_NAME)


def fetch_body(request: FetchRequestSpec, limits: FetchLimits, version: int) -> bytes:
    """The encoded request."""
    topics: dict[str, FetchTopic] = {}
    for one in request.partitions:
        name = one.partition.topic
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = FetchTopic(
                topic=name, topic_id=one.topic_id or _NO_ID, partitions=[]
            )
        topic.partitions.append(_partition(one, limits, version))
    return FetchRequest(
        max_wait_ms=limits.wait_ms_max,
        min_bytes=limits.fetch_bytes_min,
        max_bytes=request.bytes_max,
        isolation_level=_COMMITTED if limits.is_committed and not request.is_peek else 0,
        topics=list(topics.values()),
    ).encode(version)


def _partition(one: PartitionFetchSpec, limits: FetchLimits, version: int) -> FetchPartition:
    return FetchPartition(
        partition=one.partition.partition,
        current_leader_epoch=one.leader_epoch,
        fetch_offset=one.offset,
        last_fetched_epoch=one.last_epoch if version >= FIRST_WITH_LAST_EPOCH else -1,
        partition_max_bytes=limits.partition_bytes_max,
    )

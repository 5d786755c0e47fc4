"""Fetch requests: what a machine asks for, in the words of a version.

Without a fetch session: a session saves naming the partitions that have nothing new, but ties them
to one connection and one order, and a read of few partitions in large answers gains nothing by it.
"""

from typing import Final
from uuid import UUID

from millstream.client.fetch.chunks import FetchLimits
from millstream.client.fetch.machine import FetchAsk, PartitionAsk
from millstream.rpc.connection import Connection
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

FIRST_WITH_IDS: Final = 13
"""Names topics by id."""
FIRST_WITH_LAST_EPOCH: Final = 12
"""Tells a leader what was read last, so that it can say whether its log was cut since."""

_VERSIONS: Final = range(4, 19)
_VERSIONS_BY_NAME: Final = range(4, FIRST_WITH_IDS)
_COMMITTED: Final = 1
_NO_ID: Final = UUID(int=0)


def fetch_version(connection: Connection, *, has_ids: bool) -> int:
    """The highest that both know; without ids of all topics one that names them."""
    return connection.version_of(FetchRequest, _VERSIONS if has_ids else _VERSIONS_BY_NAME)


def fetch_body(ask: FetchAsk, limits: FetchLimits, version: int) -> bytes:
    """The encoded request."""
    topics: dict[str, FetchTopic] = {}
    for one in ask.partitions:
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
        max_bytes=ask.bytes_max,
        isolation_level=_COMMITTED if limits.is_committed and not ask.is_peek else 0,
        topics=list(topics.values()),
    ).encode(version)


def _partition(one: PartitionAsk, limits: FetchLimits, version: int) -> FetchPartition:
    return FetchPartition(
        partition=one.partition.partition,
        current_leader_epoch=one.leader_epoch,
        fetch_offset=one.offset,
        last_fetched_epoch=one.last_epoch if version >= FIRST_WITH_LAST_EPOCH else -1,
        partition_max_bytes=limits.partition_bytes_max,
    )

"""The consumers' own protocol inside of the classic one: what subscriptions and assignments hold.

Two bytes of version, then the fields, never in the flexible encoding. An unknown newer version is
read as the last known one, and the rest is ignored, as in all clients.
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar
from uuid import UUID

from millstream.groups.consumer.topics import TopicsView
from millstream.wire.fields import array, blob, int32, string
from millstream.wire.primitives import INT16, Bytes, MalformedFrame
from millstream.wire.schema import Message, Struct

PROTOCOL_TYPE: Final = "consumer"
VERSION_MAX: Final = 3


class EmbeddedPartitions(Struct):
    """Partitions of one topic."""

    topic: str = string()
    partitions: list[int] = array(int32)


class EmbeddedSubscription(Message, versions="0-3"):
    """A consumer's subscription and the partitions it owns."""

    topics: list[str] = array(string)
    user_data: Bytes | None = blob(nullable="0+", default=None)
    owned_partitions: list[EmbeddedPartitions] = array(EmbeddedPartitions, "1+", ignorable=True)
    generation_id: int = int32("2+", default=-1, ignorable=True)
    rack_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)


class EmbeddedAssignment(Message, versions="0-3"):
    """A consumer's assignment."""

    assigned_partitions: list[EmbeddedPartitions] = array(EmbeddedPartitions)
    user_data: Bytes | None = blob(nullable="0+", default=None)


M = TypeVar("M", bound=Message)


def _version(raw: Bytes) -> int:
    if len(raw) < INT16.size:
        raise MalformedFrame(f"an embedded message of {len(raw)} bytes")
    (version,) = INT16.unpack_from(raw)
    if version < 0:
        raise MalformedFrame(f"version {version} of an embedded message")
    return min(int(version), VERSION_MAX)


def _decode(kind: type[M], raw: Bytes) -> M:
    return kind.decode_front(memoryview(raw)[INT16.size :], _version(raw))[0]


def decode_subscription(raw: Bytes) -> EmbeddedSubscription:
    """Raises MalformedFrame."""
    return _decode(EmbeddedSubscription, raw)


def decode_assignment(raw: Bytes) -> EmbeddedAssignment:
    """Raises MalformedFrame. Zero bytes are an empty assignment."""
    return _decode(EmbeddedAssignment, raw) if raw else EmbeddedAssignment()


def encode_assignment(
    assignment: Mapping[UUID, Iterable[int]], topics: TopicsView, subscription: Bytes
) -> bytes:
    """Encode in the version of the member's subscription; deleted topics are left out.

    A member may have sent a malformed subscription for an assignor that was not used so far: it
    gets the oldest version. Refusing would keep other members from leaving the group.
    """
    parts = [
        EmbeddedPartitions(topic=facts.name, partitions=sorted(partitions))
        for topic_id, partitions in assignment.items()
        if (facts := topics.by_id(topic_id)) is not None
    ]
    try:
        version = _version(subscription)
    except MalformedFrame:
        version = 0
    return INT16.pack(version) + EmbeddedAssignment(assigned_partitions=parts).encode(version)


def by_topic_id(parts: Iterable[EmbeddedPartitions], topics: TopicsView) -> dict[UUID, set[int]]:
    """Map names to ids; topics and partitions that do not exist are left out."""
    found: dict[UUID, set[int]] = {}
    for part in parts:
        facts = topics.by_name(part.topic)
        if facts is not None:
            known = range(facts.partition_count)
            found.setdefault(facts.topic_id, set()).update(
                one for one in part.partitions if one in known
            )
    return found

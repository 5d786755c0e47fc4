"""The topics in a consumer's protocol metadata.

The coordinator does not interpret the metadata of members, with one exception: members of
type `consumer` begin their metadata with the topics that they subscribe to (every version of that
format starts like version 0), and offsets of topics in use are neither expired nor deleted.
"""

from collections.abc import Iterable
from typing import Final

from millstream.wire.primitives import (
    MalformedFrame,
    read_int16,
    read_int32,
    read_string,
)

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of Kafka's consumers."""
_TOPIC_BYTES_MIN: Final = 2
NAMES_MAX: Final = 100_000
"""Read for one decision: some fifty milliseconds. A group with more could not be written, for all
of it is in the group's record; until then it may subscribe to any topic."""


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """None: these bytes are not a consumer's subscription, or it is too long."""
    return all_topics((metadata,))


def all_topics(metadatas: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all of them; None if one cannot be read, or there are too many names.

    The metadata of most members starts with the same topics; those are read once.
    """
    topics: set[str] = set()
    names_left = NAMES_MAX
    head = b""
    try:
        for metadata in metadatas:
            if not head or not metadata.startswith(head):
                found, end = _read_topics(memoryview(metadata), names_left)
                names_left -= len(found)
                topics.update(found)
                head = metadata[:end]
            user_bytes, at = read_int32(memoryview(metadata), len(head))
            if not -1 <= user_bytes <= len(metadata) - at:
                return None
    except MalformedFrame:
        return None
    return frozenset(topics)


def _read_topics(view: memoryview, names_max: int) -> tuple[list[str], int]:
    """The topics and where they end; raises MalformedFrame."""
    version, at = read_int16(view, 0)
    count, at = read_int32(view, at)
    if version < 0 or not 0 <= count <= min(names_max, (len(view) - at) // _TOPIC_BYTES_MIN):
        raise MalformedFrame(f"a subscription of version {version} to {count} topics")
    topics = []
    for _ in range(count):
        topic, at = read_string(view, at)
        topics.append(topic)
    return topics, at

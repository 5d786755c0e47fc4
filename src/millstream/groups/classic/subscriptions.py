"""The topics in a consumer's protocol metadata.

The coordinator does not interpret what members send each other, with one exception: members of
type `consumer` begin their metadata with the topics that they subscribe to (every version of that
format starts like version 0), and offsets of topics in use are neither expired nor deleted.
"""

from collections.abc import Iterable
from typing import Final

from millstream.wire.primitives import (
    Bytes,
    MalformedFrame,
    read_int16,
    read_int32,
    read_string,
)

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of Kafka's consumers."""
_TOPIC_BYTES_MIN: Final = 2


def topics_of(metadata: Bytes) -> frozenset[str] | None:
    """None: these bytes are not a consumer's subscription."""
    view = memoryview(metadata)
    try:
        version, at = read_int16(view, 0)
        count, at = read_int32(view, at)
        if version < 0 or not 0 <= count <= (len(view) - at) // _TOPIC_BYTES_MIN:
            return None
        topics = []
        for _ in range(count):
            topic, at = read_string(view, at)
            topics.append(topic)
        user_bytes, at = read_int32(view, at)
    except MalformedFrame:
        return None
    return frozenset(topics) if -1 <= user_bytes <= len(view) - at else None


def all_topics(metadatas: Iterable[Bytes]) -> frozenset[str] | None:
    """Of all of them; None if one of them cannot be read."""
    topics: set[str] = set()
    for metadata in metadatas:
        found = topics_of(metadata)
        if found is None:
            return None
        topics |= found
    return frozenset(topics)

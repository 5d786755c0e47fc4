"""What members of the classic protocol exchange through the coordinator, and two assignors.

The coordinator passes these bytes on: a member's subscription (with what it owns, which the
cooperative protocol needs), and its assignment. The formats are Kafka's consumer protocol, version
1. The two assignors are the simplest correct ones.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from millstream.testing.history.group_events import PartitionName

VERSION: Final = 1
_NULL: Final = struct.pack(">i", -1)


class Subscription(NamedTuple):
    """The topics of a member, and the partitions that it owns."""

    topics: tuple[str, ...]
    owned: tuple[PartitionName, ...] = ()


def encode_subscription(subscription: Subscription) -> bytes:
    topics = b"".join(_string(topic) for topic in subscription.topics)
    head = struct.pack(">hi", VERSION, len(subscription.topics))
    return head + topics + _NULL + _encode_places(subscription.owned)


def decode_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version = reader.int16()
    topics = tuple(reader.string() for _ in range(reader.int32()))
    reader.skip_bytes()
    return Subscription(topics, reader.places() if version >= VERSION else ())


def encode_assignment(places: Iterable[PartitionName]) -> bytes:
    return struct.pack(">h", VERSION) + _encode_places(places) + _NULL


def decode_assignment(data: bytes) -> tuple[PartitionName, ...]:
    """Empty bytes are an assignment too: that of a member that joined too late."""
    if not data:
        return ()
    reader = _Reader(data)
    reader.int16()
    return reader.places()


def assign_eagerly(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> dict[str, list[PartitionName]]:
    """Assign in turn, regardless of what members owned before."""
    order = sorted(members)
    given: dict[str, list[PartitionName]] = {member: [] for member in order}
    for number, place in enumerate(_partitions_of(members.values(), partitions)):
        given[order[number % len(order)]].append(place)
    return given


def assign_cooperatively(
    members: Mapping[str, Subscription], partitions: Mapping[str, int]
) -> dict[str, list[PartitionName]]:
    """Members keep what they have up to their share; what a member has to give up is assigned to
    no other in this round: its owner joins again after giving it up, and then it is free.
    """
    wanted = _partitions_of([*members.values()], partitions)
    claims: dict[PartitionName, list[str]] = defaultdict(list)
    for member in sorted(members):
        for place in members[member].owned:
            claims[place].append(member)
    share, extra = divmod(len(wanted), len(members))
    given: dict[str, list[PartitionName]] = {member: [] for member in sorted(members)}
    # Two claims of one partition mean that one is stale: neither is valid, and no member gets it.
    for place in wanted:
        owner = claims[place][0] if len(claims[place]) == 1 else None
        if owner is not None and len(given[owner]) < share + (extra > 0):
            extra -= len(given[owner]) == share
            given[owner].append(place)
    free = [place for place in wanted if not claims[place]]
    for place in free:
        member = min(given, key=lambda one: (len(given[one]), one))
        given[member].append(place)
    return given


def _partitions_of(
    subscriptions: Iterable[Subscription], partitions: Mapping[str, int]
) -> list[PartitionName]:
    topics = sorted({topic for subscription in subscriptions for topic in subscription.topics})
    return [(topic, n) for topic in topics for n in range(partitions.get(topic, 0))]


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _encode_places(places: Iterable[PartitionName]) -> bytes:
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in places:
        by_topic[topic].append(partition)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        parts.append(_string(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)


class _Reader:
    """Reads bytes that members of this package wrote."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return self._one(">h", 2)

    def int32(self) -> int:
        return self._one(">i", 4)

    def _one(self, form: str, size: int) -> int:
        (found,) = struct.unpack_from(form, self._data, self._at)
        self._at += size
        return int(found)

    def string(self) -> str:
        size = self.int16()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def skip_bytes(self) -> None:
        size = self.int32()
        self._at += max(0, size)

    def places(self) -> tuple[PartitionName, ...]:
        found: list[PartitionName] = []
        for _ in range(self.int32()):
            topic = self.string()
            found += [(topic, self.int32()) for _ in range(self.int32())]
        return tuple(found)

"""A group's view of the cluster's topics, and the hash by which it detects changes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

_HASH_BYTES: Final = 8
_HASHES: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. A view that returns the same object for an unchanged topic saves the hashing."""

    name: str
    topic_id: UUID
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()
    """For each partition, the racks of its replicas; empty if the brokers have no rack."""
    _hashed: list[int] = field(default_factory=list, compare=False, repr=False)

    @property
    def hash(self) -> int:
        """A 64-bit hash of all fields."""
        if not self._hashed:
            racks = tuple(tuple(sorted(one)) for one in self.racks)
            text = repr((self.name, self.topic_id.hex, self.partition_count, racks))
            digest = blake2b(text.encode(), digest_size=_HASH_BYTES).digest()
            self._hashed.append(int.from_bytes(digest, "big"))
        return self._hashed[0]


class TopicsView(Protocol):
    """The topics of the cluster as this broker knows them now."""

    @property
    def version(self) -> int:
        """Increases with every change of any topic."""

    @property
    def created_version(self) -> int:
        """The version in which a topic was last created: patterns are resolved again then."""

    def names(self) -> Collection[str]:
        """The names of all topics."""

    def by_name(self, name: str) -> TopicFacts | None:
        """None if there is no such topic."""

    def by_id(self, topic_id: UUID) -> TopicFacts | None:
        """None if there is no such topic."""


def metadata_hash(names: Iterable[str], topics: TopicsView) -> int:
    """The hash of those topics that exist, as an int64; 0 without any.

    It is only compared with hashes of our own brokers. For a group written by Kafka, whose hash
    differs, the first comparison finds a difference and costs one rebalance.
    """
    total = 0
    for name in names:
        facts = topics.by_name(name)
        if facts is not None:
            total += facts.hash
    total %= _HASHES
    return total - _HASHES if total >= _HASHES // 2 else total

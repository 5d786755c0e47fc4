"""What a group sees of the cluster's topics, and the hash by which it notices that they changed."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, Protocol
from uuid import UUID

_HASH_BYTES: Final = 8
_HASHES: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. A view that gives the same object for an unchanged topic saves the hashing."""

    name: str
    topic_id: UUID
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()
    """Of each partition, where its replicas are; empty where brokers have no rack."""
    _hashed: list[int] = field(default_factory=list, compare=False, repr=False)

    @property
    def hash(self) -> int:
        """64 bits of all of it."""
        if not self._hashed:
            racks = tuple(tuple(sorted(one)) for one in self.racks)
            told = repr((self.name, self.topic_id.hex, self.partition_count, racks))
            digest = blake2b(told.encode(), digest_size=_HASH_BYTES).digest()
            self._hashed.append(int.from_bytes(digest, "big"))
        return self._hashed[0]


class TopicsView(Protocol):
    """The topics of the cluster as this broker knows them now."""

    @property
    def version(self) -> int:
        """Grows with every change of any topic."""

    @property
    def created_version(self) -> int:
        """The version in which a topic was last created: patterns are resolved anew then."""

    def names(self) -> Collection[str]:
        """Of all topics."""

    def by_name(self, name: str) -> TopicFacts | None:
        """None if there is no such topic."""

    def by_id(self, topic_id: UUID) -> TopicFacts | None:
        """None if there is no such topic."""


def metadata_hash(names: Iterable[str], topics: TopicsView) -> int:
    """Of all topics of these names that exist, as a signed 64-bit number; 0 without any.

    Only this broker's own hashes are ever compared with it. Where a group was made by Kafka, whose
    hash is another, the first comparison finds a difference and costs one rebalance.
    """
    total = 0
    for name in names:
        facts = topics.by_name(name)
        if facts is not None:
            total += facts.hash
    total %= _HASHES
    return total - _HASHES if total >= _HASHES // 2 else total

"""Where the replicas of new partitions go: over racks first, then over brokers, leaders evenly.

The brokers form a ring in which neighbours are in different racks as far as possible. Leaders go
round the ring; a partition's followers are taken from the positions after its leader, shifted by
one with every round, so that the followers of one broker's partitions are spread and its load falls
on many brokers when it dies.
"""

from collections import Counter
from collections.abc import Sequence

from millstream.controller.errors import InvalidReplicationFactor
from millstream.controller.image import BrokerImage
from millstream.model.ids import BrokerId
from millstream.runtime.randomness import Randomness

Replicas = tuple[BrokerId, ...]


def place(
    brokers: Sequence[BrokerImage],
    *,
    partition_count: int,
    replication_factor: int,
    randomness: Randomness,
) -> list[Replicas]:
    """The replicas of each new partition; the first is an unfenced broker that will lead it.

    A fenced broker gets a replica only where a rack, or the cluster, has no other left.
    """
    if replication_factor < 1:
        raise InvalidReplicationFactor(f"replication factor {replication_factor} is not positive")
    if replication_factor > len(brokers):
        raise InvalidReplicationFactor(
            f"replication factor {replication_factor}, but there "
            + ("is only one broker" if len(brokers) == 1 else f"are only {len(brokers)} brokers")
        )
    ring = _ring(brokers)
    leaders = [place for place, one in enumerate(ring) if not one.is_fenced]
    if not leaders:
        raise InvalidReplicationFactor("all brokers are fenced")
    first = randomness.integer(0, len(leaders))
    shift = randomness.integer(0, len(ring))
    placed: list[Replicas] = []
    for number in range(partition_count):
        leader = leaders[(first + number) % len(leaders)]
        if replication_factor == 1:
            placed.append((ring[leader].broker_id,))
            continue
        behind = _behind(ring, leader, shift + number // len(leaders))
        placed.append(_replicas(ring[leader], behind, replication_factor))
    return placed


def _ring(brokers: Sequence[BrokerImage]) -> list[BrokerImage]:
    """One broker of each rack in turn."""
    racks: dict[str | None, list[BrokerImage]] = {}
    for broker in sorted(brokers):
        racks.setdefault(broker.rack, []).append(broker)
    by_size = sorted(racks.values(), key=len, reverse=True)
    longest = len(by_size[0]) if by_size else 0
    return [rack[turn] for turn in range(longest) for rack in by_size if turn < len(rack)]


def _behind(ring: list[BrokerImage], leader: int, shift: int) -> list[BrokerImage]:
    """All but the leader, starting `shift` positions after it."""
    others = ring[leader + 1 :] + ring[:leader]
    if not others:
        return []
    start = shift % len(others)
    return others[start:] + others[:start]


def _replicas(leader: BrokerImage, behind: list[BrokerImage], replication_factor: int) -> Replicas:
    chosen = [leader.broker_id]
    used: Counter[str | None] = Counter([leader.rack])
    left = behind
    while len(chosen) < replication_factor:
        # The first among equals: `min` keeps the order of the ring.
        following = min(left, key=lambda one: (used[one.rack], one.is_fenced))
        chosen.append(following.broker_id)
        used[following.rack] += 1
        left = [one for one in left if one is not following]
    return tuple(chosen)

"""Kafka's features that this cluster has, each at the one level that is served."""

from collections.abc import Mapping
from typing import Final

FEATURES: Final[Mapping[str, int]] = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 30,
}
"""What clients and Kafka's tools look for, as far as it is there:

- `eligible.leader.replicas.version` 1: replicas that may lead though they are not in sync (KIP-966)
- `group.version` 1: the next-generation protocol of consumer groups (KIP-848)
- `metadata.version` 30, which is 4.3-IV0: the APIs and their versions are those of Kafka 4.3

Levels are fixed: what is there is always on, so the lowest level that is supported is the highest
too. `transaction.version`, `share.version` and `streams.version` are not there, since what they
stand for is not; `kraft.version` is of a quorum that there is none of."""

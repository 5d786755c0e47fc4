"""Kafka's features that this cluster has, each at the one level that is served."""

from collections.abc import Mapping
from typing import Final

FEATURES: Final[Mapping[str, int]] = {
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "metadata.version": 30,
}
"""The features that clients and Kafka's tools check, as far as they are supported:

- `eligible.leader.replicas.version` 1: replicas that may lead though they are not in sync (KIP-966)
- `group.version` 1: the next-generation protocol of consumer groups (KIP-848)
- `metadata.version` 30, which is 4.3-IV0: the APIs and their versions are those of Kafka 4.3

Levels are fixed: a supported feature is always on, so the lowest supported level is the highest,
too. `transaction.version`, `share.version` and `streams.version` are missing, since their features
are not supported; `kraft.version` is missing, since there is no KRaft quorum."""

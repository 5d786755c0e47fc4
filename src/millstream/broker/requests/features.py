"""Kafka's features that this cluster has, each at the one level that is served."""

from collections.abc import Mapping
from typing import Final

FEATURES: Final[Mapping[str, int]] = {"group.version": 1}
"""`group.version` 1 is the next-generation protocol of consumer groups (KIP-848). Levels are fixed:
what is there is always on, so the lowest level that is supported is the highest too."""

"""Who leaves when there is no room for all."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

K = TypeVar("K")


def oldest_of_largest(groups: Iterable[Mapping[K, object]]) -> K:
    """The first one of the group with the most; there must be one.

    A flood makes room for others by that, however fast it is.
    """
    largest: Mapping[K, object] = max(groups, key=len)
    return next(iter(largest))

"""All attacks, by name."""

from collections.abc import Sequence

from millstream.testing.chaos.hostile import (
    bombs,
    brokers_only,
    floods,
    keeper,
    large_requests,
    pinned_memory,
    random_requests,
)
from millstream.testing.chaos.hostile.attack import Attack


def all_attacks() -> Sequence[Attack]:
    """In the order in which they are run: what only costs first, what takes leaders away last."""
    modules = (floods, pinned_memory, large_requests, bombs, keeper, brokers_only)
    return [one for module in modules for one in module.attacks()]


def attack_named(name: str) -> Attack:
    """Of the catalogue, or the random one with this seed; raises KeyError."""
    if name.startswith(random_requests.PREFIX):
        return random_requests.random_attack(int(name.removeprefix(random_requests.PREFIX)))
    return {one.name: one for one in all_attacks()}[name]

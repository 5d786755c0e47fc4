"""The controller's decisions in random order, with crashes between any two groups of a plan.

After each crash the next controller loads what is there and finishes it. Replay one seed with
`pytest tests/property/test_cluster_plans.py -k "[SEED]"`.
"""

from collections import Counter

import pytest

from kits.controller.cluster_world import World
from millstream.controller.image import NO_LEADER

SEEDS = range(1, 41)
STEPS = 50


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_plans_lose_nothing_and_can_be_finished(seed: int) -> None:
    """I-01, I-13 to I-17, I-39."""
    world = World(seed)
    for _ in range(STEPS):
        world.step()


def test_the_worlds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 15):
        world = World(seed)
        for _ in range(STEPS):
            world.step()
            partitions = [one for topic in world.image.topics.values() for one in topic.partitions]
            seen["eligible"] += any(one.elr for one in partitions)
            seen["leaderless"] += any(one.leader == NO_LEADER for one in partitions)
            seen["lost"] += any(one.lost for one in partitions)
            seen["reassigning"] += any(one.adding or one.removing for one in partitions)
        seen["crashes"] += world.crashes
        seen["unclean"] += world.unclean
    assert seen["crashes"] > 50
    assert min(seen["eligible"], seen["leaderless"], seen["reassigning"]) > 50
    assert seen["unclean"] > 10
    assert seen["lost"] > 50

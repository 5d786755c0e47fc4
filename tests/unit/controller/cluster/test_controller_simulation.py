"""Controllers under faults, with seeds; what is checked is told in `controllers_simulation`."""

from collections import Counter

import pytest

from kits.controller.controllers_simulation import simulate

SEEDS = range(1, 17)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_so_and_everybody_agrees(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/controller -k 'everybody_agrees and [SEED]'
    """
    assert simulate(seed)["done"] > 2


@pytest.mark.slow
def test_the_seeds_meet_what_they_are_for() -> None:
    met = sum((simulate(seed) for seed in range(1, 6)), Counter[str]())
    assert met["reigns"] >= 8
    assert met["multi carried out"] >= 8
    assert met["multi not carried out"] >= 8
    assert met["not controller"] + met["too late"] >= 2

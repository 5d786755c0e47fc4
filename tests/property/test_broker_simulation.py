"""A broker with clients under faults, a handful of seeds; `make sim PART=broker` runs many."""

import os
import subprocess
import sys

import pytest

from millstream.testing.simulation.broker.simulation import run_broker

STEPS = 80
SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_promise_is_broken(seed: int) -> None:
    """I-01..I-08, I-11, I-20, I-32, I-36, I-37, I-42; `make sim PART=broker SEEDS=1 FROM=seed`."""
    counts = run_broker(seed, steps=STEPS).counts
    assert counts["acknowledged"] > 10
    assert counts["records polled"] > 10


def test_same_seed_same_run_whatever_the_hashes() -> None:
    """What a set's order or an address decided would not replay."""
    code = (
        "from millstream.testing.simulation.broker.simulation import run_broker\n"
        "print([run_broker(seed, steps=40).digest for seed in (3, 4)])"
    )
    here = str([run_broker(seed, steps=40).digest for seed in (3, 4)])
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here
    assert run_broker(3, steps=40).digest != run_broker(4, steps=40).digest


def test_the_seeds_meet_what_they_are_for() -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    missing = {"kill", "power loss", "restart", "reset", "tails lost", "sends without answer"}
    for seed in range(100, 140):
        missing -= set(run_broker(seed, steps=60).counts)
        if not missing:
            return
    raise AssertionError(f"40 seeds without {sorted(missing)}")

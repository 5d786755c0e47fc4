"""The cluster under faults: fixed seeds, the same run for the same seed, bugs that are found."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from millstream.testing.simulation.cluster.coverage import IN_SIXTY_SEEDS, missing_events
from millstream.testing.simulation.cluster.planted_bugs import BUGS, Planted, first_catch
from millstream.testing.simulation.cluster.simulation import run_cluster
from millstream.testing.simulation.run import main


def test_fixed_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """I-01..I-21, I-39..I-42, and enough of what they are for; each seed in little CPU time."""
    assert main(["--seeds", "60", "--from", "1", "--part", "cluster"]) == 0, capsys.readouterr().out


def test_same_seed_same_run_whatever_the_hashes() -> None:
    """What a set's order or an address decided would not replay."""
    code = (
        "from millstream.testing.simulation.cluster.simulation import run_cluster\n"
        "print([run_cluster(seed, steps=60).digest for seed in (3, 4)])"
    )
    here = str([run_cluster(seed, steps=60).digest for seed in (3, 4)])
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == here
    assert run_cluster(3, steps=60).digest != run_cluster(4, steps=60).digest


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Planted) -> None:
    assert first_catch(bug) is not None, f"not noticed: {bug.name}"


def test_seeds_that_meet_too_little_are_told() -> None:
    counts = Counter(IN_SIXTY_SEEDS)
    assert missing_events(counts, 60) == []
    counts["elections"] -= 1
    assert missing_events(counts, 60) == ["elections (49 of 50)"]
    assert missing_events(counts, 59) == []
    counts["elections"] += 1
    counts["seeds of too much CPU"] = 1
    assert missing_events(counts, 60) == ["1 seeds of too much CPU"]

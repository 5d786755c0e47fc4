"""Consumer groups under faults: fixed seeds, hundreds of members, and bugs that are found."""

import pytest

from millstream.testing.simulation.cluster.planted_bugs import Planted, first_catch
from millstream.testing.simulation.groups.planted_bugs import GROUP_BUGS
from millstream.testing.simulation.groups.simulation import (
    IN_TWENTY_SEEDS,
    missing_events,
    run_groups,
)
from millstream.testing.simulation.run import main


def test_fixed_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """I-27..I-31 with coordinators that fail, and members that are killed, stopped and leave."""
    assert main(["--seeds", "6", "--from", "1", "--part", "groups"]) == 0, capsys.readouterr().out


def test_hundreds_of_members_outlive_their_coordinator() -> None:
    """All three protocols at once; no live member is removed (I-30)."""
    counts = run_groups(1, steps=40, sizes=(70, 70, 70), with_faults=False)
    assert counts["members"] >= 210
    assert counts["coordinators killed"] == 1
    assert counts["fenced without harm"] == 0


def test_same_seed_same_run() -> None:
    """What a set's order or an address decided would not replay."""
    assert run_groups(3, steps=60) == run_groups(3, steps=60)
    assert run_groups(3, steps=60) != run_groups(4, steps=60)


@pytest.mark.slow
@pytest.mark.parametrize("bug", GROUP_BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught(bug: Planted) -> None:
    assert first_catch(bug, run=run_groups) is not None, f"not noticed: {bug.name}"


def test_seeds_that_meet_too_little_are_told() -> None:
    counts = dict(IN_TWENTY_SEEDS)
    assert missing_events(counts, 20) == []
    counts["commits"] -= 1
    assert missing_events(counts, 20) == ["commits (499 of 500)"]
    assert missing_events(counts, 19) == []

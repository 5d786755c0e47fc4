"""The simulator over fixed seeds, and how it tells what went wrong."""

from collections import Counter
from concurrent.futures.process import BrokenProcessPool

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.testing import simulate
from millstream.testing.log_simulation import ALWAYS, SOMETIMES
from millstream.testing.simulate import STEPS_TO_MEET_ALL, SimulationRun, main, run_seeds


def test_fixed_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """The share of `make test` in `make sim`, over as many processes as there are cores."""
    assert main(["--seeds", "60", "--from", "1000"]) == 0
    assert "60 seeds" in capsys.readouterr().out


def test_failing_seed_is_told_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulated(seed: int, *, steps: int) -> Counter[str]:
        if seed == 12:
            raise InvariantViolated(f"I-99 planted in step {steps}")
        return Counter(append=1)

    monkeypatch.setattr(simulate, "simulate_log", simulated)
    assert main(["--seeds", "4", "--from", "10", "--steps", "7"]) == 1
    out = capsys.readouterr().out
    for part in ("I-99 planted in step 7", "seed   12", "make sim SEEDS=1 FROM=12 STEPS=7"):
        assert part in out


def test_a_failure_in_another_process_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes import the plain kernels, which this name of a choice forbids."""
    monkeypatch.setenv("MILLSTREAM_KERNELS", "nonsense")
    with pytest.raises(BrokenProcessPool):
        run_seeds(0, 11, steps=1, progress=lambda _: None)


def test_a_long_run_must_meet_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    made = Counter(dict.fromkeys([*ALWAYS, *SOMETIMES], STEPS_TO_MEET_ALL))
    assert simulate.report(SimulationRun(9, made, None)) == 0
    del made["lose_power"]
    assert simulate.report(SimulationRun(9, made, None)) == 1
    assert "never happened: lose_power" in capsys.readouterr().out


def test_a_short_run_need_not() -> None:
    assert SimulationRun(1, Counter(append=5), None).never_made == []

"""The simulator over fixed seeds, and how it tells what went wrong."""

from collections import Counter
from concurrent.futures.process import BrokenProcessPool

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.testing.simulation import run as simulate
from millstream.testing.simulation.broker.simulation import INTERESTING
from millstream.testing.simulation.log.simulation import ALWAYS, SOMETIMES
from millstream.testing.simulation.run import (
    BROKER,
    BROKER_SEEDS_TO_MEET_ALL,
    PARTS,
    STEPS_DEFAULT,
    STEPS_TO_MEET_ALL,
    SimulationRun,
    main,
    run_seeds,
)


def test_fixed_seeds_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """The share of `make test` in `make sim`, over as many processes as there are cores."""
    assert main(["--seeds", "60", "--from", "1000", "--part", "log"]) == 0
    assert "log: 60 seeds" in capsys.readouterr().out


def test_fixed_seeds_of_the_broker_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """Here too in other processes; `tests/property/test_broker_simulation.py` has more."""
    assert main(["--seeds", "6", "--from", "1000", "--steps", "40", "--part", "broker"]) == 0
    assert "broker: 6 seeds" in capsys.readouterr().out


def test_without_a_part_all_of_them_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("simulate_log", "simulate_broker", "simulate_cluster", "simulate_groups"):
        monkeypatch.setattr(simulate, name, lambda seed, *, steps: Counter(append=seed * steps))
    assert main(["--seeds", "2", "--from", "1"]) == 0
    out = capsys.readouterr().out
    assert "log: 2 seeds" in out
    assert "broker: 2 seeds" in out
    assert "cluster: 2 seeds" in out
    assert "groups: 2 seeds" in out


@pytest.mark.parametrize("part", PARTS)
def test_failing_seed_is_told_with_the_command_that_replays_it(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulated(seed: int, *, steps: int) -> Counter[str]:
        if seed == 12:
            raise InvariantViolated(f"I-99 planted in step {steps}")
        return Counter(append=1)

    monkeypatch.setattr(simulate, f"simulate_{part}", simulated)
    assert main(["--seeds", "4", "--from", "10", "--steps", "7", "--part", part]) == 1
    out = capsys.readouterr().out
    command = f"make sim SEEDS=1 FROM=12 STEPS=7 PART={part}"
    for told in ("I-99 planted in step 7", "seed   12", command):
        assert told in out


def test_a_failure_in_another_process_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes import the plain kernels, which this name of a choice forbids."""
    monkeypatch.setenv("MILLSTREAM_KERNELS", "nonsense")
    with pytest.raises(BrokenProcessPool):
        run_seeds(0, 11, steps=1, progress=lambda _: None)


def test_a_long_run_must_meet_every_operation(capsys: pytest.CaptureFixture[str]) -> None:
    counts = Counter(dict.fromkeys([*ALWAYS, *SOMETIMES], STEPS_TO_MEET_ALL))
    assert simulate.report(SimulationRun(9, counts, None)) == 0
    del counts["lose_power"]
    assert simulate.report(SimulationRun(9, counts, None)) == 1
    assert "never happened: lose_power" in capsys.readouterr().out


def test_a_long_run_of_brokers_must_meet_every_fault() -> None:
    counts = Counter(dict.fromkeys(INTERESTING, 3))
    seeds = BROKER_SEEDS_TO_MEET_ALL
    assert SimulationRun(seeds, counts, None, BROKER).missing_events == []
    del counts["power loss"]
    assert SimulationRun(seeds, counts, None, BROKER).missing_events == ["power loss"]
    assert SimulationRun(seeds, counts, None, BROKER, STEPS_DEFAULT // 2).missing_events == []


def test_a_short_run_need_not() -> None:
    assert SimulationRun(1, Counter(append=5), None).missing_events == []

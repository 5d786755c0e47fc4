"""The soak goes on turn by turn, with new seeds, until the time is up or something fails."""

from collections import Counter
from typing import Any

import pytest

from millstream.testing import soak
from millstream.testing.chaos.run import ChaosRun
from millstream.testing.simulation.broker.simulation import INTERESTING
from millstream.testing.simulation.run import BROKER, LOG, SeedFailure, SimulationRun


class Calls:
    """Stands in for both kinds of run and remembers what it was asked for."""

    def __init__(self, *, fail_at: int = 10**9) -> None:
        self.seeds: list[int] = []
        self.steps: list[int] = []
        self.parts: list[str] = []
        self._fail_at = fail_at

    def run_seeds(
        self, first: int, seeds: int, *, steps: int, progress: Any, part: str
    ) -> SimulationRun:
        self.seeds += range(first, first + seeds)
        self.steps.append(steps)
        self.parts.append(f"simulated {part}")
        failure = SeedFailure(first, "planted") if len(self.steps) >= self._fail_at else None
        made = Counter(append=seeds) if part == LOG else Counter(INTERESTING)
        return SimulationRun(seeds, made, failure, part, steps)

    def run_chaos(self, rounds: int, seed: int, tell: Any, *, part: str) -> ChaosRun:
        self.seeds.append(seed)
        self.parts.append(f"killed {part}")
        counted = "records written" if part == LOG else "records acknowledged"
        return ChaosRun(rounds, Counter({counted: 7}), None)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(soak, "run_seeds", self.run_seeds)
        monkeypatch.setattr(soak, "run_chaos", self.run_chaos)


def test_no_seed_is_used_twice_and_some_histories_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    calls.install(monkeypatch)
    turns = soak.Soak(5, lambda _: None)
    assert all(turns.run_turn() for _ in range(soak.LONG_TURN_EVERY))
    assert len(set(calls.seeds)) == len(calls.seeds)
    assert calls.steps[-1] > calls.steps[0]


def test_at_least_one_turn_then_the_time_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = Calls()
    calls.install(monkeypatch)
    assert soak.main(["--hours", "1e-9", "--seed", "5"]) == 0
    assert calls.parts == ["simulated log", "killed log", "simulated broker", "killed broker"]
    out = capsys.readouterr().out
    assert "200 log seeds, 200 log operations, 50 rounds of log chaos, 14 records written" in out
    assert "20 rounds of broker chaos" in out
    assert "everything held" in out


@pytest.mark.parametrize("part", [LOG, BROKER])
def test_one_part_alone(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    calls = Calls()
    calls.install(monkeypatch)
    assert soak.main(["--hours", "1e-9", "--seed", "5", "--part", part]) == 0
    assert calls.parts == [f"simulated {part}", f"killed {part}"]


@pytest.mark.parametrize("hours", ["0", "-1", "nan"])
def test_no_time_at_all_is_refused(hours: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        soak.main(["--hours", hours])
    assert "--hours must be above 0" in capsys.readouterr().err


def test_a_failure_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Calls(fail_at=3).install(monkeypatch)
    assert soak.main(["--hours", "1000", "--seed", "5"]) == 1
    out = capsys.readouterr().out
    assert "planted" in out
    assert "FAILED" in out

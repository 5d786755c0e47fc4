"""The checks of Spark's chaos can fail, its matrix is whole, and its hooks hold whom they must."""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos import run as chaos
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.checkpoint import Checkpoint, Manifest
from millstream.testing.chaos.spark.checks import (
    check_copies,
    check_nothing_missing,
    check_once,
    check_plans,
    check_reads,
)
from millstream.testing.chaos.spark.control import ControlServer, Hook, Report
from millstream.testing.chaos.spark.rounds import cells_in_order
from millstream.testing.chaos.spark.steps import Sink, Step, Victim, matrix
from millstream.testing.wait_until import wait_until

ROWS = [(0, 5), (0, 6), (1, 0)]


def read_of(batch: int, task: int, **facts: int) -> Report:
    known = {"partition": 0, "start": 5, "end": 7, "rows": 2, "check": 99}
    return Report(query="q", what="task read", pid=1, batch=batch, task=task, facts=known | facts)


def write_of(batch: int, task: int) -> Report:
    return Report(query="q", what="task writes", pid=1, batch=batch, task=task)


def plan_of(end: int, *tasks: str) -> Report:
    return Report(query="q", what="plan", pid=1, facts={"end": {"t": end}, "tasks": list(tasks)})


def test_missing_and_foreign_rows_are_seen() -> None:
    check_nothing_missing(ROWS, Counter(ROWS + ROWS))
    with pytest.raises(ChaosFailed, match=r"I-43 1 rows are missing, the first is \(0, 6\)"):
        check_nothing_missing(ROWS, Counter([(0, 5), (1, 0)]))
    with pytest.raises(ChaosFailed, match=r"I-43 1 rows are foreign, the first is \(0, 4\)"):
        check_nothing_missing(ROWS, Counter([*ROWS, (0, 4)]))


def test_a_row_twice_is_seen_where_there_must_be_one() -> None:
    check_once(Counter(ROWS))
    with pytest.raises(ChaosFailed, match=r"I-43 1 rows are there twice, the first is \(0, 6\)"):
        check_once(Counter([*ROWS, (0, 6)]))


def test_a_row_may_be_there_as_often_as_its_task_was_run() -> None:
    reads = [read_of(3, 0)]
    twice = Counter([(0, 5), (0, 6), (0, 6)])
    assert check_copies(twice, reads, [write_of(3, 0), write_of(3, 0)]) == 1
    with pytest.raises(ChaosFailed, match=r"row \(0, 6\) is there 2 times, written 1"):
        check_copies(twice, reads, [write_of(3, 0), write_of(3, 1), write_of(2, 0)])


@pytest.mark.parametrize("other", [{"check": 98}, {"end": 8, "rows": 3}, {"start": 4, "rows": 3}])
def test_a_replay_that_reads_something_else_is_seen(other: dict[str, int]) -> None:
    assert check_reads([read_of(3, 0), read_of(3, 1), read_of(4, 0), read_of(3, 0)]) == 1
    with pytest.raises(ChaosFailed, match="I-43 task 0 of batch 3 read"):
        check_reads([read_of(3, 0), read_of(3, 0, **other)])


def test_a_read_with_rows_missing_is_seen() -> None:
    with pytest.raises(ChaosFailed, match="rows missing in a read"):
        check_reads([read_of(3, 0, rows=1)])


def test_a_batch_that_is_cut_otherwise_is_seen() -> None:
    ends = {0: {"t": 5}, 1: {"t": 9}}
    assert check_plans([plan_of(5, "a"), plan_of(9, "b"), plan_of(9, "b")], ends) == 1
    with pytest.raises(ChaosFailed, match=r"batch 1 was planned as \['b'\], then \['b', 'c'\]"):
        check_plans([plan_of(9, "b"), plan_of(9, "b", "c")], ends)
    with pytest.raises(ChaosFailed, match="I-43 a batch was planned and not logged"):
        check_plans([plan_of(7, "a")], ends)


def test_the_matrix_has_every_step_of_every_kind() -> None:
    cells = matrix()
    assert len(set(cells)) == len(cells)
    steps = {
        (victim, sink): {one.step for one in cells if (one.victim, one.sink) == (victim, sink)}
        for victim in Victim
        for sink in Sink
    }
    for victim in (Victim.DRIVER, Victim.WORKER, Victim.BROKER):
        assert steps[victim, Sink.TOPIC] == set(Step) - {Step.MANIFEST}
    assert Step.MANIFEST in steps[Victim.DRIVER, Sink.FILES] & steps[Victim.BROKER, Sink.FILES]
    assert all(step.is_in_task for step in steps[Victim.EXECUTOR, Sink.TOPIC])


def test_the_order_is_the_seeds_and_clusters_come_last() -> None:
    first, again, other = (cells_in_order(SeededRandomness(seed), "") for seed in (1, 1, 2))
    assert first == again != other
    is_last = [cell.victim is Victim.EXECUTOR for cell in first]
    assert is_last == sorted(is_last)
    with pytest.raises(ChaosFailed, match="no kill is named like 'nobody'"):
        cells_in_order(SeededRandomness(1), "nobody")


def test_without_rounds_everything_is_killed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []

    def run(
        rounds: int, seed: int, report: object, *, part: str, cells: str, is_ensemble: bool
    ) -> chaos.ChaosRun:
        del seed, report, is_ensemble
        asked.append((rounds, cells))
        return chaos.ChaosRun(rounds, Counter(), None)

    monkeypatch.setattr(chaos, "run_chaos", run)
    assert chaos.main(["--part", "spark"]) == 0
    assert chaos.main(["--part", "spark", "--cells", "executor"]) == 0
    assert chaos.main(["--part", "spark", "--rounds", "3"]) == 0
    executors = sum(cell.victim is Victim.EXECUTOR for cell in matrix())
    assert asked == [(len(matrix()), ""), (executors, "executor"), (3, "")]


def test_who_fits_is_held_until_it_may_go() -> None:
    gone = threading.Event()
    with ControlServer() as control:
        point = control.set_breakpoint(lambda report: report.what == "here")
        hook = Hook(str(control.path), "q")
        hook.report("there", batch=1, task=2, more=3)  # not held

        def wait() -> None:
            hook.report("here")
            gone.set()

        held = threading.Thread(target=wait)
        held.start()
        wait_until(point.is_hit.is_set, "it is held", timeout_s=10)
        assert not gone.is_set()
        hook.report("here")  # one at a time
        point.resume.set()
        held.join(10)
        assert gone.is_set()
        assert [one.facts for one in control.reports("q", "there")] == [{"more": 3}]
        assert len(control.reports("q", "here")) == 2
    hook.report("here")  # the server is gone: nothing waits


def test_a_step_that_is_not_reached_is_a_failure() -> None:
    with pytest.raises(ChaosFailed, match="not within 0 s: the step"):
        wait_until(lambda: False, "the step", timeout_s=0)


def test_checkpoint_and_manifest_are_read(tmp_path: Path) -> None:
    for folder in ("offsets", "commits", "files/_spark_metadata"):
        (tmp_path / folder).mkdir(parents=True)
    found = Checkpoint(tmp_path)
    assert (found.logged, found.committed) == (-1, -1)
    for batch, offset in ((0, 4), (10, 7)):
        document = json.dumps({"t": {"0": offset}})
        (tmp_path / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{document}\n")
    (tmp_path / "offsets" / ".11.tmp").write_text("")
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    assert (found.logged, found.committed) == (10, 0)
    assert found.positions(10, "t") == {0: 7}
    assert found.ends()[0] == {"t": {"0": 4}}
    logs = {"8": "old", "9.compact": "all", "10": "new"}
    for name, path in logs.items():
        entry = json.dumps({"path": f"file:///files/{path}"})
        (tmp_path / "files/_spark_metadata" / name).write_text(f"v1\n{entry}\n")
    manifest = Manifest(tmp_path / "files")
    assert sorted(manifest.files()) == [Path("/files/all"), Path("/files/new")]
    assert [manifest.has(batch) for batch in (9, 10, 11)] == [True, True, False]

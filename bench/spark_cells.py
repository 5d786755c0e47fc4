"""One cell of the Spark matrix: the same job with both connectors in turn.

Beside rows a second stand the CPU seconds per million rows of the driver's whole tree (its Python,
the JVM, the Python workers), which say more than the clock where broker and Spark share two cores.
A run whose row count is not the expected one ends the benchmark, and before a cell is measured both
connectors have to show that sums over keys and values are right: skipping work gives no advantage.
"""

import statistics
import sys
from collections.abc import Callable
from time import perf_counter as now_s
from typing import Any, NamedTuple

from bench.broker_cells import (
    ATTEMPTS_HERE,
    QUICK,
    Comparison,
    cost_row,
    others_seconds,
    recycle_pages,
    speed_row,
)
from bench.broker_systems import System, cpu_seconds
from bench.measure import OTHERS_MAX_CORES, Row, spread
from bench.spark_data import Check
from bench.spark_drivers import Driver, Drivers, tree_cpu_seconds

RUNS = 3
WARM_UPS = 2
"""The JVM's compiler is not done with a kind of job after one run of a few seconds."""
MILLION = 1_000_000
ROWS_STEP = 120_000
Answer = dict[str, Any]


class WrongRows(RuntimeError):
    """A connector returned, or stored, other rows than the topic or the frame has."""


class Job(NamedTuple):
    """`prepare` and `clean` are not measured; `clean` also gets to see what was stored."""

    run: Callable[[Driver, Any], Answer]
    rows: int
    prepare: Callable[[Driver], Any] = lambda _driver: None
    clean: Callable[[Driver, Any], int | None] = lambda _driver, _prepared: None
    """Gives the number of rows that were stored, if that is how they are counted."""
    written_bytes: int = 0


class Sample(NamedTuple):
    """One run."""

    speed: float
    steady_speed: float
    cpu_seconds: float
    """CPU seconds of the driver's process tree, per million rows."""
    broker_cpu_seconds: float
    others_cores: float


class Found(NamedTuple):
    """A cell: for both connectors all their runs."""

    ours: list[Sample]
    peer: list[Sample]

    @property
    def others_cores(self) -> float:
        return round(max(one.others_cores for one in self.ours + self.peer), 2)


class Bench(NamedTuple):
    """The systems that run while a cell is measured."""

    drivers: Drivers
    broker: System
    """The broker that serves both connectors."""
    brokers: tuple[System, ...]
    """All that run, also those that are idle now."""


def verify(what: str, job: Callable[[Driver], Answer], expected: Check, drivers: Drivers) -> None:
    """Both connectors, not timed."""
    for driver in drivers:
        answer = job(driver)
        found = Check(**{name: int(answer[name] or 0) for name in Check._fields})
        if found != expected:
            raise WrongRows(f"{what}, {driver.name}: {found} instead of {expected}")


def compare(what: str, job: Job, bench: Bench) -> Found:
    """Warm-ups, then A B B A; all of it again when others were busy."""
    for _ in range(ATTEMPTS_HERE):
        found = _series(what, job, bench)
        if found.others_cores <= OTHERS_MAX_CORES:
            break
        print(f"  others took {found.others_cores} cores", file=sys.stderr)
    return found


def _series(what: str, job: Job, bench: Bench) -> Found:
    for driver in bench.drivers * WARM_UPS:
        sample(what, job, driver, bench)
    found: dict[str, list[Sample]] = {driver.name: [] for driver in bench.drivers}
    for run in range(RUNS):
        for driver in bench.drivers if run % 2 == 0 else reversed(bench.drivers):
            found[driver.name].append(sample(what, job, driver, bench))
    return Found(*(found[driver.name] for driver in bench.drivers))


def sample(what: str, job: Job, driver: Driver, bench: Bench) -> Sample:
    prepared = job.prepare(driver)
    if job.written_bytes:
        recycle_pages(job.written_bytes)
    try:
        before, wall = _used(driver, bench), now_s()
        answer = job.run(driver, prepared)
        wall, after = now_s() - wall, _used(driver, bench)
    finally:
        stored = job.clean(driver, prepared)
    rows = answer.get("rows", stored) if stored is None else stored
    if rows != job.rows:
        raise WrongRows(f"{what}, {driver.name}: {rows} rows instead of {job.rows}")
    tree, broker, others = (now - then for now, then in zip(after, before, strict=True))
    millions = job.rows / MILLION
    speed = job.rows / answer["seconds"]
    return Sample(
        speed, _steady(answer, speed), tree / millions, broker / millions, max(0.0, others) / wall
    )


def _used(driver: Driver, bench: Bench) -> tuple[float, float, float]:
    """CPU so far: of the driver's tree, of the broker, of everything else."""
    trees = {one.name: tree_cpu_seconds(one.process_id) for one in bench.drivers}
    others = others_seconds(bench.brokers) - sum(trees.values())
    return trees[driver.name], cpu_seconds(bench.broker.process_ids), others


def _steady(answer: Answer, otherwise: float) -> float:
    """The median of the full micro-batches after the first, which includes the start."""
    batches = answer.get("batches") or []
    most = max((rows for rows, _ in batches), default=0)
    speeds = [rows / seconds for rows, seconds in batches[1:] if rows > most / 2]
    return float(statistics.median(speeds)) if speeds else otherwise


def rows_of(identity: str, what: str, found: Found, *, at_least: float | None) -> list[Row]:
    """Rows a second with the goal, and what it cost."""
    speed = _comparison(found, lambda one: one.speed, lambda one: one.cpu_seconds)
    broker = _comparison(found, lambda one: one.speed, lambda one: one.broker_cpu_seconds)
    rows = [speed_row(f"{identity}.speed", f"{what}, rows/s", speed, at_least=at_least)]
    rows.append(cost_row(f"{identity}.cpu", f"{what}, Spark CPU s/M rows", speed, at_most=None))
    rows.append(
        cost_row(f"{identity}.broker", f"{what}, broker CPU s/M rows", broker, at_most=None)
    )
    return rows


def steady_row(identity: str, what: str, found: Found, *, at_least: float | None) -> Row:
    steady = _comparison(found, lambda one: one.steady_speed, lambda one: one.cpu_seconds)
    return speed_row(f"{identity}.steady", f"{what}, steady rows/s", steady, at_least=at_least)


def _comparison(
    found: Found, speed: Callable[[Sample], float], cost: Callable[[Sample], float]
) -> Comparison:
    return Comparison(
        spread(list(map(speed, found.ours))),
        spread(list(map(speed, found.peer))),
        spread(list(map(cost, found.ours))),
        spread(list(map(cost, found.peer))),
        found.others_cores,
    )


def sized(full: int) -> int:
    """A third of the rows in a quick run; always whole blocks for every file and partition."""
    wanted = full // 3 if QUICK else full
    return wanted // ROWS_STEP * ROWS_STEP

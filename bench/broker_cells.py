"""One cell of the matrix: the same load on both systems in turn, speed and broker CPU beside it.

The CPU of the broker's process is the first figure: the client shares the machine and hides the
broker. Other processes' CPU is everything that was used less both brokers, the generator, this
process and the kernel's own threads, which write back what the systems wrote.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter as now_s
from typing import Any, NamedTuple

from bench.broker_systems import (
    TICKS,
    System,
    Systems,
    cpu_seconds,
    kernel_thread_seconds,
)
from bench.measure import ATTEMPTS, OTHERS_MAX_CORES, RUNS, Row, Spread, spread

QUICK = bool(os.environ.get("QUICK"))
"""A few cells, three runs each, none repeated: for orientation, not for a claim."""
RUNS_HERE = 3 if QUICK else RUNS
ATTEMPTS_HERE = 1 if QUICK else ATTEMPTS


class Done(NamedTuple):
    """The result of a generator: `units` in `seconds`, and the `amount` that costs refer to."""

    units: float
    seconds: float
    amount: float


class Sample(NamedTuple):
    """One run."""

    speed: float
    cost: float
    others_cores: float


class Load(NamedTuple):
    """`prepare` and `clean` are not measured. `prepare` gives what the other two need."""

    prepare: Callable[[System], Any]
    run: Callable[[System, Any], Done]
    clean: Callable[[System, Any], None]
    written_bytes: int = 0
    """How many bytes the broker will write: their pages are prepared before the run."""


class Comparison(NamedTuple):
    """A cell: two figures of two systems."""

    ours_speed: Spread
    peer_speed: Spread
    ours_cost: Spread
    peer_cost: Spread
    others_cores: float


def compare(load: Load, systems: Systems, *, runs: int = RUNS_HERE) -> Comparison:
    """One warm-up each, then A B B A; all of it again when others were busy."""
    for _ in range(ATTEMPTS_HERE):
        found = _series(load, systems, runs)
        if found.others_cores <= OTHERS_MAX_CORES:
            break
        print(f"  others took {found.others_cores} cores", file=sys.stderr)
    return found


def _series(load: Load, systems: Systems, runs: int) -> Comparison:
    for system in systems:
        sample(load, system, systems)
    samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
    for run in range(runs):
        for system in systems if run % 2 == 0 else reversed(systems):
            samples[system.name].append(sample(load, system, systems))
    ours, peer = (samples[system.name] for system in systems)
    return Comparison(
        spread([one.speed for one in ours]),
        spread([one.speed for one in peer]),
        spread([one.cost for one in ours]),
        spread([one.cost for one in peer]),
        round(max(one.others_cores for one in ours + peer), 2),
    )


def sample(load: Load, system: System, running: tuple[System, ...]) -> Sample:
    """One run on `system` while all of `running` are up."""
    prepared = load.prepare(system)
    if load.written_bytes:
        recycle_pages(load.written_bytes)
    try:
        before, own, wall = others_seconds(running), cpu_seconds(system.process_ids), now_s()
        done = load.run(system, prepared)
        own, wall = cpu_seconds(system.process_ids) - own, now_s() - wall
        others = max(0.0, others_seconds(running) - before) / wall
    finally:
        load.clean(system, prepared)
    return Sample(done.units / done.seconds, own / done.amount, others)


def recycle_pages(size_bytes: int) -> None:
    """Write a file of that size and remove it: its pages are the next to be used.

    A virtual machine gives free memory back to its host after a few seconds; the first to touch it
    then pays several times more, and which of the two systems that is would be chance.
    """
    descriptor, path = tempfile.mkstemp(prefix="bench-pages-", dir="build")
    try:
        chunk = bytes(1 << 20)
        for _ in range(size_bytes // len(chunk) + 1):
            os.write(descriptor, chunk)
    finally:
        os.close(descriptor)
        os.unlink(path)


def others_seconds(running: tuple[System, ...]) -> float:
    """CPU so far of everything that is not part of the measurement."""
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    ours += sum(cpu_seconds(system.process_ids) for system in running)
    return _machine_seconds() - ours - kernel_thread_seconds()


def _machine_seconds() -> float:
    """User, nice and system time of all processors."""
    numbers = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:4]
    return sum(map(int, numbers)) / TICKS


def speed_row(identity: str, what: str, found: Comparison, *, at_least: float | None) -> Row:
    """More is better."""
    judged = goal(found.ours_speed.median / found.peer_speed.median, at_least=at_least)
    pair = (found.ours_speed, found.peer_speed)
    return print_row(_row(identity, what, pair, found.others_cores) | judged)


def cost_row(identity: str, what: str, found: Comparison, *, at_most: float | None) -> Row:
    """Less is better."""
    judged = goal(found.ours_cost.median / found.peer_cost.median, at_most=at_most)
    pair = (found.ours_cost, found.peer_cost)
    return print_row(_row(identity, what, pair, found.others_cores) | judged)


def goal(ratio: float, *, at_least: float | None = None, at_most: float | None = None) -> Row:
    """The verdict of a row. A goal that is missed by less than the rounding is still missed."""
    wanted = at_least if at_least is not None else at_most
    is_met = None
    if at_least is not None:
        is_met = ratio >= at_least
    elif at_most is not None:
        is_met = ratio <= at_most
    return {
        "ratio": round(ratio, 3),
        "goal": wanted,
        "goal_is_most": at_most is not None,
        "met": is_met,
    }


def lower_is_better(
    identity: str, what: str, ours: list[float], peer: list[float], *, at_most: float | None
) -> Row:
    """A row of figures that were taken without a load generator: seconds, bytes."""
    mine, theirs = spread(ours), spread(peer)
    judged = goal(mine.median / theirs.median, at_most=at_most)
    return print_row(_row(identity, what, (mine, theirs), None) | judged)


def _row(identity: str, what: str, pair: tuple[Spread, Spread], others: float | None) -> Row:
    ours, peer = pair
    found: Row = {
        "id": identity,
        "what": what,
        "ours": _rounded(ours.median),
        "ours_range": [_rounded(ours.low), _rounded(ours.high)],
        "peer": _rounded(peer.median),
        "peer_range": [_rounded(peer.low), _rounded(peer.high)],
        "ranges_overlap": ours.low <= peer.high and peer.low <= ours.high,
    }
    if others is not None:
        found["others_cores"] = others
        found["disturbed"] = others > OTHERS_MAX_CORES
    return found


def print_row(row: Row) -> Row:
    """Print a line as soon as a figure is known: the whole matrix takes long."""
    marks = {None: "", True: "met", False: "MISSED"}[row["met"]]
    line = f"{row['what']}: {row['ours']} / {row['peer']} = {row['ratio']} {marks}"
    print(line, row.get("ours_range"), row.get("peer_range"), file=sys.stderr, flush=True)
    return row


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value)

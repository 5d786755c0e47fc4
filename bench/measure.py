"""How every part measures: ours and the peer alternate, with ranges and the CPU of others."""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

OTHERS_MAX_CORES = 0.1
"""When other processes take more CPU than this, the cell is measured again."""
ATTEMPTS = 3
RUNS = 4
Row = dict[str, Any]


class Spread(NamedTuple):
    """Median and range of one system's runs."""

    median: float
    low: float
    high: float


class Pair(NamedTuple):
    """Both systems' speeds from one alternating series."""

    ours: Spread
    peer: Spread
    others_cores: float


def busy_seconds() -> float:
    """CPU seconds that all processes together have used since the machine started."""
    numbers = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle = int(numbers[3]) + int(numbers[4])
    return (sum(map(int, numbers)) - idle) / os.sysconf("SC_CLK_TCK")


def spread(speeds: list[float]) -> Spread:
    return Spread(statistics.median(speeds), min(speeds), max(speeds))


def alternate(ours: Callable[[], float], peer: Callable[[], float], *, runs: int = RUNS) -> Pair:
    """Each call gives a speed. One warm-up each, then A B B A; again if others were busy."""
    for _ in range(ATTEMPTS):
        pair = _series(ours, peer, runs)
        if pair.others_cores <= OTHERS_MAX_CORES:
            break
    return pair


def _series(ours: Callable[[], float], peer: Callable[[], float], runs: int) -> Pair:
    ours()
    peer()
    mine: list[float] = []
    theirs: list[float] = []
    busy, own, wall = busy_seconds(), time.process_time(), time.perf_counter()
    for run in range(runs):
        order = [(ours, mine), (peer, theirs)]
        for work, speeds in order if run % 2 == 0 else reversed(order):
            speeds.append(work())
    own, wall = time.process_time() - own, time.perf_counter() - wall
    others = max(0.0, busy_seconds() - busy - own) / wall
    return Pair(spread(mine), spread(theirs), round(others, 2))


def row(identity: str, what: str, pair: Pair, *, goal: float | None) -> Row:
    """A comparison in the form of the result files; `goal` is for the ratio."""
    ratio = pair.ours.median / pair.peer.median
    return {
        "id": identity,
        "what": what,
        "ours": round(pair.ours.median, 1),
        "ours_range": [round(pair.ours.low, 1), round(pair.ours.high, 1)],
        "peer": round(pair.peer.median, 1),
        "peer_range": [round(pair.peer.low, 1), round(pair.peer.high, 1)],
        "ratio": round(ratio, 3),
        "goal": goal,
        "met": None if goal is None else ratio >= goal,
        "others_cores": pair.others_cores,
        "disturbed": pair.others_cores > OTHERS_MAX_CORES,
    }


def fact(identity: str, what: str, value: float, *, ratio: float | None = None) -> Row:
    """A figure without a peer."""
    empty: dict[str, Any] = {"peer": None, "ratio": ratio, "goal": None, "met": None}
    return {"id": identity, "what": what, "ours": round(value, 2), **empty}


def save(part: str, rows: list[Row], directory: Path) -> Path:
    """Write `build/bench/PART.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{part}.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return path

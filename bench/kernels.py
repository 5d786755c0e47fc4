"""How fast the column kernels decode and encode records of 100 bytes.

Run: `python -m bench.kernels`. The peer is the plain-Python twin, for context: what the compiled
core buys. Figures are records per second of CPU time of the measuring thread, because other
processes share the machine; on an idle one that is the wall clock. Every cell has one discarded
warm-up and its median and range are given. How much CPU others took is beside it: a cell where
that was too much is measured again, at most twice, and then marked.
"""

import importlib
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.measure import ATTEMPTS, OTHERS_MAX_CORES, busy_seconds
from millstream.kernels.column_types import BinaryColumn, DecodeOptions, RecordColumns

ROWS = 80_000
ROWS_PLAIN = 8_000
RUNS = 15
KIB = 1024
BATCH_BYTES = {"16 KB": 16 * KIB, "128 KB": 128 * KIB, "1 MB": 1024 * KIB}
GOALS = {
    ("decode", "16 KB"): 15e6,
    ("decode", "1 MB"): 20e6,
    ("encode", "1 MB"): 20e6,
}


class Shape(NamedTuple):
    """Key and value sizes of a record; a key of 0 bytes is null."""

    name: str
    key_bytes: int
    value_bytes: int


SHAPES = (Shape("no key, 100 B value", 0, 100), Shape("16 B key, 84 B value", 16, 84))


class Figures(NamedTuple):
    """Records per second of CPU time, and the cores that others kept busy meanwhile."""

    median: float
    low: float
    high: float
    others_cores: float


def columns_of(shape: Shape, rows: int) -> RecordColumns:
    def column(size: int) -> BinaryColumn:
        data = bytes(range(256)) * (size * rows // 256 + 1)
        return BinaryColumn(offsets=array("i", range(0, size * rows + 1, size)), data=data)

    return RecordColumns(
        rows=rows,
        timestamps=array("q", (1_700_000_000_000 + row // 10 for row in range(rows))),
        keys=column(shape.key_bytes) if shape.key_bytes else None,
        values=column(shape.value_bytes),
    )


def _run(work: Callable[[], object], records: int, runs: int) -> Figures:
    work()
    speeds = []
    busy, own, wall = busy_seconds(), time.process_time(), time.perf_counter()
    for _ in range(runs):
        start = time.thread_time()
        work()
        speeds.append(records / (time.thread_time() - start))
    own, wall = time.process_time() - own, time.perf_counter() - wall
    others = max(0.0, busy_seconds() - busy - own) / wall
    return Figures(statistics.median(speeds), min(speeds), max(speeds), round(others, 2))


def _figures(work: Callable[[], object], records: int, runs: int) -> Figures:
    for _ in range(ATTEMPTS):
        figures = _run(work, records, runs)
        if figures.others_cores <= OTHERS_MAX_CORES:
            break
    return figures


def _work(twin: str, what: str, shape: Shape, rows: int, size_max: int) -> Callable[[], object]:
    decoder: Any = importlib.import_module(f"millstream.kernels.{twin}.column_decode")
    encoder: Any = importlib.import_module(f"millstream.kernels.{twin}.column_encode")
    columns = columns_of(shape, rows)
    if what == "encode":
        return lambda: encoder.encode_many(columns, 0, rows, size_max=size_max)
    batches = encoder.encode_many(columns, 0, rows, size_max=size_max)
    data = b"".join(batch for batch, _ in batches)
    options = DecodeOptions(check_crc=what == "decode")
    return lambda: decoder.decode(data, 0, len(data), options)


def _row(what: str, shape: Shape, batch: str) -> dict[str, Any]:
    size_max = BATCH_BYTES[batch]
    ours = _figures(_work("_compiled", what, shape, ROWS, size_max), ROWS, RUNS)
    peer = _run(_work("_plain", what, shape, ROWS_PLAIN, size_max), ROWS_PLAIN, 1)
    goal = GOALS.get((what, batch))
    return {
        "id": f"kernels.{what.replace(' ', '_')}.{batch.replace(' ', '')}.key{shape.key_bytes}",
        "what": f"{what}, {batch} batches, {shape.name}, records per CPU second",
        "ours": round(ours.median),
        "ours_range": [round(ours.low), round(ours.high)],
        "peer": round(peer.median),
        "ratio": round(ours.median / peer.median, 1),
        "goal": goal,
        "met": None if goal is None else ours.median >= goal,
        "others_cores": ours.others_cores,
        "disturbed": ours.others_cores > OTHERS_MAX_CORES,
    }


def measure() -> list[dict[str, Any]]:
    """One row per cell; the peer is the plain twin, measured once for context."""
    return [
        _row(what, shape, batch)
        for shape in SHAPES
        for what in ("decode", "decode without CRC", "encode")
        for batch in BATCH_BYTES
    ]


def main() -> None:
    print(f"{'':58} {'M rec/s':>8} {'range':>13} {'plain':>6} {'goal':>5}  met  others")
    for row in measure():
        low, high = (value / 1e6 for value in row["ours_range"])
        goal = "" if row["goal"] is None else f"{row['goal'] / 1e6:.0f}"
        met = {None: "", True: "yes", False: "NO"}[row["met"]]
        what = row["what"].removesuffix(", records per CPU second")
        print(
            f"{what:58} {row['ours'] / 1e6:8.1f} {low:6.1f}-{high:6.1f} {row['peer'] / 1e6:6.2f}"
            f" {goal:>5}  {met:4} {row['others_cores']:.2f}{' !' if row['disturbed'] else ''}"
        )


if __name__ == "__main__":
    main()

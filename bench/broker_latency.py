"""PF4: from the moment a record is due to its arrival at a consumer, at a steady 5,000 a second."""

from collections.abc import Mapping
from typing import Any

from bench.broker_cells import (
    ATTEMPTS_HERE,
    QUICK,
    RUNS_HERE,
    lower_is_better,
    others_seconds,
)
from bench.broker_generators import run
from bench.broker_systems import System, Systems
from bench.broker_wire import create_topic, delete_topics
from bench.measure import OTHERS_MAX_CORES, Row

RATE = 5_000
RECORD_BYTES = 100
SECONDS = 3 if QUICK else 10
WARM_UP_SECONDS = 2
PARTS = ("p50", "p99")
AT_MOST = {"p50": 0.5, "p99": 0.3}


def measure(
    systems: Systems,
    *,
    group: str = "broker.latency",
    name: str = "PF4 end to end",
    at_most: Mapping[str, float] = AT_MOST,
) -> list[Row]:
    for _ in range(ATTEMPTS_HERE):
        figures, others_cores = _series(systems)
        if others_cores <= OTHERS_MAX_CORES:
            break
    rows: list[Row] = []
    for part in PARTS:
        ours, peer = ([one[f"{part}_us"] for one in figures[each.name]] for each in systems)
        what = f"{name} at {RATE} msg/s, acks=all, {part}, us"
        row = lower_is_better(f"{group}.{part}", what, ours, peer, at_most=at_most.get(part))
        disturbed = others_cores > OTHERS_MAX_CORES
        rows.append(row | {"others_cores": others_cores, "disturbed": disturbed})
    return rows


def _series(systems: Systems) -> tuple[dict[str, list[dict[str, Any]]], float]:
    """One warm-up each, then A B B A; the most that others took in a run."""
    figures: dict[str, list[dict[str, Any]]] = {system.name: [] for system in systems}
    others = 0.0
    for system in systems:
        _one(system)
    for number in range(RUNS_HERE):
        for system in systems if number % 2 == 0 else reversed(systems):
            before = others_seconds(systems)
            figures[system.name].append(_one(system))
            took = others_seconds(systems) - before
            others = max(others, took / (SECONDS + WARM_UP_SECONDS))
    return figures, round(others, 2)


def _one(system: System) -> dict[str, Any]:
    topic = create_topic(system.address, 1)
    try:
        return run(
            "latency",
            system.address,
            topic.name,
            RATE,
            RECORD_BYTES,
            SECONDS,
            WARM_UP_SECONDS,
        )
    finally:
        delete_topics(system.address, [topic])

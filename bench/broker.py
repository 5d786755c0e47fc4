"""Ours and Apache Kafka side by side with the same clients (`make bench PART=broker`).

QUICK=1 runs a few cells with short runs. CELLS=requests,produce picks groups, in the order given.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    broker_consume,
    broker_latency,
    broker_memory,
    broker_produce,
    broker_requests,
    broker_scale,
    broker_start,
)
from bench.broker_generators import build
from bench.broker_systems import Systems, page_cache_seconds_per_gb, running
from bench.broker_wire import create_topic, delete_topics
from bench.measure import Row, fact
from millstream.testing.peers.runtimes import MissingRuntimeError

GROUPS: dict[str, Callable[[Systems], list[Row]]] = {
    "requests": broker_requests.measure,
    "produce": broker_produce.measure,
    "consume": broker_consume.measure,
    "latency": broker_latency.measure,
    "memory": broker_memory.measure,
    "start": broker_start.measure,
    "scale": broker_scale.measure,
}
"""Memory is measured after the load; the groups after it start systems of their own."""
EXCLUSIVE = {"start", "scale"}
WARM_UP_RECORDS = 3_000_000
WARM_UP_SECONDS = 5.0


def measure() -> list[Row]:
    try:
        build()
    except MissingRuntimeError as error:
        sys.exit(f"bench: {error}")
    chosen = os.environ.get("CELLS", ",".join(GROUPS)).split(",")
    Path("build").mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir="build"))
    cost = page_cache_seconds_per_gb(directory)
    rows = [fact("broker.page_cache", "dd of new files, CPU s/GB, paid by both systems", cost)]
    with running(directory) as systems:
        if set(chosen) - EXCLUSIVE:
            warm_up(systems)
        for name in chosen:
            rows += GROUPS[name](systems)
    return rows


def warm_up(systems: Systems) -> None:
    """A JVM is slow until its compiler has seen the load."""
    shape = broker_produce.Shape(100, "16 KB", 6)
    for system in systems:
        topic = create_topic(system.address, shape.partitions)
        broker_produce.produce(system, topic, shape, WARM_UP_RECORDS)
        broker_consume.consume(system, topic, WARM_UP_RECORDS)
        broker_requests.send(system, topic, connections=10, in_flight=5, seconds=WARM_UP_SECONDS)
        delete_topics(system.address, [topic])

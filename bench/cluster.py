"""Clusters of ours and of Apache Kafka side by side (`make bench PART=cluster`).

QUICK=1 runs a few cells with short runs. CELLS=produce,failover picks groups, in the order given.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    cluster_failover,
    cluster_partitions,
    cluster_produce,
    cluster_replication,
    cluster_requests,
    cluster_start,
)
from bench.broker_cells import QUICK
from bench.broker_generators import build
from bench.broker_produce import Shape, produce
from bench.broker_requests import send
from bench.broker_systems import page_cache_seconds_per_gb
from bench.broker_wire import create_topic, delete_topics
from bench.cluster_systems import Clusters, running
from bench.measure import Row, fact
from millstream.testing.peers.runtimes import MissingRuntimeError

GROUPS: dict[str, Callable[[Clusters], list[Row]]] = {
    "produce": cluster_produce.measure,
    "requests": cluster_requests.measure,
    "latency": cluster_requests.measure_latency,
    "replication": cluster_replication.measure,
    "failover": cluster_failover.measure,
}
"""On clusters of three that run all the time."""
EXCLUSIVE: dict[str, Callable[[], list[Row]]] = {
    "start": cluster_start.measure,
    "partitions": cluster_partitions.measure,
}
"""These start systems of their own, and need the whole machine."""
WARM_UP_RECORDS = 200_000 if QUICK else 1_000_000
WARM_UP_SECONDS = 2.0 if QUICK else 5.0


def measure() -> list[Row]:
    try:
        build()
    except MissingRuntimeError as error:
        sys.exit(f"bench: {error}")
    chosen = os.environ.get("CELLS", ",".join([*GROUPS, *EXCLUSIVE])).split(",")
    unknown = [name for name in chosen if name not in {**GROUPS, **EXCLUSIVE}]
    if unknown:
        sys.exit(f"bench: no such cells: {', '.join(unknown)}; {', '.join([*GROUPS, *EXCLUSIVE])}")
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="build") as scratch:
        cost = page_cache_seconds_per_gb(Path(scratch))
        rows = [fact("cluster.page_cache", "dd of new files, CPU s/GB, paid by both systems", cost)]
        on_clusters = [name for name in chosen if name in GROUPS]
        if on_clusters:
            with running(Path(scratch) / "clusters") as clusters:
                warm_up(clusters)
                for name in on_clusters:
                    rows += GROUPS[name](clusters)
    for name in chosen:
        if name in EXCLUSIVE:
            rows += EXCLUSIVE[name]()
    return rows


def warm_up(clusters: Clusters) -> None:
    """A JVM is slow until its compiler has seen the load."""
    shape = Shape(100, "16 KB", 6)
    for system in clusters.systems:
        topic = create_topic(system.address, shape.partitions)
        produce(system, topic, shape, WARM_UP_RECORDS, acks="all")
        delete_topics(system.address, [topic])
        topic = create_topic(system.address, 1)
        send(system, topic, connections=10, in_flight=5, seconds=WARM_UP_SECONDS)
        delete_topics(system.address, [topic])

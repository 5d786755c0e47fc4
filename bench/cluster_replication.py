"""How fast a follower copies a log that exists, and what leader and follower need for it.

A topic with one replica is filled, then a second broker gets it (AlterPartitionReassignments): from
the request to the moment when the new replica is in sync. No start of a process is in it.
"""

import time
import uuid

from bench.broker_cells import QUICK, Done, Load, compare, cost_row, speed_row
from bench.broker_produce import PAGES_PER_BYTE, Shape, produce
from bench.broker_systems import System
from bench.broker_wire import Topic, delete_topics
from bench.cluster_systems import Clusters
from bench.cluster_wire import create_on, reassign, view_of, wait_for
from bench.measure import Row

FILLED_BYTES = 200_000_000 if QUICK else 600_000_000
SHAPES = (Shape(1_000, "128 KB", 1), Shape(1_000, "16 KB", 6))
LEADER, FOLLOWER = 1, 2
TIMEOUT_S = 300.0


def measure(clusters: Clusters) -> list[Row]:
    rows: list[Row] = []
    for shape in SHAPES:
        found = compare(copy_load(shape), clusters.systems)
        identity, name = f"cluster.copy.{shape.identity}", f"replication of a log, {shape.name}"
        rows.append(speed_row(f"{identity}.speed", f"{name}, MB/s", found, at_least=None))
        what = f"{name}, CPU s/GB of all brokers"
        row = cost_row(f"{identity}.cpu", what, found, at_most=None)
        rows.append(row)
        rows.append(per_core(f"{identity}.core", f"{name}, MB/s per core", row))
    return rows


def per_core(identity: str, what: str, cost: Row) -> Row:
    """The inverse of that figure: what one core of brokers' time copies in a second."""
    turned = {name: round(1000 / cost[name]) for name in ("ours", "peer")}
    ranges = {
        f"{name}_range": [round(1000 / one) for one in reversed(cost[f"{name}_range"])]
        for name in turned
    }
    return {**cost, "id": identity, "what": what, **turned, **ranges, "ratio": 1 / cost["ratio"]}


def copy_load(shape: Shape) -> Load:
    return Load(
        lambda system: _filled(system, shape),
        _copy,
        lambda system, topic: delete_topics(system.address, [topic]),
        written_bytes=int(FILLED_BYTES * PAGES_PER_BYTE),
    )


def _filled(system: System, shape: Shape) -> Topic:
    name = f"bench-{uuid.uuid4().hex[:12]}"
    topic = create_on(system.address, name, [[LEADER]] * shape.partitions)
    produce(system, topic, shape, FILLED_BYTES // shape.record_bytes)
    return topic


def _copy(system: System, topic: Topic) -> Done:
    begin = time.perf_counter()
    reassign(system.address, topic, [[LEADER, FOLLOWER]] * topic.partitions)
    both = {LEADER, FOLLOWER}

    def is_copied() -> bool:
        return all(one.isr == both for one in view_of(system.address, topic).values())

    wait_for(is_copied, f"{topic.name} is copied", timeout_s=TIMEOUT_S)
    seconds = time.perf_counter() - begin
    return Done(FILLED_BYTES / 1e6, seconds, FILLED_BYTES / 1e9)

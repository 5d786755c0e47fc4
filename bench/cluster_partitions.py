"""PF11: ten thousand partitions on one broker: creation, restart, memory and idle CPU.

Ours is a broker with its keeper, both counted; Kafka's is broker and controller in one. They run
one after the other: idle figures are of a machine that has nothing else to do.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_systems import (
    Kafka,
    System,
    cpu_seconds,
    resident_bytes,
    wait_seconds,
)
from bench.broker_wire import (
    CREATE_TIMEOUT_MS,
    CREATE_TOPICS_VERSION,
    Topic,
    send_and_receive,
    takes_record,
)
from bench.cluster_systems import MillstreamCluster
from bench.cluster_wire import view_of, wait_for
from bench.measure import Row
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

PARTITIONS = 1_000 if QUICK else 10_000
PER_TOPIC = 100
TOPICS_PER_REQUEST = 10
"""Kafka's controller refuses requests that make more than ten thousand records."""
RUNS = 1 if QUICK else 3
IDLE_WAIT_S = 5.0 if QUICK else 15.0
IDLE_S = 5.0 if QUICK else 20.0
TIMEOUT_S = 300.0
AT_MOST = 0.5
MIB = 1 << 20
FIGURES = {
    "create": "creation, s",
    "restart": "restart to a record in every topic, s",
    "memory": "resident memory, MiB",
    "idle": "idle CPU, cores",
}


def measure() -> list[Row]:
    makers: list[tuple[str, Callable[[Path], System]]]
    makers = [("ours", _one_of_ours), ("peer", Kafka)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name, _ in makers}
    for number in range(RUNS):
        for name, make in makers if number % 2 == 0 else reversed(makers):
            with tempfile.TemporaryDirectory(prefix="bench-many-", dir="build") as scratch:
                found[name].append(_one_run(make(Path(scratch) / "it")))
    rows: list[Row] = []
    for figure, name in FIGURES.items():
        ours, peer = ([run[figure] for run in runs] for runs in found.values())
        what = f"PF11 {PARTITIONS} partitions on a broker, {name}"
        identity = f"cluster.partitions.{figure}"
        rows.append(lower_is_better(identity, what, ours, peer, at_most=AT_MOST))
    return rows


def _one_of_ours(directory: Path) -> MillstreamCluster:
    return MillstreamCluster(directory, 1)


def _one_run(system: System) -> dict[str, float]:
    try:
        system.start()
        begin = time.perf_counter()
        topics = _create(system.address)
        _wait_until_served(system.address, topics)
        create_s = time.perf_counter() - begin
        wait_seconds(IDLE_WAIT_S)
        idle, memory = _idle_cores(system), resident_bytes(system.process_ids) / MIB
        system.stop()
        begin = time.perf_counter()
        system.start()
        _wait_until_served(system.address, topics)
        restart_s = time.perf_counter() - begin
    finally:
        system.stop()
    return {"create": create_s, "restart": restart_s, "memory": memory, "idle": idle}


def _create(address: str) -> list[Topic]:
    topics: list[Topic] = []
    while len(topics) < PARTITIONS // PER_TOPIC:
        names = [f"many-{len(topics) + number}" for number in range(TOPICS_PER_REQUEST)]
        wanted = [
            CreatableTopic(name=name, num_partitions=PER_TOPIC, replication_factor=1)
            for name in names
        ]
        request = CreateTopicsRequest(topics=wanted, timeout_ms=CREATE_TIMEOUT_MS)
        for created in send_and_receive(address, request, CREATE_TOPICS_VERSION).topics:
            if created.error_code:
                raise RuntimeError(f"{address}: topic not created: {created.error_code}")
            topics.append(Topic(created.name, created.topic_id, PER_TOPIC))
    return topics


def _wait_until_served(address: str, topics: list[Topic]) -> None:
    """Wait until every partition has a leader, and the last one of every topic accepts a record."""
    for topic in topics:

        def is_served(topic: Topic = topic) -> bool:
            found = view_of(address, topic)
            is_led = len(found) == PER_TOPIC and all(one.leader >= 0 for one in found.values())
            return is_led and takes_record(address, topic, PER_TOPIC - 1)

        wait_for(is_served, f"{topic.name} is served", timeout_s=TIMEOUT_S)


def _idle_cores(system: System) -> float:
    before, begin = cpu_seconds(system.process_ids), time.perf_counter()
    wait_seconds(IDLE_S)
    return (cpu_seconds(system.process_ids) - before) / (time.perf_counter() - begin)

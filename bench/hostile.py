"""What one client can do to another, attack by attack (`make bench PART=hostile`).

One broker of ours, a quiet client that produces at a steady rate, and one attack of `make chaos
PART=hostile` at a time: the worst wait of the quiet client, its 99th percentile, the broker's CPU
time and its memory at the most. There is no peer. CELLS=text picks the attacks with that text in
their names; QUICK=1 leaves the largest arrays of every API out, and floods for a shorter time.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.broker_cells import QUICK
from bench.broker_systems import Millstream, cpu_seconds
from bench.broker_wire import create_topic
from bench.measure import Row, fact
from millstream.model.limits import MIB
from millstream.testing.chaos.hostile.attack import Attack, Target
from millstream.testing.chaos.hostile.catalogue import all_attacks
from millstream.testing.chaos.hostile.large_requests import ARRAYS_PREFIX
from millstream.testing.chaos.hostile.probe import ProbeTask
from millstream.testing.chaos.hostile.processes import AttackerProcess, ProbeProcess
from millstream.testing.chaos.hostile.verdict import P99_MAX_MS
from millstream.testing.chaos.hostile.watch import MemoryWatch, ProbeReader, Waits, waits_of
from millstream.testing.chaos.network.world import Node
from millstream.testing.peers.kafka import free_ports
from millstream.testing.wait_until import wait_until

SECONDS = 3.0 if QUICK else 6.0
TAIL_S = 1.0
PROBE_MAX_S = 120.0
PARTITIONS = 6
BROKER_ID = "1"
NO_NETWORK: Any = None
"""Nothing connects from the node: its processes run in this machine's own network."""


class Figures(NamedTuple):
    """What one attack did."""

    waits: Waits
    cpu_s: float
    grown_bytes: int


def measure() -> list[Row]:
    wanted = os.environ.get("CELLS", "")
    chosen = [one for one in all_attacks() if wanted in one.name and not one.is_for_cluster]
    if QUICK:
        chosen = [one for one in chosen if not one.name.startswith(ARRAYS_PREFIX)]
    if not chosen:
        sys.exit(f"bench: no attack has {wanted!r} in its name")
    Path("build").mkdir(exist_ok=True)
    rows: list[Row] = []
    for attack in chosen:
        with tempfile.TemporaryDirectory(prefix="bench-", dir="build") as scratch:
            rows += _rows(attack.name, _run(attack, Path(scratch).absolute()))
    return rows


def _rows(name: str, figures: Figures) -> list[Row]:
    waits = figures.waits
    p99 = fact(f"hostile.{name}.p99", f"{name}: p99 of another client, ms", waits.p99)
    goal = {"goal": P99_MAX_MS, "goal_is_most": True, "met": waits.p99 <= P99_MAX_MS}
    return [
        fact(f"hostile.{name}.worst", f"{name}: worst stall, ms", waits.worst),
        p99 | goal,
        fact(f"hostile.{name}.cpu", f"{name}: the broker's CPU, s", figures.cpu_s),
        fact(f"hostile.{name}.memory", f"{name}: memory, +MiB", figures.grown_bytes / MIB),
    ]


def _run(attack: Attack, directory: Path) -> Figures:
    """On a broker of its own: what an attack leaves behind is not the next one's."""
    (metrics,) = free_ports(1)
    broker = Millstream(directory / "ours", {"metrics.port": str(metrics)})
    broker.start()
    node = Node("local", "127.0.0.1", NO_NETWORK, [])
    topic = create_topic(broker.address, PARTITIONS).name
    history = directory / "probe.jsonl"
    task = ProbeTask(
        bootstrap=(broker.address,), topic=topic, partitions=PARTITIONS, history=str(history)
    )
    target = Target(
        brokers={BROKER_ID: broker.address},
        victim=BROKER_ID,
        metrics=f"127.0.0.1:{metrics}",
        topic=topic,
        seconds=SECONDS,
    )
    probe = ProbeProcess(node, directory / "probe", task)
    attacker = AttackerProcess(node, directory / "attacker", attack.name, target)
    try:
        probe.spawn()
        attacker.start()
        return _measure(broker, attacker, ProbeReader(history, PARTITIONS))
    finally:
        attacker.close()
        probe.close()
        broker.kill()


def _measure(broker: Millstream, attacker: AttackerProcess, reader: ProbeReader) -> Figures:
    wait_until(lambda: reader.has_passed(0.0), "the probe produces", timeout_s=PROBE_MAX_S)
    memory = MemoryWatch({"broker": broker.process_id})
    before, cpu_before_s = memory.now()["broker"], cpu_seconds(broker.process_ids)
    began_s = time.monotonic()
    try:
        attacker.begin()
        attacker.wait_outcome(lambda: memory.is_too_much)
        ended_s = time.monotonic() + TAIL_S
        wait_until(
            lambda: reader.has_passed(ended_s), "the probe is answered", timeout_s=PROBE_MAX_S
        )
    finally:
        memory.stop()
    used_s = cpu_seconds(broker.process_ids) - cpu_before_s
    waits = waits_of(reader.between(began_s, ended_s))
    return Figures(waits, used_s, max(0, memory.peaks["broker"] - before))

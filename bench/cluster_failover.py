"""PF10: how long nothing is acknowledged when a leader is killed, or stopped in order.

A client sends a record every few milliseconds to one partition; what counts is the longest time
between two acknowledgements. A controller that dies with its leaderships is a row of its own.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from typing import IO, Any

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_generators import BUILT
from bench.broker_systems import wait_seconds
from bench.broker_wire import Topic, create_topic, delete_topics
from bench.cluster_systems import SESSION_MS, Cluster, Clusters
from bench.cluster_wire import view_of, wait_for, wait_whole
from bench.measure import Row

INTERVAL_MS = 5
PARTITIONS = 6
"""So that every broker leads some."""
RUNS = 2 if QUICK else 4
SETTLE_S = 1.0
HEAL_S = 120.0
KILL_AT_MOST_S = SESSION_MS / 1000 + 0.5
STOP_AT_MOST_S = 0.3
CASES = {
    "kill": ("leader killed to next acknowledged record", KILL_AT_MOST_S),
    "kill_controller": ("leader that is the controller killed, the same", KILL_AT_MOST_S),
    "stop": ("longest gap in a controlled stop", STOP_AT_MOST_S),
}


def measure(clusters: Clusters) -> list[Row]:
    rows: list[Row] = []
    topics = {one.name: create_topic(one.address, PARTITIONS) for one in clusters}
    for case, (name, most) in CASES.items():
        gaps: dict[str, list[float]] = {one.name: [] for one in clusters}
        for number in range(RUNS):
            for cluster in clusters if number % 2 == 0 else reversed(clusters):
                gaps[cluster.name].append(_gap_s(cluster, topics[cluster.name], case))
        ours, peer = gaps.values()
        identity = f"cluster.failover.{case}"
        what = f"PF10 {name}, s (peer: the most it may be)"
        rows.append(lower_is_better(f"{identity}.limit", what, ours, [most], at_most=1.0))
        rows.append(lower_is_better(identity, f"PF10 {name}, s", ours, peer, at_most=None))
    for cluster in clusters:
        delete_topics(cluster.address, [topics[cluster.name]])
    return rows


def _gap_s(cluster: Cluster, topic: Topic, case: str) -> float:
    """One kill or stop, and everything back in its place."""
    wait_whole(cluster.address, topic, timeout_s=HEAL_S)
    partition, victim = choose(cluster, topic, is_controller=case == "kill_controller")
    left = cluster.address_without(victim)
    with watched(cluster, topic, partition) as watch:
        wait_seconds(SETTLE_S)
        watch.anew()
        if case == "stop":
            cluster.nodes[victim].stop()
        else:
            cluster.nodes[victim].kill()

        def is_moved() -> bool:
            return view_of(left, topic)[partition].leader not in (-1, victim)

        wait_for(is_moved, "another broker leads", timeout_s=HEAL_S)
        wait_seconds(SETTLE_S)
        figures = watch.ended()
    cluster.restart(victim)
    found: float = figures["longest_gap_s"]
    return found


def choose(cluster: Cluster, topic: Topic, *, is_controller: bool) -> tuple[int, int]:
    """A partition, and its leader, which is the controller or is not."""
    controller = cluster.controller_id()
    for partition, one in sorted(view_of(cluster.address, topic).items()):
        if (one.leader == controller) == is_controller:
            return partition, one.leader
    raise RuntimeError(f"{cluster.name}: no such leader (controller {controller})")


class Watch:
    """The generator while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._input: IO[bytes] | None = process.stdin

    def anew(self) -> None:
        """Count from here on."""
        if self._input is not None:
            self._input.write(b"x")
            self._input.flush()

    def ended(self) -> dict[str, Any]:
        """Every record has its answer; the figures."""
        output, errors = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"gaps: {errors.decode()[-500:]}")
        figures: dict[str, Any] = json.loads(output)
        return figures


@contextlib.contextmanager
def watched(cluster: Cluster, topic: Topic, partition: int) -> Iterator[Watch]:
    """Entered when the first record is acknowledged."""
    command = [str(BUILT / "gaps"), cluster.address, topic.name, str(partition), str(INTERVAL_MS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else b""
            if not line:
                told = process.stderr.read().decode() if process.stderr is not None else ""
                raise RuntimeError(f"gaps: nothing was acknowledged: {told[-500:]}")
            yield Watch(process)
        finally:
            process.kill()

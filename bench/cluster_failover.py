"""PF10: how long nothing is acknowledged when a leader is killed, or stopped cleanly.

Two clients send a record every few milliseconds to one partition; the figure is the longest time
between two acknowledgements. The probe requests the leader before every record, so that its time is
the cluster's; librdkafka, which refreshes its metadata once a second, shows what applications see.
A controller that is killed together with its leaderships is a row of its own.
"""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from bench.broker_cells import QUICK, lower_is_better
from bench.broker_generators import BUILT
from bench.broker_systems import wait_seconds
from bench.broker_wire import Topic, brokers_of, create_topic, delete_topics, takes_record
from bench.cluster_systems import SESSION_MS, Cluster, Clusters
from bench.cluster_wire import view_of, wait_for, wait_in_sync
from bench.measure import Row

INTERVAL_MS = 5
PARTITIONS = 6
"""So that every broker leads some."""
RUNS = 2 if QUICK else 4
IDLE_WAIT_S = 2.0
PROBE_S = 0.5
"""How long the probe waits for an answer before it requests the leader again."""
HEAL_S = 120.0
KILL_AT_MOST_S = SESSION_MS / 1000 + 0.5
STOP_AT_MOST_S = 0.3
CASES = {
    "kill": ("leader killed to next acknowledged record", KILL_AT_MOST_S),
    "kill_controller": ("leader that is the controller killed, the same", KILL_AT_MOST_S),
    "stop": ("longest gap in a controlled stop", STOP_AT_MOST_S),
}


class Gaps(NamedTuple):
    """Of one run, in seconds."""

    probe_s: float
    client_s: float


def measure(clusters: Clusters) -> list[Row]:
    rows: list[Row] = []
    topics = {one.name: create_topic(one.address, PARTITIONS) for one in clusters}
    for case, (name, most) in CASES.items():
        gaps: dict[str, list[Gaps]] = {one.name: [] for one in clusters}
        for number in range(RUNS):
            for cluster in clusters if number % 2 == 0 else reversed(clusters):
                gaps[cluster.name].append(_gaps(cluster, topics[cluster.name], case))
        rows += _rows(f"cluster.failover.{case}", f"PF10 {name}", most, list(gaps.values()))
    for cluster in clusters:
        delete_topics(cluster.address, [topics[cluster.name]])
    return rows


def _rows(identity: str, name: str, most: float, gaps: list[list[Gaps]]) -> list[Row]:
    probe, client = ([[one[at] for one in of] for of in gaps] for at in range(len(Gaps._fields)))
    limit = f"{name}, s (peer: the most it may be)"
    return [
        lower_is_better(f"{identity}.limit", limit, probe[0], [most], at_most=1.0),
        lower_is_better(identity, f"{name}, s", *probe, at_most=None),
        lower_is_better(f"{identity}.client", f"{name}, by librdkafka, s", *client, at_most=None),
    ]


def _gaps(cluster: Cluster, topic: Topic, case: str) -> Gaps:
    """One kill or stop, and the restart."""
    wait_in_sync(cluster.address, topic, timeout_s=HEAL_S)
    partition, victim = choose(cluster, topic, is_controller=case == "kill_controller")
    left = cluster.address_without(victim)
    with watched(cluster, topic, partition) as watch, Probe(cluster, topic, partition) as probe:
        wait_seconds(IDLE_WAIT_S)
        watch.restart()
        probe.restart()
        if case == "stop":
            cluster.nodes[victim].stop()
        else:
            cluster.nodes[victim].kill()

        def is_moved() -> bool:
            return view_of(left, topic)[partition].leader not in (-1, victim)

        wait_for(is_moved, "another broker leads", timeout_s=HEAL_S)
        wait_seconds(IDLE_WAIT_S)
        probe.ended()
        figures = watch.ended()
    cluster.restart(victim)
    return Gaps(probe.longest_s, figures["longest_gap_s"])


def choose(cluster: Cluster, topic: Topic, *, is_controller: bool) -> tuple[int, int]:
    """A partition, and its leader, which is the controller or is not."""
    controller = cluster.controller_id()
    for partition, one in sorted(view_of(cluster.address, topic).items()):
        if (one.leader == controller) == is_controller:
            return partition, one.leader
    raise RuntimeError(f"{cluster.name}: no such leader (controller {controller})")


class Probe:
    """Repeatedly requests the leader, from any broker that answers, and sends it one record."""

    def __init__(self, cluster: Cluster, topic: Topic, partition: int) -> None:
        self._brokers = brokers_of(cluster.address)
        self._topic, self._partition = topic, partition
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)
        self._last_s = time.perf_counter()
        self.longest_s = 0.0

    def __enter__(self) -> "Probe":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended()

    def restart(self) -> None:
        """Count from here on."""
        self.longest_s = 0.0

    def ended(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(INTERVAL_MS / 1000):
            if self._is_acknowledged():
                now_s = time.perf_counter()
                self.longest_s = max(self.longest_s, now_s - self._last_s)
                self._last_s = now_s
            else:
                self._brokers.append(self._brokers.pop(0))

    def _is_acknowledged(self) -> bool:
        address = ",".join(self._brokers)
        try:
            return takes_record(address, self._topic, self._partition, timeout_s=PROBE_S)
        except OSError:
            return False


class Watch:
    """The generator while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._input: IO[bytes] | None = process.stdin

    def restart(self) -> None:
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
                errors = process.stderr.read().decode() if process.stderr is not None else ""
                raise RuntimeError(f"gaps: nothing was acknowledged: {errors[-500:]}")
            yield Watch(process)
        finally:
            process.kill()

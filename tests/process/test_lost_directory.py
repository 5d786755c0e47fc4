"""Three brokers with two log directories each; a leader loses one of its own, then the other."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kits.process.keeper_process import KeeperProcess, keeper_process
from kits.process.server_process import ServerProcess, server_process
from kits.process.up_kit import Cluster
from kits.process.waiting_for import until
from millstream.model.config.properties import render_properties
from millstream.testing.peers.kafka import free_ports

TOPIC = "events"
DIRECTORIES = ("one", "two")
ENDED_WITHOUT_DIRECTORIES = 4
FAIL_OVER_S = 5.0
"""Two seconds are promised; a machine that is busy with other tests takes longer. A session that
ended would take more than this."""


class Machine(NamedTuple):
    """A broker's settings and disks, through all its processes."""

    broker_id: int
    root: Path
    port: int
    keeper: KeeperProcess

    @contextmanager
    def broker(self) -> Iterator[ServerProcess]:
        self.root.mkdir(exist_ok=True)
        config = self.root / "server.properties"
        settings = {
            "broker.id": str(self.broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": ",".join(str(self.root / name) for name in DIRECTORIES),
            **self.keeper.settings,
            "zookeeper.session.timeout.ms": "18000",
            "min.insync.replicas": "2",
        }
        config.write_text(render_properties(settings))
        command = ["millstream.broker.process", "--config", str(config)]
        ends = [ENDED_WITHOUT_DIRECTORIES]
        with server_process(command, self.root, good_ends=ends) as running:
            yield running

    def directory_of(self, partition: int) -> Path:
        (found,) = self.root.glob(f"*/{TOPIC}-{partition}")
        return found.parent

    def lines(self, text: str) -> list[str]:
        return [one for one in (self.root / "stderr").read_text().splitlines() if text in one]


class World(NamedTuple):
    cluster: Cluster
    machines: dict[int, Machine]
    processes: dict[int, ServerProcess]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    ports = free_ports(3)
    with ExitStack() as stack:
        keeper = stack.enter_context(keeper_process(tmp_path / "keeper"))
        machines = {
            one: Machine(one, tmp_path / f"broker-{one}", port, keeper)
            for one, port in enumerate(ports, 1)
        }
        processes = {one: stack.enter_context(it.broker()) for one, it in machines.items()}
        places = ",".join(it.address for it in processes.values())
        cluster = Cluster(tmp_path, places)
        cluster.create(TOPIC)
        cluster.in_sync(TOPIC, 3)
        yield World(cluster, machines, processes)


def test_others_lead_what_a_failed_directory_had_and_nothing_is_lost(world: World) -> None:
    cluster, machines, processes = world
    acknowledged = cluster.produce(TOPIC, range(300))
    victim = cluster.partitions(TOPIC)[0].leader
    machine, process = machines[victim], processes[victim].process
    gone = machine.directory_of(0)
    lost = [one for one in range(3) if machine.directory_of(one) == gone]
    kept = [one for one in range(3) if one not in lost]
    assert kept, "the partitions are spread over both"

    gone.rename(gone.with_suffix(".away"))
    since_s = time.monotonic()
    cluster.wait(
        lambda parts: all(
            parts[one].leader not in (-1, victim) and victim not in parts[one].isrs for one in lost
        ),
        TOPIC,
        "others lead, and the lost ones are out of sync",
    )
    assert time.monotonic() - since_s < FAIL_OVER_S
    acknowledged |= cluster.produce(TOPIC, range(300, 600))
    assert len(acknowledged) == 600
    parts = cluster.partitions(TOPIC)
    assert all(victim in parts[one].isrs for one in kept), "its other directory serves on"
    assert process.poll() is None
    until(lambda: machine.lines("log directory failed"), "it says so, too")

    other = next(machine.root / one for one in DIRECTORIES if machine.root / one != gone)
    other.rename(other.with_suffix(".away"))
    assert process.wait(10) == ENDED_WITHOUT_DIRECTORIES
    assert len(machine.lines("cannot be a member of the cluster")) == 1
    assert machine.lines("millstream: the broker failed: every log directory failed")
    since_s = time.monotonic()
    cluster.wait(
        lambda parts: all(one.leader not in (-1, victim) for one in parts.values()),
        TOPIC,
        "others lead everything",
    )
    assert time.monotonic() - since_s < FAIL_OVER_S, "no broker waits for its session to end"
    acknowledged |= cluster.produce(TOPIC, range(600, 700))

    for one in (gone, other):
        one.with_suffix(".away").rename(one)
    with machine.broker():
        cluster.in_sync(TOPIC, 3)
        values = cluster.consume(TOPIC, 700)
    assert set(values) == acknowledged
    assert len(values) == len(acknowledged) == 700, "nothing is doubled"

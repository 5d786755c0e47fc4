"""The parts of the cluster's chaos on one broker alone: clients, histories, zombies, processes; and
that what it looks for is found.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.process.waiting_for import until
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.cluster.actions import ACTIONS, WEIGHTS
from millstream.testing.chaos.cluster.processes import (
    BrokerProcess,
    Coordination,
    MillstreamBroker,
    NodeProcess,
)
from millstream.testing.chaos.cluster.rounds import ClusterChaos
from millstream.testing.chaos.cluster.scene import ClusterScene, MillstreamProcesses
from millstream.testing.chaos.cluster.view import NO_BROKER, ClusterView, PartitionView, newest
from millstream.testing.chaos.cluster.zombies import Zombie
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import NetWorld, require_networks
from millstream.testing.peers.runtimes import require_runtime

PARTITIONS = 3
RECORDS_AT = 61
"""In a batch: what is before it is its header."""


class StandaloneProcesses:
    """One broker without coordination."""

    def coordination(self, world: NetWorld, root: Path) -> Coordination:
        return Coordination([], [])

    def broker(self, world: NetWorld, root: Path, broker_id: int, connect: str) -> BrokerProcess:
        node = world.add(f"broker-{broker_id}")
        settings = {"min.insync.replicas": "1", "log.level": "WARN"}
        return MillstreamBroker(node, root / node.name, settings, broker_id=broker_id)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    require_networks()
    made = ClusterScene(tmp_path, StandaloneProcesses(), partitions=PARTITIONS, brokers=1)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_an_era_through_kills_stops_pauses_and_cuts(scene: ClusterScene) -> None:
    broker = scene.brokers[1]
    broker.kill()
    broker.start()
    scene.load.wait_for(5, "after a kill")
    broker.stop()
    broker.start()
    scene.load.wait_for(5, "after a stop")
    broker.pause()
    broker.wake()
    scene.world.cut(broker.node, scene.client)
    scene.world.heal()
    scene.load.wait_for(5, "after a pause and a cut")
    view = scene.wait_healthy()
    assert view.led_by(1) == list(range(PARTITIONS))
    figures = scene.load.finish()
    assert figures.acknowledged >= 15 * PARTITIONS
    assert figures.read >= figures.acknowledged
    assert figures.gap_s > 0
    assert scene.wait_equal(view, scene.load.topic) > 0
    scene.end_era()
    scene.begin_era("zstd")
    scene.load.finish()


def test_late_readers_while_pages_are_dropped(scene: ClusterScene) -> None:
    chance = SeededRandomness("pages")
    broker, load = scene.brokers[1], scene.load
    dropped: list[int] = []
    load.wait_for(20, "first")
    load.read_late(2, lambda: dropped.append(broker.drop_pages(load.topic, chance)))
    assert sum(dropped) > 0
    lanes = {consumer for consumer, _ in load.lines.read}
    assert len(lanes - {"read"}) == 2
    late = [count for (consumer, _), count in load.lines.read.items() if consumer != "read"]
    assert len(late) == 2 * PARTITIONS
    assert min(late) >= 20
    load.finish()


def test_a_wrong_byte_is_found(scene: ClusterScene) -> None:
    """Seen by a late reader; a reader that follows the log had it before."""
    load = scene.load
    load.wait_for(20, "first")
    (log,) = scene.brokers[1].directory.glob(f"data/{load.topic}-0/*.log")
    with log.open("r+b") as file:
        file.seek(RECORDS_AT)
        (byte,) = file.read(1)
        file.seek(RECORDS_AT)
        file.write(bytes([byte ^ 0xFF]))
    with pytest.raises(ChaosFailed, match="cannot be read"):
        load.read_late(1, lambda: None)


def test_a_write_to_a_paused_leader_is_noted_when_it_wakes(scene: ClusterScene) -> None:
    broker = scene.brokers[1]
    zombie = Zombie(scene, broker)
    zombie.connect(range(PARTITIONS))
    broker.pause()
    assert zombie.write() == PARTITIONS
    broker.wake()
    assert zombie.collect() == (PARTITIONS, 0)  # alone it is no zombie
    scene.load.finish()
    stored = [
        value for _, records in scene.load.lines.history.finals.values() for _, value in records
    ]
    assert sum(value.startswith(b"zombie-1-") for value in stored) == PARTITIONS


def test_an_acknowledged_record_that_is_gone_is_found(scene: ClusterScene) -> None:
    """A broker that comes back without its last segment's end."""
    broker = scene.brokers[1]
    scene.load.wait_for(20, "first")
    broker.kill()
    (log,) = broker.directory.glob(f"data/{scene.load.topic}-0/*.log")
    os.truncate(log, log.stat().st_size // 2)
    broker.start()
    # Found by the client itself, by its standing still, or by the comparison.
    with pytest.raises(ChaosFailed):
        go_on_and_finish(scene)


def go_on_and_finish(scene: ClusterScene) -> None:
    scene.load.wait_for(5, "after the loss")
    scene.load.finish()


def test_a_zombies_word_counts(scene: ClusterScene) -> None:
    """Acknowledged, and nowhere in the end."""
    line = {"lane": "zombie", "n": 0, "topic": scene.load.topic, "p": 0}
    scene.load.lines.take_line({"t": "send", "v": "gone", **line})
    scene.load.lines.take_line({"t": "ok", "offset": 10**9, "at": 0.0, **line})
    scene.load._is_all_read = lambda: True  # type: ignore[method-assign]
    with pytest.raises(ChaosFailed, match="lost-write: b'gone'"):
        scene.load.finish()


def test_replicas_that_differ_are_found(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load.finish()
    view = ClusterView(1, {0: PartitionView(1, 0, (1, 2), (1, 2))})
    scene.brokers[2] = scene.brokers[1]
    logs = iter([b"abc", b"abd"])
    monkeypatch.setattr(BrokerProcess, "log_bytes", lambda *_: next(logs, b"x"))
    scene.wait_equal(view, scene.load.topic)  # a moment later they are
    logs = iter(lambda: os.urandom(4), b"")
    monkeypatch.setattr("millstream.testing.chaos.cluster.scene.EQUAL_MAX_S", 0.1)
    with pytest.raises(ChaosFailed, match=r"I-19.*different as far as the shortest goes"):
        scene.wait_equal(view, scene.load.topic)


def test_a_broker_that_ends_by_itself_is_told(scene: ClusterScene) -> None:
    process = scene.brokers[1]._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: process.poll() is not None, "it is gone")
    with pytest.raises(ChaosFailed, match=r"broker-1 .* ended by itself with exit code -9"):
        scene.check_alive()


def test_an_error_at_the_application_is_told(scene: ClusterScene) -> None:
    scene.load.lines.take_line({"t": "error", "why": "planted"})
    with pytest.raises(ChaosFailed, match="an error reached the application: planted"):
        scene.load.take()


def test_a_process_that_does_not_start_is_told(tmp_path: Path) -> None:
    require_networks()
    with NetWorld() as world:
        process = NodeProcess(world.add("one"), tmp_path, ["sh", "-c", "echo why >&2"])
        with pytest.raises(ChaosFailed, match=r"did not start.*\n.*\nwhy"):
            process.start()
        process.close()


# -- what a cluster says -----------------------------------------------------------------------


def view(leaders: dict[int, int], *, epoch: int = 1, controller: int = 1) -> ClusterView:
    partitions = {
        number: PartitionView(leader, epoch, (1, 2, 3), (1, 2, 3))
        for number, leader in leaders.items()
    }
    return ClusterView(controller, partitions, frozenset({1, 2, 3}))


def test_the_newest_word_is_the_one_with_the_highest_epoch() -> None:
    old, new = view({0: 1}, epoch=4), view({0: 2}, epoch=5, controller=2)
    for views in ([old, new, new], [new, new, old]):
        assert newest(views) == new
    assert newest([]) == ClusterView()
    none = view({0: 1}, controller=NO_BROKER)
    assert newest([none, old]).controller == 1


@pytest.mark.parametrize(
    ("other", "is_changed"),
    [
        (view({0: 1, 1: 2}), False),
        (view({0: 1, 1: 2}, epoch=9), False),
        (view({0: 1, 1: 3}), True),
        (view({0: 1, 1: 2}, controller=2), True),
        (view({0: 1, 1: NO_BROKER}), False),
        (view({0: 1, 1: 2}, controller=NO_BROKER), False),
    ],
    ids=["same", "epoch", "leader", "controller", "no leader", "no controller"],
)
def test_only_another_leader_or_controller_is_a_change(
    other: ClusterView, is_changed: bool
) -> None:
    assert other.differs_from(view({0: 1, 1: 2})) == is_changed


def test_whole_is_everybody_there_led_and_in_sync() -> None:
    def is_healthy(one: ClusterView) -> bool:
        return one.is_healthy(partitions=2, brokers=[1, 2, 3])

    good = view({0: 1, 1: 2})
    assert is_healthy(good)
    shrunk = PartitionView(1, 1, (1, 2, 3), (1, 2))
    assert not is_healthy(ClusterView(1, {**good.partitions, 1: shrunk}, good.brokers))
    assert not is_healthy(view({0: 1}))
    assert not is_healthy(view({0: 1, 1: NO_BROKER}))
    assert not is_healthy(view({0: 1, 1: 2}, controller=NO_BROKER))
    assert not is_healthy(ClusterView(1, good.partitions, frozenset({1, 2})))


def test_led_elsewhere_means_all_of_them_by_somebody() -> None:
    assert view({0: 2, 1: 3}).led_by_others([0, 1], 1)
    assert not view({0: 2, 1: 1}).led_by_others([0, 1], 1)
    assert not view({0: 2, 1: NO_BROKER}).led_by_others([0, 1], 1)


def test_actions_are_chosen_by_name() -> None:
    assert set(WEIGHTS) == set(ACTIONS)
    with pytest.raises(ChaosFailed, match="no action has 'no such' in its name: kill, "):
        ClusterChaos("unused", 1, only="no such")


# -- coordination ------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ensemble", [False, True], ids=["keeper", "ensemble"])
def test_coordination_goes_and_comes_back(tmp_path: Path, is_ensemble: bool) -> None:
    require_networks()
    if is_ensemble:
        require_runtime("java")
    with NetWorld() as world:
        client = world.add("client")
        made = MillstreamProcesses(is_ensemble=is_ensemble).coordination(world, tmp_path)
        try:
            assert len(made.members) == (3 if is_ensemble else 1)
            assert len(made.connect_string.split(",")) == len(made.members)
            made.start()
            made.members[0].kill()
            if is_ensemble:  # two of three are enough
                host, _, port = made.connect_string.split(",")[1].partition(":")
                with client.connect(host, int(port)) as connection:
                    connection.sendall(b"ruok")
                    assert connection.recv(100) == b"imok"
            made.start()
            made.kill()
            host, _, port = made.connect_string.split(",")[0].partition(":")
            with pytest.raises(ConnectionError, match="refused"):
                client.connect(host, int(port))
            made.start()
        finally:
            made.close()

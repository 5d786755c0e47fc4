"""The clusters' benchmark: what it asks for, how it judges; not its figures."""

from pathlib import Path
from typing import Any

import pytest
from bench import cluster, cluster_failover, cluster_replication
from bench.broker_generators import build
from bench.broker_wire import create_topic, leader_address
from bench.cluster_produce import shapes
from bench.cluster_systems import MillstreamCluster
from bench.cluster_wire import PartitionView, view_of, wait_for, wait_in_sync

from millstream.testing import BrokerThread
from millstream.testing.peers.kafka import node_configs
from millstream.testing.peers.runtimes import missing_is_skipped


def test_the_groups_are_those_of_the_goals() -> None:
    assert set(cluster.GROUPS) >= {"produce", "replication", "failover"}
    assert set(cluster.EXCLUSIVE) == {"start", "partitions"}


def test_an_unknown_group_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CELLS", "produce,nonsense")
    monkeypatch.setattr(cluster, "build", lambda: None)
    with pytest.raises(SystemExit, match="no such cells: nonsense"):
        cluster.measure()


def test_produce_has_every_size_and_number_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cluster_produce.QUICK", False)
    found = shapes()
    assert len({shape.identity for shape in found}) == len(found) == 2 * 3 * 2


def test_copies_per_core_are_the_cost_the_other_way_round() -> None:
    cost = {
        "ours": 2.0,
        "ours_range": [1.0, 4.0],
        "peer": 8.0,
        "peer_range": [5.0, 10.0],
        "ratio": 0.25,
    }
    turned = cluster_replication.per_core("x", "MB/s per core", cost)
    assert (turned["ours"], turned["peer"], turned["ratio"]) == (500, 125, 4.0)
    assert (turned["ours_range"], turned["peer_range"]) == ([250, 1000], [100, 200])


def test_nodes_of_kafka_vote_for_each_other_on_ports_of_their_own() -> None:
    first, second, third = node_configs(3)
    assert first.voters == second.voters == third.voters
    assert first.cluster == third.cluster
    ports = [port for node in first.nodes for port in node]
    assert len(set(ports)) == 6
    assert f"2@127.0.0.1:{second.ports.controller}" in first.voters


def test_a_cluster_names_all_brokers_but_the_one_that_is_gone(tmp_path: Path) -> None:
    ours = MillstreamCluster(tmp_path)
    assert len(ours.address.split(",")) == 3
    gone = ours.nodes[2].address
    assert ours.address_without(2).split(",") == [
        one for one in ours.address.split(",") if one != gone
    ]


@pytest.mark.parametrize(
    ("view", "is_in_sync"),
    [
        (PartitionView(1, frozenset({1, 2}), frozenset({1, 2})), True),
        (PartitionView(1, frozenset({1, 2}), frozenset({1})), False),
        (PartitionView(-1, frozenset({1}), frozenset({1})), False),
    ],
)
def test_a_partition_is_whole_with_a_leader_and_all_replicas(
    view: PartitionView, is_in_sync: bool
) -> None:
    assert view.is_in_sync is is_in_sync


def test_waiting_ends_with_what_was_waited_for() -> None:
    def nobody() -> bool:
        raise ConnectionRefusedError

    with pytest.raises(TimeoutError, match="the moon is full: not in 0 s"):
        wait_for(nobody, "the moon is full", timeout_s=0.0)


def test_one_broker_is_the_leader_of_everything() -> None:
    with BrokerThread() as broker:
        address = broker.bootstrap_servers
        topic = create_topic(address, 2)
        assert leader_address(address, topic, 1) == address
        # Named twice it counts as a cluster of which both are asked.
        assert leader_address(f"{address},{address}", topic, 1) == address
        assert set(view_of(address, topic)) == {0, 1}
        wait_in_sync(address, topic)


class _Counted:
    """A cluster in which nothing happens, with leaders and a controller."""

    name = "ours"

    def __init__(self, leaders: dict[int, int], controller: int) -> None:
        self.address = ""
        self.leaders = leaders
        self._controller = controller

    def controller_id(self) -> int:
        return self._controller


@pytest.mark.parametrize(("is_controller", "expected"), [(True, (1, 3)), (False, (0, 2))])
def test_the_victim_leads_and_is_the_controller_or_is_not(
    monkeypatch: pytest.MonkeyPatch, is_controller: bool, expected: tuple[int, int]
) -> None:
    scene: Any = _Counted({0: 2, 1: 3, 2: 1}, controller=3)
    views = {
        index: PartitionView(leader, frozenset({1, 2, 3}), frozenset({1, 2, 3}))
        for index, leader in scene.leaders.items()
    }
    monkeypatch.setattr(cluster_failover, "view_of", lambda _address, _topic: views)
    topic: Any = None
    assert cluster_failover.choose(scene, topic, is_controller=is_controller) == expected


def test_the_longest_gap_is_what_was_seen_since_the_watch_began_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with missing_is_skipped():
        built = build(tmp_path / "generators")
    monkeypatch.setattr(cluster_failover, "BUILT", built)
    with BrokerThread() as broker:
        topic = create_topic(broker.bootstrap_servers, 1)
        scene: Any = _Counted({}, 0)
        scene.address = broker.bootstrap_servers
        with cluster_failover.watched(scene, topic, 0) as watch:
            watch.restart()
            figures = watch.ended()
    assert figures["records"] >= 1
    assert figures["failed"] == 0
    assert 0 <= figures["longest_gap_s"] < 30

"""Topic keys that decide who leads, changed while a cluster runs."""

from pathlib import Path

import pytest
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from kits.broker.topic_keys_kit import effect_of
from kits.process.throttled_move import (
    BROKER_OF_SIDE,
    FOLLOWER,
    LEADER,
    alter,
    fill,
    is_moving,
    move,
    seconds_to_move,
    slowest_ack_s,
)
from kits.process.throttled_move import TOPIC as MOVED
from kits.process.up_kit import Cluster, cluster_up
from kits.process.waiting_for import until

TOPIC = "events"


def allow_unclean(cluster: Cluster) -> None:
    entry = ConfigEntry(
        "unclean.leader.election.enable",
        "true",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for done in cluster.admin.incremental_alter_configs([resource]).values():
        done.result(20)


@effect_of("unclean.leader.election.enable")
def test_replica_out_of_sync_leads_only_where_the_topic_allows_it(tmp_path: Path) -> None:
    """The last one in sync is gone; the other one is back, without what it missed."""
    with cluster_up(tmp_path / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        wanted = NewTopic(
            TOPIC,
            num_partitions=1,
            replica_assignment=[[2, 3]],
            config={"min.insync.replicas": "1"},
        )
        cluster.admin.create_topics([wanted])[TOPIC].result(20)
        cluster.wait(lambda parts: len(parts) == 1 and parts[0].leader == 2, TOPIC, "2 leads")
        cluster.kill(3)
        cluster.wait(lambda parts: parts[0].isrs == [2], TOPIC, "2 is alone")
        cluster.kill(2)
        cluster.wait(lambda parts: parts[0].leader == -1, TOPIC, "no broker leads")
        with cluster.by_hand(3):
            cluster.wait(lambda parts: parts[0].leader == -1, TOPIC, "it may miss something")
            allow_unclean(cluster)
            cluster.wait(lambda parts: parts[0].leader == 3, TOPIC, "3 leads")


@effect_of("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_only_replicas_that_are_named_are_slowed(tmp_path: Path, side: str) -> None:
    """A rate at which the move would never end: it counts for no replica that is not named."""
    key = f"{side}.replicas".replace(".", "_")
    broker = BROKER_OF_SIDE[side]
    with cluster_up(tmp_path / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        fill(cluster)
        rate = f"{side}.rate".replace(".", "_")
        alter(cluster, ResourceType.BROKER, str(broker), **{rate: "1000"})
        alter(cluster, ResourceType.TOPIC, MOVED, **{key: f"0:2,1:{broker}"})
        seconds_to_move(cluster, 1, 3)
        seconds_to_move(cluster, 1, 2)
        # A broker that does not know it yet would still have everything when it restarts.
        log = cluster.data / "broker-3" / "data" / f"{MOVED}-0"
        until(lambda: not log.exists(), "broker 3 has given its replica up", timeout_s=30)
        alter(cluster, ResourceType.TOPIC, MOVED, **{key: f"0:{broker}"})
        move(cluster, 1, 3)
        assert slowest_ack_s(cluster) < 2.0
        assert is_moving(cluster)
        alter(cluster, ResourceType.TOPIC, MOVED, **{key: None})
        cluster.wait(lambda parts: set(parts[0].isrs) == {1, 3}, MOVED, "it has moved")

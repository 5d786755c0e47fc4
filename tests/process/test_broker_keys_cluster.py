"""A broker's keys that count in a cluster, changed while it runs."""

import time
from pathlib import Path

import pytest
from confluent_kafka.admin._resource import ResourceType

from kits.broker.topic_keys_kit import effect_of
from kits.process.throttled_move import (
    BROKER_OF_SIDE,
    FOLLOWER,
    LEADER,
    RATE,
    SIZE_BYTES,
    TOPIC,
    alter,
    fill,
    move,
    slowest_ack_s,
)
from kits.process.up_kit import cluster_up


@effect_of("leader.replication.throttled.rate", "follower.replication.throttled.rate")
@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_a_move_takes_its_bytes_over_the_rate_and_writes_do_not_wait(
    tmp_path: Path, side: str
) -> None:
    with cluster_up(tmp_path / "data", "--brokers", "3", "--port", "0") as (_, cluster):
        fill(cluster)
        alter(cluster, ResourceType.TOPIC, TOPIC, **{f"{side}.replicas".replace(".", "_"): "*"})
        broker = str(BROKER_OF_SIDE[side])
        rate = f"{side}.rate".replace(".", "_")
        alter(cluster, ResourceType.BROKER, broker, **{rate: str(RATE)})
        began_s = time.monotonic()
        move(cluster, 1, 3)
        slowest_s = slowest_ack_s(cluster)
        cluster.wait(lambda parts: set(parts[0].isrs) == {1, 3}, TOPIC, "it has moved")
        taken_s = time.monotonic() - began_s
        assert taken_s > 0.6 * SIZE_BYTES / RATE
        assert slowest_s < 0.5 * SIZE_BYTES / RATE
        alter(cluster, ResourceType.BROKER, broker, **{rate: None})

"""What the settings of a broker in a cluster come to."""

import pytest

from millstream.broker.cluster import settings as cluster_settings
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.net.listeners import ListenerAddress
from millstream.controller.image import PartitionImage, TopicImage
from millstream.controller.topics import new_topic_id
from millstream.model.config.errors import InvalidConfig
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.runtime.randomness import system_randomness

BOUND = [ListenerAddress("OUTSIDE", "", 1), ListenerAddress("INSIDE", "h", 2)]
PROTOCOLS = {"OUTSIDE": "PLAINTEXT", "INSIDE": "PLAINTEXT"}


def configs(**values: str) -> BrokerConfigs:
    return BrokerConfigs({name.replace("_", "."): text for name, text in values.items()})


def topic(replica_count: int, **values: str) -> TopicImage:
    replicas = tuple(map(BrokerId, range(replica_count)))
    one = PartitionImage(0, replicas, replicas, replicas[0], LeaderEpoch(0), 0)
    texts = {name.replace("_", "."): text for name, text in values.items()}
    return TopicImage("t", new_topic_id(system_randomness()), (one,), texts)


def test_servers_and_times() -> None:
    found = cluster_settings.cluster_settings(
        configs(zookeeper_connect="a:1, b:2/kafka", zookeeper_session_timeout_ms="4000")
    )
    assert (found.hosts, found.session_timeout_ms) == ("a:1,b:2/kafka", 4000)
    assert found.connection_timeout_s == 4.0
    assert found.hands_over
    waiting = configs(zookeeper_connect="a:1", zookeeper_connection_timeout_ms="90000")
    assert cluster_settings.cluster_settings(waiting).connection_timeout_s == 90.0


def test_fetch_must_not_wait_until_it_is_out_of_sync() -> None:
    assert cluster_settings.replica_settings(configs()).lag_time_max_ms == 30_000
    with pytest.raises(InvalidConfig, match=r"replica\.lag\.time\.max\.ms"):
        cluster_settings.replica_settings(configs(replica_lag_time_max_ms="500"))


def test_brokers_meet_on_the_named_listener_or_the_first_of_the_protocol() -> None:
    listener = cluster_settings.inter_broker_listener
    assert listener(configs(), BOUND, PROTOCOLS) == "OUTSIDE"
    assert listener(configs(inter_broker_listener_name="inside"), BOUND, PROTOCOLS) == "INSIDE"
    with pytest.raises(InvalidConfig, match="ELSEWHERE"):
        listener(configs(inter_broker_listener_name="elsewhere"), BOUND, PROTOCOLS)
    with pytest.raises(InvalidConfig, match="must not both"):
        listener(
            configs(inter_broker_listener_name="INSIDE", security_inter_broker_protocol="SSL"),
            BOUND,
            PROTOCOLS,
        )


def test_policy_of_a_topic_is_its_own_or_the_brokers() -> None:
    settings = configs(min_insync_replicas="2")
    policy = cluster_settings.topic_policy(settings)
    assert policy.in_sync_min(topic(3)) == 2
    assert policy.in_sync_min(topic(1)) == 1, "never more than there are"
    assert policy.in_sync_min(topic(3, min_insync_replicas="3")) == 3
    assert not policy.is_unclean_allowed(topic(3))
    assert policy.is_unclean_allowed(topic(3, unclean_leader_election_enable="true"))
    settings.set_dynamic(broker={}, default={"unclean.leader.election.enable": "true"})
    assert policy.is_unclean_allowed(topic(3))
    assert not policy.is_unclean_allowed(topic(3, unclean_leader_election_enable="FALSE"))

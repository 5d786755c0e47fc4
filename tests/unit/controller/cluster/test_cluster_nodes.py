"""What is in the nodes: as Kafka 3 wrote it, and refused where it cannot be believed."""

import contextlib
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.controller.cluster_plans_kit import ids, partition, topic
from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import Assignment, KnownBroker, Registration
from millstream.controller.image import Endpoint
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition

KAFKA_TOPIC = (
    b'{"removing_replicas":{"0":[1]},"partitions":{"0":[4,2,1],"1":[2,1]},'
    b'"topic_id":"ZgVoLdZDTJ6bB4Mzd6ExVw","adding_replicas":{"0":[4]},"version":3}'
)
KAFKA_STATE = b'{"controller_epoch":3,"leader":2,"version":1,"leader_epoch":7,"isr":[2,4]}'
KAFKA_BROKER = (
    b'{"features":{},"listener_security_protocol_map":{"CLIENT":"SASL_SSL","INTERNAL":"PLAINTEXT"},'
    b'"endpoints":["CLIENT://broker-1.example:9093","INTERNAL://[2001:db8::1]:9092"],'
    b'"jmx_port":-1,"port":9092,"host":"2001:db8::1","version":5,"timestamp":"1700000000000",'
    b'"rack":"dc1"}'
)
NAME = TopicPartition("t", 0)
HERE = Assignment(ids(4, 2, 1))


def test_what_kafka_wrote_about_a_topic() -> None:
    told = nodes.decode_topic("t", KAFKA_TOPIC)
    assert told.topic_id is not None
    assert told.assignments == [
        Assignment(ids(4, 2, 1), ids(4), ids(1)),
        Assignment(ids(2, 1)),
    ]


def test_what_kafka_wrote_about_a_partition() -> None:
    found = nodes.decode_state(NAME, KAFKA_STATE, HERE, version=12)
    assert found == partition(4, 2, 1, isr=[2, 4], leader=2, epoch=7, version=12)


def test_what_kafka_wrote_about_a_broker() -> None:
    found = nodes.decode_registration(BrokerId(1), KAFKA_BROKER, epoch=BrokerEpoch(99))
    assert found == Registration(
        BrokerId(1),
        (
            Endpoint("CLIENT", "broker-1.example", 9093, "SASL_SSL"),
            Endpoint("INTERNAL", "2001:db8::1", 9092, "PLAINTEXT"),
        ),
        "dc1",
        BrokerEpoch(99),
    )


def test_what_kafka_wrote_in_the_small_ones() -> None:
    assert nodes.decode_cluster_id(b'{"version":"1","id":"4L6g3nShT-eMCtK--X86sw"}') == (
        "4L6g3nShT-eMCtK--X86sw"
    )
    controller = b'{"version":2,"brokerid":3,"timestamp":"17","kraftControllerEpoch":-1}'
    assert nodes.decode_controller(controller) == 3
    assert nodes.decode_controller_epoch(b"17") == 17
    configs = b'{"version":1,"config":{"cleanup.policy":"compact","retention.ms":"5"}}'
    assert nodes.decode_configs("/config/topics/t", configs) == {
        "cleanup.policy": "compact",
        "retention.ms": "5",
    }
    block = b'{"version":1,"broker":2,"block_start":"1000","block_end":"1999"}'
    assert nodes.decode_producer_ids(block) == range(1000, 2000)
    assert nodes.decode_producer_ids(b"") is None
    assert nodes.decode_configs("/config/brokers/1", b"") == {}


def test_what_we_write_can_be_read_by_kafka_and_by_us() -> None:
    """Kafka's fields have its names, types and versions; ours stand beside them."""
    one = partition(4, 2, 1, isr=[2], leader=2, elr=[4], adding=[4], removing=[1])
    told = topic("t", one, partition(1, 2))
    data = nodes.encode_topic(told.topic_id, told.partitions)
    assert nodes.decode_topic("t", data).topic_id == told.topic_id
    fields = json.loads(data)
    assert fields["version"] == 3
    assert fields["partitions"] == {"0": [4, 2, 1], "1": [1, 2]}
    assert fields["adding_replicas"] == {"0": [4]}
    assert fields["removing_replicas"] == {"0": [1]}
    state = nodes.encode_state(one, controller_epoch=3)
    assignment = Assignment(one.replicas, one.adding, one.removing)
    assert nodes.decode_state(NAME, state, assignment, version=9) == one
    kafka = {"version": 1, "leader": 2, "leader_epoch": 5, "controller_epoch": 3, "isr": [2]}
    assert json.loads(state).items() >= kafka.items()
    assert json.loads(state)["elr"] == [4]
    assert "lost" not in json.loads(state)
    lost = one._replace(lost=(BrokerId(1),))
    state = nodes.encode_state(lost, controller_epoch=3)
    assert nodes.decode_state(NAME, state, assignment, version=9) == lost


def test_a_registration_comes_back_as_it_was() -> None:
    told = Registration(
        BrokerId(1),
        (Endpoint("A", "::1", 1, "SSL"), Endpoint("B", "host", 9092)),
        "rack",
        BrokerEpoch(5),
        BrokerEpoch(4),
        UUID(int=77),
        (BrokerEpoch(2), BrokerEpoch(3)),
    )
    data = nodes.encode_registration(told, timestamp_ms=17)
    assert nodes.decode_registration(BrokerId(1), data, epoch=BrokerEpoch(5)) == told
    fields = json.loads(data)
    assert (fields["version"], fields["host"], fields["port"]) == (5, "host", 9092)
    assert fields["endpoints"] == ["A://[::1]:1", "B://host:9092"]
    assert fields["timestamp"] == "17"


def test_the_small_ones_come_back_as_they_were() -> None:
    assert nodes.decode_cluster_id(nodes.encode_cluster_id("c")) == "c"
    assert nodes.decode_controller(nodes.encode_controller(BrokerId(4), timestamp_ms=1)) == 4
    assert nodes.decode_controller_epoch(nodes.encode_controller_epoch(12)) == 12
    block = nodes.encode_producer_ids(BrokerId(1), range(5, 9))
    assert nodes.decode_producer_ids(block) == range(5, 9)
    endpoints = (Endpoint("A", "::1", 1, "SSL"), Endpoint("B", "host", 9092))
    for known in (KnownBroker(BrokerEpoch(8), "r", endpoints), KnownBroker(BrokerEpoch(8))):
        assert nodes.decode_known_broker(BrokerId(1), nodes.encode_known_broker(known)) == known
    configs = {"a": "b", "ä": '"'}
    assert nodes.decode_configs("/c", nodes.encode_configs(configs)) == configs


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "topic": lambda data: nodes.decode_topic("t", data),
    "state": lambda data: nodes.decode_state(NAME, data, HERE, version=1),
    "broker": lambda data: nodes.decode_registration(BrokerId(1), data, epoch=BrokerEpoch(1)),
    "known": lambda data: nodes.decode_known_broker(BrokerId(1), data),
    "cluster": nodes.decode_cluster_id,
    "controller": nodes.decode_controller,
    "epoch": nodes.decode_controller_epoch,
    "configs": lambda data: nodes.decode_configs("/c", data),
    "ids": nodes.decode_producer_ids,
}
DAMAGED = [
    ("topic", b""),
    ("topic", b"[]"),
    ("topic", b'{"version":3}'),
    ("topic", b'{"partitions":{"0":[1,1]}}'),
    ("topic", b'{"partitions":{"0":[]}}'),
    ("topic", b'{"partitions":{"1":[1]}}'),
    ("topic", b'{"partitions":{"0":[1]},"topic_id":"short"}'),
    ("topic", b'{"partitions":{"0":[1]},"adding_replicas":{"0":[2]}}'),
    ("state", b'{"leader":1,"leader_epoch":0}'),
    ("state", b'{"leader":1,"leader_epoch":0,"isr":[2]}'),
    ("state", b'{"leader":9,"leader_epoch":0,"isr":[9]}'),
    ("state", b'{"leader":1,"leader_epoch":-1,"isr":[1]}'),
    ("state", b'{"leader":true,"leader_epoch":0,"isr":[1]}'),
    ("state", b'{"leader":1,"leader_epoch":0,"isr":[1],"elr":[8]}'),
    ("state", b'{"leader":1,"leader_epoch":0,"isr":[1],"lost":[8]}'),
    ("state", b'{"leader":1,"leader_epoch":0,"isr":[1],"lost":[1]}'),
    ("broker", b'{"endpoints":["nonsense"]}'),
    ("broker", b'{"host":"h","port":1}'),
    ("known", b'{"broker_epoch":"4"}'),
    ("known", b'{"broker_epoch":4,"endpoints":["nonsense"]}'),
    ("cluster", b'{"version":"1"}'),
    ("controller", b"{}"),
    ("epoch", b"-3"),
    ("epoch", b"x"),
    ("configs", b'{"config":{"a":1}}'),
    ("configs", b'{"config":[]}'),
    ("ids", b'{"block_start":"5","block_end":"4"}'),
    ("ids", b'{"block_start":5,"block_end":9}'),
]


@pytest.mark.parametrize(("kind", "data"), DAMAGED)
def test_damaged_content_is_refused_with_its_path(kind: str, data: bytes) -> None:
    with pytest.raises(DamagedNode, match="node /"):
        DECODERS[kind](data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just([1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("leader", "isr", "elr", "lost", "partitions", "topic_id"),
                    *("endpoints", "config", "0", "id"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(
    kind=st.sampled_from(sorted(DECODERS)),
    data=st.binary(max_size=40) | _JSON.map(lambda value: json.dumps(value).encode()),
)
def test_any_content_is_a_value_or_damaged(kind: str, data: bytes) -> None:
    with contextlib.suppress(DamagedNode):
        DECODERS[kind](data)


def test_parents_come_before_their_children() -> None:
    made = {""}
    for path in nodes.PERSISTENT:
        assert path.rpartition("/")[0] in made
        made.add(path)
    for path in (
        nodes.broker_path(BrokerId(1)),
        nodes.topic_path("t"),
        nodes.topic_configs_path("t"),
        nodes.broker_configs_path(""),
        nodes.deletion_path("t"),
        nodes.known_broker_path(BrokerId(1)),
        nodes.CLUSTER_ID,
        nodes.CONTROLLER,
        nodes.CONTROLLER_EPOCH,
    ):
        assert path.rpartition("/")[0] in made
    assert nodes.broker_configs_path("") == "/config/brokers/<default>"

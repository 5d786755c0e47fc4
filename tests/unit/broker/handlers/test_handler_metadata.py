"""Metadata, versions 0-13."""

import asyncio
import errno
from uuid import UUID

import pytest

from kits.broker.topic_handlers_kit import OUTSIDE, Desk, codes, make_late
from kits.broker.versions import versions_of
from millstream.broker.handlers import metadata
from millstream.controller.image import BrokerImage, Endpoint
from millstream.model.ids import BrokerId, TopicId
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)

NOT_ASKED = -(2**31)
STRANGE_ID = TopicId(UUID(int=0xABC))


def named(*names: str, create: bool = False) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def ask(
    desk: Desk, request: MetadataRequest, version: int = 13, **options: str
) -> MetadataResponse:
    return desk.send(metadata, request, MetadataResponse, version, **options)


def names_of(response: MetadataResponse) -> list[str | None]:
    return [topic.name for topic in response.topics]


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.create("b", 2)
    desk.create("a")
    return desk


@pytest.mark.parametrize("version", versions_of(metadata))
def test_every_version_tells_what_it_can(desk: Desk, version: int) -> None:
    request = named("b", create=version < 4)
    response = ask(desk, request, version)
    topic = response.topics[0]
    image = desk.controller.image
    assert (topic.name, topic.error_code, topic.is_internal) == ("b", 0, False)
    assert [one.partition_index for one in topic.partitions] == [0, 1]
    for one in topic.partitions:
        assert (one.leader_id, one.replica_nodes, one.isr_nodes) == (1, [1], [1])
        assert one.leader_epoch == (0 if version >= 7 else -1)
        assert one.offline_replicas == []
    expected_id = image.topics["b"].topic_id if version >= 10 else UUID(int=0)
    assert topic.topic_id == expected_id
    assert topic.topic_authorized_operations == NOT_ASKED
    broker = response.brokers[0]
    rack = "r1" if version >= 1 else None
    assert (broker.node_id, broker.host, broker.port, broker.rack) == (1, "inside", 9092, rack)
    assert response.cluster_id == (image.cluster_id if version >= 2 else None)
    assert response.controller_id == (1 if version >= 1 else -1)
    assert response.cluster_authorized_operations == NOT_ASKED
    assert response.error_code == 0


def test_the_address_is_that_of_the_clients_listener(desk: Desk) -> None:
    broker = ask(desk, named("a"), listener=OUTSIDE).brokers[0]
    assert (broker.host, broker.port) == ("outside", 9093)


def test_a_broker_without_an_address_of_its_own_is_where_the_client_found_it(desk: Desk) -> None:
    desk.register(BrokerImage(BrokerId(1), (Endpoint("PLAINTEXT", "", 9092),)))
    broker = ask(desk, named("a")).brokers[0]
    assert (broker.host, broker.port) == ("127.0.0.1", 9092)


@pytest.mark.parametrize("version", versions_of(metadata))
def test_all_topics_and_none(desk: Desk, version: int) -> None:
    if version == 0:
        assert names_of(ask(desk, MetadataRequest(topics=[]), 0)) == ["a", "b"]
        return
    assert names_of(ask(desk, MetadataRequest(topics=None), version)) == ["a", "b"]
    none = ask(desk, MetadataRequest(topics=[]), version)
    assert (names_of(none), len(none.brokers)) == ([], 1)


def test_each_topic_once_in_the_order_asked_for(desk: Desk) -> None:
    response = ask(desk, named("b", "nope", "a", "b"))
    assert names_of(response) == ["b", "nope", "a"]
    assert codes(response.topics) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "NONE"]


@pytest.mark.parametrize("name", ["", "..", "a b", "x" * 250])
@pytest.mark.parametrize("create", [True, False])
def test_an_illegal_name_is_told_and_never_created(desk: Desk, name: str, create: bool) -> None:
    assert codes(ask(desk, named(name, create=create)).topics) == ["INVALID_TOPIC_EXCEPTION"]
    assert sorted(desk.topics) == ["a", "b"]


def test_internal_topics_are_marked(desk: Desk) -> None:
    desk.create("__consumer_offsets")
    topics = ask(desk, named("__consumer_offsets", "__transaction_state")).topics
    assert [topic.is_internal for topic in topics] == [True, True]
    assert codes(topics) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]


# -- ids ---------------------------------------------------------------------------------------


def by_id(*ids: UUID, name: str | None = None) -> MetadataRequest:
    topics = [MetadataRequestTopic(topic_id=one, name=name) for one in ids]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=True)


@pytest.mark.parametrize("version", [12, 13])
def test_topics_by_id(desk: Desk, version: int) -> None:
    known = desk.controller.image.topics["a"].topic_id
    response = ask(desk, by_id(known, STRANGE_ID, known), version)
    found = {topic.topic_id: topic for topic in response.topics}
    assert len(response.topics) == 2
    assert (found[known].name, found[known].error_code) == ("a", 0)
    assert found[STRANGE_ID].name is None
    assert codes([found[STRANGE_ID]]) == ["UNKNOWN_TOPIC_ID"]


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_the_request_are_refused_where_they_came_too_early(desk: Desk, version: int) -> None:
    known = desk.controller.image.topics["a"].topic_id
    response = ask(desk, by_id(known, name="a"), version)
    assert codes(response.topics) == ["INVALID_REQUEST"]
    response = ask(desk, MetadataRequest(topics=[MetadataRequestTopic(name=None)]), version)
    assert (names_of(response), codes(response.topics)) == ([""], ["INVALID_REQUEST"])


def test_names_do_not_count_beside_ids_and_nothing_is_created(desk: Desk) -> None:
    known = desk.controller.image.topics["a"].topic_id
    topics = [MetadataRequestTopic(name="new"), MetadataRequestTopic(topic_id=known, name=None)]
    response = ask(desk, MetadataRequest(topics=topics))
    assert names_of(response) == ["a"]
    assert "new" not in desk.topics


def test_neither_name_nor_id_is_refused(desk: Desk) -> None:
    response = ask(desk, MetadataRequest(topics=[MetadataRequestTopic(name=None)]))
    assert codes([response]) == ["INVALID_REQUEST"]


# -- creation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(metadata))
def test_a_missing_topic_is_created_and_is_in_the_answer(version: int) -> None:
    desk = Desk({"num.partitions": "3"})
    topic = ask(desk, named("new", create=True), version).topics[0]
    assert codes([topic]) == ["NONE"]
    assert [one.leader_id for one in topic.partitions] == [1, 1, 1]
    assert desk.topics == {"new": 3}
    assert [one.partition for one in desk.logs_there] == [0, 1, 2]


@pytest.mark.parametrize("version", range(4, 14))
def test_nothing_is_created_where_the_client_does_not_want_it(version: int) -> None:
    desk = Desk()
    response = ask(desk, named("new", create=False), version)
    assert codes(response.topics) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert desk.topics == {}


def test_nothing_is_created_where_the_broker_does_not_want_it() -> None:
    desk = Desk({"auto.create.topics.enable": "false"})
    response = ask(desk, named("new", create=True))
    assert codes(response.topics) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert desk.topics == {}


def test_topics_of_coordinators_are_not_created_by_asking_for_them() -> None:
    desk = Desk()
    names = ["__consumer_offsets", "__transaction_state", "__cluster_metadata"]
    response = ask(desk, named(*names, create=True))
    assert codes(response.topics) == ["UNKNOWN_TOPIC_OR_PARTITION"] * 3
    assert desk.topics == {}


def test_a_topic_that_cannot_be_is_unknown_and_the_others_are_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As from Kafka, whose clients go on asking; why is in the log."""
    desk = Desk({"default.replication.factor": "1"})
    desk.create("a.b")
    response = ask(desk, named("a_b", "good", create=True))
    assert codes(response.topics) == ["UNKNOWN_TOPIC_OR_PARTITION", "NONE"]
    few = Desk({"default.replication.factor": "2"})
    assert codes(ask(few, named("x", create=True)).topics) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    said = [one.getMessage() for one in caplog.records]
    assert said == ["automatic creation of a topic failed"] * 2
    assert few.topics == {}


def test_a_disk_that_fails_is_told_for_the_topics_that_were_to_be(desk: Desk) -> None:
    desk.disk.faults.fail_next("write", errno.ENOSPC)
    response = ask(desk, named("a", "new", create=True))
    assert codes(response.topics) == ["NONE", "KAFKA_STORAGE_ERROR"]


def test_two_clients_that_ask_together_get_the_same_topic() -> None:
    desk = Desk()
    make_late(desk)

    async def both() -> list[MetadataResponse]:
        request = named("new", create=True)
        asking = [desk.serve(metadata, request, MetadataResponse, 13) for _ in range(2)]
        return await asyncio.gather(*asking)

    first, second = virtual_loop.run(both)
    assert codes(first.topics) == codes(second.topics) == ["NONE"]
    assert first.topics[0].topic_id == second.topics[0].topic_id


# -- operations --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(8, 14))
def test_allowed_operations_where_asked_for(desk: Desk, version: int) -> None:
    request = named("a", "nope")
    request.include_topic_authorized_operations = True
    request.include_cluster_authorized_operations = version <= 10
    response = ask(desk, request, version)
    assert [topic.topic_authorized_operations for topic in response.topics] == [3576, 3576]
    expected = 8096 if version <= 10 else NOT_ASKED
    assert response.cluster_authorized_operations == expected


# -- brokers and disks that are not there ------------------------------------------------------


def partition_of(response: MetadataResponse) -> tuple[str, int, list[int], list[int], list[int]]:
    one = response.topics[0].partitions[0]
    return (
        ErrorCode(one.error_code).name,
        one.leader_id,
        one.replica_nodes,
        one.isr_nodes,
        one.offline_replicas,
    )


@pytest.fixture
def trio() -> Desk:
    """Broker 2 has no outside address, broker 3 is fenced."""
    desk = Desk()
    desk.register(
        BrokerImage(BrokerId(2), (Endpoint("PLAINTEXT", "two", 9092),)),
        BrokerImage(BrokerId(3), (Endpoint("PLAINTEXT", "three", 9092),), is_fenced=True),
    )
    desk.create("followed", assignments=[(0, (BrokerId(1), BrokerId(2), BrokerId(3)))])
    desk.create("led", assignments=[(0, (BrokerId(2), BrokerId(1)))])
    return desk


def test_fenced_brokers_and_those_without_an_address_are_not_named(trio: Desk) -> None:
    assert [one.node_id for one in ask(trio, named()).brokers] == [1, 2]
    assert [one.node_id for one in ask(trio, named(), listener=OUTSIDE).brokers] == [1]


def test_replicas_out_of_reach_are_offline(trio: Desk) -> None:
    told = partition_of(ask(trio, named("followed")))
    assert told == ("NONE", 1, [1, 2, 3], [1, 2], [3])
    told = partition_of(ask(trio, named("followed"), listener=OUTSIDE))
    assert told == ("NONE", 1, [1, 2, 3], [1, 2], [2, 3])


def test_the_oldest_version_names_only_replicas_in_reach(trio: Desk) -> None:
    request = named("followed", create=True)
    assert partition_of(ask(trio, request, 0)) == ("REPLICA_NOT_AVAILABLE", 1, [1, 2], [1, 2], [])


@pytest.mark.parametrize(
    ("version", "error"), [(5, "LEADER_NOT_AVAILABLE"), (6, "LISTENER_NOT_FOUND")]
)
def test_a_leader_without_an_address_on_the_listener(trio: Desk, version: int, error: str) -> None:
    told = partition_of(ask(trio, named("led"), version, listener=OUTSIDE))
    assert told[:2] == (error, -1)


def test_a_partition_whose_disk_failed_has_no_leader(desk: Desk) -> None:
    place = next(log.owner for log in desk.logs if log.partition.topic == "a")
    place.failed(OSError(errno.EIO, "gone"))
    told = partition_of(ask(desk, named("a")))
    assert told == ("LEADER_NOT_AVAILABLE", -1, [1], [1], [1])


# -- bytes of real clients ----------------------------------------------------------------------


@pytest.mark.parametrize("version", range(9, 14))
def test_librdkafkas_request_for_all_topics_is_understood(version: int) -> None:
    """As it was seen on the wire: its null array takes four bytes."""
    flags = b"\x01\x01\x00" if version <= 10 else b"\x01\x00"
    request = metadata.decode(memoryview(bytes(4) + flags + b"\x00"), version)
    assert request.topics is None
    assert request.allow_auto_topic_creation
    assert not request.include_topic_authorized_operations
    assert request.include_cluster_authorized_operations == (version <= 10)


@pytest.mark.parametrize("version", range(9, 14))
def test_other_requests_are_read_as_they_are(version: int) -> None:
    for request in (
        MetadataRequest(topics=None),
        MetadataRequest(topics=[]),
        named("a"),
        named("", "", "x"),
    ):
        assert metadata.decode(memoryview(request.encode(version)), version) == request
    surplus = memoryview(MetadataRequest(topics=None).encode(version) + bytes(2))
    assert metadata.decode(surplus, version) == MetadataRequest(topics=None)


# -- failure -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(metadata))
def test_a_whole_failure_is_told_for_every_topic(version: int) -> None:
    response = metadata.failed(named("a", "b"), ErrorCode.INVALID_REQUEST, version)
    decoded = MetadataResponse.decode(memoryview(response.encode(version)), version)
    assert codes(decoded.topics) == ["INVALID_REQUEST"] * 2
    assert decoded.error_code == (ErrorCode.INVALID_REQUEST if version == 13 else 0)
    assert isinstance(decoded.topics[0], MetadataResponseTopic)
    everything = metadata.failed(MetadataRequest(topics=None), ErrorCode.INVALID_REQUEST, version)
    assert everything.topics == []

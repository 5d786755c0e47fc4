"""A client on a simulated network: whom it asks, when it tries again, and how it gives up."""

import asyncio
from copy import deepcopy

import pytest

from kits.client.fake_cluster import DISCONNECT, FORGET, SILENCE, FakeCluster, partition
from kits.rpc.rpc_kit import now_s
from kits.rpc.rpc_server import PORT
from millstream.client.cluster import Cluster
from millstream.client.errors import (
    AnswerUnreadable,
    BrokersUnreachable,
    ConfigInvalid,
    DeadlinePassed,
    RequestRefused,
    TopicUnknown,
)
from millstream.client.offsets import LATEST, list_offsets, list_offsets_each
from millstream.client.targets import Node
from millstream.model.ids import BrokerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_offsets import ListOffsetsRequest
from millstream.wire.messages.metadata import MetadataRequest

# -- finding the cluster


def test_every_address_is_tried_and_told() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(BrokersUnreachable) as caught:
            await cluster.topics()
        assert set(caught.value.reasons) == {"broker1:9092", "broker2:9092", "nowhere:1"}
        assert "within 3 s" in str(caught.value)
        assert "bootstrap.servers" in str(caught.value)
        assert now_s() <= 3.0

    configs = {
        "bootstrap.servers": f"broker1:{PORT},broker2:{PORT},nowhere:1",
        "default.api.timeout.ms": "3000",
    }
    fake.play(scenario, configs, listening=False)


def test_an_address_that_swallows_packets_does_not_hold_up_the_others() -> None:
    fake = FakeCluster()
    fake.world.network.partition("client", "broker1")
    fake.world.network.partition("client", "broker2")

    async def scenario(cluster: Cluster) -> None:
        await cluster.topics()
        assert now_s() < 1.0

    fake.play(scenario, {"bootstrap.servers": f"broker1:{PORT},broker2:{PORT},broker3:{PORT}"})


def test_a_deadline_in_the_middle_of_connecting_names_the_addresses() -> None:
    fake = FakeCluster(1)
    fake.world.network.partition("client", "broker1")

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(BrokersUnreachable, match="broker1:9092: no answer yet"):
            await cluster.topics(["events"], deadline=cluster.deadline("test", 2.0))
        assert now_s() == pytest.approx(2.0, abs=0.1)

    fake.play(scenario)


def test_a_broker_that_comes_late_is_found() -> None:
    fake = FakeCluster(1)
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        waiting = asyncio.create_task(cluster.topics(["events"]))
        await asyncio.sleep(7)
        await fake.broker(1).listen()
        assert (await waiting)["events"].partition_count == 1

    fake.play(scenario, listening=False)


def test_brokers_that_were_met_serve_when_the_bootstrap_address_is_gone() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        await cluster.topics()
        fake.broker(1).stop()
        await asyncio.sleep(1)
        assert await cluster.topics() == {}

    fake.play(scenario)


# -- topics


def test_an_unknown_topic_is_told_after_the_grace_and_asked_for_more_than_once() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(TopicUnknown, match="topic 'events' does not exist"):
            await cluster.topics(["events"])
        assert 1.0 <= now_s() < 3.0
        assert len(fake.asked(MetadataRequest)) > 2

    fake.play(scenario)


def test_a_topic_that_a_broker_hears_of_late_is_found() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        waiting = asyncio.create_task(cluster.topics(["events"]))
        await asyncio.sleep(0.3)
        fake.add_topic("events")
        assert "events" in await waiting

    fake.play(scenario)


def test_names_are_matched_as_a_whole() -> None:
    fake = FakeCluster()
    for name in ("events", "events-2", "my-events"):
        fake.add_topic(name)

    async def scenario(cluster: Cluster) -> None:
        assert list(await cluster.topics(pattern="events(-.*)?")) == ["events", "events-2"]
        assert list(await cluster.topics()) == ["events", "events-2", "my-events"]
        with pytest.raises(ConfigInvalid, match="not a valid regular expression"):
            await cluster.topics(pattern="(")

    fake.play(scenario)


def test_who_asks_at_the_same_time_shares_requests() -> None:
    fake = FakeCluster()
    names = [f"t{number}" for number in range(20)]
    for name in names:
        fake.add_topic(name)

    async def scenario(cluster: Cluster) -> None:
        await asyncio.gather(*(cluster.topics([name]) for name in names))
        assert len(fake.asked(MetadataRequest)) <= 2

    fake.play(scenario)


def test_reading_never_creates_a_topic() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        await cluster.topics_each(["events"], unknown_grace_s=0)
        await cluster.topics_each(["other"], unknown_grace_s=0, creates=True)
        flags = {
            (request.topics[0].name, request.allow_auto_topic_creation)
            for _, request in fake.asked(MetadataRequest)
        }
        assert flags == {("events", False), ("other", True)}

    fake.play(scenario)


# -- leaders


def test_offsets_are_asked_of_each_leader_once() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 9)
    for broker in fake.brokers:
        broker.offsets = {("events", index): 100 + index for index in range(9)}

    async def scenario(cluster: Cluster) -> None:
        found = await list_offsets(cluster, {partition(index): LATEST for index in range(9)})
        assert [found[partition(index)].offset for index in range(9)] == list(range(100, 109))
        assert sorted(broker for broker, _ in fake.asked(ListOffsetsRequest)) == [1, 2, 3]

    fake.play(scenario)


def test_a_leader_that_moved_is_followed() -> None:
    fake = FakeCluster()
    topic = fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        await list_offsets(cluster, {partition(0): LATEST})
        topic.leaders[0] = (3, 1)
        fake.broker(3).offsets["events", 0] = 7
        found = await list_offsets(cluster, {partition(0): LATEST})
        assert found[partition(0)].offset == 7

    fake.play(scenario)


def test_a_broker_that_lags_behind_does_not_send_us_back() -> None:
    """Broker 2 still believes in the old leader: its answer must not undo what we know."""
    fake = FakeCluster(2)
    topic = fake.add_topic("events")
    fake.broker(2).view = deepcopy(fake.view)
    topic.leaders[0] = (2, 1)
    fake.broker(2).offsets["events", 0] = 7

    async def scenario(cluster: Cluster) -> None:
        for broker in (1, 2):
            await cluster.call(MetadataRequest(topics=[]), to=Node(BrokerId(broker)))
        for _ in range(20):
            await cluster.refresh(["events"])
        leader = cluster.metadata.leader_of(partition(0))
        assert leader is not None
        assert (leader.broker.broker_id, leader.leader_epoch) == (2, 1)
        asked = [broker for broker, one in fake.asked(MetadataRequest) if one.topics]
        assert set(asked) == {1, 2}

    fake.play(scenario, {"bootstrap.servers": f"broker1:{PORT},broker2:{PORT}"})


def test_one_partition_without_a_leader_does_not_hold_up_the_answer_of_others() -> None:
    fake = FakeCluster()
    topic = fake.add_topic("events", 2)
    topic.leaders[1] = (-1, 3)

    async def scenario(cluster: Cluster) -> None:
        found = await list_offsets_each(
            cluster,
            {partition(0): LATEST, partition(1): LATEST},
            deadline=cluster.deadline("test", 2.0),
        )
        assert not isinstance(found[partition(0)], Exception)
        error = found[partition(1)]
        assert isinstance(error, DeadlinePassed)
        assert "no leader at the moment" in str(error)
        assert len(fake.asked(ListOffsetsRequest)) == 1

    fake.play(scenario)


def test_a_partition_that_is_not_there_is_told() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 2)

    async def scenario(cluster: Cluster) -> None:
        for index in (2, -1):
            with pytest.raises(TopicUnknown, match=f"has no partition {index}"):
                await list_offsets(cluster, {partition(index): LATEST})

    fake.play(scenario)


def test_a_code_that_cannot_pass_is_told_at_once() -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.append(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(RequestRefused, match="UNSUPPORTED_FOR_MESSAGE_FORMAT"):
            await list_offsets(cluster, {partition(0): LATEST})
        assert now_s() < 0.1

    fake.play(scenario)


def test_an_answer_that_leaves_something_out_is_told() -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.append(FORGET)

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(AnswerUnreadable, match="no entry for events-0"):
            await list_offsets(cluster, {partition(0): LATEST})

    fake.play(scenario)


def test_who_asks_while_a_request_is_under_way_gets_a_newer_answer() -> None:
    """The one under way may have been answered before what its caller has seen happen."""
    fake = FakeCluster()
    topic = fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        await cluster.refresh(["events"])
        fake.world.network.slow_down("broker1", "client", delay_range_s=(1.0, 1.0))
        first = asyncio.create_task(cluster.refresh(["events"]))
        await asyncio.sleep(0.5)  # it is answered, and the answer is on its way
        topic.leaders[0] = (2, 1)
        await cluster.refresh(["events"])
        leader = cluster.metadata.leader_of(partition(0))
        assert leader is not None
        assert leader.leader_epoch == 1
        await first

    fake.play(scenario)


@pytest.mark.parametrize(
    "trouble",
    [
        DISCONNECT,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_what_passes_is_tried_again(trouble: ErrorCode | str) -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.extend([trouble] * 3)

    async def scenario(cluster: Cluster) -> None:
        found = await list_offsets(cluster, {partition(0): LATEST})
        assert found[partition(0)].offset == 0
        assert len(fake.asked(ListOffsetsRequest)) == 4

    fake.play(scenario)


def test_a_broker_that_does_not_answer_is_given_up_after_the_request_timeout() -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.append(SILENCE)

    async def scenario(cluster: Cluster) -> None:
        await list_offsets(cluster, {partition(0): LATEST})
        assert 4.0 <= now_s() < 6.0

    fake.play(scenario, {"request.timeout.ms": "4000"})


def test_a_deadline_leaves_the_shared_connection_alone() -> None:
    """Somebody's short deadline must not cost others their answers on the same connection."""
    fake = FakeCluster(1)
    fake.add_topic("events")
    fake.broker(1).script.append(SILENCE)

    async def scenario(cluster: Cluster) -> None:
        await cluster.topics()
        with pytest.raises(DeadlinePassed):
            await list_offsets(
                cluster, {partition(0): LATEST}, deadline=cluster.deadline("test", 0.5)
            )
        assert len(fake.broker(1).server.sessions) == 1
        assert not fake.broker(1).server.session.is_lost

    fake.play(scenario)

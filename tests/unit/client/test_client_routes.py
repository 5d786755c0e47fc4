"""A client on a simulated network: the way to leaders, the controller, coordinators."""

import asyncio

import pytest

from kits.client.fake_cluster import DISCONNECT, SILENCE, FakeCluster, partition
from kits.rpc.rpc_server import PORT
from millstream.client.admin import Admin, NewTopic
from millstream.client.cluster import Cluster
from millstream.client.errors import (
    ClientClosed,
    DeadlinePassed,
    OutcomeUnknown,
    TopicExists,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.metadata import Broker, LeaderHint
from millstream.client.offsets import LATEST, list_offsets
from millstream.client.retries import Remedy
from millstream.client.targets import CONTROLLER, CoordinatorOf, LeaderOf, Node
from millstream.model.ids import BrokerId, TopicId
from millstream.rpc.errors import ConnectionLost
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest

# -- hot paths


def test_a_leader_connection_is_found_and_then_there() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 3)

    async def scenario(cluster: Cluster) -> None:
        assert cluster.leader_connection_now(partition(1), purpose="fetch") is None
        found = await cluster.leader_connection(partition(1), purpose="fetch")
        assert found.connection.address == f"broker2:{PORT}"
        assert found == cluster.leader_connection_now(partition(1), purpose="fetch")
        other = await cluster.leader_connection(partition(1))
        assert other.connection is not found.connection

    fake.play(scenario)


def test_a_leader_that_restarts_is_connected_to_again() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 3)

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.leader_connection(partition(1))
        fake.broker(2).stop()
        await asyncio.sleep(1)
        assert not first.connection.is_open
        waiting = asyncio.create_task(cluster.leader_connection(partition(1)))
        await asyncio.sleep(5)
        await fake.broker(2).listen()
        assert (await waiting).connection.is_open

    fake.play(scenario)


def test_a_topic_that_was_made_again_is_told_by_its_id() -> None:
    fake = FakeCluster()
    old_id = TopicId(fake.add_topic("events").topic_id)

    async def scenario(cluster: Cluster) -> None:
        await cluster.leader_connection(partition(0), topic_id=old_id)
        new_id = TopicId(fake.add_topic("events").topic_id)
        await cluster.refresh(["events"])
        with pytest.raises(TopicRecreated, match="deleted and created again") as caught:
            await cluster.leader_connection(partition(0), topic_id=old_id)
        assert (caught.value.old_id, caught.value.new_id) == (old_id, new_id)

    fake.play(scenario)


def test_a_topic_that_is_newer_than_what_is_known_is_asked_for() -> None:
    """Who asks may have learnt of it elsewhere: its records are not gone, they are yet to come."""
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        await cluster.leader_connection(partition(0))
        new_id = TopicId(fake.add_topic("events").topic_id)
        found = await cluster.leader_connection(partition(0), topic_id=new_id)
        assert found.leader.topic_id == new_id

    fake.play(scenario)


def test_a_hint_of_the_new_leader_saves_the_question() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        await cluster.leader_connection(partition(0))
        before = len(fake.asked(MetadataRequest))
        hint = LeaderHint(3, 5, (Broker(BrokerId(3), "broker3", PORT),))
        remedy = cluster.partition_failed(partition(0), ErrorCode.NOT_LEADER_OR_FOLLOWER, hint)
        assert remedy == Remedy.BACK_OFF
        found = await cluster.leader_connection(partition(0))
        assert (found.leader.broker.broker_id, found.leader.leader_epoch) == (3, 5)
        assert len(fake.asked(MetadataRequest)) == before
        # Without one, metadata is asked for before the leader is used again.
        remedy = cluster.partition_failed(partition(0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert Remedy.REFRESH in remedy
        assert cluster.leader_connection_now(partition(0)) is None
        assert cluster.partition_failed(partition(0), ErrorCode.INVALID_RECORD) is Remedy.GIVE_UP

    fake.play(scenario)


def test_metadata_that_is_too_old_is_asked_for_again() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        await cluster.leader_connection(partition(0))
        await asyncio.sleep(9)
        before = len(fake.asked(MetadataRequest))
        await cluster.leader_connection(partition(0))
        assert len(fake.asked(MetadataRequest)) == before
        await asyncio.sleep(2)
        await cluster.leader_connection(partition(0))
        assert len(fake.asked(MetadataRequest)) == before + 1

    fake.play(scenario, {"metadata.max.age.ms": "10000"})


def test_a_client_that_was_idle_for_long_goes_on() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            assert await cluster.topics(["events"])
            await list_offsets(cluster, {partition(0): LATEST})
            await asyncio.sleep(3600)
            assert all(one.is_lost for one in fake.broker(1).server.sessions)

    fake.play(scenario)


# -- controller, brokers, coordinators


def test_the_controller_is_looked_for_again() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name="one", partitions=1)])
        fake.view.controller = 3
        made = await admin.create_topics([NewTopic(name="two", partitions=1)])
        assert not isinstance(made["two"], Exception)
        assert [broker for broker, _ in fake.asked(CreateTopicsRequest)] == [1, 1, 3]

    fake.play(scenario)


def test_a_topic_whose_creation_was_not_answered_may_be_ours() -> None:
    fake = FakeCluster()
    fake.broker(1).script.append(DISCONNECT)

    async def scenario(cluster: Cluster) -> None:
        made = await Admin(cluster).create_topics([NewTopic(name="one", partitions=1)])
        error = made["one"]
        assert isinstance(error, TopicExists)
        assert error.may_be_ours
        assert "perhaps created by this call" in str(error)
        again = (await Admin(cluster).create_topics([NewTopic(name="one")]))["one"]
        assert isinstance(again, TopicExists)
        assert not again.may_be_ours

    fake.play(scenario)


def test_a_topic_whose_deletion_was_not_answered_is_gone() -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.append(DISCONNECT)

    async def scenario(cluster: Cluster) -> None:
        gone = await Admin(cluster).delete_topics(["events", "never"])
        assert gone["events"] is True
        # The same answer for a topic that was never there: it cannot be told apart.
        assert gone["never"] is True
        assert isinstance((await Admin(cluster).delete_topics(["x"]))["x"], TopicUnknown)

    fake.play(scenario)


def test_what_must_not_be_sent_twice_is_not() -> None:
    fake = FakeCluster()
    fake.broker(1).script.append(DISCONNECT)
    request = CreateTopicsRequest(topics=[CreatableTopic(name="one", num_partitions=1)])

    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(OutcomeUnknown, match="it is unknown whether it was done") as caught:
            await cluster.call(request, to=CONTROLLER, may_repeat=False)
        assert isinstance(caught.value.__cause__, ConnectionLost)
        assert len(fake.asked(CreateTopicsRequest)) == 1

    fake.play(scenario)


def test_a_broker_by_its_id() -> None:
    fake = FakeCluster()

    async def scenario(cluster: Cluster) -> None:
        await cluster.call(MetadataRequest(topics=[]), to=Node(BrokerId(3)))
        assert fake.broker(3).asked
        with pytest.raises(DeadlinePassed, match="broker 9"):
            await cluster.call(
                MetadataRequest(topics=[]),
                to=Node(BrokerId(9)),
                deadline=cluster.deadline("test", 1.0),
            )

    fake.play(scenario)


def test_a_coordinator_is_found_once_and_again_after_an_error() -> None:
    fake = FakeCluster()
    to = CoordinatorOf("group")
    request = MetadataRequest(topics=[])

    async def scenario(cluster: Cluster) -> None:
        fake.broker(1).script.append(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await cluster.call(request, to=to)
        await cluster.call(request, to=to)
        assert len(fake.asked(FindCoordinatorRequest)) == 2
        assert len(fake.broker(2).asked) == 2
        answers = iter([ErrorCode.NOT_COORDINATOR, ErrorCode.NONE])
        await cluster.call(request, to=to, error_of=lambda _: next(answers))
        assert len(fake.asked(FindCoordinatorRequest)) == 3

    fake.play(scenario)


def test_the_leader_of_a_partition_as_a_target() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 3)

    async def scenario(cluster: Cluster) -> None:
        await cluster.call(MetadataRequest(topics=[]), to=LeaderOf(partition(2)))
        assert fake.broker(3).asked
        with pytest.raises(TopicUnknown):
            await cluster.call(MetadataRequest(topics=[]), to=LeaderOf(partition(0, "no")))

    fake.play(scenario)


# -- the end


def test_a_closed_client_says_so() -> None:
    fake = FakeCluster()
    fake.add_topic("events")
    fake.broker(1).script.append(SILENCE)

    async def scenario(cluster: Cluster) -> None:
        waiting = asyncio.create_task(list_offsets(cluster, {partition(0): LATEST}))
        searching = asyncio.create_task(cluster.topics(["never"]))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await cluster.close()
        for task in (waiting, searching):
            with pytest.raises(ClientClosed):
                await task
        with pytest.raises(ClientClosed):
            await cluster.topics()
        with pytest.raises(ClientClosed):
            await cluster.call(MetadataRequest(topics=[]))
        await cluster.close()

    fake.play(scenario)


def test_closing_while_connecting() -> None:
    fake = FakeCluster(1)
    fake.world.network.partition("client", "broker1")

    async def scenario(cluster: Cluster) -> None:
        waiting = asyncio.create_task(cluster.topics())
        await asyncio.sleep(0.5)
        await cluster.close()
        with pytest.raises(ClientClosed):
            await waiting

    fake.play(scenario)

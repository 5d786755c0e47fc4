"""Offsets of a group committed from outside, on a simulated network."""

import asyncio

from kits.client.fake_cluster import DISCONNECT, FakeCluster, partition
from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError, TopicUnknown
from millstream.client.group_offsets import GroupInUse, commit_group_offsets
from millstream.model.ids import Offset
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest


def test_offsets_are_committed_with_the_coordinator_and_without_a_member() -> None:
    fake = FakeCluster()
    fake.add_topic("events", 2)
    fake.add_topic("other", 1)

    async def scenario(cluster: Cluster) -> None:
        wanted = {
            partition(0): Offset(5),
            partition(1): Offset(7),
            partition(0, "other"): Offset(0),
        }
        outcomes = await commit_group_offsets(cluster, "query", wanted, metadata="m")
        assert outcomes == dict.fromkeys(wanted)

    fake.play(scenario)
    assert fake.committed == {
        ("query", "events", 0): 5,
        ("query", "events", 1): 7,
        ("query", "other", 0): 0,
    }
    [(broker_id, request)] = fake.asked(OffsetCommitRequest)
    assert broker_id == 2
    assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
    assert request.topics[0].partitions[0].committed_metadata == "m"


def test_a_coordinator_that_moved_is_found_again() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        fake.broker(2).script.extend([ErrorCode.NOT_COORDINATOR, DISCONNECT])
        outcomes = await commit_group_offsets(cluster, "query", {partition(0): Offset(1)})
        assert outcomes == {partition(0): None}

    fake.play(scenario)
    assert len(fake.asked(FindCoordinatorRequest)) >= 2


def test_a_coordinator_that_loads_is_waited_for() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        fake.broker(2).script.extend([ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3)
        outcomes = await commit_group_offsets(cluster, "query", {partition(0): Offset(1)})
        assert outcomes == {partition(0): None}

    fake.play(scenario)


def test_a_group_with_members_is_told_as_such() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        fake.broker(2).script.append(ErrorCode.UNKNOWN_MEMBER_ID)
        outcomes = await commit_group_offsets(cluster, "query", {partition(0): Offset(1)})
        assert isinstance(outcomes[partition(0)], GroupInUse)

    fake.play(scenario)
    assert not fake.committed


def test_a_topic_that_is_gone_does_not_keep_the_others_from_being_committed() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        wanted = {partition(0): Offset(1), partition(0, "gone"): Offset(2)}
        outcomes = await commit_group_offsets(cluster, "query", wanted)
        assert outcomes[partition(0)] is None
        assert isinstance(outcomes[partition(0, "gone")], TopicUnknown)

    fake.play(scenario)
    assert fake.committed == {("query", "events", 0): 1}


def test_without_a_coordinator_it_ends_with_the_deadline() -> None:
    fake = FakeCluster()
    fake.add_topic("events")

    async def scenario(cluster: Cluster) -> None:
        for broker in fake.brokers:
            broker.script.extend([ErrorCode.COORDINATOR_NOT_AVAILABLE] * 1000)
        before_s = asyncio.get_running_loop().time()
        deadline = cluster.deadline("committing", 3.0)
        outcomes = await commit_group_offsets(
            cluster, "query", {partition(0): Offset(1)}, deadline=deadline
        )
        assert isinstance(outcomes[partition(0)], ClientError)
        assert asyncio.get_running_loop().time() - before_s <= 3.1

    fake.play(scenario)

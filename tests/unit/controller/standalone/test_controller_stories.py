"""Named stories of controllers: who dies where, which answer is lost, and what is so afterwards."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import cast
from uuid import UUID

import pytest

from kits.controller.controllers_kit import Cluster, cluster_played, new_topic, policy_of
from kits.controller.controllers_kit import Node as Broker
from kits.controller.controllers_simulation import image_of_nodes
from kits.controller.membership_kit import happens
from millstream.controller.cluster import nodes
from millstream.controller.cluster.active import ActiveController
from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.image_loader import load, recovery
from millstream.controller.cluster.node_reader import read_everything
from millstream.controller.cluster.port import ElectionKind, IsrChange
from millstream.controller.image import PartitionImage
from millstream.controller.topics import MorePartitions
from millstream.coordination.errors import ConnectionLost, NoNode
from millstream.coordination.keeper.state import Node
from millstream.coordination.port import (
    MultiResult,
    NodeChildren,
    NodeData,
    Operation,
    Session,
)
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition

ONE = (BrokerId(1),)


async def agrees_with_nodes(cluster: Cluster) -> None:
    image = await cluster.all_know()
    stored = await image_of_nodes(await cluster.world.open("reader"))
    assert dict(stored.topics) == dict(image.topics)
    assert dict(stored.broker_configs) == dict(image.broker_configs)


def stop_at_multi(node: Broker, number: int) -> asyncio.Event:
    """From its n-th multi on the controller of this node is dead: nothing of it gets through."""
    session = node.member.coordination.sessions[-1]
    whole = session.multi
    reached = asyncio.Event()
    count = 0

    async def multi(operations: Sequence[Operation]) -> list[MultiResult]:
        nonlocal count
        count += 1
        if count < number:
            return await whole(operations)
        if not reached.is_set():
            reached.set()
            node.member.cut()
        await asyncio.sleep(0.01)
        raise ConnectionLost("cut off", is_in_doubt=False)

    session.multi = multi  # type: ignore[method-assign]
    return reached


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_controller_dies_between_two_multis_and_the_next_one_finishes(at: int) -> None:
    """A topic of 500 partitions takes three multis; from the first on it exists."""

    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        leader = cluster.leader
        reached = stop_at_multi(leader, at)
        asked = asyncio.ensure_future(controller.create_topics([new_topic("t", 500, 2)]))
        await reached.wait()
        others = [one for one in cluster.nodes if one is not leader]
        await happens(lambda: any(one.reigns_now() for one in others), "another takes over")
        leader.member.mend()
        with pytest.raises(NotController):
            await asked
        await cluster.has_brokers(1, 2, 3)
        image = await cluster.all_know()
        assert [len(one.partitions) for one in image.topics.values()] == [500] * (at > 1)
        await agrees_with_nodes(cluster)

    cluster_played(at, story)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_deletion_that_has_begun_is_finished_by_the_next_one(at: int) -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 500, 2)])
        leader = cluster.leader
        reached = stop_at_multi(leader, at)
        asked = asyncio.ensure_future(controller.delete_topics(["t"]))
        await reached.wait()
        others = [one for one in cluster.nodes if one is not leader]
        await happens(lambda: any(one.reigns_now() for one in others), "another takes over")
        leader.member.mend()
        with pytest.raises(NotController):
            await asked
        await cluster.has_brokers(1, 2, 3)
        assert sorted((await cluster.all_know()).topics) == ["t"] * (at == 1)
        await agrees_with_nodes(cluster)
        await (await cluster.controller()).create_topics([new_topic("again", 1, 2)])

    cluster_played(10 + at, story)


Change = Callable[[ActiveController], Awaitable[object]]


async def _shrink(controller: ActiveController) -> object:
    image = controller.image
    topic = image.topics["t"]
    one = topic.partitions[0]
    epoch = image.brokers[one.leader].epoch
    change = IsrChange(
        topic.topic_id, 0, one.leader_epoch, one.partition_epoch, ((one.leader, epoch),)
    )
    (result,) = await controller.alter_partitions(
        [change], broker_id=one.leader, broker_epoch=epoch
    )
    assert not isinstance(result, Exception)
    return result


async def _reassign(controller: ActiveController) -> object:
    one = controller.image.topics["t"].partitions[0]
    wanted = tuple(reversed(one.replicas))
    return await controller.reassign_partitions({TopicPartition("t", 0): wanted})


CHANGES: dict[str, Change] = {
    "create": lambda one: one.create_topics([new_topic("new", 3, 2)]),
    "grow": lambda one: one.create_partitions([MorePartitions(name="t", total_count=9)]),
    "delete": lambda one: one.delete_topics(["t"]),
    "configure": lambda one: one.alter_topic_configs("t", {"retention.ms": "7"}),
    "configure brokers": lambda one: one.alter_broker_configs("1", {"log.cleaner.threads": "2"}),
    "shrink": _shrink,
    "reassign": _reassign,
    "elect": lambda one: one.elect_leaders(ElectionKind.PREFERRED, None),
}


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_a_lost_answer_to_every_kind_of_write(change: str, *, is_carried_out: bool) -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 3, 3)])
        leader = cluster.leader
        leader.member.losses.lose_next("multi", is_carried_out=is_carried_out)
        await CHANGES[change](controller)
        assert len(leader.reigns) == 1
        assert cluster.leader is leader
        await agrees_with_nodes(cluster)
        if change != "elect":  # there is nothing to elect
            assert leader.member.losses.counts.total() == 1

    cluster_played(20, story)


def test_a_broker_hears_only_of_what_is_written() -> None:
    """While the write is under way the image is what it was, for everybody."""

    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await cluster.all_know()
        leader = cluster.leader
        before = {one.name: one.image.version for one in cluster.nodes}
        leader.member.losses.lose_next("multi", is_carried_out=False)

        async def look() -> None:
            await asyncio.sleep(1.0)
            assert "t" not in controller.image.topics
            assert {one.name: one.image.version for one in cluster.nodes} == before

        leader.member.losses.before_retry = look
        await controller.create_topics([new_topic("t")])
        leader.member.losses.before_retry = None
        await cluster.all_know()

    cluster_played(21, story)


def test_a_new_controllers_snapshot_follows_an_old_ones_changes() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 900, 2)])  # several pieces
        await cluster.all_know()
        first = cluster.leader
        positions = [one.metadata_follower.position for one in cluster.nodes]
        await first.stop()
        cluster.nodes.remove(first)
        await cluster.has_brokers(*(int(one.broker_id) for one in cluster.nodes))
        image = await cluster.all_know()
        assert image.controller_id != first.broker_id
        for one in cluster.nodes:
            assert one.metadata_follower.position > max(positions)
            created = [topic for change in one.received_changes for topic in change.created]
            assert len(created) == 1  # a snapshot is compared, not taken for news
        again = Broker(cluster.world, int(first.broker_id), name="again")
        cluster.nodes.append(await again.start())
        await cluster.has_brokers(1, 2, 3)
        await cluster.all_know()

    cluster_played(22, story)


def test_an_image_of_an_older_controller_is_refused() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t")])
        await cluster.all_know()
        follower = next(one for one in cluster.nodes if not one.reigns_now())
        position = follower.metadata_follower.position
        follower.metadata_follower.position = position._replace(
            controller_epoch=position.controller_epoch + 1
        )
        await controller.create_topics([new_topic("later")])
        await asyncio.sleep(3)
        assert "later" not in follower.image.topics
        follower.metadata_follower.position = position
        await cluster.all_know()

    cluster_played(23, story)


@pytest.mark.slow
def test_two_thousand_partitions_change_hands() -> None:
    """With the simulated keeper: a controller dies, the next loads, elects and tells."""

    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 2000, 2)])
        await cluster.all_know()
        first = cluster.leader
        await first.stop()
        cluster.nodes.remove(first)
        left = [one.broker_id for one in cluster.nodes]
        await cluster.has_brokers(*left)
        partitions = (await cluster.all_know()).topics["t"].partitions
        assert len(partitions) == 2000
        assert all(one.leader in left for one in partitions)

    cluster_played(24, story)


class Nodes:
    """A session that answers at once from memory; for what only reads."""

    def __init__(self, found: dict[str, bytes]) -> None:
        self.found = {path: NodeData(data, Node(data).stat()) for path, data in found.items()}
        self.names: dict[str, list[str]] = {}
        for path in found:
            parent, _, name = path.rpartition("/")
            self.names.setdefault(parent, []).append(name)

    async def get(self, path: str) -> NodeData:
        if path not in self.found:
            raise NoNode(path)
        return self.found[path]

    async def children(self, path: str) -> NodeChildren:
        return NodeChildren(sorted(self.names.get(path, [])), Node(b"").stat())


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "partitions"), [(10, 1000), (10_000, 1)])
def test_ten_thousand_partitions_are_loaded_soon(topics: int, partitions: int) -> None:
    """CPU of reading, decoding and the first look at the brokers; about a second."""
    assigned = [PartitionImage(n, ONE, ONE, ONE[0], LeaderEpoch(0), 0) for n in range(partitions)]
    found = {nodes.CLUSTER_ID: nodes.encode_cluster_id("c")}
    for number in range(topics):
        name = f"t{number}"
        found[nodes.topic_path(name)] = nodes.encode_topic(TopicId(UUID(int=number + 1)), assigned)
        found[nodes.partitions_path(name)] = b""
        found[nodes.topic_configs_path(name)] = nodes.encode_configs({})
        for one in assigned:
            state = nodes.encode_state(one, controller_epoch=1)
            found[nodes.state_path(name, one.index)] = state
    session = cast("Session", Nodes(found))
    started_s = time.process_time()
    read = asyncio.run(read_everything(session))
    loaded = load(read, controller_id=BrokerId(1))
    plan = recovery(loaded, policy_of({}))
    spent_s = time.process_time() - started_s
    assert sum(len(topic.partitions) for topic in plan.image.topics.values()) == 10_000
    assert spent_s < 10, f"{spent_s} s"

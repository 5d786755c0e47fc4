"""The controller at work over a simulated keeper: what is decided is written, and then known."""

import asyncio

import pytest

from kits.controller.controllers_kit import Cluster, Node, alive, cluster_played, new_topic
from kits.controller.membership_kit import happens
from millstream.controller.cluster.active import Balance
from millstream.controller.cluster.errors import (
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from millstream.controller.cluster.metadata_feed import NO_POSITION
from millstream.controller.cluster.port import ElectionKind, IsrChange
from millstream.controller.errors import TopicExists
from millstream.controller.image import NO_LEADER, TopicImage
from millstream.controller.topics import MorePartitions, NewTopic
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition


def isr_change(topic: TopicImage, cluster: Cluster, isr: list[int]) -> IsrChange:
    partition = topic.partitions[0]
    image = cluster.leader.candidate.active
    assert image is not None
    brokers = image.image.brokers
    members = tuple((BrokerId(one), brokers[BrokerId(one)].epoch) for one in isr)
    return IsrChange(topic.topic_id, 0, partition.leader_epoch, partition.partition_epoch, members)


def test_topics_are_created_grown_configured_and_deleted_and_all_brokers_know() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        (made,) = await controller.create_topics([new_topic("t", 3, 3)])
        assert isinstance(made, TopicImage)
        image = await cluster.all_know()
        assert image.topics["t"] == made
        (error,) = await controller.create_topics([new_topic("t")])
        assert isinstance(error, TopicExists)
        (valid,) = await controller.create_topics([new_topic("only")], validate_only=True)
        assert isinstance(valid, TopicImage)
        assert "only" not in controller.image.topics
        await controller.create_partitions([MorePartitions(name="t", total_count=5)])
        await controller.alter_topic_configs("t", {"retention.ms": "1"})
        await controller.alter_broker_configs("", {"log.retention.ms": "5"})
        image = await cluster.all_know()
        assert len(image.topics["t"].partitions) == 5
        assert image.topics["t"].configs == {"retention.ms": "1"}
        assert image.broker_configs == {"": {"log.retention.ms": "5"}}
        assert await controller.delete_topics(["t"]) == [None]
        assert not (await cluster.all_know()).topics
        for one in cluster.nodes:
            names = [topic.name for change in one.received_changes for topic in change.created]
            gone = [topic.name for change in one.received_changes for topic in change.deleted]
            assert (names, gone) == (["t"], ["t"])
            assert [change for change, _ in one.prepared] == one.received_changes

    cluster_played(1, story)


def test_a_broker_that_dies_leaves_its_partitions_to_others_and_comes_again() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 6, 3)])
        victim = next(one for one in cluster.nodes if not one.reigns_now())
        tally = cluster.leader.tally
        await victim.kill()
        cluster.nodes.remove(victim)
        left = [int(one.broker_id) for one in cluster.nodes]
        await cluster.has_brokers(*left)
        image = await cluster.all_know()
        for partition in image.topics["t"].partitions:
            assert partition.leader in left
            assert victim.broker_id not in partition.isr
        assert tally.elections == 2
        assert tally.isr_shrinks == 6
        again = Node(cluster.world, victim.broker_id, name="again")
        cluster.nodes.append(await again.start())
        await cluster.has_brokers(1, 2, 3)
        assert (await cluster.all_know()).brokers[victim.broker_id].epoch == again.member.epoch

    cluster_played(2, story)


def test_a_registration_replaced_between_two_looks_is_a_broker_that_restarted() -> None:
    """Trap 15. Its successor has no proof: it is in sync with nobody until it has caught up."""

    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 6, 3)])
        victim = next(one for one in cluster.nodes if not one.reigns_now())
        old = victim.member.epoch
        await victim.kill()
        cluster.nodes.remove(victim)
        again = Node(cluster.world, victim.broker_id, name="again")
        cluster.nodes.append(await again.start())
        await happens(lambda: controller.image.brokers[victim.broker_id].epoch > old, "it is seen")
        for partition in controller.image.topics["t"].partitions:
            assert victim.broker_id not in partition.isr

    cluster_played(3, story)


def test_a_lost_session_alone_keeps_a_broker_in_sync() -> None:
    """It says which epoch it had, and nothing was lost on its disk."""

    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 1, 3, min_insync_replicas="2")])
        await cluster.all_know()
        victim = next(one for one in cluster.nodes if not one.reigns_now())
        operator = await cluster.world.open("operator")
        old = victim.member.epoch
        await operator.delete(f"/brokers/ids/{victim.broker_id}", version=-1)
        await happens(lambda: controller.image.brokers[victim.broker_id].epoch > old, "it is seen")
        await cluster.has_brokers(1, 2, 3)

    cluster_played(4, story)


def test_leaders_change_the_isr_with_the_epochs_they_know() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        (made,) = await controller.create_topics([new_topic("t", 1, 3)])
        assert isinstance(made, TopicImage)
        leader = made.partitions[0].leader
        epoch = controller.image.brokers[leader].epoch
        (small,) = await controller.alter_partitions(
            [isr_change(made, cluster, [leader])], broker_id=leader, broker_epoch=epoch
        )
        assert not isinstance(small, Exception)
        assert small.isr == (leader,)
        (late,) = await controller.alter_partitions(
            [isr_change(made, cluster, [leader])], broker_id=leader, broker_epoch=epoch
        )
        assert isinstance(late, InvalidUpdateVersion)
        now = controller.image.topics["t"]
        await controller.alter_partitions(
            [isr_change(now, cluster, [1, 2, 3])], broker_id=leader, broker_epoch=epoch
        )
        with pytest.raises(StaleBrokerEpoch):
            await controller.alter_partitions([], broker_id=leader, broker_epoch=BrokerEpoch(1))
        assert (cluster.leader.tally.isr_shrinks, cluster.leader.tally.isr_growths) == (1, 1)
        image = await cluster.all_know()
        assert set(image.topics["t"].partitions[0].isr) == {1, 2, 3}

    cluster_played(5, story)


def test_unclean_elections_are_counted() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        leader = cluster.leader
        first, second = (one for one in cluster.nodes if one is not leader)
        replicas = [first.broker_id, second.broker_id]
        topic = NewTopic(
            name="t",
            assignments=[(0, replicas)],
            configs={"unclean.leader.election.enable": "true"},
        )
        (made,) = await controller.create_topics([topic])
        assert isinstance(made, TopicImage)
        await controller.alter_partitions(
            [isr_change(made, cluster, [first.broker_id])],
            broker_id=first.broker_id,
            broker_epoch=first.member.epoch,
        )
        await first.kill()
        cluster.nodes.remove(first)

        def is_led() -> bool:
            return controller.image.topics["t"].partitions[0].leader == second.broker_id

        await happens(is_led, "somebody leads who was not in sync")
        assert leader.tally.unclean_elections == 1

    cluster_played(6, story)


def test_leaders_go_back_to_where_they_belong_by_themselves() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        await controller.create_topics([new_topic("t", 6, 3)])
        victim = next(one for one in cluster.nodes if not one.reigns_now())
        assert await controller.shut_down(victim.broker_id, victim.member.epoch)
        image = controller.image
        assert all(one.leader != victim.broker_id for one in image.topics["t"].partitions)
        epoch = victim.member.epoch
        await (await cluster.world.open("x")).delete(f"/brokers/ids/{victim.broker_id}", version=-1)
        await happens(
            lambda: controller.image.brokers[victim.broker_id].epoch > epoch, "it is back"
        )
        await cluster.has_brokers(1, 2, 3)
        for partition in controller.image.topics["t"].partitions:
            leader = partition.leader
            change = IsrChange(
                controller.image.topics["t"].topic_id,
                partition.index,
                partition.leader_epoch,
                partition.partition_epoch,
                tuple(
                    (BrokerId(one), controller.image.brokers[BrokerId(one)].epoch)
                    for one in (1, 2, 3)
                ),
            )
            await controller.alter_partitions(
                [change], broker_id=leader, broker_epoch=controller.image.brokers[leader].epoch
            )

        def is_balanced() -> bool:
            partitions = controller.image.topics["t"].partitions
            return all(one.leader == one.replicas[0] for one in partitions)

        assert not is_balanced()
        await happens(is_balanced, "leaders are balanced")

    cluster_played(7, story, balance=Balance(interval_s=5.0, percentage=10))


def test_elections_by_request_and_reassignments() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        (made,) = await controller.create_topics([new_topic("t", 1, 2)])
        assert isinstance(made, TopicImage)
        name = TopicPartition("t", 0)
        results = await controller.elect_leaders(ElectionKind.PREFERRED, [name])
        assert results[name] is not None
        missing = next(one for one in (1, 2, 3) if BrokerId(one) not in made.partitions[0].replicas)
        wanted = (*made.partitions[0].replicas, BrokerId(missing))
        assert await controller.reassign_partitions({name: wanted}) == {name: None}
        (under_way,) = controller.reassignments(None)
        assert under_way.adding == (missing,)
        now = controller.image.topics["t"].partitions[0]
        topic = controller.image.topics["t"]
        await controller.alter_partitions(
            [isr_change(topic, cluster, [1, 2, 3])],
            broker_id=now.leader,
            broker_epoch=controller.image.brokers[now.leader].epoch,
        )
        assert controller.reassignments(None) == []
        tally = cluster.leader.tally
        assert (tally.reassignments_begun, tally.reassignments_ended) == (1, 1)
        assert (await cluster.all_know()).topics["t"].partitions[0].replicas == wanted

    cluster_played(8, story)


def test_a_broker_that_is_gone_is_forgotten_on_request() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        victim = next(one for one in cluster.nodes if not one.reigns_now())
        await victim.stop()
        cluster.nodes.remove(victim)
        left = [int(one.broker_id) for one in cluster.nodes]
        await cluster.has_brokers(*left)
        assert victim.broker_id in controller.image.brokers
        await controller.unregister_broker(victim.broker_id)
        assert victim.broker_id not in (await cluster.all_know()).brokers

    cluster_played(9, story)


def test_who_is_deposed_says_so_to_all_who_wait() -> None:
    async def story(cluster: Cluster) -> None:
        controller = await cluster.controller()
        leader = cluster.leader
        loop = asyncio.get_running_loop()
        await cluster.all_know()
        position = leader.metadata_follower.position
        news = loop.create_task(controller.changes_since(position, wait_s=100))
        leader.member.cut()
        asked = loop.create_task(controller.create_topics([new_topic("late")]))
        await happens(
            lambda: any(one.reigns_now() for one in cluster.nodes if one is not leader),
            "another one takes over",
        )
        leader.member.mend()
        for one in (news, asked):
            with pytest.raises(NotController):
                await one
        with pytest.raises(NotController):
            await controller.delete_topics(["late"])
        with pytest.raises(NotController):
            await controller.changes_since(NO_POSITION, wait_s=0)
        image = await cluster.all_know()
        assert "late" not in image.topics
        await cluster.has_brokers(1, 2, 3)
        assert alive(image)
        assert all(p.leader != NO_LEADER for t in image.topics.values() for p in t.partitions)

    cluster_played(10, story)

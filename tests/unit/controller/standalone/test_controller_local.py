"""The controller of one broker: what it changes survives, in order, whole, and told in time."""

import asyncio
import errno
from uuid import UUID

import pytest

from kits.controller.controller_kit import ME, METADATA, ROOT, create, made, new_disk, run, started
from millstream.controller.errors import (
    DamagedMetadata,
    InvalidPartitionCount,
    InvalidRequest,
    TopicExists,
    UnknownTopic,
)
from millstream.controller.image import BrokerImage, Endpoint, ImageChange, TopicImage
from millstream.controller.standalone.controller import StandaloneController
from millstream.controller.topics import MorePartitions, NewTopic
from millstream.model.errors import (
    DiskFull,
    LogDirectoryClosed,
    LogDirectoryLocked,
    StorageFailed,
    UnknownTopicId,
)
from millstream.model.ids import TopicId
from millstream.runtime.background import BackgroundFullError
from millstream.runtime.disk import read_whole
from millstream.runtime.randomness import SeededRandomness
from millstream.runtime.scheduler import StepGenerator
from millstream.testing.sim.background import SimBackground
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.disk_faults import DiskOperation
from millstream.testing.sim.trace import Trace

NOBODYS_ID = TopicId(UUID(int=5))


def restarted(controller: StandaloneController, disk: SimDisk) -> StandaloneController:
    """The next process's controller."""
    disk.kill()
    return started(disk.after_kill(), seed=99)


# -- what survives -----------------------------------------------------------------------------


def test_topics_survive_with_ids_partitions_and_settings() -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> None:
        await create(controller, "plain", partitions=3)
        await controller.create_topics([NewTopic(name="set", configs={"retention.ms": "5"})])

    run(change)
    before = controller.image
    after = restarted(controller, disk).image
    assert after.topics.keys() == before.topics.keys()
    assert after.cluster_id == before.cluster_id
    for name, topic in before.topics.items():
        assert after.topics[name].topic_id == topic.topic_id
        assert after.topics[name].configs == topic.configs
        assert len(after.topics[name].partitions) == len(topic.partitions)
        assert after.topics_by_id[topic.topic_id].name == name


def test_every_start_raises_every_leader_epoch() -> None:
    """I-12. The leader is the same broker, but it may have lost an unflushed tail."""
    disk = new_disk()
    controller = started(disk)
    run(lambda: create(controller, "old"))
    assert controller.image.topics["old"].partitions[0].leader_epoch == 0
    for start in (1, 2):
        disk.kill()
        disk = disk.after_kill()
        controller = started(disk)
        assert controller.image.topics["old"].partitions[0].leader_epoch == start
    run(lambda: create(controller, "new"))
    run(lambda: controller.alter_topic_configs("old", {"a": "b"}))
    disk.kill()
    topics = started(disk.after_kill()).image.topics
    assert topics["new"].partitions[0].leader_epoch == 1
    assert topics["old"].partitions[0].leader_epoch == 3
    assert topics["old"].partitions[0].partition_epoch == 3


def test_a_topic_created_again_has_another_id() -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> tuple[TopicId, TopicId]:
        first = (await create(controller, "t"))[0].topic_id
        assert await controller.delete_topics(["t"]) == [None]
        return first, (await create(controller, "t"))[0].topic_id

    first, second = run(change)
    assert first != second
    after = restarted(controller, disk)
    assert after.image.topics["t"].topic_id == second
    assert [one.topic_id for one in after.deleted_topics] == [first]


def test_growth_and_settings_survive() -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> None:
        await create(controller, "t")
        assert await controller.create_partitions([MorePartitions(name="t", total_count=4)]) == [
            None
        ]
        await controller.alter_topic_configs("t", {"cleanup.policy": "compact"})
        await controller.alter_broker_configs("", {"a": "1"})
        await controller.alter_broker_configs("1", {"b": "2", "text": 'ä "\n'})

    run(change)
    after = restarted(controller, disk).image
    assert len(after.topics["t"].partitions) == 4
    assert after.topics["t"].configs == {"cleanup.policy": "compact"}
    assert after.broker_configs == {"": {"a": "1"}, "1": {"b": "2", "text": 'ä "\n'}}


def test_settings_taken_back_are_gone_after_a_restart() -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> None:
        await controller.alter_broker_configs("", {"a": "1"})
        await controller.alter_broker_configs("", {})

    run(change)
    assert controller.image.broker_configs == {}
    assert restarted(controller, disk).image.broker_configs == {}


def test_producer_ids_are_never_given_twice() -> None:
    """I-20."""
    disk = new_disk()
    controller = started(disk)

    async def two() -> list[range]:
        return list(
            await asyncio.gather(*[controller.allocate_producer_id_block() for _ in range(2)])
        )

    given = run(two)
    controller = restarted(controller, disk)
    given += run(two)
    assert [(one.start, len(one)) for one in given] == [(n * 1000, 1000) for n in range(4)]


def test_a_long_name_has_room_in_its_file() -> None:
    disk = new_disk()
    controller = started(disk)
    names = ["n" * 249, "n" * 248 + "m"]
    run(lambda: create(controller, *names))
    assert all(len(name) + len(".tmp") <= 255 for name in disk.list_directory(METADATA))
    assert sorted(restarted(controller, disk).image.topics) == sorted(names)


# -- what is told ------------------------------------------------------------------------------


def test_a_change_is_told_when_it_is_durable_and_before_it_is_answered() -> None:
    disk = new_disk()
    controller = started(disk)
    told: list[ImageChange] = []

    def listen(change: ImageChange) -> None:
        told.append(change)
        # What is told must be on disk, and must be the image already.
        for topic in change.created:
            assert controller.image.topics[topic.name] == topic
            assert any(name.startswith(topic.name) for name in disk.list_directory(METADATA))

    controller.subscribe(listen)

    async def change() -> None:
        created = await create(controller, "t")
        assert told[-1].created == created
        await controller.create_partitions([MorePartitions(name="t", total_count=3)])
        grown = told[-1].grown[0]
        assert (grown.topic, grown.first_new_partition) == (controller.image.topics["t"], 1)
        await controller.alter_topic_configs("t", {"a": "b"})
        assert told[-1].reconfigured == [controller.image.topics["t"]]
        await controller.alter_broker_configs("", {"a": "b"})
        assert told[-1].brokers_reconfigured
        await controller.delete_topics(["t"])
        assert [one.name for one in told[-1].deleted] == ["t"]
        assert len(told[-1].deleted[0].partitions) == 3

    run(change)
    assert len(told) == 5


def test_what_changes_nothing_is_not_told() -> None:
    controller = started(new_disk())
    told: list[ImageChange] = []

    async def change() -> None:
        await create(controller, "t")
        controller.subscribe(told.append)
        version = controller.image.version
        planned = await controller.create_topics([NewTopic(name="v")], validate_only=True)
        assert isinstance(planned[0], TopicImage)
        more = [MorePartitions(name="t", total_count=9)]
        assert await controller.create_partitions(more, validate_only=True) == [None]
        await controller.alter_topic_configs("t", {"a": "b"}, validate_only=True)
        await controller.alter_topic_configs("t", {})
        await controller.alter_broker_configs("", {"a": "b"}, validate_only=True)
        await controller.allocate_producer_id_block()
        assert controller.image.version == version

    run(change)
    assert told == []
    assert list(controller.image.topics) == ["t"]


def test_an_error_of_a_subscriber_reaches_the_caller_and_the_change_stands() -> None:
    controller = started(new_disk())
    told: list[ImageChange] = []

    def fail(change: ImageChange) -> None:
        raise DiskFull("/data")

    controller.subscribe(fail)
    controller.subscribe(told.append)

    async def change() -> None:
        with pytest.raises(DiskFull):
            await create(controller, "t")
        assert await controller.allocate_producer_id_block()

    run(change)
    assert list(controller.image.topics) == ["t"]
    assert len(told) == 1


# -- errors ------------------------------------------------------------------------------------


def test_each_item_has_its_own_outcome() -> None:
    controller = started(new_disk())

    async def change() -> None:
        await create(controller, "t", "u")
        wanted = [NewTopic(name="t"), NewTopic(name="v")]
        assert [type(one) for one in await controller.create_topics(wanted)] == [
            TopicExists,
            TopicImage,
        ]
        more = [MorePartitions(name="t", total_count=1), MorePartitions(name="u", total_count=2)]
        grown = await controller.create_partitions(more)
        assert [type(one) for one in grown] == [InvalidPartitionCount, type(None)]
        known = controller.image.topics["u"].topic_id
        gone = await controller.delete_topics(["t", "x", known, "t", NOBODYS_ID, known])
        assert [type(one) for one in gone] == [
            type(None),
            UnknownTopic,
            type(None),
            UnknownTopic,
            UnknownTopicId,
            UnknownTopicId,
        ]
        with pytest.raises(UnknownTopic):
            await controller.alter_topic_configs("t", {})
        for name in ("x", "../evil", "-1"):
            with pytest.raises(InvalidRequest):
                await controller.alter_broker_configs(name, {"a": "b"})

    run(change)
    assert list(controller.image.topics) == ["v"]


def test_a_full_disk_refuses_the_change_and_leaves_everything_as_it_was() -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> None:
        await create(controller, "t")
        disk.faults.fail_next("write", errno.ENOSPC)
        with pytest.raises(DiskFull):
            await create(controller, "u", "v")
        assert list(controller.image.topics) == ["t"]
        assert not [name for name in disk.list_directory(METADATA) if name.endswith(".tmp")]
        await create(controller, "w")

    run(change)
    assert sorted(restarted(controller, disk).image.topics) == ["t", "w"]


@pytest.mark.parametrize("operation", ["rename", "sync_directory"])
def test_after_a_failure_in_doubt_nothing_more_is_changed(operation: DiskOperation) -> None:
    disk = new_disk()
    controller = started(disk)

    async def change() -> None:
        await create(controller, "t")
        disk.faults.fail_next(operation, errno.EIO)
        with pytest.raises(StorageFailed):
            await create(controller, "u")
        with pytest.raises(StorageFailed):
            await create(controller, "v")
        with pytest.raises(StorageFailed):
            await controller.allocate_producer_id_block()

    run(change)
    assert list(controller.image.topics) == ["t"]


def test_two_brokers_cannot_use_one_directory() -> None:
    disk = new_disk()
    controller = started(disk)
    second = made(disk.another_process())
    with pytest.raises(LogDirectoryLocked):
        second.load()
    controller.close()
    second.start()


def test_nothing_is_changed_before_the_start_or_after_the_end() -> None:
    controller = started(new_disk())
    controller.close()

    async def change() -> None:
        with pytest.raises(LogDirectoryClosed):
            await create(controller, "t")

    run(change)


# -- order -------------------------------------------------------------------------------------


def slow(disk: SimDisk, *, queued_max: int = 100) -> StandaloneController:
    """A controller whose disk takes its time; call it on a running loop."""
    randomness = SeededRandomness(1)
    background = SimBackground(
        asyncio.get_running_loop(), randomness, Trace(), queued_max=queued_max
    )
    return started(disk, background=background)


def test_changes_that_come_together_are_made_one_after_the_other() -> None:
    disk = new_disk()

    async def change() -> StandaloneController:
        controller = slow(disk)
        one = NewTopic(name="t", partition_count=1)
        results = await asyncio.gather(*[controller.create_topics([one]) for _ in range(5)])
        kinds = [type(result[0]) for result in results]
        assert kinds == [TopicImage] + [TopicExists] * 4
        grown = [MorePartitions(name="t", total_count=count) for count in (2, 3, 3)]
        results2 = await asyncio.gather(*[controller.create_partitions([one]) for one in grown])
        assert [type(one[0]) for one in results2] == [type(None)] * 2 + [InvalidPartitionCount]
        return controller

    controller = run(change)
    assert len(restarted(controller, disk).image.topics["t"].partitions) == 3


def test_a_change_that_began_is_finished_without_its_caller() -> None:
    disk = new_disk()

    async def change() -> StandaloneController:
        controller = slow(disk)
        told: list[ImageChange] = []
        controller.subscribe(told.append)
        began = asyncio.create_task(create(controller, "begun"), name="begun")
        queued = asyncio.create_task(create(controller, "queued"), name="queued")
        await asyncio.sleep(0.0001)  # in virtual time: it is being written now
        began.cancel()
        queued.cancel()
        await asyncio.gather(began, queued, return_exceptions=True)
        await create(controller, "last")
        assert [topic.name for one in told for topic in one.created] == ["begun", "last"]
        return controller

    controller = run(change)
    assert sorted(controller.image.topics) == ["begun", "last"]
    assert sorted(restarted(controller, disk).image.topics) == ["begun", "last"]


def test_what_a_change_brings_is_prepared_before_it_shows() -> None:
    """Durable first, then prepared, then in the image, then told, then answered."""
    order: list[str] = []

    async def change() -> None:
        controller = slow(new_disk())

        def seen(what: str) -> StepGenerator[None]:
            order.append(f"{what}: {sorted(controller.image.topics)}")
            yield None
            yield lambda: order.append(f"{what} elsewhere")
            order.append(f"{what} done: {sorted(controller.image.topics)}")

        controller.subscribe(lambda _: seen("told"), prepare=lambda _: seen("prepare"))
        await create(controller, "t")
        order.append("answered")

    run(change)
    assert order == [
        *("prepare: []", "prepare elsewhere", "prepare done: []"),
        *("told: ['t']", "told elsewhere", "told done: ['t']", "answered"),
    ]


def test_a_change_whose_preparation_fails_stands_all_the_same() -> None:
    """It is durable. Whoever asked for it gets the error, the others hear of the change."""

    async def change() -> None:
        controller = slow(new_disk())
        told: list[ImageChange] = []

        def prepare(_: ImageChange) -> StepGenerator[None]:
            yield None
            raise StorageFailed("/data", "gone")

        controller.subscribe(told.append, prepare=prepare)
        with pytest.raises(StorageFailed):
            await create(controller, "t")
        assert sorted(controller.image.topics) == ["t"]
        assert len(told) == 1

    run(change)


def test_other_work_waits_for_a_change_and_a_change_for_it() -> None:
    order: list[str] = []

    async def change() -> None:
        controller = slow(new_disk())
        controller.subscribe(lambda one: order.append(one.created[0].name))

        def between() -> StepGenerator[int]:
            for _ in range(3):
                order.append("between")
                yield lambda: None
            return 7

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(create(controller, "first"), name="first")
            other = tasks.create_task(controller.run_between(between, name="other"), name="other")
            tasks.create_task(create(controller, "second"), name="second")
        assert other.result() == 7

    run(change)
    assert order == ["first", "between", "between", "between", "second"]


def test_a_broker_registered_during_a_change_is_not_lost() -> None:
    async def change() -> None:
        controller = slow(new_disk())
        task = asyncio.create_task(create(controller, "t"), name="t")
        await asyncio.sleep(0)
        broker = BrokerImage(ME, (Endpoint("PLAINTEXT", "h", 9092),))
        controller.register(broker)
        await task
        assert controller.image.brokers[ME] == broker

    run(change)


def test_too_much_background_work_refuses_the_change_and_later_ones_go() -> None:
    async def change() -> None:
        controller = slow(new_disk(), queued_max=0)
        with pytest.raises(BackgroundFullError):
            await create(controller, "t")
        with pytest.raises(BackgroundFullError):
            await create(controller, "u")

    run(change)


# -- damage ------------------------------------------------------------------------------------


def test_damaged_files_are_all_told_and_nothing_is_dropped() -> None:
    disk = new_disk()
    controller = started(disk)
    run(lambda: create(controller, "good", "bad", "worse"))
    controller.close()
    files = {name.partition(".")[0]: f"{METADATA}/{name}" for name in disk.list_directory(METADATA)}
    with disk.open_write(files["bad"]) as file:
        file.truncate(file.size() - 3)
    with disk.open_write(files["worse"]) as file:
        file.write_at(20, b"#")
    contents = {path: read_whole(disk, path) for path in files.values()}
    with pytest.raises(DamagedMetadata) as damage:
        made(disk).load()
    assert set(damage.value.problems) == {files["bad"], files["worse"]}
    assert files["bad"] in str(damage.value)
    assert {path: read_whole(disk, path) for path in files.values()} == contents
    disk.remove(files["bad"])
    disk.remove(files["worse"])
    assert list(started(disk).image.topics) == ["good"]  # and nothing stayed locked


@pytest.mark.parametrize("name", ["broker", "producer-ids"])
def test_a_small_file_that_is_damaged_stops_the_start(name: str) -> None:
    disk = new_disk()
    controller = started(disk)
    run(controller.allocate_producer_id_block)
    controller.close()
    with disk.open_write(f"{METADATA}/{name}") as file:
        file.truncate(0)
    with pytest.raises(DamagedMetadata, match=name):
        made(disk).load()


def test_topics_without_the_count_of_starts_stop_the_start() -> None:
    """Without the count the leader epochs are unknown: they could fall."""
    disk = new_disk()
    controller = started(disk)
    run(lambda: create(controller, "t"))
    controller.close()
    disk.remove(f"{METADATA}/broker")
    with pytest.raises(DamagedMetadata, match="missing"):
        made(disk).load()


def test_a_copied_topic_file_stops_the_start() -> None:
    disk = new_disk()
    controller = started(disk)
    run(lambda: create(controller, "t"))
    controller.close()
    name = next(one for one in disk.list_directory(METADATA) if one.endswith(".topic"))
    content = read_whole(disk, f"{METADATA}/{name}")
    for copy in (f"u{name[1:]}", name.replace(".topic", ".deleted")):
        with disk.open_write(f"{METADATA}/{copy}") as file:
            file.write_at(0, content)
        with pytest.raises(DamagedMetadata):
            made(disk).load()
        disk.remove(f"{METADATA}/{copy}")
    made(disk).load()


def test_files_of_others_are_left_alone() -> None:
    disk = new_disk()
    started(disk).close()
    for name in ("README", "t.topic~", ".hidden"):
        disk.open_write(f"{METADATA}/{name}").close()
    started(disk)
    assert {"README", "t.topic~", ".hidden"} <= set(disk.list_directory(METADATA))
    assert ROOT in METADATA

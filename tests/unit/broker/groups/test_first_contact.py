"""A client comes as soon as it knows its coordinator, which may be before that can serve it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kits.groups.group_handlers_kit import GroupDesk
from kits.groups.group_requests_kit import commit_of, fetch_of
from millstream.broker.groups.service import OFFSETS_TOPIC
from millstream.model.ids import BrokerId, TopicPartition
from millstream.shards import coordinator as coordinator_module
from millstream.shards import early_requests as early
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

GROUPS = [f"group-{number}" for number in range(12)]
"""In all partitions of the offsets topic."""


def join_of(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


@pytest.fixture
def no_loads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is loaded until `load`."""
    monkeypatch.setattr(coordinator_module, "LOADS_AT_ONCE_MAX", 0)
    return monkeypatch


def load(desk: GroupDesk, no_loads: pytest.MonkeyPatch) -> None:
    no_loads.undo()
    desk.groups.coordinator.shards._load_more()


async def found(desk: GroupDesk) -> None:
    answer = await desk.ask(FindCoordinatorRequest(coordinator_keys=GROUPS), 4)
    assert {one.error_code for one in answer.coordinators} == {ErrorCode.NONE}


def in_a_cluster(desk: GroupDesk) -> None:
    """Other brokers may know more than this one."""
    desk.services.membership = cast("Any", SimpleNamespace())


def test_whoever_was_told_the_coordinator_is_served_by_it(no_loads: pytest.MonkeyPatch) -> None:
    """A refusal would cost a client of librdkafka three seconds."""

    async def story() -> None:
        desk = GroupDesk()
        await found(desk)
        joining = asyncio.gather(*(desk.ask(join_of(group), 5) for group in GROUPS))
        await asyncio.sleep(early.WAIT_S / 2)
        assert not joining.done()
        load(desk, no_loads)
        assert {one.error_code for one in await joining} == {ErrorCode.MEMBER_ID_REQUIRED}

    virtual_loop.run(story)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (fetch_of(8, "group-1", {"t": [0]}), 8),
        (commit_of({"t": {0: 5}}, group_id="group-1"), 8),
        (
            ConsumerGroupHeartbeatRequest(
                group_id="group-1",
                member_id="m",
                rebalance_timeout_ms=5_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            ),
            0,
        ),
    ],
    ids=["OffsetFetch", "OffsetCommit", "ConsumerGroupHeartbeat"],
)
def test_other_first_requests_are_served_too(request_: Any, version: int) -> None:
    async def story() -> None:
        desk = GroupDesk()
        await desk.make("t")
        await found(desk)
        answer = await desk.ask(request_, version)
        codes = [answer.error_code] if hasattr(answer, "error_code") else []
        codes += [one.error_code for one in getattr(answer, "groups", ())]
        codes += [one.error_code for t in getattr(answer, "topics", ()) for one in t.partitions]
        assert set(codes) == {ErrorCode.NONE}

    virtual_loop.run(story)


def test_broker_of_a_cluster_waits_for_the_topic_that_another_one_has_told_of() -> None:
    async def story() -> None:
        desk = GroupDesk()
        in_a_cluster(desk)
        joining = asyncio.ensure_future(desk.ask(join_of("group-1"), 5))
        await asyncio.sleep(early.WAIT_S / 2)
        assert not joining.done()
        desk.services.membership = None  # whose way of creating a topic is not the matter here
        await desk.groups.topic()
        assert (await joining).error_code == ErrorCode.MEMBER_ID_REQUIRED

    virtual_loop.run(story)


def test_broker_alone_knows_all_topics_and_refuses_at_once() -> None:
    async def story() -> None:
        desk = GroupDesk()
        begun = asyncio.get_running_loop().time()
        answer = await desk.ask(join_of("group-1"), 5)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert asyncio.get_running_loop().time() == begun

    virtual_loop.run(story)


def test_wait_has_an_end() -> None:
    """In a cluster without the topic: a request that nobody was told to send here."""

    async def story() -> None:
        desk = GroupDesk()
        in_a_cluster(desk)
        begun = asyncio.get_running_loop().time()
        answer = await desk.ask(join_of("group-1"), 5)
        assert answer.error_code == ErrorCode.NOT_COORDINATOR
        assert asyncio.get_running_loop().time() - begun == pytest.approx(early.WAIT_S)

    virtual_loop.run(story)


@pytest.mark.usefixtures("no_loads")
def test_nobody_waits_for_a_partition_that_another_broker_leads() -> None:
    async def story() -> None:
        desk = GroupDesk()
        await found(desk)
        desk.services.broker_id = BrokerId(2)
        begun = asyncio.get_running_loop().time()
        answer = await desk.ask(join_of("group-1"), 5)
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert asyncio.get_running_loop().time() == begun

    virtual_loop.run(story)


@pytest.mark.usefixtures("no_loads")
def test_leadership_that_is_lost_meanwhile_is_told_at_once() -> None:
    async def story() -> None:
        desk = GroupDesk()
        await found(desk)
        joining = asyncio.ensure_future(desk.ask(join_of("group-1"), 5))
        await asyncio.sleep(0.1)
        begun = asyncio.get_running_loop().time()
        desk.services.broker_id = BrokerId(2)
        index = desk.groups.partition_of("group-1")
        desk.groups.leadership_lost(desk.partitions.get(TopicPartition(OFFSETS_TOPIC, index)))
        assert (await joining).error_code == ErrorCode.NOT_COORDINATOR
        assert asyncio.get_running_loop().time() == begun

    virtual_loop.run(story)


def test_no_more_wait_than_are_asked_in_a_moment(
    no_loads: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "WAITING_MAX", 3)

    async def story() -> None:
        desk = GroupDesk()
        await found(desk)
        joining = asyncio.gather(*(desk.ask(join_of(group), 5) for group in GROUPS))
        await asyncio.sleep(early.WAIT_S / 2)
        load(desk, no_loads)
        codes = [one.error_code for one in await joining]
        assert codes.count(ErrorCode.MEMBER_ID_REQUIRED) == 3
        assert codes.count(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS) == len(GROUPS) - 3
        again = await asyncio.gather(*(desk.ask(join_of(group), 5) for group in GROUPS))
        assert {one.error_code for one in again} == {ErrorCode.MEMBER_ID_REQUIRED}

    virtual_loop.run(story)


def test_requests_are_asked_in_the_order_in_which_they_came(no_loads: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        desk = GroupDesk()
        await desk.make("t")
        await found(desk)
        asked = [
            desk.ask(commit_of({"t": {0: offset}}, group_id="group-1"), 8) for offset in range(20)
        ]
        committing = asyncio.gather(*asked)
        await asyncio.sleep(early.WAIT_S / 2)
        load(desk, no_loads)
        await committing
        answer = await desk.ask(fetch_of(8, "group-1", {"t": [0]}), 8)
        assert answer.groups[0].topics[0].partitions[0].committed_offset == 19

    virtual_loop.run(story)


@pytest.mark.usefixtures("no_loads")
def test_description_of_many_groups_waits_for_none_of_them() -> None:
    """Their waits would add up; whoever asks for descriptions asks again at once."""

    async def story() -> None:
        desk = GroupDesk()
        await found(desk)
        begun = asyncio.get_running_loop().time()
        answer = await desk.ask(DescribeGroupsRequest(groups=GROUPS), 5)
        codes = {one.error_code for one in answer.groups}
        assert codes == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
        assert asyncio.get_running_loop().time() == begun

    virtual_loop.run(story)

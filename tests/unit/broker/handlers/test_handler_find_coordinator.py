"""FindCoordinator, versions 0-6."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kits.broker.topic_handlers_kit import OUTSIDE
from kits.groups.group_handlers_kit import GroupDesk
from millstream.broker.groups.service import OFFSETS_TOPIC
from millstream.controller.image import BrokerImage, Endpoint
from millstream.groups.records.partition_of import partition_of
from millstream.model.ids import BrokerId
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest

NOBODY = (-1, "", -1)
HERE = (1, "inside", 9092)
Story = Callable[[GroupDesk], Coroutine[Any, Any, None]]


def tell(story: Story, **settings: str) -> None:
    async def main() -> None:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        await story(GroupDesk(named))

    virtual_loop.run(main)


def request_of(version: int, *keys: str, key_type: int = 0) -> FindCoordinatorRequest:
    if version < 4:
        return FindCoordinatorRequest(key=keys[0], key_type=key_type)
    return FindCoordinatorRequest(coordinator_keys=list(keys), key_type=key_type)


def found(answer: Any, version: int) -> list[tuple[int, tuple[int, str, int]]]:
    ones = [answer] if version < 4 else answer.coordinators
    return [(one.error_code, (one.node_id, one.host, one.port)) for one in ones]


@pytest.mark.parametrize("version", range(7))
def test_first_question_creates_the_topic_and_is_answered(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(request_of(version, "group"), version)
        assert found(answer, version) == [(0, HERE)]
        topic = desk.controller.image.topics[OFFSETS_TOPIC]
        assert len(topic.partitions) == 4
        assert topic.configs == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "104857600",
        }

    tell(story)


def test_many_who_ask_at_once_create_it_once() -> None:
    async def story(desk: GroupDesk) -> None:
        asked = [desk.ask(request_of(4, f"g{number}"), 4) for number in range(20)]
        answers = await asyncio.gather(*asked)
        assert [found(one, 4) for one in answers] == [[(0, HERE)]] * 20

    tell(story)


def test_topic_that_cannot_be_made_is_no_coordinator_yet() -> None:
    """Three replicas are Kafka's default, and there is one broker."""

    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(request_of(3, "group"), 3)
        assert found(answer, 3) == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOBODY)]
        assert answer.error_message
        assert OFFSETS_TOPIC not in desk.controller.image.topics

    tell(story, offsets_topic_replication_factor="3")


def test_every_key_of_a_batch_is_answered_by_its_own_partition() -> None:
    async def story(desk: GroupDesk) -> None:
        desk.register(BrokerImage(BrokerId(2), (Endpoint("PLAINTEXT", "two", 1),)))
        await desk.groups.topic()
        keys = ["a", "b", "", "c", "d"]
        answer = await desk.ask(request_of(6, *keys), 6)
        assert [one.key for one in answer.coordinators] == keys
        leaders = desk.controller.image.topics[OFFSETS_TOPIC].partitions
        expected = [int(leaders[partition_of(key, 4)].leader) for key in keys]
        assert [one.node_id for one in answer.coordinators] == expected

    tell(story)


def test_address_is_the_one_of_the_clients_listener() -> None:
    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(request_of(4, "g"), 4, listener=OUTSIDE)
        assert found(answer, 4) == [(0, (1, "outside", 9093))]
        answer = await desk.ask(request_of(4, "g"), 4, listener="ELSEWHERE")
        assert found(answer, 4) == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOBODY)]

    tell(story)


@pytest.mark.parametrize("version", range(1, 7))
def test_transactions_have_no_coordinator_yet(version: int) -> None:
    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(request_of(version, "id", key_type=1), version)
        assert found(answer, version) == [(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NOBODY)]
        (one,) = [answer] if version < 4 else answer.coordinators
        assert "transactions are not supported yet" in one.error_message
        assert OFFSETS_TOPIC not in desk.controller.image.topics

    tell(story)


@pytest.mark.parametrize("version", range(1, 7))
@pytest.mark.parametrize("key_type", [2, 3, -1, 127])
def test_other_kinds_of_keys_are_refused(version: int, key_type: int) -> None:
    async def story(desk: GroupDesk) -> None:
        answer = await desk.ask(request_of(version, "key", key_type=key_type), version)
        assert found(answer, version) == [(ErrorCode.INVALID_REQUEST, NOBODY)]

    tell(story)


def test_no_keys_no_answers() -> None:
    async def story(desk: GroupDesk) -> None:
        assert (await desk.ask(request_of(4), 4)).coordinators == []

    tell(story)

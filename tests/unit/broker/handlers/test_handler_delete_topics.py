"""DeleteTopics, versions 1-6."""

import asyncio
from uuid import UUID

import pytest

from kits.broker.topic_handlers_kit import Desk, codes, make_late
from kits.broker.versions import versions_of
from millstream.broker.handlers import delete_topics as handler
from millstream.controller.topics import NewTopic
from millstream.model.ids import TopicId
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

NO_ID = UUID(int=0)
STRANGE_ID = TopicId(UUID(int=0xABC))


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.create("a", 2)
    desk.create("b")
    return desk


def by_names(*names: str, version: int) -> DeleteTopicsRequest:
    if version >= 6:
        return DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names], timeout_ms=5_000
        )
    return DeleteTopicsRequest(topic_names=list(names), timeout_ms=5_000)


def states(*items: tuple[str | None, UUID]) -> DeleteTopicsRequest:
    topics = [DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in items]
    return DeleteTopicsRequest(topics=topics, timeout_ms=5_000)


def ask(desk: Desk, request: DeleteTopicsRequest, version: int = 6) -> list[DeletableTopicResult]:
    return desk.send(handler, request, DeleteTopicsResponse, version).responses


@pytest.mark.parametrize("version", versions_of(handler))
def test_every_version_deletes_by_name(desk: Desk, version: int) -> None:
    topic_id = desk.controller.image.topics["a"].topic_id
    results = ask(desk, by_names("a", "nope", version=version), version)
    assert [one.name for one in results] == ["a", "nope"]
    assert codes(results) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert desk.topics == {"b": 1}
    assert [one.topic for one in desk.logs_there] == ["b"]
    assert results[0].topic_id == (topic_id if version >= 6 else NO_ID)
    assert bool(results[1].error_message) == (version >= 5)


def test_by_id(desk: Desk) -> None:
    topic_id = desk.controller.image.topics["a"].topic_id
    results = ask(desk, states((None, topic_id), (None, STRANGE_ID)))
    assert [(one.name, one.topic_id) for one in results] == [("a", topic_id), (None, STRANGE_ID)]
    assert codes(results) == ["NONE", "UNKNOWN_TOPIC_ID"]
    assert desk.topics == {"b": 1}


def test_an_id_of_a_former_topic_does_not_delete_the_new_one(desk: Desk) -> None:
    former = desk.controller.image.topics["a"].topic_id
    ask(desk, states(("a", NO_ID)))
    desk.create("a")
    assert codes(ask(desk, states((None, former)))) == ["UNKNOWN_TOPIC_ID"]
    assert "a" in desk.topics


@pytest.mark.parametrize("is_by_name", [True, False])
def test_a_topic_that_is_created_again_meanwhile_is_not_touched(
    desk: Desk, is_by_name: bool
) -> None:
    """What was asked for is the topic that was there when the request came."""
    former = desk.controller.image.topics["a"].topic_id
    request = states(("a", NO_ID) if is_by_name else (None, former))
    make_late(desk)

    async def together() -> list[DeletableTopicResult]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(desk.controller.delete_topics(["a"]), name="delete")
            tasks.create_task(desk.controller.create_topics([NewTopic(name="a")]), name="create")
            await asyncio.sleep(0)
            response = await desk.serve(handler, request, DeleteTopicsResponse, 6)
        return response.responses

    results = virtual_loop.run(together)
    error = "UNKNOWN_TOPIC_OR_PARTITION" if is_by_name else "UNKNOWN_TOPIC_ID"
    assert codes(results) == [error]
    assert desk.controller.image.topics["a"].topic_id != former


@pytest.mark.parametrize("version", versions_of(handler))
def test_a_name_given_twice_is_refused_once(desk: Desk, version: int) -> None:
    results = ask(desk, by_names("a", "b", "a", "x", "x", version=version), version)
    assert [one.name for one in results] == ["a", "b", "x"]
    assert codes(results) == ["INVALID_REQUEST", "NONE", "INVALID_REQUEST"]
    assert list(desk.topics) == ["a"]


def test_contradictions_are_refused_and_nothing_of_them_is_deleted(desk: Desk) -> None:
    a, b = (desk.controller.image.topics[name].topic_id for name in "ab")
    both = ask(desk, states(("a", a), (None, NO_ID), (None, b), ("b", NO_ID)))
    assert codes(both) == ["INVALID_REQUEST"] * 3
    assert [(one.name, one.topic_id) for one in both] == [("a", a), (None, NO_ID), ("b", b)]
    assert codes(ask(desk, states((None, a), (None, a)))) == ["INVALID_REQUEST"]
    assert sorted(desk.topics) == ["a", "b"]


@pytest.mark.parametrize("version", versions_of(handler))
def test_where_deletion_is_disabled_nothing_is_deleted(version: int) -> None:
    desk = Desk({"delete.topic.enable": "false"})
    desk.create("a")
    results = ask(desk, by_names("a", "x", version=version), version)
    assert codes(results) == ["INVALID_REQUEST" if version < 3 else "TOPIC_DELETION_DISABLED"] * 2
    assert desk.topics == {"a": 1}


def test_a_topic_created_again_begins_empty_with_another_id(desk: Desk) -> None:
    former = desk.controller.image.topics["a"].topic_id
    ask(desk, states(("a", NO_ID)))
    desk.create("a", 2)
    assert desk.controller.image.topics["a"].topic_id != former
    assert all(log.log_end == 0 for log in desk.logs)
    assert {log.context.topic_id for log in desk.logs if log.partition.topic == "a"} == {
        desk.controller.image.topics["a"].topic_id
    }


@pytest.mark.parametrize("version", versions_of(handler))
def test_a_whole_failure_is_told_for_every_topic(version: int) -> None:
    request = by_names("a", "b", version=version)
    failed = handler.failed(request, ErrorCode.REQUEST_TIMED_OUT, version)
    decoded = DeleteTopicsResponse.decode(memoryview(failed.encode(version)), version)
    assert [one.name for one in decoded.responses] == ["a", "b"]
    assert codes(decoded.responses) == ["REQUEST_TIMED_OUT"] * 2

"""DescribeTopicPartitions, version 0."""

import errno

import pytest

from kits.broker.topic_handlers_kit import Desk, codes
from millstream.broker.handlers import describe_topic_partitions as handler
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    RequestCursor,
    TopicRequest,
)

LIMIT = "max.request.partition.size.limit"


def request_for(
    *names: str, limit: int = 2000, after: tuple[str, int] | None = None
) -> DescribeTopicPartitionsRequest:
    cursor = RequestCursor(topic_name=after[0], partition_index=after[1]) if after else None
    return DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )


def ask(desk: Desk, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return desk.send(handler, request, DescribeTopicPartitionsResponse, 0)


def shown(response: DescribeTopicPartitionsResponse) -> dict[str | None, list[int]]:
    return {
        topic.name: [one.partition_index for one in topic.partitions] for topic in response.topics
    }


def cursor_of(response: DescribeTopicPartitionsResponse) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return (cursor.topic_name, cursor.partition_index) if cursor else None


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.create("c", 1)
    desk.create("a", 3)
    desk.create("b", 4)
    return desk


def test_all_topics_sorted_with_everything_about_them(desk: Desk) -> None:
    response = ask(desk, request_for())
    assert list(shown(response)) == ["a", "b", "c"]
    topic = response.topics[0]
    assert topic.topic_id == desk.controller.image.topics["a"].topic_id
    assert topic.topic_authorized_operations == 3576
    assert not topic.is_internal
    one = topic.partitions[1]
    assert (one.partition_index, one.leader_id, one.leader_epoch) == (1, 1, 0)
    assert (one.replica_nodes, one.isr_nodes, one.offline_replicas) == ([1], [1], [])
    assert (one.eligible_leader_replicas, one.last_known_elr) == ([], [])
    assert cursor_of(response) is None


@pytest.mark.parametrize("limit", range(1, 10))
def test_pages_add_up_to_everything_once(desk: Desk, limit: int) -> None:
    seen: list[tuple[str | None, int]] = []
    after = None
    for _ in range(20):
        response = ask(desk, request_for(limit=limit, after=after))
        page = [(name, index) for name, found in shown(response).items() for index in found]
        assert 1 <= len(page) <= limit
        seen += page
        after = cursor_of(response)
        if after is None:
            break
    assert seen == [
        (name, index) for name, n in (("a", 3), ("b", 4), ("c", 1)) for index in range(n)
    ]


def test_a_page_that_ends_with_its_topic_goes_on_with_the_next(desk: Desk) -> None:
    assert cursor_of(ask(desk, request_for(limit=3))) == ("b", 0)
    assert cursor_of(ask(desk, request_for(limit=2))) == ("a", 2)
    assert cursor_of(ask(desk, request_for("c", "a", limit=4))) is None


def test_topics_by_name_come_sorted_and_once(desk: Desk) -> None:
    response = ask(desk, request_for("c", "nope", "a", "..", "c"))
    assert list(shown(response)) == ["..", "a", "c", "nope"]
    expected = ["INVALID_TOPIC_EXCEPTION", "NONE", "NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert codes(response.topics) == expected


def test_a_cursor_of_a_topic_that_is_gone_goes_on_behind_it(desk: Desk) -> None:
    assert list(shown(ask(desk, request_for(after=("aa", 1))))) == ["b", "c"]


def test_a_cursor_past_the_last_partition_shows_none_of_the_topic(desk: Desk) -> None:
    assert shown(ask(desk, request_for(after=("b", 9)))) == {"b": [], "c": [0]}


@pytest.mark.parametrize("after", [("b", 0), ("a", -1)])
def test_a_cursor_that_makes_no_sense_is_refused(desk: Desk, after: tuple[str, int]) -> None:
    response = ask(desk, request_for("a", "c", after=after))
    assert codes(response.topics) == ["INVALID_REQUEST"] * 2


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_below_one_is_one(desk: Desk, limit: int) -> None:
    assert shown(ask(desk, request_for(limit=limit))) == {"a": [0]}


def test_the_brokers_limit_counts_too(desk: Desk) -> None:
    small = Desk({LIMIT: "2"})
    small.create("a", 5)
    response = ask(small, request_for(limit=2000))
    assert (shown(response), cursor_of(response)) == ({"a": [0, 1]}, ("a", 2))


def test_a_partition_whose_disk_failed_has_no_leader(desk: Desk) -> None:
    place = next(log.owner for log in desk.logs if log.partition.topic == "c")
    place.failed(OSError(errno.EIO, "gone"))
    one = ask(desk, request_for("c")).topics[0].partitions[0]
    assert (one.leader_id, one.offline_replicas) == (-1, [1])


def test_internal_topics_are_marked(desk: Desk) -> None:
    virtual_loop.run(lambda: desk.controller.delete_topics(["a", "b", "c"]))
    desk.create("__consumer_offsets")
    assert [one.is_internal for one in ask(desk, request_for()).topics] == [True]


def test_a_whole_failure_is_told_for_every_topic() -> None:
    response = handler.failed(request_for("a", "b"), ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    decoded = DescribeTopicPartitionsResponse.decode(memoryview(response.encode(0)), 0)
    assert codes(decoded.topics) == ["UNKNOWN_SERVER_ERROR"] * 2

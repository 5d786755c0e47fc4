"""CreatePartitions, versions 0-3."""

from typing import Any

import pytest

from kits.broker.topic_handlers_kit import Desk, codes
from kits.broker.versions import versions_of
from millstream.broker.handlers import create_partitions as handler
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


def more(name: str, count: int, by_hand: list[list[int]] | None = None) -> CreatePartitionsTopic:
    assignments = None
    if by_hand is not None:
        assignments = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in by_hand]
    return CreatePartitionsTopic(name=name, count=count, assignments=assignments)


def ask(
    desk: Desk, *topics: CreatePartitionsTopic, version: int = 3, **options: Any
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics=list(topics), timeout_ms=5_000, **options)
    return desk.send(handler, request, CreatePartitionsResponse, version).results


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.create("a", 2)
    return desk


@pytest.mark.parametrize("version", versions_of(handler))
def test_every_version_grows_a_topic(desk: Desk, version: int) -> None:
    results = ask(desk, more("a", 5), version=version)
    assert [(one.name, one.error_code, one.error_message) for one in results] == [("a", 0, None)]
    assert desk.topics == {"a": 5}
    assert [one.partition for one in desk.logs_there] == list(range(5))
    assert desk.partitions.get(("a", 4)).leader_epoch == 0


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (more("a", 2), "INVALID_PARTITIONS"),
        (more("a", 1), "INVALID_PARTITIONS"),
        (more("a", 0), "INVALID_PARTITIONS"),
        (more("a", 100_001), "INVALID_PARTITIONS"),
        (more("x", 3), "UNKNOWN_TOPIC_OR_PARTITION"),
        (more("a", 3, [[1]]), "NONE"),
        (more("a", 4, [[1]]), "INVALID_REPLICA_ASSIGNMENT"),
        (more("a", 3, []), "INVALID_REPLICA_ASSIGNMENT"),
        (more("a", 3, [[]]), "INVALID_REPLICA_ASSIGNMENT"),
        (more("a", 3, [[2]]), "INVALID_REPLICA_ASSIGNMENT"),
        (more("a", 3, [[1, 1]]), "INVALID_REPLICA_ASSIGNMENT"),
    ],
)
def test_each_refusal_has_kafkas_code_and_a_reason(
    desk: Desk, wanted: CreatePartitionsTopic, error: str
) -> None:
    result = ask(desk, wanted)[0]
    assert codes([result]) == [error]
    assert bool(result.error_message) == (error != "NONE")
    assert desk.topics == {"a": 3 if error == "NONE" else 2}


def test_validate_only_changes_nothing(desk: Desk) -> None:
    before = desk.metadata_files
    results = ask(desk, more("a", 4), more("x", 4), validate_only=True)
    assert codes(results) == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert (desk.topics, desk.metadata_files) == ({"a": 2}, before)
    assert len(desk.logs_there) == 2


def test_one_named_twice_is_refused_once_and_others_grow(desk: Desk) -> None:
    desk.create("b")
    results = ask(desk, more("a", 3), more("b", 2), more("a", 4))
    assert [one.name for one in results] == ["a", "b"]
    assert codes(results) == ["INVALID_REQUEST", "NONE"]
    assert desk.topics == {"a": 2, "b": 2}


def test_too_many_partitions_refuse_the_whole_request_with_the_reason(desk: Desk) -> None:
    desk.create("b")
    results = ask(desk, more("a", 10_003), more("b", 2))
    assert codes(results) == ["POLICY_VIOLATION"] * 2
    told = "10002 partitions in one request, the limit is 10000"
    assert [one.error_message for one in results] == [told] * 2
    assert desk.topics == {"a": 2, "b": 1}


@pytest.mark.parametrize("version", versions_of(handler))
def test_a_whole_failure_is_told_for_every_topic(version: int) -> None:
    request = CreatePartitionsRequest(topics=[more("a", 2), more("b", 2)])
    failed = handler.failed(request, ErrorCode.POLICY_VIOLATION, version)
    decoded = CreatePartitionsResponse.decode(memoryview(failed.encode(version)), version)
    assert codes(decoded.results) == ["POLICY_VIOLATION"] * 2

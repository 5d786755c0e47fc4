"""CreateTopics, versions 2-7."""

import asyncio
import errno
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from kits.broker.topic_handlers_kit import Desk, codes, make_late
from kits.broker.versions import versions_of
from millstream.broker.handlers import create_topics as handler
from millstream.model.errors import DiskFull
from millstream.runtime.background import Outcome
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

NO_ID = UUID(int=0)
LATEST = 7


def topic(
    name: str = "t",
    partitions: int = -1,
    factor: int = -1,
    *,
    by_hand: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (by_hand or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()
        ],
    )


def ask(
    desk: Desk, *topics: CreatableTopic, version: int = LATEST, **options: Any
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), **options)
    return desk.send(handler, request, CreateTopicsResponse, version).topics


@pytest.mark.parametrize("version", versions_of(handler))
def test_every_version_creates_and_tells_what_it_can(version: int) -> None:
    desk = Desk()
    result = ask(desk, topic("t", 3, 1, configs={"retention.ms": "5"}), version=version)[0]
    assert (result.name, result.error_code, result.error_message) == ("t", 0, None)
    made = desk.controller.image.topics["t"]
    assert len(made.partitions) == 3
    assert made.configs == {"retention.ms": "5"}
    assert len(desk.logs_there) == 3
    assert result.topic_id == (made.topic_id if version >= 7 else NO_ID)
    if version < 5:
        return
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert result.topic_config_error_code == 0
    configs = {one.name: one for one in result.configs or []}
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("5", 1, False)
    assert configs["segment.bytes"].config_source == 5
    assert list(configs) == sorted(configs)


@pytest.mark.parametrize("version", versions_of(handler))
def test_minus_one_is_the_brokers_default_in_every_version(version: int) -> None:
    desk = Desk({"num.partitions": "4"})
    assert codes(ask(desk, topic("t"), version=version)) == ["NONE"]
    assert desk.topics == {"t": 4}


def test_a_broker_wide_setting_is_told_with_its_source() -> None:
    desk = Desk({"log.retention.ms": "77"})
    configs = {one.name: one for one in ask(desk, topic())[0].configs or []}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("77", 4)


def test_validate_only_tells_everything_and_changes_nothing() -> None:
    desk = Desk()
    before = desk.metadata_files
    good, bad = ask(desk, topic("t", 2), topic("..", 1), validate_only=True)
    assert codes([good, bad]) == ["NONE", "INVALID_TOPIC_EXCEPTION"]
    assert (good.num_partitions, good.replication_factor) == (2, 1)
    assert good.configs
    assert (desk.topics, desk.logs_there, desk.metadata_files) == ({}, [], before)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (topic("old"), "TOPIC_ALREADY_EXISTS"),
        (topic("a_b"), "INVALID_TOPIC_EXCEPTION"),
        (topic("x" * 250), "INVALID_TOPIC_EXCEPTION"),
        (topic("__cluster_metadata"), "INVALID_REQUEST"),
        (topic("t", 0), "INVALID_PARTITIONS"),
        (topic("t", -2), "INVALID_PARTITIONS"),
        (topic("t", 1, 0), "INVALID_REPLICATION_FACTOR"),
        (topic("t", 1, 2), "INVALID_REPLICATION_FACTOR"),
        (topic("t", 0, 0), "INVALID_REPLICATION_FACTOR"),
        (topic("t", by_hand={0: [1], 1: [1]}), "NONE"),
        (topic("t", by_hand={0: [1], 2: [1]}), "INVALID_REPLICA_ASSIGNMENT"),
        (topic("t", by_hand={0: [1, 1]}), "INVALID_REPLICA_ASSIGNMENT"),
        (topic("t", by_hand={0: [5]}), "INVALID_REPLICA_ASSIGNMENT"),
        (topic("t", by_hand={0: []}), "INVALID_REPLICA_ASSIGNMENT"),
        (topic("t", 1, -1, by_hand={0: [1]}), "INVALID_REQUEST"),
        (topic("t", -1, 1, by_hand={0: [1]}), "INVALID_REQUEST"),
        (topic("t", configs={"retention.ms": "soon"}), "INVALID_CONFIG"),
        (topic("t", configs={"no.such.key": "1"}), "INVALID_CONFIG"),
        (topic("t", configs={"retention.ms": None}), "INVALID_CONFIG"),
    ],
)
def test_each_refusal_has_kafkas_code_and_a_reason(wanted: CreatableTopic, error: str) -> None:
    desk = Desk()
    desk.create("old")
    desk.create("a.b")
    for version in (2, LATEST):
        result = ask(desk, wanted, version=version, validate_only=True)[0]
        assert codes([result]) == [error], version
        assert bool(result.error_message) == (error != "NONE")
        if error != "NONE" and version == LATEST:
            assert (result.num_partitions, result.replication_factor) == (-1, -1)
            assert result.topic_id == NO_ID


def test_one_named_twice_is_refused_once_and_others_are_created() -> None:
    desk = Desk()
    results = ask(desk, topic("t"), topic("u"), topic("t"))
    assert [(one.name, codes([one])[0]) for one in results] == [
        ("t", "INVALID_REQUEST"),
        ("u", "NONE"),
    ]
    assert list(desk.topics) == ["u"]


def test_too_many_partitions_refuse_the_whole_request_with_the_reason() -> None:
    desk = Desk()
    results = ask(desk, topic("t", 10_001), topic("u", 1))
    assert codes(results) == ["POLICY_VIOLATION"] * 2
    told = "10002 partitions in one request, the limit is 10000"
    assert [one.error_message for one in results] == [told] * 2
    assert desk.topics == {}


def test_a_full_disk_refuses_and_the_topic_can_be_created_later() -> None:
    desk = Desk()
    desk.disk.faults.fail_next("write", errno.ENOSPC, path_part="metadata")
    with pytest.raises(DiskFull):
        ask(desk, topic("t"))
    assert desk.topics == {}
    assert codes(ask(desk, topic("t"))) == ["NONE"]


def test_a_change_that_takes_too_long_is_told_so_and_goes_on() -> None:
    desk = Desk()
    background = desk.controller._changes._scheduler.background
    waiting: list[Any] = []

    def submit(work: Any, on_done: Any, *, name: str) -> None:
        waiting.append((work, on_done))

    async def ask_and_finish() -> None:
        request = CreateTopicsRequest(topics=[topic("t")], timeout_ms=30)
        with patch.object(background, "submit", submit):
            response = await desk.serve(handler, request, CreateTopicsResponse, LATEST)
        assert codes(response.topics) == ["REQUEST_TIMED_OUT"]
        assert desk.topics == {}
        for work, on_done in waiting:
            on_done(Outcome(work()))
        await asyncio.sleep(1)  # in virtual time

    virtual_loop.run(ask_and_finish)
    assert desk.topics == {"t": 1}


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_no_time_at_all_is_enough_for_a_disk_that_works(timeout_ms: int) -> None:
    desk = Desk()
    make_late(desk)
    assert codes(ask(desk, topic("t"), timeout_ms=timeout_ms)) == ["NONE"]


@pytest.mark.parametrize("version", versions_of(handler))
def test_a_whole_failure_is_told_for_every_topic(version: int) -> None:
    request = CreateTopicsRequest(topics=[topic("a"), topic("b"), topic("a")])
    failed = handler.failed(request, ErrorCode.POLICY_VIOLATION, version)
    decoded = CreateTopicsResponse.decode(memoryview(failed.encode(version)), version)
    assert [one.name for one in decoded.topics] == ["a", "b"]
    assert codes(decoded.topics) == ["POLICY_VIOLATION"] * 2

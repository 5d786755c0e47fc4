"""DeleteRecords, versions 0-2."""

import errno

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.broker.versions import versions_of
from millstream.broker.handlers import delete_records
from millstream.model.ids import Offset
from millstream.storage import names
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)


@pytest.fixture
def desk() -> LogDesk:
    desk = LogDesk()
    desk.put(*(b"%d" % number for number in range(5)))
    return desk


def request_for(*offsets: int, name: str = TOPIC, index: int = 0) -> DeleteRecordsRequest:
    wanted = [DeleteRecordsPartition(partition_index=index, offset=one) for one in offsets]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=wanted)], timeout_ms=1000
    )


def delete(
    desk: LogDesk, request: DeleteRecordsRequest, version: int = 2
) -> DeleteRecordsPartitionResult:
    response = desk.send(delete_records, request, DeleteRecordsResponse, version)
    return response.topics[0].partitions[0]


def outcome(found: DeleteRecordsPartitionResult) -> tuple[str, int]:
    return ErrorCode(found.error_code).name, found.low_watermark


@pytest.mark.parametrize("version", versions_of(delete_records))
def test_every_version_moves_the_start(desk: LogDesk, version: int) -> None:
    assert outcome(delete(desk, request_for(3), version)) == ("NONE", 3)
    assert desk.leader.log_start == 3


def test_it_is_durable_before_the_answer(desk: LogDesk) -> None:
    delete(desk, request_for(2))
    log = desk.leader.log
    assert log.owner.stored(names.LOG_STARTS, log.partition) == 2


def test_minus_one_is_the_high_watermark(desk: LogDesk) -> None:
    desk.hide_from(4)
    assert outcome(delete(desk, request_for(-1))) == ("NONE", 4)


def test_what_is_gone_already_stays_gone(desk: LogDesk) -> None:
    delete(desk, request_for(3))
    assert outcome(delete(desk, request_for(1))) == ("NONE", 3)
    assert outcome(delete(desk, request_for(0))) == ("NONE", 3)


@pytest.mark.parametrize("offset", [6, -2, 2**62, -(2**62)])
def test_out_of_range(desk: LogDesk, offset: int) -> None:
    assert outcome(delete(desk, request_for(offset))) == ("OFFSET_OUT_OF_RANGE", -1)
    assert desk.leader.log_start == 0


def test_not_above_the_high_watermark(desk: LogDesk) -> None:
    desk.hide_from(2)
    assert outcome(delete(desk, request_for(3))) == ("OFFSET_OUT_OF_RANGE", -1)
    assert desk.leader.log_start == Offset(0)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("compact", "POLICY_VIOLATION"), ("compact,delete", "NONE"), ("delete", "NONE")],
)
def test_topics_that_are_only_compacted_keep_their_records(policy: str, expected: str) -> None:
    desk = LogDesk()
    desk.create("kept", configs={"cleanup.policy": policy})
    assert outcome(delete(desk, request_for(0, name="kept")))[0] == expected


def test_internal_topics_are_not_for_clients(desk: LogDesk) -> None:
    desk.create("__consumer_offsets", configs={"cleanup.policy": "delete"})
    found = delete(desk, request_for(0, name="__consumer_offsets"))
    assert outcome(found) == ("INVALID_TOPIC_EXCEPTION", -1)


def test_what_is_not_here(desk: LogDesk) -> None:
    for request in (request_for(0, name="nope"), request_for(0, index=4)):
        assert outcome(delete(desk, request)) == ("UNKNOWN_TOPIC_OR_PARTITION", -1)
    desk.leader.log.owner.failed(OSError(errno.EIO, "gone"))
    assert outcome(delete(desk, request_for(1))) == ("KAFKA_STORAGE_ERROR", -1)


def test_of_two_wishes_the_last_counts(desk: LogDesk) -> None:
    response = desk.send(delete_records, request_for(4, 2), DeleteRecordsResponse, 2)
    assert [outcome(one) for one in response.topics[0].partitions] == [("NONE", 2)]


@pytest.mark.parametrize("version", versions_of(delete_records))
def test_failure_of_the_whole(version: int) -> None:
    response = delete_records.failed(request_for(1), ErrorCode.KAFKA_STORAGE_ERROR, version)
    again = DeleteRecordsResponse.decode(memoryview(response.encode(version)), version)
    assert codes(again.topics[0].partitions) == ["KAFKA_STORAGE_ERROR"]
    assert again.topics[0].partitions[0].low_watermark == -1

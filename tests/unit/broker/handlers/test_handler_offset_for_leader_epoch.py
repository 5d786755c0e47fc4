"""OffsetForLeaderEpoch, versions 2-4."""

import errno

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.broker.versions import versions_of
from millstream.broker.handlers import offset_for_leader_epoch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

UNDEFINED = (-1, -1)


@pytest.fixture
def desk() -> LogDesk:
    """Epoch 0 has offsets 0 to 2, epoch 3 has 3 and 4, epoch 5 leads and wrote nothing."""
    desk = LogDesk()
    desk.put(b"a", b"b", b"c", epoch=0)
    desk.put(b"d", b"e", epoch=3)
    desk.leader.leader_epoch += 5  # type: ignore[assignment]
    return desk


def request_for(
    epoch: int, *, current: int = -1, name: str = TOPIC, index: int = 0
) -> OffsetForLeaderEpochRequest:
    asked = OffsetForLeaderPartition(
        partition=index, leader_epoch=epoch, current_leader_epoch=current
    )
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])]
    )


def ask(desk: LogDesk, request: OffsetForLeaderEpochRequest, version: int = 4) -> EpochEndOffset:
    response = desk.send(offset_for_leader_epoch, request, OffsetForLeaderEpochResponse, version)
    return response.topics[0].partitions[0]


def end_of(desk: LogDesk, epoch: int, version: int = 4) -> tuple[int, int]:
    found = ask(desk, request_for(epoch), version)
    assert found.error_code == 0
    return found.leader_epoch, found.end_offset


@pytest.mark.parametrize("version", versions_of(offset_for_leader_epoch))
def test_every_version_tells_where_epochs_end(desk: LogDesk, version: int) -> None:
    expected = {
        -1: UNDEFINED,
        0: (0, 3),
        1: (0, 3),
        2: (0, 3),
        3: (3, 5),
        4: (3, 5),
        5: (5, 5),
        6: UNDEFINED,
    }
    assert {epoch: end_of(desk, epoch, version) for epoch in expected} == expected


def test_the_end_of_the_newest_epoch_is_the_log_end_whatever_is_replicated(desk: LogDesk) -> None:
    desk.put(b"f", epoch=5)
    desk.hide_from(2)
    assert end_of(desk, 5) == (5, 6)
    assert end_of(desk, 4) == (3, 5)


def test_an_empty_log_of_a_later_leader() -> None:
    """As Kafka, whose leader notes its epoch at the election: nothing before it exists."""
    desk = LogDesk()
    desk.leader.leader_epoch += 2  # type: ignore[assignment]
    assert end_of(desk, 2) == (2, 0)
    assert end_of(desk, 1) == (1, 0)
    assert end_of(desk, 3) == UNDEFINED


def test_what_the_client_believes_is_compared_first(desk: LogDesk) -> None:
    assert ask(desk, request_for(0, current=5)).error_code == 0
    older = ask(desk, request_for(0, current=4))
    newer = ask(desk, request_for(0, current=6))
    assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (newer.leader_epoch, newer.end_offset) == UNDEFINED


def test_what_is_not_here(desk: LogDesk) -> None:
    for request in (request_for(0, name="nope"), request_for(0, index=1)):
        assert ask(desk, request).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    desk.leader.log.owner.failed(OSError(errno.EIO, "gone"))
    assert ask(desk, request_for(0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("version", versions_of(offset_for_leader_epoch))
def test_failure_of_the_whole(version: int) -> None:
    error = ErrorCode.KAFKA_STORAGE_ERROR
    response = offset_for_leader_epoch.failed(request_for(0), error, version)
    raw = memoryview(response.encode(version))
    again = OffsetForLeaderEpochResponse.decode(raw, version)
    assert codes(again.topics[0].partitions) == ["KAFKA_STORAGE_ERROR"]

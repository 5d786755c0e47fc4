"""ListOffsets, versions 1-11."""

import errno
from typing import Any

import pytest

from kits.broker.offsets_kit import TOPIC, LogDesk
from kits.broker.topic_handlers_kit import codes
from kits.broker.versions import versions_of
from kits.storage.log_stories import NOW
from millstream.broker.handlers import list_offsets
from millstream.broker.requests.between_brokers import NotABroker
from millstream.model.ids import BrokerId, Offset
from millstream.runtime.scheduler import ITEMS_PER_TURN
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
NOTHING = (-1, -1)


@pytest.fixture
def desk() -> LogDesk:
    desk = LogDesk()
    desk.put(*(b"%d" % number for number in range(5)))
    return desk


def request_for(*timestamps: int, name: str = TOPIC, **fields: Any) -> ListOffsetsRequest:
    """One partition for each; the first is 0."""
    epoch = fields.pop("current_leader_epoch", -1)
    partitions = [
        ListOffsetsPartition(partition_index=index, timestamp=stamp, current_leader_epoch=epoch)
        for index, stamp in enumerate(timestamps)
    ]
    fields.setdefault("replica_id", -1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=name, partitions=partitions)], **fields)


def ask(
    desk: LogDesk, timestamp: int, version: int = 11, **fields: Any
) -> ListOffsetsPartitionResponse:
    response = desk.send(
        list_offsets, request_for(timestamp, **fields), ListOffsetsResponse, version
    )
    return response.topics[0].partitions[0]


def place(found: ListOffsetsPartitionResponse) -> tuple[int, int]:
    assert found.error_code == 0
    return found.offset, found.timestamp


@pytest.mark.parametrize("version", versions_of(list_offsets))
def test_every_version_tells_first_last_and_by_time(desk: LogDesk, version: int) -> None:
    for timestamp, expected in (
        (LATEST, (5, -1)),
        (EARLIEST, (0, -1)),
        (NOW + 15, (2, NOW + 20)),
        (NOW + 20, (2, NOW + 20)),
        (0, (0, NOW)),
        (NOW + 41, NOTHING),
    ):
        found = ask(desk, timestamp, version)
        assert place(found) == expected
        is_found = expected != NOTHING
        assert found.leader_epoch == (0 if version >= 4 and is_found else -1)


SPECIAL = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, -4: 8, -5: 9, -6: 11}


@pytest.mark.parametrize("version", versions_of(list_offsets))
@pytest.mark.parametrize("timestamp", [*SPECIAL, -7, -(2**63)])
def test_special_times_begin_with_their_version(
    desk: LogDesk, version: int, timestamp: int
) -> None:
    found = ask(desk, timestamp, version)
    if version >= SPECIAL.get(timestamp, 99):
        assert found.error_code == 0
    else:
        assert found.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (found.offset, found.timestamp) == NOTHING


def test_special_values(desk: LogDesk) -> None:
    desk.logs.delete_records(desk.leader.partition, Offset(2))
    assert place(ask(desk, EARLIEST)) == (2, -1)
    assert place(ask(desk, -4)) == (2, -1)
    assert place(ask(desk, -5)) == NOTHING
    assert place(ask(desk, -6)) == NOTHING
    assert place(ask(desk, MAX_TIMESTAMP)) == (4, NOW + 40)
    assert ask(desk, MAX_TIMESTAMP).leader_epoch == 0
    assert ask(desk, -5).leader_epoch == -1


def test_an_empty_log() -> None:
    desk = LogDesk()
    assert place(ask(desk, LATEST)) == (0, -1)
    assert place(ask(desk, EARLIEST)) == (0, -1)
    assert ask(desk, LATEST).leader_epoch == 0
    assert ask(desk, EARLIEST).leader_epoch == -1
    assert place(ask(desk, MAX_TIMESTAMP)) == NOTHING
    assert place(ask(desk, 0)) == NOTHING


def test_who_may_see_how_far(desk: LogDesk) -> None:
    """I-07. read_committed ends at the last stable offset, clients at the high watermark."""
    desk.put_open_transaction()
    desk.put(b"after it")
    desk.hide_from(6)
    desk.leader.log.set_high_watermark(Offset(6))
    with pytest.raises(NotABroker):
        ask(desk, LATEST, replica_id=2)
    desk.proven_broker = BrokerId(2)
    expected = {"committed": 5, "uncommitted": 6, "follower": 7, "debugger": 7}
    asked = {
        "committed": {"isolation_level": 1},
        "uncommitted": {"isolation_level": 0},
        "follower": {"replica_id": 2},
        "debugger": {"replica_id": -2, "isolation_level": 1},
    }
    for who, fields in asked.items():
        end = expected[who]
        assert place(ask(desk, LATEST, **fields)) == (end, -1), who
        by_time = place(ask(desk, NOW + 50, **fields))
        assert by_time == (NOTHING if end <= 5 else (5, NOW + 50)), who
        newest = place(ask(desk, MAX_TIMESTAMP, **fields))
        assert newest == (NOTHING if end <= 6 else (6, NOW + 60)), who
    desk.leader.log.set_high_watermark(Offset(7))
    desk.end_transaction()
    assert place(ask(desk, LATEST, isolation_level=1)) == (8, -1)


def test_leader_epochs_are_compared(desk: LogDesk) -> None:
    assert place(ask(desk, LATEST, current_leader_epoch=0)) == (5, -1)
    newer = ask(desk, LATEST, current_leader_epoch=1)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    desk.leader.leader_epoch += 3  # type: ignore[assignment]
    older = ask(desk, LATEST, current_leader_epoch=2)
    assert older.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(desk, LATEST, current_leader_epoch=3).leader_epoch == 3


def test_the_epoch_is_that_of_the_record(desk: LogDesk) -> None:
    desk.put(b"later", epoch=4)
    assert ask(desk, NOW + 50).leader_epoch == 4
    assert ask(desk, NOW + 40).leader_epoch == 0
    assert ask(desk, EARLIEST).leader_epoch == 0


def test_a_partition_named_twice_is_refused_once(desk: LogDesk) -> None:
    request = request_for(LATEST, LATEST)
    request.topics.append(request_for(EARLIEST).topics[0])
    response = desk.send(list_offsets, request, ListOffsetsResponse, 7)
    assert len(response.topics) == 1
    partitions = response.topics[0].partitions
    assert [one.partition_index for one in partitions] == [0, 1]
    assert codes(partitions) == ["INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION"]


def test_what_is_not_here(desk: LogDesk) -> None:
    response = desk.send(list_offsets, request_for(-1, name="nope"), ListOffsetsResponse, 11)
    assert codes(response.topics[0].partitions) == ["UNKNOWN_TOPIC_OR_PARTITION"]
    desk.leader.log.owner.failed(OSError(errno.EIO, "gone"))
    for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, NOW):
        assert ask(desk, timestamp).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_many_partitions_are_answered_in_their_order(desk: LogDesk) -> None:
    count = 2 * ITEMS_PER_TURN + 1
    desk.create("wide", count)
    for asked in (NOW, LATEST):
        request = request_for(*[asked] * count, name="wide")
        response = desk.send(list_offsets, request, ListOffsetsResponse, 11)
        assert [one.partition_index for one in response.topics[0].partitions] == list(range(count))


@pytest.mark.parametrize("version", versions_of(list_offsets))
def test_failure_of_the_whole(version: int) -> None:
    response = list_offsets.failed(request_for(-1, 5), ErrorCode.KAFKA_STORAGE_ERROR, version)
    again = ListOffsetsResponse.decode(memoryview(response.encode(version)), version)
    assert codes(again.topics[0].partitions) == ["KAFKA_STORAGE_ERROR"] * 2

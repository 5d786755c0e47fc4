"""Fetch: what is read, how long it waits, how much it brings, and what goes wrong."""

from typing import Any
from unittest import mock
from uuid import UUID

import pytest

from data_plane import DataPlane, HeldBackground, topic_image
from log_stories import batch_of, of_producer
from millstream.broker.fetch_read import TAKEN_BYTES_MAX, FetchReader
from millstream.controller.image import GrownTopic, ImageChange
from millstream.kernels.compression import Codec
from millstream.model.ids import Offset
from millstream.storage.config import LogConfig
from millstream.storage.log_reader import ReadSlice
from millstream.storage.producers import Origin
from millstream.testing.record_batches import build_marker
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchRequest, FetchResponse, ReplicaState

VERSIONS = range(4, 19)
LARGE = LogConfig()


def plane_with(partitions: int = 1, config: LogConfig = LARGE, **more: Any) -> DataPlane:
    plane = DataPlane(config, **more)
    plane.create("t", partitions)
    return plane


def pinned(plane: DataPlane) -> int:
    """Pins of all segment files: what answers hold."""
    return sum(segment.log._pins for leader in plane.partitions for segment in leader.log.segments)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_brings_records_and_the_log_s_facts(version: int) -> None:
    plane = plane_with(2)
    plane.fill("t", b"a", b"b", b"c")
    fetched = plane.fetch([("t", 0, 1), ("t", 1, 0)], version=version)
    assert fetched.error == 0
    assert fetched.values("t") == [b"b", b"c"]
    one = fetched.partitions["t", 0]
    assert (one.error_code, one.high_watermark, one.last_stable_offset) == (0, 3, 3)
    assert one.log_start_offset == (0 if version >= 5 else -1)
    assert one.preferred_read_replica == -1
    assert one.aborted_transactions is None
    empty = fetched.partitions["t", 1]
    assert (empty.error_code, empty.high_watermark, empty.records) == (0, 0, b"")


def test_files_are_pinned_while_an_answer_is_on_its_way() -> None:
    """The segment may be deleted before its bytes are sent; they must still be there."""
    plane = plane_with()
    plane.fill("t", b"a")
    number = plane.send(plane.fetch_request([("t", 0, 0)]), 17)
    assert pinned(plane) == 1
    plane.delete("t")
    (record,) = plane.fetched(number).response.responses[0].partitions
    assert record.records
    assert pinned(plane) == 0


def test_an_offset_inside_a_batch_brings_the_whole_batch() -> None:
    plane = plane_with()
    plane.leader("t").append(batch_of(b"a", b"b", b"c"), acks=1, done=lambda _: None)
    assert plane.fetch([("t", 0, 2)]).values("t") == [b"a", b"b", b"c"]


# -- limits --------------------------------------------------------------------------------------


def test_the_first_batch_comes_even_if_it_is_larger_than_every_limit() -> None:
    plane = plane_with(3)
    for index in range(3):
        plane.fill("t", b"x" * 500, b"y" * 500, index=index)
    for limits in ({"max_bytes": 10}, {"partition_max_bytes": 10}, {"max_bytes": -5}):
        fetched = plane.fetch([("t", 1, 0), ("t", 0, 0), ("t", 2, 0)], **limits)
        sizes = [len(one.records or b"") for one in fetched.partitions.values()]
        assert list(fetched.partitions) == [("t", 1), ("t", 0), ("t", 2)]
        assert sizes[0] > 500
        assert sizes[1:] == [0, 0]
        assert [len(fetched.values("t", index)) for index in range(3)] == [0, 1, 0]


def test_an_empty_partition_does_not_use_up_the_first_batch() -> None:
    plane = plane_with(2)
    plane.fill("t", b"x" * 500, index=1)
    fetched = plane.fetch([("t", 0, 0), ("t", 1, 0)], max_bytes=1)
    assert len(fetched.values("t", 1)) == 1


def test_limits_of_request_and_partition_hold_behind_the_first_batch() -> None:
    plane = plane_with(3)
    for index in range(3):
        plane.fill("t", *(b"x" * 100 for _ in range(10)), index=index)
    fetched = plane.fetch(
        [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)], partition_max_bytes=700, max_bytes=1000
    )
    sizes = [len(one.records or b"") for one in fetched.partitions.values()]
    assert sizes == [700, 300, 0]


def test_a_later_partition_gives_nothing_rather_than_a_piece_of_a_batch() -> None:
    plane = plane_with(2)
    plane.fill("t", b"x" * 100)
    plane.fill("t", b"x" * 1000, index=1)
    fetched = plane.fetch([("t", 0, 0), ("t", 1, 0)], max_bytes=600)
    assert fetched.partitions["t", 1].records == b""
    assert fetched.partitions["t", 1].high_watermark == 1


def test_the_broker_caps_a_request() -> None:
    plane = plane_with(2)
    for index in range(2):
        plane.fill("t", *(b"x" * 100 for _ in range(10)), index=index)
    plane.settings.numbers["fetch.max.bytes"] = 500
    fetched = plane.fetch([("t", 0, 0), ("t", 1, 0)])
    assert sum(len(one.records or b"") for one in fetched.partitions.values()) == 500


# -- waiting -------------------------------------------------------------------------------------


def test_a_fetch_waits_until_there_is_something() -> None:
    plane = plane_with(2)
    number = plane.send(plane.fetch_request([("t", 0, 0), ("t", 1, 0)], max_wait_ms=500), 17)
    plane.timers.pass_time(100)
    assert plane.answer(number, FetchResponse, 17) is None
    plane.produce("t", batch_of(b"a"), index=1)
    assert plane.fetched(number).values("t", 1) == [b"a"]
    assert not plane.leader("t", 0).readers
    assert not plane.leader("t", 1).readers


def test_a_fetch_that_waits_sees_all_that_one_request_wrote() -> None:
    plane = plane_with(2)
    number = plane.send(plane.fetch_request([("t", 0, 0), ("t", 1, 0)], max_wait_ms=500), 17)
    plane.fill("t", b"a", index=0)
    plane.fill("t", b"b", index=1)
    plane.timers.fire()
    fetched = plane.fetched(number)
    assert (fetched.values("t", 0), fetched.values("t", 1)) == ([b"a"], [b"b"])


def test_a_fetch_ends_when_its_time_is_up() -> None:
    plane = plane_with()
    number = plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500), 17)
    plane.timers.pass_time(499)
    assert plane.answer(number, FetchResponse, 17) is None
    plane.timers.pass_time(1)
    assert plane.fetched(number).only.error_code == 0
    assert not plane.leader("t").readers
    plane.fill("t", b"a")
    plane.timers.pass_time(1000)
    assert plane.peer.answers == {}


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}])
def test_a_client_that_does_not_want_to_wait_is_answered_at_once(fields: dict[str, int]) -> None:
    plane = plane_with()
    assert plane.fetch([("t", 0, 0)], **{"max_wait_ms": 500, **fields}).values("t") == []


def test_min_bytes_are_counted_over_all_partitions() -> None:
    plane = plane_with(2)
    request = plane.fetch_request([("t", 0, 0), ("t", 1, 0)], max_wait_ms=500, min_bytes=650)
    number = plane.send(request, 17)
    for step in range(3):
        plane.fill("t", b"x" * 100, index=step % 2)
        plane.timers.fire()
        assert plane.answer(number, FetchResponse, 17) is None
    plane.fill("t", b"x" * 100, index=1)
    plane.timers.fire()
    fetched = plane.fetched(number)
    assert [len(fetched.values("t", index)) for index in (0, 1)] == [2, 2]


def test_bytes_that_are_there_before_count_too() -> None:
    plane = plane_with(2)
    plane.fill("t", b"x" * 300)
    request = plane.fetch_request([("t", 0, 0), ("t", 1, 0)], max_wait_ms=500, min_bytes=600)
    number = plane.send(request, 17)
    plane.fill("t", b"x" * 300, index=1)
    plane.timers.fire()
    assert plane.fetched(number).values("t", 1)


def test_what_ends_with_its_segment_is_not_waited_for() -> None:
    plane = plane_with(config=LogConfig(segment_bytes=400))
    plane.fill("t", b"x" * 200, b"y" * 200)
    fetched = plane.fetch([("t", 0, 0)], max_wait_ms=500, min_bytes=100_000)
    assert len(fetched.values("t")) == 1
    number = plane.send(plane.fetch_request([("t", 0, 1)], max_wait_ms=500, min_bytes=100_000), 17)
    assert plane.answer(number, FetchResponse, 17) is None
    plane.fill("t", b"z" * 200)
    plane.timers.fire()
    assert plane.fetched(number).values("t") == [b"y" * 200]


def test_more_than_can_be_had_is_not_waited_for() -> None:
    """`min_bytes` above `max_bytes` would otherwise wait for ever."""
    plane = plane_with()
    plane.fill("t", *(b"x" * 100 for _ in range(5)))
    fetched = plane.fetch([("t", 0, 0)], max_wait_ms=500, min_bytes=10_000, max_bytes=300)
    assert fetched.values("t")


def test_deleting_the_topic_ends_the_wait() -> None:
    plane = plane_with()
    number = plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500, version=12), 12)
    plane.delete("t")
    plane.timers.fire()
    assert plane.fetched(number, 12).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_a_directory_that_fails_ends_the_wait() -> None:
    plane = plane_with()
    number = plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500), 17)
    plane.disk.faults.fail_directory("/data")
    assert plane.produce("t", batch_of(b"a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert plane.fetched(number).errors == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    """I-37. It asked to wait for days; within seconds nothing of it is left."""
    plane = plane_with()
    plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=2**31 - 1), 17)
    plane.peer.is_open = False
    plane.timers.pass_time(5001)
    assert not plane.leader("t").readers
    assert len(plane.partitions.deadlines(plane.timers)) == 0


def test_data_for_a_client_that_is_gone_pins_nothing() -> None:
    plane = plane_with()
    plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500), 17)
    plane.peer.is_open = False
    plane.fill("t", b"a")
    plane.timers.fire()
    assert plane.peer.answers == {}
    assert pinned(plane) == 0


def test_a_fault_of_one_delayed_fetch_hits_only_its_own_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane = plane_with()
    plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500), 17)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(plane.sessions, "finish", broken)
    assert plane.produce("t", batch_of(b"a"), acks=1).error_code == 0
    assert "ZeroDivisionError" in plane.peer.closed


# -- what may be seen ----------------------------------------------------------------------------


def test_records_that_are_not_flushed_yet_are_not_seen() -> None:
    """I-07. The topic asks for a flush before anything counts."""
    background = HeldBackground()
    plane = plane_with(config=LogConfig(flush_messages=1), background=background)
    plane.leader("t").append(batch_of(b"a"), acks=1, done=lambda _: None)
    assert plane.fetch([("t", 0, 0)]).values("t") == []
    at_end = plane.fetch([("t", 0, 1)])
    assert at_end.errors == [0]
    number = plane.send(plane.fetch_request([("t", 0, 0)], max_wait_ms=500), 17)
    background.run()
    plane.timers.fire()
    assert plane.fetched(number).values("t") == [b"a"]


def write(plane: DataPlane, batch: bytearray, origin: Origin = Origin.CLIENT) -> None:
    errors: list[Any] = []
    plane.leader("t").append(
        batch, acks=1, done=lambda outcome: errors.append(outcome.error), origin=origin
    )
    assert errors == [None]


@pytest.mark.parametrize("version", VERSIONS)
def test_read_committed_ends_at_the_last_stable_offset(version: int) -> None:
    """I-07, I-23."""
    plane = plane_with()
    plane.fill("t", b"plain")
    write(plane, batch_of(b"open", spec=of_producer(9, 0, txn=True)))
    plane.fill("t", b"behind")
    seen = plane.fetch([("t", 0, 0)], isolation_level=1, version=version)
    assert seen.values("t") == [b"plain"]
    assert (seen.only.high_watermark, seen.only.last_stable_offset) == (3, 1)
    assert seen.only.aborted_transactions == []
    everything = plane.fetch([("t", 0, 0)], version=version)
    assert everything.values("t") == [b"plain", b"open", b"behind"]
    write(plane, build_marker(of_producer(9, 0), is_commit=False), Origin.COORDINATOR)
    seen = plane.fetch([("t", 0, 0)], isolation_level=1, version=version)
    assert len(seen.values("t")) == 4
    (aborted,) = seen.only.aborted_transactions or []
    assert (aborted.producer_id, aborted.first_offset) == (9, 1)
    assert plane.fetch([("t", 0, 0)], version=version).only.aborted_transactions is None


def test_a_read_committed_fetch_waits_for_the_marker_and_not_for_records() -> None:
    plane = plane_with()
    request = plane.fetch_request([("t", 0, 0)], max_wait_ms=500, isolation_level=1)
    number = plane.send(request, 17)
    write(plane, batch_of(b"open", spec=of_producer(9, 0, txn=True)))
    plane.timers.fire()
    assert plane.answer(number, FetchResponse, 17) is None
    write(plane, build_marker(of_producer(9, 0), is_commit=True), Origin.COORDINATOR)
    plane.timers.fire()
    assert plane.fetched(number).values("t")[0] == b"open"


def test_other_isolation_levels_are_refused_as_a_whole() -> None:
    plane = plane_with()
    for version in VERSIONS:
        fetched = plane.fetch([("t", 0, 0)], isolation_level=2, version=version)
        assert fetched.error == (ErrorCode.INVALID_REQUEST if version >= 7 else 0)
        assert fetched.errors == ([ErrorCode.INVALID_REQUEST] if version < 13 else [])


# -- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [-1, 2, 10, 2**62])
def test_offsets_outside_the_log_are_told_at_once(version: int, offset: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    fetched = plane.fetch([("t", 0, offset)], version=version, max_wait_ms=500)
    one = fetched.only
    assert one.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (-1, -1, -1)
    assert one.records == b""


def test_offsets_below_the_log_start_are_out_of_range() -> None:
    plane = plane_with()
    plane.fill("t", b"a", b"b", b"c")
    plane.leader("t").log.advance_log_start(Offset(2))
    assert plane.fetch([("t", 0, 1)]).errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert plane.fetch([("t", 0, 2)]).only.log_start_offset == 2


def test_unknown_partitions_have_their_code_and_others_are_served() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    fetched = plane.fetch([("nobody", 0, 0), ("t", 0, 0), ("t", 5, 0)], version=12)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetched.errors == [unknown, 0, unknown]
    assert fetched.values("t") == [b"a"]
    fetched = plane.fetch([("nobody", 0, 0), ("t", 0, 0), ("t", 5, 0)], version=13)
    assert fetched.errors == [ErrorCode.UNKNOWN_TOPIC_ID, 0, unknown]


def test_unknown_partitions_alone_are_answered_at_once_and_otherwise_waited_with() -> None:
    """As Kafka: a client that keeps asking for a deleted topic must not turn into a busy loop."""
    plane = plane_with()
    fetched = plane.fetch([("nobody", 0, 0)], version=12, max_wait_ms=500)
    assert fetched.errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    request = plane.fetch_request([("nobody", 0, 0), ("t", 0, 0)], max_wait_ms=500)
    number = plane.send(request, 12)
    assert plane.answer(number, FetchResponse, 12) is None
    plane.timers.pass_time(500)
    assert plane.fetched(number, 12).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, 0), (4, 0), (3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
@pytest.mark.parametrize("version", [9, 12, 15, 16, 18])
def test_leader_epochs_are_checked(epoch: int, code: int, version: int) -> None:
    """I-15, and KIP-951 since version 16."""
    plane = DataPlane()
    plane.create("t", epoch=4)
    fetched = plane.fetch([("t", 0, 0)], version=version, partition={"current_leader_epoch": epoch})
    assert fetched.errors == [code]
    is_hinted = version >= 16 and code == ErrorCode.FENCED_LEADER_EPOCH
    leader = fetched.only.current_leader
    assert (leader.leader_id, leader.leader_epoch) == ((1, 4) if is_hinted else (-1, -1))
    nodes = [(one.node_id, one.host, one.rack) for one in fetched.response.node_endpoints]
    assert nodes == ([(1, "broker.example", "rack-1")] if is_hinted else [])


def _epochs() -> DataPlane:
    """Offsets 0-1 of epoch 2, 2-4 of epoch 5."""
    plane = DataPlane()
    plane.create("t", epoch=2)
    plane.fill("t", b"a", b"b")
    plane.apply(ImageChange(reconfigured=[topic_image("t", epoch=5)]))
    plane.fill("t", b"c", b"d", b"e")
    return plane


@pytest.mark.parametrize(
    ("offset", "last_epoch", "expected"),
    [
        (5, 5, None),
        (2, 2, None),
        (3, 2, (2, 2)),
        (3, 3, (2, 2)),
        (4, 4, (2, 2)),
        (1, 1, (1, 0)),
        (0, 1, None),
        (3, 1, (1, 0)),
    ],
)
def test_a_log_that_parted_from_ours_is_told_where(
    offset: int, last_epoch: int, expected: tuple[int, int] | None
) -> None:
    """KIP-595; told at once, so that the client can cut its log off."""
    plane = _epochs()
    fetched = plane.fetch(
        [("t", 0, offset)],
        version=12,
        max_wait_ms=500 if expected else 0,
        partition={"last_fetched_epoch": last_epoch},
    )
    diverging = fetched.only.diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (expected or (-1, -1))
    assert fetched.errors == [0]
    assert bool(fetched.values("t")) == (expected is None and offset < 5)


@pytest.mark.parametrize(("offset", "last_epoch"), [(5, 6), (6, 5), (0, 7)])
def test_an_epoch_that_we_cannot_answer_for_is_out_of_range(offset: int, last_epoch: int) -> None:
    plane = _epochs()
    if (offset, last_epoch) == (6, 5):
        fetched = plane.fetch([("t", 0, 6)], version=12, partition={"last_fetched_epoch": 5})
        assert fetched.only.diverging_epoch.end_offset == 5
        return
    fetched = plane.fetch(
        [("t", 0, offset)], version=12, partition={"last_fetched_epoch": last_epoch}
    )
    assert fetched.errors == [ErrorCode.OFFSET_OUT_OF_RANGE]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_failed_directory_has_a_code_that_the_client_knows(version: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    plane.leader("t").log.owner.failed(OSError(5, "gone"))
    code = ErrorCode.KAFKA_STORAGE_ERROR if version >= 6 else ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert plane.fetch([("t", 0, 0)], version=version).errors == [code]


def test_a_file_that_is_gone_is_a_storage_error_and_pins_nothing() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    plane.disk.faults.fail_directory("/data")
    for segment in plane.leader("t").log.segments:
        segment.log._close()
    assert plane.fetch([("t", 0, 0)]).errors == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert pinned(plane) == 0


@pytest.mark.parametrize(
    ("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, 0)]
)
def test_a_zstd_topic_needs_version_10(version: int, code: int) -> None:
    plane = plane_with(config=LogConfig(compression=Codec.ZSTD))
    plane.fill("t", b"a")
    assert plane.fetch([("t", 0, 0)], version=version).errors == [code]


@pytest.mark.parametrize("version", VERSIONS)
def test_followers_are_told_that_they_are_no_replicas(version: int) -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    state: dict[str, Any] = {"replica_id": 3}
    if version >= 15:
        state = {"replica_state": ReplicaState(replica_id=3, replica_epoch=9)}
    fetched = plane.fetch([("t", 0, 0)], version=version, **state)
    assert fetched.errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    if version >= 9:
        fetched = plane.fetch(
            [("t", 0, 0)], version=version, partition={"current_leader_epoch": 0}, **state
        )
        assert fetched.errors == [ErrorCode.UNKNOWN_LEADER_EPOCH]


def test_the_debugging_replica_id_reads_as_a_consumer() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    assert plane.fetch([("t", 0, 0)], version=12, replica_id=-2).values("t") == [b"a"]


def test_a_malformed_request_closes_the_connection() -> None:
    plane = plane_with()

    class Cut:
        API_KEY = FetchRequest.API_KEY

        def encode(self, version: int) -> bytes:
            return FetchRequest(max_wait_ms=1, min_bytes=1).encode(version)[:-3]

    plane.send(Cut(), 12)
    assert "malformed FETCH" in plane.peer.closed


def test_a_new_partition_is_served_to_a_client_that_asked_too_early() -> None:
    plane = plane_with()
    assert plane.fetch([("t", 1, 0)]).errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    plane.apply(ImageChange(grown=[GrownTopic(topic_image("t", partitions=2), 1)]))
    assert plane.fetch([("t", 1, 0)]).errors == [0]


def test_an_unknown_id_is_not_mistaken_for_no_id() -> None:
    plane = plane_with()
    request = plane.fetch_request([("t", 0, 0)])
    request.topics[0].topic_id = UUID(int=0)
    assert plane.fetched(plane.send(request, 17)).errors == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_bytes_out_are_counted() -> None:
    plane = plane_with()
    plane.fill("t", b"a")
    size = len(plane.fetch([("t", 0, 0)]).only.records or b"")
    assert plane.leader("t").bytes_out == size > 0


# -- at the tail ---------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_a_reader_at_the_tail_needs_no_search_and_no_pin(isolation_level: int) -> None:
    """What was just written is found where the last answer ended, and taken at once."""
    plane = plane_with()
    plane.fill("t", b"0")
    plane.fetch([("t", 0, 0)], isolation_level=isolation_level)
    active = plane.leader("t").log.segments.active
    with mock.patch.object(type(active), "find_offset", side_effect=AssertionError("searched")):
        for number in range(1, 20):
            plane.fill("t", b"%d" % number)
            request = plane.fetch_request([("t", 0, number)], isolation_level=isolation_level)
            answer = plane.send(request, 17)
            assert pinned(plane) == 0
            fetched = plane.fetched(answer)
            assert fetched.values("t") == [b"%d" % number]
            assert fetched.only.last_stable_offset == fetched.only.high_watermark == number + 1
            assert fetched.only.aborted_transactions == ([] if isolation_level else None)


def test_many_bytes_at_the_tail_stay_a_range_of_the_file() -> None:
    plane = plane_with()
    plane.fill("t", b"0")
    plane.fetch([("t", 0, 0)])
    plane.fill("t", b"x" * TAKEN_BYTES_MAX)
    number = plane.send(plane.fetch_request([("t", 0, 1)]), 17)
    assert pinned(plane) == 1
    assert plane.fetched(number).values("t") == [b"x" * TAKEN_BYTES_MAX]


def test_a_committed_reader_at_the_tail_hears_of_aborted_transactions() -> None:
    """I-07, I-23: also where it could have gone on from where it was."""
    plane = plane_with()
    plane.fill("t", b"0")
    plane.fetch([("t", 0, 0)], isolation_level=1)
    write(plane, batch_of(b"open", spec=of_producer(9, 0, txn=True)))
    assert plane.fetch([("t", 0, 1)], isolation_level=1).values("t") == []
    assert plane.fetch([("t", 0, 1)]).values("t") == [b"open"]
    write(plane, build_marker(of_producer(9, 0), is_commit=False), Origin.COORDINATOR)
    seen = plane.fetch([("t", 0, 1)], isolation_level=1)
    (aborted,) = seen.only.aborted_transactions or []
    assert (aborted.producer_id, aborted.first_offset) == (9, 1)
    plane.fill("t", b"later")
    assert plane.fetch([("t", 0, 3)], isolation_level=1).only.aborted_transactions == []


def test_bytes_at_the_tail_that_cannot_be_read_are_an_error_of_their_partition() -> None:
    plane = plane_with(2)
    for index in range(2):
        plane.fill("t", b"0", index=index)
    plane.fetch([("t", 0, 0), ("t", 1, 0)])
    for index in range(2):
        plane.fill("t", b"1", index=index)
    reads = iter([OSError(5, "broken")])
    original = ReadSlice.load

    def load(data: ReadSlice) -> None:
        for error in reads:
            raise error
        original(data)

    with mock.patch.object(ReadSlice, "load", load):
        fetched = plane.fetch([("t", 0, 1), ("t", 1, 1)])
    assert fetched.errors[0] == ErrorCode.KAFKA_STORAGE_ERROR
    assert pinned(plane) == 0


@pytest.mark.parametrize("offset", [1, 2])
def test_a_failed_directory_is_told_at_the_tail_too(offset: int) -> None:
    plane = plane_with()
    plane.fill("t", b"0", b"1")
    plane.leader("t").log.owner.failed(OSError(5, "broken"))
    assert plane.fetch([("t", 0, offset)]).errors == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_old_clients_do_not_get_zstd_topics_at_the_tail_either() -> None:
    plane = plane_with(config=LogConfig(compression=Codec.ZSTD))
    plane.fill("t", b"0", b"1")
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert plane.fetch([("t", 0, 1)], version=9).errors == [code]
    assert plane.fetch([("t", 0, 1)], version=10).errors == [0]


def test_partitions_of_a_session_that_did_not_move_are_not_looked_at() -> None:
    plane = plane_with(3)
    for index in range(3):
        plane.fill("t", b"0", index=index)
    opened = plane.fetch([("t", index, 1) for index in range(3)], session_epoch=0)
    session = {"session_id": opened.session_id}
    assert plane.fetch([], session_epoch=1, **session).partitions == {}
    with mock.patch.object(FetchReader, "_read_one", side_effect=AssertionError("looked at")):
        fetched = plane.fetch([], session_epoch=2, **session)
    assert (fetched.error, fetched.partitions) == (0, {})
    plane.fill("t", b"1", index=1)
    assert list(plane.fetch([], session_epoch=3, **session).partitions) == [("t", 1)]


def test_a_new_topic_of_the_same_name_has_nothing_of_the_old_tail() -> None:
    plane = plane_with()
    plane.fill("t", b"old", b"older")
    assert plane.fetch([("t", 0, 1)], version=12).values("t") == [b"older"]
    plane.delete("t")
    plane.apply(ImageChange(created=[topic_image("t", number=8)]))
    assert plane.fetch([("t", 0, 1)], version=12).errors == [ErrorCode.OFFSET_OUT_OF_RANGE]
    plane.fill("t", b"new", b"newer")
    assert plane.fetch([("t", 0, 1)], version=12).values("t") == [b"newer"]


def test_a_wake_up_that_lets_readers_look_anyway_needs_no_timer() -> None:
    """The exchange does so after every commit; outside of it a timer must."""
    plane = plane_with()
    request = plane.fetch_request([("t", 0, 0)], max_wait_ms=500)
    waiting = plane.send(request, 17)
    before = plane.timers.armed
    plane.partitions.is_wake_coming = lambda: True
    plane.fill("t", b"a")
    assert plane.timers.armed == before
    plane.partitions.wake_readers()
    assert plane.fetched(waiting).values("t") == [b"a"]
    plane.partitions.is_wake_coming = lambda: False
    waiting = plane.send(plane.fetch_request([("t", 0, 1)], max_wait_ms=500), 17)
    before = plane.timers.armed
    plane.fill("t", b"b")
    assert plane.timers.armed == before + 1
    plane.timers.fire()
    assert plane.fetched(waiting).values("t") == [b"b"]

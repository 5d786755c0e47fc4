"""Fetch: what is read, how long it waits, how much it brings."""

import pytest

from kits.broker.data_plane import HeldBackground
from kits.broker.fetch_kit import VERSIONS, pinned, plane_with, write
from kits.storage.log_stories import batch_of, of_producer
from millstream.storage.config import LogConfig
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import build_marker
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse


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

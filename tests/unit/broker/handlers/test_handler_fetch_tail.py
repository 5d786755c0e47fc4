"""Fetch by readers that have reached the end and come back for what is new."""

from unittest import mock

import pytest

from kits.broker.data_plane import topic_image
from kits.broker.fetch_kit import pinned, plane_with, write
from kits.storage.log_stories import batch_of, of_producer
from millstream.broker.fetch.read import TAKEN_BYTES_MAX, FetchReader
from millstream.controller.image import ImageChange
from millstream.kernels.compression import Codec
from millstream.storage.config import LogConfig
from millstream.storage.log.reader import ReadSlice
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import build_marker
from millstream.wire.errors import ErrorCode

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

    def load(data: ReadSlice, offset: int) -> None:
        for error in reads:
            raise error
        original(data, offset)

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
    plane.iterations.is_going_on = True
    plane.fill("t", b"a")
    assert plane.timers.armed == before
    plane.partitions.wake_readers()
    assert plane.fetched(waiting).values("t") == [b"a"]
    plane.iterations.is_going_on = False
    waiting = plane.send(plane.fetch_request([("t", 0, 1)], max_wait_ms=500), 17)
    before = plane.timers.armed
    plane.fill("t", b"b")
    assert plane.timers.armed == before + 1
    plane.timers.fire()
    assert plane.fetched(waiting).values("t") == [b"b"]

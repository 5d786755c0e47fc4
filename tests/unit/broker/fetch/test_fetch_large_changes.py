"""A Fetch of thousands of partitions, while something else happens between two of its steps.

Each test lets it happen after every step once: the request must end as a small one would.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import pinned, plane_with
from kits.broker.large_fetch import MANY, UNKNOWN_ONES, begin, finish
from kits.storage.log_stories import batch_of
from millstream.controller.image import ImageChange, PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch, Offset, TopicId
from millstream.replication.errors import NotLeader
from millstream.replication.partition import Partition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import ReplicaState

WAIT_MS = 500


def moments(
    make: Callable[[], tuple[DataPlane, Any]], *, version: int = 12
) -> Iterator[tuple[DataPlane, Any, int]]:
    """The request halted after each of its steps, on a new broker each time."""
    step = 0
    while True:
        step += 1
        plane, request = make()
        steps = begin(plane, request, version=version)
        assert steps is not None, "it was served at once"
        for _ in range(step):
            if next(steps, "over") == "over":
                assert step > 1
                return
        yield plane, steps, step


def readers_of(plane: DataPlane) -> int:
    return sum(len(one.readers) + len(one.follower_readers) for one in plane.partitions)


# -- records ------------------------------------------------------------------------------------


def waiting_for_records() -> tuple[DataPlane, Any]:
    plane = plane_with(2)
    asked = [("t", 0, 0), *UNKNOWN_ONES, ("t", 1, 0)]
    return plane, plane.fetch_request(asked, max_wait_ms=30_000)


@pytest.mark.parametrize("index", [0, 1], ids=["read first", "read last"])
def test_records_that_arrive_between_two_steps_end_the_wait(index: int) -> None:
    for plane, steps, step in moments(waiting_for_records):
        plane.produce("t", batch_of(b"new"), index=index)
        finish(steps)
        plane.timers.fire()
        assert 1 in plane.peer.answers, f"after step {step}"
        assert plane.fetched(1, 12).values("t", index) == [b"new"]
        assert readers_of(plane) == pinned(plane) == 0


def test_records_of_several_steps_are_enough_together() -> None:
    def make() -> tuple[DataPlane, Any]:
        plane = plane_with(2)
        plane.fill("t", b"x" * 300)
        asked = [("t", 0, 0), *UNKNOWN_ONES, ("t", 1, 0)]
        return plane, plane.fetch_request(asked, max_wait_ms=WAIT_MS, min_bytes=700)

    for plane, steps, step in moments(make):
        plane.fill("t", b"y" * 300, index=1)
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        fetched = plane.fetched(1, 12)
        assert (fetched.values("t", 0), fetched.values("t", 1)) == ([b"x" * 300], [b"y" * 300])
        assert readers_of(plane) == pinned(plane) == 0


def test_what_is_not_enough_is_waited_for_and_counted_once() -> None:
    def make() -> tuple[DataPlane, Any]:
        plane = plane_with(1)
        plane.fill("t", b"x" * 300)
        asked = [("t", 0, 0), *UNKNOWN_ONES]
        return plane, plane.fetch_request(asked, max_wait_ms=WAIT_MS, min_bytes=1_200)

    for plane, steps, step in moments(make):
        plane.fill("t", b"y" * 300)
        plane.timers.fire()
        finish(steps)
        assert 1 not in plane.peer.answers, f"after step {step}"
        assert pinned(plane) == 0
        plane.fill("t", b"z" * 500)
        plane.timers.fire()
        assert len(plane.fetched(1, 12).values("t")) == 3
        assert readers_of(plane) == pinned(plane) == 0


# -- followers ----------------------------------------------------------------------------------

REPLICAS = (BrokerId(1), BrokerId(2))


def follower_s(directory: Path) -> tuple[DataPlane, Any]:
    """A fetch of broker 2, which has all there is."""
    directory.mkdir()
    plane = DataPlane(directory=directory)
    image = PartitionImage(0, REPLICAS, REPLICAS, REPLICAS[0], LeaderEpoch(0), 0)
    plane.apply(ImageChange(created=[TopicImage("t", TopicId(UUID(int=7)), (image,), {})]))
    plane.fill("t", b"first", b"second")
    plane.peer.prove(REPLICAS[1])
    claim: dict[str, Any] = {
        "current_leader_epoch": 0,
        "last_fetched_epoch": 0,
        "log_start_offset": 0,
    }
    asked = [("t", 0, 2), *UNKNOWN_ONES]
    facts: dict[str, Any] = {
        "partition": claim,
        "replica_state": ReplicaState(replica_id=2, replica_epoch=5),
    }
    plane.peer.take(plane.send(plane.fetch_request(asked[:1], **facts), 17))
    assert plane.leader("t").high_watermark == 2
    return plane, plane.fetch_request(asked, max_wait_ms=30_000, **facts)


def test_a_follower_gets_what_was_written_between_two_steps(tmp_path: Path) -> None:
    """I-09: else the high watermark waits for the follower's next fetch."""
    count = iter(range(MANY))
    for plane, steps, step in moments(lambda: follower_s(tmp_path / str(next(count))), version=17):
        plane.fill("t", b"new")
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        assert plane.fetched(1).values("t") == [b"new"]
        assert readers_of(plane) == pinned(plane) == 0


def test_a_follower_is_sent_a_log_start_that_moved_between_two_steps(tmp_path: Path) -> None:
    count = iter(range(MANY))
    for plane, steps, step in moments(lambda: follower_s(tmp_path / str(next(count))), version=17):
        leader = plane.leader("t")
        leader.log.advance_log_start(Offset(1))
        leader.start_moved()
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        assert plane.fetched(1).partitions["t", 0].log_start_offset == 1


# -- partitions that go -------------------------------------------------------------------------


def test_a_topic_that_is_deleted_between_two_steps_ends_the_wait() -> None:
    for plane, steps, step in moments(waiting_for_records):
        readers = [plane.leader("t", index).readers for index in (0, 1)]
        plane.delete("t")
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        last = plane.fetched(1, 12).partitions["t", 1]
        assert last.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not any(readers)


def test_a_leader_that_leads_no_more_is_not_read_in_a_later_step() -> None:
    for plane, steps, step in moments(waiting_for_records):
        leader = plane.leader("t", 0)
        stop_leading(plane, leader)
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        error = plane.fetched(1, 12).partitions["t", 0].error_code
        assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not leader.readers


def stop_leading(plane: DataPlane, leader: Partition) -> None:
    """As a broker does that becomes a follower."""
    partitions: Any = plane.partitions
    why, lost = partitions._lookup_error, NotLeader(leader.partition)
    partitions._stop_leading(leader, lost)
    partitions._changes += 1
    partitions._lookup_error = lambda name: lost if name == leader.partition else why(name)


def test_a_directory_that_fails_between_two_steps_ends_the_wait() -> None:
    for plane, steps, step in moments(waiting_for_records):
        plane.disk.faults.fail_directory("/data")
        assert plane.produce("t", batch_of(b"a")).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        plane.timers.fire()
        finish(steps)
        assert 1 in plane.peer.answers, f"after step {step}"
        last = plane.fetched(1, 12).partitions["t", 1]
        assert last.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert readers_of(plane) == 0


# -- clients that go ----------------------------------------------------------------------------


def with_records(**fields: Any) -> tuple[DataPlane, Any]:
    plane = plane_with(1)
    plane.fill("t", b"x" * 20_000)
    return plane, plane.fetch_request([("t", 0, 0), *UNKNOWN_ONES], **fields)


@pytest.mark.parametrize("min_bytes", [1, 1_000_000], ids=["answered at once", "waiting"])
def test_a_connection_that_is_closed_between_two_steps_leaves_nothing(min_bytes: int) -> None:
    """I-37."""
    for plane, steps, _ in moments(
        lambda: with_records(max_wait_ms=2**31 - 1, min_bytes=min_bytes)
    ):
        plane.peer.close("gone")
        finish(steps)
        plane.peer.take(1)  # a real peer releases an answer that it does not send
        plane.timers.pass_time(5_001)
        assert readers_of(plane) == pinned(plane) == 0
        assert len(plane.partitions.deadlines(plane.timers)) == 0


@pytest.mark.parametrize("min_bytes", [1, 1_000_000], ids=["answered at once", "waiting"])
def test_steps_that_are_ended_early_leave_nothing(min_bytes: int) -> None:
    for plane, steps, _ in moments(lambda: with_records(max_wait_ms=500, min_bytes=min_bytes)):
        steps.close()
        plane.peer.take(1)
        assert readers_of(plane) == pinned(plane) == 0

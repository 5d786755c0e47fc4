"""A follower that waited gets the newest records by the short way: the same bytes and rules."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import counted
from kits.kernels.kernel_twins import needs_compiled
from kits.storage.log_stories import batch_of
from millstream.controller.image import ImageChange, PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.replication.partition import LeaderFacts
from millstream.replication.throttle import ReplicaThrottle
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import ReplicaState

pytestmark = needs_compiled("fetch")

BROKERS = (BrokerId(1), BrokerId(2), BrokerId(3))
FOLLOWERS = range(15, 19)
"""Versions in which followers come."""


def plane_in(directory: Path, partitions: int = 1) -> DataPlane:
    """Broker 1 leads with two followers; one record in every partition."""
    directory.mkdir()
    plane = DataPlane(directory=directory)
    images = tuple(
        PartitionImage(index, BROKERS, BROKERS, BROKERS[0], LeaderEpoch(0), 0)
        for index in range(partitions)
    )
    topic = TopicImage("t", TopicId(UUID(int=7)), images, {})
    plane.apply(ImageChange(created=[topic]))
    for index in range(partitions):
        plane.fill("t", b"first", index=index)
    return plane


def fetch_of(
    plane: DataPlane,
    *partitions: tuple[str, int, int],
    follower: int = 2,
    claim: dict[str, int] | None = None,
    **fields: Any,
) -> Any:
    named = {"current_leader_epoch": 0, "last_fetched_epoch": 0, **(claim or {})}
    plane.peer.prove(BrokerId(follower))
    state = ReplicaState(replica_id=follower, replica_epoch=5)
    fields = {"max_wait_ms": 500, "session_epoch": -1, **fields}
    return plane.fetch_request(list(partitions), partition=named, replica_state=state, **fields)


@pytest.mark.parametrize("version", FOLLOWERS)
def test_both_ways_answer_the_same_bytes(tmp_path: Path, version: int) -> None:
    """I-09: with the current high watermark, which is behind the records in the answer."""
    frames, counts = [], []
    for is_fast in (True, False):
        plane = plane_in(tmp_path / str(is_fast))
        leader = plane.leader("t")
        with counted(is_fast=is_fast) as paths:
            number = plane.send(fetch_of(plane, ("t", 0, 1)), version)
            assert plane.peer.take(number) is None
            plane.fill("t", b"fresh")
            plane.timers.fire()
            frames.append(plane.peer.take(number))
        assert (paths.fast, paths.slow) == ((1, 1) if is_fast else (0, 2))
        counts.append((leader.bytes_out, leader.bytes_to_followers, leader.high_watermark))
    assert frames[0] == frames[1]
    assert frames[0] is not None
    assert b"fresh" in frames[0]
    assert counts[0] == counts[1]
    assert counts[0][0] == counts[0][2] == 0 < counts[0][1]


def test_what_a_follower_has_counts_when_it_asks_and_not_when_it_is_told(tmp_path: Path) -> None:
    """I-09: the answer on its way acknowledges nothing."""
    plane = plane_in(tmp_path / "data")
    leader = plane.leader("t")
    acknowledged: list[Any] = []
    with counted() as paths:
        for follower in (2, 3):
            plane.send(fetch_of(plane, ("t", 0, 1), follower=follower), 17)
        assert leader.high_watermark == 1
        leader.append(b"".join(_batches(b"fresh")), acks=-1, done=acknowledged.append)
        plane.timers.fire()
        assert (paths.fast, leader.high_watermark, acknowledged) == (2, 1, [])
        plane.send(fetch_of(plane, ("t", 0, 2), follower=2), 17)
        assert (leader.high_watermark, acknowledged) == (1, [])
        plane.send(fetch_of(plane, ("t", 0, 2), follower=3), 17)
    assert leader.high_watermark == 2
    assert [one.error for one in acknowledged] == [None]


@pytest.mark.parametrize("has_session", [True, False])
def test_a_new_epoch_of_the_leader_is_told(tmp_path: Path, has_session: bool) -> None:
    """I-12: only followers whose log was compared in this epoch get records."""
    plane = plane_in(tmp_path / "data")
    leader = plane.leader("t")
    fields = _session(plane) if has_session else {}
    partitions = [] if has_session else [("t", 0, 1)]
    number = plane.send(fetch_of(plane, *partitions, **fields), 17)
    with counted() as paths:
        plane.fill("t", b"fresh")
        leader.leader_epoch = LeaderEpoch(1)
        plane.timers.fire()
    assert paths.fast == 0
    assert plane.fetched(number).only.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_follower_that_names_no_epoch_is_compared_again(tmp_path: Path) -> None:
    plane = plane_in(tmp_path / "data")
    with counted() as paths:
        claim = {"current_leader_epoch": -1}
        number = plane.send(fetch_of(plane, ("t", 0, 1), claim=claim), 17)
        plane.fill("t", b"fresh")
        plane.timers.fire()
    assert paths.fast == 0
    assert plane.fetched(number).values("t") == [b"fresh"]


def test_a_partition_that_is_throttled_sends_nothing_more_when_the_wait_is_over(
    tmp_path: Path,
) -> None:
    """KIP-73: a follower that is not in sync, after the rate was used up."""
    plane = plane_in(tmp_path / "data")
    leader = plane.leader("t")
    cluster = plane.partitions.cluster
    number = plane.send(fetch_of(plane, ("t", 0, 1)), 17)
    leader.is_throttled = True
    in_sync = (BROKERS[0], BROKERS[2])
    facts = LeaderFacts(leader.topic_id, BROKERS[0], LeaderEpoch(0), BROKERS, in_sync, 1, 1)
    leader.configure(facts)
    cluster.leader_throttle = ReplicaThrottle(lambda: 1.0)
    cluster.leader_throttle.record(1_000_000, cluster.monotonic_s())
    with counted() as paths:
        plane.fill("t", b"fresh")
        plane.timers.pass_time(500)
    assert paths.fast == 0
    assert plane.fetched(number).values("t") == []


def test_news_of_several_partitions_take_the_long_way(tmp_path: Path) -> None:
    plane = plane_in(tmp_path / "data", 2)
    with counted() as paths:
        number = plane.send(fetch_of(plane, ("t", 0, 1), ("t", 1, 1)), 17)
        for index in range(2):
            plane.fill("t", b"fresh", index=index)
        plane.timers.fire()
        fetched = plane.fetched(number)
    assert paths.fast == 0
    assert fetched.values("t", 0) == fetched.values("t", 1) == [b"fresh"]


def test_a_session_goes_on_after_the_short_way(tmp_path: Path) -> None:
    """The high watermark that was sent is known; the next one is sent, with no records."""
    plane = plane_in(tmp_path / "data")
    session = _session(plane)
    number = plane.send(fetch_of(plane, **session), 17)
    with counted() as paths:
        plane.fill("t", b"fresh")
        plane.timers.fire()
        assert (paths.fast, plane.fetched(number).values("t")) == (1, [b"fresh"])
    session["session_epoch"] += 1
    number = plane.send(fetch_of(plane, ("t", 0, 2), **session), 17)
    assert plane.peer.take(number) is None
    plane.send(fetch_of(plane, ("t", 0, 2), follower=3), 17)
    plane.timers.pass_time(500)
    fetched = plane.fetched(number)
    assert (fetched.only.high_watermark, fetched.values("t")) == (2, [])


def test_many_bytes_stay_a_range_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.broker.fetch.read.TAKEN_BYTES_MAX", 61)
    plane = plane_in(tmp_path / "data")
    with counted() as paths:
        number = plane.send(fetch_of(plane, ("t", 0, 1)), 17)
        plane.fill("t", b"x" * 100)
        plane.timers.fire()
    assert paths.fast == 0
    assert plane.fetched(number).values("t") == [b"x" * 100]


def _session(plane: DataPlane) -> dict[str, Any]:
    """Of broker 2, which has everything; the fields of its next request."""
    opening = fetch_of(plane, ("t", 0, 1), session_epoch=0, max_wait_ms=0)
    session_id = plane.fetched(plane.send(opening, 17)).session_id
    assert session_id
    return {"session_id": session_id, "session_epoch": 1}


def _batches(*values: bytes) -> list[bytes]:
    return [bytes(batch_of(value)) for value in values]

"""A fetch that waited gets the newest records by a short way: the same bytes, the same rules.

On a real disk: only a file with a descriptor can be read without Python.
"""

from pathlib import Path
from typing import Any

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import counted
from kits.kernels.kernel_twins import needs_compiled
from millstream.broker.fetch import read as fetch_read
from millstream.broker.fetch import tail as tail_fetch
from millstream.wire.errors import ErrorCode

pytestmark = needs_compiled("fetch")

MODERN = range(10, 19)


def plane_in(directory: Path, partitions: int = 1) -> DataPlane:
    directory.mkdir()
    plane = DataPlane(directory=directory)
    plane.create("t", partitions)
    plane.fill("t", b"first")
    return plane


def woken(plane: DataPlane, version: int, value: bytes = b"fresh", **fields: Any) -> bytes | None:
    """The frame of a fetch that waited at the log's end until something was written there."""
    at = plane.leader("t").log_end
    request = plane.fetch_request([("t", 0, at)], max_wait_ms=500, **fields)
    number = plane.send(request, version)
    assert plane.peer.take(number) is None
    plane.fill("t", value)
    plane.timers.fire()
    return plane.peer.take(number)


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", MODERN)
def test_both_ways_answer_the_same_bytes(
    tmp_path: Path, version: int, isolation_level: int
) -> None:
    frames, counts = [], []
    for is_fast in (True, False):
        plane = plane_in(tmp_path / str(is_fast))
        with counted(is_fast=is_fast) as paths:
            frames.append(woken(plane, version, isolation_level=isolation_level))
        assert (paths.fast, paths.slow) == ((1, 0) if is_fast else (0, 1))
        observed = plane.services.metrics.apis
        counts.append((plane.leader("t").bytes_out, observed.bytes_out[1], observed.requests[1]))
    assert frames[0] == frames[1]
    assert frames[0] is not None
    assert counts[0] == counts[1]


@pytest.mark.parametrize("case", ["old version", "large", "small limit", "follower's epoch"])
def test_what_has_a_rule_of_its_own_takes_the_long_way(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = plane_in(tmp_path / "data")
    version, value = 17, b"fresh"
    fields: dict[str, Any] = {}
    match case:
        case "old version":
            version = 9
        case "large":
            for module in (fetch_read, tail_fetch):
                monkeypatch.setattr(module, "TAKEN_BYTES_MAX", 61)
        case "small limit":
            fields = {"max_bytes": 70}  # the first batch comes whatever its size
        case _:
            fields = {"partition": {"last_fetched_epoch": 0}}
    with counted() as paths:
        frame = woken(plane, version, value, **fields)
    assert paths.fast == 0
    assert frame is not None
    assert value in frame


def test_several_partitions_without_a_session_are_all_told(tmp_path: Path) -> None:
    plane = plane_in(tmp_path / "data", 2)
    with counted() as paths:
        partitions = [("t", 0, 1), ("t", 1, 0)]
        number = plane.send(plane.fetch_request(partitions, max_wait_ms=500), 17)
        plane.fill("t", b"fresh")
        plane.timers.fire()
        fetched = plane.fetched(number)
    assert paths.fast == 0
    assert (fetched.values("t", 0), fetched.values("t", 1)) == ([b"fresh"], [])


def test_a_session_goes_on_after_the_short_way(tmp_path: Path) -> None:
    """What was sent is noted, and the partition that gave records is the last of the next time."""
    plane = plane_in(tmp_path / "data", 2)
    opening = plane.fetch_request([("t", 0, 1), ("t", 1, 0)], session_epoch=0)
    session_id = plane.fetched(plane.send(opening, 17)).session_id
    assert session_id
    number = plane.send(_next(plane, session_id, 1), 17)
    plane.peer.take(number)
    with counted() as paths:
        number = plane.send(_next(plane, session_id, 2), 17)
        plane.fill("t", b"fresh")
        plane.timers.fire()
        fetched = plane.fetched(number)
        assert (paths.fast, fetched.values("t", 0)) == (1, [b"fresh"])
    session = plane.sessions._sessions[session_id]
    assert [key[1] for key in session.cursors] == [1, 0]
    number = plane.send(_next(plane, session_id, 3, ("t", 0, 2)), 17)
    assert plane.peer.take(number) is None  # nothing is new: it waits
    plane.timers.pass_time(500)
    assert plane.fetched(number).response.responses == []


def test_a_request_that_came_again_elsewhere_ends_the_first(tmp_path: Path) -> None:
    plane = plane_in(tmp_path / "data")
    opening = plane.fetch_request([("t", 0, 1)], session_epoch=0)
    session_id = plane.fetched(plane.send(opening, 17)).session_id
    plane.peer.take(plane.send(_next(plane, session_id, 1), 17))
    first = plane.send(_next(plane, session_id, 2), 17)
    plane.sessions._sessions[session_id].epoch += 1
    with counted() as paths:
        plane.fill("t", b"fresh")
        plane.timers.fire()
    assert paths.fast == 0
    error = plane.fetched(first).error
    assert error == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@pytest.mark.parametrize("change", ["deleted", "failed", "epoch"])
def test_what_changed_meanwhile_is_told(tmp_path: Path, change: str) -> None:
    plane = plane_in(tmp_path / "data")
    leader = plane.leader("t")
    claim = {"current_leader_epoch": 0}
    request = plane.fetch_request([("t", 0, 1)], max_wait_ms=500, partition=claim)
    number = plane.send(request, 17)
    expected = ErrorCode.KAFKA_STORAGE_ERROR
    with counted() as paths:
        plane.fill("t", b"fresh")
        if change == "deleted":
            plane.delete("t")
            expected = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif change == "failed":
            leader.log.owner.failure = "broken"
        else:
            leader.leader_epoch += 1  # type: ignore[assignment]
            expected = ErrorCode.FENCED_LEADER_EPOCH
        plane.timers.fire()
    assert paths.fast == 0
    assert plane.fetched(number).only.error_code == expected


def test_a_file_that_is_shorter_than_it_should_be_is_no_answer(tmp_path: Path) -> None:
    plane = plane_in(tmp_path / "data")
    number = plane.send(plane.fetch_request([("t", 0, 1)], max_wait_ms=500), 17)
    with counted() as paths:
        plane.fill("t", b"fresh")
        (segment,) = (tmp_path / "data").glob("t-0/*.log")
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - 1)
        plane.timers.fire()
    assert paths.fast == 0
    assert plane.fetched(number).only.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def _next(plane: DataPlane, session_id: int, epoch: int, *partitions: tuple[str, int, int]) -> Any:
    return plane.fetch_request(
        list(partitions), session_id=session_id, session_epoch=epoch, max_wait_ms=500
    )

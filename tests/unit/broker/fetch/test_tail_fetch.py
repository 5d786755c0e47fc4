"""A consumer without a session at the end of one partition: answered as on the slow path.

Every story runs twice, with the fast path and without it, and both must send the same bytes.
On a real disk: only a file with a descriptor can be read without Python.
"""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import write
from kits.kernels.kernel_twins import needs_compiled
from kits.storage.log_stories import batch_of, of_producer
from millstream.broker.fetch import tail as tail_fetch
from millstream.broker.fetch.read import FetchReader
from millstream.broker.handlers import fetch
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import build_marker

pytestmark = needs_compiled("fetch")

VERSIONS = range(4, 19)
WAIT_MS = 500

Story = Callable[[DataPlane, int, int], list[bytes | None]]


def send_fetch(
    plane: DataPlane, version: int, isolation_level: int, at: int, min_bytes: int = 1
) -> int:
    request = plane.fetch_request(
        [("t", 0, at)],
        max_wait_ms=WAIT_MS,
        min_bytes=min_bytes,
        isolation_level=isolation_level,
    )
    return plane.send(request, version)


def records_are_there(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    plane.fill("t", b"second")
    return [plane.peer.take(send_fetch(plane, version, isolation_level, 1))]


def older_records_are_there(
    plane: DataPlane, version: int, isolation_level: int
) -> list[bytes | None]:
    for _ in range(20):  # more than the slot remembers
        plane.fill("t", b"more")
    return [plane.peer.take(send_fetch(plane, version, isolation_level, 0))]


def records_come(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    number = send_fetch(plane, version, isolation_level, 1)
    before = plane.peer.take(number)
    plane.fill("t", b"fresh")
    plane.timers.fire()
    return [before, plane.peer.take(number)]


def nothing_comes(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    number = send_fetch(plane, version, isolation_level, 1)
    plane.timers.pass_time(WAIT_MS - 1)
    before = plane.peer.take(number)
    plane.timers.pass_time(2)
    return [before, plane.peer.take(number)]


def too_little_comes(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    number = send_fetch(plane, version, isolation_level, 1, min_bytes=100)
    plane.fill("t", b"fresh")
    plane.timers.fire()
    before = plane.peer.take(number)
    plane.fill("t", b"more fresh")
    plane.timers.fire()
    return [before, plane.peer.take(number)]


def transaction_is_aborted(
    plane: DataPlane, version: int, isolation_level: int
) -> list[bytes | None]:
    number = send_fetch(plane, version, isolation_level, 1)
    write(plane, batch_of(b"open", spec=of_producer(9, 0, txn=True)))
    plane.timers.fire()
    undecided = plane.peer.take(number)
    write(plane, build_marker(of_producer(9, 0), is_commit=False), Origin.COORDINATOR)
    plane.timers.fire()
    decided = plane.peer.take(number) if undecided is None else None
    assert (undecided is None) == (isolation_level == 1)
    return [undecided, decided]


def topic_goes(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    number = send_fetch(plane, version, isolation_level, 1)
    plane.delete("t")
    plane.timers.fire()
    return [plane.peer.take(number)]


def beyond_the_end(plane: DataPlane, version: int, isolation_level: int) -> list[bytes | None]:
    return [plane.peer.take(send_fetch(plane, version, isolation_level, 7))]


STORIES: list[Story] = [
    records_are_there,
    older_records_are_there,
    records_come,
    nothing_comes,
    too_little_comes,
    transaction_is_aborted,
    topic_goes,
    beyond_the_end,
]


def run_story(
    story: Story, directory: Path, version: int, isolation_level: int
) -> tuple[object, ...]:
    plane = DataPlane(directory=directory)
    plane.create("t", 1)
    plane.fill("t", b"first")
    leader = plane.leader("t")
    frames = story(plane, version, isolation_level)
    assert frames[-1] is not None or frames[0] is not None
    assert not leader.readers
    plane.logs.close()
    counted = plane.services.metrics.apis
    return frames, leader.bytes_out, counted.requests[1], counted.bytes_out[1], counted.errors[1]


@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("story", STORIES)
def test_both_ways_tell_the_same(
    tmp_path: Path, story: Story, version: int, isolation_level: int
) -> None:
    directories = [tmp_path / "short", tmp_path / "long"]
    for directory in directories:
        directory.mkdir()
    short = run_story(story, directories[0], version, isolation_level)
    with patch.object(fetch, "leader_of", return_value=None):
        long = run_story(story, directories[1], version, isolation_level)
    assert short == long


def test_who_is_gone_is_waited_for_no_longer(tmp_path: Path) -> None:
    plane = DataPlane(directory=tmp_path)
    plane.create("t", 1)
    leader = plane.leader("t")
    plane.fill("t", b"first")
    send_fetch(plane, 17, 0, 1)
    (waiting,) = leader.readers
    plane.peer.close("gone")
    plane.fill("t", b"fresh")
    plane.timers.fire()
    assert not leader.readers
    assert leader.bytes_out == 0
    assert waiting.is_over()  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_failure_is_not_that_of_whoever_wrote(tmp_path: Path, is_late: bool) -> None:
    plane = DataPlane(directory=tmp_path)
    plane.create("t", 1)
    leader = plane.leader("t")
    plane.fill("t", b"first")
    send_fetch(plane, 17, 0, 1)
    broken = ValueError("broken")
    with (
        patch.object(tail_fetch, "tail_frame", side_effect=broken),
        patch.object(FetchReader, "read", side_effect=broken),
    ):
        if is_late:
            plane.timers.pass_time(WAIT_MS + 1)
        else:
            plane.fill("t", b"fresh")
            plane.timers.fire()
    assert not leader.readers
    assert not plane.peer.is_open

"""A Fetch of thousands of partitions: in steps, with the answer that it would get at once."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import VERSIONS, pinned, plane_with
from kits.broker.large_fetch import MANY, UNKNOWN_ONES, begin, finish
from kits.storage.log_stories import batch_of
from millstream.broker.fetch.delayed import PARKED_COUNT_MIN, DelayedFetch
from millstream.broker.fetch.large import PARTITIONS_AT_ONCE_MAX
from millstream.broker.handlers import fetch as handler
from millstream.runtime.scheduler import ITEMS_PER_TURN, StepGenerator

Positions = list[tuple[str, int, int]]


def filled(partitions: int = 3) -> DataPlane:
    plane = plane_with(partitions)
    for index in range(partitions):
        plane.fill("t", b"x" * 100, b"y" * 20_000, index=index)
    return plane


@pytest.fixture(params=[False, True], ids=["at once", "in steps"])
def is_large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        monkeypatch.setattr(handler, "PARTITIONS_AT_ONCE_MAX", 0)
    return bool(request.param)


def both(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Any]) -> list[Any]:
    """What `ask` gives, at once and in steps."""
    found = []
    for limit in (PARTITIONS_AT_ONCE_MAX, 0):
        monkeypatch.setattr(handler, "PARTITIONS_AT_ONCE_MAX", limit)
        found.append(ask())
    return found


# -- the same answer ----------------------------------------------------------------------------

ASKED: dict[str, Positions] = {
    "records": [("t", 0, 0), ("t", 1, 1), ("t", 2, 2)],
    "errors": [("t", 0, 99), ("gone", 0, 0), ("t", 7, 0), ("t", 1, 0)],
    "nothing there": [("gone", index, 0) for index in range(5)],
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_answer_is_the_same(
    monkeypatch: pytest.MonkeyPatch, version: int, asked: Positions
) -> None:
    def ask() -> bytes | None:
        plane = filled()
        request = plane.fetch_request(asked, version=version, max_bytes=30_000)
        return plane.peer.take(plane.send(request, version))

    at_once, in_steps = both(monkeypatch, ask)
    assert at_once == in_steps is not None


def test_a_session_is_opened_and_goes_on(is_large: bool) -> None:
    plane = filled()
    opened = plane.fetch([("t", 0, 2), ("t", 1, 0)], session_epoch=0)
    assert opened.session_id > 0
    more = {"session_id": opened.session_id}
    changed = plane.fetch([("t", 1, 2), ("t", 2, 0)], session_epoch=1, **more)
    assert list(changed.partitions) == [("t", 2)]
    assert plane.fetch([("t", 2, 2)], session_epoch=2, **more).partitions == {}
    assert len(plane.sessions) == 1
    assert pinned(plane) == 0


def test_more_than_a_session_may_have_ends_it_before_it_grows(is_large: bool) -> None:
    plane = filled()
    plane.sessions._partitions_each_max = 5
    opened = plane.fetch([("t", 0, 2)], session_epoch=0)
    asked = [("t", index, 0) for index in range(6)]
    grown = plane.fetch(asked, session_id=opened.session_id, session_epoch=1)
    assert grown.error == 70  # FETCH_SESSION_ID_NOT_FOUND
    assert len(plane.sessions) == plane.sessions.partition_count == 0


# -- waiting ------------------------------------------------------------------------------------


def waiting_on(count: int) -> DataPlane:
    """A fetch that waits, perhaps for weeks, at the ends of so many partitions."""
    plane = plane_with(count)
    positions = [("t", index, 0) for index in range(count)]
    plane.send(plane.fetch_request(positions, max_wait_ms=2**31 - 1), 12)
    return plane


def test_while_it_waits_it_is_charged_for_what_is_left_of_it(is_large: bool) -> None:
    """Not for what its bytes could have been at the worst."""
    assert not waiting_on(PARKED_COUNT_MIN - 1).peer.parked
    ((size, _),) = waiting_on(PARKED_COUNT_MIN).peer.parked.values()
    assert 600 * PARKED_COUNT_MIN < size < 1_000 * PARKED_COUNT_MIN


def test_it_leaves_nothing_behind_when_its_client_is_gone(is_large: bool) -> None:
    plane = waiting_on(PARKED_COUNT_MIN)
    ((_, drop),) = plane.peer.parked.values()
    readers = plane.leader("t", 7).readers
    (waiting,) = readers
    assert isinstance(waiting, DelayedFetch)
    drop()
    assert not readers
    assert not waiting._reader.round.cursors
    assert not waiting._reader._params.partitions


def test_it_waits_for_records_and_brings_them(is_large: bool) -> None:
    plane = plane_with(3)
    asked = [("t", 0, 0), ("t", 1, 0), ("gone", 0, 0)]
    request = plane.fetch_request(asked, max_wait_ms=500)
    number = plane.send(request, 17)
    assert plane.answer(number, type(request), 17) is None
    plane.produce("t", batch_of(b"late"), index=1)
    fetched = plane.fetched(number)
    assert fetched.values("t", 1) == [b"late"]
    assert pinned(plane) == 0


def test_the_end_of_the_wait_brings_what_there_is(is_large: bool) -> None:
    plane = filled()
    request = plane.fetch_request([("t", 0, 0)], max_wait_ms=500, min_bytes=1_000_000)
    number = plane.send(request, 17)
    assert pinned(plane) == 0, "nothing is pinned while it waits"
    plane.timers.pass_time(501)
    assert plane.fetched(number).values("t") == [b"x" * 100, b"y" * 20_000]
    assert pinned(plane) == 0


# -- steps --------------------------------------------------------------------------------------


def steps_of(plane: DataPlane, asked: Positions) -> StepGenerator[None]:
    steps: StepGenerator[None] = begin(plane, plane.fetch_request(asked, version=12))
    return steps


def test_no_step_has_more_than_a_turn_s_worth_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane, looked_up = filled(), [0]
    find = plane.partitions.get

    def counted(key: tuple[str, int]) -> Any:
        looked_up[-1] += 1
        return find(key)

    monkeypatch.setattr(plane.partitions, "get", counted)
    steps = steps_of(plane, UNKNOWN_ONES)
    with suppress(StopIteration):
        while True:
            next(steps)
            looked_up.append(0)
    assert sum(looked_up) == MANY
    assert max(looked_up) == ITEMS_PER_TURN
    # Cursors, reading and encoding each take as many steps.
    assert len(looked_up) >= 3 * MANY // ITEMS_PER_TURN


def test_a_topic_that_is_deleted_between_two_steps_is_still_sent() -> None:
    plane = filled()
    steps = steps_of(plane, [("t", 0, 0), *UNKNOWN_ONES])
    while not pinned(plane):
        next(steps)
    plane.delete("t")
    finish(steps)
    assert plane.fetched(1, 12).values("t") == [b"x" * 100, b"y" * 20_000]


def test_steps_that_are_ended_early_let_go_of_the_files() -> None:
    plane = filled()
    for last in range(MANY):
        steps = steps_of(plane, [("t", 0, 0), *UNKNOWN_ONES])
        for _ in range(last):
            if next(steps, "over") == "over":
                plane.peer.take(1)
                return
        steps.close()
        plane.peer.take(1)
        assert pinned(plane) == 0
    pytest.fail("it never ended")

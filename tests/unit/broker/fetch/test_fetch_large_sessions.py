"""A Fetch session of thousands of partitions: small requests of it are served in steps, too, where
they make much work, and the session may end or change between two of them.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from kits.broker.data_plane import DataPlane, Fetched
from kits.broker.fetch_kit import pinned, plane_with
from kits.broker.large_fetch import (
    MANY,
    begin,
    finish,
    keep_late_steps,
    plane_beside_another_leader,
)
from millstream.broker.fetch.large import PARTITIONS_AT_ONCE_MAX
from millstream.broker.fetch.read import FetchReader
from millstream.broker.fetch.request import INITIAL_SESSION_EPOCH
from millstream.broker.fetch.sessions import FetchSession
from millstream.runtime.scheduler import ITEMS_PER_TURN
from millstream.wire.errors import ErrorCode

ELSEWHERE = [("elsewhere", index, 0) for index in range(MANY)]
"""Partitions that another broker leads: each is read for every request, and has an error."""


def serve(plane: DataPlane, request: Any) -> Fetched:
    """All at once, in steps or not."""
    steps = begin(plane, request, number=900)
    if steps is not None:
        finish(steps)
    return plane.fetched(900, 12)


def open_session(plane: DataPlane, asked: list[tuple[str, int, int]]) -> FetchSession:
    serve(plane, plane.fetch_request(asked, version=12, session_epoch=INITIAL_SESSION_EPOCH))
    (session,) = plane.sessions._sessions.values()
    return session


def next_of(plane: DataPlane, session: FetchSession, *asked: Any, **fields: Any) -> Any:
    return plane.fetch_request(
        asked,
        version=12,
        session_id=session.session_id,
        session_epoch=session.epoch,
        **fields,
    )


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions that were read in each step; the test appends a 0 for the next one."""
    counts, read_next = [0], FetchReader.read_next

    def counted(self: FetchReader, cursor: Any) -> Any:
        counts[-1] += 1
        return read_next(self, cursor)

    monkeypatch.setattr(FetchReader, "read_next", counted)
    return counts


# -- how much is done at once -------------------------------------------------------------------


def test_a_request_that_names_nothing_is_served_in_steps_where_thousands_are_due(
    read: list[int],
) -> None:
    plane = plane_beside_another_leader()
    session = open_session(plane, ELSEWHERE)
    read[:] = [0]
    steps = begin(plane, next_of(plane, session))
    assert steps is not None, "it was served at once"
    while next(steps, "over") != "over":
        read.append(0)
    assert sum(read) == MANY
    assert max(read) == ITEMS_PER_TURN
    assert plane.fetched(1, 12).errors == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * MANY


def test_another_isolation_level_makes_all_of_them_due(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.broker.handlers.fetch.PARTITIONS_AT_ONCE_MAX", 4)
    plane = plane_with(5)
    session = open_session(plane, [("t", index, 0) for index in range(5)])
    serve(plane, next_of(plane, session))
    assert begin(plane, next_of(plane, session), number=3) is None, "nothing is due"
    read[:] = [0]
    steps = begin(plane, next_of(plane, session, isolation_level=1))
    assert steps is not None
    finish(steps)
    assert sum(read) == 5
    assert plane.fetched(1, 12).errors == []
    assert begin(plane, next_of(plane, session, isolation_level=1), number=4) is None


def test_few_that_are_due_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.broker.handlers.fetch.PARTITIONS_AT_ONCE_MAX", 4)
    plane = plane_with(5)
    session = open_session(plane, [("t", index, 0) for index in range(5)])
    serve(plane, next_of(plane, session))
    plane.fill("t", b"new", index=3)
    assert begin(plane, next_of(plane, session)) is None
    assert plane.fetched(1, 12).values("t", 3) == [b"new"]


def test_the_end_of_a_wait_is_served_in_steps_where_thousands_are_due(
    read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaders moved while it waited: each partition is looked up again."""
    monkeypatch.setattr("millstream.broker.handlers.fetch.PARTITIONS_AT_ONCE_MAX", 4)
    plane = plane_with(5)
    session = open_session(plane, [("t", index, 0) for index in range(5)])
    late: list[Any] = []
    keep_late_steps(plane, late)
    serve(plane, next_of(plane, session))
    assert begin(plane, next_of(plane, session, max_wait_ms=500)) is None
    plane.create("other", number=8)
    read[:] = [0]
    plane.timers.pass_time(501)
    assert (1 in plane.peer.answers, len(late), sum(read)) == (False, 1, 0)
    finish(late[0])
    assert sum(read) == 5
    assert plane.fetched(1, 12).error == 0


def test_partitions_are_added_and_forgotten_in_steps() -> None:
    plane = plane_beside_another_leader()
    session = open_session(plane, ELSEWHERE)
    sizes = [len(session.cursors)]
    added = [("elsewhere", MANY + index, 0) for index in range(MANY)]
    request = next_of(plane, session, *added, forgotten=[one[:2] for one in ELSEWHERE])
    steps = begin(plane, request)
    while next(steps, "over") != "over":
        sizes.append(len(session.cursors))
    changes = [abs(after - before) for before, after in pairwise(sizes)]
    assert max(changes) == ITEMS_PER_TURN
    assert (sum(changes), len(session.cursors)) == (2 * MANY, MANY)
    assert plane.sessions.partition_count == MANY
    assert len(plane.fetched(1, 12).partitions) == MANY


def test_a_request_that_only_forgets_very_many_is_served_in_steps() -> None:
    plane = plane_beside_another_leader()
    session = open_session(plane, [*ELSEWHERE, ("t", 0, 0)])
    steps = begin(plane, next_of(plane, session, forgotten=[one[:2] for one in ELSEWHERE]))
    assert steps is not None
    assert finish(steps) > MANY // ITEMS_PER_TURN
    assert (plane.fetched(1, 12).errors, len(session.cursors)) == ([], 1)
    assert plane.sessions.partition_count == 1


# -- what happens to the session between two steps ----------------------------------------------


def moments() -> Iterator[tuple[DataPlane, FetchSession, Any]]:
    """A request of a session that adds, forgets and reads, halted after each of its steps."""
    step = 0
    while True:
        step += 1
        plane = plane_beside_another_leader()
        plane.fill("t", b"x" * 20_000)
        session = open_session(plane, [*ELSEWHERE, ("t", 1, 0)])
        added = [("t", 0, 0), *(("elsewhere", MANY + index, 0) for index in range(MANY))]
        request = next_of(plane, session, *added, forgotten=[one[:2] for one in ELSEWHERE])
        steps = begin(plane, request)
        for _ in range(step):
            if next(steps, "over") == "over":
                assert step > MANY // ITEMS_PER_TURN
                return
        yield plane, session, steps


def answer_of(plane: DataPlane, steps: Any) -> Fetched:
    finish(steps)
    fetched = plane.fetched(1, 12)
    assert pinned(plane) == 0
    return fetched


def test_a_session_that_is_closed_between_two_steps_is_gone() -> None:
    for plane, session, steps in moments():
        closing = plane.fetch_request(
            [("t", 1, 0)], version=12, session_id=session.session_id, session_epoch=-1
        )
        serve(plane, closing)
        assert len(plane.sessions) == plane.sessions.partition_count == 0
        fetched = answer_of(plane, steps)
        assert fetched.error in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        assert len(plane.sessions) == plane.sessions.partition_count == 0


def test_a_session_that_is_evicted_between_two_steps_is_gone() -> None:
    for plane, session, steps in moments():
        plane.sessions._remove(session)
        fetched = answer_of(plane, steps)
        assert fetched.error in (ErrorCode.NONE, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        assert len(plane.sessions) == plane.sessions.partition_count == 0


def test_the_same_request_on_another_connection_is_refused() -> None:
    for plane, session, steps in moments():
        again = plane.fetch_request(
            [], version=12, session_id=session.session_id, session_epoch=session.epoch - 1
        )
        assert serve(plane, again).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert answer_of(plane, steps).error == ErrorCode.NONE
        assert plane.sessions.partition_count == len(session.cursors) == MANY + 2


def test_the_next_request_that_comes_too_early_ends_this_one() -> None:
    for plane, session, steps in moments():
        serve(plane, next_of(plane, session, ("t", 1, 0), forgotten=[("t", 0)]))
        fetched = answer_of(plane, steps)
        assert fetched.error in (ErrorCode.NONE, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        assert plane.sessions.partition_count == len(session.cursors)


def test_a_session_that_is_as_large_as_it_may_be_replaces_all_its_partitions() -> None:
    plane = plane_beside_another_leader()
    session = open_session(plane, ELSEWHERE)
    plane.sessions._partitions_each_max = MANY
    added = [("elsewhere", MANY + index, 0) for index in range(MANY)]
    replacing = next_of(plane, session, *added, forgotten=[one[:2] for one in ELSEWHERE])
    assert serve(plane, replacing).error == ErrorCode.NONE
    assert len(plane.sessions) == 1


def test_the_limit_of_one_step_is_what_a_few_milliseconds_allow() -> None:
    assert MANY > PARTITIONS_AT_ONCE_MAX > ITEMS_PER_TURN

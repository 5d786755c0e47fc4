"""A Fetch of very many partitions: none of its steps is longer the more partitions there are."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import plane_with
from kits.broker.large_fetch import (
    MANY,
    begin,
    finish,
    keep_late_steps,
    longest_step,
    plane_beside_another_leader,
)
from millstream.broker.fetch.request import INITIAL_SESSION_EPOCH
from millstream.broker.fetch.sessions import FetchSession
from millstream.runtime.scheduler import Computation
from millstream.wire.errors import ErrorCode

TIMES = 8

GROWTH_MAX = 1.2
"""Of the longest step, with so many times the partitions: a dictionary is enlarged now and then,
but no line of ours is executed more often."""


def session_of(plane: DataPlane, count: int) -> FetchSession:
    asked = [("elsewhere", index, 0) for index in range(count)]
    request = plane.fetch_request(asked, version=12, session_epoch=INITIAL_SESSION_EPOCH)
    finish(begin(plane, request, number=900))
    (session,) = plane.sessions._sessions.values()
    session.generation = plane.partitions.generation  # no replica is found again
    return session


def unknown(count: int) -> Any:
    """All of them are unknown."""
    plane = plane_with(1)
    asked = [("gone", index, 0) for index in range(count)]
    return begin(plane, plane.fetch_request(asked, max_wait_ms=500))


def unknown_topics(count: int) -> Any:
    plane = plane_with(1)
    asked = [(f"gone-{index}", 0, 0) for index in range(count)]
    return begin(plane, plane.fetch_request(asked, max_wait_ms=500))


def waiting(count: int) -> Any:
    """One partition exists, has records, and is waited for."""
    plane = plane_with(1)
    plane.fill("t", b"x")
    asked = [("t", 0, 0), *(("gone", index, 0) for index in range(count))]
    return begin(plane, plane.fetch_request(asked, max_wait_ms=500, min_bytes=1_000))


def late(count: int) -> Any:
    """What is left to do when the wait is over."""
    plane = plane_with(1)
    left: list[Any] = []
    keep_late_steps(plane, left)
    asked = [("t", 0, 0), *(("gone", index, 0) for index in range(count))]
    finish(begin(plane, plane.fetch_request(asked, max_wait_ms=500)))
    plane.timers.pass_time(501)
    return left[0]


def hinted(count: int) -> Any:
    """Each answer says who the leader is."""
    plane = plane_beside_another_leader()
    plane.create("elsewhere", number=9)
    asked = [("elsewhere", index, 0) for index in range(count)]
    return begin(plane, plane.fetch_request(asked), version=16)


def session(count: int) -> Any:
    """One is opened."""
    plane = plane_beside_another_leader()
    asked = [("elsewhere", index, 0) for index in range(count)]
    return begin(plane, plane.fetch_request(asked, session_epoch=INITIAL_SESSION_EPOCH))


def due(count: int) -> Any:
    """A small request, and all partitions of its session are due."""
    plane = plane_beside_another_leader()
    known = session_of(plane, count)
    return begin(plane, _next_of(plane, known))


def replaced(count: int) -> Any:
    """A session gets other partitions."""
    plane = plane_beside_another_leader()
    known = session_of(plane, count)
    asked = [("elsewhere", count + index, 0) for index in range(count)]
    forgotten = [("elsewhere", index) for index in range(count)]
    return begin(plane, _next_of(plane, known, asked, forgotten=forgotten))


def _next_of(plane: DataPlane, known: FetchSession, asked: Any = (), **fields: Any) -> Any:
    numbers: dict[str, Any] = {"session_id": known.session_id, "session_epoch": known.epoch}
    return plane.fetch_request(asked, version=12, **numbers, **fields)


@pytest.mark.parametrize(
    "steps_of",
    [unknown, unknown_topics, waiting, late, hinted, session, due, replaced],
    ids=lambda one: one.__name__.replace("_", " "),
)
def test_no_step_is_longer_the_more_partitions_there_are(
    steps_of: Callable[[int], Any],
) -> None:
    few, many = longest_step(steps_of(MANY)), longest_step(steps_of(TIMES * MANY))
    assert many < GROWTH_MAX * few


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"isolation_level": 9}, ErrorCode.INVALID_REQUEST),
        ({"replica_id": 2}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
    ids=["isolation level", "not that broker"],
)
def test_the_error_of_very_many_partitions_is_made_in_a_worker_thread(
    fields: dict[str, Any], code: ErrorCode
) -> None:
    plane = plane_with(1)
    asked = [("t", index, 0) for index in range(MANY)]
    steps = begin(plane, plane.fetch_request(asked, version=12, **fields))
    made = next(steps)
    assert isinstance(made, Computation)
    with pytest.raises(StopIteration) as over:
        steps.send(made())
    (topic,) = over.value.value.responses
    assert [one.error_code for one in topic.partitions] == [code] * MANY

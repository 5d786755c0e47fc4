"""A Fetch of thousands of partitions, one step at a time."""

import sys
from contextlib import suppress
from typing import Any

from kits.broker.data_plane import DataPlane
from kits.broker.fetch_kit import plane_with
from millstream.broker.fetch.request import decode
from millstream.broker.handlers import fetch as handler
from millstream.broker.requests.context import Context, RequestFacts
from millstream.model.ids import TopicPartition
from millstream.replication.errors import NotLeader
from millstream.runtime.scheduler import ITEMS_PER_TURN, StepGenerator
from millstream.wire.api_keys import ApiKey

MANY = 6 * ITEMS_PER_TURN
"""Partitions that are too many for one step."""

UNKNOWN_ONES = [("gone", index, 0) for index in range(MANY)]


def plane_beside_another_leader(partitions: int = 2) -> DataPlane:
    """Another broker leads the topic "elsewhere": an error each time that one of it is read."""
    plane = plane_with(partitions)
    replicas: Any = plane.partitions
    get = replicas.get

    def get_or_refuse(key: tuple[str, int]) -> Any:
        if key[0] == "elsewhere":
            raise NotLeader(TopicPartition(*key))
        return get(key)

    replicas.get = get_or_refuse
    return plane


def keep_late_steps(plane: DataPlane, late: list[Any]) -> None:
    """What is left to do when a wait is over goes to `late` instead of being done."""

    def go_on(_: Context, steps: StepGenerator[None], **__: int) -> None:
        late.append(steps)

    plane.dispatch.go_on = go_on  # type: ignore[method-assign, assignment]


def begin(plane: DataPlane, request: Any, *, version: int = 12, number: int = 1) -> Any:
    """What the handler returns: steps, or None where the request was served at once."""
    params = decode(memoryview(request.encode(version)), version)
    facts = RequestFacts(ApiKey.FETCH, version, 77, "test", number, 0, 1_000)
    return handler.handle(Context(plane.services, plane.peer, facts), params)


def finish(steps: StepGenerator[None]) -> int:
    """Run the rest; how many steps that took."""
    count = 0
    with suppress(StopIteration):
        while True:
            count += 1
            next(steps)
    return count


def longest_step(steps: StepGenerator[None]) -> int:
    """The lines of Python that the longest step executes, as each turn of a loop does anew."""
    counts = [0]

    def count(frame: Any, event: str, argument: Any) -> Any:
        del frame, argument
        counts[-1] += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        with suppress(StopIteration):
            while True:
                next(steps)
                counts.append(0)
    finally:
        sys.settrace(before)
    return max(counts)

"""A query tells a group how far it is, and neither waits nor fails for it."""

from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, cast

from millstream.client.blocking import BlockingClient
from millstream.client.errors import ClientClosed
from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.source_offset import SourceOffset
from millstream.pipelines.spark.group_progress import GroupProgress


class _Running:
    """Takes the commits, which a test ends when it likes."""

    def __init__(self) -> None:
        self.cluster = None
        self.thread = self
        self.begun: list[Future[list[str]]] = []

    def start(self, work: Coroutine[Any, Any, list[str]]) -> Future[list[str]]:
        work.close()
        self.begun.append(Future())
        return self.begun[-1]

    def begin_read(self, read: object) -> "_Running":
        del read
        return self


def _progress() -> tuple[GroupProgress, _Running]:
    running = _Running()
    return GroupProgress(lambda: cast("BlockingClient", running), "query"), running


def _at(offset: int, *, is_initial: bool = False) -> SourceOffset:
    positions = {TopicPartition("events", 0): Offset(offset)}
    return SourceOffset(positions=positions, is_initial=is_initial)


def test_the_start_of_a_new_query_is_no_progress() -> None:
    progress, running = _progress()
    assert progress.note(_at(0, is_initial=True)) == []
    assert running.begun == []


def test_what_is_committed_is_not_committed_again() -> None:
    progress, running = _progress()
    progress.note(_at(5))
    running.begun[0].set_result([])
    progress.note(_at(5))
    progress.note(_at(5))
    assert len(running.begun) == 1
    progress.note(_at(6))
    assert len(running.begun) == 2


def test_one_commit_at_a_time_and_the_newest_goes_next() -> None:
    progress, running = _progress()
    progress.note(_at(5))
    progress.note(_at(6))
    progress.note(_at(7))
    assert len(running.begun) == 1
    running.begun[0].set_result([])
    progress.note(_at(7))
    assert len(running.begun) == 2
    running.begun[1].set_result([])
    progress.note(_at(7))
    assert len(running.begun) == 2


def test_a_commit_that_failed_is_told_and_tried_with_the_next_look() -> None:
    progress, running = _progress()
    progress.note(_at(5))
    running.begun[0].set_result(["the group has members of its own"])
    told = progress.note(_at(5))
    assert told == [
        "the query's progress was not committed to group 'query': the group has members of its own"
    ]
    assert len(running.begun) == 2
    running.begun[1].set_exception(ClientClosed())
    assert "the client is closed" in progress.note(_at(5))[0]


def test_the_end_of_a_query_waits_for_the_last_commit() -> None:
    progress, running = _progress()
    assert progress.drain() == []
    progress.note(_at(5))
    running.begun[0].set_result([])
    assert progress.drain() == []


def test_the_end_of_a_query_does_not_wait_for_ever() -> None:
    progress, _ = _progress()
    progress.note(_at(5))
    assert progress.drain(timeout_s=0.01) == [
        "the query's progress was not committed to group 'query': not committed within 0.01 s"
    ]


def test_what_came_while_a_commit_was_under_way_is_committed_before_the_end() -> None:
    progress, running = _progress()
    progress.note(_at(5))
    progress.note(_at(6))
    running.begun[0].set_result([])
    assert progress.drain(timeout_s=0.01) != []
    assert len(running.begun) == 2
    running.begun[1].set_result([])
    assert progress.drain() == []

"""Background work in virtual time: the work runs inline after a delay, its result comes later.

The two delays matter: a process can die after its data was synced and before it got the result.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millstream.model.invariant import invariant
from millstream.runtime.background import (
    QUEUED_WORK_MAX,
    WORKERS_DEFAULT,
    BackgroundFullError,
    Outcome,
)
from millstream.runtime.fatal import is_violation
from millstream.runtime.randomness import Randomness
from millstream.testing.sim.trace import Trace

T = TypeVar("T")

WORK_DELAY_S: Final = (0.0001, 0.005)
"""How long a job takes: from a sync on a fast disk to a sync on a busy one."""

ANSWER_DELAY_S: Final = (0.0, 0.0005)


@dataclass(slots=True)
class _Job:
    number: int
    name: str
    work: Callable[[], Any]
    on_done: Callable[[Outcome[Any]], None]


class SimBackground:
    """As many virtual workers as the real one has threads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        randomness: Randomness,
        trace: Trace,
        *,
        workers: int = WORKERS_DEFAULT,
        queued_max: int = QUEUED_WORK_MAX,
        work_delay_s: tuple[float, float] = WORK_DELAY_S,
    ) -> None:
        self._loop = loop
        self._randomness = randomness
        self._trace = trace
        self._idle_workers = workers
        self._queued_max = queued_max
        self.work_delay_s = work_delay_s
        """May be changed while running: a disk that becomes slow."""
        self._waiting: deque[_Job] = deque()
        self._unfinished: dict[int, str] = {}
        self._job_number = 0
        self._is_closing = False
        self._is_dead = False
        self._drained = asyncio.Event()

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        invariant(not self._is_closing, "background work after close", name=name)
        if len(self._unfinished) >= self._queued_max:
            raise BackgroundFullError(f"{len(self._unfinished)} background jobs wait")
        self._job_number += 1
        self._unfinished[self._job_number] = name
        self._waiting.append(_Job(self._job_number, name, work, on_done))
        self._start_waiting()

    async def close(self, *, timeout_s: float) -> list[str]:
        self._is_closing = True
        if self._unfinished:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._drained.wait()
            except TimeoutError:
                return list(self._unfinished.values())
        return []

    def kill(self) -> None:
        """The process dies: work not yet done never happens, results never come."""
        self._is_dead = True
        self._waiting.clear()
        self._unfinished.clear()

    def _start_waiting(self) -> None:
        while self._waiting and self._idle_workers > 0:
            self._idle_workers -= 1
            delay_s = self._randomness.between(*self.work_delay_s)
            self._loop.call_later(delay_s, self._work, self._waiting.popleft())

    def _work(self, job: _Job) -> None:
        if self._is_dead:
            return
        self._trace.note("work", job.name, self._loop.time())
        outcome = _run(job.work)
        self._idle_workers += 1
        self._loop.call_later(
            self._randomness.between(*ANSWER_DELAY_S), self._deliver, job, outcome
        )
        self._start_waiting()

    def _deliver(self, job: _Job, outcome: Outcome[Any]) -> None:
        if self._is_dead:
            return
        try:
            job.on_done(outcome)
        finally:
            self._unfinished.pop(job.number, None)
            if self._is_closing and not self._unfinished:
                self._drained.set()


class InlineBackground:
    """Runs the work inline in `submit`: for tests of synchronous code without a loop."""

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        del name
        on_done(_run(work))

    async def close(self, *, timeout_s: float) -> list[str]:
        del timeout_s
        return []


def _run(work: Callable[[], T]) -> Outcome[T]:
    try:
        return Outcome(work())
    except BaseException as error:
        if is_violation(error):
            raise
        return Outcome(None, error)

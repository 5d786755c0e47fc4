"""The seam for blocking work off the loop: syncs, cold reads, recovery, compaction.

Results come back on the loop's thread, so nothing above needs a lock. Work that other code waits
for must not be dropped: after `close` has run out of time the caller learns what was left.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from millstream.model.errors import OperatingError
from millstream.model.invariant import invariant
from millstream.runtime.fatal import end_if_fatal

T = TypeVar("T")

WORKERS_DEFAULT: Final = 4
"""Worker threads of a process: blocking disk calls overlap, Python code runs one at a time."""

QUEUED_WORK_MAX: Final = 4096
"""Work waiting or running; more means that the disk cannot follow and callers must slow down."""


class BackgroundFullError(OperatingError):
    """Too much background work is waiting; try again later or refuse the request."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of background work: a value, or the error it raised."""

    value: T | None
    error: BaseException | None = None

    def result(self) -> T:
        """The value; raises the error instead if there was one."""
        error = self.error
        if error is None:
            return cast("T", self.value)
        try:
            raise error
        finally:
            # This frame is one of the error's: with these it would be a cycle, and keep what the
            # work was about until the next garbage collection.
            del self, error


class Background(Protocol):
    """Runs blocking functions in worker threads."""

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        """Run `work` off the loop, then `on_done` on the loop; raises BackgroundFullError.

        Jobs start in the order of submission and may finish in any order.
        """

    async def close(self, *, timeout_s: float) -> list[str]:
        """Accept no more work, wait for the rest; the names of jobs that did not finish in time."""


async def run_in_background(background: Background, work: Callable[[], T], *, name: str) -> T:
    """`submit` for coroutines."""
    future: asyncio.Future[Outcome[T]] = asyncio.get_running_loop().create_future()
    background.submit(work, partial(_set_outcome, future), name=name)
    try:
        return (await future).result()
    finally:
        del future  # it has the error, which has this frame: as in `Outcome.result`


def _set_outcome(future: asyncio.Future[Outcome[T]], outcome: Outcome[T]) -> None:
    if not future.cancelled():
        future.set_result(outcome)


@dataclass(slots=True)
class _Job:
    number: int
    name: str
    work: Callable[[], Any]
    on_done: Callable[[Outcome[Any]], None]


class ThreadBackground:
    """A few daemon threads behind one bounded queue. All methods are called on the loop's thread.

    Threads start when there is work for them. They are daemons so that one stuck in the kernel
    cannot keep a stopping process alive.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        workers: int = WORKERS_DEFAULT,
        queued_max: int = QUEUED_WORK_MAX,
    ) -> None:
        self._loop = loop
        self._workers_max = workers
        self._queued_max = queued_max
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished: dict[int, str] = {}
        self._job_number = 0
        self._is_closing = False
        self._drained = asyncio.Event()

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        invariant(not self._is_closing, "background work after close", name=name)
        if len(self._unfinished) >= self._queued_max:
            raise BackgroundFullError(f"{len(self._unfinished)} background jobs wait")
        self._job_number += 1
        self._unfinished[self._job_number] = name
        if len(self._threads) < min(self._workers_max, len(self._unfinished)):
            self._start_thread()
        self._jobs.put(_Job(self._job_number, name, work, on_done))

    async def close(self, *, timeout_s: float) -> list[str]:
        self._is_closing = True
        for _ in self._threads:
            self._jobs.put(None)
        if self._unfinished:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._drained.wait()
            except TimeoutError:
                return list(self._unfinished.values())
        return []

    def _start_thread(self) -> None:
        name = f"background {len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        """The main function of a worker thread."""
        thread = threading.current_thread()
        idle_name = thread.name
        while (job := self._jobs.get()) is not None:
            thread.name = f"{idle_name}: {job.name}"
            outcome = _run(job.work)
            thread.name = idle_name
            try:
                self._loop.call_soon_threadsafe(self._deliver, job, outcome)
            except RuntimeError:
                return  # the loop was closed after `close` had given up on this job
            finally:
                # While it waits it must not have the last job and its result, which may be a large
                # request; and an error has this frame, so with these it would be a cycle.
                del job, outcome

    def _deliver(self, job: _Job, outcome: Outcome[Any]) -> None:
        try:
            job.on_done(outcome)
        finally:
            del self._unfinished[job.number]
            if self._is_closing and not self._unfinished:
                self._drained.set()


def _run(work: Callable[[], T]) -> Outcome[T]:
    try:
        return Outcome(work())
    except BaseException as error:  # noqa: BLE001 - passed to on_done, or fatal
        end_if_fatal(error)
        return Outcome(None, error)

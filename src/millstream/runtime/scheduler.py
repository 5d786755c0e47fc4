"""Long work, cut into steps so that one client's large request does not delay all the others.

Such work is a generator. It yields None where other work may run, and a function where it must wait
for the disk or compute for long: the function runs in a worker thread, its result is sent back in,
its error is raised at the yield. The same generator is run without interruption where nothing else
is to be served: at a start, and in tests.

How much is done between two yields is counted in items, not measured: a clock would make every run
of the simulator, where no time passes inside a step, one single step.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any, Final, TypeVar, cast

from millstream.model.invariant import invariant
from millstream.runtime.background import Background, BackgroundFullError, run_in_background

T = TypeVar("T")
I = TypeVar("I")  # noqa: E741 - of items

Work = Callable[[], Any]
Spawn = Callable[[Coroutine[Any, Any, None], str], None]
StepGenerator = Generator[Work | None, Any, T]

ITEMS_PER_TURN: Final = 200
"""Items of about ten microseconds each: two milliseconds, which no client notices."""

ROOM_WAIT_S: Final = 0.02
"""Pause before work is submitted again that the background had no room for."""


class Computation(partial[T]):
    """Work for a worker thread that touches nothing but its own memory.

    A stop neither begins nor waits for it: it leaves nothing that the next start would need.
    """


def chunked(items: Sequence[I], size: int = ITEMS_PER_TURN) -> Iterator[Sequence[I]]:
    """The items in chunks; the caller yields between two of them."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class YieldCounter:
    """Counts items, and says when it is time to yield to other work."""

    __slots__ = ("_done", "_size")

    def __init__(self, size: int = ITEMS_PER_TURN) -> None:
        self._size = size
        self._done = 0

    def is_due(self, count: int = 1) -> bool:
        """Count items that were handled; the caller yields when this returns True."""
        self._done += count
        if self._done < self._size:
            return False
        self._done = 0
        return True


async def run_on_loop(steps: StepGenerator[T]) -> T:
    """For coroutines: run all steps of work that never needs a worker thread."""
    try:
        while True:
            yielded = next(steps)
            invariant(yielded is None, "steps on the loop yielded a job for a worker thread")
            await asyncio.sleep(0)
    except StopIteration as end:
        value: T = end.value
        return value


def run_blocking(steps: StepGenerator[T]) -> T:
    """Run all steps without interruption, blocking work in this thread."""
    try:
        yielded = next(steps)
        while True:
            if yielded is None:
                yielded = steps.send(None)
                continue
            try:
                result = yielded()
            except Exception as error:  # noqa: BLE001 - the steps decide what it means
                yielded = steps.throw(error)
            else:
                yielded = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class UnfinishedSteps:
    """Steps that were not finished by their first step, with what that yielded."""

    __slots__ = ("steps", "yielded")

    def __init__(self, steps: StepGenerator[Any], yielded: Work | None) -> None:
        self.steps = steps
        self.yielded = yielded


def run_first_step(steps: StepGenerator[T]) -> T | UnfinishedSteps:
    """Run the first step at once, which is all that most work needs; the result, or the rest."""
    try:
        yielded = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    return UnfinishedSteps(steps, yielded)


class CooperativeScheduler:
    """Runs long work cooperatively: one step in each iteration of the event loop.

    However many works there are, everything else on the loop waits for one step at most.
    """

    def __init__(
        self,
        background: Background,
        spawn: Spawn | None = None,
        *,
        worker_jobs_max: int | None = None,
        computing: Background | None = None,
    ) -> None:
        """`spawn` starts a task that ends with its scope; None: the scheduler keeps the tasks.

        `worker_jobs_max` limits the jobs in worker threads at once, so that some threads stay free.
        `computing` has the threads for computations, if they have their own.
        """
        self.background = background
        self._computing = computing or background
        self._computing_tasks: set[asyncio.Task[Any]] = set()
        self._is_stopped = False
        self.spawn = spawn or self._spawn_task
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._running = 0
        self._room: AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(worker_jobs_max) if worker_jobs_max else nullcontext()
        )

    @property
    def is_busy(self) -> bool:
        """Whether any work is unfinished."""
        return bool(self._running)

    async def run(self, steps: StepGenerator[T], *, name: str) -> T:
        """Run the steps to their end. A job that has begun goes on after a cancellation."""
        await self.next_turn()
        unfinished = run_first_step(steps)
        if not isinstance(unfinished, UnfinishedSteps):
            return unfinished
        value: T = await self.resume(unfinished, name=name)
        return value

    async def resume(self, unfinished: UnfinishedSteps, *, name: str) -> Any:
        """Run the rest of steps that have begun."""
        steps, yielded = unfinished.steps, unfinished.yielded
        self._running += 1
        try:
            while True:
                if yielded is None:
                    await self.next_turn()
                    yielded = steps.send(None)
                    continue
                try:
                    result = await self.in_worker_thread(yielded, name=name)
                except Exception as error:  # noqa: BLE001 - the steps decide what it means
                    yielded = steps.throw(error)
                else:
                    yielded = steps.send(result)
        except StopIteration as end:
            return end.value
        finally:
            self._running -= 1
            steps.close()

    def stop(self) -> None:
        """Cancel all work that waits for a computation, and all that yields one from now on."""
        self._is_stopped = True
        for task in list(self._computing_tasks):
            task.cancel()

    async def in_worker_thread(self, work: Callable[[], T], *, name: str) -> T:
        """Run it in a worker thread, as soon as there is room for it."""
        if isinstance(work, Computation):
            return await self._compute(work, name=name)
        return await self._submit(self.background, work, name=name)

    async def _compute(self, work: Callable[[], T], *, name: str) -> T:
        if self._is_stopped:
            raise asyncio.CancelledError
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._computing_tasks.add(task)
        try:
            return await self._submit(self._computing, work, name=name)
        finally:
            self._computing_tasks.discard(task)

    async def _submit(self, background: Background, work: Callable[[], T], *, name: str) -> T:
        self._running += 1
        try:
            async with self._room:
                while True:
                    try:
                        return await run_in_background(background, work, name=name)
                    except BackgroundFullError:
                        await asyncio.sleep(ROOM_WAIT_S)
        finally:
            self._running -= 1

    def next_turn(self) -> Awaitable[None]:
        """Wait for the next turn, after those that wait already."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._start_next_turn)
        return turn

    def _spawn_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_next_turn(self) -> None:
        self._is_due = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._start_next_turn)

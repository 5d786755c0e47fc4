"""Long work, cut into steps so that one client's large request does not hold up all the others.

Such work is a generator. It yields None where others may have their turn, and a function where it
must wait for the disk or compute for long: the function runs in another thread, its result is
sent back in, its error is raised at the yield. The same generator runs as a whole where nobody
else is to be served: at a start, and in tests.

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
"""Of what takes about ten microseconds each: two milliseconds, which nobody notices."""

ROOM_WAIT_S: Final = 0.02
"""Until work is offered again that the background had no room for."""


class Computation(partial[T]):
    """Work for another thread that touches nothing but its own memory.

    A stop neither begins nor waits for it: nothing comes of it that the next start could miss.
    """


def in_parts(items: Sequence[I], size: int = ITEMS_PER_TURN) -> Iterator[Sequence[I]]:
    """The items in groups; a yield belongs between them."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Pace:
    """Counts items, and says when it is time to give others their turn."""

    __slots__ = ("_done", "_size")

    def __init__(self, size: int = ITEMS_PER_TURN) -> None:
        self._size = size
        self._done = 0

    def is_due(self, count: int = 1) -> bool:
        """To be asked after each item, or several: yield when it says so."""
        self._done += count
        if self._done < self._size:
            return False
        self._done = 0
        return True


async def on_the_loop(steps: StepGenerator[T]) -> T:
    """For coroutines: all steps of work that never asks for another thread."""
    try:
        while True:
            asked = next(steps)
            invariant(asked is None, "steps on the loop asked for another thread")
            await asyncio.sleep(0)
    except StopIteration as end:
        value: T = end.value
        return value


def run_whole(steps: StepGenerator[T]) -> T:
    """All steps at once, blocking work on the spot."""
    try:
        asked = next(steps)
        while True:
            if asked is None:
                asked = steps.send(None)
                continue
            try:
                result = asked()
            except Exception as error:  # noqa: BLE001 - the steps decide what it means
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class Begun:
    """Steps that did not end in their first turn, with what they asked for."""

    __slots__ = ("asked", "steps")

    def __init__(self, steps: StepGenerator[Any], asked: Work | None) -> None:
        self.steps = steps
        self.asked = asked


def begin(steps: StepGenerator[T]) -> T | Begun:
    """The first turn at once, which is all that most work needs; the result, or what is left."""
    try:
        asked = next(steps)
    except StopIteration as end:
        value: T = end.value
        return value
    return Begun(steps, asked)


class CooperativeScheduler:
    """Lets long works take their turns: one of them in each round of the event loop.

    However many there are, whoever else has something to do waits for one step at most.
    """

    def __init__(
        self,
        background: Background,
        spawn: Spawn | None = None,
        *,
        worker_jobs_max: int | None = None,
        computing: Background | None = None,
    ) -> None:
        """`spawn` starts a task that ends with its scope; None: the tasks are kept here.

        `worker_jobs_max` is how many jobs may be in other threads at once, so that some are left.
        `computing` has the threads for computations, if they have their own.
        """
        self.background = background
        self._computing = computing or background
        self._computing_tasks: set[asyncio.Task[Any]] = set()
        self._is_stopped = False
        self.spawn = spawn or self._spawn_here
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._running = 0
        self._room: AbstractAsyncContextManager[None] = (
            asyncio.Semaphore(worker_jobs_max) if worker_jobs_max else nullcontext()
        )

    @property
    def is_busy(self) -> bool:
        """Whether some work is going on."""
        return bool(self._running)

    async def run(self, steps: StepGenerator[T], *, name: str) -> T:
        """Take the steps to their end. A cancelled task leaves a job that began to itself."""
        await self.next()
        begun = begin(steps)
        if not isinstance(begun, Begun):
            return begun
        value: T = await self.go_on(begun, name=name)
        return value

    async def go_on(self, begun: Begun, *, name: str) -> Any:
        """The same for steps that have begun."""
        steps, asked = begun.steps, begun.asked
        self._running += 1
        try:
            while True:
                if asked is None:
                    await self.next()
                    asked = steps.send(None)
                    continue
                try:
                    result = await self.in_worker_thread(asked, name=name)
                except Exception as error:  # noqa: BLE001 - the steps decide what it means
                    asked = steps.throw(error)
                else:
                    asked = steps.send(result)
        except StopIteration as end:
            return end.value
        finally:
            self._running -= 1
            steps.close()

    def stop(self) -> None:
        """End every work that waits for a computation, and each that asks for one from now on."""
        self._is_stopped = True
        for task in list(self._computing_tasks):
            task.cancel()

    async def in_worker_thread(self, work: Callable[[], T], *, name: str) -> T:
        """Run it in another thread, as soon as there is room for it."""
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

    def next(self) -> Awaitable[None]:
        """The turn after those that wait already."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._let_one_go)
        return turn

    def _spawn_here(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _let_one_go(self) -> None:
        self._is_due = False
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        if self._waiting:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._let_one_go)

"""Changes of metadata, one after the other: decide, make durable off the loop, then apply.

A change that has begun continues when its caller gives up waiting: disk and memory must not
diverge.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import GeneratorType
from typing import Any, Generic, NamedTuple, TypeVar, cast

from millstream.controller.image import ClusterImage, ImageChange
from millstream.controller.store import NO_CHANGES, FileChanges, MetadataStore
from millstream.runtime.background import run_in_background
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator

T = TypeVar("T")


class NextImage(NamedTuple):
    """An image and how it differs from the one before."""

    image: ClusterImage
    change: ImageChange


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What to write, and the state once it is written. Without files there is nothing to do."""

    result: T
    files: FileChanges = NO_CHANGES
    following: NextImage | None = None
    after: Callable[[], None] | None = None
    """Changes state other than the image."""


Decide = Callable[[], Decision[T] | StepGenerator[Decision[T]]]
"""At once, or in steps where there is much to decide."""


class _Waiting(NamedTuple):
    """A change, or other steps, waiting in the queue."""

    work: Callable[[], Coroutine[Any, Any, Any]]
    future: asyncio.Future[Any]


class ChangeQueue:
    """All methods run on the loop's thread."""

    def __init__(
        self,
        store: MetadataStore,
        scheduler: CooperativeScheduler,
        make_current: Callable[[NextImage], StepGenerator[None]],
    ) -> None:
        """`make_current` is run when an image is durable, before the caller is answered."""
        self._store = store
        self._scheduler = scheduler
        self._apply_steps = make_current
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False

    async def run(self, decide: Decide[T], *, name: str) -> T:
        """Queue the change and wait for it; returns its result, or raises what it raised.

        `decide` is called when all earlier changes are done.
        """
        return cast("T", await self._queued(partial(self._change, decide, name)))

    async def run_between(self, steps: Callable[[], StepGenerator[T]], *, name: str) -> T:
        """Run steps while no change is under way."""
        return cast("T", await self._queued(lambda: self._scheduler.run(steps(), name=name)))

    async def _queued(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(work, future))
        if not self._is_working:
            self._is_working = True
            self._scheduler.spawn(self._work(), "changes of metadata")
        return await future

    async def _work(self) -> None:
        """One after the other, until none waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.future.cancelled():
                continue  # given up before it began
            try:
                result = await waiting.work()
            except Exception as error:  # noqa: BLE001 - raised to the caller
                end_if_fatal(error)
                _answer(waiting.future, error=error)
            else:
                _answer(waiting.future, result=result)
        self._is_working = False

    async def _change(self, decide: Decide[Any], name: str) -> Any:
        self._store.check_usable()
        decided = decide()
        if isinstance(decided, GeneratorType):
            decided = await self._scheduler.run(decided, name=name)
        decision = cast("Decision[Any]", decided)
        if decision.files.is_empty:
            return decision.result
        # Refused, not queued, when the background pool is full: nothing is changed yet.
        write = partial(self._store.apply, decision.files)
        await run_in_background(self._scheduler.background, write, name=name)
        if decision.after is not None:
            decision.after()
        if decision.following is not None:
            await self._scheduler.run(self._apply_steps(decision.following), name=name)
        return decision.result


def _answer(
    future: asyncio.Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    if future.done():
        return  # the caller no longer waits
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

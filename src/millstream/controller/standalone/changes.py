"""Changes of metadata, one after the other: decide, make durable off the loop, then let it be so.

A change that began goes on when its caller gives up waiting: what is on disk and what is in memory
must not part.
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
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator

T = TypeVar("T")


class NextImage(NamedTuple):
    """An image and how it differs from the one before."""

    image: ClusterImage
    change: ImageChange


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What to write, and what is so once it is written. Without files nothing is to be done."""

    result: T
    files: FileChanges = NO_CHANGES
    following: NextImage | None = None
    after: Callable[[], None] | None = None
    """State besides the image that changes too."""


Decide = Callable[[], Decision[T] | StepGenerator[Decision[T]]]
"""At once, or in steps where there is much to decide."""


class _Waiting(NamedTuple):
    """A change, or other steps, that wait for their turn."""

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
        """`make_current` is taken when an image is durable, before the answer."""
        self._store = store
        self._scheduler = scheduler
        self._apply_steps = make_current
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False

    async def run(self, decide: Decide[T], *, name: str) -> T:
        """Let the change have its turn; its result, or what it raised.

        `decide` is called when all earlier changes are done.
        """
        return cast("T", await self._queued(partial(self._change, decide, name)))

    async def run_between(self, steps: Callable[[], StepGenerator[T]], *, name: str) -> T:
        """Take steps while no change is going on."""
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
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
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
        # Refused, not kept waiting, where the background has no room: nothing is changed yet.
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
        return  # nobody waits any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

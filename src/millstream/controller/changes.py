"""Changes of metadata, one after the other: decide, make durable off the loop, then let it be so.

A change that began goes on when its caller gives up waiting: what is on disk and what is in memory
must not part.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from millstream.controller.image import ClusterImage, ImageChange
from millstream.controller.store import NO_CHANGES, FileChanges, MetadataStore
from millstream.runtime.background import Background, BackgroundFullError, Outcome

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


class _Waiting(NamedTuple):
    """A change that waits for its turn."""

    decide: Callable[[], Decision[Any]]
    future: asyncio.Future[Any]
    name: str


class ChangeQueue:
    """All methods run on the loop's thread."""

    def __init__(
        self,
        store: MetadataStore,
        background: Background,
        make_current: Callable[[NextImage], None],
    ) -> None:
        """`make_current` is called on the loop when an image is durable, before the answer."""
        self._store = store
        self._background = background
        self._make_current = make_current
        self._waiting: deque[_Waiting] = deque()
        self._is_writing = False

    async def run(self, decide: Callable[[], Decision[T]], *, name: str) -> T:
        """Let the change have its turn; its result, or what it raised.

        `decide` is called when all earlier changes are done.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decide, future, name))
        self._go_on()
        return await future

    def _go_on(self) -> None:
        """Begin the next changes, as far as none is being written."""
        while self._waiting and not self._is_writing:
            waiting = self._waiting.popleft()
            if waiting.future.cancelled():
                continue  # given up before it began
            try:
                self._store.check_usable()
                self._begin(waiting, waiting.decide())
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                _answer(waiting.future, error=error)

    def _begin(self, waiting: _Waiting, decision: Decision[Any]) -> None:
        if decision.files.is_empty:
            _answer(waiting.future, result=decision.result)
            return
        self._is_writing = True
        try:
            self._background.submit(
                partial(self._store.apply, decision.files),
                partial(self._written, waiting.future, decision),
                name=waiting.name,
            )
        except BackgroundFullError:
            self._is_writing = False
            raise

    def _written(
        self, future: asyncio.Future[Any], decision: Decision[Any], outcome: Outcome[None]
    ) -> None:
        self._is_writing = False
        try:
            if outcome.error is not None:
                _answer(future, error=outcome.error)
                return
            if decision.after is not None:
                decision.after()
            if decision.following is not None:
                self._make_current(decision.following)
            _answer(future, result=decision.result)
        except Exception as error:  # noqa: BLE001 - of a subscriber; handed to whoever waits
            _answer(future, error=error)
        finally:
            self._go_on()


def _answer(
    future: asyncio.Future[Any], *, result: object = None, error: BaseException | None = None
) -> None:
    if future.done():
        return  # nobody waits any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

"""The controller's decisions, one after the other: decide, write, then apply.

A decision is a pure function of the image that the last one left. The image and the feed advance
only when everything is written: what brokers see is committed. Once the fence, or the session, is
lost nothing more is written and all waiting callers get NotController; what was written by then is
in the nodes, where the next controller finds it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from types import GeneratorType
from typing import Any, NamedTuple, TypeVar, cast

from millstream.controller.cluster.errors import NotController
from millstream.controller.cluster.fenced_writes import FencedWriter
from millstream.controller.cluster.metadata_feed import Feed
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.port import FeedPosition, MetadataDelta
from millstream.controller.cluster.tally import Tally
from millstream.controller.image import ClusterImage, ImageChange
from millstream.model.invariant import invariant
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import StepGenerator, run_on_loop

log = get_logger("millstream.controller.decisions")

T = TypeVar("T")

Decide = Callable[[ClusterImage], Plan[T] | StepGenerator[Plan[T]]]
"""At once, or in steps where there is much to decide."""


class _Waiting(NamedTuple):
    decide: Decide[Any]
    future: asyncio.Future[Any]


class Decisions:
    """The queue of one controller; `run` works on it until deposed. All on the loop's thread."""

    def __init__(self, writer: FencedWriter, tally: Tally, client_log: ClientLog) -> None:
        self._writer = writer
        self._client_log = client_log
        self._tally = tally
        self._feed: Feed | None = None
        self._waiting: deque[_Waiting] = deque()
        self._work = asyncio.Event()
        self._moved = asyncio.Event()
        """Set when the image changes, or at the end; then it is replaced by a new event."""
        self.is_open = False
        """Whether callers are served: everything is read, and unfinished changes are completed."""
        self.is_over = False

    # -- state -----------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The committed image. Raises NotController before everything was read."""
        if self._feed is None:
            raise NotController
        return self._feed.image

    def begin(self, controller_epoch: int, image: ClusterImage) -> None:
        """Everything is read: this is the first image. Brokers do not see it before `open`."""
        invariant(self._feed is None, "a controller loads once")
        self._feed = Feed(controller_epoch, image)

    def open(self) -> None:
        """Make the image visible to brokers and accept decisions."""
        feed = self._feed
        invariant(feed is not None, "a controller opens before it has loaded")
        self._feed = Feed(cast("Feed", feed).controller_epoch, self.image)
        self.is_open = True
        self._notify()

    # -- callers ---------------------------------------------------------------------------

    async def make(self, decide: Decide[T]) -> T:
        """Queue a decision and wait for its result, or what it raised. Raises NotController.

        A decision that has begun is completed even when its caller gives up waiting.
        """
        if self.is_over:
            raise NotController
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(decide, future))
        self._work.set()
        return await future

    async def changes_since(self, position: FeedPosition, *, wait_s: float) -> MetadataDelta:
        """What changed since the position; waits that long for a change."""
        try:
            async with asyncio.timeout(wait_s):
                while not self.is_over and not self._has_changes(position):
                    await self._moved.wait()
        except TimeoutError:
            pass
        if self.is_over or not self.is_open:
            raise NotController
        return cast("Feed", self._feed).since(position)

    def _has_changes(self, position: FeedPosition) -> bool:
        return self.is_open and cast("Feed", self._feed).is_new(position)

    # -- working ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until Deposed, SessionLost or ImageOutdated is raised; then call `depose`."""
        while True:
            while self._waiting:
                await self._take(self._waiting.popleft())
            self._work.clear()
            await self._work.wait()

    async def _take(self, waiting: _Waiting) -> None:
        future = waiting.future
        if future.cancelled():
            return  # given up before it began
        try:
            result = await self._carry_out(waiting.decide)
        except _Refused as refused:
            if not future.done():
                future.set_exception(refused.cause)
            return
        except BaseException:
            # Deposed, lost or cancelled in the middle: the next controller finds what was written.
            if not future.done():
                future.set_exception(NotController())
                future.exception()  # mark as retrieved: the caller may no longer wait
            raise
        if not future.done():
            future.set_result(result)

    async def carry_out(self, decide: Decide[T]) -> T:
        """Carry out a decision before `run`, while loading."""
        try:
            return cast("T", await self._carry_out(decide))
        except _Refused as refused:
            raise refused.cause from None

    async def _carry_out(self, decide: Decide[Any]) -> Any:
        try:
            decided = decide(self.image)
            if isinstance(decided, GeneratorType):
                decided = await run_on_loop(decided)
        except Exception as error:
            end_if_fatal(error)
            raise _Refused(error) from error  # nothing was changed: raised to the caller
        plan = cast("Plan[Any]", decided)
        before = self.image
        if plan.groups:
            await self._writer.write(plan.groups)
        if plan.image is not before:
            self._move(before, plan)
        return plan.result

    def _move(self, before: ClusterImage, plan: Plan[Any]) -> None:
        feed = self._feed
        invariant(feed is not None and feed.image is before, "another decision came between")
        self._count(before, plan.change)
        cast("Feed", feed).add(plan.image, plan.change)
        self._notify()

    def _count(self, before: ClusterImage, change: ImageChange) -> None:
        tally = self._tally
        begun, ended = tally.reassignments_begun, tally.reassignments_ended
        tally.count(before, change)
        if tally.reassignments_begun > begun:
            self._client_log.change(
                log, "partition reassignments started", partitions=tally.reassignments_begun - begun
            )
        if tally.reassignments_ended > ended:
            self._client_log.change(
                log,
                "partition reassignments completed or cancelled",
                partitions=tally.reassignments_ended - ended,
            )

    def _notify(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def depose(self) -> None:
        """Nothing more is decided here, and waiting callers get NotController."""
        self.is_over = True
        self._writer.is_over = True
        while self._waiting:
            future = self._waiting.popleft().future
            if not future.done():
                future.set_exception(NotController())
                future.exception()
        self._notify()


class _Refused(Exception):
    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        super().__init__(str(cause))

"""Permits for work of which little may be done at a time, given out fairly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from millstream.runtime.eviction import oldest_of_largest
from millstream.runtime.fair_queue import FairQueue

K = TypeVar("K")


class TooManyWait(Exception):
    """Others wait for permits, and of all keys this one waited most often."""


class FairPermits(Generic[K]):
    """Of those that wait, the key that had least is next; within a key, the longest waiting.

    As many as that may wait: one more makes the oldest of the key with the most give up.
    """

    def __init__(self, count: int, *, waiting_max: int) -> None:
        self._free = count
        self._waiting_max = waiting_max
        self._waiting: dict[K, dict[asyncio.Future[None], None]] = {}
        self._waiting_count = 0
        self._queue: FairQueue[K] = FairQueue(credit=count)

    @asynccontextmanager
    async def permit(self, key: K) -> AsyncIterator[None]:
        """Raises TooManyWait."""
        await self._acquire(key)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, key: K) -> None:
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, {})[future] = None
        self._waiting_count += 1
        self._queue.add(key)
        if self._waiting_count > self._waiting_max:
            self._refuse_one()
        try:
            await future
        except asyncio.CancelledError:
            if future in self._waiting.get(key, ()):
                self._leave(key, future)
            elif not future.cancelled() and future.exception() is None:
                self._release()  # it was given at the same moment
            raise

    def _refuse_one(self) -> None:
        future = oldest_of_largest(self._waiting.values())
        key = next(one for one, those in self._waiting.items() if future in those)
        self._leave(key, future)
        if not future.done():
            future.set_exception(TooManyWait())

    def _leave(self, key: K, future: "asyncio.Future[None]") -> None:
        futures = self._waiting[key]
        del futures[future]
        self._waiting_count -= 1
        if not futures:
            del self._waiting[key]
            self._queue.discard(key)

    def _release(self) -> None:
        """To the next, if there is one."""
        while self._queue:
            key = self._queue.pop()
            future = next(iter(self._waiting[key]))
            self._leave(key, future)
            self._queue.charge(key, 0.0 if future.done() else 1.0)
            if key in self._waiting:
                self._queue.add(key)
            if not future.done():  # cancelled, and its task has not noticed yet
                future.set_result(None)
                return
        self._free += 1

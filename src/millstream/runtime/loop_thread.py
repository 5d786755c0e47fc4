"""An event loop in a thread of its own, for callers that block.

Made for libraries inside other people's processes: nothing starts before it is needed, the
interpreter's end never waits for it, and a forked child knows that the loop is not its own.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from millstream.model.errors import OperatingError
from millstream.model.invariant import invariant

T = TypeVar("T")

STOP_TIMEOUT_S: Final = 2.0
"""A loop whose callbacks hang is left behind after that; its thread ends with the process."""

_kept: list[object] = []
"""What a child inherited by fork. Destructors would take descriptors out of the epoll instance that
the child shares with its parent, and the parent's loop would never wake up again."""


def keep_forever(inherited: object) -> None:
    """Never destroy it."""
    _kept.append(inherited)


class LoopEnded(OperatingError):
    """The loop was stopped before the work was done."""


class ForkSafeLock:
    """A lock that is free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names in daemon threads.

    The interpreter waits at its end for the threads of asyncio's own executor, and a resolver
    without answer can take minutes.
    """

    async def getaddrinfo(  # type: ignore[override] # typeshed has narrower types
        self,
        host: str | bytes | None,
        port: str | int | None,
        **options: int,
    ) -> Any:
        result: asyncio.Future[Any] = self.create_future()

        def deliver(outcome: Any) -> None:
            if result.done():
                return
            if isinstance(outcome, Exception):
                result.set_exception(outcome)
            else:
                result.set_result(outcome)

        def work() -> None:
            try:
                outcome: Any = socket.getaddrinfo(host, port, **options)
            except Exception as error:  # noqa: BLE001 - raised by the caller
                outcome = error
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self.call_soon_threadsafe(deliver, outcome)

        threading.Thread(target=work, name=f"resolve {host!r}", daemon=True).start()
        return await result


class LoopThread:
    """Started by the constructor."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = _Loop()
        self._waiting: set[Future[Any]] = set()
        self._waiting_lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    @property
    def is_ours(self) -> bool:
        """False in a child that was forked after the start: there is no such thread in it."""
        return self._pid == os.getpid()

    @property
    def is_alive(self) -> bool:
        return self.is_ours and self._thread.is_alive()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            # What came too late to become a task would leave its caller waiting.
            with self._waiting_lock:
                self._ended.set()
                late = list(self._waiting)
            for future in late:
                future.cancel()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result, or what the coroutine raised, with its trace.

        TimeoutError when it takes longer; then, and when the waiting is interrupted (Ctrl-C), the
        coroutine is cancelled. LoopEnded when the loop is stopped meanwhile.
        """
        is_inside = threading.current_thread() is self._thread
        invariant(not is_inside, "a loop would wait for itself")
        future = self._submit(work)
        try:
            return future.result(timeout_s)
        except CancelledError:
            raise LoopEnded("the loop was stopped") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._waiting_lock:
                self._waiting.discard(future)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it without waiting; cancelling the future cancels it. Raises LoopEnded."""
        future = self._submit(work)
        future.add_done_callback(self._waiting.discard)
        return future

    def call(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call it on the loop soon; never waits, and a loop that has ended does nothing."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # closed
            work.close()
            raise LoopEnded("the loop was stopped") from None
        with self._waiting_lock:
            self._waiting.add(future)
        if self._ended.is_set():
            future.cancel()
        return future

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the loop and wait for its thread, but not forever."""
        if not self.is_alive:
            return
        with suppress(RuntimeError):  # it has just ended
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

"""An event loop that waits in the poller of its connections, without an iteration for each event.

asyncio pays for every event with an iteration of its loop: timers are checked, a key becomes a
handle, the handle goes through a queue, and then the same way back. For a client that sends one
request at a time that costs more than the request. Here the loop waits in the poller's own epoll,
in which asyncio's is one descriptor among others; the poller's events are handled at once, and the
wait goes on unless there is something for the loop as well: another descriptor, a timer, or a
callback that was scheduled meanwhile. Nothing of the loop's own is later than before.
"""

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from math import ceil, inf
from time import monotonic as now_s
from typing import Final, Protocol, TypeVarTuple

from millstream.kernels.epoll_shell import CONNECTIONS_READY

Arguments = TypeVarTuple("Arguments")
Ready = list[tuple[selectors.SelectorKey, int]]

_FOREVER_MS: Final = -1


class Poller(Protocol):
    """Waits for events in place of the loop: `kernels.epoll_shell.EpollShell`."""

    def watch_loop(self, descriptor: int) -> None:
        """Wait for the loop's own epoll, too."""

    def wait(self, timeout_ms: int) -> int:
        """CONNECTIONS_READY, LOOP_READY or both; nothing when the time is up, or a signal came."""


class DirectSelector(selectors.EpollSelector):
    """Returns what is ready as any selector does, after the poller's own events were handled."""

    def __init__(self) -> None:
        super().__init__()
        self.has_work = False
        """Whether the loop got something to do while it waited."""
        self.on_error: Callable[[BaseException], None] = _raise
        self._wait: Callable[[int], int] | None = None
        self._handle: Callable[[], None] = lambda: None

    @property
    def is_taken(self) -> bool:
        return self._wait is not None

    def serve(self, poller: Poller, handle: Callable[[], None]) -> None:
        poller.watch_loop(self.fileno())
        self._handle = handle
        self._wait = poller.wait

    def stop_serving(self) -> None:
        self._wait = None

    def select(self, timeout: float | None = None) -> Ready:
        """All but the poller's events. It may return early and empty, as after a signal."""
        wait = self._wait
        if wait is None:
            return super().select(timeout)
        self.has_work = False
        timeout_ms = _FOREVER_MS if timeout is None else ceil(timeout * 1000)
        deadline_s = inf if timeout is None else now_s() + timeout
        while True:
            found = wait(timeout_ms)
            if found & CONNECTIONS_READY:
                self._handle_now()
            if found != CONNECTIONS_READY or self.has_work or self._wait is None:
                break
            if timeout is not None:
                timeout_ms = ceil((deadline_s - now_s()) * 1000)
                if timeout_ms <= 0:
                    break  # a poller that is never idle must not delay timers
        return super().select(0)

    def _handle_now(self) -> None:
        try:
            self._handle()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio does for its callbacks
            self.on_error(error)


class DirectLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with one poller."""

    def __init__(self) -> None:
        self._direct = DirectSelector()
        super().__init__(self._direct)
        self._direct.on_error = self._failed

    def serve(self, poller: Poller, handle: Callable[[], None]) -> bool:
        """Call `handle` when the poller has events; False when the loop already has a poller."""
        if self._direct.is_taken:
            return False
        self._direct.serve(poller, handle)
        return True

    def stop_serving(self) -> None:
        """To be called before the poller is closed."""
        self._direct.stop_serving()

    # The loop found nothing to do and waits; these give it something.

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *arguments: *Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self._direct.has_work = True
        return super().call_soon(callback, *arguments, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *arguments: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self._direct.has_work = True
        return super().call_at(when, callback, *arguments, context=context)

    def stop(self) -> None:
        self._direct.has_work = True
        super().stop()

    def _failed(self, error: BaseException) -> None:
        message = "handling the poller's events failed"
        self.call_exception_handler({"message": message, "exception": error})


def _raise(error: BaseException) -> None:
    raise error

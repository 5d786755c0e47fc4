"""The event loop's timers, as a seam."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from millstream.runtime.clock import Clock


class Timers(Protocol):
    """Implemented by the loop's own timers, and by tests that move time by hand."""

    def monotonic_s(self) -> float: ...

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        """Returns a handle with `cancel()`."""


class LoopTimers:
    """The running loop's timers, for delayed operations."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self.monotonic_s: Callable[[], float] = clock.monotonic_s

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_s, callback, *arguments)

"""A node's clocks in virtual time: one monotonic for all, one wall clock each that may jump."""

import asyncio
from typing import Final

WALL_START_MS: Final = 1_700_000_000_000
"""Where simulated wall clocks begin: a date like those that records carry."""


class SimClock:
    """Monotonic time of the loop; wall time beside it, moved by `jump_wall`."""

    __slots__ = ("_loop", "_wall_start_ms")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, wall_start_ms: int = WALL_START_MS
    ) -> None:
        self._loop = loop
        self._wall_start_ms = wall_start_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def wall_ms(self) -> int:
        return self._wall_start_ms + int(self._loop.time() * 1000)

    def jump_wall(self, by_ms: int) -> None:
        """What an operator or a time server does; monotonic time does not notice."""
        self._wall_start_ms += by_ms


class ManualClock:
    """Clocks without a loop, moved by hand: for synchronous code that takes a clock."""

    __slots__ = ("_monotonic_s", "_wall_ms")

    def __init__(self, *, wall_ms: int = WALL_START_MS) -> None:
        self._monotonic_s = 0.0
        self._wall_ms = wall_ms

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_ms(self) -> int:
        return self._wall_ms

    def advance(self, by_ms: int) -> None:
        self._monotonic_s += by_ms / 1000
        self._wall_ms += by_ms

    def jump_wall(self, by_ms: int) -> None:
        self._wall_ms += by_ms

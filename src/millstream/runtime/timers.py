"""The event loop's timers, as a seam."""

from collections.abc import Callable
from typing import Any, Protocol


class Timers(Protocol):
    """Implemented by the loop's own timers, and by tests that move time by hand."""

    def monotonic_s(self) -> float: ...

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
        """Returns a handle with `cancel()`."""

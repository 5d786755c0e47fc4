"""Waiting for another process: on a condition, with a limit, never for a fixed time."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from millstream.runtime.clock import SystemClock

WAIT_TIMEOUT_S: Final = 60.0
POLL_INTERVAL_S: Final = 0.02

T = TypeVar("T")


def wait_for(what: str, attempt: Callable[[], T | None]) -> T:
    """Retry until the attempt returns a value."""
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + WAIT_TIMEOUT_S
    pause = threading.Event()
    while (answer := attempt()) is None:
        if clock.monotonic_s() > deadline_s:
            raise TimeoutError(f"waited {WAIT_TIMEOUT_S} s: {what}")
        pause.wait(POLL_INTERVAL_S)
    return answer


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Poll until the condition holds."""
    wait_for(what, lambda: True if holds() else None)

"""Waiting for a condition in real time, never for a fixed delay."""

import time
from collections.abc import Callable

from millstream.testing.chaos.log.reader import ChaosFailed


def wait_until(
    condition: Callable[[], object], what: str, *, timeout_s: float, pause_s: float = 0.01
) -> None:
    """Return when the condition holds; raise ChaosFailed by name when it does not in time."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise ChaosFailed(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(pause_s)

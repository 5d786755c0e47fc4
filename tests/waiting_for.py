"""Waiting for a condition instead of sleeping for a guess."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, *, timeout_s: float = 20.0) -> None:
    """Return when the condition holds; fail by name when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.01)

"""Waiting for a condition instead of sleeping for a guess."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, timeout_s: float = 20.0) -> T:
    """Wait for the condition and return its value; fail with `what` when it takes too long."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.01)
    return found

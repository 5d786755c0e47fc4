"""A forked child of the test's process, which ends in any case."""

import os
import signal
from collections.abc import Callable
from typing import Final

CHILD_TIME_S: Final = 20
"""A child that hangs would keep the output of the test run open forever."""


def holds_in_child(check: Callable[[], object]) -> bool:
    """Whether the check is true in a child; false also when it raises or hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_TIME_S)
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0

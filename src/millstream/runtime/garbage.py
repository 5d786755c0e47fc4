"""The garbage collector, kept out of the way of imports, and modules out of its way."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

FREEZES_MAX: Final = 4
"""Of one process. Each keeps what was garbage at the time forever, however little it is."""

_frozen_modules: list[int] = []
"""How many were loaded at each freeze."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Imports make many objects and no garbage, and collections would take a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def freeze_modules() -> None:
    """Let the collector skip what is loaded: modules live as long as the process.

    For processes that collect by themselves very often: Spark's Python workers do it after every
    task, and what they walk through each time (some ten milliseconds' worth) is modules. Call it
    when a task is done; it has an effect only when modules were loaded since.
    """
    count = len(sys.modules)
    if len(_frozen_modules) < FREEZES_MAX and (not _frozen_modules or _frozen_modules[-1] < count):
        _frozen_modules.append(count)
        gc.collect()  # what is garbage now would stay
        gc.freeze()

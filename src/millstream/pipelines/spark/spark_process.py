"""Being a guest in a process of Spark's, on the driver.

Readers and writers are made in processes that Spark keeps for planning and for commits. They are
used once for every query, those of a stream's sink once for every micro-batch, and each time they
look for garbage afterwards, through everything that is loaded.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from millstream.runtime.garbage import collector_paused, freeze_modules

_IS_USED_AGAIN: Final = "SPARK_REUSE_WORKER"
"""Spark sets it where a process collects after each use, and nowhere else."""


@contextmanager
def loading() -> Iterator[None]:
    """Around imports, and around what is made with them."""
    with collector_paused():
        yield
    if _IS_USED_AGAIN in os.environ:
        freeze_modules()

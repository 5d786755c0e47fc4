"""Keeps garbage collection cheap in Spark's Python processes on the driver.

Readers and writers are created in processes that Spark keeps for planning and for commits. They
are used once for every query, those of a stream's sink once for every micro-batch, and each time
they collect garbage afterwards, over everything that is loaded.
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
    """Pause the collector during imports, and exempt the imported modules from collections."""
    with collector_paused():
        yield
    if _IS_USED_AGAIN in os.environ:
        freeze_modules()

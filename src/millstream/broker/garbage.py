"""Schedules full garbage collections, each of which stops the process while it runs.

Python would start one whenever the number of objects has grown by a quarter: while a topic with
thousands of partitions is created, or because of one large request, and each would scan all
objects. So they are scheduled here: at intervals, while no large request is served, over objects
that are new since the last one. The survivors are frozen. Most objects are freed with their last
reference, frozen or not; for reference cycles, which connections are, everything is scanned once in
a while.
"""

import gc
from collections.abc import Callable
from typing import Final

CHECK_INTERVAL_S: Final = 10.0

YOUNG_PASSES_MIN: Final = 10
"""Young collections before a full one is worth it: some 70,000 new objects survived."""

YOUNG_PASSES_MAX: Final = 1_000
"""Young collections after which Python starts a full one itself: seven million objects."""

FULL_COLLECTION_EVERY: Final = 360
"""Checks between two collections that include the frozen objects: an hour."""

CHECKS_POSTPONED_MAX: Final = 6
"""Checks in a row that large requests may postpone: a minute."""

_YOUNGEST: Final = 700
_YOUNG: Final = 10
"""Python's defaults."""


class Garbage:
    """For a process that runs only a broker; call `begin` when it has started."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """`is_busy` says whether a large request is being served, with many objects of its own."""
        self._is_busy = is_busy
        self._checks = 0
        self._postponed = 0
        self._is_begun = False

    def begin(self) -> None:
        """Freeze what the start created: it stays forever."""
        self._is_begun = True
        gc.set_threshold(_YOUNGEST, _YOUNG, YOUNG_PASSES_MAX)
        self.freeze()

    def freeze(self) -> None:
        """Exclude all present objects from collections: thousands of partitions were created."""
        if self._is_begun:
            gc.freeze()

    def collect_if_due(self) -> None:
        """Collect if enough objects survived; called every `CHECK_INTERVAL_S`."""
        if not self._is_begun:
            return
        if self._is_busy() and self._postponed < CHECKS_POSTPONED_MAX:
            self._postponed += 1
            return
        self._checks += 1
        self._postponed = 0
        is_full = self._checks % FULL_COLLECTION_EVERY == 0
        if is_full:
            gc.unfreeze()
        if is_full or gc.get_count()[2] >= YOUNG_PASSES_MIN:
            gc.collect()
            gc.freeze()

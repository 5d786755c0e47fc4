"""When the garbage collector looks at everything, which stops the process meanwhile.

Left to itself it does so whenever a quarter more objects have come: while a topic with thousands of
partitions is made, or because of one large request, and each time it looks at all that is there. So
here it is told when: now and then, while no large request is served, at what came since the last
time. What is there then is put aside. Most things go when the last reference does, put aside or
not; for those in circles, which connections are, all is looked at again once in a while.
"""

import gc
from collections.abc import Callable
from typing import Final

LOOK_S: Final = 10.0

YOUNG_PASSES_MIN: Final = 10
"""Passes over young objects before a look is worth it: some 70,000 objects came and stayed."""

YOUNG_PASSES_MAX: Final = 1_000
"""Passes after which the collector looks by itself, whatever was planned: seven million objects."""

WHOLE_LOOKS_EVERY: Final = 360
"""Looks until one takes in all that was put aside: an hour."""

LOOKS_PUT_OFF_MAX: Final = 6
"""Looks that large requests may keep from happening, one after the other: a minute."""

_YOUNGEST: Final = 700
_YOUNG: Final = 10
"""Python's own."""


class Garbage:
    """For a process that is a broker and nothing else; `begin` when it has started."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        """`is_busy` tells whether something large is going on, with many objects of its own."""
        self._is_busy = is_busy
        self._looks = 0
        self._put_off = 0
        self._is_begun = False

    def begin(self) -> None:
        """What the start made stays for ever."""
        self._is_begun = True
        gc.set_threshold(_YOUNGEST, _YOUNG, YOUNG_PASSES_MAX)
        self.put_aside()

    def put_aside(self) -> None:
        """What is there now will stay: thousands of partitions were made."""
        if self._is_begun:
            gc.freeze()

    def look(self) -> None:
        """To be called every `LOOK_S`."""
        if not self._is_begun:
            return
        if self._is_busy() and self._put_off < LOOKS_PUT_OFF_MAX:
            self._put_off += 1
            return
        self._looks += 1
        self._put_off = 0
        is_whole = self._looks % WHOLE_LOOKS_EVERY == 0
        if is_whole:
            gc.unfreeze()
        if is_whole or gc.get_count()[2] >= YOUNG_PASSES_MIN:
            gc.collect()
            gc.freeze()

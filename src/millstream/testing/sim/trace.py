"""The events of a simulated run, in order, and their fingerprint.

Two runs of one seed must give the same fingerprint; a difference means that something outside
the seams (a set's order, an address, a clock, a thread) took a decision.
"""

import hashlib
from typing import Final

_EVENTS_PER_BLOCK: Final = 4096
"""Events are folded into the fingerprint in blocks, so that a long run keeps little memory."""


class Trace:
    """An append-only list of events, hashed in blocks.

    An event is a tuple of numbers, strings and bytes; what would print an address is no event.
    """

    __slots__ = ("_hash", "_keep_all", "events", "folded_count")

    def __init__(self, *, keep_all: bool = False) -> None:
        self.events: list[tuple[object, ...]] = []
        self.folded_count = 0
        self._keep_all = keep_all
        self._hash = hashlib.blake2b(digest_size=16)

    def note(self, *event: object) -> None:
        self.events.append(event)
        if len(self.events) >= _EVENTS_PER_BLOCK and not self._keep_all:
            self._hash.update(repr(self.events).encode())
            self.folded_count += len(self.events)
            self.events.clear()

    def __len__(self) -> int:
        return self.folded_count + len(self.events)

    def digest(self) -> str:
        """The fingerprint of everything noted so far; noting may go on."""
        until_now = self._hash.copy()
        until_now.update(repr(self.events).encode())
        return until_now.hexdigest()

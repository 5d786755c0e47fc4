"""Transactions that still hold back read_committed readers of a partition, by their offsets.

Two kinds: those without a marker, and those whose marker is above the high watermark. A new leader
may not have such a marker, so the transaction is not decided yet.
"""

from bisect import bisect_left, insort

from millstream.model.ids import Offset
from millstream.model.invariant import invariant


class UndecidedTransactions:
    """First offsets, ascending; one transaction begins at one offset."""

    __slots__ = ("_marked", "_marked_firsts", "_open_firsts")

    def __init__(self) -> None:
        self._open_firsts: list[Offset] = []
        self._marked: list[tuple[Offset, Offset]] = []
        """(marker, first offset) of those with an unreplicated marker, in marker order.

        Short, and in every partition of a broker: an empty deque has 700 bytes.
        """
        self._marked_firsts: list[Offset] = []

    @property
    def first_open(self) -> Offset | None:
        """Where the oldest transaction without a marker begins."""
        return self._open_firsts[0] if self._open_firsts else None

    @property
    def first(self) -> Offset | None:
        """Where the oldest transaction of either kind begins."""
        if not self._marked_firsts:
            return self._open_firsts[0] if self._open_firsts else None
        if not self._open_firsts:
            return self._marked_firsts[0]
        return min(self._open_firsts[0], self._marked_firsts[0])

    def begin(self, first_offset: Offset) -> None:
        """A transaction began at the end of the log."""
        invariant(
            not self._open_firsts or first_offset > self._open_firsts[-1],
            "I-03 transactions out of order",
            first_offset=first_offset,
        )
        self._open_firsts.append(first_offset)

    def load(self, first_offset: Offset) -> None:
        """A snapshot names an open transaction; snapshots are not in offset order."""
        insort(self._open_firsts, first_offset)

    def mark(self, first_offset: Offset, marker_offset: Offset) -> None:
        """The transaction's marker is in the log."""
        _remove(self._open_firsts, first_offset)
        invariant(
            not self._marked or marker_offset > self._marked[-1][0],
            "I-03 markers out of order",
            marker_offset=marker_offset,
        )
        self._marked.append((marker_offset, first_offset))
        insort(self._marked_firsts, first_offset)

    def release_below(self, offset: Offset) -> None:
        """Markers below the high watermark (or the log start) are on every possible leader."""
        released = 0
        while released < len(self._marked) and self._marked[released][0] < offset:
            _remove(self._marked_firsts, self._marked[released][1])
            released += 1
        if released:
            del self._marked[:released]

    def clear(self) -> None:
        self._open_firsts.clear()
        self._marked.clear()
        self._marked_firsts.clear()


def _remove(ascending: list[Offset], offset: Offset) -> None:
    at = bisect_left(ascending, offset)
    invariant(
        at < len(ascending) and ascending[at] == offset,
        "I-24 a transaction ended that had not begun",
        offset=offset,
    )
    del ascending[at]

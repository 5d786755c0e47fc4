"""The segments of one log in offset order."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from millstream.model.ids import Offset
from millstream.model.invariant import invariant
from millstream.storage.segments.segment import Segment


class Segments:
    """Never empty once the log is open; the last one is the active segment."""

    __slots__ = ("_all", "_bases", "removals")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self.removals = 0
        """Grows whenever segments leave the log: a list of them taken before is outdated."""
        self._all = list(segments)
        self._bases = [segment.base_offset for segment in self._all]
        self._check_order()

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, segment: Segment) -> bool:
        number = bisect_right(self._bases, segment.base_offset) - 1
        return number >= 0 and self._all[number] is segment

    @property
    def active(self) -> Segment:
        return self._all[-1]

    @property
    def closed(self) -> list[Segment]:
        """All but the active one, oldest first."""
        return self._all[:-1]

    def add(self, segment: Segment) -> None:
        """Make it the active one."""
        invariant(
            not self._bases or segment.base_offset > self._bases[-1],
            "I-03 a new segment must start after the last",
            new=segment.base_offset,
        )
        self._all.append(segment)
        self._bases.append(segment.base_offset)

    def number_at(self, offset: Offset) -> int:
        """Index of the segment that holds `offset`, or of the first when it lies before all."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def at(self, offset: Offset) -> Segment:
        return self._all[self.number_at(offset)]

    def from_number(self, number: int) -> Iterator[Segment]:
        """From that one on; lazily, a log may have thousands and a read needs one."""
        while number < len(self._all):
            yield self._all[number]
            number += 1

    def end_of(self, segment: Segment) -> Offset | None:
        """Base offset of the segment after it; None for the active one."""
        number = self.number_at(segment.base_offset) + 1
        return self._bases[number] if number < len(self._bases) else None

    def remove(self, segments: Sequence[Segment]) -> None:
        gone = {id(segment) for segment in segments}
        self.removals += 1
        self._all = [segment for segment in self._all if id(segment) not in gone]
        self._bases = [segment.base_offset for segment in self._all]

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put `new` where the run `old` was; compaction's swap."""
        invariant(
            bool(old) and old[-1] is not self.active and all(one in self for one in old),
            "I-02 only closed segments of this log can be replaced",
            new=new.base_offset,
        )
        self.remove(old)
        number = bisect_right(self._bases, new.base_offset)
        self._all.insert(number, new)
        self._bases.insert(number, new.base_offset)
        self._check_order()

    def _check_order(self) -> None:
        invariant(
            all(map(int.__lt__, self._bases, self._bases[1:])),
            "I-03 segments out of order",
            bases=self._bases,
        )

"""The findings of an offline scan as messages, of each file no more than a person can read."""

from dataclasses import dataclass, field
from typing import Final

from millstream.kernels.errors import Reason
from millstream.model.ids import Offset

PROBLEMS_PER_FILE_MAX: Final = 10
"""Listed in full; one bad sector can damage thousands of entries, and the first ones suffice."""


def describe_damage(reason: Reason, position: int) -> str:
    """What is wrong with the batch at `position`; without a reason the file just ends."""
    is_cut = reason in (Reason.NONE, Reason.SHORT)
    return f"{'the file ends inside a batch' if is_cut else reason.text} at byte {position}"


@dataclass(slots=True)
class SegmentScan:
    """What one segment's log holds."""

    base_offset: Offset
    size_bytes: int
    batch_count: int = 0
    record_count: int = 0
    last_offset: int = -1
    max_timestamp_ms: int = -1


@dataclass(slots=True)
class _FileProblems:
    messages: list[str] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class ScanReport:
    """Segments in order, epochs as the batches have them, and the problems."""

    segments: list[SegmentScan] = field(default_factory=list)
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is unusual and harmless: the next start deals with it."""
    _found: dict[str, _FileProblems] = field(default_factory=dict)

    def add_problem(self, path: str, what: str) -> None:
        found = self._found.setdefault(path, _FileProblems())
        found.count += 1
        if found.count <= PROBLEMS_PER_FILE_MAX:
            found.messages.append(f"{path}: {what}")

    def add_note(self, path: str, what: str) -> None:
        self.notes.append(f"{path}: {what}")

    @property
    def problem_count(self) -> int:
        """All of them, also those that are not listed."""
        return sum(found.count for found in self._found.values())

    @property
    def problems(self) -> list[str]:
        """File by file, the first few of each and how many more there are."""
        lines: list[str] = []
        for path, found in self._found.items():
            lines += found.messages
            if found.count > len(found.messages):
                lines.append(f"{path}: and {found.count - len(found.messages):,} more")
        return lines

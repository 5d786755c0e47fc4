"""The closed segments that a cleaning reads, as values that can be passed to another thread."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from millstream.kernels.errors import Reason
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset
from millstream.model.limits import SEGMENT_OFFSET_SPAN_MAX, SEGMENT_POSITION_MAX
from millstream.runtime.disk import Disk
from millstream.storage.segments.file_walk import FileWalk, WalkStep
from millstream.storage.throttle import CancelFlag, Throttle

_TIME_INDEX_ENTRY_BYTES: Final = 12
"""The larger of the two kinds of index entries."""


class Source(NamedTuple):
    """One closed segment."""

    base_offset: Offset
    end_offset: Offset
    """Base offset of the next one."""
    size_bytes: int
    path: str


class OutputLimits(NamedTuple):
    """How large a segment may become."""

    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int


class Pacing(NamedTuple):
    """What the thread checks while it works: its rate, and whether it is cancelled."""

    throttle: Throttle
    cancel: CancelFlag


def walk(disk: Disk, source: Source, pacing: Pacing) -> Iterator[WalkStep]:
    """All batches of the segment, many at a time, checked: what is rewritten gets a new CRC.

    Raises CorruptRecords unless every byte belongs to a valid batch, and CleaningCancelled.
    """
    with disk.open_read(source.path) as file:
        steps = FileWalk(file, start=0, stop=source.size_bytes, check_crc=True)
        done = 0
        for step in steps:
            pacing.throttle.spend(steps.valid_end - done, pacing.cancel)
            done = steps.valid_end
            yield step
        if steps.valid_end != source.size_bytes:
            reason = (steps.reason or Reason.SHORT).text
            raise CorruptRecords(f"{source.path}: {reason} at byte {steps.valid_end}")


def group_sources(sources: Sequence[Source], limits: OutputLimits) -> list[list[Source]]:
    """Neighbours that fit into one segment together, so that segments do not shrink forever."""
    groups: list[list[Source]] = []
    size_bytes = 0
    for source in sources:
        if groups and _fits(groups[-1], source, size_bytes + source.size_bytes, limits):
            groups[-1].append(source)
            size_bytes += source.size_bytes
        else:
            groups.append([source])
            size_bytes = source.size_bytes
    return groups


def _fits(group: list[Source], source: Source, size_bytes: int, limits: OutputLimits) -> bool:
    entry_count = size_bytes // (limits.index_interval_bytes + 1) + 1
    return (
        size_bytes <= min(limits.segment_bytes, SEGMENT_POSITION_MAX)
        and entry_count * _TIME_INDEX_ENTRY_BYTES <= limits.segment_index_bytes
        and source.end_offset - 1 - group[0].base_offset <= SEGMENT_OFFSET_SPAN_MAX
    )

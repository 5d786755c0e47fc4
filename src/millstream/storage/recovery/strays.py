"""Segment files that do not continue their log: found at a start and set aside, never deleted.

A copy that went wrong, a restored backup or another program can leave a file with the name of a
segment. If it were adopted it would hide the records that the log really has there, or move the
log's end to where nothing was ever written. What is in it may be the only copy of some records.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.kernels.errors import Reason
from millstream.model.ids import Offset
from millstream.runtime.disk import Disk
from millstream.storage import names
from millstream.storage.segments.segment import Segment

TORN_HEAD: Final = Struct(">q8xb6xi")
"""The front of a batch: base offset, magic, last offset delta."""
MAGIC: Final = 2


def find_strays(segments: Sequence[Segment], *, active_base: Offset | None) -> list[Segment]:
    """Those of a log's segment files, in offset order, that cannot belong to it.

    `active_base` is where the newest segment of a clean stop begins, or more; None where that is
    not known. Recovery compares each segment with the end of the one before. Here that is done
    only for those that are suspect, because it takes a read: empty files before the newest one,
    and files beyond `active_base`.
    """
    strays: list[Segment] = []
    before: Segment | None = None
    for segment in segments:
        is_empty = not segment.size_bytes and segment is not segments[-1]
        is_beyond = active_base is not None and segment.base_offset > active_base
        if before is not None and (is_empty or is_beyond):
            end = end_of_batches(before) or before.base_offset
            if end > segment.base_offset or (is_beyond and end < segment.base_offset):
                strays.append(segment)
                continue
        before = segment
    return strays


def end_of_batches(segment: Segment, position: int = 0) -> Offset | None:
    """The offset after the last batch from `position` on whose header can be read; contents are
    not checked.
    """
    end: Offset | None = None
    for step in segment.walk(position):
        end = Offset(step.last_offset + 1)
    return end


def end_of_cut(segment: Segment, position: int, expected: Offset) -> Offset | None:
    """The offset after the last record from `position` on, which was in the log and is cut off.

    `expected` is the first offset there. The last batch may be torn: what its header says counts,
    if it continues the log.
    """
    walk, end = segment.walk(position), expected
    for step in walk:
        end = Offset(step.last_offset + 1)
    head = segment.log.open().read_at(walk.valid_end, TORN_HEAD.size)
    if walk.reason is Reason.SHORT and len(head) == TORN_HEAD.size:
        base, magic, last_delta = TORN_HEAD.unpack(head)
        if base == end and magic == MAGIC and last_delta >= 0:
            end = Offset(base + last_delta + 1)
    return end if end != expected else None


def set_aside(disk: Disk, segment: Segment) -> str:
    """Rename the segment's file so that no start finds it, and remove its indexes, which can be
    built again; the new name. The caller syncs the directory.
    """
    directory, _, _ = segment.log.path.rpartition("/")
    segment.forget()
    for path in segment.file_paths()[1:]:
        if disk.exists(path):
            disk.remove(path)
    target = _unused(disk, segment.log.path + names.STRAY)
    disk.rename(segment.log.path, target)
    return target.removeprefix(f"{directory}/")


def _unused(disk: Disk, path: str) -> str:
    number = 1
    candidate = path
    while disk.exists(candidate):
        number += 1
        candidate = f"{path}{number}"
    return candidate

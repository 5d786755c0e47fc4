"""The offline scan of a partition directory: everything that must hold of its files (I-10).

It reads and changes nothing, trusts no index, and reports all it finds instead of stopping at
the first. Tests run it after every crash; operators run it as `millstream log verify`.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from millstream.kernels.batches import (
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.kernels.errors import Reason
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from millstream.runtime.disk import Disk, read_whole
from millstream.storage import names
from millstream.storage.checkpoints import CorruptCheckpoint
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.file_walk import FileWalk, WalkStep

_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


@dataclass(slots=True)
class SegmentScan:
    """What one segment's log holds."""

    base_offset: Offset
    size_bytes: int
    batch_count: int = 0
    record_count: int = 0
    last_offset: int = -1
    max_timestamp_ms: int = -1
    batch_ends: dict[int, int] = field(default_factory=dict)
    """Position of each batch and its last offset."""
    max_timestamps: dict[int, int] = field(default_factory=dict)
    """Last offset of each batch and the largest timestamp up to and including it."""


@dataclass(slots=True)
class ScanReport:
    """Segments in order, epochs as the batches tell them, and every problem found."""

    segments: list[SegmentScan] = field(default_factory=list)
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def scan_partition(disk: Disk, directory: str) -> ScanReport:
    """Check every file of the partition."""
    report = ScanReport()
    parsed = [names.parse_segment_file(name) for name in disk.list_directory(directory)]
    final = {(one[0], one[1]) for one in parsed if one is not None and not one[2]}
    next_offset = 0
    for base in sorted(base for base, kind in final if kind == names.LOG):
        if base < next_offset:
            report.problems.append(f"segment {base} begins before {next_offset}, where one ends")
        scan = _scan_log(disk, directory, base, report)
        report.segments.append(scan)
        next_offset = max(next_offset, base, scan.last_offset + 1)
        if (base, names.OFFSET_INDEX) in final:
            _check_offset_index(disk, directory, scan, report)
        if (base, names.TIME_INDEX) in final:
            _check_time_index(disk, directory, scan, report)
    _check_epochs(disk, directory, report)
    return report


def _scan_log(disk: Disk, directory: str, base: Offset, report: ScanReport) -> SegmentScan:
    path = names.segment_path(directory, base, names.LOG)
    with disk.open_read(path) as file:
        scan = SegmentScan(base, file.size(), last_offset=base - 1)
        walk = FileWalk(file, start=0, stop=scan.size_bytes, check_crc=True)
        for step in walk:
            _note_batches(path, scan, step, report)
        if walk.valid_end != scan.size_bytes:
            cause = (walk.reason or Reason.SHORT).name
            report.problems.append(f"{path}: {cause} batch at {walk.valid_end}")
    return scan


def _note_batches(path: str, scan: SegmentScan, step: WalkStep, report: ScanReport) -> None:
    rows = step.rows
    for row in range(0, len(rows), ROW_FIELDS):
        position = rows[row + POSITION] + step.shift
        first, last = rows[row + BASE_OFFSET], rows[row + LAST_OFFSET]
        if first <= scan.last_offset:
            report.problems.append(f"{path}: offset {first} at {position} after {scan.last_offset}")
        epoch = rows[row + LEADER_EPOCH]
        known = report.epoch_starts[-1][0] if report.epoch_starts else NO_LEADER_EPOCH
        if epoch < known:
            report.problems.append(f"{path}: epoch {epoch} at {position} after {known}")
        elif epoch > known:
            report.epoch_starts.append((epoch, first))
        scan.last_offset = last
        scan.batch_count += 1
        scan.record_count += rows[row + RECORD_COUNT]
        if rows[row + RECORD_COUNT]:  # what compaction emptied has no record to find by time
            scan.max_timestamp_ms = max(scan.max_timestamp_ms, rows[row + MAX_TIMESTAMP])
        scan.batch_ends[position] = last
        scan.max_timestamps[last] = scan.max_timestamp_ms


def _check_offset_index(disk: Disk, directory: str, scan: SegmentScan, report: ScanReport) -> None:
    path = names.segment_path(directory, scan.base_offset, names.OFFSET_INDEX)
    before = (-1, -1)
    for relative, position in _entries(disk, path, _OFFSET_ENTRY, report):
        if not (relative > before[0] and position > before[1]):
            report.problems.append(f"{path}: ({relative}, {position}) after {before}")
        if scan.batch_ends.get(position) != scan.base_offset + relative:
            report.problems.append(
                f"{path}: no batch with last offset {scan.base_offset + relative} at {position}"
            )
        before = (relative, position)


def _check_time_index(disk: Disk, directory: str, scan: SegmentScan, report: ScanReport) -> None:
    path = names.segment_path(directory, scan.base_offset, names.TIME_INDEX)
    before = (-1, -1)
    for timestamp_ms, relative in _entries(disk, path, _TIME_ENTRY, report):
        if not (timestamp_ms > before[0] and relative > before[1]):
            report.problems.append(f"{path}: ({timestamp_ms}, {relative}) after {before}")
        if scan.max_timestamps.get(scan.base_offset + relative) != timestamp_ms:
            report.problems.append(
                f"{path}: {timestamp_ms} is not the largest timestamp up to offset "
                f"{scan.base_offset + relative}"
            )
        before = (timestamp_ms, relative)


def _entries(disk: Disk, path: str, entry: Struct, report: ScanReport) -> list[tuple[int, ...]]:
    raw = read_whole(disk, path)
    if len(raw) % entry.size:
        report.problems.append(f"{path}: {len(raw)} bytes is no whole number of entries")
        raw = raw[: len(raw) - len(raw) % entry.size]
    return list(entry.iter_unpack(raw))


def _check_epochs(disk: Disk, directory: str, report: ScanReport) -> None:
    """Every epoch that batches show must be in the file, with a start that fits them."""
    path = f"{directory}/{names.LEADER_EPOCHS}"
    try:
        epochs = LeaderEpochs.load(disk, path)
    except CorruptCheckpoint as error:
        report.problems.append(str(error))
        return
    entries = epochs.entries()
    if not entries:
        return  # not written yet; loading rebuilds it from the batches
    for epoch, start in report.epoch_starts:
        known = epochs.epoch_at(Offset(start))
        # Below the first entry lies what DeleteRecords hid; above the latest what is unflushed.
        if (
            start >= entries[0].start_offset
            and epoch <= epochs.latest
            and known != LeaderEpoch(epoch)
        ):
            report.problems.append(f"{path}: offset {start} is of epoch {epoch}, not {known}")

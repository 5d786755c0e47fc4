"""The offline scan of a partition directory: everything that must hold of its files (I-10).

It reads and changes nothing, trusts no index, and reports all it finds instead of stopping at
the first. Tests run it after every crash; operators run it as `millstream log verify`. A problem
is what a start would refuse, repair or lose; a note is what it passes over without harm.
"""

from contextlib import ExitStack

from millstream.kernels.batches import (
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from millstream.runtime.disk import Disk, read_whole
from millstream.storage import names
from millstream.storage.directories.checkpoints import CorruptCheckpoint, read_offsets
from millstream.storage.directories.log_directory import CHECKPOINTS
from millstream.storage.directories.partition_metadata import (
    CorruptPartitionMetadata,
    read_topic_id,
)
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.producers.snapshot import CorruptSnapshot, decode
from millstream.storage.scan.index import IndexCheck, OffsetIndexCheck, TimeIndexCheck
from millstream.storage.scan.report import ScanReport, SegmentScan, describe_damage
from millstream.storage.segments.file_walk import FileWalk, WalkStep
from millstream.storage.segments.sparse_index import IndexDamaged
from millstream.storage.segments.txn_index import TransactionIndex

__all__ = ["ScanReport", "SegmentScan", "scan_checkpoints", "scan_partition"]


def scan_partition(disk: Disk, directory: str) -> ScanReport:
    """Check every file of the partition."""
    return _PartitionScan(disk, directory).run()


def scan_checkpoints(disk: Disk, directory: str) -> ScanReport:
    """Check the offset checkpoints of a log directory."""
    report = ScanReport()
    for name in CHECKPOINTS:
        path = f"{directory}/{name}"
        try:
            read_offsets(disk, path)
        except CorruptCheckpoint as error:
            _report_checkpoint(disk, path, error, report)
    return report


class _PartitionScan:
    """One run over the files of a partition."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._report = ScanReport()
        parsed = [names.parse_segment_file(name) for name in disk.list_directory(directory)]
        self._final = {(one[0], one[1]) for one in parsed if one is not None and not one[2]}

    def run(self) -> ScanReport:
        bases = self._bases_of(names.LOG)
        next_offset = 0
        for base in bases:
            if base < next_offset:
                problem = f"begins before offset {next_offset}, where the segment before it ends"
                self._report.add_problem(self._path(base, names.LOG), problem)
            scan = self._scan_log(base, is_newest=base == bases[-1])
            self._report.segments.append(scan)
            next_offset = max(next_offset, base, scan.last_offset + 1)
            if (base, names.TXN_INDEX) in self._final:
                self._check_txn_index(base)
        self._check_epochs()
        for base in self._bases_of(names.SNAPSHOT):
            self._check_snapshot(base)
        self._check_metadata()
        return self._report

    def _bases_of(self, kind: str) -> list[Offset]:
        return sorted(base for base, found in self._final if found == kind)

    def _path(self, base: Offset, kind: str) -> str:
        return names.segment_path(self._directory, base, kind)

    # -- segments --------------------------------------------------------------------------

    def _scan_log(self, base: Offset, *, is_newest: bool) -> SegmentScan:
        path = self._path(base, names.LOG)
        offsets = OffsetIndexCheck(self._directory, base, self._report)
        times = TimeIndexCheck(self._directory, base, self._report)
        with ExitStack() as opened:
            file = opened.enter_context(self._disk.open_read(path))
            for index in (offsets, times):
                if (base, index.kind) in self._final:
                    entries = opened.enter_context(self._disk.open_read(index.path))
                    index.begin(entries, is_newest=is_newest)
            scan = SegmentScan(base, file.size(), last_offset=base - 1)
            walk = FileWalk(file, start=0, stop=scan.size_bytes, check_crc=True)
            for step in walk:
                self._note_batches(path, scan, step, (offsets, times))
            if walk.valid_end != scan.size_bytes:
                self._report.add_problem(path, describe_damage(walk.reason, walk.valid_end))
            offsets.finish()
            times.finish()
        return scan

    def _note_batches(
        self, path: str, scan: SegmentScan, step: WalkStep, indexes: tuple[IndexCheck, IndexCheck]
    ) -> None:
        rows = step.rows
        offsets, times = indexes
        for row in range(0, len(rows), ROW_FIELDS):
            position = rows[row + POSITION] + step.shift
            first, last = rows[row + BASE_OFFSET], rows[row + LAST_OFFSET]
            if first <= scan.last_offset:
                problem = f"the batch at byte {position} begins with offset {first}, "
                self._report.add_problem(path, f"{problem}not above {scan.last_offset}")
            self._note_epoch(path, position, rows[row + LEADER_EPOCH], first)
            scan.last_offset = last
            scan.batch_count += 1
            scan.record_count += rows[row + RECORD_COUNT]
            if rows[row + RECORD_COUNT]:  # what compaction emptied has no record to find by time
                scan.max_timestamp_ms = max(scan.max_timestamp_ms, rows[row + MAX_TIMESTAMP])
            relative = last - scan.base_offset
            if position >= offsets.next_key:
                offsets.check_batch(position, relative)
            if relative >= times.next_key:
                times.check_batch(relative, scan.max_timestamp_ms)

    def _note_epoch(self, path: str, position: int, epoch: int, first: int) -> None:
        starts = self._report.epoch_starts
        known = starts[-1][0] if starts else NO_LEADER_EPOCH
        if epoch < known:
            problem = f"the batch at byte {position} is of epoch {epoch}, after one of {known}"
            self._report.add_problem(path, problem)
        elif epoch > known:
            starts.append((epoch, first))

    def _check_txn_index(self, base: Offset) -> None:
        path = self._path(base, names.TXN_INDEX)
        try:
            TransactionIndex(self._disk, path).check(base)
        except IndexDamaged as error:
            problem = str(error).removeprefix(f"{path}: ")
            self._report.add_problem(path, f"not what markers could have caused: {problem}")

    # -- the other files -------------------------------------------------------------------

    def _check_epochs(self) -> None:
        """Every epoch that batches show must be in the file, with a start that fits them."""
        path = f"{self._directory}/{names.LEADER_EPOCHS}"
        try:
            epochs = LeaderEpochs.load(self._disk, path)
        except CorruptCheckpoint as error:
            _report_checkpoint(self._disk, path, error, self._report)
            return
        entries = epochs.entries()
        if not entries:
            return  # not written yet; loading rebuilds it from the batches
        for epoch, start in self._report.epoch_starts:
            known = epochs.epoch_at(Offset(start))
            # Below the first entry lies what DeleteRecords hid; above the latest what is unflushed.
            if (
                start >= entries[0].start_offset
                and epoch <= epochs.latest
                and known != LeaderEpoch(epoch)
            ):
                self._report.add_problem(path, f"offset {start} is of epoch {epoch}, not {known}")

    def _check_snapshot(self, base: Offset) -> None:
        path = self._path(base, names.SNAPSHOT)
        try:
            decode(read_whole(self._disk, path), end_offset=base)
        except CorruptSnapshot as error:
            self._report.add_note(path, f"is ignored at start: {error}")

    def _check_metadata(self) -> None:
        path = f"{self._directory}/{names.PARTITION_METADATA}"
        try:
            read_topic_id(self._disk, path)
        except CorruptPartitionMetadata as error:
            self._report.add_problem(path, error.reason)


def _report_checkpoint(disk: Disk, path: str, error: CorruptCheckpoint, report: ScanReport) -> None:
    """Kafka creates its checkpoints empty and may be killed before it has anything for them."""
    if disk.size(path) == 0:
        report.add_note(path, "is empty, so its content is unknown")
    else:
        report.add_problem(path, f"line {error.line_number}: {error.reason}")

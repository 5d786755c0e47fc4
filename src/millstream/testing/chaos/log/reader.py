"""What a log must hold after any number of killed writers, and the check that it does."""

from dataclasses import dataclass, field
from itertools import pairwise

from millstream.model.errors import OffsetOutOfRange
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.chaos.log.damage import scan_log_files
from millstream.testing.chaos.log.writer import CONFIG, FIRST_MS, PARTITION, record_at
from millstream.testing.log_kit import read_all
from millstream.testing.record_batches import PlainRecord
from millstream.testing.sim.background import InlineBackground


class ChaosFailed(Exception):
    """The log on disk is not what it must be."""


@dataclass(slots=True)
class Expected:
    """The expected log: its ends, and which life wrote which offsets."""

    seed: int
    log_start: int = 0
    log_end: int = 0
    lives: list[tuple[int, int]] = field(default_factory=list)
    """(first offset, life), in order."""
    segment_bytes: dict[int, int] = field(default_factory=dict)
    """Sizes by base offset when the last writer was killed."""

    def begin_life(self, life: int, first: int) -> None:
        """A new writer appends from `first` on: nothing at or above it may be of an older one."""
        self.lives = [one for one in self.lives if one[0] < first] + [(first, life)]

    def life_at(self, offset: int) -> int:
        return next(life for first, life in reversed(self.lives) if first <= offset)

    def move_start(self, start: int) -> None:
        """Accept a later start only where retention allows it: what stays is still enough."""
        if start < self.log_start:
            raise ChaosFailed(f"log start went back from {self.log_start} to {start}")
        kept = sum(size for base, size in self.segment_bytes.items() if base >= start)
        if start > self.log_start and kept < CONFIG.retention_bytes:
            raise ChaosFailed(f"start {start} leaves {kept} bytes: retention took too much")
        self.log_start = start

    def life_ends(self) -> dict[int, int]:
        """The offset after the last record of every life that still has one."""
        starts = [*self.lives, (self.log_end, 0)]
        return {
            life: min(following, self.log_end)
            for (first, life), (following, _) in pairwise(starts)
            if max(first, self.log_start) < min(following, self.log_end)
        }

    def record(self, offset: int) -> PlainRecord:
        key, value = record_at(seed=self.seed, life=self.life_at(offset), offset=offset)
        return PlainRecord(offset, FIRST_MS + offset, key, value)


def check_log(directory: str, expected: Expected, chance: SeededRandomness) -> None:
    """Open the log as a broker does, compare everything, and stop, cleanly or not."""
    disk = OsDisk()
    dependencies = StorageDependencies(
        disk, SystemClock(), chance.fork("manager"), InlineBackground()
    )
    manager = LogManager(dependencies, [directory])
    manager.start(lambda *_: CONFIG)
    is_clean_stop = chance.chance(0.5)
    try:
        log = manager.get(PARTITION)
        _check_ends(log, expected)
        _check_files(disk, log, is_flushed=False)
        _check_records(log, expected, chance)
        _check_epochs(log, expected)
        _check_retries(disk, log)
    finally:
        if is_clean_stop:
            manager.close()
        else:
            abandon(manager)
    if is_clean_stop:
        _check_files(disk, log, is_flushed=True)


def abandon(manager: LogManager) -> None:
    """Stop as a killed process would, inside this process: nothing is written, the lock is free."""
    for log in manager:
        log.release()
    for directory in manager.directories:
        directory.close()
    manager.files.close()


def _check_ends(log: Log, expected: Expected) -> None:
    if log.log_end != expected.log_end:
        raise ChaosFailed(f"I-11 log ends at {log.log_end}, not at {expected.log_end}")
    expected.move_start(log.log_start)


def _check_files(disk: OsDisk, log: Log, *, is_flushed: bool) -> None:
    problems = scan_partition(disk, log.context.directory).problems
    if not is_flushed:
        # Leader epochs that had to be rebuilt are in memory until the first flush.
        path = f"{log.context.directory}/{names.LEADER_EPOCHS}"
        problems = [problem for problem in problems if not problem.startswith(path)]
    if problems:
        raise ChaosFailed(f"I-10 {problems[:3]}")


def _check_records(log: Log, expected: Expected, chance: SeededRandomness) -> None:
    """Every record, from the start and from a random offset, by offset and by time."""
    start, end = log.log_start, log.log_end
    wanted = [expected.record(offset) for offset in range(start, end)]
    _compare(read_all(log, size_max=chance.choice([1, 5_000, 300_000])), wanted)
    if start == end:
        return
    offset = chance.integer(start, end)
    _compare(read_all(log, start=Offset(offset), size_max=100_000), wanted[offset - start :])
    found = log.find_timestamp(TimestampMs(FIRST_MS + offset))
    if found is None or found.offset != offset:
        raise ChaosFailed(f"the record of time {FIRST_MS + offset} is {found}, not {offset}")
    if start > 0:
        _check_below(log, Offset(start - 1))


def _check_below(log: Log, offset: Offset) -> None:
    try:
        log.read(offset, size_max=1, isolation=Isolation.LOG_END)
    except OffsetOutOfRange:
        return
    raise ChaosFailed(f"offset {offset} below the start {log.log_start} can be read")


def _compare(found: list[PlainRecord], wanted: list[PlainRecord]) -> None:
    for got, must in zip(found, wanted, strict=False):
        if got != must:
            raise ChaosFailed(f"I-02 found {got}, must be {must}")
    if len(found) != len(wanted):
        raise ChaosFailed(f"I-02 {len(found)} records, must be {len(wanted)}")


def _check_epochs(log: Log, expected: Expected) -> None:
    for life, end in expected.life_ends().items():
        found = log.end_offset_for_epoch(LeaderEpoch(life))
        if found != (life, end):
            raise ChaosFailed(f"epoch {life} ends at {end}, the log has {found}")


def _check_retries(disk: OsDisk, log: Log) -> None:
    """Every producer's last batch, sent again, is a duplicate: producer state survived (I-20)."""
    batches = scan_log_files(disk, log.context.directory).locations
    newest = {batch.producer_id: batch for batch in batches}
    for batch in newest.values():
        if batch.first < log.log_start:
            continue
        first = Offset(batch.first)
        data = bytearray(log.read(first, size_max=1, isolation=Isolation.LOG_END).data.read())
        answer = log.append_as_leader(data, leader_epoch=log.latest_epoch)
        if not answer.is_duplicate or answer.base_offset != first:
            raise ChaosFailed(f"I-20 producer {batch.producer_id} at {first} again: {answer}")

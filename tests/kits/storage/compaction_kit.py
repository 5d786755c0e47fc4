"""A compacted log, a cleaner that can be stopped between any two steps, and what to compare."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from millstream.kernels.compression import Codec
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.runtime.background import BackgroundFullError, Outcome
from millstream.runtime.disk import Disk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.compaction.cleaner import Cleaner, CleanerLimits
from millstream.storage.compaction.log_cleaning import CleaningEnd, CleaningReport
from millstream.storage.config import LogConfig
from millstream.storage.flush import FlushDone, GroupCommit
from millstream.storage.log.log import AppendedBatch, Log
from millstream.storage.log.reader import Isolation
from millstream.storage.producers.machine import Origin
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, OpenedLog, open_log, read_all
from millstream.testing.record_batches import (
    BatchSpec,
    Pair,
    PlainRecord,
    build_batch,
    build_marker,
)
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk

T = TypeVar("T")

RETENTION_MS = 10_000
COMPACT = replace(
    SMALL_SEGMENTS,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=RETENTION_MS,
    file_delete_delay_ms=60_000,
)
ROOT = "/data"


@dataclass
class _Job:
    name: str
    work: Callable[[], Any]
    on_done: Callable[[Outcome[Any]], None]


@dataclass
class StepBackground:
    """Does nothing by itself: a test runs the next job when it likes."""

    queue: deque[_Job] = field(default_factory=deque)
    room: int = 100

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        if len(self.queue) >= self.room:
            raise BackgroundFullError(name)
        self.queue.append(_Job(name, work, on_done))

    async def close(self, *, timeout_s: float) -> list[str]:
        return []

    def run_next(self) -> str | None:
        """Run one job and deliver its outcome; its name, or None when there is none."""
        if not self.queue:
            return None
        job = self.queue.popleft()
        job.on_done(_outcome_of(job.work))
        return job.name.rpartition(": ")[2]

    def run_all(self) -> list[str]:
        names = []
        while (name := self.run_next()) is not None:
            names.append(name)
        return names


def _outcome_of(work: Callable[[], Any]) -> Outcome[Any]:
    try:
        return Outcome(work())
    except Exception as error:  # noqa: BLE001 - handed over, as a thread would
        return Outcome(None, error)


class Bench:
    """One compacted log with its cleaner and clock."""

    def __init__(
        self,
        disk: Disk | None = None,
        config: LogConfig = COMPACT,
        *,
        root: str = ROOT,
        key_map_bytes: int = 1 << 20,
        is_clean: bool = False,
        clock: ManualClock | None = None,
        partition: TopicPartition = PARTITION,
    ) -> None:
        self.disk = disk if disk is not None else SimDisk(directories=[root])
        self.root = root
        self.clock = clock if clock is not None else ManualClock()
        self.opened: OpenedLog = open_log(
            self.disk, self.clock, config, root=root, is_clean=is_clean, partition=partition
        )
        self.log: Log = self.opened.log
        self.background = StepBackground()
        self.reports: list[CleaningReport] = []
        self.cleaner = Cleaner(
            [self.log],
            clock=self.clock,
            randomness=SeededRandomness(7),
            background=self.background,
            flush=GroupCommit(self.opened.owner, self.background).request,
            limits=CleanerLimits(key_map_bytes=key_map_bytes),
            pause=lambda _, seconds: self.clock.advance(int(seconds * 1000) + 1),
        )
        self.cleaner.on_report = self.reports.append

    # -- writing

    def append(
        self,
        pairs: Sequence[Pair],
        *,
        codec: Codec = Codec.NONE,
        timestamps: Sequence[int] | None = None,
        **spec: Any,
    ) -> AppendedBatch:
        batch = build_batch(
            pairs,
            BatchSpec(timestamp_ms=self.clock.wall_ms(), codec=codec, **spec),
            timestamps=timestamps,
        )
        return self.log.append_as_leader(batch, leader_epoch=LeaderEpoch(0))

    def put(self, **values: str | None) -> AppendedBatch:
        """One batch: key=value, None for a tombstone."""
        pairs = [(key.encode(), _encoded(value)) for key, value in values.items()]
        return self.append(pairs)

    def in_transaction(
        self, pairs: Sequence[Pair], *, producer_id: int, sequence: int, epoch: int = 0
    ) -> AppendedBatch:
        return self.append(
            pairs,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )

    def end_transaction(
        self, *, producer_id: int, is_commit: bool, epoch: int = 0
    ) -> AppendedBatch:
        spec = BatchSpec(
            producer_id=producer_id, producer_epoch=epoch, timestamp_ms=self.clock.wall_ms()
        )
        marker = build_marker(spec, is_commit=is_commit)
        return self.log.append_as_leader(
            marker, leader_epoch=LeaderEpoch(0), origin=Origin.COORDINATOR
        )

    def seal(self) -> None:
        """Close the active segment and let everything be replicated and durable."""
        self.log.roll()
        self.settle_watermarks()

    def settle_watermarks(self) -> None:
        self.log.set_high_watermark(self.log.log_end)
        self.log.flush()
        self.store_recovery_point()

    def store_recovery_point(self) -> None:
        """As the manager does from time to time: nothing above it is cleaned."""
        self.log.owner.store(names.RECOVERY_POINTS, {self.log.partition: self.log.recovery_start})

    # -- cleaning

    def clean(self) -> CleaningReport:
        """Run cleanings until there is nothing worth it; the first one's report."""
        count = len(self.reports)
        begun = self.cleaner.run_once()
        assert begun == PARTITION, "nothing to clean"
        self.background.run_all()
        report = self.reports[count]
        assert report.end is CleaningEnd.CLEANED, report
        self.check()
        return report

    def is_clean(self) -> bool:
        """Whether the cleaner sees nothing to do."""
        return self.cleaner.run_once() is None and self.cleaner.in_progress is None

    # -- inspecting

    def records(self, isolation: Isolation = Isolation.LOG_END) -> list[PlainRecord]:
        return read_all(self.log, isolation=isolation)

    def values(self) -> list[tuple[bytes | None, bytes | None]]:
        """(key, value) of all data records, in offset order."""
        return [(one.key, one.value) for one in self.records() if not one.is_control]

    def state(self, isolation: Isolation = Isolation.LOG_END) -> dict[bytes, bytes]:
        """What a reader from the beginning ends up with."""
        return state_of(self.records(isolation))

    def check(self) -> None:
        """Files and indexes are sound, and every offset can be read from."""
        problems = scan_partition(self.disk, self.log.context.directory).problems
        assert not problems, problems
        everything = self.records()
        offsets = [one.offset for one in everything]
        assert offsets == sorted(set(offsets))
        for start in range(self.log.log_start, self.log.log_end + 1, 3):
            expected = [one for one in everything if one.offset >= start]
            assert read_all(self.log, start=Offset(start)) == expected

    def files(self) -> list[str]:
        return self.disk.list_directory(self.log.context.directory)

    def strange_files(self) -> list[str]:
        """Files of an unfinished cleaning."""
        return [name for name in self.files() if name.endswith((".cleaned", ".swap"))]

    # -- ends

    def reopened(self, *, is_clean: bool = True, disk: Disk | None = None) -> "Bench":
        if is_clean:
            self.opened.close()
        else:
            self.opened.abandon()
        return Bench(
            disk if disk is not None else self.disk,
            self.log.config,
            root=self.root,
            is_clean=is_clean,
            clock=self.clock,
        )


def state_of(records: Iterable[PlainRecord]) -> dict[bytes, bytes]:
    newest: dict[bytes, bytes] = {}
    for record in records:
        if record.is_control or record.key is None:
            continue
        if record.value is None:
            newest.pop(record.key, None)
        else:
            newest[record.key] = record.value
    return newest


def flush_now(log: Log, done: FlushDone) -> None:
    """For a cleaner over logs that are flushed already."""
    log.flush()
    done(None)


def sim_disk(bench: Bench) -> SimDisk:
    assert isinstance(bench.disk, SimDisk)
    return bench.disk


def filled() -> Bench:
    """A log that is cleaned in three groups, durable as it is."""
    bench = Bench(SimDisk(directories=[ROOT]))
    for number in range(18):
        value = f"{number}".ljust(100, ".")
        bench.put(**{f"k{number % 7}": value, f"own{number}": value})
        if number % 3 == 2:
            bench.seal()
    bench.in_transaction([(b"k1", b"aborted")], producer_id=1, sequence=0)
    bench.end_transaction(producer_id=1, is_commit=False)
    bench.put(k2="", k3=None)
    bench.seal()
    bench.put(active="1")
    bench.settle_watermarks()
    bench.opened.owner.store(names.RECOVERY_POINTS, {PARTITION: bench.log.recovery_start})
    bench.opened.owner.store(names.HIGH_WATERMARKS, {PARTITION: bench.log.high_watermark})
    return bench


def full_clean_result() -> list[PlainRecord]:
    """What `filled` holds after a cleaning."""
    bench = filled()
    bench.clean()
    return bench.records()


def _encoded(value: str | None) -> bytes | None:
    return None if value is None else value.encode()

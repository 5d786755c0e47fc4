"""Short words for tests that tell stories about one log."""

from dataclasses import dataclass, field

from millstream.model.ids import LeaderEpoch, Offset
from millstream.storage import names
from millstream.storage.config import LogConfig
from millstream.storage.log.log import AppendedBatch, Log
from millstream.storage.producers.machine import Origin
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, OpenedLog, open_log, read_all
from millstream.testing.record_batches import BatchSpec, PlainRecord, build_batch, build_marker
from millstream.testing.sim.clock import WALL_START_MS, ManualClock
from millstream.testing.sim.crash_fates import keep_none
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.durability import FateChooser

ROOT = "/data"
DIRECTORY = f"{ROOT}/{PARTITION}"
NOW = WALL_START_MS


def batch_of(
    *values: bytes | None, spec: BatchSpec | None = None, stamps: list[int] | None = None
) -> bytearray:
    """A batch of records with these values, with the current time by default."""
    pairs = [(b"key", value) for value in values]
    return build_batch(pairs, spec or BatchSpec(timestamp_ms=NOW), timestamps=stamps)


def of_producer(producer_id: int, sequence: int, *, epoch: int = 0, txn: bool = False) -> BatchSpec:
    return BatchSpec(
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=txn,
        timestamp_ms=NOW,
    )


@dataclass(slots=True)
class Story:
    """One log on a simulated disk, and what a test does to it."""

    config: LogConfig = SMALL_SEGMENTS
    capacity_bytes: int | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    disk: SimDisk = field(init=False)
    opened: OpenedLog = field(init=False)

    def __post_init__(self) -> None:
        self.disk = SimDisk(7, directories=[ROOT], capacity_bytes=self.capacity_bytes)
        self.open()

    @property
    def log(self) -> Log:
        return self.opened.log

    def open(self, *, is_clean: bool = False) -> None:
        self.opened = open_log(self.disk, self.clock, self.config, is_clean=is_clean)

    def restart(self) -> None:
        """A clean stop and start."""
        self.store_checkpoints()
        self.opened.close()
        self.open(is_clean=True)

    def go_on(self) -> None:
        """Nothing happens: for stories with several ways to go on."""

    def kill(self) -> None:
        """The process dies and comes again; nothing written is lost."""
        self.disk.kill()
        self.disk = self.disk.after_kill()
        self.open()

    def lose_power(self, choose: FateChooser = keep_none) -> None:
        """The machine dies; by default everything that was not synced is gone."""
        self.disk.crash()
        self.disk = self.disk.after_crash(choose)
        self.open()

    def store_checkpoints(self) -> None:
        owner, log = self.opened.owner, self.log
        owner.store(names.RECOVERY_POINTS, {PARTITION: log.recovery_start})
        owner.store(names.HIGH_WATERMARKS, {PARTITION: log.high_watermark})
        owner.store(names.LOG_STARTS, {PARTITION: log.log_start})

    # -- what is written

    def put(
        self, *values: bytes | None, spec: BatchSpec | None = None, epoch: int = 0
    ) -> AppendedBatch:
        return self.lead(batch_of(*values, spec=spec), epoch=epoch)

    def lead(
        self, batch: bytearray | memoryview, *, epoch: int = 0, origin: Origin = Origin.CLIENT
    ) -> AppendedBatch:
        return self.log.append_as_leader(batch, leader_epoch=LeaderEpoch(epoch), origin=origin)

    def end(
        self, producer_id: int, *, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 0
    ) -> AppendedBatch:
        """The marker that ends the producer's transaction."""
        spec = BatchSpec(producer_id=producer_id, producer_epoch=epoch, timestamp_ms=NOW)
        marker = build_marker(spec, is_commit=is_commit, coordinator_epoch=coordinator_epoch)
        return self.lead(marker, origin=Origin.COORDINATOR)

    def fill(self, count: int, *, size: int = 40) -> None:
        """Batches of one record each, numbered, of growing time."""
        epoch = max(0, int(self.log.latest_epoch))
        for _ in range(count):
            number = int(self.log.log_end)
            self.lead(batch_of(b"%0*d" % (size, number), stamps=[NOW + number]), epoch=epoch)

    def replicate_all(self) -> None:
        self.log.set_high_watermark(self.log.log_end)

    # -- what is seen

    def values(self, start: int | None = None) -> list[bytes | None]:
        found = read_all(self.log, start=None if start is None else Offset(start))
        return [record.value for record in found]

    def records(self) -> list[PlainRecord]:
        return read_all(self.log)

    def facts(self) -> tuple[object, ...]:
        """Everything that a refused operation must leave as it was."""
        log = self.log
        producers = [
            (entry.producer_id, entry.epoch, list(entry.batches), entry.transaction_first_offset)
            for entry in log.producers.states.entries()
        ]
        return (
            log.log_start,
            log.log_end,
            log.high_watermark,
            log.last_stable_offset,
            log.size_bytes,
            log.epochs.entries(),
            len(log.segments),
            producers,
            read_all(log),
        )

    def file_names(self) -> list[str]:
        return self.disk.list_directory(DIRECTORY)

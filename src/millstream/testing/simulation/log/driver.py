"""One log under random operations and crashes, compared with a list after every step.

Hypothesis drives it in `make test`, seeds drive it in `make sim`. The model is a list of batches
and a few numbers; everything else (what a consumer sees, the last stable offset, epoch ends,
timestamps) is derived from it by the simplest code that can be written.
"""

from dataclasses import dataclass, field, replace

from millstream.kernels.compression import Codec
from millstream.model.ids import LeaderEpoch, Offset, ProducerId, TimestampMs
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.compaction.cleaner import Cleaner, CleanerLimits
from millstream.storage.config import LogConfig
from millstream.storage.flush import GroupCommit
from millstream.storage.log.reader import Isolation
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, OpenedLog, open_log, read_all
from millstream.testing.record_batches import (
    BatchSpec,
    Pair,
    PlainRecord,
    build_batch,
    build_marker,
    read_records,
)
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.crash_fates import random_fates
from millstream.testing.sim.disk import SimDisk

ROOT = "/data"
DIRECTORY = f"{ROOT}/{PARTITION}"


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """One appended batch in the model."""

    records: tuple[PlainRecord, ...]
    first: int
    last: int
    producer_id: int = -1
    sequence: int = -1
    is_transactional: bool = False
    marker: str = ""
    """'commit' or 'abort' for a control batch."""

    @property
    def is_thinned(self) -> bool:
        """Compaction took records out of it."""
        return len(self.records) <= self.last - self.first


@dataclass(slots=True)
class Model:
    """What the log must hold."""

    batches: list[ModelBatch] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    durable_end: int = 0
    """Everything below it was flushed: no crash may take it."""
    high_watermark: int = 0
    epoch_starts: list[tuple[int, int]] = field(default_factory=list)

    def records(self) -> list[PlainRecord]:
        return [
            record
            for batch in self.batches
            for record in batch.records
            if record.offset >= self.log_start
        ]

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < end]
        self.epoch_starts = [one for one in self.epoch_starts if one[1] < end]
        self.log_end = end
        self.durable_end = min(self.durable_end, end)
        self.high_watermark = max(self.log_start, min(self.high_watermark, end))

    def reopened(self) -> None:
        """A restart only knows the batches: an end that truncation left in a gap moves back."""
        newest = self.batches[-1].last + 1 if self.batches else self.log_start
        self.truncate(max(self.log_start, newest))

    def compacted(self, found: list[PlainRecord]) -> None:
        """Check what a cleaning left (S5) and take it over."""
        before = {record.offset: record for record in self.records()}
        kept = {record.offset for record in found}
        _same([before.get(one.offset) for one in found], found, "S5 records after compaction")
        newest = {record.key: record.offset for record in self.records()}
        lost = [offset for offset in newest.values() if offset not in kept]
        _same(lost, [], "S5 newest records of their keys that compaction removed")
        self.batches = [
            replace(batch, records=tuple(one for one in batch.records if one.offset in kept))
            for batch in self.batches
        ]

    def last_of(self, producer_id: int) -> ModelBatch | None:
        """Newest data batch of the producer that is still in the log."""
        found = [one for one in self.batches if one.producer_id == producer_id and not one.marker]
        return found[-1] if found else None

    def open_transaction(self, producer_id: int) -> bool:
        mine = [one for one in self.batches if one.producer_id == producer_id]
        return bool(mine) and mine[-1].is_transactional and not mine[-1].marker

    def transactions(self) -> list[tuple[int, int | None, str]]:
        """(first offset, marker's offset or None, outcome) of every transaction."""
        started: dict[int, int] = {}
        done: list[tuple[int, int | None, str]] = []
        for batch in self.batches:
            if batch.marker and batch.producer_id in started:
                done.append((started.pop(batch.producer_id), batch.first, batch.marker))
            elif batch.is_transactional and not batch.marker:
                started.setdefault(batch.producer_id, batch.first)
        return done + [(first, None, "") for first in started.values()]

    def last_stable_range(self) -> tuple[int, int]:
        """Between the first offset of what is undecided or decided above the high watermark, and
        of what is undecided: a restart does not remember the former, and the decision is final.
        """
        transactions = self.transactions()
        undecided = [first for first, marker, _ in transactions if marker is None]
        above = [first for first, marker, _ in transactions if (marker or 0) >= self.high_watermark]
        lowest = min([self.high_watermark, *undecided, *above])
        highest = min([self.high_watermark, *undecided])
        return max(self.log_start, lowest), max(self.log_start, highest)

    def committed(self, limit: int) -> list[PlainRecord]:
        """What read_committed shows below the last stable offset."""
        aborted: set[int] = set()
        open_records: dict[int, list[int]] = {}
        for batch in self.batches:
            if batch.marker:
                offsets = open_records.pop(batch.producer_id, [])
                aborted.update(offsets if batch.marker == "abort" else [])
            elif batch.is_transactional:
                written = open_records.setdefault(batch.producer_id, [])
                written += [record.offset for record in batch.records]
        # Whole batches: after a crash the stored high watermark may lie inside one.
        return [
            record
            for batch in self.batches
            for record in batch.records
            if batch.last < limit and not record.is_control and record.offset not in aborted
        ]


class LogDriver:
    """Operations on the log and the model together; `verify` compares them."""

    def __init__(self, seed: int, *, config: LogConfig = SMALL_SEGMENTS) -> None:
        self.randomness = SeededRandomness(seed)
        self.clock = ManualClock()
        self.disk = SimDisk(seed, directories=[ROOT])
        self.config = config
        self.model = Model()
        self.epoch = 0
        self.crashes = 0
        self.cleanings = 0
        self.opened = self._open()

    # -- appending -------------------------------------------------------------------------

    def append(self, count: int, *, codec: Codec = Codec.NONE, size: int = 20) -> None:
        """Some records without a producer id."""
        spec = BatchSpec(codec=codec)
        self._append_as_leader(self._pairs(count, size), spec)

    def append_idempotent(self, producer_id: int, count: int) -> None:
        """The next batch of a producer."""
        spec = BatchSpec(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=self._next_sequence(producer_id),
        )
        if not self.model.open_transaction(producer_id):
            self._append_as_leader(self._pairs(count, 20), spec)

    def retry(self, producer_id: int) -> None:
        """A producer sends its newest batch again: it must get the first answer (I-20)."""
        newest = self.model.last_of(producer_id)
        if newest is None or newest.first < self.model.log_start or newest.is_thinned:
            return
        pairs = [(record.key, record.value) for record in newest.records]
        spec = BatchSpec(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=newest.sequence,
            is_transactional=newest.is_transactional,
        )
        answer = self.opened.log.append_as_leader(
            build_batch(pairs, spec), leader_epoch=LeaderEpoch(self.epoch)
        )
        _same((answer.is_duplicate, answer.base_offset), (True, newest.first), "I-20 retry")

    def append_transactional(self, producer_id: int, count: int) -> None:
        """More records in the producer's transaction, begun where none is open."""
        spec = BatchSpec(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=self._next_sequence(producer_id),
            is_transactional=True,
        )
        self._append_as_leader(self._pairs(count, 20), spec)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker, as the coordinator has it written."""
        if not self.model.open_transaction(producer_id):
            return
        end = self.model.log_end
        spec = BatchSpec(
            base_offset=end,
            leader_epoch=self.epoch,
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=self.clock.wall_ms(),
        )
        batch = build_marker(spec, is_commit=is_commit)
        self.opened.log.append_as_follower(batch)
        self._remember(batch, spec._replace(is_transactional=True), is_commit=is_commit)

    def append_as_follower(self, count: int, *, gap: int) -> None:
        """A leader's batch, with offsets that compaction may have thinned out before it."""
        base = self.model.log_end + gap
        spec = BatchSpec(base_offset=base, leader_epoch=self.epoch)
        batch = build_batch(self._pairs(count, 20), spec, timestamps=self._stamps(count))
        self.opened.log.append_as_follower(batch)
        self._remember(batch, spec)

    def fetch(self, transactions: int, *, size: int) -> None:
        """One large fetch of a follower: many batches and markers, more than a segment takes."""
        fetched = bytearray()
        for number in range(transactions):
            producer_id = 50 + number % 2
            spec = BatchSpec(
                base_offset=self.model.log_end,
                leader_epoch=self.epoch,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=self._next_sequence(producer_id),
                is_transactional=True,
                timestamp_ms=self.clock.wall_ms(),
            )
            batch = build_batch(self._pairs(2, size), spec)
            self._remember(batch, spec)
            spec = spec._replace(base_offset=self.model.log_end)
            is_commit = self.randomness.chance(0.5)
            marker = build_marker(spec, is_commit=is_commit)
            self._remember(marker, spec._replace(is_transactional=True), is_commit=is_commit)
            fetched += batch + marker
        self.opened.log.append_as_follower(fetched)

    def raise_epoch(self, by: int) -> None:
        """A new leader epoch: the next append carries it."""
        self.epoch += by

    # -- changing --------------------------------------------------------------------------

    def flush(self) -> None:
        self.opened.log.flush()
        self.model.durable_end = self.model.log_end

    def store_recovery_point(self) -> None:
        """What the broker does from time to time, so the stored one is mostly behind."""
        self.opened.owner.store(names.RECOVERY_POINTS, {PARTITION: self.opened.log.recovery_start})

    def checkpoint(self) -> None:
        """Flush and store at once."""
        self.flush()
        self.store_recovery_point()

    def roll(self) -> None:
        self.opened.log.roll()

    def set_high_watermark(self, part: float) -> None:
        """Somewhere between where it is and the log's end, on a batch boundary."""
        ends = [one.last + 1 for one in self.model.batches if one.last >= self.model.high_watermark]
        if not ends:
            return
        self.model.high_watermark = ends[min(int(part * len(ends)), len(ends) - 1)]
        self.opened.log.set_high_watermark(Offset(self.model.high_watermark))
        self.opened.owner.store(names.HIGH_WATERMARKS, {PARTITION: self.opened.log.high_watermark})

    def truncate(self, part: float) -> None:
        """Cut off a tail above the high watermark."""
        low, high = self.model.high_watermark, self.model.log_end
        wanted = low + int(part * (high - low))
        kept = [one for one in self.model.batches if one.last < wanted]
        end = max(self.model.log_start, kept[-1].last + 1) if kept else self.model.log_start
        if wanted >= high or end < low:
            return
        got = self.opened.log.truncate_to(Offset(wanted))
        _same(got, end, "log end after truncation")
        self.model.truncate(end)

    def truncate_fully(self, ahead: int) -> None:
        """Start again beyond the end, as a follower that was down too long."""
        start = self.model.log_end + ahead
        self.opened.log.truncate_fully(Offset(start))
        self.model = Model(log_start=start, log_end=start, durable_end=start, high_watermark=start)

    def advance_start(self, part: float) -> None:
        """DeleteRecords: forget a prefix below the high watermark."""
        low, high = self.model.log_start, self.model.high_watermark
        start = low + int(part * (high - low))
        self.opened.log.advance_log_start(Offset(start))
        self.opened.owner.store(names.LOG_STARTS, {PARTITION: Offset(start)})
        self.opened.log.remove_segments_below_start()
        self.model.log_start = start
        self.model.durable_end = max(self.model.durable_end, start)

    def delete_due(self) -> None:
        self.clock.advance(1)
        self.opened.owner.delete_due(self.clock.monotonic_s())

    def compact(self) -> None:
        """Clean what is dirty, flushed and decided; the newest record of every key must stay."""
        cleaner = Cleaner(
            [self.opened.log],
            clock=self.clock,
            randomness=self.randomness,
            background=InlineBackground(),
            flush=GroupCommit(self.opened.owner, InlineBackground()).request,
            limits=CleanerLimits(key_map_bytes=self.randomness.choice([96, 240, 24_000])),
        )
        self.cleanings += cleaner.run_once() is not None
        self.model.compacted(read_all(self.opened.log))

    def lose_index(self, part: float, suffix: str) -> None:
        """An index file vanishes while the log is closed; it must be rebuilt when needed."""
        self.opened.close()
        found = [name for name in self.disk.list_directory(DIRECTORY) if name.endswith(suffix)]
        if found:
            self.disk.remove(f"{DIRECTORY}/{found[int(part * len(found)) % len(found)]}")
        self.opened = self._open(is_clean=True)
        self.model.reopened()
        self.model.durable_end = self.model.log_end

    # -- stopping --------------------------------------------------------------------------

    def restart(self) -> None:
        """A clean stop and start."""
        self.opened.close()
        self._check_files()
        self.opened = self._open(is_clean=True)
        _same(self.opened.report.recovered_segments, 0, "segments recovered after a clean stop")
        self.model.reopened()
        self.model.durable_end = self.model.log_end

    def kill(self) -> None:
        """The process dies; what it wrote stays."""
        self.disk.kill()
        self.disk = self.disk.after_kill()
        self._reopen_after_crash(lost_allowed=False)

    def lose_power(self) -> None:
        """The machine dies; what was not synced may be lost, in any combination."""
        self.disk.crash()
        self.disk = self.disk.after_crash(random_fates(self.randomness))
        self._reopen_after_crash(lost_allowed=True)

    def _reopen_after_crash(self, *, lost_allowed: bool) -> None:
        self.crashes += 1
        self.opened = self._open()
        log, model = self.opened.log, self.model
        model.reopened()
        lowest = model.durable_end if lost_allowed else model.log_end
        if not lowest <= log.log_end <= model.log_end:
            raise ModelMismatch(
                f"I-11 recovered end {log.log_end} is not in [{lowest}, {model.log_end}]"
            )
        model.truncate(log.log_end)
        model.high_watermark = log.high_watermark
        self._check_files()
        self._check_recovery_is_idempotent()

    def _check_recovery_is_idempotent(self) -> None:
        """Recovering twice gives what recovering once gave (I-11)."""
        before = (self.opened.log.log_start, self.opened.log.log_end, read_all(self.opened.log))
        self.opened.abandon()
        self.opened = self._open()
        after = (self.opened.log.log_start, self.opened.log.log_end, read_all(self.opened.log))
        _same(after, before, "I-11 second recovery")

    def _open(self, *, is_clean: bool = False) -> OpenedLog:
        return open_log(self.disk, self.clock, self.config, root=ROOT, is_clean=is_clean)

    # -- comparing -------------------------------------------------------------------------

    def verify(self) -> None:
        """The log shows what the model holds, to every kind of reader."""
        log, model = self.opened.log, self.model
        _same((log.log_start, log.log_end), (model.log_start, model.log_end), "ends")
        _same(read_all(log), model.records(), "I-02 records")
        if model.log_start == 0:
            stable, (lowest, highest) = log.last_stable_offset, model.last_stable_range()
            _same(lowest <= stable <= highest, True, f"I-05 {lowest} <= {stable} <= {highest}")
            visible = read_all(log, isolation=Isolation.COMMITTED)
            _same(visible, model.committed(stable), "I-23 committed records")
        self._verify_random_read()
        self._verify_timestamps()
        self._verify_epochs()

    def _verify_random_read(self) -> None:
        records = self.model.records()
        if records:
            start = self.randomness.choice(records).offset
            rest = [record for record in records if record.offset >= start]
            _same(read_all(self.opened.log, start=Offset(start)), rest, f"I-02 from {start}")

    def _verify_timestamps(self) -> None:
        records = self.model.records()
        stamps = sorted({record.timestamp_ms for record in records})
        if not stamps:
            return
        searched = self.randomness.choice(stamps) + self.randomness.integer(-1, 2)
        expected = next((one.offset for one in records if one.timestamp_ms >= searched), None)
        found = self.opened.log.find_timestamp(TimestampMs(searched))
        _same(found.offset if found else None, expected, f"first record at {searched}")
        newest = self.opened.log.find_max_timestamp()
        _same(newest.timestamp_ms if newest else None, stamps[-1], "largest timestamp")

    def _verify_epochs(self) -> None:
        starts = self.model.epoch_starts
        for number, (epoch, _) in enumerate(starts):
            end = starts[number + 1][1] if number + 1 < len(starts) else self.model.log_end
            if end > self.model.log_start:
                found = self.opened.log.end_offset_for_epoch(LeaderEpoch(epoch))
                _same((found.epoch, found.end_offset), (epoch, end), f"end of epoch {epoch}")

    def _check_files(self) -> None:
        scan = scan_partition(self.disk, DIRECTORY)
        if scan.problems or scan.notes:
            raise ModelMismatch(f"I-10 {scan.problems} {scan.notes}")

    # -- inside ----------------------------------------------------------------------------

    def _append_as_leader(self, pairs: list[Pair], spec: BatchSpec) -> None:
        batch = build_batch(pairs, spec, timestamps=self._stamps(len(pairs)))
        answer = self.opened.log.append_as_leader(batch, leader_epoch=LeaderEpoch(self.epoch))
        _same(answer.base_offset, self.model.log_end, "base offset")
        self._remember(batch, spec)

    def _remember(
        self, batch: bytearray, spec: BatchSpec, *, is_commit: bool | None = None
    ) -> None:
        marker = "" if is_commit is None else ("commit" if is_commit else "abort")
        records = tuple(read_records(batch))
        starts = self.model.epoch_starts
        if not starts or starts[-1][0] != self.epoch:
            starts.append((self.epoch, records[0].offset))
        remembered = ModelBatch(
            records,
            records[0].offset,
            records[-1].offset,
            spec.producer_id,
            spec.base_sequence,
            spec.is_transactional,
            marker,
        )
        self.model.batches.append(remembered)
        self.model.log_end = remembered.last + 1

    def _next_sequence(self, producer_id: int) -> int:
        newest = self.model.last_of(producer_id)
        if newest is None or newest.first >= self.model.log_start:
            return newest.sequence + newest.last - newest.first + 1 if newest else 0
        # Its batches are below the log start: a restart may remember them, a marker, or nothing.
        entry = self.opened.log.producers.states.get(ProducerId(producer_id))
        return entry.last_sequence + 1 if entry is not None else 0

    def _pairs(self, count: int, size: int) -> list[Pair]:
        return [
            (b"k%d" % self.randomness.integer(0, 6), self.randomness.bytes(size))
            for _ in range(count)
        ]

    def _stamps(self, count: int) -> list[int]:
        self.clock.advance(self.randomness.integer(0, 50))
        now = self.clock.wall_ms()
        return [now + self.randomness.integer(-40, 40) for _ in range(count)]


class ModelMismatch(AssertionError):
    """The log and the model disagree."""


def _same(got: object, expected: object, what: str) -> None:
    if isinstance(got, list) and isinstance(expected, list) and got != expected:
        pairs = enumerate(zip(got, expected, strict=False))
        at = next((number for number, (one, other) in pairs if one != other), -1)
        tail = f"at {at}: {got[at]!r} != {expected[at]!r}" if at >= 0 else "one ends early"
        raise ModelMismatch(f"{what}: {len(got)} and {len(expected)} records, {tail}")
    if got != expected:
        raise ModelMismatch(f"{what}: got {got!r}, expected {expected!r}")

"""Every file of a small log cut at every byte: recovery gives the longest valid prefix (I-11)."""

from collections.abc import Callable, Iterator

import pytest

from millstream.kernels.compression import Codec
from millstream.model.ids import LeaderEpoch, Offset
from millstream.model.invariant import InvariantViolated
from millstream.runtime.disk import read_whole
from millstream.storage import names
from millstream.storage.directories import clean_shutdown
from millstream.storage.log.reader import Isolation
from millstream.storage.producers import producer_log
from millstream.storage.producers.machine import ProducerStates
from millstream.storage.producers.snapshot import CorruptSnapshot, decode
from millstream.storage.recovery import crash_recovery as recovery
from millstream.storage.recovery.loader import _Loader
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, open_log, read_all
from millstream.testing.record_batches import (
    BatchSpec,
    PlainRecord,
    build_batch,
    build_marker,
    read_records,
)
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk

DIRECTORY = f"/data/{PARTITION}"


class WrittenLog:
    """A log of three segments with everything in it, and what each batch of it held."""

    def __init__(self) -> None:
        self.disk = SimDisk(directories=["/data"])
        self.batches: list[list[PlainRecord]] = []
        opened = open_log(self.disk, ManualClock(), root="/data")
        self.log = opened.log
        for number in range(14):
            self._append(number)
            if number in (4, 9):
                self.log.roll()
                self.log.flush()
                opened.owner.store(names.RECOVERY_POINTS, {PARTITION: self.log.recovery_start})
        self.log.set_high_watermark(self.log.log_end)
        self.high_watermark = self.log.high_watermark
        self.committed = read_all(self.log, isolation=Isolation.COMMITTED)
        opened.owner.store(names.HIGH_WATERMARKS, {PARTITION: self.log.high_watermark})
        opened.close()
        self.files = {
            name: read_whole(self.disk, f"{DIRECTORY}/{name}")
            for name in self.disk.list_directory(DIRECTORY)
        }
        self.checkpoints = {
            name: read_whole(self.disk, f"/data/{name}")
            for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS)
        }
        self.records = [record for batch in self.batches for record in batch]

    def _append(self, number: int) -> None:
        end = self.log.log_end
        epoch = number // 5
        spec = BatchSpec(
            base_offset=end,
            leader_epoch=epoch,
            codec=list(Codec)[number % 5],
            producer_id=7 if number % 3 == 0 else -1,
            producer_epoch=0 if number % 3 == 0 else -1,
            base_sequence=end if number % 3 == 0 else -1,
            is_transactional=number % 3 == 0,
            timestamp_ms=1_000 + number * 10,
        )
        pairs = [(b"k%d" % number, b"v" * (number * 9))] * (1 + number % 3)
        batch = build_batch(pairs, spec)
        if number % 3 == 2:
            marker = spec._replace(producer_id=7, producer_epoch=0, codec=Codec.NONE)
            batch = build_marker(marker, is_commit=number % 2 == 0)
        self.log.append_as_follower(batch)
        self.batches.append(read_records(batch))

    def restored(self) -> SimDisk:
        """A new disk with the same files, as a crashed process leaves them."""
        disk = SimDisk(directories=["/data", DIRECTORY])
        for name, content in self.files.items():
            put(disk, f"{DIRECTORY}/{name}", content)
        for name, content in self.checkpoints.items():
            put(disk, f"/data/{name}", content)
        return disk

    def prefix(self, size: int, base: Offset) -> list[PlainRecord]:
        """Records of all segments before `base` and of the whole batches in its first bytes."""
        found = [record for record in self.records if record.offset < base]
        raw = self.files[f"{base:020d}.log"]
        return found + read_records(raw[:size])


def put(disk: SimDisk, path: str, content: bytes) -> None:
    with disk.open_write(path) as file:
        file.truncate(0)
        file.write_at(0, content)
        file.sync()


@pytest.fixture(scope="module")
def written() -> WrittenLog:
    return WrittenLog()


def recovered(disk: SimDisk, *, is_clean: bool = False) -> list[PlainRecord]:
    """Open, check every file, read everything, and do it once more: nothing may change."""
    opened = open_log(disk, ManualClock(), root="/data", is_clean=is_clean)
    records = read_all(opened.log)
    opened.close()
    scan = scan_partition(disk, DIRECTORY)
    assert (scan.problems, scan.notes) == ([], [])
    again = open_log(disk, ManualClock(), root="/data")
    assert read_all(again.log) == records, "I-11 a second recovery changed the log"
    again.abandon()
    return records


def cuts(content: bytes) -> Iterator[int]:
    return iter(range(len(content)))


@pytest.mark.parametrize("is_clean", [False, True])
def test_last_segment_cut_at_every_byte_gives_longest_valid_prefix(
    written: WrittenLog, is_clean: bool
) -> None:
    """Also behind a clean-shutdown marker: the end of the log is looked at in any case."""
    name = max(name for name in written.files if name.endswith(names.LOG))
    base = Offset(int(name[:20]))
    for size in cuts(written.files[name]):
        disk = written.restored()
        put(disk, f"{DIRECTORY}/{name}", written.files[name][:size])
        assert recovered(disk, is_clean=is_clean) == written.prefix(size, base), f"cut at {size}"


def test_last_segment_with_zeros_from_every_byte_on_gives_longest_valid_prefix(
    written: WrittenLog,
) -> None:
    """A file system that grew the file but lost the data leaves zeros."""
    name = max(name for name in written.files if name.endswith(names.LOG))
    base, content = Offset(int(name[:20])), written.files[name]
    for size in cuts(content):
        disk = written.restored()
        put(disk, f"{DIRECTORY}/{name}", content[:size] + bytes(len(content) - size))
        expected = written.prefix(size, base)
        found = recovered(disk)
        # The bytes that were cut may have been zeros anyway: then one batch more is whole.
        assert found[: len(expected)] == expected, f"zeros from {size}"
        assert found == written.records[: len(found)]


def test_segment_in_the_middle_cut_at_every_byte_never_leaves_a_hole(
    written: WrittenLog,
) -> None:
    """Nothing was flushed: whatever follows the cut must go, whole segments too."""
    name = sorted(name for name in written.files if name.endswith(names.LOG))[1]
    base = Offset(int(name[:20]))
    for size in cuts(written.files[name]):
        disk = written.restored()
        put(disk, f"/data/{names.RECOVERY_POINTS}", b"0\n1\nevents 0 0\n")
        put(disk, f"{DIRECTORY}/{name}", written.files[name][:size])
        assert recovered(disk) == written.prefix(size, base), f"cut at {size}"


@pytest.mark.parametrize("suffix", [names.OFFSET_INDEX, names.TIME_INDEX])
@pytest.mark.parametrize("is_clean", [False, True])
def test_newest_index_cut_at_every_byte_loses_nothing(
    written: WrittenLog, suffix: str, is_clean: bool
) -> None:
    name = max(name for name in written.files if name.endswith(suffix))
    for size in cuts(written.files[name]):
        disk = written.restored()
        put(disk, f"{DIRECTORY}/{name}", written.files[name][:size])
        assert recovered(disk, is_clean=is_clean) == written.records, f"cut at {size}"


@pytest.mark.parametrize(
    "name", [names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LEADER_EPOCHS]
)
def test_checkpoint_cut_at_every_byte_loses_nothing(written: WrittenLog, name: str) -> None:
    path = f"{DIRECTORY}/{name}" if name == names.LEADER_EPOCHS else f"/data/{name}"
    content = read_whole(written.restored(), path)
    for size in cuts(content):
        disk = written.restored()
        put(disk, path, content[:size])
        assert recovered(disk) == written.records, f"cut at {size}"
        opened = open_log(disk, ManualClock(), root="/data")
        assert opened.log.end_offset_for_epoch(LeaderEpoch(1)).end_offset == (
            next(batch[0].offset for number, batch in enumerate(written.batches) if number >= 10)
        )
        opened.abandon()


@pytest.mark.parametrize("is_clean", [False, True])
def test_every_snapshot_cut_at_every_byte_keeps_producer_state(
    written: WrittenLog, is_clean: bool
) -> None:
    """What read_committed shows depends on producer state: it must come out the same."""
    for name in [name for name in written.files if name.endswith(names.SNAPSHOT)]:
        for size in cuts(written.files[name]):
            disk = written.restored()
            put(disk, f"{DIRECTORY}/{name}", written.files[name][:size])
            opened = open_log(disk, ManualClock(), root="/data", is_clean=is_clean)
            opened.log.set_high_watermark(written.high_watermark)
            found = read_all(opened.log, isolation=Isolation.COMMITTED)
            opened.abandon()
            assert found == written.committed, f"{name} cut at {size}"


def test_clean_shutdown_marker_cut_at_every_byte_counts_as_clean_without_an_epoch(
    written: WrittenLog,
) -> None:
    from millstream.model.ids import BrokerEpoch

    disk = written.restored()
    clean_shutdown.write(disk, "/data", BrokerEpoch(42))
    (name,) = [one for one in disk.list_directory("/data") if "clean" in one and "shut" in one]
    content = read_whole(disk, f"/data/{name}")
    for size in cuts(content):
        put(disk, f"/data/{name}", content[:size])
        found = clean_shutdown.read_and_remove(disk, "/data")
        assert found is not None
        assert found.broker_epoch is None
        assert not clean_shutdown.is_present(disk, "/data")


def test_every_flipped_byte_of_the_unflushed_tail_is_cut_off(written: WrittenLog) -> None:
    name = max(name for name in written.files if name.endswith(names.LOG))
    content = written.files[name]
    for position in range(len(content)):
        disk = written.restored()
        damaged = bytearray(content)
        damaged[position] ^= 0x5A
        put(disk, f"{DIRECTORY}/{name}", bytes(damaged))
        found = recovered(disk)
        # Base offset and leader epoch are outside the CRC: there a flip may look like a gap.
        kept = [record for record in found if record.offset < int(name[:20])]
        assert kept == [one for one in written.records if one.offset < int(name[:20])]
        assert len(found) <= len(written.records)


def test_sweep_covers_a_log_worth_sweeping(written: WrittenLog) -> None:
    kinds = {name.removeprefix(name[:20]) for name in written.files if name[0] == "0"}
    assert {names.LOG, names.OFFSET_INDEX, names.TIME_INDEX, names.SNAPSHOT} <= kinds
    assert names.TXN_INDEX in kinds
    assert len(written.log.segments) == 3
    assert all(
        written.files[max(one for one in written.files if one.endswith(suffix))]
        for suffix in (names.LOG, names.OFFSET_INDEX, names.TIME_INDEX)
    )
    assert SMALL_SEGMENTS.segment_bytes > max(map(len, written.files.values()))


# -- the sweep finds what it is for


def trust_the_tail(patch: pytest.MonkeyPatch) -> None:
    """A clean-shutdown marker exempts the end of the log from any look."""
    patch.setattr(_Loader, "_is_tail_sound", lambda self, segment: True)


def leave_the_torn_bytes(patch: pytest.MonkeyPatch) -> None:
    """Recovery notes where the log ends and leaves the rest of a batch in the file."""
    patch.setattr(recovery, "_cut", lambda segment, end: None)


def keep_what_follows_a_cut(patch: pytest.MonkeyPatch) -> None:
    """Segments behind the first bad byte stay, and so does a hole."""
    patch.setattr(_Loader, "_cut_segments", lambda self, segments: None)
    patch.setattr(_Loader, "_is_after_hole", lambda self, segment, end: False)


def believe_a_torn_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A snapshot that cannot be read counts as one without producers."""

    def trusting(raw: bytes, *, end_offset: Offset) -> ProducerStates:
        try:
            return decode(raw, end_offset=end_offset)
        except CorruptSnapshot:
            return ProducerStates()

    patch.setattr(producer_log, "decode", trusting)


Sweep = Callable[[WrittenLog], None]
PLANTS: list[tuple[Callable[[pytest.MonkeyPatch], None], Sweep]] = [
    (
        trust_the_tail,
        lambda log: test_last_segment_cut_at_every_byte_gives_longest_valid_prefix(log, True),
    ),
    (
        leave_the_torn_bytes,
        lambda log: test_last_segment_cut_at_every_byte_gives_longest_valid_prefix(log, False),
    ),
    (
        keep_what_follows_a_cut,
        test_segment_in_the_middle_cut_at_every_byte_never_leaves_a_hole,
    ),
    (
        believe_a_torn_snapshot,
        lambda log: test_every_snapshot_cut_at_every_byte_keeps_producer_state(log, True),
    ),
]


@pytest.mark.parametrize(("plant", "sweep"), PLANTS, ids=[one.__name__ for one, _ in PLANTS])
def test_sweep_catches_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None],
    sweep: Sweep,
    written: WrittenLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolated)):
        sweep(written)

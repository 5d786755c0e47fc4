"""Files with the name of a segment that do not continue their log; what a start says is gone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.storage.log_stories import batch_of
from kits.storage.manager_stories import ONE, TOPIC_ID, TWO
from millstream.kernels.errors import Reason
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, LeaderEpoch, Offset
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.sim.background import InlineBackground

RECORDS = 100
EPOCH = BrokerEpoch(9)
GARBAGE = bytes(range(1, 251)) * 2


class Place:
    """Log files on a real disk, started again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manager = self._manager()
        self.start()
        for partition in (ONE, TWO):
            log = self.manager.create(partition, TOPIC_ID, SMALL_SEGMENTS)
            for number in range(RECORDS):
                batch = batch_of(b"%0*d" % (50, number))
                log.append_as_leader(batch, leader_epoch=LeaderEpoch(0))
            log.set_high_watermark(Offset(RECORDS))

    def _manager(self) -> LogManager:
        return LogManager(
            StorageDependencies(OsDisk(), SystemClock(), SeededRandomness(1), InlineBackground()),
            [str(self.root)],
        )

    def start(self) -> StartReport:
        self.manager = self._manager()
        return self.manager.start(lambda _partition, _topic_id: SMALL_SEGMENTS)

    def stop(self, *, is_clean: bool) -> None:
        self.manager.close(broker_epoch=EPOCH)
        if not is_clean:
            (self.root / ".kafka_cleanshutdown").unlink()

    def segment(self, base: int) -> Path:
        return self.root / str(ONE) / f"{base:020d}.log"

    @property
    def bases(self) -> list[int]:
        return sorted(int(one.stem) for one in (self.root / str(ONE)).glob("*.log"))

    def offsets(self) -> list[int]:
        return [one.offset for one in read_all(self.manager.get(ONE))]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.manager.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("content", [b"", GARBAGE, bytes(500)], ids=["empty", "garbage", "zeros"])
@pytest.mark.parametrize("base", [RECORDS + 5, 5_000, 2**62])
def test_a_file_beyond_the_end_does_not_move_the_end(
    place: Place, base: int, content: bytes, is_clean: bool
) -> None:
    place.stop(is_clean=is_clean)
    stray = place.segment(base)
    stray.write_bytes(content)
    report = place.start()
    assert place.offsets() == list(range(RECORDS))
    assert report.loaded[ONE].set_aside == [f"{stray.name}.stray"]
    assert not report.loaded[ONE].has_lost
    assert not stray.exists()
    assert stray.with_name(f"{stray.name}.stray").read_bytes() == content
    log = place.manager.get(ONE)
    assert log.append_as_leader(batch_of(b"next"), leader_epoch=LeaderEpoch(0)).base_offset == 100
    place.stop(is_clean=True)
    assert place.start().loaded[ONE].set_aside == [], "once is enough"
    assert place.offsets() == list(range(RECORDS + 1))


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_empty_file_in_the_middle_hides_nothing(place: Place, is_clean: bool) -> None:
    """A follower that truncated into such a file broke an invariant, and its process ended."""
    place.stop(is_clean=is_clean)
    inside = place.bases[2] + 3
    place.segment(inside).write_bytes(b"")
    report = place.start()
    assert place.offsets() == list(range(RECORDS))
    assert report.loaded[ONE].set_aside == [f"{inside:020d}.log.stray"]
    log = place.manager.get(ONE)
    log.truncate_to(Offset(inside + 1), is_unclean=True)
    assert log.log_end == inside + 1


def test_garbage_in_the_middle_costs_no_record_of_a_recovery(place: Place) -> None:
    place.stop(is_clean=False)
    (place.root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    inside = place.bases[2] + 3
    place.segment(inside).write_bytes(GARBAGE)
    report = place.start()
    assert place.offsets() == list(range(RECORDS))
    assert report.loaded[ONE].set_aside == [f"{inside:020d}.log.stray"]


def test_a_second_stray_of_the_same_name_does_not_replace_the_first(place: Place) -> None:
    for content in (b"one", b"two"):
        place.stop(is_clean=True)
        place.segment(5_000).write_bytes(content)
        place.start()
    kept = sorted((place.root / str(ONE)).glob("*.stray*"))
    assert [one.read_bytes() for one in kept] == [b"one", b"two"]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "name", ["00000000000000005000.index", "00000000000000005000.snapshot", "notes.log", "x.tmp"]
)
def test_other_stray_files_cost_nothing(place: Place, name: str, is_clean: bool) -> None:
    place.stop(is_clean=is_clean)
    (place.root / str(ONE) / name).write_bytes(GARBAGE)
    report = place.start()
    assert place.offsets() == list(range(RECORDS))
    assert not report.unusable_partitions
    assert not report.failed_directories


# -- what is gone


def test_what_recovery_cuts_is_known_by_offsets_records_and_bytes(place: Place) -> None:
    place.stop(is_clean=False)
    newest = place.segment(place.bases[-1])
    raw = bytearray(newest.read_bytes())
    size = len(raw) // (RECORDS - place.bases[-1])
    raw[-2 * size + 70] ^= 1  # a record of the last batch but one
    newest.write_bytes(raw)
    lost = place.start().loaded[ONE]
    assert lost.has_lost
    assert (lost.log_end, lost.lost_records, lost.cut_bytes) == (98, 2, 2 * size)
    assert (lost.cut_reason, lost.stored_high_watermark) == (Reason.CRC, RECORDS)


@pytest.mark.parametrize(("left_bytes", "known"), [(-1, 3), (61, 3), (27, 3), (26, 2), (5, 2)])
def test_the_records_of_a_torn_batch_count_while_its_header_says_how_many(
    place: Place, left_bytes: int, known: int
) -> None:
    """Nothing else knows of them before the high watermark is stored again."""
    place.stop(is_clean=False)
    (place.root / "replication-offset-checkpoint").write_text("0\n0\n")
    newest = place.segment(place.bases[-1])
    raw = bytearray(newest.read_bytes())
    size = len(raw) // (RECORDS - place.bases[-1])
    raw[-3 * size + 70] ^= 1  # a record of the last batch but two
    newest.write_bytes(raw[: len(raw) - size + left_bytes % size])
    lost = place.start().loaded[ONE]
    assert (lost.log_end, lost.lost_records) == (RECORDS - 3, known)


def test_segments_behind_damage_are_kept_under_another_name(place: Place) -> None:
    place.stop(is_clean=False)
    (place.root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    bases = place.bases
    damaged, behind = place.segment(bases[1]), [place.segment(one) for one in bases[2:]]
    contents = [one.read_bytes() for one in behind]
    damaged.write_bytes(damaged.read_bytes()[:-10])
    lost = place.start().loaded[ONE]
    assert lost.log_end == bases[2] - 1
    assert lost.lost_records == RECORDS - lost.log_end
    kept = [one.with_name(f"{one.name}.stray") for one in behind]
    assert [one.read_bytes() for one in kept] == contents
    assert sorted(lost.set_aside) == [one.name for one in kept]


@pytest.mark.parametrize("left", ["whole batches", "nothing", "half a batch"])
def test_a_broker_whose_log_lost_its_end_while_it_was_down_proves_nothing(
    place: Place, left: str
) -> None:
    """With the proof of its clean stop it would stay in sync without what it acknowledged."""
    place.stop(is_clean=True)
    newest = place.segment(place.bases[-1])
    raw = newest.read_bytes()
    size = len(raw) // (RECORDS - place.bases[-1])
    sizes = {"whole batches": len(raw) - size, "nothing": 0, "half a batch": len(raw) - size // 2}
    newest.write_bytes(raw[: sizes[left]])
    report = place.start()
    assert report.loaded[ONE].lost_records == RECORDS - place.manager.get(ONE).log_end > 0
    assert not report.loaded[TWO].has_lost
    assert report.last_broker_epoch == NO_BROKER_EPOCH


def test_a_clean_stop_of_whole_logs_is_a_proof(place: Place) -> None:
    place.stop(is_clean=True)
    assert place.start().last_broker_epoch == EPOCH

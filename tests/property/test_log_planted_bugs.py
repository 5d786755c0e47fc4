"""The simulation of the log catches the bugs it is for: each is planted here and must be found."""

from collections.abc import Callable, Sequence

import pytest

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.model.invariant import InvariantViolated
from millstream.runtime.disk import File
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.log.log import Log
from millstream.storage.producers.machine import ProducerStates
from millstream.storage.producers.producer_log import ProducerLog
from millstream.storage.recovery.loader import _Loader
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.sparse_index import SparseIndex
from millstream.storage.segments.txn_index import TransactionIndex
from millstream.testing.sim.disk import SimDisk, SimFile
from millstream.testing.simulation.log.driver import ModelMismatch
from millstream.testing.simulation.log.simulation import simulate_log

SEEDS = 250
STEPS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


def flush_without_fsync(patch: pytest.MonkeyPatch) -> None:
    """Everything is done as it should be, but the files' content is never synced."""

    def names_alone(disk: SimDisk, files: Sequence[File], directories: Sequence[str]) -> None:
        del files
        for path in directories:
            disk.sync_directory(path)

    patch.setattr(SimDisk, "sync_many", names_alone)


def holes_are_taken_for_compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_Loader, "_is_after_hole", lambda self, segment, end: False)


def recovery_trusts_crcs(patch: pytest.MonkeyPatch) -> None:
    walk = Segment.walk

    def unchecked(self: Segment, position: int = 0, *, check_crc: bool = False) -> object:
        return walk(self, position, check_crc=False)

    patch.setattr(Segment, "walk", unchecked)


def truncation_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    truncate, sync = Segment.truncate, SimFile.sync

    def lazily(self: Segment, *, end_offset: Offset, end_position: int) -> None:
        patch.setattr(SimFile, "sync", lambda file: None)
        truncate(self, end_offset=end_offset, end_position=end_position)
        patch.setattr(SimFile, "sync", sync)

    patch.setattr(Segment, "truncate", lazily)


def truncation_keeps_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerLog, "rebuild", lambda self, segments, log_start, log_end: None)


def truncation_keeps_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderEpochs, "truncate_from_end", lambda self, end_offset: None)


def truncation_keeps_index_entries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SparseIndex, "_cut", lambda self, entry_count: None)


def recovery_point_inside_the_active_segment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "recovery_start", property(lambda self: self.recovery_point))


def aborted_transactions_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionIndex, "append", lambda self, entry: None)


def duplicates_are_not_recognised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerStates, "check", lambda self, batch, origin: None)


def readers_see_past_the_last_stable_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "last_stable_offset", property(lambda self: self.high_watermark))


PLANTS: list[Plant] = [
    flush_without_fsync,
    holes_are_taken_for_compaction,
    recovery_trusts_crcs,
    truncation_is_not_synced,
    truncation_keeps_producers,
    truncation_keeps_epochs,
    truncation_keeps_index_entries,
    recovery_point_inside_the_active_segment,
    aborted_transactions_are_forgotten,
    duplicates_are_not_recognised,
    readers_see_past_the_last_stable_offset,
]


def first_seed_that_fails() -> int | None:
    for seed in range(SEEDS):
        try:
            simulate_log(seed, steps=STEPS)
        except (ModelMismatch, OperatingError, InvariantViolated):
            return seed
    return None


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert first_seed_that_fails() is not None, f"{SEEDS} seeds did not notice: {plant.__name__}"


def test_simulation_without_a_planted_bug_passes_and_does_something() -> None:
    counts = simulate_log(0, steps=STEPS)
    for seed in range(1, 40):
        counts.update(simulate_log(seed, steps=STEPS))
    interesting = {"lose_power", "kill", "truncate", "roll", "lose_index", "compact", "cleanings"}
    assert {name for name in interesting if not counts[name]} == set()

"""The age of segments without timestamps, for retention: that of the file, as in Kafka."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kits.storage.compaction_kit import COMPACT, Bench, sim_disk
from kits.storage.manager_stories import ONE
from kits.storage.move_kit import A, B, Mover
from millstream.model.ids import NO_TIMESTAMP, TimestampMs
from millstream.runtime.os_disk import OsDisk
from millstream.storage.retention import DeletionReason
from millstream.testing.sim.clock import ManualClock

HOUR_MS = 3_600_000
BOTH = replace(COMPACT, cleanup_delete=True, retention_ms=HOUR_MS)


def reasons(bench: Bench) -> list[DeletionReason]:
    return bench.log.plan_retention(TimestampMs(bench.clock.wall_ms())).reasons


def emptied(*, wait_ms: int = HOUR_MS // 2) -> Bench:
    """The first segment has a batch without records, kept for its producer's sake."""
    bench = Bench(config=BOTH)
    bench.append([(b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0)
    bench.seal()
    bench.clock.advance(wait_ms)
    bench.put(a="2")
    bench.seal()
    bench.clean()
    first = next(iter(bench.log.segments))
    assert first.size_bytes
    assert first.largest_timestamp().timestamp_ms == NO_TIMESTAMP
    return bench


@pytest.fixture
def one_segment_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments that were cleaned stay two."""
    monkeypatch.setattr(
        "millstream.storage.compaction.job.group_sources",
        lambda sources, _: [[one] for one in sources],
    )


@pytest.mark.usefixtures("one_segment_each")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_compaction_emptied_is_as_old_as_its_records_were(is_restarted: bool) -> None:
    bench = emptied()
    if is_restarted:
        bench = bench.reopened()
        bench.settle_watermarks()
    bench.clock.advance(HOUR_MS // 2)
    assert reasons(bench) == []
    bench.clock.advance(1)
    assert reasons(bench) == [DeletionReason.AGE]


@pytest.mark.usefixtures("one_segment_each")
def test_another_cleaning_does_not_make_it_younger() -> None:
    bench = emptied()
    bench.clock.advance(HOUR_MS // 4)
    bench.put(a="3")
    bench.seal()
    bench.clean()
    bench.clock.advance(HOUR_MS // 4 + 1)
    assert reasons(bench)[:1] == [DeletionReason.AGE]


def test_of_several_segments_in_one_the_youngest_counts() -> None:
    bench = Bench(config=BOTH)
    for number in range(3):
        bench.append(
            [(b"a", b"%d" % number)], producer_id=number, producer_epoch=0, base_sequence=0
        )
        bench.seal()
        bench.clock.advance(HOUR_MS // 4)
    bench.append([(b"a", b"x" * 1900)])
    bench.seal()
    bench.clean()
    assert next(iter(bench.log.segments)).largest_timestamp().timestamp_ms == NO_TIMESTAMP
    bench.clock.advance(HOUR_MS * 3 // 4)  # since the youngest of the three, an hour
    assert reasons(bench) == []
    bench.clock.advance(1)
    assert reasons(bench) == [DeletionReason.AGE]


def test_where_nobody_knows_the_age_counts_from_the_first_look() -> None:
    """A simulated disk has no clock; nothing may go for want of a time."""
    bench = Bench(config=BOTH)
    bench.append([(b"a", b"1")], timestamps=[NO_TIMESTAMP])
    bench.seal()
    path = next(iter(bench.log.segments)).log.path
    assert sim_disk(bench).modified_ms(path) is None
    bench.clock.advance(10 * HOUR_MS)
    assert reasons(bench) == []
    bench.clock.advance(HOUR_MS + 1)
    assert reasons(bench) == [DeletionReason.AGE]


def test_a_restart_does_not_make_records_without_timestamps_younger(tmp_path: Path) -> None:
    clock = ManualClock()
    bench = Bench(OsDisk(), BOTH, root=str(tmp_path), clock=clock)
    bench.append([(b"a", b"1")], timestamps=[NO_TIMESTAMP])
    bench.seal()
    path = next(iter(bench.log.segments)).log.path
    written_ms = clock.wall_ms()
    os.utime(path, ns=(written_ms * 1_000_000, written_ms * 1_000_000))
    clock.advance(HOUR_MS)
    bench = bench.reopened()
    bench.settle_watermarks()
    assert reasons(bench) == []
    clock.advance(1)
    assert reasons(bench) == [DeletionReason.AGE]
    bench.opened.close()


def test_a_segment_that_moves_keeps_its_age() -> None:
    mover = Mover()
    segment = next(iter(mover.log.segments))
    mover.disk.set_modified_ms(segment.log.path, 5_000)
    mover.move()
    mover.finish()
    moved = next(iter(mover.log.segments))
    assert moved.log.path == segment.log.path.replace(f"{A}/{ONE}", f"{B}/{ONE}")
    assert mover.disk.modified_ms(moved.log.path) == 5_000

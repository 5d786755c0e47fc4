"""Cutting a log's end or all of it: whole batches, durable, and never below what counts."""

from dataclasses import replace

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, ROOT, Story, batch_of, of_producer
from millstream.model.errors import OffsetOutOfRange, StorageFailed
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.model.invariant import InvariantViolated
from millstream.storage import names
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec
from millstream.testing.sim.crash_fates import keep_all, keep_none
from millstream.testing.sim.durability import DROP, KEEP, FateChooser, Write


def story_of_batches() -> Story:
    """Offsets 0-2, 3-5, ... in batches of three, over several segments."""
    story = Story(config=replace(SMALL_SEGMENTS, segment_bytes=400))
    for first in range(0, 30, 3):
        values = [b"%020d" % number for number in range(first, first + 3)]
        story.lead(batch_of(*values, stamps=[NOW + first] * 3), epoch=first // 6)
    assert len(story.log.segments) > 3
    return story


@pytest.mark.parametrize("end", range(30))
def test_a_batch_goes_as_a_whole_or_stays(end: int) -> None:
    story = story_of_batches()
    expected = end // 3 * 3
    assert story.log.truncate_to(Offset(end)) == expected
    assert story.log.log_end == expected
    assert [record.offset for record in story.records()] == list(range(expected))
    latest = (expected - 3) // 6 if expected else -1
    assert story.log.latest_epoch == latest
    assert story.log.find_timestamp(TimestampMs(NOW + expected)) is None
    assert story.put(b"new", epoch=99).base_offset == expected
    story.restart()
    assert scan_partition(story.disk, DIRECTORY).problems == []
    assert story.log.log_end == expected + 1


@pytest.mark.parametrize("end", [4, 9, 17, 28])
def test_what_was_cut_off_never_comes_back(end: int) -> None:
    """I-02: a power loss right after a truncation must not bring back what others overwrote."""
    for choose in (keep_none, keep_all):
        story = story_of_batches()
        story.log.flush()
        story.store_checkpoints()
        kept = story.log.truncate_to(Offset(end))
        before = story.records()
        story.lose_power(choose)
        assert story.log.log_end == kept
        assert story.records() == before


def is_write_to(name: str) -> FateChooser:
    """Everything survives the power loss but what was written to this file."""
    return lambda change: DROP if isinstance(change, Write) and name in change.path else KEEP


def test_what_replaced_a_flushed_tail_is_not_taken_for_flushed() -> None:
    """I-11: the stored recovery point goes down with the log, or recovery would trust a hole."""
    story = Story()
    story.fill(60)
    story.log.flush()
    story.store_checkpoints()
    story.log.truncate_to(Offset(5))
    story.fill(55)
    story.lose_power(is_write_to(f"{18:020d}.log"))
    assert [record.offset for record in story.records()] == list(range(18))


def test_a_log_cut_by_recovery_is_not_trusted_beyond_its_end() -> None:
    """I-11: the epoch file is lost, so everything is checked and damage cuts the log below the
    recovery point; what is written next is not durable because something else once was.
    """
    story = Story()
    story.fill(60)
    story.log.flush()
    story.store_checkpoints()
    story.disk.remove(f"{DIRECTORY}/{names.LEADER_EPOCHS}")
    with story.disk.open_write(f"{DIRECTORY}/{0:020d}.log") as file:
        file.write_at(5 * 111 + 80, b"damage")
    story.kill()
    assert story.log.log_end == 5
    story.fill(55)
    story.lose_power(is_write_to(f"{18:020d}.log"))
    assert [record.offset for record in story.records()] == list(range(18))


def test_beyond_the_end_nothing_happens() -> None:
    story = story_of_batches()
    before = story.facts()
    assert story.log.truncate_to(Offset(30)) == 30
    assert story.log.truncate_to(Offset(99)) == 30
    assert story.facts() == before


def test_below_the_high_watermark_only_after_an_unclean_election() -> None:
    """I-08."""
    story = story_of_batches()
    story.log.set_high_watermark(Offset(15))
    before = story.facts()
    with pytest.raises(InvariantViolated, match="I-08"):
        story.log.truncate_to(Offset(14))
    assert story.facts() == before
    assert story.log.truncate_to(Offset(14), is_unclean=True) == 12
    assert story.log.high_watermark == 12


def test_below_the_log_start_is_an_error() -> None:
    story = story_of_batches()
    story.replicate_all()
    story.log.advance_log_start(Offset(10))
    with pytest.raises(OffsetOutOfRange):
        story.log.truncate_to(Offset(9), is_unclean=True)


def test_into_the_batch_of_the_log_start_leaves_an_empty_log_there() -> None:
    story = story_of_batches()
    story.log.set_high_watermark(Offset(12))
    story.log.advance_log_start(Offset(10))
    story.store_checkpoints()
    assert story.log.truncate_to(Offset(11), is_unclean=True) == 10
    assert (story.log.log_start, story.log.log_end) == (10, 10)
    assert story.put(b"new", epoch=9).base_offset == 10
    story.kill()
    assert [record.offset for record in story.records()] == [10]


def test_a_stored_high_watermark_goes_down_with_the_log() -> None:
    """Otherwise records that come later would count as replicated after a crash."""
    story = story_of_batches()
    story.log.set_high_watermark(Offset(24))
    story.store_checkpoints()
    story.log.truncate_to(Offset(9), is_unclean=True)
    story.fill(30)
    story.kill()
    assert story.log.high_watermark == 9


def test_epochs_end_where_the_log_was_cut() -> None:
    story = story_of_batches()
    story.log.truncate_to(Offset(15))
    assert story.log.end_offset_for_epoch(LeaderEpoch(2)) == (2, 15)
    assert story.log.end_offset_for_epoch(LeaderEpoch(3)) == (-1, -1)
    story.kill()
    assert story.log.end_offset_for_epoch(LeaderEpoch(2)) == (2, 15)


def test_a_failed_directory_is_not_truncated() -> None:
    """After a failure nothing may be written that a later start would take for the truth."""
    story = story_of_batches()
    story.disk.faults.fail_next("sync")
    with pytest.raises(StorageFailed):
        story.log.flush()
    files = {name: story.disk.size(f"{DIRECTORY}/{name}") for name in story.file_names()}
    for cut in (
        lambda: story.log.truncate_to(Offset(3)),
        lambda: story.log.truncate_fully(Offset(9)),
    ):
        with pytest.raises(StorageFailed):
            cut()
    assert {name: story.disk.size(f"{DIRECTORY}/{name}") for name in story.file_names()} == files


def test_a_failure_half_way_takes_the_directory_offline() -> None:
    story = story_of_batches()
    story.disk.faults.fail_next("truncate", path_part=".log")
    with pytest.raises(StorageFailed):
        story.log.truncate_to(Offset(4))
    with pytest.raises(StorageFailed):
        story.put(b"more", epoch=99)
    story.disk.faults.heal()
    story.kill()
    assert [record.offset for record in story.records()] == list(range(story.log.log_end))


def test_a_full_disk_does_not_stop_a_truncation() -> None:
    """A follower must be able to follow its new leader; the epoch file is written later."""
    story = story_of_batches()
    story.log.flush()
    story.store_checkpoints()
    story.opened.owner.store(names.RECOVERY_POINTS, {PARTITION: Offset(0)})
    story.disk.storage.capacity_bytes = 0
    assert story.log.truncate_to(Offset(10)) == 9
    assert story.opened.owner.failure is None
    assert [record.offset for record in story.records()] == list(range(9))
    story.disk.storage.capacity_bytes = None
    story.put(b"new", epoch=50)
    story.log.flush()
    story.lose_power()
    assert [record.offset for record in story.records()] == list(range(10))
    assert story.log.latest_epoch == 50


# -- all of it


def test_beginning_anew_forgets_records_producers_and_epochs() -> None:
    """A follower that was away so long that its leader's log begins after its end."""
    story = story_of_batches()
    story.put(b"p", spec=of_producer(5, 0), epoch=9)
    story.log.truncate_fully(Offset(1000))
    for again in (story.go_on, story.restart, story.kill, story.lose_power):
        again()
        assert (story.log.log_start, story.log.log_end) == (1000, 1000)
        assert story.log.high_watermark == 1000
        assert story.values() == []
        assert len(story.log.producers.states) == 0
        assert story.log.latest_epoch == -1
    story.log.append_as_follower(
        batch_of(b"a", spec=BatchSpec(base_offset=1000, leader_epoch=7, timestamp_ms=NOW))
    )
    story.log.flush()
    story.lose_power()
    assert [record.offset for record in story.records()] == [1000]


@pytest.mark.parametrize("start", [0, 7, 30])
def test_beginning_anew_inside_or_at_the_end_of_what_was_there(start: int) -> None:
    story = story_of_batches()
    story.log.truncate_fully(Offset(start))
    assert (story.log.log_start, story.log.log_end) == (start, start)
    story.put(b"new", epoch=99)
    story.kill()
    assert [(one.offset, one.value) for one in story.records()] == [(start, b"new")]


def test_files_of_what_was_cut_go_after_the_delay() -> None:
    story = story_of_batches()
    story.log.truncate_fully(Offset(50))
    assert any(name.endswith(names.DELETED) for name in story.file_names())
    story.opened.owner.delete_due(story.clock.monotonic_s())
    left = {name.partition(".")[0] for name in story.file_names() if name[0] == "0"}
    assert left == {f"{50:020d}"}
    assert story.disk.exists(ROOT)

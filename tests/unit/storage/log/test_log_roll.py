"""When a new segment begins, what retention takes, and that both survive a crash."""

from dataclasses import replace

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story, batch_of, of_producer
from millstream.model.errors import DiskFull, OffsetOutOfRange
from millstream.model.ids import Offset, TimestampMs
from millstream.storage import names
from millstream.storage.config import DAY_MS, HOUR_MS
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS
from millstream.testing.sim.crash_fates import keep_all, keep_none

BATCH = len(batch_of(bytes(40)))


def bases(story: Story) -> list[int]:
    return [int(segment.base_offset) for segment in story.log.segments]


# -- rolling


def test_a_segment_never_passes_its_size() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, segment_bytes=3 * BATCH))
    story.fill(10)
    assert bases(story) == [0, 3, 6, 9]
    story = Story(config=replace(SMALL_SEGMENTS, segment_bytes=3 * BATCH - 1))
    story.fill(5)
    assert bases(story) == [0, 2, 4]


def test_a_segment_ends_when_its_first_record_is_too_old_for_the_next() -> None:
    """segment.ms is measured between timestamps: a slow topic must not keep data forever."""
    story = Story(config=replace(SMALL_SEGMENTS, segment_ms=HOUR_MS))
    for stamp in (NOW, NOW + HOUR_MS, NOW - DAY_MS, NOW + 2):
        story.lead(batch_of(b"a", stamps=[stamp]))
    assert bases(story) == [0]
    story.clock.advance(HOUR_MS)
    story.lead(batch_of(b"a", stamps=[NOW + HOUR_MS + 1]))
    assert bases(story) == [0, 4]
    story.restart()
    story.clock.advance(HOUR_MS)
    story.lead(batch_of(b"a", stamps=[NOW + 2 * HOUR_MS + 1]))
    assert bases(story) == [0, 4]
    story.lead(batch_of(b"a", stamps=[NOW + 2 * HOUR_MS + 2]))
    assert bases(story) == [0, 4, 6]


def test_without_timestamps_the_clock_counts() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, segment_ms=HOUR_MS))
    story.lead(batch_of(b"a", stamps=[-1]))
    story.clock.jump_wall(10 * HOUR_MS)
    story.clock.advance(HOUR_MS)
    story.lead(batch_of(b"a", stamps=[-1]))
    assert bases(story) == [0]
    story.clock.advance(1)
    story.lead(batch_of(b"a", stamps=[-1]))
    assert bases(story) == [0, 2]


def test_jitter_brings_the_roll_forward_by_more_or_less() -> None:
    """So that a thousand partitions, or segments, do not roll in the same moment."""
    config = replace(SMALL_SEGMENTS, segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2)
    story = Story(config=replace(config, timestamp_after_max_ms=DAY_MS, segment_bytes=10**6))
    ages_ms: list[int] = []
    first_ms, step_ms = NOW, HOUR_MS // 60
    story.lead(batch_of(b"a", stamps=[first_ms]))
    while len(ages_ms) < 12:
        count, age_ms = len(bases(story)), 0
        while len(bases(story)) == count:
            age_ms += step_ms
            story.lead(batch_of(b"a", stamps=[first_ms + age_ms]))
        ages_ms.append(age_ms)
        first_ms += age_ms
    assert all(HOUR_MS // 2 < age_ms <= HOUR_MS + step_ms for age_ms in ages_ms)
    assert len(set(ages_ms)) >= 4


def test_jitter_wider_than_the_age_leaves_some_of_it() -> None:
    config = replace(SMALL_SEGMENTS, segment_ms=HOUR_MS, segment_jitter_ms=10**15)
    story = Story(config=config)
    for _ in range(5):
        story.lead(batch_of(b"a", stamps=[NOW]))
    assert bases(story) == [0]


def test_a_segment_ends_when_its_index_is_full() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, segment_index_bytes=16, segment_bytes=10**6))
    story.fill(30)
    assert len(bases(story)) > 2
    for segment in story.log.segments:
        assert segment.offset_index.size_bytes <= 16


def test_an_empty_segment_is_not_rolled() -> None:
    story = Story()
    assert not story.log.roll()
    story.put(b"a")
    assert story.log.roll()
    assert not story.log.roll()
    assert bases(story) == [0, 1]


def test_a_crash_right_after_a_roll_loses_nothing_that_was_flushed() -> None:
    """I-11, and nothing at all when only the process dies."""
    for choose in (keep_none, keep_all):
        story = Story()
        story.fill(5)
        story.log.flush()
        story.log.roll()
        story.lose_power(choose)
        assert len(story.values()) == 5
        story.fill(3)
        story.kill()
        assert len(story.values()) == 8


# -- retention


def retain(story: Story) -> int:
    """As the manager does it."""
    plan = story.log.plan_retention(TimestampMs(story.clock.wall_ms()))
    story.log.begin_retention(plan)
    story.opened.owner.store(names.LOG_STARTS, {PARTITION: story.log.log_start})
    return story.log.remove_segments_below_start()


def test_old_segments_go_and_the_log_starts_later() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=DAY_MS))
    story.fill(60)
    story.replicate_all()
    assert retain(story) == 0
    old = bases(story)
    newest_of_second = int(story.log.segments.closed[1].largest_timestamp().timestamp_ms)
    story.clock.advance(newest_of_second + DAY_MS - NOW)
    assert retain(story) == 1
    story.clock.advance(1)
    assert retain(story) == 1
    assert story.log.log_start == old[2]
    assert [record.offset for record in story.records()] == list(range(old[2], 60))
    with pytest.raises(OffsetOutOfRange):
        story.values(old[2] - 1)
    story.kill()
    assert story.log.log_start == old[2]


def test_when_everything_is_old_the_active_segment_goes_too() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=DAY_MS))
    story.fill(30)
    story.put(b"p", spec=of_producer(4, 0))
    story.replicate_all()
    story.clock.advance(2 * DAY_MS)
    assert retain(story) == 2
    assert (story.log.log_start, story.log.log_end) == (31, 31)
    assert bases(story) == [31]
    assert story.put(b"p", spec=of_producer(4, 0)).is_duplicate, "I-20: its retries may still come"
    assert story.put(b"next").base_offset == 31
    story.restart()
    assert story.values() == [b"next"]


def test_size_counts_from_the_newest() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, retention_bytes=20 * BATCH))
    story.fill(60)
    story.replicate_all()
    retain(story)
    assert story.log.size_bytes >= 20 * BATCH
    assert story.log.size_bytes - story.log.segments.closed[0].size_bytes < 20 * BATCH


def test_nothing_above_the_high_watermark_goes() -> None:
    """I-05."""
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=1, retention_bytes=0))
    story.fill(60)
    story.clock.advance(2 * DAY_MS)
    story.log.set_high_watermark(Offset(25))
    retain(story)
    assert story.log.log_start == 18
    assert len(story.values()) == 42


def test_records_without_timestamps_age_from_when_they_were_written() -> None:
    """Taken for very old they would go at once, and unread."""
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=DAY_MS))
    for _ in range(30):
        story.lead(batch_of(bytes(40), stamps=[-1]))
    story.replicate_all()
    assert retain(story) == 0
    story.clock.advance(DAY_MS)
    assert retain(story) == 0
    story.lead(batch_of(bytes(40), stamps=[-1]))
    story.replicate_all()
    story.clock.advance(1)
    assert retain(story) == 1, "only the closed segment: the active one was written to"
    assert len(story.values()) == 13
    story.clock.advance(DAY_MS)
    story.clock.advance(1)
    assert retain(story) == 1
    assert story.values() == []


def test_a_restart_does_not_make_records_without_timestamps_old() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=DAY_MS))
    story.lead(batch_of(bytes(40), stamps=[-1]))
    story.replicate_all()
    story.clock.advance(2 * DAY_MS)
    story.restart()
    story.replicate_all()
    assert retain(story) == 0


def test_the_log_start_is_stored_before_files_go() -> None:
    """A crash in between must not leave a log with a hole, nor bring deleted records back."""
    story = Story(config=replace(SMALL_SEGMENTS, retention_ms=DAY_MS))
    story.fill(60)
    story.replicate_all()
    story.log.flush()
    story.store_checkpoints()
    story.clock.advance(3 * DAY_MS)
    plan = story.log.plan_retention(TimestampMs(story.clock.wall_ms()))
    story.log.begin_retention(plan)
    assert story.log.remove_segments_below_start() == 0, "nothing is stored yet"
    story.opened.owner.store(names.LOG_STARTS, {PARTITION: story.log.log_start})
    story.lose_power()
    assert story.log.log_start == 60
    assert story.values() == []
    assert len(bases(story)) == 1


def test_what_retention_took_is_gone_after_any_power_loss() -> None:
    for choose in (keep_none, keep_all):
        story = Story(config=replace(SMALL_SEGMENTS, retention_bytes=20 * BATCH))
        story.fill(60)
        story.replicate_all()
        story.log.flush()
        story.store_checkpoints()
        retain(story)
        before = story.records()
        story.lose_power(choose)
        assert story.records() == before


# -- a full disk


def full(story: Story, *, room: int = 0) -> None:
    story.disk.storage.capacity_bytes = story.disk.storage.used_bytes + room


@pytest.mark.parametrize("room", range(0, 140, 7))
def test_an_append_that_does_not_fit_changes_nothing(room: int) -> None:
    """Refused, readable, and as before once there is room again."""
    story = Story()
    story.fill(5)
    story.put(b"p", spec=of_producer(1, 0))
    full(story, room=room)
    before = story.facts()
    if room < 111:
        with pytest.raises(DiskFull):
            story.put(bytes(40), spec=of_producer(1, 1))
        assert story.facts() == before
        assert story.opened.owner.failure is None
    story.disk.storage.capacity_bytes = None
    assert story.put(bytes(40), spec=of_producer(1, 1)).base_offset == 6
    story.kill()
    assert story.log.log_end == 7


@pytest.mark.parametrize("room", range(0, 400, 13))
def test_a_roll_that_does_not_fit_leaves_the_log_usable(room: int) -> None:
    story = Story()
    while story.log.size_bytes + BATCH <= SMALL_SEGMENTS.segment_bytes:
        story.fill(1)
    count = int(story.log.log_end)
    full(story, room=room)
    before = story.facts()
    try:
        story.fill(1)
        count += 1
    except DiskFull:
        assert story.facts()[:6] == before[:6]
    assert story.opened.owner.failure is None
    assert len(story.values()) == count
    story.disk.storage.capacity_bytes = None
    story.fill(20)
    assert len(story.values()) == count + 20
    story.kill()
    assert [record.offset for record in story.records()] == list(range(count + 20))


@pytest.mark.parametrize("room", range(70, 120, 3))
def test_an_abort_marker_on_a_full_disk_is_whole_or_not_there(room: int) -> None:
    """The log may have room for the marker when the list of aborted transactions has none."""
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    full(story, room=room)
    try:
        story.end(1, is_commit=False)
        is_there = True
    except DiskFull:
        is_there = False
    assert story.opened.owner.failure is None
    story.replicate_all()
    assert story.log.last_stable_offset == (2 if is_there else 0)
    story.disk.storage.capacity_bytes = None
    if not is_there:
        story.end(1, is_commit=False)
    story.put(b"b", spec=of_producer(1, 1, txn=True))
    story.end(1, is_commit=False)
    story.replicate_all()
    expected = [(1, 0, 1, 2), (1, 2, 3, 4)]
    assert story.log.segments.active.txn_index.entries() == expected
    story.log.roll()
    story.fill(1)
    story.restart()
    assert story.log.segments.closed[0].txn_index.entries() == expected


def test_an_aborted_transaction_that_waited_for_room_is_saved_with_its_segment() -> None:
    """I-23: a closed segment's list is read from its file."""
    for end in (Story.restart, Story.kill):
        story = Story()
        story.put(b"a", spec=of_producer(1, 0, txn=True))
        full(story, room=90)
        story.end(1, is_commit=False)
        story.disk.storage.capacity_bytes = None
        story.log.roll()
        story.log.flush()
        story.store_checkpoints()
        end(story)
        assert story.log.segments.closed[0].txn_index.entries() == [(1, 0, 1, 2)]


def test_nothing_of_a_refused_append_comes_back_after_a_crash() -> None:
    """A part of it was written: whole batches with the right offsets, behind what came instead."""
    story = Story()
    story.fill(2)
    size = len(batch_of(bytes(40)))
    full(story, room=2 * size + size // 2)
    with pytest.raises(DiskFull):
        story.lead(batch_of(bytes(40)) + batch_of(b"B" * 40) + batch_of(b"C" * 40))
    story.disk.storage.capacity_bytes = None
    story.put(b"A" * 40)
    story.kill()
    assert story.values()[2:] == [b"A" * 40]


def test_a_flush_on_a_full_disk_fails_without_failing_the_directory() -> None:
    """There may be no room for the leader-epoch file; the data is safe and nothing is lost."""
    story = Story()
    story.put(b"a", epoch=4)
    full(story)
    with pytest.raises(DiskFull):
        story.log.flush()
    assert story.opened.owner.failure is None
    assert story.log.recovery_point == 0
    story.disk.storage.capacity_bytes = None
    story.log.flush()
    assert story.log.recovery_point == 1
    story.lose_power()
    assert story.values() == [b"a"]
    assert story.log.latest_epoch == 4


def test_index_files_of_a_clean_stop_are_durable() -> None:
    """A clean start believes the newest segment's indexes: they must be there after power loss."""
    story = Story()
    story.fill(12)
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.end(1, is_commit=False)
    story.log.flush()
    story.store_checkpoints()
    story.opened.close()
    sizes = {name: story.disk.size(f"{DIRECTORY}/{name}") for name in story.file_names()}
    story.disk.crash()
    story.disk = story.disk.after_crash(keep_none)
    for name, size in sizes.items():
        if name.endswith(("index", ".log")):
            assert story.disk.size(f"{DIRECTORY}/{name}") == size
    story.open(is_clean=True)
    found = story.log.find_timestamp(TimestampMs(NOW + 11))
    assert found is not None
    assert found.offset == 11

"""Reading a log: whole batches, within limits, never past what the reader may see."""

from dataclasses import replace

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story, batch_of
from millstream.kernels.compression import Codec
from millstream.model.errors import CorruptRecords, OffsetOutOfRange, StorageFailed
from millstream.model.ids import Offset, TimestampMs
from millstream.storage.config import TimestampType
from millstream.storage.log.reader import Isolation
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.record_batches import BatchSpec, build_batch, read_records

END, HIGH, COMMITTED = Isolation.LOG_END, Isolation.HIGH_WATERMARK, Isolation.COMMITTED


def read(
    story: Story, offset: int, *, size_max: int = 1 << 20, isolation: Isolation = END
) -> bytes:
    return story.log.read(Offset(offset), size_max=size_max, isolation=isolation).data.read()


def offsets(data: bytes) -> list[int]:
    return [record.offset for record in read_records(data)]


def three_batches() -> Story:
    """Offsets 0-2, 3-5 and 6-8."""
    story = Story()
    for first in (0, 3, 6):
        story.put(*(b"%d" % number for number in range(first, first + 3)))
    return story


@pytest.mark.parametrize("offset", range(9))
def test_a_read_inside_a_batch_begins_with_that_batch(offset: int) -> None:
    """Batches are opaque: the client skips what lies before the offset it requested."""
    found = offsets(read(three_batches(), offset))
    assert found == list(range(offset // 3 * 3, 9))


def test_the_size_limit_may_cut_the_last_batch_but_never_the_first() -> None:
    story = three_batches()
    size = len(batch_of(b"0", b"1", b"2"))
    for size_max in range(3 * size + 5):
        data = read(story, 0, size_max=size_max)
        assert len(data) == max(size, min(size_max, 3 * size))
        assert offsets(data) == list(range(len(data) // size * 3))


def test_at_the_end_there_is_nothing_and_beyond_it_an_error() -> None:
    story = three_batches()
    assert read(story, 9) == b""
    with pytest.raises(OffsetOutOfRange) as refused:
        read(story, 10)
    assert (refused.value.requested, refused.value.start, refused.value.end) == (10, 0, 9)
    with pytest.raises(OffsetOutOfRange):
        read(story, -1)


def test_below_the_log_start_is_an_error() -> None:
    story = three_batches()
    story.replicate_all()
    story.log.advance_log_start(Offset(4))
    with pytest.raises(OffsetOutOfRange) as refused:
        read(story, 3)
    assert refused.value.start == 4
    assert offsets(read(story, 4)) == [3, 4, 5, 6, 7, 8]
    assert [record.offset for record in story.records()] == [4, 5, 6, 7, 8]


def test_reads_cross_segments_and_find_every_offset() -> None:
    """I-02."""
    story = Story()
    story.fill(100)
    assert len(story.log.segments) > 4
    for start in range(100):
        assert [record.offset for record in read_all(story.log, start=Offset(start))] == list(
            range(start, 100)
        )


def test_one_read_stays_within_a_segment() -> None:
    """A slice is one range of one file."""
    story = Story()
    story.fill(40)
    ends = [segment.base_offset for segment in story.log.segments][1:]
    assert offsets(read(story, 0))[-1] == ends[0] - 1
    assert offsets(read(story, ends[0]))[0] == ends[0]


@pytest.mark.parametrize("high_watermark", [0, 3, 6, 9])
def test_consumers_see_nothing_at_or_above_the_high_watermark(high_watermark: int) -> None:
    """I-07. Followers see all of it: they make the high watermark move."""
    story = three_batches()
    story.log.set_high_watermark(Offset(high_watermark))
    assert offsets(read(story, 0, isolation=HIGH)) == list(range(high_watermark))
    assert offsets(read(story, 0, isolation=COMMITTED)) == list(range(high_watermark))
    assert offsets(read(story, 0)) == list(range(9))
    assert read(story, high_watermark, isolation=HIGH) == b""
    result = story.log.read(Offset(0), size_max=1, isolation=HIGH)
    assert (result.high_watermark, result.log_start) == (high_watermark, 0)


@pytest.mark.parametrize("high_watermark", [1, 2, 4, 5, 7, 8])
def test_a_batch_that_the_high_watermark_cuts_is_not_shown(high_watermark: int) -> None:
    """I-07: after a crash the checkpoint may lie inside a batch, which goes out whole or not."""
    story = three_batches()
    story.log.set_high_watermark(Offset(high_watermark))
    for offset in range(high_watermark):
        found = offsets(read(story, offset, size_max=1, isolation=HIGH))
        assert all(one < high_watermark for one in found)
    assert offsets(read(story, 0, isolation=HIGH)) == list(range(high_watermark // 3 * 3))


@pytest.mark.parametrize("high_watermark", range(0, 41, 5))
def test_the_high_watermark_bounds_reads_in_every_segment(high_watermark: int) -> None:
    story = Story()
    story.fill(40)
    story.log.set_high_watermark(Offset(high_watermark))
    seen = read_all(story.log, isolation=HIGH)
    assert [record.offset for record in seen] == list(range(high_watermark))


# -- by time


def stamped(stamps: list[list[int]], *, codec: Codec = Codec.NONE) -> Story:
    story = Story()
    for number, batch in enumerate(stamps):
        spec = BatchSpec(codec=codec)
        pairs = [(b"k", b"%d" % number)] * len(batch)
        story.lead(build_batch(pairs, spec, timestamps=[NOW + one for one in batch]))
    return story


@pytest.mark.parametrize("codec", list(Codec))
def test_the_first_record_at_or_after_a_time_is_found(codec: Codec) -> None:
    """By offset, not by time: timestamps need not be in order."""
    stamps = [[5, 3, 9], [2], [7, 20, 11], [4], [30]]
    story = stamped(stamps, codec=codec)
    flat = [one for batch in stamps for one in batch]
    for age_ms in range(-1, 33):
        found = story.log.find_timestamp(TimestampMs(NOW + age_ms))
        expected = next((at for at, one in enumerate(flat) if one >= age_ms), None)
        assert (found.offset if found else None) == expected
        if found is not None and expected is not None:
            assert found.timestamp_ms == NOW + flat[expected]


def test_times_are_found_across_segments_whatever_their_order() -> None:
    story = Story()
    stamps = [(37 * number) % 101 for number in range(101)]
    for one in stamps:
        story.lead(batch_of(bytes(60), stamps=[NOW + one]))
    assert len(story.log.segments) > 4
    for age_ms in range(102):
        found = story.log.find_timestamp(TimestampMs(NOW + age_ms))
        expected = next((at for at, one in enumerate(stamps) if one >= age_ms), None)
        assert (found.offset if found else None) == expected
    newest = story.log.find_max_timestamp()
    assert newest == (stamps.index(100), NOW + 100, 0)


def test_what_lies_below_the_log_start_is_not_found_by_time() -> None:
    story = stamped([[50, 1, 2], [3, 60, 4], [5]])
    story.replicate_all()
    story.log.advance_log_start(Offset(5))
    found, newest = story.log.find_timestamp(TimestampMs(NOW + 1)), story.log.find_max_timestamp()
    assert found == (5, NOW + 4, 0)
    assert newest == (6, NOW + 5, 0)
    assert story.log.find_timestamp(TimestampMs(NOW + 6)) is None


def test_log_append_time_is_found_by_the_brokers_clock() -> None:
    config = replace(SMALL_SEGMENTS, timestamp_type=TimestampType.LOG_APPEND_TIME)
    story = Story(config=config)
    for _ in range(3):
        story.lead(batch_of(b"a", b"b", stamps=[5, 1]))
        story.clock.advance(10)
    assert story.log.find_timestamp(TimestampMs(NOW + 5)) == (2, NOW + 10, 0)
    assert story.log.find_max_timestamp() == (4, NOW + 20, 0)


def test_an_empty_log_has_no_times() -> None:
    story = Story()
    assert story.log.find_timestamp(TimestampMs(0)) is None
    assert story.log.find_max_timestamp() is None


def test_records_without_timestamps_have_no_largest_one() -> None:
    story = Story()
    story.lead(batch_of(b"a", stamps=[-1]))
    assert story.log.find_timestamp(TimestampMs(0)) is None
    assert story.log.find_max_timestamp() is None


# -- damage in the data itself


def damage(story: Story, base: int, at: int, mask: int = 0xFF) -> None:
    """Flip bits in a segment's log behind the broker's back."""
    with story.disk.open_write(f"{DIRECTORY}/{base:020d}.log") as file:
        byte = file.read_at(at, 1)[0]
        file.write_at(at, bytes([byte ^ mask]))


def damaged_story(at: int) -> tuple[Story, int]:
    """Damage in the third batch of the first, closed, segment; its size."""
    story = Story()
    story.fill(60)
    size = len(batch_of(bytes(40)))
    damage(story, 0, 2 * size + at)
    for segment in story.log.segments:
        segment.forget()  # nothing of the sound file stays in memory
    return story, size


def test_a_damaged_payload_is_not_served() -> None:
    story, size = damaged_story(80)
    assert offsets(read(story, 0, size_max=2 * size)) == [0, 1]
    with pytest.raises(CorruptRecords, match=f"CRC at byte {2 * size}"):
        read(story, 0)
    with pytest.raises(CorruptRecords):
        story.log.find_timestamp(TimestampMs(NOW + 2))
    assert story.opened.owner.failure is None


@pytest.mark.parametrize("at", [8, 9, 10, 16])
def test_a_damaged_header_refuses_what_it_hides_and_nothing_else(at: int) -> None:
    """A typed error, no failed directory, and offsets that an index leads to stay readable."""
    story, _ = damaged_story(at)
    first_end = next(iter(story.log.segments.closed[1:])).base_offset
    with pytest.raises(CorruptRecords):
        read(story, 2)
    with pytest.raises(CorruptRecords):
        story.log.find_timestamp(TimestampMs(NOW + 2))
    assert offsets(read(story, first_end - 1)) == [first_end - 1]
    assert [one.offset for one in read_all(story.log, start=first_end)] == [*range(first_end, 60)]
    assert story.opened.owner.failure is None
    with pytest.raises(CorruptRecords):
        read(story, 2)
    assert offsets(read(story, first_end - 1)) == [first_end - 1]


def test_a_segment_that_became_shorter_than_its_batches_fails_its_log() -> None:
    story = Story()
    story.fill(3)
    with story.disk.open_write(f"{DIRECTORY}/{0:020d}.log") as file:
        file.truncate(30)
    with pytest.raises(StorageFailed, match="shorter"):
        read(story, 0)
    assert story.log.owner.failure is None

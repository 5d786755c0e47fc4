"""Searches by time, stopped halfway: the log changes while another thread searches."""

from collections.abc import Callable
from typing import Any

import pytest

from kits.storage.log_stories import NOW, Story, batch_of
from millstream.kernels import batches
from millstream.kernels.compression import Codec
from millstream.model.errors import CorruptRecords, UnknownPartition
from millstream.model.ids import Offset, TimestampMs
from millstream.runtime.scheduler import StepGenerator, run_blocking
from millstream.storage import names
from millstream.storage.log.time_search import SEGMENTS_PER_TURN, OpenBatch, TimestampAndOffset
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec, build_batch

Find = Callable[[Story], StepGenerator[TimestampAndOffset | None]]


def first_of_now(story: Story) -> StepGenerator[TimestampAndOffset | None]:
    return story.log.find_timestamp_steps(TimestampMs(NOW))


def newest(story: Story) -> StepGenerator[TimestampAndOffset | None]:
    return story.log.find_max_timestamp_steps()


finders = pytest.mark.parametrize("find", [first_of_now, newest])


def take(
    steps: StepGenerator[TimestampAndOffset | None], result: Any = None
) -> TimestampAndOffset | None:
    """The rest of the steps, blocking."""
    try:
        yielded = steps.send(result)
        while True:
            yielded = steps.send(yielded() if yielded is not None else None)
    except StopIteration as end:
        found: TimestampAndOffset | None = end.value
        return found


def filled(count: int = 100) -> Story:
    story = Story()
    story.fill(count)
    story.replicate_all()
    return story


def delete_before(story: Story, offset: int) -> None:
    story.opened.owner.store(names.LOG_STARTS, {PARTITION: Offset(offset)})
    story.log.advance_log_start(Offset(offset))
    story.log.remove_segments_below_start()


@finders
def test_the_batch_is_opened_in_another_thread(find: Find) -> None:
    story = filled()
    steps = find(story)
    yielded = next(steps)
    assert yielded is not None
    assert take(steps, yielded()) is not None


@finders
def test_records_deleted_meanwhile_are_not_found(find: Find) -> None:
    story = filled()
    steps = find(story)
    yielded = next(steps)
    assert yielded is not None
    result = yielded()
    delete_before(story, 60)
    found = take(steps, result)
    assert found == (
        60 if find is first_of_now else 99,
        NOW + (60 if find is first_of_now else 99),
        0,
    )


def test_records_truncated_meanwhile_are_not_found() -> None:
    story = filled()
    steps = newest(story)
    yielded = next(steps)
    assert yielded is not None
    result = yielded()
    story.log.truncate_to(Offset(40), is_unclean=True)
    assert take(steps, result) == (39, NOW + 39, 0)


@finders
def test_a_log_that_goes_meanwhile_is_told_so_and_lets_its_files_go(find: Find) -> None:
    story = filled()
    steps = find(story)
    yielded = next(steps)
    assert yielded is not None
    story.log.release()
    result = yielded()  # the file is pinned: the thread can read it to the end
    with pytest.raises(UnknownPartition):
        take(steps, result)
    assert story.log.context.files.open_count == 0


def test_many_segments_are_asked_a_few_at_a_time() -> None:
    story = filled(SEGMENTS_PER_TURN * 60)
    assert len(story.log.segments) > 2 * SEGMENTS_PER_TURN
    steps = story.log.find_timestamp_steps(TimestampMs(NOW + int(story.log.log_end) - 1))
    assert next(steps) is None
    delete_before(story, 100)
    assert take(steps) == (story.log.log_end - 1, NOW + story.log.log_end - 1, 0)


def test_only_one_batch_is_opened_for_the_newest_of_many_segments() -> None:
    story = filled(300)
    assert len(story.log.segments) > 3
    steps = newest(story)
    jobs = 0

    def counted() -> StepGenerator[TimestampAndOffset | None]:
        nonlocal jobs
        yielded = next(steps)
        while True:
            jobs += yielded is not None
            result = yield yielded
            try:
                yielded = steps.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    assert run_blocking(counted()) == (299, NOW + 299, 0)
    assert jobs == 1


def test_the_newest_of_a_segment_that_the_log_start_cuts() -> None:
    """Its index also counts what is gone, here the largest time of all."""
    story = Story()
    for stamp in (5, 90, 30, 40, 20):
        story.lead(batch_of(b"v", stamps=[NOW + stamp]))
    story.replicate_all()
    story.log.advance_log_start(Offset(2))
    assert story.log.find_max_timestamp() == (3, NOW + 40, 0)
    story.log.roll()
    story.lead(batch_of(b"v", stamps=[NOW + 40]))
    assert story.log.find_max_timestamp() == (3, NOW + 40, 0)  # the first of equals
    story.lead(batch_of(b"v", stamps=[NOW + 41]))
    assert story.log.find_max_timestamp() == (6, NOW + 41, 0)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_is_searched_without_a_list_of_its_records(codec: Codec) -> None:
    stamps = [NOW + one for one in (5, 9, 9, 2, 7)]
    data = bytes(
        build_batch([(b"k", b"v")] * 5, BatchSpec(base_offset=10, codec=codec), timestamps=stamps)
    )
    batch = OpenBatch(data, size_max=1000)
    assert batch.newest(from_offset=Offset(0)) == (11, NOW + 9, 0)
    assert batch.newest(from_offset=Offset(12)) == (12, NOW + 9, 0)
    assert batch.newest(from_offset=Offset(13)) == (14, NOW + 7, 0)
    assert batch.newest(from_offset=Offset(15)) is None
    assert batch.first_at(NOW + 6, from_offset=Offset(0)) == (11, NOW + 9, 0)
    assert batch.first_at(NOW + 6, from_offset=Offset(13)) == (14, NOW + 7, 0)
    assert batch.first_at(NOW + 10, from_offset=Offset(0)) is None
    assert batch.first_at(-(2**63), from_offset=Offset(0)) == (10, NOW + 5, 0)
    assert batch.first_at(2**63 - 1, from_offset=Offset(0)) is None
    if codec is not Codec.NONE:
        with pytest.raises(CorruptRecords):
            OpenBatch(data, size_max=10)


def test_all_records_of_a_batch_with_the_brokers_time_have_it() -> None:
    story = Story(config=SMALL_SEGMENTS)
    raw = build_batch([(b"k", b"v")] * 3, BatchSpec(), timestamps=[NOW, NOW + 1, NOW + 2])
    story.lead(raw)
    data = bytearray(raw)
    rows = batches.walk(data, 0, len(data), check_crc=True, size_max=len(data))[0]
    batches.set_append_time(data, rows, NOW + 50)
    batch = OpenBatch(bytes(data), size_max=1000)
    assert batch.first_at(NOW + 50, from_offset=Offset(1)) == (1, NOW + 50, 0)
    assert batch.first_at(NOW + 51, from_offset=Offset(0)) is None
    assert batch.newest(from_offset=Offset(2)) == (2, NOW + 50, 0)

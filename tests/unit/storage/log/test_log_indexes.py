"""Damaged, lost and shortened indexes: still the right records, and a right index afterwards."""

from collections.abc import Callable

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story, batch_of, of_producer
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset, TimestampMs
from millstream.runtime.disk import read_whole
from millstream.storage import names
from millstream.storage.log.reader import Isolation
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import read_all

INDEXES = (names.OFFSET_INDEX, names.TIME_INDEX)
COUNT = 45
STAMPS = [(37 * number) % 101 for number in range(COUNT)]
"""Up and down, so that searches by time depend on every entry of the time index."""


def path_of(base: int, suffix: str) -> str:
    return f"{DIRECTORY}/{base:020d}{suffix}"


def written() -> Story:
    """Three segments; the first two are closed, with several entries in each index."""
    story = Story()
    for one in STAMPS:
        story.lead(batch_of(bytes(40), stamps=[NOW + one]))
    assert len(story.log.segments) == 3
    story.replicate_all()
    return story


def closed_bases(story: Story) -> list[int]:
    return [int(segment.base_offset) for segment in story.log.segments.closed]


def check_everything(story: Story) -> None:
    """Every offset and every time leads to the right record."""
    for start in range(0, COUNT, 4):
        found = [record.offset for record in read_all(story.log, start=Offset(start))]
        assert found == list(range(start, COUNT))
    for age_ms in range(0, 102, 3):
        place = story.log.find_timestamp(TimestampMs(NOW + age_ms))
        expected = next((at for at, one in enumerate(STAMPS) if one >= age_ms), None)
        assert (place.offset if place else None) == expected
    newest = story.log.find_max_timestamp()
    assert newest is not None
    assert newest.timestamp_ms == NOW + max(STAMPS)


def damaged_and_reopened(
    suffix: str, base: int, damage: Callable[[bytearray], bytearray | None]
) -> Story:
    story = written()
    story.store_checkpoints()
    story.opened.close()
    path = path_of(base, suffix)
    content = damage(bytearray(read_whole(story.disk, path)))
    story.disk.remove(path)
    if content is not None:
        with story.disk.open_write(path) as file:
            file.write_at(0, content)
    story.open(is_clean=True)
    return story


def cut_to(size: int) -> Callable[[bytearray], bytearray]:
    return lambda content: content[:size]


def sizes() -> dict[tuple[str, int], int]:
    story = written()
    bases = [int(segment.base_offset) for segment in story.log.segments]
    story.opened.close()
    return {
        (suffix, base): story.disk.size(path_of(base, suffix))
        for suffix in INDEXES
        for base in bases
    }


SIZES = sizes()


@pytest.mark.parametrize(("suffix", "base"), SIZES)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_bit_anywhere_in_an_index_changes_no_answer(
    suffix: str, base: int, mask: int
) -> None:
    """I-02. The index only says where to start the search; the batches are authoritative."""
    assert SIZES[suffix, base] >= 12
    for at in range(SIZES[suffix, base]):

        def flip(content: bytearray, at: int = at) -> bytearray:
            content[at] ^= mask
            return content

        check_everything(damaged_and_reopened(suffix, base, flip))


@pytest.mark.parametrize(("suffix", "base"), SIZES)
def test_an_index_that_ends_inside_an_entry_is_rebuilt(suffix: str, base: int) -> None:
    entry = 8 if suffix == names.OFFSET_INDEX else 12
    for size in range(SIZES[suffix, base]):
        if size % entry:
            story = damaged_and_reopened(suffix, base, cut_to(size))
            check_everything(story)
            assert story.disk.size(path_of(base, suffix)) >= SIZES[suffix, base] - entry


@pytest.mark.parametrize(("suffix", "base"), SIZES)
@pytest.mark.parametrize("kind", ["missing", "rubbish", "longer"])
def test_a_lost_or_senseless_index_is_rebuilt(suffix: str, base: int, kind: str) -> None:
    def damage(old: bytearray) -> bytearray | None:
        if kind == "missing":
            return None
        return bytearray(b"\xff" * len(old)) if kind == "rubbish" else old + b"\0" * 7

    story = damaged_and_reopened(suffix, base, damage)
    check_everything(story)
    story.restart()
    assert scan_partition(story.disk, DIRECTORY).problems == []
    check_everything(story)


def test_an_offset_index_with_entries_missing_at_the_end_only_costs_time() -> None:
    base = 0
    for size in range(0, SIZES[names.OFFSET_INDEX, base], 8):
        check_everything(damaged_and_reopened(names.OFFSET_INDEX, base, cut_to(size)))


@pytest.mark.parametrize("suffix", INDEXES)
def test_retention_does_not_believe_a_damaged_time_index(suffix: str) -> None:
    """One flipped bit must not make a fresh segment look years old, and go."""
    for at in range(SIZES[suffix, 0]):

        def zero(content: bytearray, at: int = at) -> bytearray:
            content[at] = 0
            return content

        story = damaged_and_reopened(suffix, 0, zero)
        largest = max(STAMPS[: closed_bases(story)[1]])
        segment = story.log.segments.closed[0]
        assert segment.largest_timestamp().timestamp_ms == NOW + largest


@pytest.mark.parametrize("suffix", INDEXES)
@pytest.mark.parametrize("damage", ["missing", "flip", "cut"])
def test_truncation_into_a_segment_with_a_damaged_index_works(suffix: str, damage: str) -> None:
    """A follower truncates when its leader changes; an index must not stop that half-way."""

    def damaged(old: bytearray) -> bytearray | None:
        if damage == "missing":
            return None
        if damage == "cut":
            return old[:-3]
        old[-9 if suffix == names.TIME_INDEX else -1] ^= 0x55
        return old

    last = list(SIZES)[1][1]
    for end in range(last - 1, last + 17, 3):
        story = damaged_and_reopened(suffix, last, damaged)
        story.log.set_high_watermark(Offset(0))
        story.log.truncate_to(Offset(end), is_unclean=True)
        assert story.log.log_end == end
        assert [record.offset for record in story.records()] == list(range(end))
        largest = max(STAMPS[:end])
        newest = story.log.find_max_timestamp()
        assert newest is not None
        assert newest.timestamp_ms == NOW + largest
        story.put(b"more")
        assert story.log.log_end == end + 1
        story.restart()
        assert scan_partition(story.disk, DIRECTORY).problems == []


def test_truncation_finds_the_end_whatever_the_offset_index_says() -> None:
    """The new end comes from the batches: a wrong one would leave a hole or an overlap."""
    suffix, base = list(SIZES)[1]
    for at in range(SIZES[suffix, base]):

        def flip(content: bytearray, at: int = at) -> bytearray:
            content[at] ^= 0x41
            return content

        for end in (base + 5, base + 6, base + 9, base + 15):
            story = damaged_and_reopened(suffix, base, flip)
            assert story.log.truncate_to(Offset(end), is_unclean=True) == end
            assert [record.offset for record in story.records()] == list(range(end))


def test_a_full_disk_does_not_stop_reads_that_need_a_lost_index() -> None:
    story = written()
    story.store_checkpoints()
    story.opened.close()
    for base in closed_bases(story):
        for suffix in INDEXES:
            story.disk.remove(path_of(base, suffix))
    story.open(is_clean=True)
    story.disk.storage.capacity_bytes = 0
    check_everything(story)
    assert story.opened.owner.failure is None
    story.disk.storage.capacity_bytes = None
    check_everything(story)


def test_a_damaged_list_of_aborted_transactions_is_an_error_not_a_wrong_answer() -> None:
    """I-23: better no answer than aborted records shown as committed."""
    story = Story()
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.end(1, is_commit=False)
    story.fill(40)
    story.replicate_all()
    with story.disk.open_write(path_of(0, names.TXN_INDEX)) as file:
        file.write_at(0, b"\xff")
    with pytest.raises(CorruptRecords):
        story.log.read(Offset(0), size_max=500, isolation=Isolation.COMMITTED)
    assert len(story.values()) == 42
    story.log.set_high_watermark(Offset(0))
    before = story.facts()
    with pytest.raises(CorruptRecords):
        story.log.truncate_to(Offset(1), is_unclean=True)
    assert story.facts() == before
    assert story.opened.owner.failure is None

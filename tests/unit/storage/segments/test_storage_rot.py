"""Flipped bits, shortened files and full disks: typed errors for what is hit, the rest goes on."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story, batch_of, of_producer
from kits.storage.manager_stories import ONE, TWO, Broker
from millstream.kernels.compression import Codec
from millstream.model.errors import CorruptRecords, DiskFull, FencedLeaderEpoch, StorageFailed
from millstream.model.ids import LeaderEpoch, Offset, TimestampMs
from millstream.model.limits import DECOMPRESSED_BATCH_BYTES_MAX, KIB
from millstream.runtime.disk import read_whole
from millstream.storage import names
from millstream.storage.log.reader import Isolation
from millstream.storage.segments.segment import Segment
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, read_all
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.disk import SimDisk

EPOCH_FILE = f"{DIRECTORY}/{names.LEADER_EPOCHS}"
LENGTH_AT = 8
OFFSET_SECOND_BYTE_AT = 2


def flip(disk: SimDisk, path: str, at: int, bit: int) -> None:
    with disk.open_write(path) as file:
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ bit]))
        file.sync()


def cut(disk: SimDisk, path: str, size: int) -> None:
    with disk.open_write(path) as file:
        file.truncate(size)
        file.sync()


def filled(count: int = 60) -> Story:
    """Several segments, all flushed and replicated."""
    story = Story()
    story.fill(count)
    story.replicate_all()
    story.log.flush()
    return story


def closed_segment(story: Story) -> Segment:
    return story.log.segments.closed[1]


def place_of(segment: Segment, offset: int) -> int:
    place = segment.find_offset(Offset(offset))
    assert place is not None
    return place.position


# -- bits that no CRC covers


@pytest.mark.parametrize("bit", [1, 2, 64, 128])
@pytest.mark.parametrize("byte", [0, 2, 3, 4])
def test_a_flipped_bit_of_an_offset_costs_no_other_partition(byte: int, bit: int) -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 20)
    broker.fill(TWO, 5)
    newest = broker.manager.get(ONE).segments.active
    assert newest.size_bytes
    broker.stop()
    flip(broker.disk, newest.log.path, byte, bit)
    report = broker.start()
    assert not report.failed_directories
    assert len(broker.values(TWO)) == 5
    assert len(broker.values(ONE)) >= newest.base_offset
    if byte < 4:  # else it could be a gap, as compaction leaves them
        assert broker.manager.get(ONE).log_end == newest.base_offset


def test_a_clean_start_does_not_follow_a_wild_offset_at_the_end() -> None:
    story = filled(20)
    story.store_checkpoints()
    active = story.log.segments.active
    last = place_of(active, 19)
    story.opened.close()
    flip(story.disk, active.log.path, last + OFFSET_SECOND_BYTE_AT, 1)
    story.open(is_clean=True)
    assert story.log.log_end == 19
    story.put(b"goes on")
    assert story.log.log_end == 20


@pytest.mark.parametrize("kind", [names.OFFSET_INDEX, names.TIME_INDEX])
@pytest.mark.parametrize(("byte", "bit"), [(2, 1), (4, 128), (7, 16)])
def test_indexes_are_not_rebuilt_from_offsets_that_cannot_be(
    kind: str, byte: int, bit: int
) -> None:
    story = filled()
    segment = closed_segment(story)
    start = place_of(segment, segment.base_offset + 9)
    segment.forget()
    story.disk.remove(segment.path(kind))
    flip(story.disk, segment.log.path, start + byte, bit)
    before = read_whole(story.disk, segment.log.path)
    with pytest.raises(CorruptRecords):
        segment.rebuild_indexes()
    assert not story.disk.exists(segment.path(kind))
    assert read_whole(story.disk, segment.log.path) == before


@pytest.mark.parametrize("isolation", [Isolation.HIGH_WATERMARK, Isolation.COMMITTED])
def test_a_length_that_reaches_beyond_the_reader_is_damage_not_a_bug(isolation: Isolation) -> None:
    story = filled()
    segment = closed_segment(story)
    limit = segment.base_offset + 8
    story.log.set_high_watermark(Offset(limit))
    seen = 0
    for offset in range(segment.base_offset, limit):
        at = place_of(segment, offset) + LENGTH_AT + 2
        for bit in (1, 2, 4):
            flip(story.disk, segment.log.path, at, bit)
            try:
                found = story.log.read(Offset(offset), size_max=1 << 20, isolation=isolation)
                assert found.data.size_bytes
            except CorruptRecords:
                seen += 1
            flip(story.disk, segment.log.path, at, bit)
    assert seen


def test_a_length_that_leads_out_of_the_segment_does_not_hide_the_rest() -> None:
    """Of a batch before the one that is searched for: it must not be taken for the end."""
    story = Story(replace(SMALL_SEGMENTS, index_interval_bytes=4 * KIB))
    story.fill(40)
    segment = story.log.segments.closed[0]
    flip(story.disk, segment.log.path, LENGTH_AT + 1, 1)
    with pytest.raises(CorruptRecords):
        story.log.read(Offset(5), size_max=500, isolation=Isolation.LOG_END)


def test_looking_for_a_time_ends_where_an_offset_went_back() -> None:
    story = Story()
    story.lead(batch_of(*(bytes(10) for _ in range(4))))
    story.lead(batch_of(b"a", stamps=[NOW + 5]))
    story.lead(batch_of(b"b", stamps=[NOW + 9]))
    story.replicate_all()
    story.log.advance_log_start(Offset(4))
    active = story.log.segments.active
    at = place_of(active, 5)
    flip(story.disk, active.log.path, at + 7, 4)  # 5 becomes 1
    with pytest.raises(CorruptRecords):
        story.log.find_timestamp(TimestampMs(NOW + 7))


# -- files shorter than they were


USES: dict[str, Callable[[Story, int], object]] = {
    "read": lambda story, offset: story.log.read(
        Offset(offset), size_max=500, isolation=Isolation.LOG_END
    ),
    "truncate": lambda story, offset: story.log.truncate_to(Offset(offset), is_unclean=True),
    "find a time": lambda story, offset: story.log.find_timestamp(TimestampMs(NOW + offset)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("left", [0, 1, 60, 800, 1000])
def test_a_segment_that_lost_its_end_fails_its_log_until_a_restart(left: int, use: str) -> None:
    story = filled()
    segment = closed_segment(story)
    base = segment.base_offset
    story.store_checkpoints()
    cut(story.disk, segment.log.path, left)
    with pytest.raises(StorageFailed, match="shorter"):
        USES[use](story, base + 15)
    assert list(story.log.owner.failed_partitions) == [PARTITION]
    assert story.log.owner.failure is None
    with pytest.raises(StorageFailed):
        story.put(b"x")
    story.kill()
    assert len(read_all(story.log, start=story.log.segments.active.base_offset)) > 0


def test_a_search_in_a_file_that_is_suddenly_empty_ends() -> None:
    config = replace(SMALL_SEGMENTS, segment_bytes=64 * KIB, index_interval_bytes=64 * KIB)
    story = Story(config)
    story.fill(200)
    cut(story.disk, story.log.segments.active.log.path, 0)
    with pytest.raises(StorageFailed):
        story.log.read(Offset(150), size_max=500, isolation=Isolation.LOG_END)


def test_a_time_index_that_no_log_fits_is_the_logs_fault() -> None:
    """The batch with the largest timestamp lost its place: rebuilding the indexes cannot help."""
    story = filled()
    segment = closed_segment(story)
    last = segment.base_offset + 16
    at = place_of(segment, last)
    segment.forget()
    segment.max_timestamp = None
    flip(story.disk, segment.log.path, at + 3, 1)
    flip(story.disk, segment.path(names.TIME_INDEX), 0, 64)
    for check in (story.log.find_max_timestamp, segment.largest_timestamp):
        with pytest.raises(CorruptRecords):
            check()


# -- leader epochs


def test_a_flipped_digit_of_the_epoch_file_costs_no_record() -> None:
    story = filled(100)
    middle = story.log.segments.closed[2].base_offset
    story.opened.owner.store(names.RECOVERY_POINTS, {PARTITION: middle})
    raw = read_whole(story.disk, EPOCH_FILE)
    assert raw == b"0\n1\n0 0\n"
    flip(story.disk, EPOCH_FILE, 4, 4)
    story.kill()
    assert story.log.log_end == 100
    assert len(story.values()) == 100
    assert story.log.latest_epoch == 0
    story.put(b"of the epoch that the batches tell")


@pytest.mark.parametrize("way", ["restart", "kill", "lose_power"])
def test_deleting_everything_does_not_forget_the_epoch(way: str) -> None:
    story = Story()
    for number in range(5):
        story.put(b"%d" % number, epoch=2)
    story.replicate_all()
    story.log.advance_log_start(Offset(5))
    story.store_checkpoints()
    story.log.flush()
    for _ in range(2):
        getattr(story, way)()
        assert story.log.log_start == story.log.log_end == 5
        assert story.log.epochs.entries() == [(2, 5)]
    with pytest.raises(FencedLeaderEpoch):
        story.put(b"of an old leader", epoch=1)
    story.put(b"of the same", epoch=2)
    story.restart()
    assert story.values() == [b"of the same"]


def test_an_epoch_of_truncated_records_does_not_come_back() -> None:
    """The power went after the cut and before the epoch file was written."""
    story = Story()
    for number in range(5):
        story.put(b"%d" % number, epoch=2)
    story.replicate_all()
    story.log.advance_log_start(Offset(5))
    story.store_checkpoints()
    story.put(b"lost", epoch=3)
    story.log.flush()
    newer = read_whole(story.disk, EPOCH_FILE)
    assert newer.endswith(b"3 5\n")
    story.log.truncate_to(Offset(5))
    with story.disk.open_write(EPOCH_FILE) as file:
        file.truncate(0)
        file.write_at(0, newer)
        file.sync()
    story.lose_power()
    assert story.log.log_end == 5
    assert story.log.latest_epoch < 3
    story.put(b"of epoch two", epoch=2)


# -- a full disk


def fill_up(disk: SimDisk) -> None:
    disk.storage.capacity_bytes = 0


def make_room(disk: SimDisk) -> None:
    disk.storage.capacity_bytes = None


def test_a_start_on_a_full_disk_gives_readable_logs() -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 60)
    broker.fill(TWO, 3)
    broker.replicate(ONE)
    broker.kill()
    fill_up(broker.disk)
    report = broker.start()
    assert not report.failed_directories
    assert not report.unusable_partitions
    assert (len(broker.values(ONE)), len(broker.values(TWO))) == (60, 3)
    with pytest.raises(DiskFull):
        broker.put(ONE, b"no room")
    make_room(broker.disk)
    broker.put(ONE, b"room again")
    assert len(broker.values(ONE)) == 61


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_indexes_without_room_are_built_again_when_needed(is_power_lost: bool) -> None:
    """Not left as they were or in part: a flush would let the next start believe them."""
    story = filled(120)
    story.disk.kill()
    story.disk = story.disk.after_kill()
    for name in story.disk.list_directory(DIRECTORY):
        if name.endswith((names.OFFSET_INDEX, names.TIME_INDEX)):
            cut(story.disk, f"{DIRECTORY}/{name}", 0)
    fill_up(story.disk)
    story.open()
    check_times(story)
    make_room(story.disk)
    story.log.flush()
    story.store_checkpoints()
    if is_power_lost:
        story.lose_power()
    else:
        story.kill()
    assert story.opened.report.recovered_segments <= 1
    check_times(story)


def check_times(story: Story) -> None:
    assert len(story.values()) == 120
    for age_ms in range(0, 120, 7):
        place = story.log.find_timestamp(TimestampMs(NOW + age_ms))
        assert place is not None
        assert place.offset == age_ms
    stamps = [one.largest_timestamp().timestamp_ms for one in story.log.segments]
    assert stamps == sorted(stamps)
    assert stamps[0] > 0


def test_without_room_for_aborted_transactions_a_log_refuses_to_open() -> None:
    """They would not be found again once the segment is trusted."""
    story = Story()
    for number in range(3):
        story.put(b"never seen", spec=of_producer(7, number, txn=True))
        story.end(7, is_commit=False)
        story.fill(20)
    story.replicate_all()
    story.log.flush()
    expected = story.log.read(Offset(0), size_max=99, isolation=Isolation.COMMITTED).aborted
    assert expected
    story.disk.kill()
    story.disk = story.disk.after_kill()
    fill_up(story.disk)
    with pytest.raises(DiskFull):
        story.open()
    make_room(story.disk)
    story.disk.kill()
    story.disk = story.disk.after_kill()
    story.open()
    story.replicate_all()
    found = story.log.read(Offset(0), size_max=99, isolation=Isolation.COMMITTED)
    assert found.aborted == expected


def test_without_room_to_forget_lost_epochs_a_log_refuses_to_open() -> None:
    story = filled(40)
    story.put(b"lost", epoch=4)
    story.log.flush()
    active = story.log.segments.active
    cut(story.disk, active.log.path, active.size_bytes - 1)
    story.disk.kill()
    story.disk = story.disk.after_kill()
    fill_up(story.disk)
    with pytest.raises(DiskFull):
        story.open()
    assert names.LEADER_EPOCHS + names.TEMPORARY not in story.file_names()
    make_room(story.disk)
    story.disk.kill()
    story.disk = story.disk.after_kill()
    story.open()
    assert story.log.log_end == 40
    assert story.log.latest_epoch == 0


# -- decompression


def bomb(size: int) -> bytearray:
    spec = BatchSpec(codec=Codec.ZSTD, timestamp_ms=NOW)
    return build_batch([(b"key", bytes(size))], spec)


@pytest.mark.parametrize("size_max", [DECOMPRESSED_BATCH_BYTES_MAX, 1000])
def test_a_stored_batch_is_not_decompressed_without_end(size_max: int) -> None:
    config = replace(SMALL_SEGMENTS, segment_bytes=1024 * KIB)
    story = Story(replace(config, decompressed_batch_bytes_max=size_max))
    story.log.append_as_follower(bomb(size_max))
    story.replicate_all()
    with pytest.raises(CorruptRecords, match="decompresses to more"):
        story.log.find_timestamp(TimestampMs(NOW))
    with pytest.raises(CorruptRecords, match="decompresses to more"):
        story.log.find_max_timestamp()
    assert story.log.latest_epoch == LeaderEpoch(0)

"""What a follower takes from its leader: everything as it is, or nothing at all."""

from dataclasses import replace

import pytest

from kits.storage.log_stories import DIRECTORY, NOW, Story, batch_of, of_producer
from millstream.kernels.compression import Codec
from millstream.model.errors import (
    CorruptRecords,
    InvalidRecords,
    OperatingError,
    UnexpectedAppendOffset,
)
from millstream.model.ids import Offset, TimestampMs
from millstream.storage.scan.partition_scan import scan_partition
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker
from millstream.testing.sim.crash_fates import keep_all, keep_none

FAR = 2**31


def at(offset: int, *, epoch: int = 0, codec: Codec = Codec.NONE) -> BatchSpec:
    return BatchSpec(base_offset=offset, leader_epoch=epoch, codec=codec, timestamp_ms=NOW + offset)


def offsets(story: Story) -> list[int]:
    return [record.offset for record in story.records()]


def test_offsets_epochs_and_bytes_stay_as_the_leader_wrote_them() -> None:
    """I-19: replicas are byte-identical."""
    leader, follower = Story(), Story(config=replace(SMALL_SEGMENTS, compression=Codec.ZSTD))
    leader.put(b"a", b"b", epoch=2)
    leader.put(b"c", spec=BatchSpec(codec=Codec.GZIP, timestamp_ms=1), epoch=7)
    path = f"{DIRECTORY}/{0:020d}.log"
    with leader.disk.open_read(path) as file:
        sent = file.read_at(0, file.size())
    found = follower.log.append_as_follower(sent)
    assert found[:2] == (0, 2)
    with follower.disk.open_read(path) as file:
        assert file.read_at(0, file.size()) == sent
    assert follower.log.epochs.entries() == leader.log.epochs.entries() == [(2, 0), (7, 2)]


def test_gaps_that_compaction_left_are_kept() -> None:
    story = Story()
    story.log.append_as_follower(batch_of(b"a", spec=at(5)) + batch_of(b"b", b"c", spec=at(9)))
    assert offsets(story) == [5, 9, 10]
    assert (story.log.log_start, story.log.log_end) == (0, 11)
    story.log.append_as_follower(bytes(batch_of(b"d", spec=at(11))))
    story.kill()
    assert offsets(story) == [5, 9, 10, 11]


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        (batch_of(b"x", spec=at(2)), 2),
        (batch_of(b"x", spec=at(0)), 0),
        (batch_of(b"x", spec=at(3)) + batch_of(b"y", spec=at(3)), 3),
        (batch_of(b"x", b"y", spec=at(3)) + batch_of(b"y", spec=at(4)), 4),
    ],
)
def test_what_overlaps_is_refused(sent: bytearray, got: int) -> None:
    """I-02: one offset, one record."""
    story = Story()
    story.put(b"a", b"b", b"c")
    before = story.facts()
    with pytest.raises(UnexpectedAppendOffset) as refused:
        story.log.append_as_follower(sent)
    assert refused.value.got == got
    assert story.facts() == before


def test_a_leader_epoch_that_goes_down_is_refused() -> None:
    """I-10."""
    story = Story()
    story.log.append_as_follower(batch_of(b"a", spec=at(0, epoch=5)))
    before = story.facts()
    with pytest.raises(OperatingError, match="epoch"):
        story.log.append_as_follower(batch_of(b"b", spec=at(1, epoch=4)))
    both = batch_of(b"b", spec=at(1, epoch=6)) + batch_of(b"c", spec=at(2, epoch=5))
    with pytest.raises(OperatingError, match="epoch"):
        story.log.append_as_follower(both)
    assert story.facts() == before


def test_damage_on_the_way_is_refused() -> None:
    story = Story()
    sent = batch_of(b"a", spec=at(0)) + batch_of(b"b", spec=at(1))
    sent[-1] ^= 1
    with pytest.raises(CorruptRecords):
        story.log.append_as_follower(sent)
    with pytest.raises(CorruptRecords):
        story.log.append_as_follower(sent[:-1])
    assert story.facts() == Story().facts()


@pytest.mark.parametrize("key", [None, b"", b"\0", b"\0\0\0"])
def test_a_marker_that_cannot_be_read_is_refused_before_anything_is_written(
    key: bytes | None,
) -> None:
    """Written first and read later, it would make every recovery of this log fail."""
    story = Story()
    story.log.append_as_follower(batch_of(b"a", spec=of_producer(1, 0, txn=True)))
    before = story.facts()
    spec = at(2)._replace(is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
    bad = build_batch([(key, b"")], spec)
    with pytest.raises(InvalidRecords):
        story.log.append_as_follower(batch_of(b"b", spec=at(1)) + bad)
    assert story.facts() == before


def test_markers_decide_transactions_on_followers_too() -> None:
    story = Story()
    story.log.append_as_follower(batch_of(b"a", spec=of_producer(1, 0, txn=True)))
    marker = at(1)._replace(producer_id=1, producer_epoch=0)
    story.log.append_as_follower(build_marker(marker, is_commit=False))
    story.log.set_high_watermark(Offset(1))
    assert story.log.last_stable_offset == 0
    story.log.set_high_watermark(Offset(2))
    assert story.log.last_stable_offset == 2


def test_a_fetch_larger_than_a_segment_is_split_between_batches() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, segment_bytes=500))
    sent = b"".join(batch_of(bytes(100), spec=at(number)) for number in range(12))
    assert story.log.append_as_follower(sent)[:2] == (0, 11)
    assert offsets(story) == list(range(12))
    assert all(segment.size_bytes <= 500 for segment in story.log.segments)


# -- gaps too wide for a segment's 32-bit indexes


def followed(story: Story, base: int) -> None:
    """A few index entries' worth of batches from `base` on."""
    for number in range(base, base + 12):
        story.log.append_as_follower(batch_of(bytes(60), spec=at(number)))


@pytest.mark.parametrize("before", [0, 1, 30])
@pytest.mark.parametrize("gap", [FAR - 1, FAR, 5 * FAR])
def test_a_gap_wider_than_a_segment_can_address_begins_a_segment(before: int, gap: int) -> None:
    """The leader's log can be compacted so far that two neighbours are billions apart."""
    story = Story()
    story.fill(before)
    far = before + gap
    followed(story, far)
    expected = [*range(before), *range(far, far + 12)]
    assert offsets(story) == expected
    assert story.log.find_timestamp(TimestampMs(NOW + far + 3)) == (far + 3, NOW + far + 3, 0)
    assert scan_partition(story.disk, DIRECTORY).problems == []
    story.restart()
    assert offsets(story) == expected
    story.kill()
    assert offsets(story) == expected
    assert story.log.log_end == far + 12


@pytest.mark.parametrize("is_rolled", [False, True])
def test_a_wide_gap_that_was_flushed_survives_a_power_loss(is_rolled: bool) -> None:
    """I-11: recovery must not take the gap for a hole, whatever the checkpoints knew."""
    for choose in (keep_none, keep_all):
        story = Story()
        story.fill(5)
        if is_rolled:
            story.log.roll()
        followed(story, 3 * FAR)
        story.log.flush()
        story.lose_power(choose)
        assert offsets(story) == [*range(5), *range(3 * FAR, 3 * FAR + 12)]


def test_two_batches_too_far_apart_for_one_segment_go_to_two() -> None:
    story = Story()
    sent = batch_of(b"a", spec=at(3)) + batch_of(b"b", spec=at(3 + FAR))
    story.log.append_as_follower(sent)
    assert offsets(story) == [3, 3 + FAR]
    assert len(story.log.segments) == 2


def test_the_empty_segment_before_a_wide_gap_leaves_no_files() -> None:
    story = Story()
    followed(story, 5 * FAR)
    story.opened.owner.delete_due(story.clock.monotonic_s())
    logs = [name for name in story.file_names() if not name.startswith("leader")]
    assert {name.partition(".")[0] for name in logs} == {f"{5 * FAR:020d}"}

"""What a leader takes, what it refuses, and that a refusal changes nothing."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from kits.storage.log_stories import NOW, Story, batch_of, of_producer
from millstream.kernels.compression import Codec
from millstream.model.errors import (
    BatchTooLarge,
    CorruptRecords,
    FencedLeaderEpoch,
    InvalidRecords,
    InvalidTimestamp,
    OperatingError,
    OutOfOrderSequence,
    StaleProducerEpoch,
)
from millstream.model.ids import Offset, ProducerId
from millstream.storage.config import HOUR_MS, LogConfig, TimestampType
from millstream.storage.log.reader import Isolation
from millstream.storage.producers import producer_log
from millstream.storage.producers.machine import Origin
from millstream.storage.producers.recall import recall
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker

COMPACTED = replace(SMALL_SEGMENTS, cleanup_compact=True)
APPEND_TIME = replace(SMALL_SEGMENTS, timestamp_type=TimestampType.LOG_APPEND_TIME)
INT64_MAX = 2**63 - 1


def sealed(batch: bytearray) -> bytearray:
    """The batch with a CRC that fits whatever the test did to it."""
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    return batch


def with_bytes(batch: bytearray, at: int, raw: bytes) -> bytearray:
    batch[at : at + len(raw)] = raw
    return sealed(batch)


def stored_bytes(story: Story) -> bytes:
    return story.log.read(Offset(0), size_max=1 << 20, isolation=Isolation.LOG_END).data.read()


# -- what is taken


def test_offsets_are_consecutive_and_the_leaders_epoch_is_stamped() -> None:
    """I-03."""
    story = Story()
    assert story.put(b"a", b"b", epoch=3)[:2] == (0, 1)
    assert story.put(b"c", epoch=5)[:2] == (2, 2)
    data = stored_bytes(story)
    second = len(batch_of(b"a", b"b"))
    assert [int.from_bytes(data[at : at + 8], "big") for at in (0, second)] == [0, 2]
    assert [int.from_bytes(data[at + 12 : at + 16], "big") for at in (0, second)] == [3, 5]
    assert [record.offset for record in story.records()] == [0, 1, 2]
    assert story.log.end_offset_for_epoch(story.log.epochs.entries()[0].epoch) == (3, 2)


def test_a_buffer_of_several_batches_is_appended_as_one() -> None:
    story = Story()
    story.put(b"first")
    found = story.lead(batch_of(b"a", b"b") + batch_of(b"c") + batch_of(b"d", b"e"))
    assert found[:2] == (1, 5)
    assert story.values() == [b"first", b"a", b"b", b"c", b"d", b"e"]
    assert [record.offset for record in story.records()] == list(range(6))


def test_a_writable_view_into_a_larger_buffer_is_taken() -> None:
    """The network hands out a slice of its receive buffer."""
    story = Story()
    whole = bytearray(b"frame header") + batch_of(b"a") + b"rest of the frame"
    story.lead(memoryview(whole)[12 : len(whole) - 17])
    assert story.values() == [b"a"]
    assert whole[:12] == b"frame header"
    assert whole.endswith(b"rest of the frame")


def test_read_only_bytes_are_taken_too_and_not_changed() -> None:
    """An internal caller need not know that offsets are stamped in place."""
    story = Story()
    story.put(b"first")
    sent = bytes(batch_of(b"a"))
    found = story.log.append_as_leader(sent, leader_epoch=story.log.latest_epoch)
    assert found.base_offset == 1
    assert story.values() == [b"first", b"a"]
    assert sent == batch_of(b"a")
    story.lead(memoryview(sent))
    assert story.values() == [b"first", b"a", b"a"]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("wanted", list(Codec))
def test_the_topics_compression_type_is_what_is_stored(codec: Codec, wanted: Codec) -> None:
    story = Story(config=replace(SMALL_SEGMENTS, compression=wanted))
    sent = [b"value %d " % number * 9 for number in range(3)]
    headers = [("trace", b"id"), ("none", None)]
    pairs = [(b"k", sent[0]), (None, sent[1]), (b"", sent[2])]
    spec = BatchSpec(codec=codec, timestamp_ms=NOW)
    before = build_batch(pairs, spec, timestamps=[NOW, NOW - 5, NOW + 5], headers=headers)
    story.lead(before + build_batch(pairs, spec._replace(codec=wanted)))
    first, second = story.records()[:3], story.records()[3:]
    assert [record.value for record in first] == sent
    assert [record.key for record in first] == [b"k", None, b""]
    assert [record.timestamp_ms for record in first] == [NOW, NOW - 5, NOW + 5]
    assert first[0].headers == (("trace", b"id"), ("none", None))
    assert [record.value for record in second] == sent
    assert [record.offset for record in first + second] == list(range(6))
    data = stored_bytes(story)
    assert data[22] & 0b111 == wanted
    assert data[12 + int.from_bytes(data[8:12], "big") + 22] & 0b111 == wanted


@pytest.mark.parametrize("codec", [one for one in Codec if one is not Codec.NONE])
def test_a_marker_stays_readable_in_a_topic_with_a_compression_type(codec: Codec) -> None:
    """All that follow transactions read markers without decompressing."""
    story = Story(config=replace(SMALL_SEGMENTS, compression=codec))
    story.put(b"a", spec=of_producer(1, 0, txn=True))
    story.end(1, is_commit=True)
    story.replicate_all()
    assert story.log.last_stable_offset == 2
    story.kill()
    assert story.log.log_end == 2
    assert story.log.producers.states.first_undecided_offset is None


def test_log_append_time_replaces_the_producers_timestamps() -> None:
    story = Story(config=APPEND_TIME)
    story.clock.advance(1234)
    found = story.lead(batch_of(b"a", b"b", stamps=[5, 2**62]))
    assert found.append_time_ms == NOW + 1234
    assert [record.timestamp_ms for record in story.records()] == [NOW + 1234] * 2
    assert Story().put(b"a").append_time_ms is None


def test_a_retry_is_told_the_append_time_of_the_first_try() -> None:
    story = Story(config=APPEND_TIME)
    first = story.put(b"a", spec=of_producer(1, 0))
    story.clock.advance(500)
    again = story.put(b"a", spec=of_producer(1, 0))
    assert again == first._replace(is_duplicate=True)
    assert again.append_time_ms == NOW


def test_a_wrong_largest_timestamp_in_the_header_is_repaired() -> None:
    """Searches by time and retention trust the header."""
    story = Story()
    lie = with_bytes(
        batch_of(b"a", b"b", stamps=[NOW, NOW + 7]), 35, (NOW + 999).to_bytes(8, "big")
    )
    story.lead(lie)
    assert story.log.segments.active.largest_timestamp().timestamp_ms == NOW + 7
    assert stored_bytes(story)[35:43] == (NOW + 7).to_bytes(8, "big")
    assert len(story.records()) == 2


def test_records_without_a_timestamp_are_taken_whatever_the_limits() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, timestamp_before_max_ms=HOUR_MS))
    story.lead(batch_of(b"a", stamps=[-1]))
    assert [record.timestamp_ms for record in story.records()] == [-1]


# -- what is refused

CONTROL = BatchSpec(is_control=True, timestamp_ms=NOW)
Refused = tuple[str, Callable[[], bytearray], type[OperatingError]]


def cut(size: int) -> bytearray:
    return batch_of(b"a", b"b")[:size]


def flipped(at: int) -> bytearray:
    batch = batch_of(b"a", b"b")
    batch[at] ^= 0x10
    return batch


def bomb(codec: Codec) -> bytearray:
    zeros = bytes(40_000)
    return build_batch([(b"k", zeros)], BatchSpec(codec=codec, timestamp_ms=NOW))


def claimed_codec(codec: Codec, payload: bytes) -> bytearray:
    """A batch with a payload that is not what its codec says."""
    batch = batch_of(b"a")[:61] + bytearray(payload)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    return with_bytes(batch, 21, (int(codec)).to_bytes(2, "big"))


def counted(count: int, last_delta: int) -> bytearray:
    batch = with_bytes(batch_of(b"a", b"b"), 57, count.to_bytes(4, "big", signed=True))
    return with_bytes(batch, 23, last_delta.to_bytes(4, "big", signed=True))


REFUSED: list[Refused] = [
    ("nothing", bytearray, CorruptRecords),
    ("garbage", lambda: bytearray(b"GET / HTTP/1.1\r\n\r\n" * 9), CorruptRecords),
    ("header cut", lambda: cut(60), CorruptRecords),
    ("last byte missing", lambda: cut(len(batch_of(b"a", b"b")) - 1), CorruptRecords),
    ("a byte too many", lambda: batch_of(b"a") + b"\0", CorruptRecords),
    ("second batch cut", lambda: batch_of(b"a") + cut(70), CorruptRecords),
    ("payload flipped", lambda: flipped(70), CorruptRecords),
    ("crc flipped", lambda: flipped(18), CorruptRecords),
    ("old magic", lambda: with_bytes(batch_of(b"a"), 16, b"\1"), CorruptRecords),
    ("negative length", lambda: with_bytes(batch_of(b"a"), 8, b"\xff" * 4), CorruptRecords),
    ("unknown codec", lambda: with_bytes(batch_of(b"a"), 21, b"\0\7"), CorruptRecords),
    ("not gzip", lambda: claimed_codec(Codec.GZIP, b"not gzip"), CorruptRecords),
    ("torn gzip", lambda: claimed_codec(Codec.GZIP, gzip.compress(b"x" * 99)[:-9]), CorruptRecords),
    ("not lz4", lambda: claimed_codec(Codec.LZ4, b"not lz4 at all"), CorruptRecords),
    ("not snappy", lambda: claimed_codec(Codec.SNAPPY, b"\xff" * 20), CorruptRecords),
    ("not zstd", lambda: claimed_codec(Codec.ZSTD, b"not zstandard"), CorruptRecords),
    ("no records", lambda: counted(0, -1), InvalidRecords),
    ("no records but an offset", lambda: counted(0, 0), InvalidRecords),
    ("fewer records than counted", lambda: counted(3, 2), InvalidRecords),
    ("more records than counted", lambda: counted(1, 0), InvalidRecords),
    ("offsets wider than records", lambda: counted(2, 5), InvalidRecords),
    ("record overrun", lambda: with_bytes(batch_of(b"a"), 61, b"\x7e"), InvalidRecords),
    ("control", lambda: build_marker(of_producer(1, 0), is_commit=True), InvalidRecords),
    ("control of nobody", lambda: build_batch([(b"\0\0\0\5", b"")], CONTROL), InvalidRecords),
    ("no sequence", lambda: batch_of(b"a", spec=of_producer(1, -1)), InvalidRecords),
    ("no producer epoch", lambda: batch_of(b"a", spec=of_producer(1, 0, epoch=-1)), InvalidRecords),
    (
        "transaction of nobody",
        lambda: batch_of(b"a", spec=of_producer(-1, -1, txn=True)),
        InvalidRecords,
    ),
    ("claims our clock", lambda: with_bytes(batch_of(b"a"), 21, b"\0\x08"), InvalidTimestamp),
    ("tomorrow", lambda: batch_of(b"a", stamps=[NOW + HOUR_MS + 1]), InvalidTimestamp),
    (
        "one of tomorrow",
        lambda: batch_of(b"a", b"b", stamps=[NOW, NOW + HOUR_MS + 1]),
        InvalidTimestamp,
    ),
    ("too large", lambda: batch_of(bytes(2000)), BatchTooLarge),
    ("one of two too large", lambda: batch_of(b"a") + batch_of(bytes(2000)), BatchTooLarge),
    ("two of a producer", lambda: batch_of(b"a", spec=of_producer(1, 0)) * 2, InvalidRecords),
]


@pytest.mark.parametrize(
    ("make", "error"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_a_refused_append_changes_nothing(
    make: Callable[[], bytearray], error: type[OperatingError]
) -> None:
    """I-04: what is read was sent; one bad batch spoils its whole buffer."""
    story = Story(config=replace(SMALL_SEGMENTS, max_message_bytes=1000))
    story.put(b"before")
    before = story.facts()
    with pytest.raises(error):
        story.lead(make())
    with pytest.raises(error):
        story.lead(batch_of(b"good one first") + make() if make() else make())
    assert story.facts() == before
    assert story.put(b"after").base_offset == 1


@pytest.mark.parametrize("codec", [one for one in Codec if one is not Codec.NONE])
def test_a_decompression_bomb_is_refused(codec: Codec) -> None:
    """A few bytes on the wire must not become gigabytes in memory (I-34)."""
    story = Story(config=replace(SMALL_SEGMENTS, decompressed_batch_bytes_max=10_000))
    before = story.facts()
    with pytest.raises(BatchTooLarge) as refused:
        story.lead(bomb(codec))
    assert refused.value.limit_bytes == 10_000
    assert story.facts() == before


def test_recompression_may_not_pass_the_size_limit_either() -> None:
    """Sent small, stored large: what followers and consumers fetch is the stored size."""
    config = replace(SMALL_SEGMENTS, compression=Codec.NONE, max_message_bytes=1000)
    story = Story(config=config)
    with pytest.raises(BatchTooLarge):
        story.lead(
            build_batch([(b"k", bytes(1500))], BatchSpec(codec=Codec.ZSTD, timestamp_ms=NOW))
        )
    assert story.log.log_end == 0


def test_a_batch_above_the_segments_size_is_refused() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, segment_bytes=500))
    with pytest.raises(BatchTooLarge) as refused:
        story.put(bytes(600))
    assert refused.value.limit_bytes == 500
    assert story.values() == []


def test_records_without_a_key_do_not_enter_a_compacted_topic() -> None:
    story = Story(config=COMPACTED)
    story.put(b"a")
    before = story.facts()
    with pytest.raises(InvalidRecords, match="key"):
        story.lead(build_batch([(b"k", b"v"), (None, b"v")], BatchSpec(timestamp_ms=NOW)))
    assert story.facts() == before


def test_records_too_old_for_the_topic_are_refused() -> None:
    story = Story(config=replace(SMALL_SEGMENTS, timestamp_before_max_ms=1000))
    story.lead(batch_of(b"just in time", stamps=[NOW - 1000]))
    with pytest.raises(InvalidTimestamp):
        story.lead(batch_of(b"a", b"b", stamps=[NOW, NOW - 1001]))
    assert story.log.log_end == 1


@pytest.mark.parametrize("base", [INT64_MAX, -INT64_MAX - 1])
def test_timestamps_outside_their_range_are_refused_even_without_limits(base: int) -> None:
    """No bytes of a client may raise anything but an operating error."""
    config = replace(SMALL_SEGMENTS, timestamp_after_max_ms=INT64_MAX)
    story = Story(config=config)
    step = 1 if base > 0 else -1
    batch = with_bytes(
        batch_of(b"a", b"b", stamps=[0, 5 * step]), 27, base.to_bytes(8, "big", signed=True)
    )
    before = story.facts()
    with pytest.raises(InvalidTimestamp):
        story.lead(batch)
    assert story.facts() == before


def test_an_older_leader_epoch_cannot_write() -> None:
    """I-15: epochs in the log never go down (I-10)."""
    story = Story()
    story.put(b"a", epoch=4)
    before = story.facts()
    with pytest.raises(FencedLeaderEpoch) as refused:
        story.put(b"b", epoch=3)
    assert (refused.value.ours, refused.value.theirs) == (4, 3)
    assert story.facts() == before


# -- producers


def test_a_retry_of_any_of_the_last_five_batches_gets_the_first_answer() -> None:
    """I-20, also after a crash and in another epoch of the leader."""
    story = Story()
    for number in range(7):
        story.put(b"v%d" % number, b"w%d" % number, spec=of_producer(9, 2 * number))
    for again in (story.go_on, story.kill):
        again()
        for number in range(2, 7):
            found = story.put(b"v", b"w", spec=of_producer(9, 2 * number), epoch=1)
            assert found == (2 * number, 2 * number + 1, None, True)
    assert len(story.values()) == 14
    with pytest.raises(OutOfOrderSequence):
        story.put(b"v", b"w", spec=of_producer(9, 2), epoch=1)


@pytest.mark.parametrize("config", [LogConfig(), SMALL_SEGMENTS])
def test_after_a_clean_stop_the_last_five_batches_are_known(config: LogConfig) -> None:
    """I-20. Kafka's snapshots have one batch per producer; the log has the others."""
    story = Story(config)
    for number in range(7):
        story.put(b"v%d" % number, spec=of_producer(9, number))
        story.put(b"x" * 40, spec=of_producer(8, number))
    story.restart()
    for number in (2, 5, 6, 3, 4):
        found = story.put(b"v", spec=of_producer(9, number))
        assert found == (2 * number, 2 * number, None, True)
    for number in range(2):
        with pytest.raises(OutOfOrderSequence):
            story.put(b"v", spec=of_producer(9, number))
    assert story.put(b"v7", spec=of_producer(9, 7)).base_offset == 14


def test_what_the_log_says_of_a_producer_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends nonsense must not have the log read each time."""
    story = Story()
    for number in range(3):
        story.put(b"v", spec=of_producer(9, number))
    story.restart()
    reads = 0

    def counted(*arguments: Any, **options: Any) -> bool:
        nonlocal reads
        reads += 1
        return recall(*arguments, **options)

    monkeypatch.setattr(producer_log, "recall", counted)
    for _ in range(3):
        with pytest.raises(OutOfOrderSequence):
            story.put(b"v", spec=of_producer(9, 77))
    assert reads == 1
    assert story.put(b"v", spec=of_producer(9, 0)) == (0, 0, None, True)


def test_batches_of_a_producer_before_it_began_anew_are_not_its_retries() -> None:
    """The same numbers stand for others there: forgotten, it had to begin again."""
    story = Story()
    for number in range(3):
        story.put(b"old", spec=of_producer(9, number))
    story.log.producers.states.clear()
    for number in (1, 2):
        story.put(b"new", spec=of_producer(9, number))
    story.restart()
    assert story.put(b"v", spec=of_producer(9, 1)) == (3, 3, None, True)
    with pytest.raises(OutOfOrderSequence):
        story.put(b"v", spec=of_producer(9, 0))


def test_a_gap_in_sequences_and_an_old_producer_epoch_change_nothing() -> None:
    """I-20, I-21."""
    story = Story()
    story.put(b"a", spec=of_producer(9, 0, epoch=2))
    for again in (story.go_on, story.restart, story.kill):
        again()
        before = story.facts()
        with pytest.raises(OutOfOrderSequence):
            story.put(b"c", spec=of_producer(9, 2, epoch=2))
        with pytest.raises(StaleProducerEpoch):
            story.put(b"c", spec=of_producer(9, 0, epoch=1))
        assert story.facts() == before


def test_a_coordinator_may_write_without_sequences() -> None:
    story = Story()
    found = story.lead(batch_of(b"offsets", spec=of_producer(3, -1)), origin=Origin.COORDINATOR)
    assert found.base_offset == 0
    assert story.log.producers.states.get(ProducerId(3)) is not None

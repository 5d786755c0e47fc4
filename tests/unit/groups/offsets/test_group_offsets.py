"""The offsets of a shard: what counts, when it counts, and what is said about it."""

from uuid import UUID

import pytest

from millstream.groups.offsets.loader import LogReader
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import Packed, pack, pack_fixed, unpack
from millstream.groups.records.entries import Entry, UnreadableEntry, encode
from millstream.groups.records.keys import ClassicGroupKey, OffsetKey, encode_key
from millstream.groups.records.values import (
    GroupMetadataValue,
    OffsetCommitValue,
    decode_as,
    encode_value,
)
from millstream.kernels.errors import MalformedRecords
from millstream.model.ids import GroupId, Offset, ProducerEpoch, ProducerId
from millstream.model.invariant import InvariantViolated
from millstream.shards.effects import Producer
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker
from millstream.wire.fields import NO_UUID

GROUP = GroupId("g")
KEY = OffsetKey(GROUP, "t", 0)
OTHER = OffsetKey(GROUP, "t", 1)
PRODUCER = ProducerId(7)
TOPIC_ID = UUID(int=99)


def value(offset: int, **fields: object) -> OffsetCommitValue:
    made = OffsetCommitValue(offset=offset, commit_timestamp=1_000)
    for name, given in fields.items():
        setattr(made, name, given)
    return made


def offset_of(offsets: Offsets, key: OffsetKey = KEY) -> int | None:
    packed = offsets.get(key)
    return None if packed is None else unpack(packed).offset


def write(
    offsets: Offsets, at: int, offset: int | None, *, key: OffsetKey = KEY, producer: int = -1
) -> None:
    """An offset, or its tombstone."""
    what = None if offset is None else value(offset)
    offsets.append(key, what, Offset(at), producer_id=ProducerId(producer))


# -- what fits into few bytes ------------------------------------------------------------------


VALUES = [
    value(5),
    value(5, leader_epoch=3),
    value(-1, leader_epoch=-1, commit_timestamp=-1),
    value(2**63 - 1, topic_id=TOPIC_ID),
    value(5, metadata="a word"),
    value(5, metadata="ö😀", topic_id=TOPIC_ID, leader_epoch=2),
    value(5, expire_timestamp=77),
    value(5, expire_timestamp=0, metadata="x"),
]


@pytest.mark.parametrize("one", VALUES, ids=repr)
def test_nothing_of_an_offset_is_lost(one: OffsetCommitValue) -> None:
    back = unpack(pack(41, one))
    assert back.record_offset == 41
    assert back.offset == one.offset
    assert back.leader_epoch == one.leader_epoch
    assert back.commit_timestamp_ms == one.commit_timestamp
    assert back.expire_timestamp_ms == one.expire_timestamp
    assert back.topic_id == one.topic_id
    assert back.metadata == one.metadata


def test_a_plain_offset_is_small() -> None:
    """The object itself, as Python counts it; a million of them are sixty megabytes."""
    assert pack(1, value(2)).__sizeof__() <= 64
    assert pack(1, value(2, topic_id=TOPIC_ID)).__sizeof__() <= 80


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("one", VALUES, ids=repr)
def test_the_short_way_gives_what_the_long_one_does(one: OffsetCommitValue, version: int) -> None:
    raw = encode_value(one, version=version)
    short = pack_fixed(3, raw)
    if short is not None:
        assert short == pack(3, decode_as(OffsetCommitValue, raw))


def test_the_usual_forms_take_the_short_way() -> None:
    assert pack_fixed(3, encode_value(value(5, leader_epoch=2))) is not None
    assert pack_fixed(3, encode_value(value(5, topic_id=TOPIC_ID))) is not None


BAD_VALUES = [
    b"\0\4" + bytes(12) + b"\0" + bytes(9),  # a null string
    b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1",  # a tag that is not there
    b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\0\x0f" + bytes(16),  # a tag too short
    b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\0" + bytes(18),  # bytes behind the end
]


LOOK_USUAL = {
    "an older version": encode_value(value(5, metadata="ab\1d", commit_timestamp=256), version=2),
    "a topic id of zeros": b"\0\4" + bytes(12) + b"\1" + bytes(8) + b"\1\0\x10" + bytes(16),
}


@pytest.mark.parametrize("raw", LOOK_USUAL.values(), ids=LOOK_USUAL.keys())
def test_what_only_looks_usual_is_read_the_long_way(raw: bytes) -> None:
    assert len(raw) in (24, 42)
    assert pack_fixed(3, raw) is None
    assert unpack(pack(3, decode_as(OffsetCommitValue, raw))).topic_id == NO_UUID


@pytest.mark.parametrize("raw", BAD_VALUES)
def test_the_short_way_takes_nothing_malformed(raw: bytes) -> None:
    assert pack_fixed(3, raw) is None


# -- the high watermark (I-29) -----------------------------------------------------------------


def test_an_offset_counts_when_the_high_watermark_has_passed_it() -> None:
    offsets = Offsets()
    write(offsets, 0, 10)
    assert (offset_of(offsets), offsets.count, offsets.uncommitted_count) == (None, 0, 1)
    offsets.on_high_watermark(Offset(0))
    assert offset_of(offsets) is None
    offsets.on_high_watermark(Offset(1))
    assert (offset_of(offsets), offsets.count, offsets.uncommitted_count) == (10, 1, 0)


def test_offsets_count_one_after_the_other() -> None:
    offsets = Offsets()
    for at, offset in enumerate([10, 20, None, 40]):
        write(offsets, at, offset)
    seen = []
    for high_watermark in range(1, 5):
        offsets.on_high_watermark(Offset(high_watermark))
        seen.append(offset_of(offsets))
    assert seen == [10, 20, None, 40]


def test_the_high_watermark_may_be_ahead_of_what_we_were_told() -> None:
    offsets = Offsets()
    offsets.on_high_watermark(Offset(5))
    write(offsets, 4, 10)
    assert offset_of(offsets) == 10
    offsets.end_transaction(PRODUCER, Offset(5), is_commit=True)
    write(offsets, 6, 11)
    assert offset_of(offsets) == 10
    offsets.on_high_watermark(Offset(7))
    assert offset_of(offsets) == 11


def test_a_high_watermark_that_comes_late_takes_nothing_back() -> None:
    offsets = Offsets()
    write(offsets, 0, 10)
    offsets.on_high_watermark(Offset(1))
    offsets.on_high_watermark(Offset(0))
    assert offset_of(offsets) == 10


def test_records_must_come_in_the_order_of_the_log() -> None:
    offsets = Offsets()
    write(offsets, 5, 10)
    with pytest.raises(InvariantViolated):
        write(offsets, 5, 11)
    with pytest.raises(InvariantViolated):
        offsets.end_transaction(PRODUCER, Offset(4), is_commit=True)


def test_who_deletes_sees_what_is_still_on_its_way() -> None:
    offsets = Offsets()
    write(offsets, 0, 10)
    assert offsets.known([KEY]) == {KEY}
    assert offsets.keys_of(GROUP) == {KEY}
    assert offsets.group_ids() == {GROUP}
    offsets.on_high_watermark(Offset(1))
    assert offsets.keys_of(GROUP) == {KEY}
    write(offsets, 1, None)
    offsets.on_high_watermark(Offset(2))
    assert not offsets.known([KEY])
    assert offsets.keys_of(GROUP) == set()
    assert offsets.group_ids() == set()
    assert offsets.count == 0


# -- transactions ------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_commit", "seen"), [(True, 20), (False, 10)])
def test_an_offset_of_a_transaction_waits_for_the_marker(is_commit: bool, seen: int) -> None:
    offsets = Offsets()
    write(offsets, 0, 10)
    write(offsets, 1, 20, producer=PRODUCER)
    offsets.on_high_watermark(Offset(2))
    assert offset_of(offsets) == 10
    assert offsets.is_unstable(KEY)
    offsets.end_transaction(PRODUCER, Offset(2), is_commit=is_commit)
    assert (offset_of(offsets), offsets.is_unstable(KEY)) == (10, True), "the marker may be lost"
    offsets.on_high_watermark(Offset(3))
    assert (offset_of(offsets), offsets.is_unstable(KEY)) == (seen, False)
    assert not offsets.has_open_transaction(GROUP)


def test_an_offset_is_unstable_as_soon_as_it_is_written() -> None:
    """Its transaction could end before the high watermark moves, and nobody would have waited."""
    offsets = Offsets()
    write(offsets, 0, 20, producer=PRODUCER)
    assert offsets.is_unstable(KEY)
    assert offsets.has_open_transaction(GROUP)
    assert not offsets.is_unstable(OTHER)


def test_the_later_record_counts_not_the_later_marker() -> None:
    """Kafka's rule: compaction may drop either record, but never the later one."""
    offsets = Offsets()
    write(offsets, 0, 20, producer=PRODUCER)
    write(offsets, 1, 10)
    offsets.end_transaction(PRODUCER, Offset(2), is_commit=True)
    offsets.on_high_watermark(Offset(3))
    assert offset_of(offsets) == 10


def test_a_commit_inside_of_an_open_transaction_gives_way_to_it() -> None:
    offsets = Offsets()
    write(offsets, 0, 10)
    write(offsets, 1, 20, producer=PRODUCER)
    offsets.end_transaction(PRODUCER, Offset(2), is_commit=True)
    offsets.on_high_watermark(Offset(3))
    assert offset_of(offsets) == 20


def test_the_last_offset_of_a_transaction_counts() -> None:
    offsets = Offsets()
    write(offsets, 0, 20, producer=PRODUCER)
    write(offsets, 1, 30, producer=PRODUCER)
    offsets.end_transaction(PRODUCER, Offset(2), is_commit=True)
    write(offsets, 3, 40, producer=PRODUCER)
    offsets.on_high_watermark(Offset(4))
    assert (offset_of(offsets), offsets.is_unstable(KEY)) == (30, True)
    offsets.end_transaction(PRODUCER, Offset(4), is_commit=False)
    offsets.on_high_watermark(Offset(5))
    assert (offset_of(offsets), offsets.is_unstable(KEY)) == (30, False)


def test_a_marker_ends_the_transaction_of_its_producer_alone() -> None:
    offsets = Offsets()
    write(offsets, 0, 20, producer=7)
    write(offsets, 1, 30, producer=8)
    offsets.end_transaction(ProducerId(7), Offset(2), is_commit=True)
    offsets.on_high_watermark(Offset(3))
    assert (offset_of(offsets), offsets.is_unstable(KEY)) == (20, True)
    offsets.end_transaction(ProducerId(9), Offset(3), is_commit=True)
    offsets.on_high_watermark(Offset(4))
    assert offsets.is_unstable(KEY)


def test_what_was_deleted_does_not_come_back_with_the_marker() -> None:
    offsets = Offsets()
    write(offsets, 0, 20, producer=PRODUCER)
    write(offsets, 1, 30, key=OTHER, producer=PRODUCER)
    assert offsets.keys_of(GROUP) == {KEY, OTHER}
    write(offsets, 2, None)
    offsets.on_high_watermark(Offset(3))
    assert not offsets.is_unstable(KEY)
    offsets.end_transaction(PRODUCER, Offset(3), is_commit=True)
    offsets.on_high_watermark(Offset(4))
    assert (offset_of(offsets), offset_of(offsets, OTHER)) == (None, 30)


# -- loading -----------------------------------------------------------------------------------


def at(base_offset: int, batch: bytearray) -> bytearray:
    batch[:8] = base_offset.to_bytes(8, "big")
    return batch


def test_a_log_is_read_into_its_place() -> None:
    producer = Producer(PRODUCER, ProducerEpoch(0))
    group = Entry(ClassicGroupKey(GROUP), GroupMetadataValue(protocol=None, leader=None))
    log = encode([Entry(KEY, value(10)), group, Entry(OTHER, value(11, metadata="x"))], now_ms=1)
    log += at(3, encode([Entry(KEY, value(20))], now_ms=1, producer=producer))
    log += at(4, build_batch([(b"\0\x0bsomething", b"new")]))
    log += build_marker(
        BatchSpec(base_offset=5, producer_id=PRODUCER, producer_epoch=0), is_commit=True
    )
    log += at(6, encode([Entry(OTHER, None)], now_ms=1))
    offsets = Offsets()
    offsets.on_high_watermark(Offset(6))
    reader = LogReader(offsets)
    assert [one.what for one in reader.read(log)] == [group]
    assert reader.skipped_count == 1
    assert (offset_of(offsets), offset_of(offsets, OTHER)) == (20, 11)
    assert offsets.uncommitted_count == 1, "the tombstone is behind the high watermark"
    offsets.on_high_watermark(Offset(7))
    assert (offset_of(offsets, OTHER), offsets.count) == (None, 1)


def test_a_batch_that_comes_twice_is_read_once() -> None:
    """A read begins with the batch that holds the offset, not with the offset."""
    batch = encode([Entry(KEY, value(10)), Entry(OTHER, value(11))], now_ms=1)
    offsets = Offsets()
    reader = LogReader(offsets)
    assert list(reader.read(batch)) == []
    assert list(reader.read(batch + at(2, encode([Entry(KEY, value(12))], now_ms=1)))) == []
    assert offsets.uncommitted_count == 3
    offsets.on_high_watermark(Offset(3))
    assert offset_of(offsets) == 12


def test_the_oldest_records_are_read() -> None:
    """Key version 0, and values of every version."""
    old_key = b"\0\0" + encode_key(KEY)[2:]
    pairs = [(old_key, encode_value(value(version), version=version)) for version in range(5)]
    for pair in pairs:
        offsets = Offsets()
        offsets.on_high_watermark(Offset(1))
        assert list(LogReader(offsets).read(build_batch([pair]))) == []
        assert offset_of(offsets) == pairs.index(pair)


@pytest.mark.parametrize(
    "pair",
    [
        (encode_key(KEY)[:-1], encode_value(value(1))),
        (encode_key(KEY) + b"\0", encode_value(value(1))),
        (encode_key(KEY), b"\0\4"),
        (encode_key(KEY), b"\0\5" + bytes(22)),
        (None, b""),
        *((encode_key(KEY), raw) for raw in BAD_VALUES),
    ],
)
def test_what_cannot_be_read_stops_the_load(pair: tuple[bytes | None, bytes]) -> None:
    """Also when keys of the same topic were read before."""
    good = build_batch([(encode_key(KEY), encode_value(value(1)))])
    reader = LogReader(Offsets())
    with pytest.raises(UnreadableEntry, match="record 1 "):
        list(reader.read(good + at(1, build_batch([pair]))))


def test_damage_stops_the_load() -> None:
    batch = encode([Entry(KEY, value(10))], now_ms=1)
    batch[-1] ^= 1
    with pytest.raises(MalformedRecords):
        list(LogReader(Offsets()).read(batch))


def test_a_packed_offset_is_bytes() -> None:
    """The garbage collector does not look into them."""
    assert type(pack(1, value(2))) is bytes
    assert isinstance(Packed(b""), bytes)

"""Records of the offsets topic, byte for byte as Kafka 4.3 writes and reads them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from kits.wire.wire_messages import EMPTY, FULL, SHORT, STRANGE, Case, Choices, fill
from millstream.groups.records import keys
from millstream.groups.records.entries import (
    Decoded,
    Entry,
    Producer,
    Skipped,
    TransactionEnd,
    UnreadableEntry,
    decode_batches,
    encode,
)
from millstream.groups.records.keys import (
    ClassicGroupKey,
    ConsumerGroupKey,
    ConsumerMemberKey,
    ConsumerPartitionMetadataKey,
    CurrentAssignmentKey,
    Key,
    OffsetKey,
    RegularExpressionKey,
    TargetAssignmentKey,
    TargetMemberKey,
    decode_key,
    encode_key,
)
from millstream.groups.records.values import (
    VALUES,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
    CurrentTopicPartitions,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitValue,
    TargetTopicPartitions,
    decode_value,
    encode_value,
)
from millstream.kernels.compression import Codec
from millstream.kernels.errors import MalformedRecords
from millstream.model.ids import GroupId, MemberId, Offset, ProducerEpoch, ProducerId
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker, read_records
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message

GROUP = GroupId("g")
MEMBER = MemberId("m1")
TOPIC_ID = UUID(int=0x0102030405060708090A0B0C0D0E0F10)
TOPIC_ID_HEX = "0102030405060708090a0b0c0d0e0f10"

KEYS: dict[Key, str] = {
    OffsetKey(GROUP, "tö", 7): "0001 0001 67 0003 74c3b6 00000007",
    ClassicGroupKey(GROUP): "0002 0001 67",
    ConsumerGroupKey(GROUP): "0003 0001 67",
    ConsumerPartitionMetadataKey(GROUP): "0004 0001 67",
    ConsumerMemberKey(GROUP, MEMBER): "0005 0001 67 0002 6d31",
    TargetAssignmentKey(GROUP): "0006 0001 67",
    TargetMemberKey(GROUP, MEMBER): "0007 0001 67 0002 6d31",
    CurrentAssignmentKey(GROUP, MEMBER): "0008 0001 67 0002 6d31",
    RegularExpressionKey(GROUP, "a.*"): "0010 0001 67 0003 612e2a",
}

OFFSET = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=1_000)
OFFSET_FORMS: list[tuple[int, OffsetCommitValue, str]] = [
    (
        0,
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1_000),
        "0000 0000000000000005 0001 6d 00000000000003e8",
    ),
    (
        1,
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1_000, expire_timestamp=2_000),
        "0001 0000000000000005 0001 6d 00000000000003e8 00000000000007d0",
    ),
    (
        2,
        OffsetCommitValue(offset=5, metadata="m", commit_timestamp=1_000),
        "0002 0000000000000005 0001 6d 00000000000003e8",
    ),
    (3, OFFSET, "0003 0000000000000005 00000002 0001 6d 00000000000003e8"),
    (4, OFFSET, "0004 0000000000000005 00000002 02 6d 00000000000003e8 00"),
    (
        4,
        OffsetCommitValue(offset=5, commit_timestamp=1_000, topic_id=TOPIC_ID),
        f"0004 0000000000000005 ffffffff 01 00000000000003e8 01 00 10 {TOPIC_ID_HEX}",
    ),
]

MEMBER_V3 = MemberMetadata(
    member_id="m1",
    group_instance_id="i",
    client_id="c",
    client_host="/h",
    rebalance_timeout=3,
    session_timeout=4,
    subscription=b"\x01",
    assignment=b"\x02\x03",
)
CLASSIC = GroupMetadataValue(
    protocol_type="consumer",
    generation=1,
    protocol="range",
    leader="m1",
    current_state_timestamp=9,
    members=[MEMBER_V3],
)
CLASSIC_HEX = (
    "0003 0008 636f6e73756d6572 00000001 0005 72616e6765 0002 6d31 0000000000000009 00000001"
    " 0002 6d31 0001 69 0001 63 0002 2f68 00000003 00000004 00000001 01 00000002 0203"
)

WRITTEN: list[tuple[Entry, str]] = [
    (Entry(ClassicGroupKey(GROUP), CLASSIC), CLASSIC_HEX),
    (
        Entry(
            ClassicGroupKey(GROUP),
            GroupMetadataValue(protocol=None, leader=None, current_state_timestamp=9),
        ),
        "0003 0000 00000000 ffff ffff 0000000000000009 00000000",
    ),
    (
        Entry(ConsumerGroupKey(GROUP), ConsumerGroupMetadataValue(epoch=3)),
        "0000 00000003 00",
    ),
    (
        Entry(ConsumerGroupKey(GROUP), ConsumerGroupMetadataValue(epoch=3, metadata_hash=4)),
        "0000 00000003 01 00 08 0000000000000004",
    ),
    (
        Entry(
            ConsumerMemberKey(GROUP, MEMBER),
            ConsumerGroupMemberMetadataValue(
                instance_id=None,
                rack_id="r",
                client_id="c",
                client_host="/h",
                subscribed_topic_names=["t"],
                subscribed_topic_regex=None,
                rebalance_timeout_ms=5,
                server_assignor="uniform",
                classic_member_metadata=ClassicMemberMetadata(
                    session_timeout_ms=6,
                    supported_protocols=[ClassicProtocol(name="range", metadata=b"\x07")],
                ),
            ),
        ),
        "0000 00 0272 0263 032f68 02 0274 00 00000005 08 756e69666f726d"
        " 01 00 10 01 00000006 02 06 72616e6765 02 07 00 00",
    ),
    (
        Entry(
            ConsumerMemberKey(GROUP, MEMBER),
            ConsumerGroupMemberMetadataValue(
                instance_id="i",
                rack_id=None,
                subscribed_topic_regex="t.*",
                server_assignor=None,
                classic_member_metadata=None,
            ),
        ),
        "0000 0269 00 01 01 01 04 742e2a ffffffff 00 01 00 01 00",
    ),
    (
        Entry(
            TargetAssignmentKey(GROUP),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3, assignment_timestamp=4),
        ),
        "0000 00000003 01 00 08 0000000000000004",
    ),
    (
        Entry(
            TargetMemberKey(GROUP, MEMBER),
            ConsumerGroupTargetAssignmentMemberValue(
                topic_partitions=[TargetTopicPartitions(topic_id=TOPIC_ID, partitions=[1, 2])]
            ),
        ),
        f"0000 02 {TOPIC_ID_HEX} 03 00000001 00000002 00 00",
    ),
    (
        Entry(
            CurrentAssignmentKey(GROUP, MEMBER),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=4,
                previous_member_epoch=3,
                state=1,
                assigned_partitions=[
                    CurrentTopicPartitions(topic_id=TOPIC_ID, partitions=[1], assignment_epochs=[4])
                ],
                partitions_pending_revocation=[],
            ),
        ),
        f"0000 00000004 00000003 01 02 {TOPIC_ID_HEX} 02 00000001 01 00 05 02 00000004 01 00",
    ),
    (
        Entry(
            CurrentAssignmentKey(GROUP, MEMBER),
            ConsumerGroupCurrentMemberAssignmentValue(
                partitions_pending_revocation=[
                    CurrentTopicPartitions(topic_id=TOPIC_ID, assignment_epochs=None),
                    CurrentTopicPartitions(topic_id=TOPIC_ID),
                ],
            ),
        ),
        f"0000 00000000 00000000 00 01 03 {TOPIC_ID_HEX} 01 01 00 01 00 {TOPIC_ID_HEX} 01 00 00",
    ),
    (
        Entry(
            RegularExpressionKey(GROUP, "t.*"),
            ConsumerGroupRegularExpressionValue(topics=["t"], version=1, timestamp=2),
        ),
        "0000 02 0274 0000000000000001 0000000000000002 00",
    ),
]


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


def only_entries(records: bytes | bytearray) -> list[Entry | TransactionEnd]:
    return [decoded.what for decoded in decode_batches(records)]


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "form"), KEYS.items(), ids=lambda one: type(one).__name__)
def test_a_key_has_kafkas_bytes(key: Key, form: str) -> None:
    assert encode_key(key) == hexed(form)
    assert decode_key(hexed(form)) == key
    assert type(decode_key(hexed(form))) is type(key)


def test_every_kind_of_key_has_a_vector_and_a_value() -> None:
    assert {type(key) for key in KEYS} == set(keys.KINDS) == set(VALUES)


def test_keys_of_different_kinds_are_never_equal() -> None:
    """A dict may have several kinds of them."""
    classic: Key = ClassicGroupKey(GROUP)
    consumer: Key = ConsumerGroupKey(GROUP)
    assert classic != consumer
    assert not classic == consumer  # noqa: SIM201 - both are asked
    assert hash(classic) == hash(ClassicGroupKey(GroupId("g")))
    assert len({classic, consumer, ClassicGroupKey(GROUP)}) == 2
    assert len(set(KEYS)) == len(keys.KINDS)


def test_the_first_form_of_an_offset_key_means_the_same() -> None:
    assert decode_key(hexed("0000 0001 67 0001 74 00000007")) == OffsetKey(GROUP, "t", 7)


@pytest.mark.parametrize("kind", [9, 15, 17, 23, 0x7FFF, 0xFFFF])
def test_a_kind_that_is_not_known_is_nobodys_error(kind: int) -> None:
    assert decode_key(kind.to_bytes(2, "big") + b"whatever") is None


@pytest.mark.parametrize("form", KEYS.values())
def test_every_cut_of_a_key_is_malformed(form: str) -> None:
    raw = hexed(form)
    for size in range(len(raw)):
        with pytest.raises(MalformedFrame):
            decode_key(raw[:size])
    with pytest.raises(MalformedFrame):
        decode_key(raw + b"\0")


def test_what_a_key_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="string"):
        encode_key(ClassicGroupKey(GroupId("g" * 40_000)))
    with pytest.raises(ValueError, match="partition"):
        encode_key(OffsetKey(GROUP, "t", 2**31))


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "value", "form"), OFFSET_FORMS)
def test_an_offset_has_kafkas_bytes(version: int, value: OffsetCommitValue, form: str) -> None:
    assert encode_value(value, version=version) == hexed(form)
    assert decode_value(OffsetKey(GROUP, "t", 0), hexed(form)) == value


@pytest.mark.parametrize(("entry", "form"), WRITTEN, ids=lambda one: str(one)[:40])
def test_a_value_is_written_as_kafka_4_3_does(entry: Entry, form: str) -> None:
    assert entry.value is not None
    assert encode_value(entry.value) == hexed(form)
    assert decode_value(entry.key, hexed(form)) == entry.value


def test_an_offset_is_written_in_the_version_that_has_room_for_all_of_it() -> None:
    """Version 4, as Kafka 4.3; the expiry of its own exists in version 1 alone."""
    assert encode_value(OFFSET)[:2] == b"\0\4"
    expiring = OffsetCommitValue(offset=5, commit_timestamp=1, expire_timestamp=2)
    assert encode_value(expiring)[:2] == b"\0\1"


def test_what_an_offset_cannot_hold_is_refused() -> None:
    for value in (OffsetCommitValue(offset=2**63), OffsetCommitValue(leader_epoch=2**31)):
        with pytest.raises(ValueError, match=r"offset|OffsetCommitValue"):
            encode_value(value)


def test_tags_that_came_with_an_offset_are_written_with_it() -> None:
    value = OffsetCommitValue(offset=5, unknown_tags={9: b"x"})
    assert decode_value(OffsetKey(GROUP, "t", 0), encode_value(value)) == value


def test_null_is_said_out_loud_where_kafka_does_not_take_it_for_granted() -> None:
    """Kafka's generator overlooks these defaults: without the tag it reads an empty struct."""
    raw = hexed("0000 00 00 01 01 01 00 ffffffff 00 00")
    member = decode_value(ConsumerMemberKey(GROUP, MEMBER), raw)
    assert isinstance(member, ConsumerGroupMemberMetadataValue)
    assert member.classic_member_metadata == ClassicMemberMetadata()
    assert CurrentTopicPartitions().assignment_epochs == []


OLD_GROUPS = [
    (0, {"rebalance_timeout": -1, "group_instance_id": None}, -1),
    (1, {"group_instance_id": None}, -1),
    (2, {"group_instance_id": None}, 9),
    (3, {}, 9),
    (4, {}, 9),
]


@pytest.mark.parametrize(("version", "lost", "timestamp"), OLD_GROUPS)
def test_older_groups_are_read(version: int, lost: dict[str, Any], timestamp: int) -> None:
    """What a version had no room for has its default."""
    back = decode_value(ClassicGroupKey(GROUP), encode_value(CLASSIC, version=version))
    assert isinstance(back, GroupMetadataValue)
    assert back.current_state_timestamp == timestamp
    fields = {field.name: getattr(MEMBER_V3, field.name) for field in MemberMetadata.FIELDS}
    assert back.members == [MemberMetadata(**(fields | lost))]


def value_cases() -> list[tuple[type[Key], Case]]:
    return [(key, Case(made, one)) for key, made in VALUES.items() for one in made.VERSIONS]


def some_key(made: type[Key]) -> Key:
    return next(key for key in KEYS if type(key) is made)


@pytest.mark.parametrize("choices", [FULL, EMPTY, STRANGE], ids=["full", "empty", "strange"])
@pytest.mark.parametrize(("made", "case"), value_cases(), ids=str)
def test_every_version_comes_back(made: type[Key], case: Case, choices: Choices) -> None:
    value = fill(case, choices)
    raw = encode_value(value, version=case.version)
    back = decode_value(some_key(made), raw)
    assert back == value
    assert encode_value(back, version=case.version) == raw


@pytest.mark.parametrize(("made", "case"), value_cases(), ids=str)
def test_every_cut_of_a_value_is_malformed(made: type[Key], case: Case) -> None:
    raw = encode_value(fill(case, SHORT), version=case.version)
    for size in range(len(raw)):
        with pytest.raises(MalformedFrame):
            decode_value(some_key(made), raw[:size])


def test_a_version_still_to_come_is_not_guessed_at() -> None:
    with pytest.raises(MalformedFrame, match="OffsetCommitValue v5"):
        decode_value(OffsetKey(GROUP, "t", 0), b"\0\5" + bytes(40))


# -- batches -----------------------------------------------------------------------------------


ENTRIES: Sequence[Entry] = [
    *(entry for entry, _ in WRITTEN),
    *(Entry(OffsetKey(GROUP, "t", 0), value) for _, value, _ in OFFSET_FORMS),
    *(Entry(key, None) for key in KEYS),
]


def test_entries_come_back_from_their_batch() -> None:
    batch = encode(ENTRIES, now_ms=1_234)
    assert only_entries(batch) == list(ENTRIES)
    assert [decoded.offset for decoded in decode_batches(batch)] == list(range(len(ENTRIES)))
    assert all(decoded.producer is None for decoded in decode_batches(batch))


def test_the_batch_is_what_any_reader_reads() -> None:
    """The reader here knows nothing of the kernels."""
    records = read_records(encode(ENTRIES[-2:], now_ms=1_234))
    assert [one.key for one in records] == [encode_key(entry.key) for entry in ENTRIES[-2:]]
    assert [one.value for one in records] == [None, None]
    assert {one.timestamp_ms for one in records} == {1_234}


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        encode([], now_ms=1)


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_compressed_batches_are_written_and_read(codec: Codec) -> None:
    assert only_entries(encode(ENTRIES, now_ms=1, codec=codec)) == list(ENTRIES)
    pairs = [(hexed(form), b"\0\1" + bytes(26)) for form in KEYS.values()][:1]
    theirs = build_batch(pairs, BatchSpec(codec=codec))
    expired = OffsetCommitValue(expire_timestamp=0)
    assert only_entries(theirs) == [Entry(OffsetKey(GROUP, "tö", 7), expired)]


def test_entries_of_a_transaction_name_their_producer() -> None:
    producer = Producer(ProducerId(77), ProducerEpoch(3))
    batch = encode(ENTRIES[:2], now_ms=1, producer=producer)
    assert int.from_bytes(batch[21:23], "big") == 0x10, "transactional, nothing else"
    assert int.from_bytes(batch[53:57], "big", signed=True) == -1, "the coordinator has no sequence"
    assert [decoded.producer for decoded in decode_batches(batch)] == [producer] * 2


@pytest.mark.parametrize("is_commit", [True, False])
def test_markers_end_transactions(is_commit: bool) -> None:
    spec = BatchSpec(base_offset=9, producer_id=77, producer_epoch=3)
    (marker,) = decode_batches(build_marker(spec, is_commit=is_commit))
    assert marker == Decoded(Offset(9), TransactionEnd(is_commit), Producer(77, 3))  # type: ignore[arg-type]


def test_other_control_records_say_nothing() -> None:
    spec = BatchSpec(producer_id=-1, is_control=True)
    leader_change = build_batch([(b"\0\0\0\2", b"\0\0")], spec)
    assert list(decode_batches(leader_change)) == []


@pytest.mark.parametrize("key", [None, b"\0\0"])
def test_a_control_record_without_a_type_is_unreadable(key: bytes | None) -> None:
    batch = build_batch([(key, b"")], BatchSpec(producer_id=1, is_control=True))
    with pytest.raises(UnreadableEntry):
        list(decode_batches(batch))


def test_unknown_kinds_are_skipped_and_counted() -> None:
    known = encode_key(ClassicGroupKey(GROUP))
    pairs = [(b"\0\x0bwhatever", b"\0\0x"), (known, None), (b"\x01\0", None)]
    skipped = Skipped()
    found = list(decode_batches(build_batch(pairs), skipped=skipped))
    assert [(one.offset, one.what) for one in found] == [(1, Entry(ClassicGroupKey(GROUP), None))]
    assert skipped.count == 2


def test_many_batches_and_one_that_is_cut_off() -> None:
    first = encode(ENTRIES[:2], now_ms=1)
    second = bytearray(encode(ENTRIES[2:4], now_ms=1))
    second[:8] = (50).to_bytes(8, "big")  # compaction leaves gaps
    found = list(decode_batches(first + second + second[:30]))
    assert [one.offset for one in found] == [0, 1, 50, 51]
    assert [one.what for one in found] == list(ENTRIES[:4])


def test_a_damaged_batch_is_an_error() -> None:
    batch = encode(ENTRIES, now_ms=1)
    batch[-1] ^= 1
    with pytest.raises(MalformedRecords):
        list(decode_batches(batch))


BAD_PAIRS = {
    "no key": (None, b"\0\4"),
    "cut key": (b"\0\1\0\5gg", None),
    "cut value": (encode_key(OffsetKey(GROUP, "t", 0)), b"\0\4\0"),
    "new version": (encode_key(OffsetKey(GROUP, "t", 0)), b"\0\x09" + bytes(30)),
}


@pytest.mark.parametrize("pair", BAD_PAIRS.values(), ids=BAD_PAIRS.keys())
def test_an_entry_that_cannot_be_read_stops_the_reader(
    pair: tuple[bytes | None, bytes | None],
) -> None:
    """Going on without it could answer with an offset that was not the last one."""
    batch = build_batch([pair], BatchSpec(base_offset=41))
    with pytest.raises(UnreadableEntry, match="record 41 "):
        list(decode_batches(batch))


def test_values_do_not_keep_the_bytes_they_were_read_from() -> None:
    batch = bytearray(encode(ENTRIES[:1], now_ms=1))
    (decoded,) = list(decode_batches(batch))
    batch.clear()  # a buffer that something still looks into cannot change its size
    assert decoded.what == ENTRIES[0]


def test_values_are_messages() -> None:
    assert all(issubclass(made, Message) for made in VALUES.values())

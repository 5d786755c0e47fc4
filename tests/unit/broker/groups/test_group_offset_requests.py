"""Commit, fetch and delete of offsets and their expiry, as Kafka 4.3 does it."""

from uuid import UUID

import pytest

from millstream.groups.errors import StaleMemberEpoch
from millstream.groups.offsets.expiry import Expiry, ExpiryRule, Now, expire
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import topic_id_of
from millstream.groups.offsets.requests import (
    commit,
    commit_in_transaction,
    delete,
    delete_all,
    fetch,
    is_metadata_too_large,
)
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import OffsetCommitValue
from millstream.model.ids import GroupId, Offset, ProducerId
from millstream.wire.errors import ErrorCode
from millstream.wire.fields import NO_UUID
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

GROUP = GroupId("g")
KEY = OffsetKey(GROUP, "t", 0)
OTHER = OffsetKey(GROUP, "t", 1)
TOPIC_ID, NEW_TOPIC_ID = UUID(int=1), UUID(int=2)
UNSTABLE = (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
NOTHING = (-1, -1, "", 0)
WALL_MS = 1_000_000


class Shard:
    """Offsets whose log is replicated at once unless told otherwise."""

    def __init__(self) -> None:
        self.offsets = Offsets()
        self.end = 0

    def write(self, *entries: Entry, producer: int = -1, is_seen: bool = True) -> None:
        for key, value in entries:
            assert isinstance(key, OffsetKey)
            assert value is None or isinstance(value, OffsetCommitValue)
            self.offsets.append(key, value, Offset(self.end), producer_id=ProducerId(producer))
            self.end += 1
        if is_seen:
            self.offsets.on_high_watermark(Offset(self.end))

    def fetch(
        self, *partitions: int, require_stable: bool = False, topic_id: UUID = NO_UUID
    ) -> list[tuple[int, int, str | None, int]]:
        """(offset, leader epoch, text, code) of each partition of the topic t."""
        topic = OffsetFetchRequestTopics(
            name="t", topic_id=topic_id, partition_indexes=list(partitions)
        )
        group = OffsetFetchRequestGroup(group_id=GROUP, topics=[topic])
        (answer,) = fetch(self.offsets, group, require_stable=require_stable).topics
        assert (answer.name, answer.topic_id) == ("t", topic_id)
        assert [one.partition_index for one in answer.partitions] == list(partitions)
        return [
            (one.committed_offset, one.committed_leader_epoch, one.metadata, one.error_code)
            for one in answer.partitions
        ]


@pytest.fixture
def shard() -> Shard:
    return Shard()


def offset(number: int, **fields: object) -> OffsetCommitValue:
    made = OffsetCommitValue(offset=number, commit_timestamp=WALL_MS)
    for name, given in fields.items():
        setattr(made, name, given)
    return made


# -- OffsetCommit ------------------------------------------------------------------------------


def commit_request(*texts: str | None, **fields: object) -> OffsetCommitRequest:
    """One partition of the topic t for each text."""
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=10 + index,
            committed_leader_epoch=3,
            committed_metadata=text,
        )
        for index, text in enumerate(texts)
    ]
    topic = OffsetCommitRequestTopic(name="t", topic_id=TOPIC_ID, partitions=partitions)
    request = OffsetCommitRequest(group_id=GROUP, topics=[topic])
    for name, given in fields.items():
        setattr(request, name, given)
    return request


def test_a_commit_says_everything_the_client_did() -> None:
    done = commit(commit_request("x", None), wall_ms=WALL_MS, metadata_chars_max=10)
    first = offset(10, leader_epoch=3, metadata="x", topic_id=TOPIC_ID)
    second = offset(11, leader_epoch=3, topic_id=TOPIC_ID)
    assert done.entries == (Entry(KEY, first), Entry(OTHER, second))
    (topic,) = done.response.topics
    assert (topic.name, topic.topic_id) == ("t", TOPIC_ID)
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [(0, 0), (1, 0)]


def test_a_text_that_is_too_long_fails_its_partition_alone() -> None:
    done = commit(commit_request("123", "1234"), wall_ms=WALL_MS, metadata_chars_max=3)
    assert [entry.key for entry in done.entries] == [KEY]
    codes = [one.error_code for one in done.response.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize(
    ("text", "chars_max", "is_too_large"),
    [
        (None, 0, False),
        ("", 0, False),
        ("a", 0, True),
        ("abc", 3, False),
        ("abcd", 3, True),
        ("ööö", 3, False),
        ("😀", 1, True),
        ("😀", 2, False),
        ("a😀b", 3, True),
        ("a😀b", 4, False),
    ],
)
def test_texts_are_as_long_as_java_says(
    text: str | None, chars_max: int, is_too_large: bool
) -> None:
    assert is_metadata_too_large(text, chars_max) is is_too_large


def test_a_retention_of_the_clients_own_becomes_an_expiry() -> None:
    request = commit_request("", retention_time_ms=500)
    (entry,) = commit(request, wall_ms=WALL_MS, metadata_chars_max=3).entries
    assert isinstance(entry.value, OffsetCommitValue)
    assert entry.value.expire_timestamp == WALL_MS + 500


def test_a_refused_partition_refuses_the_request() -> None:
    """A member that lost the partition must not commit the others either: it is a zombie."""
    asked: list[tuple[str, UUID, int]] = []

    def check(topic: str, topic_id: UUID, partition: int) -> None:
        asked.append((topic, topic_id, partition))
        if partition == 2:
            raise StaleMemberEpoch

    request = commit_request("", "too long", "", "")
    with pytest.raises(StaleMemberEpoch):
        commit(request, wall_ms=WALL_MS, metadata_chars_max=3, check=check)
    assert asked == [("t", TOPIC_ID, 0), ("t", TOPIC_ID, 2)], "a text too long is answered first"


def test_a_transactional_commit_has_no_topic_id() -> None:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=10, committed_leader_epoch=3, committed_metadata=None
    )
    too_long = TxnOffsetCommitRequestPartition(partition_index=1, committed_metadata="1234")
    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[partition, too_long])
    request = TxnOffsetCommitRequest(group_id=GROUP, topics=[topic])
    done = commit_in_transaction(request, wall_ms=WALL_MS, metadata_chars_max=3)
    assert done.entries == (Entry(KEY, offset(10, leader_epoch=3)),)
    codes = [one.error_code for one in done.response.topics[0].partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


def test_a_transactional_commit_is_checked_by_partition() -> None:
    def check(topic: str, topic_id: UUID, partition: int) -> None:
        raise StaleMemberEpoch(f"{topic} {partition} {topic_id == NO_UUID}")

    topic = TxnOffsetCommitRequestTopic(name="t", partitions=[TxnOffsetCommitRequestPartition()])
    request = TxnOffsetCommitRequest(group_id=GROUP, topics=[topic])
    with pytest.raises(StaleMemberEpoch, match="t 0 True"):
        commit_in_transaction(request, wall_ms=WALL_MS, metadata_chars_max=3, check=check)


# -- OffsetFetch -------------------------------------------------------------------------------


def test_a_fetch_tells_what_was_committed(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10, leader_epoch=3, metadata="x")))
    assert shard.fetch(0, 1) == [(10, 3, "x", 0), NOTHING]


def test_a_fetch_tells_nothing_that_may_be_lost(shard: Shard) -> None:
    """I-29."""
    shard.write(Entry(KEY, offset(10)))
    shard.write(Entry(KEY, offset(20)), is_seen=False)
    assert shard.fetch(0) == [(10, -1, "", 0)]
    assert shard.fetch(0, require_stable=True) == [(20, -1, "", 0)], "told when it counts"


def test_a_group_that_nobody_knows_has_no_offsets(shard: Shard) -> None:
    assert shard.fetch(0) == [NOTHING]
    everything = OffsetFetchRequestGroup(group_id="nobody", topics=None)
    answer = fetch(shard.offsets, everything, require_stable=True)
    assert (answer.group_id, answer.topics, answer.error_code) == ("nobody", [], 0)


def test_a_stable_offset_is_asked_for(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10)), Entry(OTHER, offset(11)))
    shard.write(Entry(KEY, offset(20)), producer=7, is_seen=False)
    assert shard.fetch(0, 1, require_stable=True) == [UNSTABLE, (11, -1, "", 0)]
    assert shard.fetch(0, 1) == [(10, -1, "", 0), (11, -1, "", 0)]
    shard.offsets.on_high_watermark(Offset(shard.end))
    assert shard.fetch(0, 1, require_stable=True) == [UNSTABLE, (11, -1, "", 0)]


def test_an_offset_of_another_topic_of_the_same_name_is_none(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10, topic_id=TOPIC_ID)), Entry(OTHER, offset(11)))
    assert shard.fetch(0, 1, topic_id=TOPIC_ID) == [(10, -1, "", 0), (11, -1, "", 0)]
    assert shard.fetch(0, 1, topic_id=NEW_TOPIC_ID) == [NOTHING, (11, -1, "", 0)]
    assert shard.fetch(0, 1) == [(10, -1, "", 0), (11, -1, "", 0)], "who asks by name gets it"


@pytest.mark.parametrize("require_stable", [True, False])
def test_all_topics(shard: Shard, require_stable: bool) -> None:
    shard.write(Entry(KEY, offset(10, metadata="x")), Entry(OffsetKey(GROUP, "u", 5), offset(11)))
    shard.write(Entry(OffsetKey(GroupId("h"), "t", 0), offset(12)))
    shard.write(Entry(KEY, offset(20)), Entry(OffsetKey(GROUP, "v", 0), offset(1)), producer=7)
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=None)
    answer = fetch(shard.offsets, group, require_stable=require_stable)
    told = {
        (topic.name, one.partition_index): (one.committed_offset, one.error_code)
        for topic in answer.topics
        for one in topic.partitions
    }
    first = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT) if require_stable else (10, 0)
    assert told == {("t", 0): first, ("u", 5): (11, 0)}
    assert all(topic.topic_id == NO_UUID for topic in answer.topics)


# -- OffsetDelete and DeleteGroups -------------------------------------------------------------


def delete_request(*partitions: int) -> OffsetDeleteRequest:
    parts = [OffsetDeleteRequestPartition(partition_index=one) for one in partitions]
    return OffsetDeleteRequest(
        group_id=GROUP, topics=[OffsetDeleteRequestTopic(name="t", partitions=parts)]
    )


def test_what_is_deleted_gets_a_tombstone(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10)))
    shard.write(Entry(OTHER, offset(11)), is_seen=False)
    shard.write(Entry(OffsetKey(GROUP, "t", 2), offset(12)), producer=7, is_seen=False)
    done = delete(shard.offsets, delete_request(0, 1, 2, 3), lambda _: False)
    keys = [OffsetKey(GROUP, "t", one) for one in range(3)]
    assert done.entries == tuple(Entry(key, None) for key in keys)
    (topic,) = done.response.topics
    assert [(one.partition_index, one.error_code) for one in topic.partitions] == [
        (index, 0) for index in range(4)
    ]


def test_a_topic_that_is_subscribed_to_keeps_its_offsets(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10)))
    done = delete(shard.offsets, delete_request(0, 9), lambda topic: topic == "t")
    assert done.entries == ()
    codes = [one.error_code for one in done.response.topics[0].partitions]
    assert codes == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC] * 2


def test_a_deleted_group_leaves_nothing(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10)), Entry(OffsetKey(GroupId("h"), "t", 0), offset(1)))
    shard.write(Entry(OTHER, offset(11)), producer=7, is_seen=False)
    shard.write(Entry(OffsetKey(GROUP, "u", 0), offset(11)), is_seen=False)
    tombstones = delete_all(shard.offsets, GROUP)
    assert [entry.key for entry in tombstones] == [KEY, OTHER, OffsetKey(GROUP, "u", 0)]
    shard.write(*tombstones)
    shard.offsets.end_transaction(ProducerId(7), Offset(shard.end), is_commit=True)
    shard.offsets.on_high_watermark(Offset(shard.end + 1))
    assert shard.offsets.group_ids() == {"h"}


# -- expiry (KIP-211) --------------------------------------------------------------------------


def nothing_subscribed(_: str) -> bool:
    return False


def expire_at(
    shard: Shard, wall_ms: int, rule: ExpiryRule | None, retention_ms: int = 100
) -> Expiry:
    return expire(shard.offsets, GROUP, rule, Now(wall_ms, retention_ms))


def test_offsets_expire_after_their_commit(shard: Shard) -> None:
    """Groups of the next generation, stable ones, and consumers that never joined."""
    rule = ExpiryRule(None, nothing_subscribed)
    shard.write(Entry(KEY, offset(10)), Entry(OTHER, offset(11, commit_timestamp=WALL_MS + 50)))
    assert expire_at(shard, WALL_MS + 99, rule) == Expiry((), False)
    assert expire_at(shard, WALL_MS + 100, rule) == Expiry((Entry(KEY, None),), False)
    everything = (Entry(KEY, None), Entry(OTHER, None))
    assert expire_at(shard, WALL_MS + 150, rule) == Expiry(everything, True)


def test_offsets_of_an_empty_group_expire_after_it_became_empty(shard: Shard) -> None:
    rule = ExpiryRule(WALL_MS + 1_000, nothing_subscribed)
    shard.write(Entry(KEY, offset(10)))
    assert expire_at(shard, WALL_MS + 1_099, rule) == Expiry((), False)
    assert expire_at(shard, WALL_MS + 1_100, rule) == Expiry((Entry(KEY, None),), True)


def test_subscribed_topics_keep_their_offsets(shard: Shard) -> None:
    shard.write(Entry(KEY, offset(10)), Entry(OffsetKey(GROUP, "u", 0), offset(10)))
    rule = ExpiryRule(None, lambda topic: topic == "t")
    gone = (Entry(OffsetKey(GROUP, "u", 0), None),)
    assert expire_at(shard, WALL_MS + 100, rule) == Expiry(gone, False)


@pytest.mark.parametrize("fields", [{}, {"metadata": "x"}, {"topic_id": TOPIC_ID}])
def test_an_expiry_of_its_own_counts_alone(shard: Shard, fields: dict[str, object]) -> None:
    shard.write(Entry(KEY, offset(10, expire_timestamp=WALL_MS + 5, metadata="x")))
    shard.write(Entry(OTHER, offset(11, **fields)))
    for base_ms in (None, WALL_MS):
        rule = ExpiryRule(base_ms, nothing_subscribed)
        assert expire_at(shard, WALL_MS + 4, rule).entries == ()
        assert expire_at(shard, WALL_MS + 5, rule) == Expiry((Entry(KEY, None),), False)


def test_without_a_rule_nothing_expires(shard: Shard) -> None:
    assert expire_at(shard, WALL_MS + 10**9, None) == Expiry((), True)
    shard.write(Entry(KEY, offset(10)))
    assert expire_at(shard, WALL_MS + 10**9, None) == Expiry((), False)


def test_an_offset_that_will_change_does_not_expire(shard: Shard) -> None:
    """Neither one of an open transaction nor one that was just committed anew."""
    rule = ExpiryRule(None, nothing_subscribed)
    shard.write(Entry(KEY, offset(10)), Entry(OTHER, offset(11)))
    shard.write(Entry(KEY, offset(20)), producer=7)
    shard.write(Entry(OTHER, offset(21)), is_seen=False)
    assert expire_at(shard, WALL_MS + 10**9, rule) == Expiry((), False)


def test_a_group_with_an_open_transaction_is_not_done(shard: Shard) -> None:
    rule = ExpiryRule(None, nothing_subscribed)
    shard.write(Entry(KEY, offset(10)))
    shard.write(Entry(OffsetKey(GROUP, "u", 0), offset(20)), producer=7)
    assert expire_at(shard, WALL_MS + 100, rule) == Expiry((Entry(KEY, None),), False)
    shard.write(Entry(KEY, None))
    assert expire_at(shard, WALL_MS + 100, rule) == Expiry((), False)
    assert expire_at(shard, WALL_MS + 100, None) == Expiry((), False)


def test_a_group_that_has_just_committed_elsewhere_is_not_done(shard: Shard) -> None:
    """Its first offset there is on its way: the group must not go with the old ones."""
    rule = ExpiryRule(None, nothing_subscribed)
    shard.write(Entry(KEY, offset(10)))
    shard.write(Entry(OTHER, offset(11)), is_seen=False)
    assert expire_at(shard, WALL_MS + 100, rule) == Expiry((Entry(KEY, None),), False)


# -- topics ------------------------------------------------------------------------------------


def test_every_version_of_the_offsets_of_a_topic_is_found(shard: Shard) -> None:
    """Who deletes them must know what is still on its way, and for which topic of that name."""
    theirs, open_one = OffsetKey(GroupId("h"), "t", 0), OffsetKey(GROUP, "t", 3)
    shard.write(Entry(KEY, offset(10, topic_id=TOPIC_ID)), Entry(theirs, offset(13, metadata="x")))
    shard.write(Entry(OffsetKey(GROUP, "u", 0), offset(1)))
    shard.write(Entry(open_one, offset(1)), producer=7)
    shard.write(Entry(KEY, offset(20, topic_id=NEW_TOPIC_ID)), is_seen=False)
    shard.write(Entry(OTHER, offset(1)), producer=7, is_seen=False)
    found = [(key, topic_id_of(packed)) for key, packed in shard.offsets.of_topics(["t", "nobody"])]
    assert sorted(found) == [
        (KEY, TOPIC_ID.bytes),
        (KEY, NEW_TOPIC_ID.bytes),
        (OTHER, b""),
        (open_one, b""),
        (theirs, b""),
    ]

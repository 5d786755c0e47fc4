"""The offsets machine against a model that keeps the whole log and answers by looking back.

By definition: the offset of a key is that of its last record which is not deleted by a later
tombstone, and which is outside of a transaction or in one that committed; only records before the
high watermark are looked at. The machine never looks back, so the two have no code in common.

The same log, read from its batches by a new coordinator, must come to the same.
"""

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.groups.offsets.loader import LogReader
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import unpack
from millstream.groups.offsets.requests import delete_all
from millstream.groups.records.entries import Entry, encode
from millstream.groups.records.keys import OffsetKey
from millstream.groups.records.values import OffsetCommitValue
from millstream.model.ids import (
    NO_PRODUCER_ID,
    GroupId,
    Offset,
    ProducerEpoch,
    ProducerId,
)
from millstream.shards.effects import Producer
from millstream.testing.record_batches import BatchSpec, build_marker

GROUPS = [GroupId("g"), GroupId("h")]
ALL_KEYS = [OffsetKey(one, "t", number) for one in GROUPS for number in range(2)]
KEYS = st.sampled_from(ALL_KEYS)
PRODUCERS = st.integers(1, 3).map(ProducerId)
TEXTS = st.sampled_from(["", "", "a text"])


class Commit(NamedTuple):
    """A record with an offset; the number is what was committed."""

    at: int
    key: OffsetKey
    number: int
    text: str
    producer: ProducerId


class Tombstone(NamedTuple):
    """A record without one."""

    at: int
    key: OffsetKey


class Marker(NamedTuple):
    """The end of a transaction."""

    at: int
    producer: ProducerId
    is_commit: bool


class Model:
    """Everything that was written."""

    def __init__(self) -> None:
        self.log: list[Commit | Tombstone | Marker] = []
        self.end = 0
        self.high_watermark = 0

    def marker_after(self, commit: Commit, *, before: int) -> Marker | None:
        """The first one of its producer."""
        return next(
            (
                one
                for one in self.log
                if isinstance(one, Marker)
                and one.producer == commit.producer
                and commit.at < one.at < before
            ),
            None,
        )

    def is_deleted(self, commit: Commit, *, before: int) -> bool:
        return any(
            isinstance(one, Tombstone) and one.key == commit.key and commit.at < one.at < before
            for one in self.log
        )

    def counts(self, commit: Commit) -> bool:
        """It is what readers see, unless a later one counts too."""
        before = self.high_watermark
        if commit.at >= before or self.is_deleted(commit, before=before):
            return False
        marker = self.marker_after(commit, before=before)
        return commit.producer == NO_PRODUCER_ID or (marker is not None and marker.is_commit)

    def visible(self, key: OffsetKey) -> tuple[int, int, str] | None:
        found = [one for one in self.commits(key) if self.counts(one)]
        return (found[-1].at, found[-1].number, found[-1].text) if found else None

    def is_unstable(self, key: OffsetKey) -> bool:
        before = self.high_watermark
        return any(
            one.at >= before
            or not (self.marker_after(one, before=before) or self.is_deleted(one, before=before))
            for one in self.commits(key)
            if one.producer != NO_PRODUCER_ID
        )

    def commits(self, key: OffsetKey) -> list[Commit]:
        return [one for one in self.log if isinstance(one, Commit) and one.key == key]


def batch_of(record: Commit | Tombstone | Marker) -> bytearray:
    """As it is in the log."""
    if isinstance(record, Marker):
        spec = BatchSpec(base_offset=record.at, producer_id=record.producer, producer_epoch=0)
        return build_marker(spec, is_commit=record.is_commit)
    producer = None
    if isinstance(record, Commit) and record.producer != NO_PRODUCER_ID:
        producer = Producer(record.producer, ProducerEpoch(0))
    batch = encode([Entry(record.key, value_of(record))], now_ms=1, producer=producer)
    batch[:8] = record.at.to_bytes(8, "big")
    return batch


def value_of(record: Commit | Tombstone) -> OffsetCommitValue | None:
    if isinstance(record, Tombstone):
        return None
    return OffsetCommitValue(offset=record.number, metadata=record.text, commit_timestamp=5)


class OffsetsMachine(RuleBasedStateMachine):
    """Random histories of one shard."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.offsets = Offsets()

    def write(self, record: Commit | Tombstone | Marker) -> None:
        self.model.log.append(record)
        self.model.end = record.at + 1
        if isinstance(record, Marker):
            self.offsets.end_transaction(
                record.producer, Offset(record.at), is_commit=record.is_commit
            )
            return
        producer_id = record.producer if isinstance(record, Commit) else NO_PRODUCER_ID
        self.offsets.append(
            record.key, value_of(record), Offset(record.at), producer_id=producer_id
        )

    @rule(key=KEYS, number=st.integers(0, 1_000), text=TEXTS)
    def commit(self, key: OffsetKey, number: int, text: str) -> None:
        self.write(Commit(self.model.end, key, number, text, NO_PRODUCER_ID))

    @rule(key=KEYS, number=st.integers(0, 1_000), text=TEXTS, producer=PRODUCERS)
    def commit_in_transaction(
        self, key: OffsetKey, number: int, text: str, producer: ProducerId
    ) -> None:
        self.write(Commit(self.model.end, key, number, text, producer))

    @rule(producer=PRODUCERS, is_commit=st.booleans())
    def end(self, producer: ProducerId, is_commit: bool) -> None:
        self.write(Marker(self.model.end, producer, is_commit))

    @rule(key=KEYS)
    def delete(self, key: OffsetKey) -> None:
        self.write(Tombstone(self.model.end, key))

    @rule(gap=st.integers(1, 3))
    def others_write(self, gap: int) -> None:
        """Records of groups, or whatever compaction has removed."""
        self.model.end += gap

    @rule(back=st.integers(0, 4), ahead=st.integers(0, 2))
    def replicate(self, back: int, ahead: int) -> None:
        """The high watermark may be told before the record is; it never goes back."""
        target = max(self.model.end - back, self.model.high_watermark, 0)
        if not back:
            target += ahead
            self.model.end = target
        self.model.high_watermark = target
        self.offsets.on_high_watermark(Offset(target))

    @rule(group_id=st.sampled_from(GROUPS), commits=st.sets(PRODUCERS))
    def delete_group(self, group_id: GroupId, commits: set[ProducerId]) -> None:
        """Whatever was on its way, and however transactions end: nothing of it is left."""
        for entry in delete_all(self.offsets, group_id):
            assert isinstance(entry.key, OffsetKey)
            self.write(Tombstone(self.model.end, entry.key))
        for producer in range(1, 4):
            is_commit = producer in commits
            self.write(Marker(self.model.end, ProducerId(producer), is_commit))
        self.replicate(back=0, ahead=0)
        assert group_id not in self.offsets.group_ids()
        assert not self.offsets.has_open_transaction(group_id)

    @rule(reads=st.integers(1, 4), is_told_first=st.booleans())
    def fail_over(self, reads: int, is_told_first: bool) -> None:
        """Another coordinator reads the log, in several pieces."""
        self.offsets = Offsets()
        if is_told_first:
            self.offsets.on_high_watermark(Offset(self.model.high_watermark))
        reader = LogReader(self.offsets)
        batches = [batch_of(record) for record in self.model.log]
        size = len(batches) // reads + 1
        for start in range(0, len(batches), size):
            piece = b"".join(batches[max(0, start - 1) : start + size])
            assert list(reader.read(piece)) == []
        self.offsets.on_high_watermark(Offset(self.model.high_watermark))

    @invariant()
    def readers_see_what_counts(self) -> None:
        for key in ALL_KEYS:
            packed = self.offsets.get(key)
            found = None if packed is None else unpack(packed)
            seen = None if found is None else (found.record_offset, found.offset, found.metadata)
            assert seen == self.model.visible(key), key
            assert self.offsets.is_unstable(key) == self.model.is_unstable(key), key
            if seen is not None or self.model.is_unstable(key):
                assert self.offsets.known([key]) == {key}
                assert key in self.offsets.keys_of(key.group_id)

    @invariant()
    def they_are_counted(self) -> None:
        model = self.model
        assert self.offsets.count == sum(model.visible(key) is not None for key in ALL_KEYS)
        uncommitted = sum(record.at >= model.high_watermark for record in model.log)
        assert self.offsets.uncommitted_count == uncommitted


OffsetsMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, print_blob=True
)
TestOffsets = pytest.mark.filterwarnings("error")(OffsetsMachine.TestCase)

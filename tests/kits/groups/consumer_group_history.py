"""Members of a next-generation group that do whatever members do, and what must hold meanwhile.

Members are as bad as the protocol lets them be: they read what they are told at once, stop reading
what was taken from them only some time later, lose answers, die, come back. Who reads what is
noted here, from what members were told, and compared with what the coordinator believes.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from kits.groups.consumer_group_kit import GROUP, FakeSettings, FakeTopics, GroupWorld, facts_of
from millstream.groups.consumer.commits import Committer
from millstream.groups.consumer.embedded import (
    EmbeddedPartitions,
    EmbeddedSubscription,
    decode_assignment,
)
from millstream.groups.consumer.state import ConsumerGroupState
from millstream.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import encode_key
from millstream.groups.settings import MigrationPolicy
from millstream.model.ids import MemberId
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.sync_group import SyncGroupRequest

Partition = tuple[UUID, int]
SESSION_MS = 45_000
REBALANCE_MS = 30_000


@dataclass
class Reader:
    """One consumer."""

    number: int
    member_id: str = ""
    instance_id: str | None = None
    is_classic: bool = False
    topics: list[str] = field(default_factory=list)
    regex: str = ""
    epoch: int = 0
    reading: set[Partition] = field(default_factory=set)
    assigned: set[Partition] = field(default_factory=set)
    """What it shall have; it still reads what it has not given up."""
    is_joined: bool = False
    is_dead: bool = False
    is_sure: bool = True
    """Its last request was answered."""
    must_join: bool = False
    epochs_since: dict[int, int] = field(default_factory=dict)
    """When it came into each epoch, by the number of the event."""

    def wants(self, name: str) -> bool:
        """It subscribes to the topic."""
        return name in self.topics or bool(self.regex and re.fullmatch(self.regex, name))

    def drop(self) -> None:
        """Fenced: it stops reading and begins anew."""
        self.reading, self.assigned = set(), set()
        self.epoch, self.is_joined, self.is_sure, self.must_join = 0, False, True, False


class GroupHistory:
    """See the module."""

    def __init__(self, *, interval_ms: int = 0, assignor: str = "uniform") -> None:
        settings = FakeSettings(
            consumer_assignment_interval_ms=interval_ms,
            consumer_assignors=(assignor, "uniform" if assignor == "range" else "range"),
            # A group that turns classic is the shard's: see the stories of the conversion.
            migration_policy=MigrationPolicy.UPGRADE,
        )
        self.world = GroupWorld(FakeTopics(orders=4, payments=2), settings)
        self.readers: dict[int, Reader] = {}
        self._events = count(1)
        self._numbers = count(1)
        self.given: list[tuple[int, Partition, str]] = []
        """Every time that a member was told of a partition it did not have: who and when."""

    # -- readers ---------------------------------------------------------------------------------

    def add(
        self,
        *,
        topics: Iterable[str] = (),
        regex: str = "",
        instance_id: str | None = None,
        is_classic: bool = False,
    ) -> None:
        number = next(self._numbers)
        if instance_id is not None and any(
            one.instance_id == instance_id and not one.is_dead for one in self.readers.values()
        ):
            return
        if is_classic and self.world.group.is_empty:
            return
        reader = Reader(number, instance_id=instance_id, is_classic=is_classic)
        reader.topics, reader.regex = list(topics), "" if is_classic else regex
        if not reader.is_classic:
            reader.member_id = f"m{number}"
        self.readers[number] = reader
        self.beat(number)

    def pick(self, choice: int) -> Reader | None:
        alive = [one for one in self.readers.values() if not one.is_dead]
        return alive[choice % len(alive)] if alive else None

    def beat(self, number: int, *, loses_answer: bool = False, says_all: bool = False) -> None:
        """One request of whatever kind the reader sends next, and what it makes of the answer."""
        reader = self.readers[number]
        try:
            if reader.is_classic:
                self._beat_classic(reader, loses_answer=loses_answer)
            else:
                self._beat(reader, loses_answer=loses_answer, says_all=says_all)
        except CoordinatorNotAvailable:
            reader.is_sure = False
        except (FencedMemberEpoch, UnknownMember, GroupNotFound, IllegalGeneration):
            reader.drop()
            if reader.is_classic:
                reader.member_id = ""
        except FencedInstance:
            reader.drop()
            reader.is_dead = True
        except UnreleasedInstance:
            reader.drop()
        except RebalanceInProgress:
            reader.must_join = True
        self.check()

    def _beat(self, reader: Reader, *, loses_answer: bool, says_all: bool) -> None:
        said: dict[str, Any] = {}
        if not reader.is_joined or not reader.is_sure or says_all:
            said = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topic_names": reader.topics}
            said["subscribed_topic_regex"] = reader.regex
        owned: dict[UUID, list[int]] = {}
        for topic_id, partition in reader.reading:
            owned.setdefault(topic_id, []).append(partition)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=reader.member_id,
            member_epoch=reader.epoch,
            instance_id=reader.instance_id,
            topic_partitions=[
                RequestTopicPartitions(topic_id=one, partitions=parts)
                for one, parts in owned.items()
            ],
            **said,
        )
        answer = self.world.submit(self.world.group.heartbeat, request)
        if loses_answer:
            reader.is_sure = False
            return
        reader.is_sure = reader.is_joined = True
        self._is_in(reader, answer.member_epoch)
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            self._take(reader, {(one.topic_id, p) for one in parts for p in one.partitions})

    def _beat_classic(self, reader: Reader, *, loses_answer: bool) -> None:
        if self.world.group.is_empty:
            reader.drop()
            reader.is_dead = True
        elif not reader.is_joined or reader.must_join:
            self._join_classic(reader, loses_answer=loses_answer)
        else:
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=reader.epoch, member_id=reader.member_id
            )
            answer = self.world.submit(self.world.group.classic_heartbeat, request)
            reader.must_join = answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS

    def _join_classic(self, reader: Reader, *, loses_answer: bool) -> None:
        topics = self.world.topics
        owned: dict[str, list[int]] = {}
        for topic_id, partition in reader.reading:
            owned.setdefault(topics.name_of[topic_id], []).append(partition)
        subscription = EmbeddedSubscription(
            topics=reader.topics,
            owned_partitions=[
                EmbeddedPartitions(topic=one, partitions=parts) for one, parts in owned.items()
            ],
        )
        protocol = JoinGroupRequestProtocol(
            name="cooperative-sticky", metadata=b"\0\1" + subscription.encode(1)
        )
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=reader.member_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        group = self.world.group
        answer = self.world.submit(group.join, request, self.world.caller(9))
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            reader.member_id = request.member_id = answer.member_id
            answer = self.world.submit(group.join, request, self.world.caller(9))
        reader.is_joined, reader.must_join = True, True
        if loses_answer:
            return
        self._is_in(reader, answer.generation_id)
        synced = self.world.submit(
            group.sync,
            SyncGroupRequest(
                group_id=GROUP, generation_id=reader.epoch, member_id=reader.member_id
            ),
            self.world.caller(5),
        )
        reader.must_join = False
        parts = decode_assignment(synced.assignment).assigned_partitions
        self._take(reader, {(topics.id_of(one.topic), p) for one in parts for p in one.partitions})

    def _is_in(self, reader: Reader, epoch: int) -> None:
        if epoch != reader.epoch:
            reader.epoch = epoch
            reader.epochs_since[epoch] = next(self._events)

    def _take(self, reader: Reader, assigned: set[Partition]) -> None:
        for one in assigned - reader.reading:
            self.given.append((next(self._events), one, reader.member_id))
        reader.assigned = assigned
        reader.reading |= assigned

    def revoke(self, number: int) -> None:
        """It stops reading what it shall not have; a classic one joins again to say so."""
        reader = self.readers[number]
        if reader.is_classic and reader.reading != reader.assigned:
            reader.must_join = True
        reader.reading &= reader.assigned

    def subscribe(self, number: int, topics: Iterable[str], regex: str) -> None:
        reader = self.readers[number]
        reader.topics = list(topics)
        reader.regex = "" if reader.is_classic else regex
        reader.is_sure = False
        reader.must_join = True

    def leave(self, number: int, *, is_back_soon: bool = False) -> None:
        reader = self.readers[number]
        is_temporary = is_back_soon and reader.instance_id is not None
        if reader.is_joined:
            with suppress(RequestRefused):
                self._say_goodbye(reader, is_temporary=is_temporary)
        reader.drop()
        reader.is_dead = True
        self.check()

    def _say_goodbye(self, reader: Reader, *, is_temporary: bool) -> None:
        if reader.is_classic:
            members = [MemberIdentity(member_id=reader.member_id)]
            request: Any = LeaveGroupRequest(group_id=GROUP, members=members)
            self.world.submit(self.world.group.leave, request, self.world.caller(5))
            return
        self.world.heartbeat(
            reader.member_id, -2 if is_temporary else -1, instance_id=reader.instance_id
        )

    def die(self, number: int) -> None:
        """It is gone without a word; nothing is read by it any more."""
        self.readers[number].reading = set()
        self.readers[number].is_dead = True

    def commit(self, number: int, *, back: int) -> None:
        """A commit with an epoch that it is or was in, for all there is (I-28)."""
        reader = self.readers[number]
        epochs = sorted(reader.epochs_since)
        if not reader.is_joined or not epochs:
            return
        epoch = epochs[max(len(epochs) - 1 - back, 0)]
        who = Committer(member_id=reader.member_id, member_epoch=epoch)
        for name in self.world.topics.names():
            facts = self.world.topics.by_name(name)
            for partition in range(facts.partition_count if facts else 0):
                one = (self.world.topics.id_of(name), partition)
                try:
                    self.world.group.check_commit(who)(name, one[0], partition)
                except (StaleMemberEpoch, UnknownMember, IllegalGeneration):
                    continue
                self._check_accepted(reader, epoch, one)

    def _check_accepted(self, reader: Reader, epoch: int, one: Partition) -> None:
        member = self.world.group._core.state.members[MemberId(reader.member_id)]
        if epoch == member.member_epoch:
            return
        since = reader.epochs_since[epoch]
        others = [who for at, part, who in self.given if at > since and part == one]
        assert set(others) <= {reader.member_id}, "I-28 a commit of an old epoch was accepted"

    # -- the rest of the world -------------------------------------------------------------------

    def pass_ms(self, by_ms: int) -> None:
        self.world.pass_ms(by_ms)
        self.check()

    def reload(self) -> None:
        """Another coordinator takes over; it reads the log, or what compaction has left of it."""
        self._check_log()
        # Keys of different kinds are equal where their fields are: they are told apart by bytes.
        last = {encode_key(entry.key): at for at, entry in enumerate(self.world.log)}
        kept: list[Entry] = [
            entry
            for at, entry in enumerate(self.world.log)
            if last[encode_key(entry.key)] == at and entry.value is not None
        ]
        before = facts_of(self.world.group)
        self.world.log = kept
        self.world.group = self.world.reload()
        assert facts_of(self.world.group) == before, "the compacted log tells another state"

    # -- what must hold --------------------------------------------------------------------------

    def check(self) -> None:
        """I-27, from what members were told; and that the records tell the whole state."""
        members = self.world.group._core.state.members
        readers: dict[Partition, str] = {}
        for reader in self.readers.values():
            if reader.is_dead or MemberId(reader.member_id) not in members:
                continue
            for one in reader.reading:
                other = readers.setdefault(one, reader.member_id)
                assert other == reader.member_id, f"I-27 {one} is read by {other} and {reader}"
        self._check_log()

    def _check_log(self) -> None:
        is_same = facts_of(self.world.reload()) == facts_of(self.world.group)
        assert is_same, "the log tells another state"

    def settle(self) -> None:
        """I-31: faults stop; the group becomes stable, and every partition has one reader."""
        self.world.refuses = False
        self._rounds()
        topics = self.world.topics
        facts = topics.by_name("orders")
        topics.grow("orders", (facts.partition_count if facts else 0) + 1)
        topics.create("more-orders", 2)
        self._rounds()

    def _rounds(self) -> None:
        for _ in range(10):
            self.world.pass_ms(12_000)
            for reader in list(self.readers.values()):
                if not reader.is_dead:
                    self.beat(reader.number)
                    self.revoke(reader.number)
                    self.beat(reader.number)
        self.check()
        state = self.world.group.state
        assert state in {ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY}, f"I-31 {state}"
        self._check_complete()

    def _check_complete(self) -> None:
        alive = [one for one in self.readers.values() if not one.is_dead]
        group = self.world.group._core.state
        members = {one.member_id for one in alive}
        assert members == set(group.members), "I-30 not the members that are alive"
        wanted: set[Partition] = set()
        for name in self.world.topics.names():
            facts = self.world.topics.by_name(name)
            if facts is not None and any(one.wants(name) for one in alive):
                wanted |= {(facts.topic_id, one) for one in range(facts.partition_count)}
        read = [one for reader in alive for one in reader.reading]
        assert sorted(read) == sorted(wanted), "I-31 not all partitions are read once"
        assert all(one.reading == one.assigned for one in alive), "I-31 still on the way"

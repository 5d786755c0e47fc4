"""A group of the next-generation protocol with a log below it, for stories and random histories.

`GroupWorld` is the shell: it appends what the machine decides (or refuses to), hands the entries to
`apply`, and keeps everything in a log, from which the group can be loaded anew at any time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.topics import TopicFacts
from millstream.groups.records.entries import Entry
from millstream.groups.records.keys import ClassicGroupKey, encode_key
from millstream.groups.records.values import decode_value, encode_value
from millstream.groups.settings import MigrationPolicy
from millstream.model.ids import GroupId, MemberId
from millstream.shards.effects import Caller, Outbox, Reply, Write
from millstream.shards.errors import CoordinatorNotAvailable, RequestRefused
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)

GROUP = GroupId("group")
WALL_MS = 1_700_000_000_000


class FakeTopics:
    """TopicsView that tests change."""

    def __init__(self, **partitions: int) -> None:
        self.version = 0
        self.created_version = 0
        self._topics: dict[str, TopicFacts] = {}
        self._ids = count(1)
        self.name_of: dict[UUID, str] = {}
        """Also of topics that are gone: clients know what they read."""
        for name, partition_count in partitions.items():
            self.create(name, partition_count)

    def create(self, name: str, partition_count: int) -> UUID:
        self.version += 1
        self.created_version = self.version
        topic_id = UUID(int=next(self._ids) << 64)
        self.name_of[topic_id] = name
        self._topics[name] = TopicFacts(name, topic_id, partition_count)
        return topic_id

    def grow(self, name: str, partition_count: int) -> None:
        self.version += 1
        self._topics[name] = TopicFacts(name, self._topics[name].topic_id, partition_count)

    def delete(self, name: str) -> None:
        self.version += 1
        del self._topics[name]

    def names(self) -> list[str]:
        return list(self._topics)

    def by_name(self, name: str) -> TopicFacts | None:
        return self._topics.get(name)

    def by_id(self, topic_id: UUID) -> TopicFacts | None:
        return next((one for one in self._topics.values() if one.topic_id == topic_id), None)

    def id_of(self, name: str) -> UUID:
        return self._topics[name].topic_id


@dataclass
class FakeSettings:
    """Small numbers, and no wait between two assignments unless a test wants one."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    group_size_max: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 0
    consumer_group_size_max: int = 2**31 - 1
    consumer_assignors: Sequence[str] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    def consumer_session_timeout_of(self, group_id: GroupId) -> int:
        return self.consumer_session_timeout_ms

    def consumer_heartbeat_interval_of(self, group_id: GroupId) -> int:
        return self.consumer_heartbeat_interval_ms

    def consumer_assignment_interval_of(self, group_id: GroupId) -> int:
        return self.consumer_assignment_interval_ms


@dataclass
class GroupWorld:
    """See the module."""

    topics: FakeTopics = field(default_factory=FakeTopics)
    settings: FakeSettings = field(default_factory=FakeSettings)
    now_ms: int = 1_000
    log: list[Entry] = field(default_factory=list)
    refuses: bool = False
    """The log takes nothing."""

    def __post_init__(self) -> None:
        self.outbox = Outbox()
        self._member_numbers = count(1)
        self._tokens = count(1)
        self.group = self.fresh()

    def fresh(self) -> ConsumerGroup:
        return ConsumerGroup(
            GROUP,
            self.outbox,
            self.settings,
            lambda _: MemberId(f"server-made-{next(self._member_numbers)}"),
            topics=self.topics,
            wall_ms=lambda: WALL_MS + self.now_ms,
        )

    def caller(self, version: int = 1, client_id: str = "client") -> Caller:
        return Caller(next(self._tokens), version, client_id, "/127.0.0.1")

    # -- the shell -------------------------------------------------------------------------------

    def settle(self) -> dict[object, Any]:
        """Append, apply, answer. The answers by token."""
        answers: dict[object, Any] = {}
        writes = 0
        for effect in self.outbox.take():
            if isinstance(effect, Reply):
                answers[effect.token] = effect.response
                continue
            writes += 1
            assert writes == 1, "two decisions on one state"
            is_taken = not (self.refuses and effect.entries)
            if is_taken:
                self.append(effect)
            for reply in effect.replies:
                answers[reply.token] = reply.response if is_taken else CoordinatorNotAvailable()
        return answers

    def append(self, write: Write) -> None:
        for entry in write.entries:
            stored = stored_and_read(entry)
            self.log.append(stored)
            if not isinstance(stored.key, ClassicGroupKey):
                self.group.apply(stored)

    def submit(self, call: Any, request: Any, caller: Caller | None = None) -> Any:
        """The answer; a refusal is raised."""
        caller = caller or self.caller()
        call(caller, request, self.now_ms)
        answer = self.settle()[caller.token]
        if isinstance(answer, RequestRefused):
            raise answer
        return answer

    def tick(self) -> None:
        """All timers that are due."""
        for _ in range(10_000):
            due = self.group.next_deadline_ms()
            if due is None or due > self.now_ms:
                return
            self.group.tick(self.now_ms)
            self.settle()
        raise AssertionError("timers without end")

    def pass_ms(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.tick()

    def reload(self) -> ConsumerGroup:
        """The group as a new coordinator reads it."""
        group = self.fresh()
        for entry in self.log:
            if not isinstance(entry.key, ClassicGroupKey):
                group.apply(entry)
        group.on_loaded(self.now_ms)
        return group

    # -- requests --------------------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, member_epoch: int, *, version: int = 1, **said: Any
    ) -> ConsumerGroupHeartbeatResponse:
        owned = said.pop("owned", None)
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=member_epoch,
            topic_partitions=None if owned is None else self.partitions(owned),
            **said,
        )
        answer = self.submit(self.group.heartbeat, request, self.caller(version))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def join(self, member_id: str, *topics: str, **said: Any) -> ConsumerGroupHeartbeatResponse:
        if "subscribed_topic_regex" not in said or topics:
            said.setdefault("subscribed_topic_names", list(topics))
        said.setdefault("rebalance_timeout_ms", 30_000)
        return self.heartbeat(member_id, 0, owned={}, **said)

    def partitions(self, owned: dict[str, Iterable[int]]) -> list[RequestTopicPartitions]:
        return [
            RequestTopicPartitions(topic_id=self.topics.id_of(name), partitions=sorted(parts))
            for name, parts in owned.items()
        ]

    def assignment_in(self, answer: ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
        """The partitions of an answer, by name."""
        if answer.assignment is None:
            return None
        return {
            facts.name: part.partitions
            for part in answer.assignment.topic_partitions
            if (facts := self.topics.by_id(part.topic_id)) is not None
        }


def stored_and_read(entry: Entry) -> Entry:
    """Through Kafka's bytes and back: what is applied is what any coordinator would read."""
    encode_key(entry.key)
    if entry.value is None:
        return entry
    return Entry(entry.key, decode_value(entry.key, encode_value(entry.value)))


def facts_of(group: ConsumerGroup) -> dict[str, Any]:
    """All of the state, to compare a live group with a loaded one."""
    state = group._core.state
    names = (
        "epoch", "metadata_hash", "target_epoch", "members", "targets", "regexes", "static_ids",
        "owners", "name_counts", "regex_counts", "assignor_counts", "protocol_counts",
        "classic_count", "has_partition_metadata",
    )  # fmt: skip
    return {name: getattr(state, name) for name in names}

"""Requests that no client would send, and some that one would: drawn by a seed.

Each field is mostly plausible, with what was answered before, so that requests come far enough to
do harm, and sometimes anything that the wire can carry.
"""

from random import Random
from struct import pack
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from kits.groups.shard_requests import commit, fetch, txn_commit
from millstream.groups.consumer.embedded import (
    EmbeddedAssignment,
    EmbeddedPartitions,
    EmbeddedSubscription,
)
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

GROUPS = ("g", "g", "h")
TOPICS = ("t", "u", "v", "never made")
INT32_MAX = 2**31 - 1
REMEMBERED = 6

T = TypeVar("T")


class Draft(NamedTuple):
    """A method of the shard and what it is asked."""

    method: str
    request: Any
    version: int


class Drafts:
    """See the module."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.classic: dict[str, list[str]] = {one: [] for one in GROUPS}
        self.consumers: dict[str, list[str]] = {one: [] for one in GROUPS}
        self.epochs: list[int] = []

    def saw(self, group: str, member: str, epoch: int, *, is_classic: bool) -> None:
        """The broker knows a member by this."""
        known = (self.classic if is_classic else self.consumers)[group]
        if member not in known:
            known.append(member)
        self.epochs.append(epoch)
        del known[:-REMEMBERED], self.epochs[:-REMEMBERED]

    # -- fields ------------------------------------------------------------------------------

    def mostly(self, plausible: T, *others: T, part: float = 0.9) -> T:
        return plausible if self.random.random() < part else self.random.choice(others)

    def group(self) -> str:
        return self.random.choice(GROUPS)

    def any_member(self, group: str) -> str:
        known = [*self.classic[group], *self.consumers[group]]
        return self.random.choice([*known, "", "nobody"])

    def instance(self) -> str | None:
        return self.mostly(None, "i", "j", part=0.75)

    def epoch(self) -> int:
        return self.random.choice([*self.epochs, -1, 0, -2, INT32_MAX])

    def topics(self) -> list[str]:
        return self.random.sample(TOPICS, self.random.randint(0, 3))

    def timeout_ms(self) -> int:
        return self.mostly(10_000, 1_000, 0, -1, -5, INT32_MAX)

    def partitions(self) -> list[int]:
        return [self.random.randint(-1, 4) for _ in range(self.random.randint(0, 3))]

    def _embedded_partitions(self) -> list[EmbeddedPartitions]:
        return [
            EmbeddedPartitions(topic=one, partitions=self.partitions()) for one in self.topics()
        ]

    def subscription(self) -> bytes:
        version = self.random.randint(0, 3)
        message = EmbeddedSubscription(
            topics=self.topics(),
            user_data=self.mostly(None, b"", b"x"),
            owned_partitions=self._embedded_partitions() if self.random.random() < 0.4 else [],
        )
        return self._perhaps_garbage(pack(">h", version) + message.encode(version))

    def assignment(self) -> bytes:
        message = EmbeddedAssignment(
            assigned_partitions=self._embedded_partitions(), user_data=self.mostly(None, b"", b"x")
        )
        return self._perhaps_garbage(pack(">h", 0) + message.encode(0))

    def _perhaps_garbage(self, raw: bytes) -> bytes:
        garbage = self.random.randbytes(self.random.randint(0, 12))
        return self.mostly(raw, garbage, b"", b"\x80\0", raw[:-1])

    # -- of the classic protocol -------------------------------------------------------------

    def join(self) -> Draft:
        group = self.group()
        names = ("range", "roundrobin", "cooperative-sticky", "")
        chosen = self.random.choices(names, (6, 4, 2, 0.2), k=self.random.randint(1, 3))
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=self.mostly(6_000, 10_000, 0, -1, INT32_MAX),
            rebalance_timeout_ms=self.timeout_ms(),
            member_id=self.mostly(
                self.random.choice(["", "", *self.classic[group]]), self.any_member(group)
            ),
            group_instance_id=self.instance(),
            protocol_type=self.mostly("consumer", "connect", "", part=0.97),
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=self.subscription())
                for name in self.mostly(chosen, [], part=0.98)
            ],
        )
        # Before version 4 nobody has to come again with the id that it was given.
        return Draft("join_group", request, self.random.choice((0, 1, 3, 3, 3, 5, 9)))

    def join_again(self, joined: Draft, member: str) -> Draft:
        """With the id that was given."""
        old = joined.request
        request = JoinGroupRequest(
            group_id=old.group_id,
            session_timeout_ms=old.session_timeout_ms,
            rebalance_timeout_ms=old.rebalance_timeout_ms,
            member_id=member,
            group_instance_id=old.group_instance_id,
            protocol_type=old.protocol_type,
            protocols=old.protocols,
        )
        return joined._replace(request=request)

    def sync(self) -> Draft:
        group = self.group()
        members = [self.any_member(group) for _ in range(self.random.randint(0, 5))]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=self.epoch(),
            member_id=self.any_member(group),
            group_instance_id=self.instance(),
            protocol_type=self.mostly(None, "consumer", "x"),
            protocol_name=self.mostly(None, "range", "roundrobin"),
            assignments=self._assignments(members),
        )
        return Draft("sync_group", request, self.random.choice((0, 3, 5)))

    def sync_after(self, group: str, joined: Any) -> Draft:
        """As the member does that was told so; as leader it deals out whatever it likes."""
        members = [one.member_id for one in joined.members]
        request = SyncGroupRequest(
            group_id=group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=self._assignments(members),
        )
        return Draft("sync_group", request, 5)

    def _assignments(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        return [
            SyncGroupRequestAssignment(member_id=one, assignment=self.assignment())
            for one in members
        ]

    def heartbeat(self) -> Draft:
        group = self.group()
        request = HeartbeatRequest(
            group_id=group,
            generation_id=self.epoch(),
            member_id=self.any_member(group),
            group_instance_id=self.instance(),
        )
        return Draft("heartbeat", request, 4)

    def leave(self) -> Draft:
        group = self.group()
        if self.random.random() < 0.3:
            request = LeaveGroupRequest(group_id=group, member_id=self.any_member(group))
            return Draft("leave_group", request, 2)
        members = [
            MemberIdentity(member_id=self.any_member(group), group_instance_id=self.instance())
            for _ in range(self.random.randint(0, 2))
        ]
        request = LeaveGroupRequest(group_id=group, members=members)
        return Draft("leave_group", request, 5)

    # -- of the next one ---------------------------------------------------------------------

    def consumer_heartbeat(self) -> Draft:
        group = self.group()
        epoch = self.random.choice((0, 0, 0, 0, -1, -1, -2, -3, *self.epochs))
        owned = [
            RequestTopicPartitions(
                topic_id=UUID(int=self.random.randint(0, 5)), partitions=self.partitions()
            )
            for _ in range(self.random.randint(0, 2))
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=self.mostly(
                self.random.choice(["m", "n", *self.consumers[group]]), self.any_member(group)
            ),
            member_epoch=epoch,
            instance_id=self.instance(),
            rack_id=self.mostly(None, "r"),
            rebalance_timeout_ms=self.timeout_ms(),
            subscribed_topic_names=self.mostly(self.topics(), None),
            subscribed_topic_regex=self.mostly(None, "", "t.*", "(", "[a-z]+", part=0.8),
            server_assignor=self.mostly(None, "range", "uniform", "x"),
            topic_partitions=self.mostly([] if epoch == 0 else owned, None, owned),
        )
        return Draft("consumer_group_heartbeat", request, self.random.choice((0, 1, 1, 1)))

    def heartbeat_after(self, asked: Draft, answer: Any) -> Draft:
        """As the member does: it has what it was given, or says nothing of it."""
        given = answer.assignment
        owned = [
            RequestTopicPartitions(topic_id=one.topic_id, partitions=list(one.partitions))
            for one in (given.topic_partitions if given else ())
        ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=asked.request.group_id,
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            instance_id=asked.request.instance_id,
            topic_partitions=self.mostly(owned, None, part=0.7),
        )
        return Draft("consumer_group_heartbeat", request, 1)

    # -- offsets -----------------------------------------------------------------------------

    def _offsets(self) -> dict[tuple[str, int], int]:
        draw = self.random.randint
        return {(one, draw(0, 3)): draw(-5, 100) for one in self.topics()}

    def commit(self) -> Draft:
        group = self.group()
        is_old = self.random.random() < 0.3
        request = commit(
            group,
            self._offsets(),
            member=self.any_member(group),
            generation=self.epoch(),
            instance=None if is_old else self.instance(),
            retention_ms=self.mostly(-1, 1_000, -2) if is_old else -1,
            metadata=self.mostly("", "m", "x" * 5_000),
        )
        return Draft("offset_commit", request, 2 if is_old else 9)

    def commit_as_nobody(self) -> Draft:
        return Draft("offset_commit", commit(self.group(), self._offsets()), 9)

    def commit_in_transaction(self) -> Draft:
        group = self.group()
        request = txn_commit(
            group,
            self._offsets(),
            producer_id=self.random.randint(1, 2),
            member=self.any_member(group),
            generation=self.epoch(),
        )
        return Draft("txn_offset_commit", request, 3)

    def fetch(self) -> Any:
        group = self.group()
        partitions = self.mostly(None, [("t", 0)], part=0.5)
        member = self.mostly(None, self.any_member(group), part=0.5)
        return fetch(group, partitions, member=member, epoch=self.epoch())

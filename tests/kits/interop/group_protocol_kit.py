"""One group on any broker, request by request: what is answered, described and written.

What differs from run to run has a sign in place of its value (ids of topics and members that the
broker made, times, hashes), so what two brokers say can be compared as it is.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from kits.interop.waiting import wait_for
from kits.process.wire_client import WireClient
from millstream.groups.consumer.embedded import (
    EmbeddedAssignment,
    EmbeddedPartitions,
    EmbeddedSubscription,
)
from millstream.groups.records.entries import Entry, decode_batches
from millstream.groups.records.keys import ClassicGroupKey, TargetMemberKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from millstream.wire.schema import Struct

OFFSETS_TOPIC: Final = "__consumer_offsets"
TOPIC: Final = "orders"
PARTITIONS: Final = 4
NOT_YET: Final = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
VARYING: Final = frozenset(
    (
        "assignment_timestamp",
        "current_state_timestamp",
        "metadata_hash",
        "throttle_time_ms",
        "timestamp",
        "topic_id",
        "version",
    )
)
"""Fields that are compared only by whether they have a value."""


def subscription(*topics: str, owned: Sequence[int] = ()) -> bytes:
    """The subscription of a classic consumer that owns these partitions."""
    parts = [EmbeddedPartitions(topic=TOPIC, partitions=list(owned))] if owned else []
    return b"\0\1" + EmbeddedSubscription(topics=list(topics), owned_partitions=parts).encode(1)


def assignment(partitions: Sequence[int]) -> bytes:
    """An assignment from the leader of a classic group."""
    parts = [EmbeddedPartitions(topic=TOPIC, partitions=list(partitions))]
    return b"\0\0" + EmbeddedAssignment(assigned_partitions=parts).encode(0)


class GroupScene:
    """A group of this name on one broker."""

    def __init__(self, client: WireClient, group: str) -> None:
        self._client: Final = client
        self._group: Final = group
        self._topic_id = self._id_of_topic()
        self._made_ids: dict[str, str] = {}

    # -- requests ------------------------------------------------------------------------------

    def beat(self, member: str, epoch: int, *owned: int, **said: Any) -> Any:
        """ConsumerGroupHeartbeat of a member that has these partitions; see `join`."""
        parts = [RequestTopicPartitions(topic_id=self._topic_id, partitions=list(owned))]
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=member,
            member_epoch=epoch,
            **({"topic_partitions": parts if owned else []} | said),
        )
        return self.comparable(self._send_when_ready(request, 1))

    def join(self, member: str, *topics: str, **said: Any) -> Any:
        """Join as a member of the next-generation protocol, subscribed by name by default."""
        first = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": list(topics)}
        return self.beat(member, 0, **(first | said))

    def describe(self) -> Any:
        """ConsumerGroupDescribe."""
        answer = self._client.send(ConsumerGroupDescribeRequest(group_ids=[self._group]), 1)
        group = self.comparable(answer.groups[0])
        group["members"].sort(key=lambda one: one["member_id"])  # Kafka's come in any order
        return group

    def classic_join(
        self, member: str = "", metadata: bytes = subscription(TOPIC), **said: Any
    ) -> JoinGroupResponse:
        """JoinGroup. A member id that the broker makes is shown by its number from now on."""
        request = JoinGroupRequest(
            group_id=self._group,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            **said,
        )
        answer: JoinGroupResponse = self._send_when_ready(request, 9)
        if answer.member_id:
            self._made_ids.setdefault(answer.member_id, f"made-{len(self._made_ids) + 1}")
        return answer

    def classic_sync(
        self, member: str, generation: int, *, handed_out: Sequence[int] | None
    ) -> SyncGroupResponse:
        """SyncGroup; the leader hands out partitions, all to itself."""
        given = [] if handed_out is None else [(member, assignment(handed_out))]
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=member,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=parts) for one, parts in given
            ],
        )
        answer: SyncGroupResponse = self._send_when_ready(request, 5)
        return answer

    def classic_beat(self, member: str, generation: int) -> int:
        """Heartbeat; its code."""
        request = HeartbeatRequest(group_id=self._group, generation_id=generation, member_id=member)
        return int(self._send_when_ready(request, 4).error_code)

    def classic_describe(self) -> Any:
        """DescribeGroups."""
        answer = self._client.send(DescribeGroupsRequest(groups=[self._group]), 6)
        return self.comparable(answer.groups[0])

    # -- what is written -----------------------------------------------------------------------

    def records(self) -> list[Any]:
        """Of this group since it is one of the new protocol, in the order of the log.

        The offsets topic has one partition.
        """
        answer = self._client.fetch(OFFSETS_TOPIC, 0).responses[0].partitions[0]
        assert answer.error_code == ErrorCode.NONE
        entries = [one.what for one in decode_batches(answer.records or b"")]
        found = [
            (type(one.key).__name__, self.comparable(list(one.key)[1:]), self.comparable(one.value))
            for one in entries
            if isinstance(one, Entry) and one.key[0] == self._group
        ]
        while found and found[0][0] == ClassicGroupKey.__name__:
            del found[0]
        return _in_one_order(found)

    # -- inside --------------------------------------------------------------------------------

    def _send_when_ready(self, request: Any, version: int) -> Any:
        """Send a request, with retries: a new coordinator may not be available yet."""

        def attempt() -> Any:
            answer = self._client.send(request, version)
            if answer.error_code not in NOT_YET:
                return answer
            self._client.send(FindCoordinatorRequest(coordinator_keys=[self._group]), 4)
            return None

        return wait_for(f"a coordinator of {self._group}", attempt)

    def _id_of_topic(self) -> UUID:
        def attempt() -> UUID | None:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
            (topic,) = self._client.send(request, 12).topics
            is_there = topic.error_code == ErrorCode.NONE and len(topic.partitions) == PARTITIONS
            return topic.topic_id if is_there else None

        return wait_for("the topic", attempt)

    def comparable(self, value: Any) -> Any:
        """The message in a form that can be compared."""
        if isinstance(value, Struct):
            return {
                field.name: self._field(field.name, getattr(value, field.name))
                for field in value.FIELDS
            }
        if isinstance(value, list):
            return [self.comparable(one) for one in value]
        if isinstance(value, str):
            return self._made_ids.get(value, value)
        return bytes(value) if isinstance(value, memoryview) else value

    def _field(self, name: str, value: Any) -> Any:
        return bool(value) if name in VARYING else self.comparable(value)


def _in_one_order(records: list[Any]) -> list[Any]:
    """Kafka writes the targets of one assignment in any order of their members."""
    answer: list[Any] = []
    for name, run in groupby(records, key=itemgetter(0)):
        found = list(run)
        if name == TargetMemberKey.__name__:
            found.sort(key=itemgetter(1))
        answer += found
    return answer

"""One member: its metadata, and its progress towards its target assignment.

Members are values. A decision derives a new one from the old, an entry is made from it, and
`GroupState` stores it when that entry is applied.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final
from uuid import UUID

from millstream.groups.memory import MEMBER_BYTES, names_bytes, protocols_bytes
from millstream.groups.records.values import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)
from millstream.model.ids import InstanceId, MemberEpoch, MemberId

Owned = Mapping[UUID, Mapping[int, int]]
"""Partitions by topic; each with the member epoch in which it was assigned to the member."""
Assignment = Mapping[UUID, frozenset[int]]
"""Partitions by topic."""

NOTHING_OWNED: Final[Owned] = MappingProxyType({})
NO_ASSIGNMENT: Final[Assignment] = MappingProxyType({})

NO_EPOCH: Final = MemberEpoch(-1)
JOINING_EPOCH: Final = MemberEpoch(0)
LEAVING_EPOCH: Final = MemberEpoch(-1)
STATIC_LEAVING_EPOCH: Final = MemberEpoch(-2)
"""A static member that has left and will rejoin: its partitions are kept for it."""


class MemberState(IntEnum):
    """The numbers are those of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It has partitions to revoke first; it stays in its epoch until it has reported that."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members have not released."""
    UNKNOWN = 127
    """A state of a newer coordinator."""

    @classmethod
    def _missing_(cls, value: object) -> "MemberState":  # noqa: ARG003 - whatever it is
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicFacts:
    """Of a member that uses the classic protocol inside the group."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Its assignors in the order of its preference, each with the embedded subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """See the module."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    """Empty: none."""
    server_assignor: str | None = None
    classic: ClassicFacts | None = None
    member_epoch: MemberEpoch = JOINING_EPOCH
    previous_epoch: MemberEpoch = NO_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Owned = field(default_factory=lambda: NOTHING_OWNED)
    revoking: Owned = field(default_factory=lambda: NOTHING_OWNED)
    """Partitions pending revocation: it has not reported yet that it stopped reading them."""

    @property
    def size_bytes(self) -> int:
        """What it keeps in memory, without its assignment."""
        return self.own_bytes + names_bytes(self.topic_names)

    @property
    def own_bytes(self) -> int:
        """The same without the names of topics, which members may share."""
        size = MEMBER_BYTES + len(self.topic_regex) + len(self.client_id)
        return size + (protocols_bytes(self.classic.protocols) if self.classic else 0)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        """Whether it has reached its target assignment."""
        return self.state is MemberState.STABLE and self.member_epoch == target_epoch

    def previous_epoch_at(self, epoch: MemberEpoch) -> MemberEpoch:
        """The previous epoch of the member when it is moved to `epoch`.

        A step within the epoch keeps it: the response with the new epoch may have been lost, and
        the member may retry with the one before (Kafka forgets that one, and fences the member).
        """
        return self.previous_epoch if epoch == self.member_epoch else self.member_epoch

    def assignment_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The epoch in which it was assigned the partition; None if it does not own it."""
        assigned_in = self.assigned.get(topic_id, {}).get(partition)
        return (
            self.revoking.get(topic_id, {}).get(partition) if assigned_in is None else assigned_in
        )

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        """Its metadata as a record value."""
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
            subscribed_topic_regex=self.topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=_classic_value(self.classic),
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerMember":
        """The member with the metadata of the record."""
        instance_id = value.instance_id
        return replace(
            self,
            instance_id=None if instance_id is None else InstanceId(instance_id),
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=_classic_facts(value.classic_member_metadata),
        )

    def current_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        """Its current assignment as a record value."""
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned_partitions=_owned_value(self.assigned),
            partitions_pending_revocation=_owned_value(self.revoking),
        )

    def with_current(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> "ConsumerMember":
        """The member with the current assignment of the record."""
        return replace(
            self,
            member_epoch=MemberEpoch(value.member_epoch),
            previous_epoch=MemberEpoch(value.previous_member_epoch),
            state=MemberState(value.state),
            assigned=_owned(value.assigned_partitions, value.member_epoch),
            revoking=_owned(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_current(self) -> "ConsumerMember":
        """The member after the tombstone of its current assignment: it owns nothing."""
        return replace(
            self,
            member_epoch=LEAVING_EPOCH,
            previous_epoch=LEAVING_EPOCH,
            assigned=NOTHING_OWNED,
            revoking=NOTHING_OWNED,
        )


def _classic_value(facts: ClassicFacts | None) -> ClassicMemberMetadata | None:
    if facts is None:
        return None
    return ClassicMemberMetadata(
        session_timeout_ms=facts.session_timeout_ms,
        supported_protocols=[
            ClassicProtocol(name=name, metadata=metadata) for name, metadata in facts.protocols
        ],
    )


def _classic_facts(value: ClassicMemberMetadata | None) -> ClassicFacts | None:
    if value is None:
        return None
    return ClassicFacts(
        session_timeout_ms=value.session_timeout_ms,
        protocols=tuple((one.name, bytes(one.metadata)) for one in value.supported_protocols),
    )


def _owned_value(owned: Owned) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[one] for one in sorted(partitions)],
        )
        for topic_id, partitions in owned.items()
    ]


def _owned(value: Iterable[CurrentTopicPartitions], member_epoch: int) -> Owned:
    """Records of Kafka before 4.3 have no epochs: the member's own is the latest it can be."""
    return {
        one.topic_id: dict(
            zip(one.partitions, one.assignment_epochs, strict=True)
            if one.assignment_epochs is not None
            and len(one.assignment_epochs) == len(one.partitions)
            else ((partition, member_epoch) for partition in one.partitions)
        )
        for one in value
    }

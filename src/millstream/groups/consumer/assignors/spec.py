"""Input and output of an assignor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from millstream.groups.consumer.member import Assignment
from millstream.model.ids import InstanceId, MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """A member: the topics it subscribes to, and its last target."""

    instance_id: InstanceId | None
    topic_ids: frozenset[UUID]
    """Topics that exist. Members with the same subscription share one set object."""
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group: members in an order that is the same on every coordinator."""

    members: Mapping[MemberId, MemberSpec]
    partition_counts: Mapping[UUID, int]
    """Of every topic that a member subscribes to."""

    @property
    def is_homogeneous(self) -> bool:
        """All members subscribe to the same topics."""
        return len({one.topic_ids for one in self.members.values()}) <= 1


Targets = dict[MemberId, Assignment]
"""Members without partitions may be missing."""
Assign = Callable[[GroupSpec], Targets]

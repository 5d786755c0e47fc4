"""ConsumerGroupDescribe (key 69): one group as an administrator sees it."""

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from millstream.groups.consumer.core import Core
from millstream.groups.consumer.member import ConsumerMember
from millstream.groups.consumer.topics import TopicsView
from millstream.wire.messages.consumer_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


def describe(core: Core) -> DescribedGroup:
    """The group as ConsumerGroupDescribe reports it."""
    state = core.state
    return DescribedGroup(
        group_id=state.group_id,
        group_state=state.group_state.value,
        group_epoch=state.epoch,
        assignment_epoch=state.target_epoch,
        assignor_name=core.assignor_for(None, None),
        members=[_member(core, one) for one in state.members.values()],
    )


def _member(core: Core, member: ConsumerMember) -> Member:
    """Its assignment includes the partitions that it has not revoked yet."""
    owned: dict[UUID, set[int]] = {}
    for part in (member.assigned, member.revoking):
        for topic_id, partitions in part.items():
            owned.setdefault(topic_id, set()).update(partitions)
    target = core.state.targets.get(member.member_id, {})
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(owned, core.topics),
        target_assignment=_assignment(target, core.topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(parts: Mapping[UUID, Iterable[int]], topics: TopicsView) -> Assignment:
    """Deleted topics have no name any more and are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=facts.name, partitions=sorted(partitions))
            for topic_id, partitions in parts.items()
            if (facts := topics.by_id(topic_id)) is not None
        ]
    )

"""Validation of a ConsumerGroupHeartbeat before anything is decided, as in Kafka."""

from collections.abc import Sequence

from millstream.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
)
from millstream.groups.consumer.reconcile import Reported, is_within
from millstream.groups.errors import (
    FencedInstance,
    FencedMemberEpoch,
    InvalidGroupRequest,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

CLIENT_MADE_ID_FROM = 1
"""From this version on the member makes its id itself."""


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]
) -> None:
    """Checks that need only the request."""
    epoch = request.member_epoch
    needs_id = version >= CLIENT_MADE_ID_FROM or epoch > JOINING_EPOCH or epoch == LEAVING_EPOCH
    if needs_id and not request.member_id.strip():
        raise InvalidGroupRequest("MemberId can't be empty.")
    if not request.group_id.strip():
        raise InvalidGroupRequest("GroupId can't be empty.")
    for name, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value is not None and not value.strip():
            raise InvalidGroupRequest(f"{name} can't be empty.")
    if epoch == JOINING_EPOCH:
        _check_joining(request)
    elif epoch == STATIC_LEAVING_EPOCH and request.instance_id is None:
        raise InvalidGroupRequest("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise InvalidGroupRequest("MemberEpoch is invalid.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in assignors:
        raise UnsupportedAssignor(
            f"ServerAssignor {assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}."
        )


def _check_joining(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidGroupRequest("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidGroupRequest("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise InvalidGroupRequest(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when "
            "(re-)joining."
        )


def check_epoch(member: ConsumerMember, epoch: int, reported: Reported | None) -> None:
    """Check the member epoch of the request (I-28).

    A member that is one epoch behind may have lost our response. That it reports no partition
    beyond those assigned to it shows that it missed nothing else.
    """
    if epoch in (JOINING_EPOCH, member.member_epoch):
        return
    if epoch > member.member_epoch:
        raise FencedMemberEpoch(
            f"The consumer group member has a greater member epoch ({epoch}) than the one known "
            f"by the group coordinator ({member.member_epoch}). The member must abandon all its "
            "partitions and rejoin."
        )
    if epoch != member.previous_epoch or not is_within(reported, member.assigned):
        raise FencedMemberEpoch(
            f"The consumer group member has a smaller member epoch ({epoch}) than the one known "
            f"by the group coordinator ({member.member_epoch}). The member must abandon all its "
            "partitions and rejoin."
        )


def check_released(member: ConsumerMember, member_id: str) -> None:
    """A static member can be replaced only after it has announced that it leaves."""
    if member.member_epoch != STATIC_LEAVING_EPOCH:
        raise UnreleasedInstance(
            f"Static member {member_id} with instance id {member.instance_id} cannot join the "
            f"group because the instance id is owned by {member.member_id} member."
        )


def check_instance(
    member: ConsumerMember | None, member_id: str, instance_id: str | None
) -> ConsumerMember:
    """Return the static member; raise unless the request comes from it."""
    if member is None:
        raise UnknownMember(f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        raise FencedInstance(
            f"Static member {member_id} with instance id {instance_id} was fenced by member "
            f"{member.member_id}."
        )
    return member

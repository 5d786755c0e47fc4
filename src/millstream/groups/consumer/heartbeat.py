"""ConsumerGroupHeartbeat (key 68), versions 0-1: a member joins, stays, or (`leaving`) leaves.

v1: the member generates its id itself, and may subscribe by a pattern.
A request has only the fields that changed; a member that joins, or does not know whether its last
request was received, sends all of them (a full request). The response has the member's partitions
when they changed, and whenever the request is full. A heartbeat without changes costs the same
however large the group is.
A static member that rejoins with the same member id need not have left before: it can only be the
same member (Kafka makes it wait for the end of its own session).
Invariants: I-27, I-28, I-30.
"""

from dataclasses import replace
from typing import Any

from millstream.groups.consumer import entries, regexes
from millstream.groups.consumer import leave as leaving
from millstream.groups.consumer.checks import (
    check_epoch,
    check_instance,
    check_released,
    check_request,
)
from millstream.groups.consumer.core import Core
from millstream.groups.consumer.member import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    Owned,
)
from millstream.groups.consumer.member_step import Step, advance
from millstream.groups.consumer.reconcile import Reported, reported_from
from millstream.groups.consumer.regexes import RegexChange
from millstream.groups.errors import GroupFull, GroupNotFound
from millstream.groups.records.entries import Entry
from millstream.model.ids import InstanceId, MemberId
from millstream.shards.effects import Caller
from millstream.wire.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ResponseTopicPartitions,
)


def heartbeat(
    core: Core,
    caller: Caller,
    request: ConsumerGroupHeartbeatRequest,
    first: tuple[Entry, ...] = (),
) -> None:
    """Decide; `first` are entries to write before all others, in the same batch."""
    check_request(request, caller.version, core.settings.consumer_assignors)
    if request.member_epoch in (LEAVING_EPOCH, STATIC_LEAVING_EPOCH):
        leaving.leave(core, caller, request)
        return
    check_not_full(core, request.member_id)
    reported = reported_from(request.topic_partitions)
    records: list[Entry] = list(first)
    before, replaced = _find(core, caller, request, reported, records)
    after = _updated_member(before, caller, request)
    if after != before:
        records.append(entries.member_metadata(core.state.group_id, after))
    change = regexes.update_regexes(core, before, after, records)
    has_new_names = after.topic_names != before.topic_names
    # Epoch 0 is that of a classic group before its first generation: no member can be in it.
    is_in_no_epoch = core.state.epoch == JOINING_EPOCH
    step = Step(
        before=before,
        after=after,
        replaced=replaced,
        reported=reported,
        needs_epoch=is_in_no_epoch or has_new_names or change is RegexChange.RESOLVED,
        has_new_subscription=has_new_names or change is not RegexChange.NONE,
    )
    after = advance(core, step, records)
    if after.member_id in core.state.members:
        core.touch(after)
    core.answer(caller, _response(core, request, before, after), records)


def check_not_full(core: Core, member_id: str) -> None:
    """Raise GroupFull if there is no room for a new member."""
    size_max = core.settings.consumer_group_size_max
    if len(core.state.members) >= size_max and MemberId(member_id) not in core.state.members:
        raise GroupFull(
            f"The consumer group has reached its maximum capacity of {size_max} members."
        )


def _find(
    core: Core,
    caller: Caller,
    request: ConsumerGroupHeartbeatRequest,
    reported: Reported | None,
    records: list[Entry],
) -> tuple[ConsumerMember, ConsumerMember | None]:
    """The member, created or checked; and the static member that it replaces, if any."""
    is_joining = request.member_epoch == JOINING_EPOCH
    state = core.state
    if not (is_joining or state.members or state.has_epoch_record):
        raise GroupNotFound(f"Consumer group {state.group_id} not found.")
    member_id = MemberId(request.member_id) or core.new_member_id(caller.client_id)
    if request.instance_id is not None:
        static = state.static_member(request.instance_id)
        if not is_joining:
            known = check_instance(static, member_id, request.instance_id)
            check_epoch(known, request.member_epoch, reported)
            return known, None
        if static is not None and static.member_id != member_id:
            if static.classic is None:
                check_released(static, member_id)
            return replace_static_member(core, static, member_id, records), static
    if is_joining:
        return state.members.get(member_id) or ConsumerMember(member_id=member_id), None
    member = leaving.member_of(core, member_id)
    check_epoch(member, request.member_epoch, reported)
    return member, None


def replace_static_member(
    core: Core, static: ConsumerMember, member_id: MemberId, records: list[Entry]
) -> ConsumerMember:
    """A static member rejoins: it keeps everything, under another member id."""
    state = core.state
    group_id = state.group_id
    member = replace(
        static, member_id=member_id, member_epoch=JOINING_EPOCH, previous_epoch=JOINING_EPOCH
    )
    records += entries.member_tombstones(group_id, static.member_id)
    records.append(entries.member_metadata(group_id, member))
    target = state.targets.get(static.member_id, {})
    records.append(entries.target_member(group_id, member_id, target))
    records.append(entries.current_assignment(group_id, member))
    return member


def _updated_member(
    member: ConsumerMember, caller: Caller, request: ConsumerGroupHeartbeatRequest
) -> ConsumerMember:
    """The member updated from the request; the same object if nothing changed."""
    updates: dict[str, Any] = {"client_id": caller.client_id, "client_host": caller.client_host}
    updates["classic"] = None
    if request.instance_id is not None:
        updates["instance_id"] = InstanceId(request.instance_id)
    if request.rack_id is not None:
        updates["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        updates["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        updates["server_assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        updates["topic_names"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        updates["topic_regex"] = request.subscribed_topic_regex
    changed = {name: value for name, value in updates.items() if getattr(member, name) != value}
    return replace(member, **changed) if changed else member


def _response(
    core: Core,
    request: ConsumerGroupHeartbeatRequest,
    before: ConsumerMember,
    after: ConsumerMember,
) -> ConsumerGroupHeartbeatResponse:
    names, regex = request.subscribed_topic_names, request.subscribed_topic_regex
    is_full_request = (
        request.rebalance_timeout_ms != -1
        and not (names is None and regex is None)
        and request.topic_partitions is not None
    )
    includes_assignment = (
        request.member_epoch == JOINING_EPOCH
        or is_full_request
        or after.assigned != before.assigned
    )
    return ConsumerGroupHeartbeatResponse(
        member_id=after.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=core.settings.consumer_heartbeat_interval_of(core.state.group_id),
        assignment=_assignment(after.assigned) if includes_assignment else None,
    )


def _assignment(owned: Owned) -> Assignment:
    return Assignment(
        topic_partitions=[
            ResponseTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in owned.items()
        ]
    )

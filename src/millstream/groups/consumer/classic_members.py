"""Members that use the classic protocol inside a consumer group (KIP-848, migration).

With JoinGroup they send their subscription and the partitions they own, with SyncGroup they fetch
their assignment; the generation is the member epoch. There is no leader that assigns, and no member
waits for others: the response to a heartbeat says whether the member must rejoin.
"""

from dataclasses import replace
from typing import Final

from millstream.groups.consumer import entries, regexes
from millstream.groups.consumer.checks import check_instance
from millstream.groups.consumer.conversion import downgrade_entries
from millstream.groups.consumer.core import Core, Timer
from millstream.groups.consumer.embedded import (
    PROTOCOL_TYPE,
    EmbeddedSubscription,
    by_topic_id,
    decode_subscription,
    encode_assignment,
)
from millstream.groups.consumer.heartbeat import check_not_full, replace_static_member
from millstream.groups.consumer.leave import fence, member_of
from millstream.groups.consumer.member import ClassicFacts, ConsumerMember, MemberState
from millstream.groups.consumer.member_step import Step, advance, maybe_reconcile, raise_epoch
from millstream.groups.consumer.reconcile import waits_for_others
from millstream.groups.consumer.regexes import RegexChange
from millstream.groups.errors import (
    FencedInstance,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.groups.records.entries import Entry
from millstream.groups.settings import MigrationPolicy
from millstream.model.ids import InstanceId, MemberId
from millstream.shards.effects import Caller
from millstream.shards.errors import RequestRefused
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.primitives import MalformedFrame

MEMBER_ID_REQUIRED_FROM: Final = 4
"""From this version of JoinGroup on, a member without an id is assigned one and must rejoin."""
NULL_NAME_FROM: Final = 7
"""From this version of JoinGroup on, the protocol name is null in a response without one."""
SEVERAL_LEAVE_FROM: Final = 3
"""From this version of LeaveGroup on, a request can name several members."""


def join(core: Core, caller: Caller, request: JoinGroupRequest) -> None:
    """Handle JoinGroup; the response never waits for other members."""
    _check_join(core, request)
    is_nameless = not request.member_id and request.group_instance_id is None
    if is_nameless and caller.version >= MEMBER_ID_REQUIRED_FROM:
        core.outbox.reply(caller, _id_required(core, caller))
        return
    subscription = _subscription_of(request)
    records: list[Entry] = []
    reported = by_topic_id(subscription.owned_partitions, core.topics)
    before, replaced = _find(core, caller, request, records)
    is_known = before.member_id in core.state.members or replaced is not None
    if subscription.owned_partitions and not is_known:
        # It was fenced without knowing. Until it has its new assignment it would keep reading
        # partitions that others own now (Kafka accepts it, and I-27 would not hold for that long).
        raise UnknownMember(f"Member {request.member_id} was fenced and still has partitions.")
    may_downgrade = replaced is not None and _may_downgrade(core, replaced)
    after = _updated_member(before, caller, request, subscription)
    if after != before:
        records.append(entries.member_metadata(core.state.group_id, after))
    change = regexes.update_regexes(core, before, after, records)
    is_new = after.topic_names != before.topic_names or change is not RegexChange.NONE
    step = Step(
        before=before,
        after=after,
        replaced=replaced,
        reported=reported,
        needs_epoch=is_new,
        has_new_subscription=is_new,
    )
    after = _downgrade(core, step, records) if may_downgrade else advance(core, step, records)
    _answer_join(core, caller, after, records, is_staying=not may_downgrade)


def _id_required(core: Core, caller: Caller) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=ErrorCode.MEMBER_ID_REQUIRED,
        member_id=core.new_member_id(caller.client_id),
        protocol_name=None if caller.version >= NULL_NAME_FROM else "",
    )


def _answer_join(
    core: Core, caller: Caller, member: ConsumerMember, records: list[Entry], *, is_staying: bool
) -> None:
    core.deadlines.cancel((Timer.JOIN, member.member_id))
    if is_staying:
        core.touch(member)
        sync_by_ms = core.now_ms + member.rebalance_timeout_ms
        core.deadlines.set((Timer.SYNC, member.member_id), sync_by_ms)
    response = JoinGroupResponse(
        member_id=member.member_id,
        generation_id=member.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=_protocol_of(member),
    )
    core.answer(caller, response, records)


def _check_join(core: Core, request: JoinGroupRequest) -> None:
    """Raise if the member may not join; checks that do not depend on its metadata."""
    settings = core.settings
    check_not_full(core, request.member_id)
    if settings.migration_policy is MigrationPolicy.DISABLED:
        raise InconsistentProtocol(
            f"Cannot join the consumer group {core.state.group_id} with the classic protocol "
            "because the group migration is disabled."
        )
    least_ms, most_ms = settings.session_timeout_min_ms, settings.session_timeout_max_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        raise InvalidSessionTimeout
    counts, classic_count = core.state.protocol_counts, core.state.classic_count
    is_known = any(counts[one.name] == classic_count for one in request.protocols)
    if request.protocol_type != PROTOCOL_TYPE or not is_known:
        raise InconsistentProtocol(f"Member {request.member_id}'s protocols are not supported.")


def _subscription_of(request: JoinGroupRequest) -> EmbeddedSubscription:
    """The subscription in the metadata of its first assignor; all assignors have the same."""
    try:
        return decode_subscription(request.protocols[0].metadata)
    except MalformedFrame:
        raise InconsistentProtocol("The embedded consumer protocol is malformed.") from None


def _find(
    core: Core, caller: Caller, request: JoinGroupRequest, records: list[Entry]
) -> tuple[ConsumerMember, ConsumerMember | None]:
    """The member, and the static member that it replaces, if any."""
    state = core.state
    member_id = MemberId(request.member_id) or core.new_member_id(caller.client_id)
    instance_id = request.group_instance_id
    if instance_id is not None:
        static = state.static_member(instance_id)
        if request.member_id:
            return check_instance(static, member_id, instance_id), None
        if static is not None:
            return replace_static_member(core, static, member_id, records), static
    return state.members.get(member_id) or ConsumerMember(member_id=member_id), None


def _updated_member(
    member: ConsumerMember,
    caller: Caller,
    request: JoinGroupRequest,
    subscription: EmbeddedSubscription,
) -> ConsumerMember:
    instance_id = request.group_instance_id
    timeout_ms = request.rebalance_timeout_ms
    return replace(
        member,
        instance_id=member.instance_id if instance_id is None else InstanceId(instance_id),
        rack_id=subscription.rack_id or member.rack_id,
        rebalance_timeout_ms=request.session_timeout_ms if timeout_ms == -1 else timeout_ms,
        topic_names=frozenset(subscription.topics),
        topic_regex="",
        client_id=caller.client_id,
        client_host=caller.client_host,
        classic=ClassicFacts(
            session_timeout_ms=request.session_timeout_ms,
            protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
        ),
    )


def _may_downgrade(core: Core, replaced: ConsumerMember) -> bool:
    """Whether the last member of the consumer protocol is replaced by a classic one."""
    state = core.state
    return (
        replaced.classic is None
        and state.classic_count == len(state.members) - 1
        and core.settings.migration_policy.may_downgrade
        and len(state.members) <= core.settings.group_size_max
    )


def _downgrade(core: Core, step: Step, records: list[Entry]) -> ConsumerMember:
    """A new subscription rebalances the classic group anyway: nothing is reconciled before."""
    state = core.state
    raise_epoch(core, step, records)
    after = step.after
    if not step.needs_epoch:
        target = state.target_of(step.after)
        after = maybe_reconcile(core, step, state.target_epoch, target, records)
    others = (one for one in state.members.values() if one is not step.replaced)
    is_reconciled = all(one.is_reconciled_to(state.target_epoch) for one in (*others, after))
    core.downgrade_rebalances = step.needs_epoch or not is_reconciled
    records += downgrade_entries(state, core.topics, wall_ms=core.wall_clock_ms(), joining=after)
    return after


def _protocol_of(member: ConsumerMember) -> str:
    return member.classic.protocols[0][0] if member.classic else ""


def _validated_member(
    core: Core, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    """The member that sent the request, checked (I-28)."""
    if instance_id is None:
        member = member_of(core, member_id)
    else:
        member = check_instance(core.state.static_member(instance_id), member_id, instance_id)
    if member.classic is None:
        raise UnknownMember(f"Member {member_id} does not use the classic protocol.")
    if generation != member.member_epoch:
        raise IllegalGeneration(
            f"The request generation id {generation} is not equal to the member epoch "
            f"{member.member_epoch} of member {member_id}."
        )
    return member


def sync(core: Core, caller: Caller, request: SyncGroupRequest) -> None:
    """Handle SyncGroup: the response has what the member was assigned when it joined."""
    member = _validated_member(
        core, request.member_id, request.group_instance_id, request.generation_id
    )
    if request.protocol_type not in (None, PROTOCOL_TYPE):
        raise InconsistentProtocol("The protocol type is not the group's.")
    if request.protocol_name not in (None, _protocol_of(member)):
        raise InconsistentProtocol("The protocol name is not the one of the join response.")
    is_behind = core.state.epoch > member.member_epoch
    if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _expect_join(core, member)
        raise RebalanceInProgress
    core.deadlines.cancel((Timer.SYNC, member.member_id))
    core.touch(member)
    metadata = member.classic.protocols[0][1] if member.classic else b""
    response = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=encode_assignment(member.assigned, core.topics, metadata),
    )
    core.answer(caller, response)


def heartbeat(core: Core, caller: Caller, request: HeartbeatRequest) -> None:
    """Handle Heartbeat; the response says whether the member must rejoin."""
    member = _validated_member(
        core, request.member_id, request.group_instance_id, request.generation_id
    )
    core.touch(member)
    # If all members are classic, nothing else notices that topics have changed.
    records: list[Entry] = []
    same = Step(
        before=member,
        after=member,
        reported=None,
        needs_epoch=False,
        has_new_subscription=False,
    )
    must_rejoin = (
        member.member_epoch < raise_epoch(core, same, records)
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (
            member.state is MemberState.UNRELEASED_PARTITIONS
            and not waits_for_others(core.state, member)
        )
    )
    if must_rejoin:
        _expect_join(core, member)
    code = ErrorCode.REBALANCE_IN_PROGRESS if must_rejoin else ErrorCode.NONE
    core.answer(caller, HeartbeatResponse(error_code=code), records)


def _expect_join(core: Core, member: ConsumerMember) -> None:
    by_ms = core.now_ms + member.rebalance_timeout_ms
    core.deadlines.set_once((Timer.JOIN, member.member_id), by_ms)


def leave(core: Core, caller: Caller, request: LeaveGroupRequest) -> None:
    """Handle LeaveGroup; an administrator names static members by instance id only."""
    has_several = caller.version >= SEVERAL_LEAVE_FROM
    named = request.members if has_several else [MemberIdentity(member_id=request.member_id)]
    gone: dict[MemberId, ConsumerMember] = {}
    results = []
    for one in named:
        code = ErrorCode.NONE
        try:
            member = _find_leaving_member(core, one)
            gone[member.member_id] = member
        except RequestRefused as refused:
            is_fenced = isinstance(refused, FencedInstance)
            code = ErrorCode.FENCED_INSTANCE_ID if is_fenced else ErrorCode.UNKNOWN_MEMBER_ID
        results.append(
            MemberResponse(
                member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code
            )
        )
    if has_several:
        response = LeaveGroupResponse(members=results)
    else:
        response = LeaveGroupResponse(error_code=results[0].error_code)
    core.answer(caller, response, fence(core, list(gone.values())))


def _find_leaving_member(core: Core, one: MemberIdentity) -> ConsumerMember:
    if one.group_instance_id is None:
        return member_of(core, one.member_id)
    static = core.state.static_member(one.group_instance_id)
    member_id = one.member_id or (static.member_id if static is not None else "")
    return check_instance(static, member_id, one.group_instance_id)

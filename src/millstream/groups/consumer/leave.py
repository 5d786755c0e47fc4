"""Members that leave, and members that are fenced because a deadline has passed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from millstream.groups.consumer import entries
from millstream.groups.consumer.checks import check_instance
from millstream.groups.consumer.conversion import downgrade_entries
from millstream.groups.consumer.core import RETRY_MS, Core, Timer
from millstream.groups.consumer.member import (
    NOTHING_OWNED,
    STATIC_LEAVING_EPOCH,
    ConsumerMember,
    MemberState,
)
from millstream.groups.consumer.topics import metadata_hash
from millstream.groups.errors import UnknownMember
from millstream.groups.records.entries import Entry
from millstream.model.ids import MemberId
from millstream.shards.effects import Caller
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def member_of(core: Core, member_id: str) -> ConsumerMember:
    """Raises UnknownMember."""
    member = core.state.members.get(MemberId(member_id))
    if member is None:
        raise UnknownMember(f"Member {member_id} is not a member of group {core.state.group_id}.")
    return member


def leave(core: Core, caller: Caller, request: ConsumerGroupHeartbeatRequest) -> None:
    """Handle a heartbeat with epoch -1 (leave), or -2 (a static member that will rejoin)."""
    if request.instance_id is None:
        member = member_of(core, request.member_id)
    else:
        found = core.state.static_member(request.instance_id)
        member = check_instance(found, request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    if request.instance_id is not None and request.member_epoch == STATIC_LEAVING_EPOCH:
        # It has stopped reading, so the partitions it had to revoke are revoked.
        gone = replace(member, member_epoch=STATIC_LEAVING_EPOCH, revoking=NOTHING_OWNED)
        records = [entries.current_assignment(core.state.group_id, gone)]
    else:
        records = fence(core, [member])
    core.answer(caller, response, records)


def fence(core: Core, members: Sequence[ConsumerMember]) -> list[Entry]:
    """The entries that remove the members, or that make a classic group of the remaining ones."""
    if not members:
        return []
    if _may_downgrade(core, members):
        core.downgrade_rebalances = True
        return downgrade_entries(
            core.state, core.topics, wall_ms=core.wall_clock_ms(), leaving=members
        )
    state = core.state
    records = [
        entry
        for member in members
        for entry in entries.member_tombstones(state.group_id, member.member_id)
    ]
    counts = Counter(one.topic_regex for one in members if one.topic_regex)
    records += [
        entries.regex_tombstone(state.group_id, expression)
        for expression, count in counts.items()
        if state.regex_counts[expression] == count
    ]
    hashed = metadata_hash(state.subscribed_after(leaving=members), core.topics)
    records.append(entries.group_epoch(state.group_id, state.epoch + 1, hashed))
    return records


def _may_downgrade(core: Core, leaving: Sequence[ConsumerMember]) -> bool:
    """Whether all remaining members are classic, and not too many for a classic group."""
    state = core.state
    staying = len(state.members) - len(leaving)
    classic = state.classic_count - sum(one.classic is not None for one in leaving)
    return (
        0 < staying == classic
        and core.settings.migration_policy.may_downgrade
        and staying <= core.settings.group_size_max
    )


def fence_expired(core: Core, due: Sequence[tuple[Timer, MemberId]]) -> bool:
    """Fence the members whose deadline has passed, in one write; return whether there were any.

    Their deadlines are set again in case the log refuses the write; the tombstones cancel them.
    """
    expired: dict[MemberId, ConsumerMember] = {}
    for timer, member_id in due:
        member = core.state.members.get(member_id)
        if member is None:
            continue
        if timer is Timer.REBALANCE and member.state is not MemberState.UNREVOKED_PARTITIONS:
            continue
        expired[member_id] = member
        core.deadlines.set((timer, member_id), core.now_ms + RETRY_MS)
    if expired:
        core.write(fence(core, list(expired.values())))
    return bool(expired)

"""Members that go, by their own will or because they were silent for too long."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from millstream.groups.consumer import entries
from millstream.groups.consumer.checks import check_instance
from millstream.groups.consumer.conversion import downgraded
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
    """A heartbeat with epoch -1: it goes; with -2: it is static and will be back."""
    if request.instance_id is None:
        member = member_of(core, request.member_id)
    else:
        found = core.state.static_member(request.instance_id)
        member = check_instance(found, request.member_id, request.instance_id)
    response = ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    if request.instance_id is not None and request.member_epoch == STATIC_LEAVING_EPOCH:
        # It has stopped reading, so what it had to give back is given back.
        gone = replace(member, member_epoch=STATIC_LEAVING_EPOCH, revoking=NOTHING_OWNED)
        told = [entries.current_assignment(core.state.group_id, gone)]
    else:
        told = fence(core, [member])
    core.answer(caller, response, told)


def fence(core: Core, members: Sequence[ConsumerMember]) -> list[Entry]:
    """The entries that remove the members, or that make a classic group of those who stay."""
    if not members:
        return []
    if _may_downgrade(core, members):
        core.downgrade_rebalances = True
        return downgraded(core.state, core.topics, wall_ms=core.wall_clock_ms(), leaving=members)
    state = core.state
    told = [
        entry
        for member in members
        for entry in entries.member_tombstones(state.group_id, member.member_id)
    ]
    counts = Counter(one.topic_regex for one in members if one.topic_regex)
    told += [
        entries.regex_tombstone(state.group_id, expression)
        for expression, count in counts.items()
        if state.regex_counts[expression] == count
    ]
    hashed = metadata_hash(state.subscribed_after(leaving=members), core.topics)
    told.append(entries.group_epoch(state.group_id, state.epoch + 1, hashed))
    return told


def _may_downgrade(core: Core, leaving: Sequence[ConsumerMember]) -> bool:
    """All who stay speak the classic protocol, and are not too many for it."""
    state = core.state
    staying = len(state.members) - len(leaving)
    classic = state.classic_count - sum(one.classic is not None for one in leaving)
    return (
        0 < staying == classic
        and core.settings.migration_policy.may_downgrade
        and staying <= core.settings.group_size_max
    )


def fence_late(core: Core, due: Sequence[tuple[Timer, MemberId]]) -> bool:
    """Members whose time is over, all in one write. Whether there were any.

    Their deadlines come back for the case that the log refuses; the tombstones cancel them.
    """
    late: dict[MemberId, ConsumerMember] = {}
    for timer, member_id in due:
        member = core.state.members.get(member_id)
        if member is None:
            continue
        if timer is Timer.REBALANCE and member.state is not MemberState.UNREVOKED_PARTITIONS:
            continue
        late[member_id] = member
        core.deadlines.set((timer, member_id), core.now_ms + RETRY_MS)
    if late:
        core.write(fence(core, list(late.values())))
    return bool(late)

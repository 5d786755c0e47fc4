"""Reconciliation: a member moves from its current assignment to its target.

A partition moves to another member in three steps, each with a record of its own: it moves from
`assigned` to `revoking` of its owner (which sees that in the assignment of its next response), the
owner reports its partitions without it, and only then it is assigned to the next member. A member
that has to revoke partitions stays in its epoch until it has; a member that waits for others is in
the new epoch with the partitions that are free (I-27).
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from uuid import UUID

from millstream.groups.consumer.member import (
    NOTHING_OWNED,
    Assignment,
    ConsumerMember,
    MemberState,
    Owned,
)
from millstream.groups.consumer.state import GroupState
from millstream.groups.consumer.topics import TopicsView
from millstream.groups.errors import FencedMemberEpoch
from millstream.model.ids import MemberEpoch

Reported = Mapping[UUID, AbstractSet[int]]
"""Partitions that a member reports as its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What the next step of one member depends on."""

    state: GroupState
    topics: TopicsView
    target_epoch: int
    target: Assignment
    reported: Reported | None
    """None: this request did not report partitions."""
    has_new_subscription: bool = False


@dataclass(slots=True)
class _Plan:
    """A member's partitions by what happens to them."""

    kept: dict[UUID, dict[int, int]] = field(default_factory=dict)
    revoked: dict[UUID, dict[int, int]] = field(default_factory=dict)
    given: dict[UUID, list[int]] = field(default_factory=dict)
    waits: bool = False
    """Some partitions of its target are still owned by others."""


def reconcile(member: ConsumerMember, context: Reconciliation) -> ConsumerMember:
    """The member after its next step; the same object if there is no step to take now."""
    match member.state:
        case MemberState.STABLE:
            if member.member_epoch != context.target_epoch:
                return _next(member, context)
            return (
                _without_unsubscribed(member, context) if context.has_new_subscription else member
            )
        case MemberState.UNREVOKED_PARTITIONS:
            if not _reports_any(context.reported, member.revoking):
                return _next(member, context)
            return (
                _without_unsubscribed(member, context) if context.has_new_subscription else member
            )
        case MemberState.UNRELEASED_PARTITIONS:
            return _next(member, context)
        case _:
            # A newer coordinator left it in a state that is unknown to us.
            if context.reported is None or context.reported:
                raise FencedMemberEpoch(
                    "The member is in an unknown state. "
                    "It must abandon all its partitions and rejoin."
                )
            return _next(member, context)


def waits_for_others(state: GroupState, member: ConsumerMember) -> bool:
    """Whether some partition of its target is not free yet."""
    if member.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    for topic_id, partitions in state.targets.get(member.member_id, {}).items():
        mine = member.assigned.get(topic_id, {})
        if any(not state.is_free(topic_id, one) for one in partitions if one not in mine):
            return True
    return False


def reported_from(parts: Sequence[object] | None) -> Reported | None:
    """The partitions of a heartbeat, by topic."""
    if parts is None:
        return None
    found: dict[UUID, set[int]] = {}
    for part in parts:
        found.setdefault(part.topic_id, set()).update(part.partitions)  # type: ignore[attr-defined]
    return found


def is_within(reported: Reported | None, owned: Owned) -> bool:
    """Whether it reports only partitions assigned to it; False if it reports nothing."""
    if reported is None:
        return False
    return all(
        topic_id in owned and partitions <= owned[topic_id].keys()
        for topic_id, partitions in reported.items()
    )


def _reports_any(reported: Reported | None, owned: Owned) -> bool:
    """Whether it still owns some of them; without a report it is taken to own them all."""
    if reported is None:
        return True
    return any(
        not partitions.isdisjoint(owned.get(topic_id, ()))
        for topic_id, partitions in reported.items()
    )


def _subscribed_ids(member: ConsumerMember, context: Reconciliation) -> set[UUID]:
    found = map(context.topics.by_name, context.state.topics_of(member))
    return {facts.topic_id for facts in found if facts is not None}


def _next(member: ConsumerMember, context: Reconciliation) -> ConsumerMember:
    plan = _plan(member, context)
    if plan.revoked and _reports_any(context.reported, plan.revoked):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=plan.kept,
            revoking=plan.revoked,
        )
    for topic_id, partitions in plan.given.items():
        kept = plan.kept.setdefault(topic_id, {})
        kept.update(dict.fromkeys(partitions, context.target_epoch))
    epoch = MemberEpoch(context.target_epoch)
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if plan.waits else MemberState.STABLE,
        member_epoch=epoch,
        previous_epoch=member.previous_epoch_at(epoch),
        assigned=_unless_equal(member.assigned, plan.kept),
        revoking=NOTHING_OWNED,
    )


def _plan(member: ConsumerMember, context: Reconciliation) -> _Plan:
    plan = _Plan()
    subscribed = _subscribed_ids(member, context)
    for topic_id in {**context.target, **member.assigned}:
        wanted = (
            context.target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        )
        mine = member.assigned.get(topic_id, {})
        kept = {one: epoch for one, epoch in mine.items() if one in wanted}
        if kept:
            plan.kept[topic_id] = kept
        if len(kept) < len(mine):
            plan.revoked[topic_id] = {one: mine[one] for one in mine if one not in wanted}
        given = []
        for one in sorted(wanted.difference(mine)):
            # A partition that it is revoking itself has no other owner yet: it may keep it.
            is_mine = one in member.revoking.get(topic_id, ())
            if is_mine or context.state.is_free(topic_id, one):
                given.append(one)
            else:
                plan.waits = True
        if given:
            plan.given[topic_id] = given
    return plan


def _without_unsubscribed(member: ConsumerMember, context: Reconciliation) -> ConsumerMember:
    """Revoke what it does not subscribe to any more, before there is a new target."""
    subscribed = _subscribed_ids(member, context)
    gone = {one: owned for one, owned in member.assigned.items() if one not in subscribed}
    if not gone:
        return member
    kept = {one: owned for one, owned in member.assigned.items() if one in subscribed}
    revoking = {one: dict(owned) for one, owned in member.revoking.items()}
    for topic_id, owned in gone.items():
        revoking.setdefault(topic_id, {}).update(owned)
    if not _reports_any(context.reported, revoking):
        return replace(member, assigned=kept)
    return replace(member, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=revoking)


def _unless_equal(before: Owned, after: Owned) -> Owned:
    """The same map for the same partitions: `GroupState` sees by identity that nothing moved."""
    return before if before == after else after

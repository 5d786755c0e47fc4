"""A member's next step, for both protocols.

1. New metadata is written; a new subscription bumps the group epoch, and so do changes of the
   subscribed topics.
2. If the group epoch is ahead of the target's, a new target assignment is computed, but not more
   often than `group.consumer.assignment.interval.ms`: a hundred members that join in a second cost
   one assignment per second, not a hundred.
3. The member is reconciled: it takes a step towards its target.
"""

from dataclasses import dataclass

from millstream.groups.consumer import entries
from millstream.groups.consumer.core import Core
from millstream.groups.consumer.member import Assignment, ConsumerMember
from millstream.groups.consumer.reconcile import Reconciliation, Reported, reconcile
from millstream.groups.consumer.target import TargetChange, compute_target, member_target
from millstream.groups.consumer.topics import metadata_hash
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How a request changes a member."""

    before: ConsumerMember
    """The member in the group's state; a new member has only default values."""
    after: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member that it replaces."""
    reported: Reported | None
    needs_epoch: bool
    has_new_subscription: bool


def raise_epoch(core: Core, step: Step, records: list[Entry]) -> int:
    """Bump the group epoch if the step needs it; return the epoch after the step."""
    state = core.state
    epoch = state.epoch
    if not step.needs_epoch and core.hashed_version == core.topics.version:
        return epoch
    subscribed = _subscribed(core, step)
    hashed = metadata_hash(subscribed, core.topics)
    if step.needs_epoch or hashed != state.metadata_hash:
        epoch += 1
        records.append(entries.group_epoch(state.group_id, epoch, hashed))
    else:
        core.hashed_version = core.topics.version
    if state.has_partition_metadata:
        records.append(Entry(keys.ConsumerPartitionMetadataKey(state.group_id), None))
    return epoch


def _subscribed(core: Core, step: Step) -> frozenset[str]:
    state = core.state
    leaving = step.replaced or state.members.get(step.after.member_id)
    if leaving is not None:
        is_same = leaving.topic_names == step.after.topic_names
        if is_same and leaving.topic_regex == step.after.topic_regex:
            return state.subscribed_topics()
    return state.subscribed_after(
        leaving=() if leaving is None else (leaving,), joining=(step.after,)
    )


def advance(core: Core, step: Step, records: list[Entry]) -> ConsumerMember:
    """All three parts; return the member after them."""
    epoch = raise_epoch(core, step, records)
    target_epoch, target = _target(core, step, epoch, records)
    return maybe_reconcile(core, step, target_epoch, target, records)


def maybe_reconcile(
    core: Core, step: Step, target_epoch: int, target: Assignment, records: list[Entry]
) -> ConsumerMember:
    """Part 3 only."""
    member = step.after
    if not step.has_new_subscription and member.is_reconciled_to(target_epoch):
        return member
    context = Reconciliation(
        state=core.state,
        topics=core.topics,
        target_epoch=target_epoch,
        target=target,
        reported=step.reported,
        has_new_subscription=step.has_new_subscription,
    )
    after = reconcile(member, context)
    if after != member:
        records.append(entries.current_assignment(core.state.group_id, after))
    return after


def _target(core: Core, step: Step, epoch: int, records: list[Entry]) -> tuple[int, Assignment]:
    state = core.state
    if epoch <= state.target_epoch or not _may_assign(core):
        return state.target_epoch, state.target_of(step.after)
    leaving = step.replaced or state.members.get(step.after.member_id)
    change = TargetChange(
        epoch=epoch,
        member=step.after,
        replaced=step.replaced,
        assignor=core.assignor_for(leaving, step.after),
    )
    target = compute_target(state, core.topics, change, core.wall_clock_ms())
    records.extend(target.entries)
    return epoch, member_target(target, step.after.member_id)


def _may_assign(core: Core) -> bool:
    """The interval since the last assignment is over, or this coordinator has computed none yet."""
    interval_ms = core.settings.consumer_assignment_interval_of(core.state.group_id)
    at_ms = core.target_at_ms
    return at_ms is None or not interval_ms or core.now_ms >= at_ms + interval_ms

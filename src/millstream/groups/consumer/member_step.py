"""A member's next step, whichever protocol it speaks.

1. What it said is written if it is new; a new subscription gives the group a new epoch, and so do
   subscribed topics that have changed.
2. A group whose epoch is ahead of its target gets a new target, but not more often than
   `group.consumer.assignment.interval.ms` says: a hundred members that join in a second cost one
   assignment each second, not a hundred.
3. The member takes a step towards its target.
"""

from dataclasses import dataclass

from millstream.groups.consumer import entries
from millstream.groups.consumer.core import Core
from millstream.groups.consumer.member import Assignment, ConsumerMember
from millstream.groups.consumer.reconcile import Reconciliation, Reported, reconcile
from millstream.groups.consumer.target import TargetChange, compute_target, told_target
from millstream.groups.consumer.topics import metadata_hash
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a request makes of a member."""

    before: ConsumerMember
    """The member as the group has it; a new one is what nothing was said of yet."""
    after: ConsumerMember
    replaced: ConsumerMember | None = None
    """The static member whose place it takes."""
    reported: Reported | None
    needs_epoch: bool
    has_new_subscription: bool


def raise_epoch(core: Core, step: Step, told: list[Entry]) -> int:
    """The epoch of the group after the step."""
    state = core.state
    epoch = state.epoch
    if not step.needs_epoch and core.hashed_version == core.topics.version:
        return epoch
    subscribed = _subscribed(core, step)
    hashed = metadata_hash(subscribed, core.topics)
    if step.needs_epoch or hashed != state.metadata_hash:
        epoch += 1
        told.append(entries.group_epoch(state.group_id, epoch, hashed))
    else:
        core.hashed_version = core.topics.version
    if state.has_partition_metadata:
        told.append(Entry(keys.ConsumerPartitionMetadataKey(state.group_id), None))
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


def advance(core: Core, step: Step, told: list[Entry]) -> ConsumerMember:
    """Parts 2 and 3, after `raise_epoch`; the member as it is then."""
    epoch = raise_epoch(core, step, told)
    target_epoch, target = _target(core, step, epoch, told)
    return settle(core, step, target_epoch, target, told)


def settle(
    core: Core, step: Step, target_epoch: int, target: Assignment, told: list[Entry]
) -> ConsumerMember:
    """Part 3 alone."""
    member = step.after
    if not step.has_new_subscription and member.is_reconciled_to(target_epoch):
        return member
    how = Reconciliation(
        state=core.state,
        topics=core.topics,
        target_epoch=target_epoch,
        target=target,
        reported=step.reported,
        has_new_subscription=step.has_new_subscription,
    )
    after = reconcile(member, how)
    if after != member:
        told.append(entries.current_assignment(core.state.group_id, after))
    return after


def _target(core: Core, step: Step, epoch: int, told: list[Entry]) -> tuple[int, Assignment]:
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
    told.extend(target.entries)
    return epoch, told_target(target, step.after.member_id)


def _may_assign(core: Core) -> bool:
    """A coordinator that has made no target yet may, whatever the one before it did."""
    interval_ms = core.settings.consumer_assignment_interval_of(core.state.group_id)
    at_ms = core.target_at_ms
    return at_ms is None or not interval_ms or core.now_ms >= at_ms + interval_ms

"""The numbered invariants of a cluster as functions over views of it.

Each yields the violations it finds, and nothing for a correct cluster. `check_view` has those of
one view, `check_transition` those of a view and the one before it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from operator import attrgetter
from typing import NamedTuple

from millstream.testing.history.cluster_views import (
    NO_LEADER,
    BatchView,
    ClusterView,
    LeaderClaim,
    PartitionKey,
    ReplicaView,
)


class Violation(NamedTuple):
    """A violated invariant."""

    number: str
    text: str

    def __str__(self) -> str:
        return f"{self.number} {self.text}"


@dataclass(slots=True)
class Excuses:
    """Events that an invariant makes an exception for."""

    unclean: set[PartitionKey] = field(default_factory=set)
    """Led by a replica that lacked committed records: an unclean election, and it was reported."""
    wounded: set[int] = field(default_factory=set)
    """Brokers that lost unsynced data and that the controller has not processed since."""
    wounded_at: dict[int, int] = field(default_factory=dict)
    """The keeper's last transaction then: a registration before it says nothing."""
    without_directory: set[int] = field(default_factory=set)
    """Brokers that a log directory was taken from: its logs are gone, known or not."""
    emptied: set[int] = field(default_factory=set)
    """Brokers with an empty directory in place of one with logs, not processed since."""
    restarted: set[int] = field(default_factory=set)
    """Brokers that ended without warning since the last check."""


Found = Iterator[Violation]

_BASE_OFFSET = attrgetter("base_offset")


# -- one replica -------------------------------------------------------------------------------


def offsets_grow(replica: ReplicaView) -> Found:
    """I-03, I-10: batches follow each other, and their epochs never go back."""
    for one, two in pairwise(replica.batches):
        if two.base_offset < one.next_offset:
            yield Violation("I-03", f"{_name(replica)}: {two} follows {one}")
        if two.leader_epoch < one.leader_epoch:
            yield Violation("I-10", f"{_name(replica)}: epoch of {two} is below that of {one}")


def ends_in_order(replica: ReplicaView) -> Found:
    """I-05"""
    ends = (replica.log_start, replica.last_stable_offset, replica.high_watermark, replica.log_end)
    if list(ends) != sorted(ends):
        yield Violation("I-05", f"{_name(replica)}: start, LSO, HW, end are {ends}")
    if not replica.log_start <= replica.recovery_point <= replica.log_end:
        text = f"recovery point {replica.recovery_point} outside of {ends}"
        yield Violation("I-05", f"{_name(replica)}: {text}")


def stored_once(replica: ReplicaView) -> Found:
    """I-20, I-21: no batch of a producer twice, none of an older epoch behind a newer one."""
    sequences: dict[tuple[int, int, int], BatchView] = {}
    epochs: dict[int, int] = {}
    for batch in replica.batches:
        if batch.producer_id < 0:
            continue
        number = (batch.producer_id, batch.producer_epoch, batch.base_sequence)
        first = sequences.setdefault(number, batch)
        if first is not batch:
            yield Violation("I-20", f"{_name(replica)}: stored twice: {first} and {batch}")
        newest = epochs.setdefault(batch.producer_id, batch.producer_epoch)
        if batch.producer_epoch < newest:
            yield Violation("I-21", f"{_name(replica)}: {batch} behind epoch {newest}")
        epochs[batch.producer_id] = max(newest, batch.producer_epoch)


# -- replicas of a partition -------------------------------------------------------------------


def same_below_high_watermarks(view: ClusterView, excuses: Excuses) -> Found:
    """I-02: what two replicas both know to be committed is the same."""
    for key in view.partition_keys():
        if key in excuses.unclean:
            continue
        for one, two in combinations(view.replicas_of(key), 2):
            end = min(one.high_watermark, two.high_watermark)
            if (text := difference(one, two, end=end)) is not None:
                yield Violation("I-02", f"{key} below {end}: {text}")


def logs_match(view: ClusterView) -> Found:
    """I-12: where two logs have a batch of one epoch in common everything before it is the same.

    Holds whatever happened, unclean elections included: an epoch has one leader, and no follower
    appends what it sends before its own log agrees with the leader's up to there.
    """
    for key in view.partition_keys():
        for one, two in combinations(view.replicas_of(key), 2):
            end = _common_end(one.batches, two.batches)
            if (text := difference(one, two, end=end)) is not None:
                yield Violation("I-12", f"{key} before their common batch at {end}: {text}")


def _common_end(one: Sequence[BatchView], two: Sequence[BatchView]) -> int:
    """The end of the last batch that both have from one epoch at one offset."""
    for batch in reversed(one):
        at = bisect_left(two, batch.base_offset, key=_BASE_OFFSET)
        if at < len(two) and two[at][:3] == batch[:3]:
            return batch.next_offset
    return 0


def difference(one: ReplicaView, two: ReplicaView, *, end: int) -> str | None:
    """How two logs differ in what both have below an offset; None when they do not."""
    start = max(one.log_start, two.log_start)
    left, right = (_between(replica.batches, start, end) for replica in (one, two))
    if left == right:
        return None
    for first, second in zip(left, right, strict=False):
        if first != second:
            return f"{first} on {one.broker}, {second} on {two.broker}"
    more, fewer = (one, two) if len(left) > len(right) else (two, one)
    extra = (left if more is one else right)[min(len(left), len(right))]
    return f"{extra} is on {more.broker} and not on {fewer.broker} (end {fewer.log_end})"


def _between(batches: Sequence[BatchView], start: int, end: int) -> list[BatchView]:
    first = bisect_left(batches, start, key=_BASE_OFFSET)
    return list(batches[first : bisect_left(batches, end, lo=first, key=_BASE_OFFSET)])


def in_sync_have_all(view: ClusterView, excuses: Excuses) -> Found:
    """I-13: every member of the committed ISR has all below any claimed leader's high watermark."""
    for claim in view.claims():
        committed = view.committed.partitions.get(claim.key)
        leader = view.brokers[claim.broker].replicas.get(claim.key)
        if committed is None or leader is None or claim.key in excuses.unclean:
            continue
        for member in committed.isr:
            broker = view.brokers.get(member)
            if broker is None or member in excuses.wounded or member == claim.broker:
                continue
            if not view.committed.is_registration_processed(member):
                continue
            if member in excuses.without_directory and claim.key not in broker.replicas:
                continue
            # A new partition's members are in sync before they have created their logs.
            empty = ReplicaView(member, claim.key, leader.log_start, 0, 0, 0, 0)
            replica = broker.replicas.get(claim.key, empty)
            if (text := difference(leader, replica, end=leader.high_watermark)) is not None:
                where = f"{claim.key} below {leader.high_watermark} of leader {claim.broker}"
                yield Violation("I-13", f"{where} in epoch {claim.leader_epoch}: {text}")


def leader_in_sync(view: ClusterView) -> Found:
    """I-14"""
    for one in view.committed.partitions.values():
        if one.leader != NO_LEADER and one.leader not in one.isr:
            yield Violation("I-14", f"{one.key}: leader {one.leader} is not in {one.isr}")
        outside = [member for member in one.holders if member not in one.replicas]
        if outside:
            yield Violation("I-14", f"{one.key}: {outside} in ISR or ELR are no replicas")
        lost = [member for member in one.holders if member in one.lost]
        if lost:
            yield Violation("I-14", f"{one.key}: {lost} in ISR or ELR have lost their logs")


def one_leader_per_epoch(view: ClusterView) -> Found:
    """I-15, at one time; `LeaderLedger` checks it over the whole run."""
    seen: dict[tuple[PartitionKey, int], LeaderClaim] = {}
    for claim in view.claims():
        first = seen.setdefault((claim.key, claim.leader_epoch), claim)
        if first is not claim:
            yield Violation("I-15", f"two leaders: {first} and {claim}")
        committed = view.committed.partitions.get(claim.key)
        if committed is not None and claim.leader_epoch > committed.leader_epoch:
            yield Violation("I-15", f"{claim}: was never decided, it is {committed}")


def no_session_no_leadership(view: ClusterView) -> Found:
    """I-18"""
    for broker in view.brokers.values():
        if broker.has_lost_session and broker.claims:
            keys = [str(key) for key in broker.claims]
            yield Violation("I-18", f"{broker.broker} leads {keys} without a session")


# -- steps -------------------------------------------------------------------------------------


def high_watermark_steps(before: ClusterView, after: ClusterView, excuses: Excuses) -> Found:
    """I-06, I-09: up only within an epoch, and not while too few are in sync."""
    for claim in after.claims():
        then = before.brokers.get(claim.broker)
        earlier = then.claims.get(claim.key) if then is not None else None
        now = after.brokers[claim.broker]
        if then is None or earlier is None or earlier.leader_epoch != claim.leader_epoch:
            continue
        if then.incarnation != now.incarnation:
            continue
        was, is_now = then.replicas.get(claim.key), now.replicas.get(claim.key)
        if was is None or is_now is None:
            continue
        if is_now.high_watermark < was.high_watermark and claim.key not in excuses.unclean:
            text = f"{was.high_watermark} to {is_now.high_watermark}"
            yield Violation("I-06", f"high watermark of {claim} went from {text}")
        if is_now.high_watermark > was.high_watermark and _was_too_small(before, after, claim):
            isr = after.committed.partitions[claim.key].isr
            text = f"high watermark went to {is_now.high_watermark} with {isr} in sync"
            yield Violation("I-09", f"{claim}: {text}")


def _was_too_small(before: ClusterView, after: ClusterView, claim: LeaderClaim) -> bool:
    one = before.committed.partitions.get(claim.key)
    two = after.committed.partitions.get(claim.key)
    if one is None or two is None or one.partition_epoch != two.partition_epoch:
        return False
    # The leader may not know of this state yet, and act on the one before.
    is_known = claim.leader_epoch == two.leader_epoch and set(claim.isr) == set(two.isr)
    # Or it received one with more in sync since then, and this one right after that.
    earlier = before.brokers[claim.broker].claims[claim.key]
    was_known = (earlier.partition_epoch, set(earlier.isr)) == (
        claim.partition_epoch,
        set(two.isr),
    )
    required = min(two.in_sync_min, len(two.replicas))
    return is_known and was_known and len(two.isr) < required


def truncations(before: ClusterView, after: ClusterView, excuses: Excuses) -> Found:
    """I-08: nothing below a replica's high watermark is cut off, in one life of its process."""
    for was, now in _same_life(before, after):
        if now.log_end < was.high_watermark and now.key not in excuses.unclean:
            text = f"cut to {now.log_end}, below its high watermark {was.high_watermark}"
            yield Violation("I-08", f"{_name(now)}: {text}")


def count_truncations(before: ClusterView, after: ClusterView) -> int:
    """How many logs lost their tail: the end went down, or a batch is another one."""
    return sum(1 for was, now in _same_life(before, after) if _is_cut(was, now))


def _is_cut(was: ReplicaView, now: ReplicaView) -> bool:
    if now.log_end < was.log_end or not was.batches:
        return now.log_end < was.log_end
    last = was.batches[-1]
    return last.base_offset >= now.log_start and last not in now.batches


def _same_life(
    before: ClusterView, after: ClusterView
) -> Iterator[tuple[ReplicaView, ReplicaView]]:
    for broker in after.brokers.values():
        then = before.brokers.get(broker.broker)
        if then is None or then.incarnation != broker.incarnation:
            continue
        for key, now in broker.replicas.items():
            was = then.replicas.get(key)
            if was is not None and was.number == now.number:
                yield was, now


def epochs_grow(before: ClusterView, after: ClusterView) -> Found:
    """I-15, I-16, I-17: leader, controller and broker epochs of what is committed."""
    was, now = before.committed, after.committed
    if now.controller_epoch < was.controller_epoch:
        text = f"{was.controller_epoch} to {now.controller_epoch}"
        yield Violation("I-16", f"the controller epoch went from {text}")
    for broker, epoch in now.registered.items():
        if epoch < was.registered.get(broker, epoch):
            yield Violation("I-17", f"broker epoch of {broker} went down to {epoch}")
    for key, partition in now.partitions.items():
        then = was.partitions.get(key)
        if then is None:
            continue
        is_changed = then.leader not in (partition.leader, NO_LEADER)
        is_changed = is_changed and partition.leader != NO_LEADER
        if partition.leader_epoch < then.leader_epoch + is_changed:
            yield Violation("I-15", f"{key}: epoch {then} to {partition}")


# -- all of them -------------------------------------------------------------------------------

OF_ITS_BATCHES: Sequence[Callable[[ReplicaView], Found]] = (offsets_grow, stored_once)


def check_view(
    view: ClusterView, excuses: Excuses, before: ClusterView | None = None
) -> list[Violation]:
    """All violations in this view; a list that is the same object as before was checked then."""
    found: list[Violation] = []
    for broker in view.brokers.values():
        then = before.brokers.get(broker.broker) if before is not None else None
        for key, replica in broker.replicas.items():
            found += ends_in_order(replica)
            was = then.replicas.get(key) if then is not None else None
            if was is None or was.batches is not replica.batches:
                for check in OF_ITS_BATCHES:
                    found += check(replica)
    found += same_below_high_watermarks(view, excuses)
    found += logs_match(view)
    found += in_sync_have_all(view, excuses)
    found += leader_in_sync(view)
    found += one_leader_per_epoch(view)
    found += no_session_no_leadership(view)
    return found


def check_transition(before: ClusterView, after: ClusterView, excuses: Excuses) -> list[Violation]:
    """Violations between a view and the one before it."""
    return [
        *high_watermark_steps(before, after, excuses),
        *truncations(before, after, excuses),
        *epochs_grow(before, after),
    ]


def _name(replica: ReplicaView) -> str:
    return f"{replica.key} on {replica.broker}"

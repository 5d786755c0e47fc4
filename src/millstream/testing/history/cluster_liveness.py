"""What must hold again some time after the last fault: I-39 and I-40 over views."""

from collections.abc import Collection

from millstream.testing.history.cluster_invariants import Violation
from millstream.testing.history.cluster_views import NO_LEADER, ClusterView, CommittedState


def without_leader(committed: CommittedState, alive: Collection[int]) -> list[Violation]:
    """I-39: partitions that could have a leader and have none, or one that is not alive."""
    found = []
    for one in committed.partitions.values():
        candidates = [broker for broker in one.holders if broker in alive]
        is_whole = one.last_known_leader not in one.lost
        if not one.holders and one.last_known_leader in alive and is_whole:
            candidates = [one.last_known_leader]
        if candidates and one.leader not in alive:
            text = f"leader {one.leader}, though {candidates} could lead"
            found.append(Violation("I-39", f"{one.key}: {text}"))
    return found


def not_in_sync(committed: CommittedState, alive: Collection[int]) -> list[Violation]:
    """I-40: replicas that are alive and not in sync."""
    found = []
    for one in committed.partitions.values():
        missing = [broker for broker in one.replicas if broker in alive and broker not in one.isr]
        if missing and one.leader != NO_LEADER:
            found.append(Violation("I-40", f"{one.key}: {missing} are not in {one.isr}"))
    return found


def unaware_leaders(view: ClusterView) -> list[Violation]:
    """I-39: leaders that do not know that they lead, and brokers that believe they still do."""
    found = []
    for key, one in view.committed.partitions.items():
        leader = view.brokers.get(one.leader)
        claim = leader.claims.get(key) if leader is not None else None
        if leader is not None and (claim is None or claim.leader_epoch != one.leader_epoch):
            text = f"leader {one.leader} in epoch {one.leader_epoch} says {claim}"
            found.append(Violation("I-39", f"{key}: {text}"))
    for claim in view.claims():
        committed = view.committed.partitions.get(claim.key)
        if committed is None or committed.leader != claim.broker:
            found.append(Violation("I-39", f"{claim} while {committed}"))
    return found


def differing_replicas(view: ClusterView) -> list[Violation]:
    """I-19: replicas that are in sync at rest have the same log, to its end."""
    found = []
    for key, one in view.committed.partitions.items():
        members = [
            replica
            for broker in one.isr
            if broker in view.brokers
            and (replica := view.brokers[broker].replicas.get(key)) is not None
        ]
        for replica in members[1:]:
            first = members[0]
            start = max(first.log_start, replica.log_start)
            left = [batch for batch in first.batches if batch.base_offset >= start]
            right = [batch for batch in replica.batches if batch.base_offset >= start]
            if left != right:
                text = f"{first.broker} has {left[-2:]}, {replica.broker} has {right[-2:]}"
                found.append(Violation("I-19", f"{key}: {text}"))
    return found

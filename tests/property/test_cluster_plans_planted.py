"""The random worlds of the controller catch the bugs they are for: each is planted here.

A plant says what it must be caught as, so that it is not found by stumbling over something else.
"""

from collections.abc import Callable, Collection
from typing import Any

import pytest

from kits.controller.cluster_world import World
from millstream.controller.cluster import (
    drafts,
    elections,
    isr_changes,
    lost_replicas,
    nodes,
    topics_plans,
)
from millstream.controller.cluster.brokers import _BrokerComparison
from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import ElectionResult, Electorate, Members, TopicRules
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.nodes import KNOWN_BROKERS
from millstream.controller.cluster.plans import Plan
from millstream.controller.cluster.port import IsrChange
from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.model.invariant import InvariantViolated
from millstream.runtime.scheduler import StepGenerator

SEEDS = 60
STEPS = 50

Plant = Callable[[pytest.MonkeyPatch], None]


def no_checks(patch: pytest.MonkeyPatch) -> None:
    """The plan's own invariants would be first."""
    patch.setattr(drafts, "check_state", lambda *_: None)


def an_unproved_broker_stays_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_BrokerComparison, "is_proved", lambda self, broker_id: True)


def a_successor_is_taken_for_its_predecessor(patch: pytest.MonkeyPatch) -> None:
    """Presence is compared, not epochs."""

    def is_new(self: _BrokerComparison, broker_id: BrokerId) -> bool:
        known = self.before.get(broker_id)
        return known is None or known.is_fenced

    patch.setattr(_BrokerComparison, "_is_new", is_new)


def elected_out_of_the_isr(patch: pytest.MonkeyPatch) -> None:
    """Any replica that is alive, as if it were eligible."""
    no_checks(patch)
    patch.setattr(
        Electorate,
        "first",
        lambda self, order, among: next((one for one in order if one in self.staying), -1),
    )


def unclean_elections_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    unclean = elections._elect_without_isr

    def silent(*given: Any, **named: Any) -> ElectionResult:
        return unclean(*given, **named)._replace(is_unclean=False)

    patch.setattr(elections, "_elect_without_isr", silent)


def the_same_leader_keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """Re-elected after a restart, it goes on under the epoch that it had before."""
    no_checks(patch)

    def with_leader(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
        was = partition.leader if partition.leader >= 0 else partition.last_known_leader
        rises = leader >= 0 and leader != was
        epoch = LeaderEpoch(partition.leader_epoch + rises)
        return partition._replace(leader=leader, leader_epoch=epoch, last_known_leader=BrokerId(-1))

    patch.setattr(elections, "_with_leader", with_leader)


def eligible_for_ever(patch: pytest.MonkeyPatch) -> None:
    def kept(
        partition: PartitionImage,
        rules: TopicRules,
        *,
        isr: Members,
        lost: Collection[BrokerId] = (),
    ) -> Members:
        were = {*partition.isr, *partition.elr} - {*isr} - {*lost}
        return tuple(one for one in partition.replicas if one in were)

    patch.setattr(elections, "eligible", kept)


def eligible_without_proof(patch: pytest.MonkeyPatch) -> None:
    eligible = elections.eligible

    def trusting(
        partition: PartitionImage,
        rules: TopicRules,
        *,
        isr: Members,
        lost: Collection[BrokerId] = (),
    ) -> Members:
        return eligible(partition, rules, isr=isr)

    patch.setattr(elections, "eligible", trusting)


def eligible_after_another_of_them_leads_alone(patch: pytest.MonkeyPatch) -> None:
    led = elections._led

    def kept(partition: PartitionImage, rules: TopicRules, **named: Any) -> PartitionImage:
        rest = tuple(one for one in named["elr"] if one not in named["isr"])
        return led(partition, rules, **named)._replace(elr=rest)

    patch.setattr(elections, "_led", kept)


def eligible_with_a_smaller_minimum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topics_plans, "_review_eligible", lambda *_: None)


def epochs_are_remembered_first(patch: pytest.MonkeyPatch) -> None:
    """Before the unproved are out: a next controller takes them for those it knows."""
    plan_steps = Draft.plan_steps

    def reordered(self: Draft, result: Any, **named: Any) -> StepGenerator[Plan[Any]]:
        yield from self.flush_steps()
        self.groups.sort(key=lambda group: not group[0].path.startswith(KNOWN_BROKERS))
        return (yield from plan_steps(self, result, **named))

    patch.setattr(Draft, "plan_steps", reordered)


def a_lost_replica_is_brought_in_again(patch: pytest.MonkeyPatch) -> None:
    """Its leader heard of a fetch from before."""
    no_checks(patch)
    check = isr_changes._check_members

    def forgetful(
        image: ClusterImage, topic: TopicImage, partition: PartitionImage, change: IsrChange
    ) -> None:
        check(image, topic, partition._replace(lost=()), change)

    patch.setattr(isr_changes, "_check_members", forgetful)


def a_lost_replica_is_the_last_known_leader(patch: pytest.MonkeyPatch) -> None:
    without = elections._elect_without_isr

    def forgetful(partition: PartitionImage, *given: Any, **named: Any) -> ElectionResult:
        outcome = without(partition._replace(lost=()), *given, **named)
        if outcome.partition.lost == partition.lost:
            return outcome
        return outcome._replace(partition=outcome.partition._replace(lost=partition.lost))

    no_checks(patch)
    patch.setattr(elections, "_elect_without_isr", forgetful)


def a_lost_replica_stays_eligible(patch: pytest.MonkeyPatch) -> None:
    no_checks(patch)

    def trusting(*given: Any, lost: Collection[BrokerId], **named: Any) -> ElectionResult:
        return elections.elect(*given, **named)

    patch.setattr(lost_replicas, "elect", trusting)


def a_mark_is_not_written_down(patch: pytest.MonkeyPatch) -> None:
    """The next controller does not know it, and its broker has said it."""
    encode = nodes.encode_state

    def without_mark(partition: PartitionImage, *, controller_epoch: int) -> bytes:
        return encode(partition._replace(lost=()), controller_epoch=controller_epoch)

    patch.setattr(nodes, "encode_state", without_mark)


PLANTS: list[tuple[Plant, str]] = [
    (an_unproved_broker_stays_in_sync, "I-1[34]"),
    (a_successor_is_taken_for_its_predecessor, "I-1[57]"),
    (elected_out_of_the_isr, "I-1[34]"),
    (unclean_elections_are_not_reported, "I-01"),
    (the_same_leader_keeps_its_epoch, "I-15"),
    (eligible_for_ever, "I-13"),
    (eligible_without_proof, "I-1[34]"),
    (eligible_after_another_of_them_leads_alone, "I-1[34]"),
    (eligible_with_a_smaller_minimum, "I-13"),
    (epochs_are_remembered_first, "I-1[345]|no outcome"),
    (a_lost_replica_is_brought_in_again, "I-14 broker . has lost|are in sync or eligible"),
    (a_lost_replica_is_the_last_known_leader, "I-14 broker . has lost|are in sync or eligible"),
    (a_lost_replica_stays_eligible, "I-14 broker . has lost|are in sync or eligible"),
    (a_mark_is_not_written_down, "not what is written|no outcome"),
]


def run() -> None:
    for seed in range(1, SEEDS + 1):
        world = World(seed)
        for _ in range(STEPS):
            world.step()


@pytest.mark.parametrize(("plant", "caught_as"), PLANTS)
def test_planted_bug_is_caught(
    plant: Plant, caught_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolated, DamagedNode), match=caught_as):
        run()

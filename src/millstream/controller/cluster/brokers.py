"""What follows when brokers join, leave and restart: in-sync sets and leaders.

Three phases, each of which may be the last one that a dying controller writes:

1. A broker that left, or was restarted, is removed from every in-sync set; one that came back
   without evidence of a clean shutdown also from the eligible ones. Leaders are elected among those
   that stayed. Failed logs that the previous incarnation reported are forgotten: its successor
   reports them again.
2. The epochs of those that joined are recorded. From here on they are the known incarnations.
3. Where there is no leader, those that joined are candidates.

If 2 came before 1, the next controller would take an uncleanly restarted broker for the one it
knows, and keep it in sync; if it came after 3, it would depose the leaders just elected.
"""

from collections.abc import Mapping
from typing import NamedTuple

from millstream.controller.cluster import nodes
from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import (
    AllRules,
    Electorate,
    TopicRules,
    UncleanElection,
    elect,
    elect_leaderless,
    unclean_election,
)
from millstream.controller.cluster.errors import BrokerIdNotRegistered
from millstream.controller.cluster.nodes import KnownBroker, Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.errors import InvalidRequest
from millstream.controller.image import NO_LEADER, BrokerImage, ClusterImage
from millstream.coordination.port import ANY_VERSION, Create, Delete, Operation, Set
from millstream.model.ids import BrokerId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

Registrations = Mapping[BrokerId, Registration]


class BrokerChanges(NamedTuple):
    """What changed, for the log."""

    joined: tuple[BrokerId, ...] = ()
    """Were not alive before, whether they are known or not."""
    left: tuple[BrokerId, ...] = ()
    restarted: tuple[BrokerId, ...] = ()
    """Were restarted between two reads."""
    unproved: tuple[BrokerId, ...] = ()
    """Of those that joined or restarted, those that did not shut down cleanly."""
    unclean_elections: tuple[UncleanElection, ...] = ()


class _BrokerComparison(NamedTuple):
    """The brokers at two reads."""

    before: Mapping[BrokerId, BrokerImage]
    now: Registrations

    def stayed(self) -> frozenset[BrokerId]:
        """Brokers whose known incarnation is still alive."""
        return frozenset(one for one in self.now if not self._is_new(one))

    def came(self) -> list[BrokerId]:
        return sorted(one for one in self.now if self._is_new(one))

    def _is_new(self, broker_id: BrokerId) -> bool:
        known = self.before.get(broker_id)
        return known is None or known.epoch != self.now[broker_id].epoch

    def is_proved(self, broker_id: BrokerId) -> bool:
        """Whether it proves that everything it had under the known epoch is still there."""
        known = self.before.get(broker_id)
        return known is not None and self.now[broker_id].is_proof_of(known.epoch)

    def changes(self) -> BrokerChanges:
        was_there = {one for one, known in self.before.items() if not known.is_fenced}
        came = self.came()
        return BrokerChanges(
            joined=tuple(one for one in sorted(self.now) if one not in was_there),
            left=tuple(sorted(was_there - self.now.keys())),
            restarted=tuple(one for one in came if one in was_there),
            unproved=tuple(one for one in came if not self.is_proved(one)),
        )


def brokers_changed(
    image: ClusterImage, registered: Registrations, policy: Policy
) -> Plan[BrokerChanges]:
    """Plan what follows from the brokers that are registered now.

    `image.brokers` has every known broker with its recorded epoch: those nodes are below
    `/millstream/brokers`.
    """
    return run_blocking(plan_brokers_steps(image, registered, policy))


def plan_brokers_steps(
    image: ClusterImage, registered: Registrations, policy: Policy
) -> StepGenerator[Plan[BrokerChanges]]:
    """`brokers_changed` in steps."""
    comparison = _BrokerComparison(image.brokers, registered)
    changes = comparison.changes()
    brokers = _brokers_now(comparison)
    draft = Draft(image, policy)
    yield from _remove_brokers_steps(draft, policy, comparison)
    draft.groups += [[_remember(comparison, one)] for one in comparison.came()]
    unclean = yield from elect_leaderless_steps(draft, policy, Electorate.of(brokers))
    changes = changes._replace(unclean_elections=tuple(unclean))
    return (yield from draft.plan_steps(changes, brokers=brokers))


def _brokers_now(comparison: _BrokerComparison) -> dict[BrokerId, BrokerImage]:
    """All known brokers; those that are not alive are fenced, with the addresses they had."""
    brokers = {
        one: BrokerImage(one, known.endpoints, known.rack, is_fenced=True, epoch=known.epoch)
        for one, known in comparison.before.items()
        if one not in comparison.now
    }
    stayed = comparison.stayed()
    for one, registration in comparison.now.items():
        is_leaving = one in stayed and comparison.before[one].is_leaving
        brokers[one] = BrokerImage(
            one,
            registration.endpoints,
            registration.rack,
            epoch=registration.epoch,
            is_leaving=is_leaving,
        )
    return dict(sorted(brokers.items()))


def _remove_brokers_steps(
    draft: Draft, policy: Policy, comparison: _BrokerComparison
) -> StepGenerator[None]:
    """Remove every broker whose known incarnation is gone from the in-sync sets."""
    stayed = comparison.stayed()
    came = frozenset(comparison.came())
    lost = frozenset(one for one in came if not comparison.is_proved(one))
    leaving = {one for one, known in comparison.before.items() if known.is_leaving}
    electorate = Electorate(stayed, stayed - leaving)
    pace = YieldCounter()
    for topic in draft.image.topics.values():
        rules: TopicRules | None = None
        for partition in topic.partitions:
            if not came.isdisjoint(partition.lost) or not came.isdisjoint(partition.full):
                still = tuple([one for one in partition.lost if one not in came])
                full = tuple([one for one in partition.full if one not in came])
                partition = partition._replace(lost=still, full=full)
            elif stayed.issuperset(partition.isr) and lost.isdisjoint(partition.elr):
                continue
            if rules is None:
                # A broker that joined may have more than those an unclean election could choose
                # now.
                rules = TopicRules.of(topic, policy).clean_only()
            isr = tuple([one for one in partition.isr if one in stayed])
            outcome = elect(partition, rules, electorate, isr=isr, lost=lost)
            draft.put(topic, outcome.partition)
            if pace.is_due():
                yield None


def elect_leaderless_steps(
    draft: Draft, policy: Policy, electorate: Electorate
) -> StepGenerator[list[UncleanElection]]:
    """Elect leaders for leaderless partitions that have a live candidate."""
    unclean: list[UncleanElection] = []
    all_rules = AllRules(policy)
    pace = YieldCounter()
    for topic in draft.image.topics.values():
        partitions = draft.partitions(topic)
        for partition in partitions:
            if partition.leader == NO_LEADER and not electorate.alive.isdisjoint(
                partition.replicas
            ):
                rules = all_rules.of(topic)
                elect_leaderless(draft, topic, partition, rules, electorate, unclean)
                if pace.is_due():
                    yield None
    return unclean


def _remember(comparison: _BrokerComparison, broker_id: BrokerId) -> Operation:
    registration = comparison.now[broker_id]
    path = nodes.known_broker_path(broker_id)
    data = nodes.encode_known_broker(
        KnownBroker(registration.epoch, registration.rack, registration.endpoints)
    )
    if broker_id in comparison.before:
        return Set(path=path, data=data, version=ANY_VERSION)
    return Create(path=path, data=data)


def unregister_broker(
    image: ClusterImage, broker_id: BrokerId, policy: Policy
) -> Plan[list[UncleanElection]]:
    """Unregister a broker that is gone for good: what only it had is given up with it."""
    known = image.brokers.get(broker_id)
    if known is None:
        raise BrokerIdNotRegistered(broker_id)
    if not known.is_fenced:
        raise InvalidRequest(f"broker {broker_id} is running: stop it before unregistering it")
    brokers = {one: broker for one, broker in image.brokers.items() if one != broker_id}
    electorate = Electorate.of(brokers)
    draft = Draft(image, policy)
    unclean: list[UncleanElection] = []
    for topic in image.topics.values():
        for partition in topic.partitions:
            if broker_id in partition.elr:
                rules = TopicRules.of(topic, policy)
                elr = tuple([one for one in partition.elr if one != broker_id])
                without = partition._replace(elr=elr)
                outcome = elect(without, rules, electorate, isr=partition.isr)
                draft.put(topic, outcome.partition)
                if outcome.is_unclean:
                    unclean.append(unclean_election(topic, outcome))
    draft.groups.append([Delete(path=nodes.known_broker_path(broker_id), version=ANY_VERSION)])
    return draft.plan(unclean, brokers=brokers)

"""Brokers come, go and come again: who is in sync then, and who leads.

Three phases, each of which may be the last one that a dying controller writes:

1. Whoever went, or was replaced by its own successor, leaves every in-sync set; whoever came back
   without proof leaves the eligible ones too. Leaders are elected among those that stayed. What
   the one before said of logs that it had lost is forgotten: its successor says it anew.
2. The epochs of those that came are remembered. From here on they count as what they are now.
3. Where nobody leads, those that came are candidates.

If 2 came before 1 a next controller would take an unclean successor for the broker it knows, with
its place in sync; if it came after 3 it would depose the leaders that were just elected.
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


class BrokerNews(NamedTuple):
    """What was found out, for those who report it."""

    joined: tuple[BrokerId, ...] = ()
    """Were not there, whether they are known or not."""
    left: tuple[BrokerId, ...] = ()
    restarted: tuple[BrokerId, ...] = ()
    """Were replaced by their successors between two looks."""
    unproved: tuple[BrokerId, ...] = ()
    """Of those that came, those without proof that nothing was lost on their disks."""
    unclean_elections: tuple[UncleanElection, ...] = ()


class _Looks(NamedTuple):
    """The brokers at two looks."""

    before: Mapping[BrokerId, BrokerImage]
    now: Registrations

    def stayed(self) -> frozenset[BrokerId]:
        """The same incarnation as the one that is known."""
        return frozenset(one for one in self.now if not self._is_new(one))

    def came(self) -> list[BrokerId]:
        return sorted(one for one in self.now if self._is_new(one))

    def _is_new(self, broker_id: BrokerId) -> bool:
        known = self.before.get(broker_id)
        return known is None or known.epoch != self.now[broker_id].epoch

    def is_proved(self, broker_id: BrokerId) -> bool:
        """Whether what it had under the epoch that is known is all still there."""
        known = self.before.get(broker_id)
        return known is not None and self.now[broker_id].is_proof_of(known.epoch)

    def news(self) -> BrokerNews:
        was_there = {one for one, known in self.before.items() if not known.is_fenced}
        came = self.came()
        return BrokerNews(
            joined=tuple(one for one in sorted(self.now) if one not in was_there),
            left=tuple(sorted(was_there - self.now.keys())),
            restarted=tuple(one for one in came if one in was_there),
            unproved=tuple(one for one in came if not self.is_proved(one)),
        )


def brokers_changed(
    image: ClusterImage, registered: Registrations, policy: Policy
) -> Plan[BrokerNews]:
    """What follows from the brokers that are registered now.

    `image.brokers` has every broker that is known, with the epoch under which it is: those nodes
    are below `/millstream/brokers`.
    """
    return run_blocking(plan_brokers_steps(image, registered, policy))


def plan_brokers_steps(
    image: ClusterImage, registered: Registrations, policy: Policy
) -> StepGenerator[Plan[BrokerNews]]:
    """`brokers_changed` in steps."""
    looks = _Looks(image.brokers, registered)
    news = looks.news()
    brokers = _brokers_now(looks)
    draft = Draft(image, policy)
    yield from _remove_brokers_steps(draft, policy, looks)
    draft.groups += [[_remember(looks, one)] for one in looks.came()]
    unclean = yield from elect_leaderless_steps(draft, policy, Electorate.of(brokers))
    news = news._replace(unclean_elections=tuple(unclean))
    return (yield from draft.plan_steps(news, brokers=brokers))


def _brokers_now(looks: _Looks) -> dict[BrokerId, BrokerImage]:
    """All that are known; those that are not there are fenced, with the addresses they had."""
    brokers = {
        one: BrokerImage(one, known.endpoints, known.rack, is_fenced=True, epoch=known.epoch)
        for one, known in looks.before.items()
        if one not in looks.now
    }
    stayed = looks.stayed()
    for one, told in looks.now.items():
        is_leaving = one in stayed and looks.before[one].is_leaving
        brokers[one] = BrokerImage(
            one, told.endpoints, told.rack, epoch=told.epoch, is_leaving=is_leaving
        )
    return dict(sorted(brokers.items()))


def _remove_brokers_steps(draft: Draft, policy: Policy, looks: _Looks) -> StepGenerator[None]:
    """Whoever is not the one that is known leaves every in-sync set."""
    stayed = looks.stayed()
    came = frozenset(looks.came())
    lost = frozenset(one for one in came if not looks.is_proved(one))
    leaving = {one for one, known in looks.before.items() if known.is_leaving}
    electorate = Electorate(stayed, stayed - leaving)
    pace = YieldCounter()
    for topic in draft.image.topics.values():
        rules: TopicRules | None = None
        for partition in topic.partitions:
            if not came.isdisjoint(partition.lost):
                still = tuple([one for one in partition.lost if one not in came])
                partition = partition._replace(lost=still)
            elif stayed.issuperset(partition.isr) and lost.isdisjoint(partition.elr):
                continue
            if rules is None:
                # Whoever came may have more than those that an unclean election could choose now.
                rules = TopicRules.of(topic, policy).only_certain()
            isr = tuple([one for one in partition.isr if one in stayed])
            outcome = elect(partition, rules, electorate, isr=isr, lost=lost)
            draft.put(topic, outcome.partition)
            if pace.is_due():
                yield None


def elect_leaderless_steps(
    draft: Draft, policy: Policy, electorate: Electorate
) -> StepGenerator[list[UncleanElection]]:
    """Elect leaders where there are none, and somebody who may be one is alive."""
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


def _remember(looks: _Looks, broker_id: BrokerId) -> Operation:
    told = looks.now[broker_id]
    path = nodes.known_broker_path(broker_id)
    data = nodes.encode_known_broker(KnownBroker(told.epoch, told.rack, told.endpoints))
    if broker_id in looks.before:
        return Set(path=path, data=data, version=ANY_VERSION)
    return Create(path=path, data=data)


def unregister_broker(
    image: ClusterImage, broker_id: BrokerId, policy: Policy
) -> Plan[list[UncleanElection]]:
    """Forget a broker that is gone for good: what only it had is given up with it."""
    known = image.brokers.get(broker_id)
    if known is None:
        raise BrokerIdNotRegistered(broker_id)
    if not known.is_fenced:
        raise InvalidRequest(f"broker {broker_id} is running: stop it before it is forgotten")
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

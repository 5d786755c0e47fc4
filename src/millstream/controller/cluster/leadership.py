"""Leaderships that move although nobody died: on request, for balance, before a shutdown."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.elections import (
    AllRules,
    Electorate,
    TopicRules,
    UncleanElection,
    elect,
    elect_leaderless,
    with_leader,
)
from millstream.controller.cluster.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    PreferredLeaderNotAvailable,
)
from millstream.controller.cluster.isr_changes import check_broker_epoch
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import ElectionKind
from millstream.controller.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from millstream.model.errors import OperatingError, UnknownPartition
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

BALANCED_AT_ONCE: Final = 1000
"""Leaders that one round of balancing moves at most: each move makes clients look again."""


class PartitionResults(NamedTuple):
    """What became of each partition, and what is to be reported."""

    errors: dict[TopicPartition, OperatingError | None]
    unclean_elections: list[UncleanElection]


# -- ElectLeaders ------------------------------------------------------------------------------


def elect_leaders(
    image: ClusterImage,
    kind: ElectionKind,
    partitions: Sequence[TopicPartition] | None,
    policy: Policy,
) -> Plan[PartitionResults]:
    """By a client's wish. None asks for all; then those that need no election are not told."""
    return run_blocking(plan_elections_steps(image, kind, partitions, policy))


def plan_elections_steps(
    image: ClusterImage,
    kind: ElectionKind,
    partitions: Sequence[TopicPartition] | None,
    policy: Policy,
) -> StepGenerator[Plan[PartitionResults]]:
    """`elect_leaders` in steps."""
    draft = Draft(image, policy)
    electorate = Electorate.of(image.brokers)
    results = PartitionResults({}, [])
    all_rules = AllRules(policy)
    pace = YieldCounter()
    names = _all_partitions(image) if partitions is None else partitions
    for name in names:
        try:
            topic, partition = find(draft, name)
            if kind is ElectionKind.PREFERRED:
                _elect_preferred(draft, topic, partition, electorate)
            else:
                rules = all_rules.of(topic)._replace(is_unclean_allowed=True)
                _elect_any(draft, topic, partition, rules, electorate, results)
            results.errors[name] = None
        except ElectionNotNeeded as error:
            if partitions is not None:
                results.errors[name] = error
        except OperatingError as error:
            results.errors[name] = error
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(results))


def _all_partitions(image: ClusterImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        yield from topic.names_of_partitions()


def find(draft: Draft, name: TopicPartition) -> tuple[TopicImage, PartitionImage]:
    """The partition as it will be; raises UnknownPartition."""
    topic = draft.image.topics.get(name.topic)
    if topic is None or not 0 <= name.partition < len(topic.partitions):
        raise UnknownPartition(name)
    return topic, draft.partitions(topic)[name.partition]


def _elect_preferred(
    draft: Draft, topic: TopicImage, partition: PartitionImage, electorate: Electorate
) -> None:
    name = TopicPartition(topic.name, partition.index)
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise ElectionNotNeeded(name)
    if preferred not in partition.isr or preferred not in electorate.staying:
        raise PreferredLeaderNotAvailable(name)
    draft.put(topic, with_leader(partition, preferred))


def _elect_any(
    draft: Draft,
    topic: TopicImage,
    partition: PartitionImage,
    rules: TopicRules,
    electorate: Electorate,
    results: PartitionResults,
) -> None:
    name = TopicPartition(topic.name, partition.index)
    if partition.leader != NO_LEADER:
        raise ElectionNotNeeded(name)
    if not elect_leaderless(draft, topic, partition, rules, electorate, results.unclean_elections):
        raise EligibleLeadersNotAvailable(name)


# -- balance -----------------------------------------------------------------------------------


def balance(
    image: ClusterImage, policy: Policy, *, percentage: int, count_max: int = BALANCED_AT_ONCE
) -> Plan[int]:
    """Give brokers back what they should lead, where they lead too little of it.

    `percentage` is `leader.imbalance.per.broker.percentage`: of the partitions whose first replica
    a broker is, how many others may lead. The number of leaders that move.
    """
    return run_blocking(
        balance_leaders_steps(image, policy, percentage=percentage, count_max=count_max)
    )


def balance_leaders_steps(
    image: ClusterImage, policy: Policy, *, percentage: int, count_max: int = BALANCED_AT_ONCE
) -> StepGenerator[Plan[int]]:
    """`balance` in steps."""
    draft = Draft(image, policy)
    staying = Electorate.of(image.brokers).staying
    preferred: Counter[BrokerId] = Counter()
    elsewhere: Counter[BrokerId] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            first = partition.replicas[0]
            preferred[first] += 1
            elsewhere[first] += partition.leader != first
    wanting = {
        one
        for one, count in elsewhere.items()
        if one in staying and count * 100 > percentage * preferred[one]
    }
    moved = 0
    pace = YieldCounter()
    for topic, partition in _led_elsewhere(image, wanting):
        if moved == count_max:
            break
        draft.put(topic, with_leader(partition, partition.replicas[0]))
        moved += 1
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(moved))


def _led_elsewhere(
    image: ClusterImage, brokers: set[BrokerId]
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Partitions that could be led by one of these, which is their first replica."""
    if not brokers:
        return
    for topic in image.topics.values():
        for one in topic.partitions:
            first = one.replicas[0]
            if first in brokers and one.leader not in (first, NO_LEADER) and first in one.isr:
                yield topic, one


# -- shutting down -----------------------------------------------------------------------------


def shut_down(
    image: ClusterImage, policy: Policy, *, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Plan[list[TopicPartition]]:
    """Take a broker out of all in-sync sets that have others; raises StaleBrokerEpoch.

    The result are the partitions that it leads on and that somebody else could come to lead. What
    nobody else can have meanwhile is not waited for: it is led until the broker is gone.
    """
    steps = plan_shutdown_steps(image, policy, broker_id=broker_id, broker_epoch=broker_epoch)
    return run_blocking(steps)


def plan_shutdown_steps(
    image: ClusterImage, policy: Policy, *, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> StepGenerator[Plan[list[TopicPartition]]]:
    """`shut_down` in steps."""
    check_broker_epoch(image, broker_id, broker_epoch)
    leaving = image.brokers[broker_id]._replace(is_leaving=True)
    brokers = {**image.brokers, broker_id: leaving}
    electorate = Electorate.of(brokers)
    draft = Draft(image, policy)
    all_rules = AllRules(policy)
    left: list[TopicPartition] = []
    pace = YieldCounter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            if broker_id not in partition.isr:
                continue
            if _can_go_on(partition, broker_id, electorate):
                isr = tuple([one for one in partition.isr if one != broker_id])
                rules = all_rules.of(topic).only_certain()
                outcome = elect(partition, rules, electorate, isr=isr)
                draft.put(topic, outcome.partition)
            elif partition.leader == broker_id and _is_anybody(_whole(partition), electorate):
                left.append(TopicPartition(topic.name, partition.index))
            if pace.is_due():
                yield None
    return (yield from draft.plan_steps(left, brokers=brokers))


def _can_go_on(partition: PartitionImage, broker_id: BrokerId, electorate: Electorate) -> bool:
    """Whether somebody leads it without this broker, and does not go away itself."""
    if any(one != broker_id for one in partition.isr):
        return _is_anybody(partition.isr, electorate)
    return _is_anybody(partition.elr, electorate)


def _whole(partition: PartitionImage) -> list[BrokerId]:
    """Who has a log of it that can be used."""
    return [one for one in partition.replicas if one not in partition.lost]


def _is_anybody(brokers: Iterable[BrokerId], electorate: Electorate) -> bool:
    return not electorate.staying.isdisjoint(brokers)

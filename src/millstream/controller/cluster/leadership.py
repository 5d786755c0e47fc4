"""Leaders that move without a failure: on request, for balance, before a shutdown."""

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
from millstream.model.errors import OperatingError, UnknownPartition, without_frames
from millstream.model.ids import BrokerEpoch, BrokerId, TopicPartition
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_blocking

BALANCED_AT_ONCE: Final = 1000
"""The most leaders moved per round of balancing: each move makes clients refresh their metadata."""


class PartitionResults(NamedTuple):
    """The result for each partition, and what to log."""

    errors: dict[TopicPartition, OperatingError | None]
    unclean_elections: list[UncleanElection]


# -- ElectLeaders ------------------------------------------------------------------------------


def elect_leaders(
    image: ClusterImage,
    kind: ElectionKind,
    partitions: Sequence[TopicPartition] | None,
    policy: Policy,
) -> Plan[PartitionResults]:
    """Elect leaders on request. None means all partitions; then those that need no election are
    left out.
    """
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
                results.errors[name] = without_frames(error)
        except OperatingError as error:
            results.errors[name] = without_frames(error)
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
    is_usable = preferred in partition.isr and preferred not in partition.full
    if not is_usable or preferred not in electorate.staying:
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
    """Elect preferred leaders for brokers that lead too few of the partitions they should.

    `percentage` is `leader.imbalance.per.broker.percentage`: how many of a broker's preferred
    partitions other brokers may lead. Returns the number of leaders that move.
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
    led_by_others: Counter[BrokerId] = Counter()
    for topic in image.topics.values():
        for partition in topic.partitions:
            first = partition.replicas[0]
            preferred[first] += 1
            led_by_others[first] += partition.leader != first
    imbalanced = {
        one
        for one, count in led_by_others.items()
        if one in staying and count * 100 > percentage * preferred[one]
    }
    moved = 0
    pace = YieldCounter()
    for topic, partition in _partitions_to_return(image, imbalanced):
        if moved == count_max:
            break
        draft.put(topic, with_leader(partition, partition.replicas[0]))
        moved += 1
        if pace.is_due():
            yield None
    return (yield from draft.plan_steps(moved))


def _partitions_to_return(
    image: ClusterImage, brokers: set[BrokerId]
) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Partitions led by another broker that one of these, their preferred leader, could lead."""
    if not brokers:
        return
    for topic in image.topics.values():
        for one in topic.partitions:
            first = one.replicas[0]
            if first not in brokers or first in one.full:
                continue
            if one.leader not in (first, NO_LEADER) and first in one.isr:
                yield topic, one


# -- shutting down -----------------------------------------------------------------------------


def shut_down(
    image: ClusterImage, policy: Policy, *, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> Plan[list[TopicPartition]]:
    """Remove a broker from all in-sync sets that have other members; raises StaleBrokerEpoch.

    Returns the partitions that it still leads and that another broker could take over later. What
    no other broker can take over is not waited for: it is led until the broker is gone.
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
            if _can_continue(partition, broker_id, electorate):
                isr = tuple([one for one in partition.isr if one != broker_id])
                rules = all_rules.of(topic).clean_only()
                outcome = elect(partition, rules, electorate, isr=isr)
                draft.put(topic, outcome.partition)
            elif partition.leader == broker_id and _is_any_staying(
                _usable_replicas(partition), electorate
            ):
                left.append(TopicPartition(topic.name, partition.index))
            if pace.is_due():
                yield None
    return (yield from draft.plan_steps(left, brokers=brokers))


def _can_continue(partition: PartitionImage, broker_id: BrokerId, electorate: Electorate) -> bool:
    """Whether another broker that is not shutting down can lead it."""
    if any(one != broker_id for one in partition.isr):
        return _is_any_staying(partition.isr, electorate)
    return _is_any_staying(partition.elr, electorate)


def _usable_replicas(partition: PartitionImage) -> list[BrokerId]:
    """The replicas whose log is usable."""
    return [one for one in partition.replicas if one not in partition.lost]


def _is_any_staying(brokers: Iterable[BrokerId], electorate: Electorate) -> bool:
    return not electorate.staying.isdisjoint(brokers)

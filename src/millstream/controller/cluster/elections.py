"""Who leads a partition, and who else may (KIP-966). No I/O; one partition at a time."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.plans import Policy
from millstream.controller.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch, TopicPartition

Members = tuple[BrokerId, ...]
NOBODY: frozenset[BrokerId] = frozenset()


class UncleanElection(NamedTuple):
    """A leader that may lack records which were acknowledged; always to be reported."""

    partition: TopicPartition
    leader: BrokerId
    is_last_known: bool
    """It led last and lost its word, not necessarily data; else it was never in sync."""


class Electorate(NamedTuple):
    """Who can be elected."""

    alive: frozenset[BrokerId]
    staying: frozenset[BrokerId]
    """Of `alive`, those that are not shutting down: the others come last."""

    @classmethod
    def of(cls, brokers: Mapping[BrokerId, BrokerImage]) -> "Electorate":
        alive = [one for one in brokers.values() if not one.is_fenced]
        return cls(
            frozenset(one.broker_id for one in alive),
            frozenset(one.broker_id for one in alive if not one.is_leaving),
        )

    def first(self, order: Iterable[BrokerId], among: Collection[BrokerId]) -> BrokerId:
        """The first in the order that is among those and can lead; NO_LEADER without one."""
        second = NO_LEADER
        for one in order:
            if one in among:
                if one in self.staying:
                    return one
                if second == NO_LEADER and one in self.alive:
                    second = one
        return second


class TopicRules(NamedTuple):
    """What holds for all partitions of one topic."""

    in_sync_min: int
    is_unclean_allowed: bool
    is_last_known_allowed: bool = True

    @classmethod
    def of(cls, topic: TopicImage, policy: Policy) -> "TopicRules":
        return cls(policy.in_sync_min(topic), policy.is_unclean_allowed(topic))

    def only_certain(self) -> "TopicRules":
        """Nobody is elected who may lack something."""
        return TopicRules(self.in_sync_min, is_unclean_allowed=False, is_last_known_allowed=False)


class AllRules:
    """The rules of topics, each found out once for a plan."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules: dict[str, TopicRules] = {}

    def of(self, topic: TopicImage) -> TopicRules:
        rules = self._rules.get(topic.name)
        if rules is None:
            rules = self._rules[topic.name] = TopicRules.of(topic, self._policy)
        return rules


class ElectionResult(NamedTuple):
    """A partition as it should be; its partition epoch is the old one."""

    partition: PartitionImage
    is_unclean: bool = False
    is_last_known: bool = False


def elect(
    partition: PartitionImage,
    rules: TopicRules,
    electorate: Electorate,
    *,
    isr: Members,
    lost: Collection[BrokerId] = NOBODY,
) -> ElectionResult:
    """The partition with another in-sync set, and with the leader that follows from it.

    The caller has taken out of `isr` whoever is not alive. `lost` have come back without proof
    that they still have what they had, or say that they have not: they are not eligible either.
    """
    elr = eligible(partition, rules, isr=isr, lost=lost)
    if partition.leader in isr:
        return ElectionResult(
            partition._replace(isr=isr, elr=elr, last_known_leader=NO_LEADER)
            if isr != partition.isr or elr != partition.elr
            else partition
        )
    leader = electorate.first(partition.replicas, isr)
    if leader == NO_LEADER and not isr:
        leader = electorate.first(partition.replicas, elr)
    if leader != NO_LEADER:
        return ElectionResult(_led(partition, rules, leader=leader, isr=isr or (leader,), elr=elr))
    last_known = _last_known(partition, lost)
    return _elect_without_isr(partition, rules, electorate, isr=isr, elr=elr, last_known=last_known)


def _last_known(partition: PartitionImage, lost: Collection[BrokerId]) -> BrokerId:
    """Whom to trust most when nobody is left whose word counts.

    The last leader; but one that had everything for longer than it has the better claim: who was
    killed may have lost nothing, while who lost its word before was not there for what came since.
    """
    last = partition.last_known_leader if partition.leader == NO_LEADER else partition.leader
    held = [
        one for one in partition.replicas if one in lost and one in (*partition.isr, *partition.elr)
    ]
    return last if last in held or not held else held[0]


def _elect_without_isr(
    partition: PartitionImage,
    rules: TopicRules,
    electorate: Electorate,
    *,
    isr: Members,
    elr: Members,
    last_known: BrokerId,
) -> ElectionResult:
    """Nobody who surely has everything is alive."""
    candidates = [one for one in partition.replicas if one not in partition.lost]
    is_nobody_left = rules.is_last_known_allowed and not isr and not elr
    if is_nobody_left and last_known in electorate.alive and last_known in candidates:
        led = _led(partition, rules, leader=last_known, isr=(last_known,), elr=())
        return ElectionResult(led, is_unclean=True, is_last_known=True)
    if rules.is_unclean_allowed:
        # Who is only being added may have nothing at all.
        order = sorted(candidates, key=lambda one: one in partition.adding)
        leader = electorate.first(order, order)
        if leader != NO_LEADER:
            led = _led(partition, rules, leader=leader, isr=(leader,), elr=())
            return ElectionResult(led, is_unclean=True)
    if partition.leader == NO_LEADER and (isr, elr) == (partition.isr, partition.elr):
        return ElectionResult(partition)
    nobody = _with_leader(partition, NO_LEADER)
    return ElectionResult(nobody._replace(isr=isr, elr=elr, last_known_leader=last_known))


def eligible(
    partition: PartitionImage,
    rules: TopicRules,
    *,
    isr: Members,
    lost: Collection[BrokerId] = NOBODY,
) -> Members:
    """Who has everything below the high watermark without being in sync.

    Whoever leaves an in-sync set that is, or becomes, too small for the high watermark to move.
    Once it is large enough the high watermark moves on without them.
    """
    if len(isr) >= min(rules.in_sync_min, len(partition.replicas)):
        return ()
    return tuple(
        one
        for one in partition.replicas
        if one not in isr and one not in lost and (one in partition.isr or one in partition.elr)
    )


def _led(
    partition: PartitionImage, rules: TopicRules, *, leader: BrokerId, isr: Members, elr: Members
) -> PartitionImage:
    following = _with_leader(partition, leader)._replace(isr=isr, elr=elr)
    # Elected out of the ELR it is in sync alone: with that the high watermark may move again.
    return following._replace(
        elr=tuple(one for one in eligible(following, rules, isr=isr) if one in elr)
    )


def _with_leader(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
    """Another leader, or none, is another epoch, also when it is the one before the last (I-15)."""
    changes = leader != partition.leader
    return partition._replace(
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + changes),
        last_known_leader=NO_LEADER,
    )


def unclean_election(topic: TopicImage, outcome: ElectionResult) -> UncleanElection:
    """What is to be reported of it."""
    partition = TopicPartition(topic.name, outcome.partition.index)
    return UncleanElection(partition, outcome.partition.leader, outcome.is_last_known)


def elect_leaderless(
    draft: Draft,
    topic: TopicImage,
    partition: PartitionImage,
    rules: TopicRules,
    electorate: Electorate,
    unclean: list[UncleanElection],
) -> bool:
    """Elect a leader for a partition that has none; whether there is one then."""
    isr = tuple([one for one in partition.isr if one in electorate.alive])
    outcome = elect(partition, rules, electorate, isr=isr)
    if outcome.partition is partition:
        return False
    draft.put(topic, outcome.partition)
    if outcome.is_unclean:
        unclean.append(unclean_election(topic, outcome))
    return outcome.partition.leader != NO_LEADER


def with_leader(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
    """Led by another member of its in-sync set."""
    return _with_leader(partition, leader)

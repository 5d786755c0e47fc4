"""Leader election with eligible leader replicas (KIP-966). No I/O; one partition at a time."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from millstream.controller.cluster.drafts import Draft
from millstream.controller.cluster.plans import Policy
from millstream.controller.image import NO_LEADER, BrokerImage, PartitionImage, TopicImage
from millstream.model.ids import BrokerId, LeaderEpoch, TopicPartition

Members = tuple[BrokerId, ...]
NO_BROKERS: frozenset[BrokerId] = frozenset()


class UncleanElection(NamedTuple):
    """A leader that may lack acknowledged records, or the last one, which may have lost what it had
    not flushed; always reported.
    """

    partition: TopicPartition
    leader: BrokerId
    is_last_known: bool
    """It was the last leader and was not shut down cleanly, so data need not be lost; else it was
    not in sync."""


class Electorate(NamedTuple):
    """The brokers that can be elected."""

    alive: frozenset[BrokerId]
    staying: frozenset[BrokerId]
    """Of `alive`, those that are not shutting down; the others are only chosen last."""

    @classmethod
    def of(cls, brokers: Mapping[BrokerId, BrokerImage]) -> "Electorate":
        alive = [one for one in brokers.values() if not one.is_fenced]
        return cls(
            frozenset(one.broker_id for one in alive),
            frozenset(one.broker_id for one in alive if not one.is_leaving),
        )

    def first(self, order: Iterable[BrokerId], among: Collection[BrokerId]) -> BrokerId:
        """The first in `order` that is in `among` and can lead; NO_LEADER without one."""
        second = NO_LEADER
        for one in order:
            if one in among:
                if one in self.staying:
                    return one
                if second == NO_LEADER and one in self.alive:
                    second = one
        return second


class TopicRules(NamedTuple):
    """The settings that elections of one topic follow."""

    in_sync_min: int
    is_unclean_allowed: bool
    is_last_known_allowed: bool = True

    @classmethod
    def of(cls, topic: TopicImage, policy: Policy) -> "TopicRules":
        return cls(policy.in_sync_min(topic), policy.is_unclean_allowed(topic))

    def clean_only(self) -> "TopicRules":
        """Rules under which no replica is elected that may lack records."""
        return TopicRules(self.in_sync_min, is_unclean_allowed=False, is_last_known_allowed=False)


class AllRules:
    """The rules of all topics, each computed once per plan."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._rules: dict[str, TopicRules] = {}

    def of(self, topic: TopicImage) -> TopicRules:
        rules = self._rules.get(topic.name)
        if rules is None:
            rules = self._rules[topic.name] = TopicRules.of(topic, self._policy)
        return rules


class ElectionResult(NamedTuple):
    """The partition after the election; its partition epoch is still the old one."""

    partition: PartitionImage
    is_unclean: bool = False
    is_last_known: bool = False


def elect(
    partition: PartitionImage,
    rules: TopicRules,
    electorate: Electorate,
    *,
    isr: Members,
    lost: Collection[BrokerId] = NO_BROKERS,
) -> ElectionResult:
    """The partition with a new in-sync set, and the leader that follows from it.

    The caller has removed brokers that are not alive from `isr`. `lost` are brokers that came back
    without evidence of a clean shutdown, or that reported lost data: they are not eligible
    either.
    """
    elr = eligible(partition, rules, isr=isr, lost=lost)
    if partition.leader in isr:
        return ElectionResult(
            partition._replace(isr=isr, elr=elr, last_known_leader=NO_LEADER)
            if isr != partition.isr or elr != partition.elr
            else partition
        )
    order = _room_first(partition)
    leader = electorate.first(order, isr)
    if leader == NO_LEADER and not isr:
        leader = electorate.first(order, elr)
    if leader != NO_LEADER:
        return ElectionResult(_led(partition, rules, leader=leader, isr=isr or (leader,), elr=elr))
    last_known = _last_known(partition, lost)
    return _elect_without_isr(partition, rules, electorate, isr=isr, elr=elr, last_known=last_known)


def _room_first(partition: PartitionImage) -> Members:
    """The replicas in their order, those that cannot take a record last."""
    if not partition.full:
        return partition.replicas
    return tuple(sorted(partition.replicas, key=lambda one: one in partition.full))


def _last_known(partition: PartitionImage, lost: Collection[BrokerId]) -> BrokerId:
    """The best candidate when no replica was shut down cleanly.

    The last leader; but a replica that was eligible for longer is the better candidate: a broker
    that was killed may have lost nothing, while one that lost its eligibility before missed
    everything since.
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
    """No replica that certainly has everything is alive."""
    candidates = [one for one in partition.replicas if one not in partition.lost]
    has_no_candidates = rules.is_last_known_allowed and not isr and not elr
    if has_no_candidates and last_known in electorate.alive and last_known in candidates:
        led = _led(partition, rules, leader=last_known, isr=(last_known,), elr=())
        return ElectionResult(led, is_unclean=True, is_last_known=True)
    if rules.is_unclean_allowed:
        # A replica that is only being added may have nothing at all.
        order = sorted(candidates, key=lambda one: (one in partition.adding, one in partition.full))
        leader = electorate.first(order, order)
        if leader != NO_LEADER:
            led = _led(partition, rules, leader=leader, isr=(leader,), elr=())
            return ElectionResult(led, is_unclean=True)
    if partition.leader == NO_LEADER and (isr, elr) == (partition.isr, partition.elr):
        return ElectionResult(partition)
    leaderless = _with_leader(partition, NO_LEADER)
    return ElectionResult(leaderless._replace(isr=isr, elr=elr, last_known_leader=last_known))


def eligible(
    partition: PartitionImage,
    rules: TopicRules,
    *,
    isr: Members,
    lost: Collection[BrokerId] = NO_BROKERS,
) -> Members:
    """The replicas that have everything below the high watermark without being in sync.

    Those that leave an in-sync set that is, or becomes, too small for the high watermark to move.
    Once the set is large enough the high watermark advances without them.
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
    # Elected from the ELR it is the only in-sync replica: with it the high watermark may move
    # again.
    return following._replace(
        elr=tuple(one for one in eligible(following, rules, isr=isr) if one in elr)
    )


def _with_leader(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
    """Another leader, or none, means a new epoch, also when an earlier leader returns (I-15)."""
    changes = leader != partition.leader
    return partition._replace(
        leader=leader,
        leader_epoch=LeaderEpoch(partition.leader_epoch + changes),
        last_known_leader=NO_LEADER,
    )


def unclean_election(topic: TopicImage, outcome: ElectionResult) -> UncleanElection:
    """The report of an unclean election."""
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
    """Elect a leader for a leaderless partition; whether one was found."""
    isr = tuple([one for one in partition.isr if one in electorate.alive])
    outcome = elect(partition, rules, electorate, isr=isr)
    if outcome.partition is partition:
        return False
    draft.put(topic, outcome.partition)
    if outcome.is_unclean:
        unclean.append(unclean_election(topic, outcome))
    return outcome.partition.leader != NO_LEADER


def with_leader(partition: PartitionImage, leader: BrokerId) -> PartitionImage:
    """The partition led by another member of its in-sync set."""
    return _with_leader(partition, leader)

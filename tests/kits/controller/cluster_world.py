"""A controller's world in memory: nodes, brokers that come and go, and crashes between groups."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from kits.controller.cluster_ghosts import Ghosts, Incarnations, ProposedIsrs
from kits.controller.cluster_plans_kit import (
    CLUSTER,
    NodeTree,
    apply,
    as_values,
    difference,
    image,
    policy,
)
from millstream.controller.cluster import nodes
from millstream.controller.cluster.brokers import (
    BrokerChanges,
    brokers_changed,
    unregister_broker,
)
from millstream.controller.cluster.drafts import GROUP_OPERATIONS_MAX
from millstream.controller.cluster.elections import UncleanElection
from millstream.controller.cluster.image_loader import load, recovery
from millstream.controller.cluster.isr_changes import isr_changes
from millstream.controller.cluster.leadership import (
    PartitionResults,
    balance,
    elect_leaders,
    shut_down,
)
from millstream.controller.cluster.lost_replicas import LostResults, lose_replicas
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.plans import Plan, Policy
from millstream.controller.cluster.port import ElectionKind, IsrChange, LostReplica
from millstream.controller.cluster.reassignments import reassign
from millstream.controller.cluster.topics_plans import (
    alter_broker_configs,
    alter_topic_configs,
    create_partitions,
    create_topics,
    delete_topics,
)
from millstream.controller.image import (
    NO_LEADER,
    ClusterImage,
    Endpoint,
    PartitionImage,
    TopicImage,
)
from millstream.controller.topics import MorePartitions, NewTopic, Rules, TopicDefaults
from millstream.coordination.port import ANY_VERSION, Create, Delete, Set
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, TopicId, TopicPartition
from millstream.runtime.randomness import SeededRandomness

BROKERS = [BrokerId(one) for one in range(1, 6)]
MINIMUM = "min.insync.replicas"
UNCLEAN = "unclean.leader.election.enable"


class World:
    """One run; every step is checked."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tree = NodeTree()
        self.tree.multi([Create(path=one) for one in nodes.PERSISTENT])
        cluster_id = nodes.encode_cluster_id(CLUSTER)
        self.tree.multi([Create(path=nodes.CLUSTER_ID, data=cluster_id)])
        self.ghosts = Ghosts(self.random)
        self.alive: Incarnations = {}
        self.last_epochs: dict[BrokerId, BrokerEpoch] = {}
        """Under which a broker stopped, if that was clean or only its session was lost."""
        self.image = image([])
        self.proposed: ProposedIsrs = {}
        self.rules = Rules(TopicDefaults(), lambda _: None, SeededRandomness(seed))
        self.named = 0
        self.crashes = self.elections = self.unclean = 0
        self.lost: dict[tuple[TopicId, int, BrokerId], BrokerEpoch] = {}
        """Replicas whose logs failed, as written down, and the incarnations that said so."""
        for one in BROKERS[: self.random.choice((1, 3, 4, 5))]:
            self.start(one)
        self.apply_registrations()

    # -- brokers ---------------------------------------------------------------------------

    def start(self, broker_id: BrokerId) -> None:
        previous = self.last_epochs.pop(broker_id, NO_BROKER_EPOCH)
        endpoint = Endpoint("PLAINTEXT", "h", 9000 + broker_id)
        registration = Registration(broker_id, (endpoint,), None, NO_BROKER_EPOCH, previous)
        data = nodes.encode_registration(registration, timestamp_ms=0)
        self.tree.multi([Create(path=nodes.broker_path(broker_id), data=data)])
        self.alive[broker_id] = BrokerEpoch(self.tree.zxid)

    def stop(self, broker_id: BrokerId) -> None:
        epoch = self.alive.pop(broker_id)
        self.tree.multi([Delete(path=nodes.broker_path(broker_id), version=ANY_VERSION)])
        if self.random.random() < 0.6 and (broker_id, epoch) not in self.wounded():
            self.last_epochs[broker_id] = epoch
        else:
            self.ghosts.lose(broker_id)

    def wounded(self) -> set[tuple[BrokerId, BrokerEpoch]]:
        """Brokers without some of their logs: they prove nothing."""
        return {(one, epoch) for (_, _, one), epoch in self.lost.items()}

    def shake(self) -> None:
        """Brokers stop and start, some of them several times between two reads."""
        for _ in range(self.random.randint(1, 4)):
            one = self.random.choice(BROKERS)
            if one in self.alive:
                self.stop(one)
                if self.random.random() < 0.5:
                    self.start(one)
            else:
                self.start(one)
        self.apply_registrations()

    def registered(self) -> dict[BrokerId, Registration]:
        found = self.tree.found()
        registered = {}
        for one in self.alive:
            node = found[nodes.broker_path(one)]
            epoch = BrokerEpoch(node.stat.czxid)
            registered[one] = nodes.decode_registration(one, node.data, epoch=epoch)
        return registered

    # -- the controller --------------------------------------------------------------------

    def policy(self, configs: dict[str, dict[str, str]] | None = None) -> Policy:
        configured = (self.image.broker_configs if configs is None else configs).get("", {})
        return policy(
            in_sync_min=int(configured.get(MINIMUM, "2")), unclean=configured.get(UNCLEAN) == "true"
        )

    def apply_registrations(self) -> None:
        self.decide(lambda: brokers_changed(self.image, self.registered(), self.policy()))

    def decide(self, decision: Callable[[], Plan[Any]]) -> None:
        """Carry a decision out, or die in the middle of it and be followed by another."""
        plan = decision()
        check_plan(self.image, plan)
        unclean = reports(plan.result)
        if plan.groups and self.random.random() < 0.4:
            self.crash_in(plan, unclean)
        else:
            apply(self.tree, plan)
            self.take_over(plan.image, unclean)
        check_tree(self.tree, self.image)

    def crash_in(self, plan: Plan[Any], unclean: list[UncleanElection]) -> None:
        self.crashes += 1
        before, after = self.tree.copy(), self.tree.copy()
        apply(after, plan)
        written = self.random.randint(0, len(plan.groups))
        apply(self.tree, plan, groups=written)
        # Leaders go on as they know it while there is no controller.
        self.ghosts.commit(self.image, self.alive, self.policy(), self.proposed)
        outcomes = [recovered(one, policy).image for one in (before, after)]
        while True:
            finish = recovered(self.tree, policy)
            unclean += reports(finish.result)
            if not finish.groups or self.random.random() < 0.6:
                break
            apply(self.tree, finish, groups=self.random.randint(0, len(finish.groups)))
        check_outcome(finish.image, outcomes)
        apply(self.tree, finish)
        self.take_over(finish.image, unclean)

    def take_over(self, metadata_follower: ClusterImage, unclean: list[UncleanElection]) -> None:
        self.image = metadata_follower
        self.unclean += len(unclean)
        self.check_lost()
        self.ghosts.check(metadata_follower, unclean, self.alive)
        self.ghosts.check_members(metadata_follower)
        self.proposed.clear()
        self.ghosts.commit(metadata_follower, self.alive, self.policy(), self.proposed)

    # -- what may happen -------------------------------------------------------------------

    def step(self) -> None:
        events: list[tuple[int, Callable[[], None]]] = [
            (6, self.shake),
            (8, self.change_isrs),
            (3, self.create),
            (1, self.delete),
            (1, self.grow),
            (6, self.configure),
            (1, self.configure_all),
            (3, self.reassign),
            (2, self.elect),
            (1, self.balance),
            (1, self.shut_down),
            (1, self.forget),
            (2, self.lose),
        ]
        weights = [weight for weight, _ in events]
        self.random.choices([event for _, event in events], weights)[0]()

    def some_partitions(self) -> list[tuple[TopicImage, PartitionImage]]:
        every = [(topic, one) for topic in self.image.topics.values() for one in topic.partitions]
        return self.random.sample(every, min(len(every), self.random.randint(1, 4)))

    def change_isrs(self) -> None:
        """One leader proposes other ISRs for some of its partitions."""
        led = [(topic, one) for topic, one in self.some_partitions() if one.leader != NO_LEADER]
        if not led:
            return
        leader = led[0][1].leader
        if self.alive.get(leader) != self.image.brokers[leader].epoch:
            return
        changes = [self.isr_change(topic, one) for topic, one in led if one.leader == leader]
        epoch = self.alive[leader]
        # A replica that fetched has everything: the change waits until nothing else happened.
        self.decide(
            lambda: isr_changes(
                self.image, changes, self.policy(), broker_id=leader, broker_epoch=epoch
            )
        )

    def isr_change(self, topic: TopicImage, one: PartitionImage) -> IsrChange:
        members = [one.leader]
        for replica in one.replicas:
            if replica == one.leader or self.random.random() < 0.3:
                continue
            if replica in one.isr:
                members.append(replica)
            elif replica in self.alive:
                self.ghosts.catch_up(topic, one.index, replica)
                members.append(replica)
        self.proposed[topic.topic_id, one.index] = members
        isr = tuple((member, self.alive.get(member, NO_BROKER_EPOCH)) for member in members)
        return IsrChange(topic.topic_id, one.index, one.leader_epoch, one.partition_epoch, isr)

    def create(self) -> None:
        wanted = []
        for _ in range(self.random.randint(1, 2)):
            self.named += 1
            configs = (
                {MINIMUM: str(self.random.randint(1, 3))} if self.random.random() < 0.5 else {}
            )
            count, factor = self.random.randint(1, 3), self.random.choice((1, 2, 2, 3, 3))
            name = f"t{self.named}"
            wanted.append(
                NewTopic(
                    name=name, partition_count=count, replication_factor=factor, configs=configs
                )
            )
        self.decide(lambda: create_topics(self.image, wanted, self.rules, self.policy()))

    def delete(self) -> None:
        names: list[Any] = self.random.sample(
            sorted(self.image.topics), min(len(self.image.topics), 2)
        )
        if names and self.random.random() < 0.5:
            names[0] = self.image.topics[names[0]].topic_id
        self.decide(lambda: delete_topics(self.image, names))

    def grow(self) -> None:
        if self.image.topics:
            name = self.random.choice(sorted(self.image.topics))
            count = len(self.image.topics[name].partitions) + self.random.randint(1, 2)
            wanted = [MorePartitions(name=name, total_count=count)]
            self.decide(lambda: create_partitions(self.image, wanted, self.rules, self.policy()))

    def some_configs(self) -> dict[str, str]:
        configs = {}
        if self.random.random() < 0.7:
            configs[MINIMUM] = str(self.random.choice((1, 1, 2, 2, 3)))
        if self.random.random() < 0.2:
            configs[UNCLEAN] = "true"
        return configs

    def configure(self) -> None:
        if self.image.topics:
            name = self.random.choice(sorted(self.image.topics))
            configs = self.some_configs()
            self.decide(
                lambda: alter_topic_configs(
                    self.image, name, configs, self.policy(), check_configs=lambda _: None
                )
            )

    def configure_all(self) -> None:
        configs = self.some_configs()
        after = self.policy({"": configs})
        self.decide(lambda: alter_broker_configs(self.image, "", configs, after))

    def reassign(self) -> None:
        wanted: dict[TopicPartition, tuple[BrokerId, ...] | None] = {}
        known = sorted(self.image.brokers)
        for topic, one in self.some_partitions():
            count = min(len(known), self.random.randint(1, 3))
            name = TopicPartition(topic.name, one.index)
            is_given_up = (one.adding or one.removing) and self.random.random() < 0.4
            wanted[name] = None if is_given_up else tuple(self.random.sample(known, count))
        self.decide(lambda: reassign(self.image, wanted, self.policy()))

    def elect(self) -> None:
        kind = self.random.choice(list(ElectionKind))
        self.decide(lambda: elect_leaders(self.image, kind, None, self.policy()))

    def balance(self) -> None:
        self.decide(lambda: balance(self.image, self.policy(), percentage=10))

    def shut_down(self) -> None:
        known = [one for one, epoch in self.alive.items() if self.knows(one, epoch)]
        if known:
            one = self.random.choice(known)
            epoch = self.alive[one]
            self.decide(
                lambda: shut_down(self.image, self.policy(), broker_id=one, broker_epoch=epoch)
            )

    def knows(self, broker_id: BrokerId, epoch: BrokerEpoch) -> bool:
        known = self.image.brokers.get(broker_id)
        return known is not None and known.epoch == epoch and not known.is_fenced

    def forget(self) -> None:
        gone = [one for one, known in self.image.brokers.items() if known.is_fenced]
        if gone:
            one = self.random.choice(gone)
            assigned = {
                replica
                for topic in self.image.topics.values()
                for part in topic.partitions
                for replica in part.replicas
            }
            if one not in assigned:
                self.decide(lambda: unregister_broker(self.image, one, self.policy()))

    def lose(self) -> None:
        """A directory of one broker fails, with some of its logs."""
        known = [one for one, epoch in self.alive.items() if self.knows(one, epoch)]
        if not known:
            return
        one = self.random.choice(known)
        epoch = self.alive[one]
        gone = [
            LostReplica(topic.topic_id, part.index)
            for topic, part in self.some_partitions()
            if one in part.replicas
        ]
        self.decide(
            lambda: lose_replicas(
                self.image, gone, self.policy(), broker_id=one, broker_epoch=epoch
            )
        )
        for replica in gone:
            topic = self.image.topics_by_id[replica.topic_id]
            if one in topic.partitions[replica.partition].lost:
                self.lost[(*replica, one)] = epoch

    def check_lost(self) -> None:
        """As long as it is the same broker, nothing makes such a replica lead or count."""
        for (topic_id, index, one), epoch in list(self.lost.items()):
            topic = self.image.topics_by_id.get(topic_id)
            known = self.image.brokers.get(one)
            if topic is None or known is None or known.epoch != epoch:
                del self.lost[topic_id, index, one]
                continue
            part = topic.partitions[index]
            if one not in part.replicas:
                del self.lost[topic_id, index, one]
                continue
            counts = one in (*part.isr, *part.elr, part.leader)
            assert not counts, f"I-14 broker {one} has lost its log: {part}"


# -- checks ------------------------------------------------------------------------------------


def recovered(tree: NodeTree, rules: Callable[..., Policy]) -> Plan[BrokerChanges]:
    """What the next controller does first."""
    loaded = load(tree.found(), controller_id=BrokerId(1))
    configured = loaded.image.broker_configs.get("", {})
    decided = rules(
        in_sync_min=int(configured.get(MINIMUM, "2")), unclean=configured.get(UNCLEAN) == "true"
    )
    plan = recovery(loaded, decided)
    check_plan(loaded.image, plan)
    return plan


def reports(result: object) -> list[UncleanElection]:
    if isinstance(result, BrokerChanges | PartitionResults | LostResults):
        return list(result.unclean_elections)
    if isinstance(result, list):
        return [one for one in result if isinstance(one, UncleanElection)]
    return []


def check_plan(before: ClusterImage, plan: Plan[Any]) -> None:
    """The shape of every plan."""
    assert as_values(plan.change) == as_values(difference(before, plan.image))
    for group in plan.groups:
        assert 0 < len(group) <= GROUP_OPERATIONS_MAX
        for one in group:
            if one.path.endswith("/state") and isinstance(one, Set | Delete):
                assert one.version != ANY_VERSION, f"I-16 {one} is not versioned"


def check_tree(tree: NodeTree, expected: ClusterImage) -> None:
    """The image is what a next controller would read."""
    loaded = load(tree.found(), controller_id=BrokerId(1))
    assert not loaded.unfinished
    assert not loaded.leftovers
    assert loaded.image.topics == expected.topics, "the image is not what is written"
    assert loaded.image.broker_configs == expected.broker_configs
    assert loaded.image.brokers.keys() == expected.brokers.keys()
    for broker_id, known in expected.brokers.items():
        assert loaded.image.brokers[broker_id].epoch == known.epoch, (
            f"I-17 {known} is not remembered"
        )
        if known.is_fenced:
            assert loaded.image.brokers[broker_id] == known


def check_outcome(found: ClusterImage, outcomes: Sequence[ClusterImage]) -> None:
    """Everything is as if the plan had been carried out, or not begun."""
    known = {topic.topic_id for one in outcomes for topic in one.topics.values()}
    always = set.intersection(*({*one.topics_by_id} for one in outcomes))
    assert always <= {*found.topics_by_id} <= known
    for topic_id, topic in found.topics_by_id.items():
        like = [one.topics_by_id[topic_id] for one in outcomes if topic_id in one.topics_by_id]
        assert topic.configs in [one.configs for one in like]
        assert len(topic.partitions) in [len(one.partitions) for one in like]
        for part in topic.partitions:
            old = [one.partitions[part.index] for one in like if part.index < len(one.partitions)]
            assert assignment(part) in [assignment(one) for one in old]
            if len(old) == len(outcomes):
                assert essence(part) in [essence(one) for one in old], f"no outcome: {part} {old}"


def assignment(one: PartitionImage) -> tuple[object, ...]:
    return one.replicas, one.adding, one.removing


def essence(one: PartitionImage) -> tuple[object, ...]:
    return *assignment(one), one.leader, set(one.isr), set(one.elr), set(one.lost)

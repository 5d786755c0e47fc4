"""Three brokers under random faults and elections from the in-sync replicas: nothing that was
acknowledged is lost, and in the end all replicas are the same (I-01, I-02, I-13, I-19, I-40).

Who decides here is the test itself: it takes whoever dies out of the in-sync replicas, and elects
one of them. A seed that fails is replayed by calling `run(N)`.
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from kits.replication.replica_kit import Cluster, ReplicaBroker
from kits.storage.log_stories import batch_of
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.replication.errors import NotLeader

SEEDS = [*range(1, 13), 166, 323]
STEPS = 60


class Chaos:
    """One run. `acked` are the values whose records count, by what the leader said."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(brokers=3, min_in_sync=self.random.choice([1, 2]), seed=seed)
        self.acked: set[bytes] = set()
        self.sent = 0
        self.epochs: set[tuple[int, int]] = set()

    def choose(self) -> Callable[[], object]:
        return self.random.choice(
            [self.produce] * 8
            + [self.kill, self.restart, self.restart, self.cut, self.heal, self.heal]
            + [self.move, self.tell, self.deafen]
        )

    async def run(self) -> None:
        for _ in range(STEPS):
            outcome = self.choose()()
            if asyncio.iscoroutine(outcome):
                await outcome
            await self.cluster.pass_time(self.random.choice([0.0, 0.003, 0.05, 1.0, 12.0]))
        await self.settle()

    # -- what happens

    def leader(self) -> ReplicaBroker | None:
        now = self.cluster.partition()
        broker = self.cluster.brokers.get(now.leader)
        return broker if broker is not None and broker.is_up else None

    def produce(self) -> None:
        """To whoever believes to lead: a deposed one, too."""
        broker = self.random.choice(list(self.cluster.brokers.values()))
        if not broker.is_up:
            return
        try:
            leader = broker.leader()
        except NotLeader:
            return
        self.epochs.add((leader.leader_epoch, broker.broker_id))
        for _ in range(self.random.randint(1, 4)):
            self.sent += 1
            value = b"%d" % self.sent
            leader.append(
                batch_of(value),
                acks=-1,
                done=lambda told, value=value: (
                    self.acked.add(value) if told.error is None else None  # type: ignore[misc]
                ),
            )
        broker.partitions.wake_readers()

    async def kill(self) -> None:
        """Its disk keeps what was written; somebody else must be left who is in sync."""
        victims = [one for one in self.cluster.up() if self.others_in_sync(one)]
        if victims:
            victim = self.random.choice(victims)
            await (victim.crash() if self.random.random() < 0.5 else victim.stop())
            self.take_out(victim)

    def others_in_sync(self, broker: ReplicaBroker) -> list[BrokerId]:
        up = {one.broker_id for one in self.cluster.up()} - {broker.broker_id}
        return [one for one in self.cluster.partition().isr if one in up]

    def take_out(self, broker: ReplicaBroker) -> None:
        now, left = self.cluster.partition(), self.others_in_sync(broker)
        isr = tuple(one for one in now.isr if one != broker.broker_id)
        if now.leader == broker.broker_id:
            self.elect(self.random.choice(left), isr)
        elif isr != now.isr:
            changed = now._replace(isr=isr, partition_epoch=now.partition_epoch + 1)
            self.cluster.put(0, changed, tell=self.some())

    def elect(self, leader: BrokerId, isr: tuple[BrokerId, ...]) -> None:
        now = self.cluster.partition()
        changed = now._replace(
            leader=leader,
            leader_epoch=LeaderEpoch(now.leader_epoch + 1),
            partition_epoch=now.partition_epoch + 1,
            isr=isr,
        )
        self.cluster.put(0, changed, tell=self.some())

    def some(self) -> list[ReplicaBroker]:
        """Who hears of it now; the others later."""
        return [one for one in self.cluster.up() if self.random.random() < 0.7]

    async def restart(self) -> None:
        down = [one for one in self.cluster.brokers.values() if not one.is_up]
        if down:
            await self.random.choice(down).start()

    def cut(self) -> None:
        one, other = self.random.sample(sorted(self.cluster.brokers), 2)
        network = self.cluster.world.network
        cut = self.random.choice([network.partition, network.cut])
        cut(f"broker-{one}", f"broker-{other}")

    def heal(self) -> None:
        self.cluster.world.network.heal_all()

    def move(self) -> None:
        """To another one in sync, or to the same one in a new epoch."""
        up = {one.broker_id for one in self.cluster.up()}
        choices = [one for one in self.cluster.partition().isr if one in up]
        if choices:
            self.elect(self.random.choice(choices), self.cluster.partition().isr)

    def tell(self) -> None:
        self.cluster.tell(self.cluster.up())

    def deafen(self) -> None:
        decider = self.cluster.decider
        decider.tells = self.random.random() < 0.5

    # -- what must be so

    async def settle(self) -> None:
        cluster = self.cluster
        cluster.world.network.heal_all()
        cluster.decider.tells = True
        for broker in cluster.brokers.values():
            if not broker.is_up:
                await broker.start()
        cluster.tell(cluster.up())
        await cluster.until(lambda: len(cluster.partition().isr) == 3, "I-40", within_s=200)
        cluster.tell(cluster.up())
        await cluster.until_equal()
        values = cluster[1].values()
        lost = self.acked - {one for one in values if one is not None}
        assert not lost, f"I-01: {sorted(lost)} of {len(self.acked)}"
        counts = [one.partitions.counts for one in cluster.up()]
        assert not any(one.unclean_truncations for one in counts), "I-08"


def run(seed: int) -> Chaos:
    chaos = Chaos(seed)
    chaos.cluster.play(lambda _: chaos.run())
    return chaos


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_was_acknowledged_is_lost(seed: int) -> None:
    assert run(seed).sent

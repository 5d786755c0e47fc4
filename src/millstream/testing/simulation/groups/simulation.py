"""Consumer groups of a simulated cluster from one seed: hundreds of members, and their faults.

The brokers are the real ones, with the faults of `simulation/cluster/faults.py`, so that
coordinators are killed, stopped, cut off, and come back as zombies. Members of all protocols join,
leave, are killed and are paused meanwhile. Their histories are checked in the end as those of
foreign clients are (`history/groups.py`): I-27, I-28, I-29. When the faults are over every group
must become stable in a fixed time (I-31), which it cannot while a dead member owns something
(I-30).
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

from millstream.rpc.connections import Address
from millstream.testing.history.groups import check_group, figures
from millstream.testing.protocol_members.member import KnownTopics, MemberSpec
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.broker.simulation import errors_are_failures
from millstream.testing.simulation.broker.watch import SimulationFailed
from millstream.testing.simulation.cluster.coverage import count_events
from millstream.testing.simulation.cluster.simulation import ClusterSimulation
from millstream.testing.simulation.groups.members import (
    KINDS,
    OFFSETS_TOPIC,
    SimGroup,
    SimMember,
    SimOffsetObserver,
    Source,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SECONDS_PER_STEP: Final = 0.1
TOPIC: Final = "work"
SESSION_MS: Final = 6_000
STABLE_S: Final = 60.0
"""After the last fault every group is stable within this: sessions of dead members expire,
coordinators load, members come back and rebalance, maybe more than once."""
CPU_S_MAX: Final = 8.0
TOO_SLOW: Final = "seeds of too much CPU"
ANOMALIES_SHOWN_MAX: Final = 8

SETTINGS: Final = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "3",
    "offsets.commit.timeout.ms": "2000",
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "min.insync.replicas": "2",
}


IN_TWENTY_SEEDS: Final = {
    "elections": 100,
    "members killed": 20,
    "members paused": 20,
    "leaves": 20,
    "commits": 500,
    "commits refused": 20,
    "generations": 100,
    "reads of committed offsets": 1_000,
}
"""What so many seeds must meet together: a simulation must not silently test nothing."""
SEEDS_TO_MEET_ALL: Final = 20


def missing_events(counts: Mapping[str, int], seeds: int) -> list[str]:
    """Events that so many seeds met too seldom, with their counts."""
    if seeds < SEEDS_TO_MEET_ALL:
        return []
    return [
        f"{name} ({counts.get(name, 0)} of {least})"
        for name, least in IN_TWENTY_SEEDS.items()
        if counts.get(name, 0) < least
    ]


def simulate_groups(seed: int, *, steps: int) -> Counter[str]:
    """Run one seed; raises at the first invariant that is violated."""
    started_s = time.process_time()
    counts = run_groups(seed, steps=steps)
    counts[TOO_SLOW] += time.process_time() - started_s > CPU_S_MAX
    return counts


def run_groups(
    seed: int, *, steps: int, sizes: tuple[int, ...] = (), with_faults: bool = True
) -> Counter[str]:
    """As `simulate_groups`; `sizes` is the number of members of each kind of group.

    Without faults of the brokers, except for one coordinator that is killed, no live member may be
    fenced.
    """
    simulation = GroupSimulation(
        seed, duration_s=steps * SECONDS_PER_STEP, sizes=sizes, calm=not with_faults
    )
    with errors_are_failures(), count_events(simulation.scene.counts):
        try:
            simulation.scene.world.run(simulation.run)
        finally:
            gc.unfreeze()
    return simulation.scene.counts


class GroupSimulation(ClusterSimulation):
    """The run of one seed."""

    def __init__(
        self, seed: int, *, duration_s: float, sizes: tuple[int, ...] = (), calm: bool = False
    ) -> None:
        super().__init__(seed, duration_s=duration_s, broker_count=3, settings=SETTINGS)
        self._chance = self.scene.randomness.fork("groups")
        self._is_calm = calm
        self._sizes = sizes or tuple(self._chance.integer(1, 8) for _ in KINDS)
        self._source = Source(self.scene.now_s)
        self._known = KnownTopics(partitions={}, names={})
        self.groups: list[SimGroup] = []
        self._leaving: list[SimMember] = []

    async def run(self) -> None:
        await self.begin()
        await self._make_topic()
        for kind, size in zip(KINDS, self._sizes, strict=True):
            group = SimGroup(f"group-{kind}", kind, self._known, self._source)
            self.groups.append(group)
            for _ in range(size):
                self._join(group)
        observer = SimOffsetObserver(self.scene, self._chance.fork("onlooker"), self.groups)
        observer.start()
        await self._disturb()
        await self._wait_until_stable()
        observer.is_finished = True
        self._check()
        await self._end()
        await self.stop_all()

    async def _make_topic(self) -> None:
        admin, partitions = self._admin, max(4, max(self._sizes) + 2)
        self.scene.promised |= {TOPIC, OFFSETS_TOPIC}
        making = admin.create(
            TOPIC, partitions=partitions, factor=3, configs={"min.insync.replicas": "2"}
        )
        await admin.process.spawn(making, "topic")
        self._known.partitions[TOPIC] = partitions

        async def fetch_topic_id() -> None:
            host = next(iter(self.scene.broker_hosts.values()))
            connection = await admin._connections.get(Address(host, PORT))  # noqa: SLF001
            wanted = [MetadataRequestTopic(name=TOPIC)]
            answer = await connection.send(MetadataRequest(topics=wanted))
            self._known.names[answer.topics[0].topic_id] = TOPIC

        await admin.process.spawn(fetch_topic_id(), "topic's id")

    def _join(self, group: SimGroup) -> None:
        spec = MemberSpec(group=group.name, topics=(TOPIC,), session_ms=SESSION_MS)
        randomness = self._chance.fork(f"{group.name} {group.lives}")
        member = SimMember(group, self.scene, randomness, spec)
        group.members[member.name] = member
        member.start()
        self.scene.counts["joins"] += 1

    # -- faults ----------------------------------------------------------------------------

    async def _disturb(self) -> None:
        scene, chance = self.scene, self._chance
        self.faults.client_hosts = [name for group in self.groups for name in group.members]
        faulty = self._one_failover() if self._is_calm else None
        faults = scene.spawn(faulty or self.faults.run(duration_s=self._duration_s), "faults")
        until_s = scene.now_s() + self._duration_s
        while scene.now_s() < until_s:
            await asyncio.sleep(chance.between(0.2, 2.0))
            chance.choice([self._one_joins, self._one_leaves, self._one_dies, self._one_stops])()
        await faults
        await self.faults.heal()
        await self.wait_until_well()

    async def _one_failover(self) -> None:
        """In the middle of the run, of the broker that coordinates most groups; it comes back."""
        await asyncio.sleep(self._duration_s / 2)
        led = Counter(
            one.leader
            for key, one in self.scene.committed.partitions.items()
            if key.topic == OFFSETS_TOPIC
        )
        (victim, _), *_ = led.most_common(1)
        self.brokers[victim].kill()
        self.scene.counts["coordinators killed"] += 1
        await asyncio.sleep(self._duration_s / 4)
        self.brokers[victim].begin()

    def _some_member(self) -> SimMember | None:
        group = self._chance.choice(self.groups)
        able = [one for one in group.members.values() if not one.is_paused]
        # One stays: a group of dead members proves nothing.
        return self._chance.choice(able) if len(able) > 1 else None

    def _one_joins(self) -> None:
        group = self._chance.choice(self.groups)
        if len(group.members) < len(group.partitions):
            self._join(group)

    def _one_leaves(self) -> None:
        if (member := self._some_member()) is not None:
            self._leaving.append(member)
            member.leave()
            self.scene.counts["leaves"] += 1

    def _one_dies(self) -> None:
        if (member := self._some_member()) is not None:
            member.kill()
            self.scene.counts["members killed"] += 1

    def _one_stops(self) -> None:
        """As SIGSTOP does, at once or at the worst time: just before a commit."""
        if (member := self._some_member()) is None or member.before_commit is not None:
            return
        if self._chance.chance(0.5):
            self._stop(member)
        else:
            member.before_commit = lambda: self._stop(member)

    def _stop(self, member: SimMember) -> None:
        """When it goes on it does not know that time has passed."""
        if member.name not in member.group.members or self._source.is_stopped:
            return
        member.is_paused = True
        member.harm("paused")
        self.scene.pauses.pause(member.name, member.process)
        length_s = self._chance.between(1.0, 2.5 * SESSION_MS / 1000)
        self.scene.counts["members paused"] += 1

        def go_on() -> None:
            member.is_paused = False
            self.scene.pauses.resume(member.name)

        self.scene.world.loop.call_later(length_s, go_on)

    # -- the end ---------------------------------------------------------------------------

    async def _wait_until_stable(self) -> None:
        scene = self.scene
        self._source.stop()
        deadline_s = scene.now_s() + STABLE_S
        while reasons := [why for group in self.groups if (why := group.why_not_stable())]:
            if scene.now_s() > deadline_s:
                raise SimulationFailed(f"I-31 not stable after {STABLE_S:.0f} s: {reasons}")
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)  # the last commits, and a read of them

    def _check(self) -> None:
        now_ns = round(self.scene.now_s() * 1e9)
        for group in self.groups:
            group.produce_all(now_ns)
            found = check_group(group.history)
            if found:
                lines = [f"{one.kind}: {one.text[:400]}" for one in found[:ANOMALIES_SHOWN_MAX]]
                head = f"{group.name}: {len(found)} anomalies"
                raise SimulationFailed("\n".join([head, *lines]))
            for name, count in figures(group.history).items():
                self.scene.counts[name] += count

    async def _end(self) -> None:
        """All members leave, so that no connection is open when brokers stop."""
        for group in self.groups:
            for member in list(group.members.values()):
                member.leave()
                self._leaving.append(member)
        await self.scene.until(
            lambda: all(one.is_finished for one in self._leaving),
            "members did not leave",
            limit_s=STABLE_S,
        )

"""Faults of a cluster: kills, pauses, stops, network cuts, lost coordination, dropped page cache.

Every action waits for its expected effect (leaders on other brokers, progress in spite of it), ends
its own fault, and returns the view from the middle of it: whether a leader or the controller
changed is visible there, because afterwards the old one may be back.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.cluster.growth import Growth
from millstream.testing.chaos.cluster.processes import BrokerProcess
from millstream.testing.chaos.cluster.scene import SESSION_S, ClusterScene
from millstream.testing.chaos.cluster.view import NO_BROKER, ClusterView
from millstream.testing.chaos.cluster.zombies import Zombie
from millstream.testing.chaos.network.world import Node

CUT_BOTH, CUT_OUTGOING, CUT_INCOMING = "both ways", "outgoing", "incoming"
CUT_DIRECTIONS: Final = (CUT_BOTH, CUT_OUTGOING, CUT_INCOMING)
OUTAGE_S: Final = 60.0
"""Outage of a whole ensemble; ten sessions long."""
KEEPER_OUTAGE_S: Final = 2 * SESSION_S
POLL_INTERVAL_S: Final = 0.25
LATE_READERS: Final = 3
LATE_ROUNDS: Final = 2

Action = Callable[["Actions"], ClusterView]


class Actions:
    """Faults that can be injected into one victim of the scene."""

    def __init__(self, scene: ClusterScene, chance: SeededRandomness) -> None:
        self._scene = scene
        self._chance = chance
        self._victim = NO_BROKER
        self._before = ClusterView()
        self.counts: Counter[str] = Counter()
        self.leaderless_s: list[float] = []
        """For each fault of a leader: the time until other brokers led its partitions."""

    def run(self, name: str, victim: int, before: ClusterView) -> ClusterView:
        """Run the action of that name; return the cluster's view from the middle of it."""
        self._victim, self._before = victim, before
        return ACTIONS[name](self)

    @property
    def _broker(self) -> BrokerProcess:
        return self._scene.brokers[self._victim]

    # -- processes -------------------------------------------------------------------------

    def kill(self) -> ClusterView:
        """Kill it, and start it again when others have taken over."""
        self._broker.kill()
        seen = self._wait_moved()
        self._broker.start()
        return seen

    def kill_and_start(self) -> ClusterView:
        """Start it again before its session ends, without proof that it lost nothing (trap 15)."""
        broker = self._broker
        broker.kill()
        broker.start()
        return self._first_change(SESSION_S)

    def kill_twice(self) -> ClusterView:
        """Kill it, and kill it again at a random moment of its start."""
        broker = self._broker
        broker.kill()
        broker.spawn()
        self._hold(self._chance.between(0, 1.0))
        broker.kill()
        seen = self._wait_moved()
        broker.start()
        return seen

    def kill_all(self) -> ClusterView:
        """Kill every replica at once; the victim is the last to start again."""
        others = [one for one in self._scene.brokers.values() if one.broker_id != self._victim]
        last = self._broker
        for broker in (*others, last):
            broker.kill()
        for broker in others:
            broker.spawn()
        self._hold(self._chance.between(0, 2.0))
        last.spawn()
        for broker in (*others, last):
            broker.wait_ready()
        return self._scene.wait_healthy()

    def stop(self) -> ClusterView:
        """Stop it in order: it hands over first, so there is nearly no time without a leader."""
        self._broker.stop()
        seen = self._wait_moved()
        self._broker.start()
        return seen

    def roll(self) -> ClusterView:
        """Stop and start all brokers in turn, the victim first; each waits for the last."""
        seen = self._before
        for broker_id in [
            self._victim,
            *(one for one in self._scene.brokers if one != self._victim),
        ]:
            now = self._scene.wait_healthy()
            self._scene.brokers[broker_id].stop()
            moved, _ = self._scene.wait_moved(now, broker_id)
            seen = moved if moved.differs_from(self._before) else seen
            self._scene.brokers[broker_id].start()
        return seen

    def pause(self) -> ClusterView:
        """Pause it past its session; when it wakes, a write to the old leader is waiting."""
        broker = self._broker
        zombie = Zombie(self._scene, broker)
        zombie.connect(self._before.led_by(self._victim))
        broker.pause()
        seen = self._wait_moved()
        zombie.write()
        broker.wake()
        self._collect(zombie)
        return seen

    def pause_shortly(self) -> ClusterView:
        """Pause it as a long garbage collection does; its session survives."""
        broker = self._broker
        broker.pause()
        self._hold(self._chance.between(0.2, SESSION_S / 2))
        broker.wake()
        return self._scene.view()

    # -- the network -----------------------------------------------------------------------

    def cut_from_coordination(self) -> ClusterView:
        """Let its session expire while its clients and its peers still reach it."""
        members = [one.node for one in self._scene.coordination.members]
        self._cut(members, self._chance.choice(CUT_DIRECTIONS))
        return self._check_failover()

    def cut_from_peers(self) -> ClusterView:
        """Its session lives, so it keeps its leaderships, which stall; the others make progress."""
        peers = [one.node for one in self._scene.up(but=self._victim)]
        zombie = Zombie(self._scene, self._broker)
        zombie.connect(self._before.led_by(self._victim))
        self._cut(peers, self._chance.choice(CUT_DIRECTIONS))
        zombie.write()
        # A controller that is cut off gets no requests to shrink in-sync sets.
        if self._before.controller != self._victim:
            led = set(self._before.led_by(self._victim))
            rest = [one for one in self._before.partitions if one not in led]
            self._scene.load.wait_for(3, "by leaders that are not cut off", partitions=rest)
        self._hold(self._chance.between(0, SESSION_S))
        seen = self._scene.view(but=self._victim)
        self._scene.world.heal()
        self._collect(zombie)
        return seen

    def isolate(self) -> ClusterView:
        """Cut it from all but the observer; at random, clients still reach it and nothing else."""
        world = self._scene.world
        spared = {self._scene.observer}
        if self._chance.chance(0.5):
            spared.add(self._scene.client)
        self._cut([node for node in world.nodes if node not in spared], CUT_BOTH)
        return self._check_failover()

    def _check_failover(self) -> ClusterView:
        """Wait until others serve what it led; then write to the old leader, and heal the cut."""
        led = self._before.led_by(self._victim)
        early, late = (Zombie(self._scene, self._broker) for _ in range(2))
        early.connect(led)
        late.connect(led)
        early.write()
        seen = self._wait_moved()
        self._scene.load.wait_for(3, "by the new leaders (I-41)", partitions=led)
        late.write()
        self._hold(self._chance.between(0, 2.0))
        self._scene.world.heal()
        self._collect(early)
        self._collect(late)
        return seen

    def _cut(self, others: Sequence[Node], way: str) -> None:
        world, node = self._scene.world, self._broker.node
        self.counts[f"cuts: {way}"] += 1
        for other in others:
            if other is not node and way != CUT_INCOMING:
                world.cut(node, other)
            if other is not node and way != CUT_OUTGOING:
                world.cut(other, node)

    # -- coordination ----------------------------------------------------------------------

    def kill_coordination_member(self) -> ClusterView:
        """Restart the keeper, or one server of an ensemble; no client may notice."""
        member = self._chance.choice(self._scene.coordination.members)
        member.kill()
        self._scene.load.wait_for(3, "while a coordination server is down")
        member.start()
        return self._scene.view()

    def take_coordination_away(self) -> ClusterView:
        """Stop all of it for longer than a session: leaders must continue to serve."""
        coordination = self._scene.coordination
        away_s = OUTAGE_S if len(coordination.members) > 1 else KEEPER_OUTAGE_S
        back_s = time.monotonic() + away_s
        coordination.kill()
        while time.monotonic() < back_s:
            self._scene.load.wait_for(3, "without coordination (I-18)")
            self._hold(min(1.0, max(0.0, back_s - time.monotonic())))
        coordination.start()
        return self._scene.view()

    # -- memory ----------------------------------------------------------------------------

    def forget_pages(self) -> ClusterView:
        """Reads must come from the disk, chunk by chunk, while answers to other requests of
        the same connections wait behind it.
        """
        for _ in range(LATE_ROUNDS):
            self._scene.load.read_late(LATE_READERS, self._drop_pages)
        self.counts["late readers"] += LATE_ROUNDS * LATE_READERS
        return self._scene.view()

    def _drop_pages(self) -> None:
        self._scene.check_alive()
        topic = self._scene.load.topic
        for broker in self._scene.brokers.values():
            self.counts["bytes dropped from memory"] += broker.drop_pages(topic, self._chance)

    # -- membership ------------------------------------------------------------------------

    def grow_and_shrink(self) -> ClusterView:
        """Replace the victim by a new broker; no client may get an error."""
        Growth(self._scene).grow_and_shrink(self._victim)
        return self._scene.view()

    # -- parts -----------------------------------------------------------------------------

    def _wait_moved(self) -> ClusterView:
        seen, after_s = self._scene.wait_moved(self._before, self._victim)
        if self._before.led_by(self._victim):
            self.leaderless_s.append(after_s)
        return seen

    def _first_change(self, limit_s: float) -> ClusterView:
        """The first view that differs from the one before, or the last one within the limit."""
        end_s = time.monotonic() + limit_s
        while not (seen := self._scene.view()).differs_from(self._before):
            if time.monotonic() > end_s:
                break
            self._hold(POLL_INTERVAL_S)
        return seen

    def _collect(self, zombie: Zombie) -> None:
        acknowledged, refused = zombie.collect()
        self.counts["writes to old leaders, not acknowledged"] += refused
        self.counts["writes to old leaders, acknowledged and kept"] += acknowledged

    def _hold(self, length_s: float) -> None:
        """Keep the fault for this long: its duration, not a guess at when something is done."""
        end_s = time.monotonic() + length_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._scene.check_alive()
            self._scene.load.take()
            time.sleep(min(left_s, POLL_INTERVAL_S))


ACTIONS: Final[Mapping[str, Action]] = {
    "kill": Actions.kill,
    "kill and start at once": Actions.kill_and_start,
    "kill twice": Actions.kill_twice,
    "kill all": Actions.kill_all,
    "stop": Actions.stop,
    "roll": Actions.roll,
    "pause past the session": Actions.pause,
    "pause shortly": Actions.pause_shortly,
    "cut from coordination": Actions.cut_from_coordination,
    "cut from peers": Actions.cut_from_peers,
    "isolate": Actions.isolate,
    "kill a coordination server": Actions.kill_coordination_member,
    "take coordination away": Actions.take_coordination_away,
    "forget pages": Actions.forget_pages,
    "grow and shrink": Actions.grow_and_shrink,
}
WEIGHTS: Final[Mapping[str, int]] = {
    **dict.fromkeys(ACTIONS, 3),
    "kill": 10,
    "kill twice": 5,
    "pause past the session": 6,
    "stop": 5,
    "cut from coordination": 5,
    "isolate": 5,
    "roll": 1,
    "pause shortly": 1,
    "kill all": 2,
    "take coordination away": 1,
    "grow and shrink": 1,
}
"""Mostly those that move leaders; those that take long are rare."""

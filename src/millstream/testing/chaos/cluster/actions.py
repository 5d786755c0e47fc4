"""What happens to a cluster: kills, pauses, stops, cuts, coordination and memory that go away.

Every action waits for what must come of it (leaders elsewhere, progress in spite of it), ends its
own fault, and gives the view from the middle of it: whether a leader or the controller changed is
seen there, because afterwards the old one may be back.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.cluster.growth import Growth
from millstream.testing.chaos.cluster.processes import BrokerProcess
from millstream.testing.chaos.cluster.scene import SESSION_S, ClusterScene
from millstream.testing.chaos.cluster.view import NOBODY, ClusterView
from millstream.testing.chaos.cluster.zombies import Zombie
from millstream.testing.chaos.network.world import Node

WAY_BOTH, WAY_OUT, WAY_IN = "both ways", "nobody hears it", "it hears nobody"
WAYS: Final = (WAY_BOTH, WAY_OUT, WAY_IN)
AWAY_S: Final = 60.0
"""Of a whole ensemble; ten sessions long."""
KEEPER_AWAY_S: Final = 2 * SESSION_S
LOOK_S: Final = 0.25
LATE_READERS: Final = 3
LATE_TURNS: Final = 2

Action = Callable[["Actions"], ClusterView]


class Actions:
    """Things that can be done to one victim of the scene."""

    def __init__(self, scene: ClusterScene, chance: SeededRandomness) -> None:
        self._scene = scene
        self._chance = chance
        self._victim = NOBODY
        self._before = ClusterView()
        self.counts: Counter[str] = Counter()
        self.leaderless_s: list[float] = []
        """For each fault that took leaders away: until others led."""

    def run(self, name: str, victim: int, before: ClusterView) -> ClusterView:
        """The action of that name; what the cluster said in the middle of it."""
        self._victim, self._before = victim, before
        return ACTIONS[name](self)

    @property
    def _broker(self) -> BrokerProcess:
        return self._scene.brokers[self._victim]

    # -- processes -------------------------------------------------------------------------

    def kill(self) -> ClusterView:
        """And it comes back when others have taken over."""
        self._broker.kill()
        seen = self._moved()
        self._broker.start()
        return seen

    def kill_and_start(self) -> ClusterView:
        """It is back before its session ends, without proof that it lost nothing (trap 15)."""
        broker = self._broker
        broker.kill()
        broker.start()
        return self._first_change(SESSION_S)

    def kill_twice(self) -> ClusterView:
        """The second time somewhere in its start."""
        broker = self._broker
        broker.kill()
        broker.spawn()
        self._hold(self._chance.between(0, 1.0))
        broker.kill()
        seen = self._moved()
        broker.start()
        return seen

    def kill_all(self) -> ClusterView:
        """Every replica at once; the victim is the last to come back."""
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
        return self._scene.wait_whole()

    def stop(self) -> ClusterView:
        """It hands over first, so there is nearly no time without a leader."""
        self._broker.stop()
        seen = self._moved()
        self._broker.start()
        return seen

    def roll(self) -> ClusterView:
        """All of them stopped and started in turn, the victim first; each waits for the last."""
        seen = self._before
        for broker_id in [
            self._victim,
            *(one for one in self._scene.brokers if one != self._victim),
        ]:
            now = self._scene.wait_whole()
            self._scene.brokers[broker_id].stop()
            moved, _ = self._scene.wait_moved(now, broker_id)
            seen = moved if moved.differs_from(self._before) else seen
            self._scene.brokers[broker_id].start()
        return seen

    def pause(self) -> ClusterView:
        """Past its session; the first thing it finds when it wakes is a write to the old leader."""
        broker = self._broker
        zombie = Zombie(self._scene, broker)
        zombie.connect(self._before.led_by(self._victim))
        broker.pause()
        seen = self._moved()
        zombie.write()
        broker.wake()
        self._listen(zombie)
        return seen

    def pause_shortly(self) -> ClusterView:
        """As a long collection of garbage does; its session outlives it."""
        broker = self._broker
        broker.pause()
        self._hold(self._chance.between(0.2, SESSION_S / 2))
        broker.wake()
        return self._scene.view()

    # -- the network -----------------------------------------------------------------------

    def cut_from_coordination(self) -> ClusterView:
        """Its session ends while its clients and its peers still reach it."""
        members = [one.node for one in self._scene.coordination.members]
        self._cut(members, self._chance.choice(WAYS))
        return self._served_by_others()

    def cut_from_peers(self) -> ClusterView:
        """Its session lives, so what it leads stays its own, and stands still; the rest goes on."""
        peers = [one.node for one in self._scene.up(but=self._victim)]
        zombie = Zombie(self._scene, self._broker)
        zombie.connect(self._before.led_by(self._victim))
        self._cut(peers, self._chance.choice(WAYS))
        zombie.write()
        # A controller that is cut off cannot be told of followers to take out.
        if self._before.controller != self._victim:
            led = set(self._before.led_by(self._victim))
            rest = [one for one in self._before.partitions if one not in led]
            self._scene.load.wait_for(3, "by leaders that are not cut off", partitions=rest)
        self._hold(self._chance.between(0, SESSION_S))
        seen = self._scene.view(but=self._victim)
        self._scene.world.heal()
        self._listen(zombie)
        return seen

    def isolate(self) -> ClusterView:
        """From everything but the eye; by chance the clients still reach it and nothing else."""
        world = self._scene.world
        spared = {self._scene.eye}
        if self._chance.chance(0.5):
            spared.add(self._scene.client)
        self._cut([node for node in world.nodes if node not in spared], WAY_BOTH)
        return self._served_by_others()

    def _served_by_others(self) -> ClusterView:
        """Until what it led is served elsewhere; then the old leader is written to, and healed."""
        led = self._before.led_by(self._victim)
        early, late = (Zombie(self._scene, self._broker) for _ in range(2))
        early.connect(led)
        late.connect(led)
        early.write()
        seen = self._moved()
        self._scene.load.wait_for(3, "by the new leaders (I-41)", partitions=led)
        late.write()
        self._hold(self._chance.between(0, 2.0))
        self._scene.world.heal()
        self._listen(early)
        self._listen(late)
        return seen

    def _cut(self, others: Sequence[Node], way: str) -> None:
        world, node = self._scene.world, self._broker.node
        self.counts[f"cuts: {way}"] += 1
        for other in others:
            if other is not node and way != WAY_IN:
                world.cut(node, other)
            if other is not node and way != WAY_OUT:
                world.cut(other, node)

    # -- coordination ----------------------------------------------------------------------

    def kill_coordination_member(self) -> ClusterView:
        """The keeper, or one server of an ensemble, and it comes back; nobody may notice."""
        member = self._chance.choice(self._scene.coordination.members)
        member.kill()
        self._scene.load.wait_for(3, "while a coordination server is away")
        member.start()
        return self._scene.view()

    def take_coordination_away(self) -> ClusterView:
        """All of it, for longer than sessions live: what is led goes on being served."""
        coordination = self._scene.coordination
        away_s = AWAY_S if len(coordination.members) > 1 else KEEPER_AWAY_S
        back_s = time.monotonic() + away_s
        coordination.kill()
        while time.monotonic() < back_s:
            self._scene.load.wait_for(3, "without coordination (I-18)")
            self._hold(min(1.0, max(0.0, back_s - time.monotonic())))
        coordination.start()
        return self._scene.view()

    # -- memory ----------------------------------------------------------------------------

    def forget_pages(self) -> ClusterView:
        """What is read must come from the disk, piece by piece, while answers to other requests of
        the same connections wait behind it.
        """
        for _ in range(LATE_TURNS):
            self._scene.load.read_late(LATE_READERS, self._drop_pages)
        self.counts["late readers"] += LATE_TURNS * LATE_READERS
        return self._scene.view()

    def _drop_pages(self) -> None:
        self._scene.check_alive()
        topic = self._scene.load.topic
        for broker in self._scene.brokers.values():
            self.counts["bytes dropped from memory"] += broker.drop_pages(topic, self._chance)

    # -- who is in it ----------------------------------------------------------------------

    def grow_and_shrink(self) -> ClusterView:
        """A new broker takes the victim's place, and no client hears of it."""
        Growth(self._scene).grow_and_shrink(self._victim)
        return self._scene.view()

    # -- parts -----------------------------------------------------------------------------

    def _moved(self) -> ClusterView:
        seen, after_s = self._scene.wait_moved(self._before, self._victim)
        if self._before.led_by(self._victim):
            self.leaderless_s.append(after_s)
        return seen

    def _first_change(self, limit_s: float) -> ClusterView:
        """The first view that differs, or the last one within the limit."""
        end_s = time.monotonic() + limit_s
        while not (seen := self._scene.view()).differs_from(self._before):
            if time.monotonic() > end_s:
                break
            self._hold(LOOK_S)
        return seen

    def _listen(self, zombie: Zombie) -> None:
        acknowledged, refused = zombie.listen()
        self.counts["writes to old leaders, not acknowledged"] += refused
        self.counts["writes to old leaders, acknowledged and kept"] += acknowledged

    def _hold(self, length_s: float) -> None:
        """The fault lasts so long: its length, not a guess at when something is done."""
        end_s = time.monotonic() + length_s
        while (left_s := end_s - time.monotonic()) > 0:
            self._scene.check_alive()
            self._scene.load.take()
            time.sleep(min(left_s, LOOK_S))


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
"""Mostly those that move leaders; some only once in a while because they take long."""

"""Consumer groups of foreign clients under chaos, for any number of rounds.

The long form of the interop story: every round a fault hits a member, a program of members, a
coordinator or a topic, and then all groups must become stable again by themselves. An *era* of
rounds ends when everything is read; then what the members recorded is checked
(`history/groups.py`), and new groups of other members begin.
"""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.cluster.scene import MillstreamProcesses, ProcessFactory
from millstream.testing.chaos.groups.members import SESSION_MS, Group, Member
from millstream.testing.chaos.groups.programs import (
    CLIENTS,
    CONSUMER,
    COOPERATIVE,
    EAGER,
    MemberKind,
    Program,
)
from millstream.testing.chaos.groups.scene import GROUP_SETTINGS, GroupScene
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.peers.client_programs import RUNTIMES

SOURCES: Final = Path("tests/interop/clients")
CACHE: Final = Path("build/peers")
"""Relative to the directory where `make` runs."""
ERA_ROUNDS: Final = 10
SLOTS: Final = ("a", "b", "c")
MEMBERS_MAX: Final = 5
"""Members of one group: they share two cores with everything else."""
PARTITIONS_MAX: Final = 12
PAUSE_S: Final = 1.5 * SESSION_MS / 1000
KAFKAJS: Final = "kafkajs"
SLOW_TO_LEAVE: Final = (KAFKAJS, "kafka-python")
"""Clients that stay longer than their session with a coordinator that does not answer."""


class GroupChaos:
    """Rounds on one cluster; `close` ends it."""

    def __init__(
        self,
        directory: str,
        seed: int,
        *,
        is_ensemble: bool = False,
        only: str = "",
        factory: ProcessFactory | None = None,
        sources: Path = SOURCES,
        cache: Path = CACHE,
    ) -> None:
        if not (sources / "README.md").exists():
            raise ChaosFailed(f"no client programs in {sources}: run it next to the Makefile")
        self._names = [one for one in ACTIONS if only in one for _ in range(WEIGHTS.get(one, 2))]
        if not self._names:
            raise ChaosFailed(f"no action has {only!r} in its name: {', '.join(ACTIONS)}")
        self._chance = SeededRandomness(f"group chaos {seed}")
        made = factory or MillstreamProcesses(is_ensemble=is_ensemble, settings=GROUP_SETTINGS)
        self.scene: Final = GroupScene(
            Path(directory).absolute(), made, sources=sources.absolute(), cache=cache.absolute()
        )
        self._clients = [one for one in CLIENTS if _is_available(one)]
        self._is_started = False
        self._round = self._era = self._era_rounds = 0
        self._own: Counter[str] = Counter()
        self._stable_after_s: list[float] = []

    @property
    def counts(self) -> Counter[str]:
        """Counters, and times in milliseconds."""
        found = Counter(self._own)
        if self._stable_after_s:
            found["ms to stable groups, longest"] = int(max(self._stable_after_s) * 1000)
        return found

    def run_round(self) -> str:
        """Inject a fault, and wait until the groups are stable. Raises ChaosFailed."""
        return self.act(self._chance.choice(self._names))

    def act(self, name: str) -> str:
        """One round with the action of that name."""
        self._begin()
        self._round += 1
        self._era_rounds += 1
        began_s = time.monotonic()
        ACTIONS[name](self)
        self.wait_stable(f"after: {name}")
        self.scene.check()
        self._own[name] += 1
        if self._era_rounds >= ERA_ROUNDS:
            self.check()
        members = sum(len(group.members) for group in self.scene.groups.values())
        return f"round {self._round}: {name}, {members} members, {time.monotonic() - began_s:.0f} s"

    def check(self) -> None:
        """End the era: everything is read, and there is no anomaly."""
        if not self._era_rounds:
            return
        for figures in self.scene.finish().values():
            self._own.update(figures)
        self._own["eras"] += 1
        self._era_rounds = 0
        self.scene.start_producer()
        self._begin_era()

    def close(self) -> None:
        self.scene.close()

    # -- eras ------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._is_started:
            self._is_started = True
            self.scene.start()
            self._begin_era()

    def _begin_era(self) -> None:
        self._era += 1
        scene = self.scene
        for topic in ("list", "match-1"):
            scene.add_topic(f"era-{self._era}-{topic}", self._chance.integer(4, 6))
        pattern = f"^era-{self._era}-match-.*"
        named = [f"era-{self._era}-list"]
        kinds = [EAGER, COOPERATIVE, CONSUMER] + ([KAFKAJS] if KAFKAJS in self._clients else [])
        for kind in kinds:
            by_pattern = kind != KAFKAJS and self._chance.chance(0.5)
            group = scene.add_group(
                f"era-{self._era}-{kind}",
                topics=[] if by_pattern else named,
                pattern=pattern if by_pattern else None,
            )
            for _ in range(self._chance.integer(2, 3)):
                self._join(group)
        self.wait_stable("at the start")

    def _join(self, group: Group) -> Member:
        protocol = group.name.split("-", 2)[2]
        if protocol == KAFKAJS:
            kind = MemberKind(KAFKAJS, EAGER)
        else:
            able = [one for one in self._clients if protocol in CLIENTS[one].protocols]
            kind = MemberKind(
                self._chance.choice([one for one in able if one != KAFKAJS]), protocol
            )
        program = self.scene.program(kind.client, self._chance.choice(SLOTS))
        self._own["joins"] += 1
        return group.join(kind, program, self.scene.servers)

    def wait_stable(self, what: str, *, is_shared: bool = True) -> None:
        self._stable_after_s.append(self.scene.wait_stable(what, is_shared=is_shared))

    # -- members ---------------------------------------------------------------------------

    def some_group(self) -> Group:
        return self._chance.choice(list(self.scene.groups.values()))

    def _some_member(self, *, least: int = 2) -> tuple[Group, Member] | None:
        able = [one for one in self.scene.groups.values() if len(one.members) >= least]
        if not able:
            return None
        group = self._chance.choice(able)
        return group, self._chance.choice(list(group.members.values()))

    def member_joins(self) -> None:
        group = self.some_group()
        if len(group.members) < MEMBERS_MAX:
            self._join(group)

    def member_leaves(self) -> None:
        if (found := self._some_member()) is not None:
            group, member = found
            group.leave(member)

    def member_stalls(self) -> None:
        found = self._some_member()
        if found is None or not CLIENTS[found[1].kind.client].leaves_when_stalled:
            self.member_joins()
            return
        group, member = found
        group.stall(member, time.monotonic_ns())
        self.wait_stable("without the stalled one", is_shared=False)
        group.wake(member)

    def program_is_killed(self) -> None:
        """Its members are replaced in other programs, each in its group."""
        program = self._some_program()
        hosted = [group for group, _ in self.scene.members_of(program)]
        self.scene.kill_program(program)
        for group in hosted:
            if not group.members or self._chance.chance(0.7):
                self._join(group)

    def program_is_paused(self) -> None:
        """Pause past the session: when it wakes, the groups have continued without it."""
        program = self._some_program()
        hosted, now_ns = self.scene.members_of(program), time.monotonic_ns()
        for group, member in hosted:
            group.record_harm(member, now_ns, "paused")
            member.is_stalled = True
            if all(one.is_stalled for one in group.members.values()):
                self._join_other_program(group, program)
        program.pause()
        self._hold(PAUSE_S)
        self.wait_stable("without the paused one", is_shared=False)
        program.wake()
        for _, member in hosted:
            member.is_stalled = False

    def _join_other_program(self, group: Group, program: Program) -> None:
        while self._join(group).program is program:
            group.leave(list(group.members.values())[-1])

    def _some_program(self) -> Program:
        able = [one for one in self.scene.programs.values() if one.is_up]
        able = [one for one in able if self.scene.members_of(one)]
        return self._chance.choice(able)

    # -- coordinators ----------------------------------------------------------------------

    def coordinator_is_killed(self) -> None:
        self._disturb_group()
        broker = self.scene.brokers[self.scene.coordinator(self.some_group())]
        broker.kill()
        self.wait_stable("with another coordinator")
        broker.start()

    def coordinator_is_stopped(self) -> None:
        broker = self.scene.brokers[self.scene.coordinator(self.some_group())]
        broker.stop()
        self.wait_stable("with another coordinator")
        broker.start()

    def coordinator_is_paused(self) -> None:
        """Pause past its session; it wakes and still believes that it is the coordinator.

        Groups that stay with it become stable after it wakes.
        """
        scene = self.scene
        broker = scene.brokers[scene.coordinator(self.some_group())]
        broker.pause()
        stuck = self._mark_stuck()
        self._hold(PAUSE_S)
        others = [one for one in scene.groups.values() if one not in stuck]
        self._stable_after_s.append(scene.wait_stable("with another coordinator", others))
        broker.wake()

    def coordinator_is_cut_off(self) -> None:
        """Cut it from all nodes but the observer."""
        scene = self.scene
        broker = scene.brokers[scene.coordinator(self.some_group())]
        for node in scene.world.nodes:
            if node is not broker.node and node is not scene.observer:
                scene.world.cut_both(broker.node, node)
        self._mark_stuck()
        self._hold(2 * PAUSE_S)
        scene.world.heal()

    def _mark_stuck(self) -> list[Group]:
        """Groups of kafkajs: it searches another coordinator only when the connection ends, which
        stays open while the broker is silent. kafka-python searches when requests have timed out.
        The session of either has expired by then.
        """
        groups = list(self.scene.groups.values())
        for group in groups:
            for member in group.members.values():
                if member.kind.client in SLOW_TO_LEAVE:
                    group.record_harm(
                        member, time.monotonic_ns(), "with a coordinator that is silent"
                    )
        return [one for one in groups if one.name.endswith(KAFKAJS)]

    def coordinator_loses_coordination(self) -> None:
        """Its clients still reach it. The offset monitor does not: until the broker learns from the
        others that another one is the coordinator, it answers reads with stale offsets, which a
        tool would see. No member may be misled by that for longer.
        """
        scene = self.scene
        broker = scene.brokers[scene.coordinator(self.some_group())]
        for node in [*(one.node for one in scene.coordination.members), scene.offset_monitor.node]:
            scene.world.cut_both(broker.node, node)
        self._hold(2 * PAUSE_S)
        self.wait_stable("with another coordinator")
        scene.world.heal()

    def _disturb_group(self) -> None:
        """Start a rebalance, most of the time."""
        if self._chance.chance(0.7):
            (self.member_joins if self._chance.chance(0.6) else self.member_leaves)()

    # -- topics ----------------------------------------------------------------------------

    def topic_grows(self) -> None:
        name = self._chance.choice(list(self.scene.topics))
        total = self.scene.topics[name] + self._chance.integer(1, 3)
        if total <= PARTITIONS_MAX:
            self.scene.add_partitions(name, total)

    def topic_is_made(self) -> None:
        number = len(self.scene.topics)
        self.scene.add_topic(f"era-{self._era}-match-{number}", self._chance.integer(1, 3))

    def _hold(self, length_s: float) -> None:
        """Keep the fault for this long: its duration, not a guess at when something is done."""
        end_s = time.monotonic() + length_s
        while (left_s := end_s - time.monotonic()) > 0:
            self.scene.check_alive()
            self.scene.take()
            time.sleep(min(left_s, 0.25))


def _is_available(client: str) -> bool:
    return all(shutil.which(one) is not None for one in RUNTIMES.get(client, ()))


ACTIONS: Final[Mapping[str, Callable[[GroupChaos], None]]] = {
    "a member joins": GroupChaos.member_joins,
    "a member leaves": GroupChaos.member_leaves,
    "a member stalls": GroupChaos.member_stalls,
    "a program is killed": GroupChaos.program_is_killed,
    "a program is paused": GroupChaos.program_is_paused,
    "the coordinator is killed": GroupChaos.coordinator_is_killed,
    "the coordinator is stopped": GroupChaos.coordinator_is_stopped,
    "the coordinator is paused": GroupChaos.coordinator_is_paused,
    "the coordinator is cut off": GroupChaos.coordinator_is_cut_off,
    "the coordinator loses coordination": GroupChaos.coordinator_loses_coordination,
    "a topic grows": GroupChaos.topic_grows,
    "a topic is made": GroupChaos.topic_is_made,
}
WEIGHTS: Final[Mapping[str, int]] = {
    "a program is killed": 4,
    "the coordinator is killed": 5,
    "a topic grows": 1,
    "a topic is made": 1,
}

"""A cluster with consumer groups of foreign clients on it, and the faults they must survive.

    observer, offsets, client --- router --- broker-1, broker-2, broker-3, keeper

All groups run at the same time, on topics that one producer feeds. After every fault every group
must become stable again by itself: every partition has one owner, which reads it to its end.
"""

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from millstream.testing.chaos.cluster.processes import NodeProcess
from millstream.testing.chaos.cluster.scene import BROKERS, ClusterScene, ProcessFactory
from millstream.testing.chaos.groups.members import HEARTBEAT_MS, SESSION_MS, Group, Member
from millstream.testing.chaos.groups.offset_monitor import OffsetMonitor, coordinator_of
from millstream.testing.chaos.groups.programs import Program
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node
from millstream.testing.history.group_events import (
    Failed,
    LineFollower,
    PartitionName,
    Produced,
    produced_event,
)
from millstream.testing.history.groups import figures
from millstream.testing.peers.client_programs import client_command
from millstream.testing.wait_until import wait_until
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

RECORDS_PER_S: Final = 60.0
STABLE_MAX_S: Final = 90.0
"""From any fault to stable groups: a session of 6 s, a coordinator's failover (a session
of the cluster, an election, loading), a rebalance, on two cores that run everything else too."""
FINISH_MAX_S: Final = 180.0
POLL_INTERVAL_S: Final = 0.1
OFFSETS_PARTITIONS: Final = 6

GROUP_SETTINGS: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "offsets.topic.replication.factor": str(BROKERS),
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
    "group.consumer.migration.policy": "bidirectional",
}


class ProducerProcess(NodeProcess):
    """`chaos/groups/producer.py`, and what it recorded."""

    prints_ready_line = False

    def __init__(self, node: Node, directory: Path, servers: str) -> None:
        log = directory / "produced.jsonl"
        words = [
            "-m",
            "millstream.testing.chaos.groups.producer",
            servers,
            str(log),
            str(RECORDS_PER_S),
        ]
        super().__init__(node, directory, [sys.executable, *words])
        self._lines = LineFollower(log)

    def feed(self, topic: str, partitions: int) -> None:
        """Produce also to this topic, or also to its new partitions."""
        if self._process is None or self._process.stdin is None:
            raise ChaosFailed("the producer is not running")
        self._process.stdin.write(json.dumps({"topic": topic, "partitions": partitions}) + "\n")
        self._process.stdin.flush()

    def take(self) -> list[Produced]:
        found = []
        for line in self._lines.take():
            event = produced_event(line)
            if isinstance(event, Failed):
                raise ChaosFailed(f"the producer failed: {event.why}")
            found.append(event)
        return found

    def finish(self) -> None:
        """Stop it when everything it sent is acknowledged."""
        if self._process is None or self._process.stdin is None:
            raise ChaosFailed("the producer is not running")
        self._process.stdin.close()
        code = self._process.wait(FINISH_MAX_S)
        self._clear_process()
        if code != 0:
            raise ChaosFailed(f"the producer ended with {code}: {self.take()}\n{self.tail()}")


class GroupScene(ClusterScene):
    """Brokers, a producer, programs of clients, and groups of their members."""

    def __init__(self, root: Path, factory: ProcessFactory, *, sources: Path, cache: Path) -> None:
        super().__init__(root, factory)
        self._directory = root
        self._sources = sources
        self._cache = cache
        self._topics: dict[str, int] = {}
        self._producers_started = 0
        self.programs: Final[dict[tuple[str, str], Program]] = {}
        self._producer: ProducerProcess | None = None
        self.groups: Final[dict[str, Group]] = {}
        self.offset_monitor: Final = OffsetMonitor(self.world.add("offsets"), self.up)

    def start(self) -> None:
        """Start the brokers and the producer; there are no topics yet."""
        self.coordination.start()
        for broker_id in range(1, BROKERS + 1):
            self.add_broker(broker_id).spawn()
        for broker in self.brokers.values():
            broker.wait_ready()
        self.start_producer()

    def start_producer(self) -> None:
        """Start a new producer without topics and groups; the cluster and the programs stay."""
        self._producers_started += 1
        self.groups.clear()
        self.offset_monitor.clear()
        self._topics.clear()
        directory = self._directory / f"producer-{self._producers_started}"
        self._producer = ProducerProcess(self.client, directory, self.servers)
        self._producer.spawn()

    def close(self) -> None:
        self.offset_monitor.close()
        for process in (*self.programs.values(), self._producer):
            if process is not None:
                process.close()
        super().close()

    @property
    def servers(self) -> str:
        return ",".join(one.address for one in self.brokers.values())

    @property
    def producer(self) -> ProducerProcess:
        if self._producer is None:
            raise ChaosFailed("the scene has not started")
        return self._producer

    # -- topics ----------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, int]:
        """Topics by name, with their numbers of partitions."""
        return self._topics

    def add_topic(self, name: str, partitions: int) -> None:
        """Create a topic and produce to it from now on."""
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=BROKERS)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        done = (ErrorCode.TOPIC_ALREADY_EXISTS,)
        self.administer(request, 7, lambda answer: answer.topics[0].error_code, done=done)
        self._topics[name] = partitions
        self.producer.feed(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        topic = CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
        # A retry is answered that they exist.
        done = (ErrorCode.INVALID_PARTITIONS,)
        self.administer(request, 3, lambda answer: answer.results[0].error_code, done=done)
        self._topics[name] = total
        self.producer.feed(name, total)

    def partitions_of(self, group: Group) -> list[PartitionName]:
        """All partitions that the group has to read."""
        topics = [(name, n) for name, n in list(self._topics.items()) if group.reads(name)]
        return [(name, partition) for name, n in topics for partition in range(n)]

    # -- groups and programs ---------------------------------------------------------------

    def add_group(
        self, name: str, *, topics: Sequence[str] = (), pattern: str | None = None
    ) -> Group:
        made = Group(name, self._directory / "groups" / name, topics=topics, pattern=pattern)
        self.groups[name] = made
        self.offset_monitor.watch(name, lambda: self.partitions_of(made))
        return made

    def program(self, client: str, slot: str) -> Program:
        """A running program of the client; slots distinguish several."""
        found = self.programs.get((client, slot))
        if found is None:
            command = client_command(client, sources=self._sources, cache=self._cache)
            directory = self._directory / "programs" / f"{client}-{slot}"
            found = Program(self.client, directory, client, command)
            self.programs[(client, slot)] = found
        if not found.is_up:
            found.spawn()
        return found

    def members_of(self, program: Program) -> list[tuple[Group, Member]]:
        return [
            (group, member)
            for group in self.groups.values()
            for member in list(group.members.values())
            if member.program is program
        ]

    def kill_program(self, program: Program) -> None:
        """SIGKILL: all members in it are gone without leaving their groups."""
        hosted, now_ns = self.members_of(program), time.monotonic_ns()
        program.kill()
        for group, member in hosted:
            group.record_kill(member, now_ns)

    def coordinator(self, group: Group) -> int:
        """The coordinator of the group; waits until there is one."""
        found: list[int | None] = []

        def is_known() -> bool:
            found[:] = [coordinator_of(self.observer, self.up(), group.name)]
            return found[0] is not None

        wait_until(is_known, f"{group.name} has a coordinator", timeout_s=STABLE_MAX_S)
        return found[0] or 0

    # -- checks ----------------------------------------------------------------------------

    def take(self) -> None:
        """Read what all processes have recorded meanwhile."""
        produced = self.producer.take()
        for name, group in self.groups.items():
            group.take(produced, self.offset_monitor.take(name))

    def check_alive(self) -> None:
        super().check_alive()
        for process in (*self.programs.values(), self._producer):
            if process is not None:
                process.check_alive()

    def wait_stable(
        self, what: str, groups: Iterable[Group] | None = None, *, is_shared: bool = True
    ) -> float:
        """Wait until all partitions are owned and read up to their current ends, and every group
        had a commit acknowledged since, so its coordinator serves; return the time it took.
        """
        self.take()
        chosen = list(self.groups.values() if groups is None else groups)
        wanted = {group.name: set(group.history.produced) for group in chosen}
        began_ns = time.monotonic_ns()
        reasons: list[str] = []

        def is_stable() -> bool:
            self.check_alive()
            self.take()
            reasons[:] = [
                f"{group.name}: {why}"
                for group in chosen
                if (why := self._unstable_reason(group, wanted[group.name], is_shared=is_shared))
                or (why := self._commit_stalled_reason(group, began_ns))
            ]
            return not reasons

        try:
            wait_until(is_stable, what, timeout_s=STABLE_MAX_S, pause_s=POLL_INTERVAL_S)
        except ChaosFailed as failed:
            raise ChaosFailed("\n".join([str(failed), *reasons])) from failed
        return (time.monotonic_ns() - began_ns) / 1e9

    def _unstable_reason(
        self, group: Group, wanted: set[tuple[PartitionName, int]], *, is_shared: bool
    ) -> str:
        why = group.unstable_reason(self.partitions_of(group), is_shared=is_shared)
        unread = wanted.intersection(group.history.unprocessed()) if not why else ()
        return why or (f"{len(unread)} records are unread, {min(unread)} first" if unread else "")

    def _commit_stalled_reason(self, group: Group, began_ns: int) -> str:
        if not self.producer.is_up:  # nothing new, nothing to commit
            return ""
        commits = (one.commits[-1] for one in group.history.members.values() if one.commits)
        is_served = any(commit.began_ns > began_ns for commit in commits)
        return "" if is_served else "no commit is acknowledged"

    def finish(self) -> Mapping[str, Mapping[str, int]]:
        """Stop the producer, wait until all is read, and check; return the figures by group."""
        self.producer.finish()
        self.wait_stable("everything is read in the end (I-31, I-33)", is_shared=False)
        for group in self.groups.values():
            for member in list(group.members.values()):
                group.leave(member)
        self.take()
        return self.check(is_complete=True)

    def check(self, *, is_complete: bool = False) -> Mapping[str, Mapping[str, int]]:
        """Check what was recorded so far; raises ChaosFailed."""
        for group in self.groups.values():
            group.check(is_complete=is_complete)
        return {name: figures(group.history) for name, group in self.groups.items()}

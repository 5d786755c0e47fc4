"""Members of simulated groups: a client on a host of its own, with a protocol member inside.

The records they read are made up: a partition's log grows with the clock. So all of a run's effort
goes into the coordinator, and the end of a log is always known. Between a record and its commit a
member takes its time, which is when it can be paused and become a zombie.
"""

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from millstream.groups.records.partition_of import partition_of
from millstream.rpc.connections import Address
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.group_events import (
    NOTHING_COMMITTED,
    Assigned,
    Began,
    Committed,
    Harmed,
    Left,
    Lost,
    ObservedOffsets,
    PartitionName,
    Processed,
    Produced,
    Refused,
    Revoked,
)
from millstream.testing.history.groups import GroupHistory, MemberHistory
from millstream.testing.protocol_members.classic import ClassicMember, CooperativeMember
from millstream.testing.protocol_members.consumer import ConsumerMember
from millstream.testing.protocol_members.member import (
    FETCH,
    KnownTopics,
    MemberSpec,
    ProtocolMember,
)
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.cluster.scene import ClusterScene
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

OFFSETS_TOPIC: Final = "__consumer_offsets"
RECORDS_PER_S: Final = 5.0
RECORDS_PER_STEP_MAX: Final = 40
EAGER, COOPERATIVE, SERVER_SIDE = "eager", "cooperative", "server-side"
KINDS: Final = (EAGER, COOPERATIVE, SERVER_SIDE)


class Source:
    """The made-up logs: each grows by itself until it is stopped."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._stopped_s: float | None = None

    def end(self) -> int:
        at_s = self._now_s() if self._stopped_s is None else self._stopped_s
        return int(at_s * RECORDS_PER_S)

    @property
    def is_stopped(self) -> bool:
        return self._stopped_s is not None

    def stop(self) -> None:
        self._stopped_s = self._now_s()


class SimGroup:
    """One group: what it reads and what happened to its members."""

    def __init__(self, name: str, kind: str, topics: KnownTopics, source: Source) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.topics: Final = topics
        self.source: Final = source
        self.history: Final = GroupHistory()
        self.members: Final[dict[str, SimMember]] = {}
        """The members that are alive."""
        self.lives = 0

    @property
    def partitions(self) -> list[PartitionName]:
        return [(name, n) for name, count in self.topics.partitions.items() for n in range(count)]

    def why_not_stable(self) -> str:
        """Why not everything is owned once and read to its end; "" when it is."""
        owners = self.history.owners()
        for partition in self.partitions:
            found = owners.get(partition, [])
            if len(found) != 1 or found[0] not in self.members:
                return f"{self.name}: {partition} belongs to {found or 'no member'}"
            at = self.members[found[0]].protocol_member.positions.get(partition)
            if at is None or at < self.source.end():
                return f"{self.name}: {partition} is read to {at} of {self.source.end()}"
        return ""

    def produce_all(self, at_ns: int) -> None:
        """Everything that a member had to read."""
        for partition in self.partitions:
            for offset in range(self.source.end()):
                self.history.produce(Produced(at_ns, partition, offset, ""))


class _HistoryRecorder:
    """Records what a member is notified of."""

    def __init__(self, member_history: MemberHistory, now_ns: Callable[[], int]) -> None:
        self._history = member_history
        self._now_ns = now_ns

    def assigned(self, partitions: list[PartitionName], generation: int) -> None:
        self._history.add(Assigned(self._now_ns(), tuple(partitions), generation))

    def revoked(self, partitions: list[PartitionName]) -> None:
        self._history.add(Revoked(self._now_ns(), tuple(partitions)))

    def lost(self, partitions: list[PartitionName]) -> None:
        self._history.add(Lost(self._now_ns(), tuple(partitions)))


class SimMember(Client):
    """One life of one member."""

    def __init__(
        self, group: SimGroup, scene: ClusterScene, randomness: SeededRandomness, spec: MemberSpec
    ) -> None:
        group.lives += 1
        name = f"{group.name}-{group.lives}"
        super().__init__(scene, name, randomness)
        self.group: Final = group
        self._hosts = scene.broker_hosts
        self.member_history: Final = group.history.member_history(name)
        self.member_history.add(Began(self.now_ns(), name, group.name, spec.instance, group.kind))
        self.protocol_member: Final = self._make(spec)
        self.is_paused = False
        self.before_commit: Callable[[], None] | None = None
        """Called once, when it has processed something and is about to commit it."""

    def now_ns(self) -> int:
        return round(self.scene.now_s() * 1e9)

    def _make(self, spec: MemberSpec) -> ProtocolMember:
        listener = _HistoryRecorder(self.member_history, self.now_ns)
        given: tuple[Any, ...] = (
            *(spec, listener, self.group.topics),
            *(self._connections, self._any_broker),
        )
        member: ProtocolMember
        if self.group.kind == SERVER_SIDE:
            member_id = UUID(bytes=self.randomness.bytes(16), version=4)
            member = ConsumerMember(*given, member_id=str(member_id))
        else:
            member = (ClassicMember if self.group.kind == EAGER else CooperativeMember)(*given)
        member.work = self._process  # type: ignore[method-assign]
        return member

    def _any_broker(self) -> Address:
        return Address(self.randomness.choice(list(self._hosts.values())), PORT)

    async def work(self) -> None:
        try:
            await self.protocol_member.run()
        except RpcError:
            self.scene.counts["leaves without an answer"] += 1
        self.member_history.add(Left(self.now_ns()))

    async def _process(self) -> None:
        protocol_member = self.protocol_member
        if not await protocol_member.fetch_positions():
            return
        offsets: dict[PartitionName, int] = {}
        for partition, at in protocol_member.positions.items():
            end = min(self.group.source.end(), (at or 0) + RECORDS_PER_STEP_MAX)
            for offset in range(at or 0, end):
                self.member_history.add(Processed(self.now_ns(), partition, offset, ""))
                protocol_member.positions[partition] = offsets[partition] = offset + 1
        if offsets and self.before_commit is not None:
            self.before_commit()
            self.before_commit = None
        await self.pause(0.0, 0.2)
        if offsets:
            await self._commit(offsets)

    async def _commit(self, offsets: dict[PartitionName, int]) -> None:
        began_ns = self.now_ns()
        try:
            code = await self.protocol_member.commit(offsets)
        except RpcError as error:
            self.member_history.add(Refused(self.now_ns(), offsets, str(error)))
            raise
        if code is ErrorCode.NONE:
            self.member_history.add(Committed(self.now_ns(), began_ns, offsets))
            return
        self.member_history.add(Refused(self.now_ns(), offsets, code.name))
        self.scene.counts[f"commits refused: {code.name}"] += 1

    # -- what happens to it ----------------------------------------------------------------

    def kill(self) -> None:
        """Without leaving the group; its host is gone, or only its process."""
        self.group.members.pop(self.name)
        self.process.kill()
        is_silent = self.randomness.chance(0.5)
        self.scene.world.network.kill_host(self.name, is_silent=is_silent)
        self.group.history.harm(Harmed(self.now_ns(), self.name, "killed"), is_death=True)

    def leave(self) -> None:
        self.group.members.pop(self.name)
        self.protocol_member.is_leaving = True

    def harm(self, how: str) -> None:
        self.group.history.harm(Harmed(self.now_ns(), self.name, how))


class SimOffsetObserver(Client):
    """Reads the committed offsets of all groups until it is finished."""

    def __init__(
        self, scene: ClusterScene, randomness: SeededRandomness, groups: list[SimGroup]
    ) -> None:
        # Hosts name the random streams of their links: with another name a seed is another run.
        super().__init__(scene, "onlooker", randomness)
        self._cluster = scene
        self._hosts = scene.broker_hosts
        self._groups = groups
        self._links = {one.name: self._link(one) for one in groups}

    def _link(self, group: SimGroup) -> ProtocolMember:
        spec = MemberSpec(group=group.name, topics=())
        listener = _HistoryRecorder(MemberHistory("observer", set()), lambda: 0)
        return ProtocolMember(spec, listener, group.topics, self._connections, self._any_broker)

    def _any_broker(self) -> Address:
        return Address(self.randomness.choice(list(self._hosts.values())), PORT)

    def _leader_of(self, group: SimGroup) -> str:
        """The host that coordinates the group, by the keeper."""
        partitions = self._cluster.committed.partitions
        led = {key.index: one for key, one in partitions.items() if key.topic == OFFSETS_TOPIC}
        leader = led[partition_of(group.name, len(led))].leader
        return self._hosts.get(leader, "")

    async def work(self) -> None:
        while not self.is_finished:
            for group in self._groups:
                try:
                    await self._check_offsets(group)
                except RpcError:
                    self.scene.counts["offset reads without an answer"] += 1
            await self.pause(0.1, 0.6)

    async def _check_offsets(self, group: SimGroup) -> None:
        spec = OffsetFetchRequestGroup(group_id=group.name, topics=None)
        began_ns = round(self.scene.now_s() * 1e9)
        link = self._links[group.name]
        answer = await link.send(OffsetFetchRequest(groups=[spec], require_stable=True), FETCH)
        if link.coordinator is None or link.coordinator.host != self._leader_of(group):
            # A deposed coordinator that does not know it yet returns what it knew.
            self.scene.counts["offset reads from old coordinators"] += 1
            return
        (described,) = answer.groups
        if described.error_code:
            code = ErrorCode(described.error_code)
            self.scene.counts[f"offset reads refused: {code.name}"] += 1
            await link.back_off_if_retriable(code)
            return
        offsets = dict.fromkeys(group.partitions, NOTHING_COMMITTED)
        for topic in described.topics:
            for one in topic.partitions:
                partition = (topic.name, one.partition_index)
                if one.error_code:
                    del offsets[partition]  # the client has to retry
                    self.scene.counts[
                        f"offset reads refused: {ErrorCode(one.error_code).name}"
                    ] += 1
                else:
                    offsets[partition] = one.committed_offset
        group.history.observed_offsets.append(
            ObservedOffsets(round(self.scene.now_s() * 1e9), began_ns, offsets)
        )
        self.scene.counts["reads of committed offsets"] += 1

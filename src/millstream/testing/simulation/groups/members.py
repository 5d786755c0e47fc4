"""Members of simulated groups: a client on a host of its own, with a lean member inside.

The records they read are made up: a partition's log is a clock that counts. So all of a run's
effort goes into the coordinator, and an offset is always where it should be. Between a record and
its commit a member takes its time, which is where it can be stopped and become a zombie.
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
    Place,
    Processed,
    Produced,
    Refused,
    Revoked,
    Seen,
)
from millstream.testing.history.groups import GroupHistory, MemberStory
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
    """One group: what it reads and what its members went through."""

    def __init__(self, name: str, kind: str, topics: KnownTopics, source: Source) -> None:
        self.name: Final = name
        self.kind: Final = kind
        self.topics: Final = topics
        self.source: Final = source
        self.history: Final = GroupHistory()
        self.members: Final[dict[str, SimMember]] = {}
        """Those that live."""
        self.lives = 0

    @property
    def places(self) -> list[Place]:
        return [(name, n) for name, count in self.topics.partitions.items() for n in range(count)]

    def unsettled(self) -> str:
        """Why not everything is owned once and read to its end; "" when it is."""
        owners = self.history.owners()
        for place in self.places:
            found = owners.get(place, [])
            if len(found) != 1 or found[0] not in self.members:
                return f"{self.name}: {place} belongs to {found or 'nobody'}"
            at = self.members[found[0]].lean.positions.get(place)
            if at is None or at < self.source.end():
                return f"{self.name}: {place} is read to {at} of {self.source.end()}"
        return ""

    def produce_all(self, at_ns: int) -> None:
        """Everything that a member had to read."""
        for place in self.places:
            for offset in range(self.source.end()):
                self.history.produce(Produced(at_ns, place, offset, ""))


class _Ears:
    """Notes down what a member hears."""

    def __init__(self, story: MemberStory, now_ns: Callable[[], int]) -> None:
        self._story = story
        self._now_ns = now_ns

    def assigned(self, places: list[Place], generation: int) -> None:
        self._story.add(Assigned(self._now_ns(), tuple(places), generation))

    def revoked(self, places: list[Place]) -> None:
        self._story.add(Revoked(self._now_ns(), tuple(places)))

    def lost(self, places: list[Place]) -> None:
        self._story.add(Lost(self._now_ns(), tuple(places)))


class SimMember(Client):
    """One life of one member."""

    def __init__(
        self, group: SimGroup, scene: ClusterScene, randomness: SeededRandomness, wish: MemberSpec
    ) -> None:
        group.lives += 1
        name = f"{group.name}-{group.lives}"
        super().__init__(scene, name, randomness)
        self.group: Final = group
        self._hosts = scene.broker_hosts
        self.story: Final = group.history.story(name)
        self.story.add(Began(self.now_ns(), name, group.name, wish.instance, group.kind))
        self.lean: Final = self._make(wish)
        self.is_paused = False
        self.before_commit: Callable[[], None] | None = None
        """Called once, when it has processed something and is about to say so."""

    def now_ns(self) -> int:
        return round(self.scene.now_s() * 1e9)

    def _make(self, wish: MemberSpec) -> ProtocolMember:
        ears = _Ears(self.story, self.now_ns)
        given: tuple[Any, ...] = (
            *(wish, ears, self.group.topics),
            *(self._connections, self._any_broker),
        )
        made: ProtocolMember
        if self.group.kind == SERVER_SIDE:
            member_id = UUID(bytes=self.randomness.bytes(16), version=4)
            made = ConsumerMember(*given, member_id=str(member_id))
        else:
            made = (ClassicMember if self.group.kind == EAGER else CooperativeMember)(*given)
        made.work = self._process  # type: ignore[method-assign]
        return made

    def _any_broker(self) -> Address:
        return Address(self.randomness.choice(list(self._hosts.values())), PORT)

    async def work(self) -> None:
        try:
            await self.lean.run()
        except RpcError:
            self.scene.made["leaves without an answer"] += 1
        self.story.add(Left(self.now_ns()))

    async def _process(self) -> None:
        lean = self.lean
        if not await lean.fetch_positions():
            return
        offsets: dict[Place, int] = {}
        for place, at in lean.positions.items():
            end = min(self.group.source.end(), (at or 0) + RECORDS_PER_STEP_MAX)
            for offset in range(at or 0, end):
                self.story.add(Processed(self.now_ns(), place, offset, ""))
                lean.positions[place] = offsets[place] = offset + 1
        if offsets and self.before_commit is not None:
            self.before_commit()
            self.before_commit = None
        await self.pause(0.0, 0.2)
        if offsets:
            await self._commit(offsets)

    async def _commit(self, offsets: dict[Place, int]) -> None:
        began_ns = self.now_ns()
        try:
            code = await self.lean.commit(offsets)
        except RpcError as error:
            self.story.add(Refused(self.now_ns(), offsets, str(error)))
            raise
        if code is ErrorCode.NONE:
            self.story.add(Committed(self.now_ns(), began_ns, offsets))
            return
        self.story.add(Refused(self.now_ns(), offsets, code.name))
        self.scene.made[f"commits refused: {code.name}"] += 1

    # -- what happens to it ----------------------------------------------------------------

    def kill(self) -> None:
        """Without a word; its host is gone, or only its process."""
        self.group.members.pop(self.name)
        self.process.kill()
        is_silent = self.randomness.chance(0.5)
        self.scene.world.network.kill_host(self.name, is_silent=is_silent)
        self.group.history.harm(Harmed(self.now_ns(), self.name, "killed"), is_death=True)

    def leave(self) -> None:
        self.group.members.pop(self.name)
        self.lean.is_leaving = True

    def harm(self, how: str) -> None:
        self.group.history.harm(Harmed(self.now_ns(), self.name, how))


class SimOnlooker(Client):
    """Looks at what is committed, of all groups, until it is finished."""

    def __init__(
        self, scene: ClusterScene, randomness: SeededRandomness, groups: list[SimGroup]
    ) -> None:
        super().__init__(scene, "onlooker", randomness)
        self._cluster = scene
        self._hosts = scene.broker_hosts
        self._groups = groups
        self._links = {one.name: self._link(one) for one in groups}

    def _link(self, group: SimGroup) -> ProtocolMember:
        wish = MemberSpec(group=group.name, topics=())
        ears = _Ears(MemberStory("onlooker", set()), lambda: 0)
        return ProtocolMember(wish, ears, group.topics, self._connections, self._any_broker)

    def _any_broker(self) -> Address:
        return Address(self.randomness.choice(list(self._hosts.values())), PORT)

    def _leader_of(self, group: SimGroup) -> str:
        """The host that coordinates the group, as the keeper knows."""
        partitions = self._cluster.committed.partitions
        led = {key.index: one for key, one in partitions.items() if key.topic == OFFSETS_TOPIC}
        leader = led[partition_of(group.name, len(led))].leader
        return self._hosts.get(leader, "")

    async def work(self) -> None:
        while not self.is_finished:
            for group in self._groups:
                try:
                    await self._look(group)
                except RpcError:
                    self.scene.made["looks without an answer"] += 1
            await self.pause(0.1, 0.6)

    async def _look(self, group: SimGroup) -> None:
        wish = OffsetFetchRequestGroup(group_id=group.name, topics=None)
        began_ns = round(self.scene.now_s() * 1e9)
        link = self._links[group.name]
        answer = await link.send(OffsetFetchRequest(groups=[wish], require_stable=True), FETCH)
        if link.coordinator is None or link.coordinator.host != self._leader_of(group):
            # One that was deposed and has not heard of it tells what it knew.
            self.scene.made["looks at old coordinators"] += 1
            return
        (told,) = answer.groups
        if told.error_code:
            code = ErrorCode(told.error_code)
            self.scene.made[f"looks refused: {code.name}"] += 1
            await link.back_off_if_retriable(code)
            return
        offsets = dict.fromkeys(group.places, NOTHING_COMMITTED)
        for topic in told.topics:
            for one in topic.partitions:
                place = (topic.name, one.partition_index)
                if one.error_code:
                    del offsets[place]  # it is told to ask again
                    self.scene.made[f"looks refused: {ErrorCode(one.error_code).name}"] += 1
                else:
                    offsets[place] = one.committed_offset
        group.history.seen.append(Seen(round(self.scene.now_s() * 1e9), began_ns, offsets))
        self.scene.made["looks at committed offsets"] += 1

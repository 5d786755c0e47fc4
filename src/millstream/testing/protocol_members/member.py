"""Members of consumer groups that speak the protocol and do nothing else.

One object, one coroutine, one connection to the coordinator: hundreds of them run in one process,
in virtual time for the simulation and in real time for measurements. They do in order what a
client's threads do at once: heartbeat, then work, then commit. What happens to a member is told to
its `MemberListener`; what it does with its partitions is up to a subclass (`work`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.testing.history.group_events import UNKNOWN_GENERATION, Place
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from millstream.wire.schema import Message

FIND: Final = range(4, 7)
COMMIT: Final = range(8, 10)
FETCH: Final = range(9, 10)
"""Those that name topics; later ones have ids."""

ASK_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The coordinator is somebody else, or not there yet."""
FENCED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The group goes on without us."""


class MemberListener(Protocol):
    """Hears what a member goes through."""

    def assigned(self, places: list[Place], generation: int) -> None: ...

    def revoked(self, places: list[Place]) -> None: ...

    def lost(self, places: list[Place]) -> None: ...


class MemberRefused(Exception):
    """An answer after which a member cannot go on."""

    def __init__(self, what: str, code: ErrorCode) -> None:
        super().__init__(f"{what}: {code.name}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """What a member is to be."""

    group: str
    topics: tuple[str, ...]
    instance: str | None = None
    session_ms: int = 6_000
    rebalance_ms: int = 10_000
    heartbeat_s: float = 1.0
    back_off_s: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsKnown:
    """What is known of the topics, kept up by whoever makes them."""

    partitions: dict[str, int]
    names: dict[UUID, str]


class ProtocolMember:
    """One life of one member; subclasses have the protocol."""

    def __init__(
        self,
        wish: MemberSpec,
        ears: MemberListener,
        topics: TopicsKnown,
        connections: Connections,
        any_broker: Callable[[], Address],
    ) -> None:
        self.wish: Final = wish
        self.ears: Final = ears
        self.topics: Final = topics
        self.member_id = ""
        self.generation = UNKNOWN_GENERATION
        """Or the member epoch."""
        self.positions: dict[Place, int | None] = {}
        """What it owns and where it goes on; None until it has asked."""
        self.is_leaving = False
        self.is_settled = False
        """It knows of no change that it still has to take part in."""
        self._connections = connections
        self._any_broker = any_broker
        self._coordinator: Address | None = None
        self._heard_s = 0.0
        """When the coordinator last answered anything."""

    async def run(self) -> None:
        """Until it is told to leave."""
        while not self.is_leaving:
            try:
                await self.step()
            except RpcError:
                self._coordinator = None
                await self.pause(self.wish.back_off_s)
        await self.leave()

    async def step(self) -> None:
        """One turn: whatever the protocol wants next, or a pause and some work."""
        raise NotImplementedError

    async def leave(self) -> None:
        """In good order, as far as anybody answers."""
        raise NotImplementedError

    async def work(self) -> None:
        """After a heartbeat that was answered well."""

    async def pause(self, length_s: float) -> None:
        await asyncio.sleep(length_s)

    # -- the coordinator -------------------------------------------------------------------

    async def ask(
        self, request: Message, versions: range | None = None, timeout_s: float | None = None
    ) -> Any:
        """Of the coordinator; raises RpcError."""
        if self._coordinator is None:
            self._coordinator = await self._find()
        try:
            connection = await self._connections.get(self._coordinator)
            answer = await connection.send(request, versions=versions, timeout_s=timeout_s)
        except RpcError:
            self._coordinator = None
            raise
        self._heard_s = asyncio.get_running_loop().time()
        return answer

    @property
    def coordinator(self) -> Address | None:
        """Who was asked last, as long as he answers."""
        return self._coordinator

    async def _find(self) -> Address:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.wish.group])
        while True:
            connection = await self._connections.get(self._any_broker())
            answer = await connection.send(request, versions=FIND)
            (found,) = answer.coordinators
            if not found.error_code:
                return Address(found.host, found.port)
            if ErrorCode(found.error_code) not in ASK_AGAIN:
                raise MemberRefused("FindCoordinator", ErrorCode(found.error_code))
            await self.pause(self.wish.back_off_s)

    async def asked_in_vain(self, code: ErrorCode) -> bool:
        """Whether the coordinator could not serve; it is looked for again after a pause."""
        if code not in ASK_AGAIN:
            return False
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._coordinator = None
        await self.pause(self.wish.back_off_s)
        return True

    # -- partitions ------------------------------------------------------------------------

    def take_over(self, places: list[Place]) -> None:
        """Also where nothing is new: the generation is."""
        for place in places:
            self.positions[place] = None
        self.ears.assigned(places, self.generation)

    def give_up(self, places: list[Place]) -> None:
        for place in places:
            self.positions.pop(place, None)
        if places:
            self.ears.revoked(places)

    def give_up_all(self) -> None:
        """Before it leaves. Without a word of the coordinator for a session it is not known whether
        anything was still its own.
        """
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        if silent_s > self.wish.session_ms / 1000:
            self.was_fenced()
        self.give_up(list(self.positions))

    def was_fenced(self) -> None:
        """Everything it had is somebody else's."""
        places, self.positions = list(self.positions), {}
        self.is_settled = False
        if places:
            self.ears.lost(places)

    # -- offsets ---------------------------------------------------------------------------

    async def fetch_positions(self) -> bool:
        """Where to go on; False when it cannot be told now."""
        unknown = [place for place, at in self.positions.items() if at is None]
        if not unknown:
            return True
        member_id, member_epoch = self._who()
        group = OffsetFetchRequestGroup(
            group_id=self.wish.group,
            member_id=member_id,
            member_epoch=member_epoch,
            topics=_by_topic(unknown),
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        answer = await self.ask(request, FETCH)
        (told,) = answer.groups
        code = ErrorCode(told.error_code)
        if code is not ErrorCode.NONE:
            await self._refused_offsets(code)
            return False
        for topic in told.topics:
            for one in topic.partitions:
                place = (topic.name, one.partition_index)
                if one.error_code == ErrorCode.NONE and self.positions.get(place, 0) is None:
                    self.positions[place] = max(0, one.committed_offset)
        return None not in self.positions.values()

    def _who(self) -> tuple[str | None, int]:
        """Only members of the next protocol are asked who they are."""
        return None, -1

    async def commit(self, offsets: Mapping[Place, int]) -> ErrorCode:
        """NONE when all of it was acknowledged; raises RpcError."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            one = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(one)
        request = OffsetCommitRequest(
            group_id=self.wish.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.wish.instance,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
        answer = await self.ask(request, COMMIT)
        codes = {one.error_code for topic in answer.topics for one in topic.partitions}
        code = ErrorCode(next(iter(codes - {0}), 0))
        if code is not ErrorCode.NONE:
            await self._refused_offsets(code)
        return code

    async def _refused_offsets(self, code: ErrorCode) -> None:
        """What it means is told by the next heartbeat, unless it is about the coordinator."""
        await self.asked_in_vain(code)


def _by_topic(places: list[Place]) -> list[OffsetFetchRequestTopics]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return [
        OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
        for name, numbers in topics.items()
    ]

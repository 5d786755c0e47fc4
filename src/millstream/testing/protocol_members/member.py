"""Members of consumer groups that speak the protocol and do nothing else.

One object, one coroutine, one connection to the coordinator: hundreds of them run in one process,
in virtual time for the simulation and in real time for measurements. They do in order what a
client's threads do at once: heartbeat, then work, then commit. Assignments are reported to
its `MemberListener`; what a member does with its partitions is up to a subclass (`work`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.testing.history.group_events import UNKNOWN_GENERATION, PartitionName
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
"""Versions with topic names; later ones have ids."""

RETRIABLE_CODES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""The coordinator has moved, or is not available yet."""
FENCED_CODES: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""The member is no longer part of the group."""


class MemberListener(Protocol):
    """Is notified of a member's assignments."""

    def assigned(self, places: list[PartitionName], generation: int) -> None: ...

    def revoked(self, places: list[PartitionName]) -> None: ...

    def lost(self, places: list[PartitionName]) -> None: ...


class MemberRefused(Exception):
    """An error after which a member cannot continue."""

    def __init__(self, what: str, code: ErrorCode) -> None:
        super().__init__(f"{what}: {code.name}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """The configuration of a member."""

    group: str
    topics: tuple[str, ...]
    instance: str | None = None
    session_ms: int = 6_000
    rebalance_ms: int = 10_000
    heartbeat_s: float = 1.0
    back_off_s: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopics:
    """What is known of the topics, updated by the code that creates them."""

    partitions: dict[str, int]
    names: dict[UUID, str]


class ProtocolMember:
    """One life of one member; subclasses implement the protocol."""

    def __init__(
        self,
        spec: MemberSpec,
        listener: MemberListener,
        topics: KnownTopics,
        connections: Connections,
        any_broker: Callable[[], Address],
    ) -> None:
        self.spec: Final = spec
        self.listener: Final = listener
        self.topics: Final = topics
        self.member_id = ""
        self.generation = UNKNOWN_GENERATION
        """The generation, or the member epoch."""
        self.positions: dict[PartitionName, int | None] = {}
        """Owned partitions and the next offset of each; None until it is fetched."""
        self.is_leaving = False
        self.is_stable = False
        """It knows of no rebalance that it still has to take part in."""
        self._connections = connections
        self._any_broker = any_broker
        self._coordinator: Address | None = None
        self._last_answer_s = 0.0
        """When the coordinator last answered."""

    async def run(self) -> None:
        """Run until `is_leaving` is set."""
        while not self.is_leaving:
            try:
                await self.step()
            except RpcError:
                self._coordinator = None
                await self.pause(self.spec.back_off_s)
        await self.leave()

    async def step(self) -> None:
        """Do the next step of the protocol, or pause and work."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group properly, if the coordinator answers."""
        raise NotImplementedError

    async def work(self) -> None:
        """Called after each successful heartbeat."""

    async def pause(self, length_s: float) -> None:
        await asyncio.sleep(length_s)

    # -- the coordinator -------------------------------------------------------------------

    async def send(
        self, request: Message, versions: range | None = None, timeout_s: float | None = None
    ) -> Any:
        """Send a request to the coordinator and return the response; raises RpcError."""
        if self._coordinator is None:
            self._coordinator = await self._find()
        try:
            connection = await self._connections.get(self._coordinator)
            answer = await connection.send(request, versions=versions, timeout_s=timeout_s)
        except RpcError:
            self._coordinator = None
            raise
        self._last_answer_s = asyncio.get_running_loop().time()
        return answer

    @property
    def coordinator(self) -> Address | None:
        """The current coordinator, as long as it answers."""
        return self._coordinator

    async def _find(self) -> Address:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[self.spec.group])
        while True:
            connection = await self._connections.get(self._any_broker())
            answer = await connection.send(request, versions=FIND)
            (found,) = answer.coordinators
            if not found.error_code:
                return Address(found.host, found.port)
            if ErrorCode(found.error_code) not in RETRIABLE_CODES:
                raise MemberRefused("FindCoordinator", ErrorCode(found.error_code))
            await self.pause(self.spec.back_off_s)

    async def back_off_if_retriable(self, code: ErrorCode) -> bool:
        """Pause and search the coordinator again if it could not serve; False for other errors."""
        if code not in RETRIABLE_CODES:
            return False
        if code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._coordinator = None
        await self.pause(self.spec.back_off_s)
        return True

    # -- partitions ------------------------------------------------------------------------

    def take_over(self, places: list[PartitionName]) -> None:
        """Add partitions; also called without any, because the generation is new."""
        for place in places:
            self.positions[place] = None
        self.listener.assigned(places, self.generation)

    def give_up(self, places: list[PartitionName]) -> None:
        for place in places:
            self.positions.pop(place, None)
        if places:
            self.listener.revoked(places)

    def give_up_all(self) -> None:
        """Give everything up before leaving. If the coordinator was silent for a session, the
        partitions may have been reassigned, so they are lost instead of revoked.
        """
        silent_s = asyncio.get_running_loop().time() - self._last_answer_s
        if silent_s > self.spec.session_ms / 1000:
            self.lose_all()
        self.give_up(list(self.positions))

    def lose_all(self) -> None:
        """It was fenced: its partitions may belong to other members."""
        places, self.positions = list(self.positions), {}
        self.is_stable = False
        if places:
            self.listener.lost(places)

    # -- offsets ---------------------------------------------------------------------------

    async def fetch_positions(self) -> bool:
        """Fetch committed offsets; False when they are not available now."""
        unknown = [place for place, at in self.positions.items() if at is None]
        if not unknown:
            return True
        member_id, member_epoch = self._identity()
        group = OffsetFetchRequestGroup(
            group_id=self.spec.group,
            member_id=member_id,
            member_epoch=member_epoch,
            topics=_by_topic(unknown),
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        answer = await self.send(request, FETCH)
        (fetched,) = answer.groups
        code = ErrorCode(fetched.error_code)
        if code is not ErrorCode.NONE:
            await self._refused_offsets(code)
            return False
        for topic in fetched.topics:
            for one in topic.partitions:
                place = (topic.name, one.partition_index)
                if one.error_code == ErrorCode.NONE and self.positions.get(place, 0) is None:
                    self.positions[place] = max(0, one.committed_offset)
        return None not in self.positions.values()

    def _identity(self) -> tuple[str | None, int]:
        """Member id and epoch of an OffsetFetch, which only the next-generation protocol sends."""
        return None, -1

    async def commit(self, offsets: Mapping[PartitionName, int]) -> ErrorCode:
        """Commit; NONE when all of it was acknowledged; raises RpcError."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            one = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(one)
        request = OffsetCommitRequest(
            group_id=self.spec.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.spec.instance,
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
        answer = await self.send(request, COMMIT)
        codes = {one.error_code for topic in answer.topics for one in topic.partitions}
        code = ErrorCode(next(iter(codes - {0}), 0))
        if code is not ErrorCode.NONE:
            await self._refused_offsets(code)
        return code

    async def _refused_offsets(self, code: ErrorCode) -> None:
        """The next heartbeat handles the error, unless it is about the coordinator."""
        await self.back_off_if_retriable(code)


def _by_topic(places: list[PartitionName]) -> list[OffsetFetchRequestTopics]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return [
        OffsetFetchRequestTopics(name=name, partition_indexes=numbers)
        for name, numbers in topics.items()
    ]

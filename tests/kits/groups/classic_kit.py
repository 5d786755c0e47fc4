"""A classic group, a log that says yes or no when it is asked to, and clients of any manners."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from millstream.groups.classic.group import ClassicGroup, Committer
from millstream.groups.records.values import GroupMetadataValue
from millstream.model.errors import OperatingError
from millstream.model.ids import GenerationId, GroupId, InstanceId, MemberId
from millstream.shards.effects import Caller, Outbox, Reply, Write
from millstream.shards.errors import RequestRefused
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from millstream.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from millstream.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

START_MS = 1_000
WALL_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 30_000
DELAY_MS = 3_000
JOIN_VERSION, SYNC_VERSION, LEAVE_VERSION = 9, 5, 5


@dataclass
class Settings:
    """The broker's, which may change while it runs."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    group_size_max: int = 1_000
    initial_rebalance_delay_ms: int = DELAY_MS


class LogRefused(OperatingError):
    """As the shell reports it: already the error that the client gets."""


def subscription(*topics: str, version: int = 1, tail: bytes = b"") -> bytes:
    """What a consumer sends: its topics, no user data, and whatever later versions add."""
    out = version.to_bytes(2) + len(topics).to_bytes(4)
    for topic in topics:
        out += len(topic).to_bytes(2) + topic.encode()
    return out + b"\xff\xff\xff\xff" + tail


RANGE = {"range": subscription("t")}


@dataclass
class World:
    """One group with a clock and a log; each answer is found by the token of its request."""

    settings: Settings = field(default_factory=Settings)
    now_ms: int = START_MS

    def __post_init__(self) -> None:
        self.outbox = Outbox()
        self.tokens = count(1)
        self.ids = count(1)
        self.answers: dict[object, Any] = {}
        self.answered_ms: dict[object, int] = {}
        self.callers: dict[object, Caller] = {}
        self.held: list[Write] = []
        """Written, and not yet known whether they count."""
        self.log: list[GroupMetadataValue] = []
        """What counts."""
        self.group = self.new_group()

    def new_group(self) -> ClassicGroup:
        return ClassicGroup(
            GroupId("g"),
            self.outbox,
            self.settings,
            lambda name: MemberId(f"{name}-{next(self.ids)}"),
            wall_ms=lambda: WALL_MS + self.now_ms,
        )

    # -- requests: each gives the token under which its answer will be ----------------------

    def caller(self, version: int, client: str = "c") -> Caller:
        caller = Caller(next(self.tokens), version, client, "/10.0.0.1")
        self.callers[caller.token] = caller
        return caller

    def join(
        self,
        member_id: str = "",
        *,
        protocols: dict[str, bytes] = RANGE,
        instance: str | None = None,
        version: int = JOIN_VERSION,
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        protocol_type: str = "consumer",
        client: str = "c",
        reason: str | None = None,
    ) -> object:
        caller = self.caller(version, client)
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            # A decoded request holds views into a frame that is gone after the call.
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=memoryview(bytearray(metadata)))
                for name, metadata in protocols.items()
            ],
            reason=reason,
        )
        self._call(caller, self.group.join, request)
        for one in request.protocols:
            one.metadata.release()  # type: ignore[union-attr]
        return caller.token

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        version: int = SYNC_VERSION,
        protocol: tuple[str | None, str | None] = ("consumer", "range"),
    ) -> object:
        caller = self.caller(version)
        request = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol[0],
            protocol_name=protocol[1],
            assignments=[
                SyncGroupRequestAssignment(member_id=one, assignment=memoryview(bytearray(given)))
                for one, given in (assignments or {}).items()
            ],
        )
        self._call(caller, self.group.sync, request)
        for one in request.assignments:
            one.assignment.release()  # type: ignore[union-attr]
        return caller.token

    def heartbeat(
        self, member_id: str, generation: int, *, instance: str | None = None
    ) -> ErrorCode | type[OperatingError]:
        caller = self.caller(4)
        request = HeartbeatRequest(
            group_id="g", generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        self._call(caller, self.group.heartbeat, request)
        return self.code(caller.token)

    def leave(self, *members: str | MemberIdentity, version: int = LEAVE_VERSION) -> object:
        caller = self.caller(version)
        given = [
            one if isinstance(one, MemberIdentity) else MemberIdentity(member_id=one)
            for one in members
        ]
        request = LeaveGroupRequest(group_id="g", members=given)
        if version < 3:
            request = LeaveGroupRequest(group_id="g", member_id=given[0].member_id)
        self._call(caller, self.group.leave, request)
        return caller.token

    def commit(
        self,
        member_id: str = "",
        generation: int = -1,
        *,
        instance: str | None = None,
        is_transactional: bool = False,
    ) -> type[OperatingError] | None:
        """None: it may."""
        committer = Committer(
            MemberId(member_id),
            GenerationId(generation),
            None if instance is None else InstanceId(instance),
            is_transactional,
        )
        try:
            self.group.check_commit(committer, self.now_ms)
        except RequestRefused as refused:
            return type(refused)
        return None

    def _call(self, caller: Caller, method: Any, request: Any) -> None:
        try:
            method(caller, request, self.now_ms)
        except RequestRefused as refused:
            assert not self.outbox.take(), "refused, and yet something was done"
            self._answer(Reply(caller.token, refused))
        self.drain()

    # -- the shell -----------------------------------------------------------------------------

    def drain(self) -> None:
        for effect in self.outbox.take():
            if isinstance(effect, Write):
                assert effect.is_applied
                self.held.append(effect)
            else:
                self._answer(effect)

    def _answer(self, reply: Reply) -> None:
        assert reply.token in self.callers
        assert reply.token not in self.answers, "answered twice (I-36)"
        self.answers[reply.token] = reply.response
        self.answered_ms[reply.token] = self.now_ms

    def acknowledge(self, times: int = 1_000) -> None:
        """The oldest writes count; usually all of them."""
        for _ in range(times):
            if not self.held:
                return
            write = self.held.pop(0)
            self.log += [entry.value for entry in write.entries]
            for reply in write.replies:
                self._answer(reply)
            if write.ticket is not None:
                self.group.on_written(write.ticket, self.now_ms)
            self.drain()

    def refuse(self) -> None:
        """The oldest write is refused."""
        write = self.held.pop(0)
        for reply in write.replies:
            self._answer(Reply(reply.token, LogRefused()))
        if write.ticket is not None:
            self.group.on_refused(write.ticket, LogRefused(), self.now_ms)
        self.drain()

    def pass_ms(self, by_ms: int) -> None:
        """Every timer on the way fires at its time."""
        end_ms = self.now_ms + by_ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(due_ms, self.now_ms)
            self.group.tick(self.now_ms)
            self.drain()
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Another coordinator reads the log; whoever waits has lost its connection."""
        for token in self.group.waiting_tokens():
            self.answers[token] = LogRefused()
        for write in self.held:
            self.answers |= dict.fromkeys((one.token for one in write.replies), LogRefused())
        self.held.clear()
        self.group = self.new_group()
        for value in self.log:
            self.group.apply_metadata(GroupMetadataValue.decode(value.encode(4), 4))
        self.group.on_loaded(self.now_ms)
        self.drain()

    # -- answers -------------------------------------------------------------------------------

    def code(self, token: object) -> ErrorCode | type[OperatingError]:
        answer = self.answers[token]
        if isinstance(answer, OperatingError):
            return type(answer)
        return ErrorCode(answer.error_code)

    def joined(self, token: object) -> JoinGroupResponse:
        """Its answer; it has one, without an error, that its version of the wire can say."""
        answer = self.answers[token]
        assert isinstance(answer, JoinGroupResponse), answer
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        answer.encode(self.callers[token].version)
        return answer

    def assigned(self, token: object) -> bytes:
        answer = self.answers[token]
        assert isinstance(answer, SyncGroupResponse), answer
        assert answer.error_code == 0, ErrorCode(answer.error_code)
        return bytes(answer.assignment)

    def left(self, token: object) -> list[ErrorCode]:
        answer = self.answers[token]
        assert isinstance(answer, LeaveGroupResponse), answer
        answer.encode(self.callers[token].version)
        return [ErrorCode(one.error_code) for one in answer.members]

    def waits(self, token: object) -> bool:
        return token not in self.answers

    # -- whole stories -------------------------------------------------------------------------

    def new_id(self, **said: Any) -> str:
        """KIP-394: the first answer to a member is its id."""
        token = self.join(**said)
        answer = self.answers[token]
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        answer.encode(self.callers[token].version)
        return str(answer.member_id)

    def gather(self, size: int, *, instances: Sequence[str] = (), **said: Any) -> list[str]:
        """A stable group: so many dynamic members and these static ones; the first one leads."""
        tokens = [self.join(self.new_id(**said), **said) for _ in range(size)]
        tokens += [self.join(instance=one, **said) for one in instances]
        self.pass_ms(max(self.settings.initial_rebalance_delay_ms * 2, 1))
        ids = [self.joined(token).member_id for token in tokens]
        self.settle(ids)
        return ids

    def settle(self, ids: Sequence[str]) -> None:
        """All ask for their assignment; what each gets is its id and the generation."""
        generation = self.group.generation_id
        given = {one: f"{one}@{generation}".encode() for one in ids}
        leader = str(self.group.leader_id)
        name = self.group.protocol_name
        others = [one for one in ids if one != leader]
        instances = {one.member_id: one.instance_id for one in self.group.members}
        tokens = [
            self.sync(
                one,
                generation,
                given if one == leader else None,
                instance=instances[MemberId(one)],
                protocol=(self.group.protocol_type, name),
            )
            for one in [*others, leader]
        ]
        self.acknowledge()
        for one, token in zip([*others, leader], tokens, strict=True):
            assert self.assigned(token) == given[one]

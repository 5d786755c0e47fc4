"""Protocol members of the classic protocol, eager or cooperative."""

from collections.abc import Mapping
from typing import Any, Final

from millstream.testing.history.group_events import UNKNOWN_GENERATION
from millstream.testing.protocol_members.assignments import (
    Subscription,
    assign_cooperatively,
    assign_eagerly,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from millstream.testing.protocol_members.member import FENCED_CODES, MemberRefused, ProtocolMember
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

PROTOCOL_TYPE: Final = "consumer"
EAGER: Final = "lean-eager"
COOPERATIVE: Final = "lean-cooperative"
SLACK_S: Final = 5.0
"""A response to JoinGroup may take the rebalance timeout, and a bit more."""
JOIN, SYNC, HEARTBEAT, LEAVE = range(5, 10), range(3, 6), range(3, 5), range(3, 6)


class ClassicMember(ProtocolMember):
    """Joins, syncs and sends heartbeats."""

    is_cooperative = False
    _has_to_join = True

    @property
    def protocol(self) -> str:
        return COOPERATIVE if self.is_cooperative else EAGER

    async def step(self) -> None:
        if self._has_to_join:
            await self._join()
            return
        await self.pause(self.spec.heartbeat_s)
        if await self._heartbeat():
            await self.work()

    async def leave(self) -> None:
        self.give_up_all()
        if not self.member_id or self.spec.instance is not None:
            return
        identity = MemberIdentity(member_id=self.member_id)
        await self.send(LeaveGroupRequest(group_id=self.spec.group, members=[identity]), LEAVE)

    async def _heartbeat(self) -> bool:
        request = HeartbeatRequest(
            group_id=self.spec.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.spec.instance,
        )
        code = ErrorCode((await self.send(request, HEARTBEAT)).error_code)
        if code is ErrorCode.NONE:
            return True
        if not await self._handle_error(code):
            raise MemberRefused("Heartbeat", code)
        return False

    async def _handle_error(self, code: ErrorCode) -> bool:
        """Handle an error that any response may have; False when it is not one of these."""
        if code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin()
            return True
        if code in FENCED_CODES:
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.generation = UNKNOWN_GENERATION
            self.lose_all()
            self._has_to_join = True
            return True
        return await self.back_off_if_retriable(code)

    def _rejoin(self) -> None:
        if not self.is_cooperative:
            self.give_up(list(self.positions))
        self._has_to_join = True
        self.is_stable = False

    # -- joining ---------------------------------------------------------------------------

    async def _join(self) -> None:
        subscription = Subscription(self.spec.topics, tuple(self.positions))
        protocol = JoinGroupRequestProtocol(
            name=self.protocol, metadata=encode_subscription(subscription)
        )
        request = JoinGroupRequest(
            group_id=self.spec.group,
            session_timeout_ms=self.spec.session_ms,
            rebalance_timeout_ms=self.spec.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.spec.instance,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
        )
        answer = await self.send(request, JOIN, self.spec.rebalance_ms / 1000 + SLACK_S)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            await self._sync(answer)
        elif not await self._handle_error(code):
            raise MemberRefused("JoinGroup", code)

    async def _sync(self, joined: Any) -> None:
        request = SyncGroupRequest(
            group_id=self.spec.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.spec.instance,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=self._assignments(joined) if joined.leader == self.member_id else [],
        )
        timeout_s = self.spec.rebalance_ms / 1000 + SLACK_S
        answer = await self.send(request, SYNC, timeout_s)
        code = ErrorCode(answer.error_code)
        if code is not ErrorCode.NONE:
            if not await self._handle_error(code):
                raise MemberRefused("SyncGroup", code)
            return
        self._has_to_join, self.is_stable = False, True
        self._take(set(decode_assignment(bytes(answer.assignment))))

    def _take(self, assigned: set[tuple[str, int]]) -> None:
        gone = sorted(self.positions.keys() - assigned)
        self.give_up(gone)
        self.take_over(sorted(assigned - self.positions.keys()))
        if gone and self.is_cooperative:
            self._rejoin()  # what was given up is free only in the next round

    def _assignments(self, joined: Any) -> list[SyncGroupRequestAssignment]:
        if joined.skip_assignment:
            return []
        subscriptions = {
            one.member_id: decode_subscription(bytes(one.metadata)) for one in joined.members
        }
        given = self._assign(subscriptions)
        return [
            SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(places))
            for member, places in given.items()
        ]

    def _assign(
        self, subscriptions: Mapping[str, Subscription]
    ) -> Mapping[str, list[tuple[str, int]]]:
        assign = assign_cooperatively if self.is_cooperative else assign_eagerly
        return assign(subscriptions, self.topics.partitions)


class CooperativeMember(ClassicMember):
    """Keeps its partitions while the others join."""

    is_cooperative = True

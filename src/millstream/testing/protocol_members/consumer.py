"""Lean members of the next-generation protocol: one heartbeat says and hears everything."""

from typing import Any, Final

from millstream.testing.history.group_events import Place
from millstream.testing.protocol_members.member import FENCED, MemberRefused, ProtocolMember
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)

JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
VERSIONS: Final = range(1, 2)
"""From 1 on members choose their ids themselves."""


class ConsumerMember(ProtocolMember):
    """The coordinator assigns; what it wants back is given up before it is confirmed."""

    server_assignor: str | None = None
    _has_to_tell = True

    def __init__(self, *arguments: Any, member_id: str) -> None:
        super().__init__(*arguments)
        self.member_id = member_id
        self.generation = JOINING

    async def step(self) -> None:
        if not self._has_to_tell:
            await self.pause(self.wish.heartbeat_s)
        if await self._heartbeat(self.generation):
            await self.work()

    async def leave(self) -> None:
        self.give_up_all()
        if self.generation > JOINING:
            epoch = LEAVING if self.wish.instance is None else LEAVING_FOR_NOW
            await self.ask(self._request(epoch, is_full=False), VERSIONS)

    def _request(self, epoch: int, *, is_full: bool) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.wish.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.wish.instance,
        )
        if not is_full:
            return request
        return ConsumerGroupHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=epoch,
            instance_id=request.instance_id,
            rebalance_timeout_ms=self.wish.rebalance_ms,
            subscribed_topic_names=list(self.wish.topics),
            server_assignor=self.server_assignor,
            topic_partitions=self._owned() if epoch != JOINING else [],
        )

    async def _heartbeat(self, epoch: int) -> bool:
        request = self._request(epoch, is_full=self._has_to_tell)
        # Whatever happens to it, the next one tells everything again, unless this is answered.
        self._has_to_tell = True
        answer = await self.ask(request, VERSIONS)
        code = ErrorCode(answer.error_code)
        if code in FENCED:
            self.generation = JOINING
            self.was_fenced()
            return False
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            await self.pause(self.wish.back_off_s)
            return False
        if code is not ErrorCode.NONE:
            if not await self.asked_in_vain(code):
                raise MemberRefused("ConsumerGroupHeartbeat", code)
            return False
        self._has_to_tell = False
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            self._take(set(self._named(answer.assignment)))
        else:
            self.is_settled = True
        return True

    def _take(self, assigned: set[Place]) -> None:
        gone = sorted(self.positions.keys() - assigned)
        added = sorted(assigned - self.positions.keys())
        self.give_up(gone)
        self.take_over(added)
        # The coordinator waits for our word on both.
        self._has_to_tell = bool(gone or added)
        self.is_settled = not self._has_to_tell

    def _named(self, assignment: Any) -> list[Place]:
        return [
            (self.topics.names[topic.topic_id], partition)
            for topic in assignment.topic_partitions
            for partition in topic.partitions
        ]

    def _owned(self) -> list[RequestTopicPartitions]:
        ids = {name: topic_id for topic_id, name in self.topics.names.items()}
        topics: dict[str, list[int]] = {}
        for name, partition in self.positions:
            topics.setdefault(name, []).append(partition)
        return [
            RequestTopicPartitions(topic_id=ids[name], partitions=numbers)
            for name, numbers in topics.items()
        ]

    def _who(self) -> tuple[str | None, int]:
        return self.member_id, self.generation

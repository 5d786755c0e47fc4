"""Protocol members of the next-generation protocol, where the heartbeat carries everything."""

from typing import Any, Final

from millstream.testing.history.group_events import PartitionName
from millstream.testing.protocol_members.member import FENCED_CODES, MemberRefused, ProtocolMember
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)

JOINING, LEAVING, LEAVING_FOR_NOW = 0, -1, -2
VERSIONS: Final = range(1, 2)
"""From 1 on members choose their ids themselves."""


class ConsumerMember(ProtocolMember):
    """The coordinator assigns; revoked partitions are given up before that is confirmed."""

    server_assignor: str | None = None
    _must_send_all = True

    def __init__(self, *arguments: Any, member_id: str) -> None:
        super().__init__(*arguments)
        self.member_id = member_id
        self.generation = JOINING

    async def step(self) -> None:
        if not self._must_send_all:
            await self.pause(self.spec.heartbeat_s)
        if await self._heartbeat(self.generation):
            await self.work()

    async def leave(self) -> None:
        self.give_up_all()
        if self.generation > JOINING:
            epoch = LEAVING if self.spec.instance is None else LEAVING_FOR_NOW
            await self.send(self._request(epoch, is_full=False), VERSIONS)

    def _request(self, epoch: int, *, is_full: bool) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.spec.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.spec.instance,
        )
        if not is_full:
            return request
        return ConsumerGroupHeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=epoch,
            instance_id=request.instance_id,
            rebalance_timeout_ms=self.spec.rebalance_ms,
            subscribed_topic_names=list(self.spec.topics),
            server_assignor=self.server_assignor,
            topic_partitions=self._owned() if epoch != JOINING else [],
        )

    async def _heartbeat(self, epoch: int) -> bool:
        request = self._request(epoch, is_full=self._must_send_all)
        # Unless this request is answered, the next one carries everything again.
        self._must_send_all = True
        answer = await self.send(request, VERSIONS)
        code = ErrorCode(answer.error_code)
        if code in FENCED_CODES:
            self.generation = JOINING
            self.lose_all()
            return False
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            await self.pause(self.spec.back_off_s)
            return False
        if code is not ErrorCode.NONE:
            if not await self.back_off_if_retriable(code):
                raise MemberRefused("ConsumerGroupHeartbeat", code)
            return False
        self._must_send_all = False
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            self._take(set(self._partitions_in(answer.assignment)))
        else:
            self.is_stable = True
        return True

    def _take(self, assigned: set[PartitionName]) -> None:
        gone = sorted(self.positions.keys() - assigned)
        added = sorted(assigned - self.positions.keys())
        self.give_up(gone)
        self.take_over(added)
        # The coordinator waits for the confirmation of both.
        self._must_send_all = bool(gone or added)
        self.is_stable = not self._must_send_all

    def _partitions_in(self, assignment: Any) -> list[PartitionName]:
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

    def _identity(self) -> tuple[str | None, int]:
        return self.member_id, self.generation

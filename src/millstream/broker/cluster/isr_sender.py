"""Sends the ISR proposals of leaders to the controller: one AlterPartition for all that wait.

A proposal whose answer was lost is sent again: it names the partition epoch it is based on, so that
it cannot be applied twice. The leader drops a proposal only after a definite answer.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from millstream.broker.cluster.controller_calls import ControllerCalls, GivenUp
from millstream.broker.requests.dispatch import Spawn
from millstream.controller.cluster.errors import NotController, StaleBrokerEpoch
from millstream.controller.cluster.port import ClusterController, IsrChange
from millstream.controller.image import PartitionImage
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch
from millstream.replication.errors import ProposalRefused
from millstream.replication.isr_port import IsrAnswer, IsrProposal, IsrState
from millstream.rpc.errors import RpcError
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
    ResponsePartitionData,
)
from millstream.wire.primitives import MalformedFrame

PROPOSALS_MAX: Final = 1_000
"""In one request; the rest wait for the next one."""

PURPOSE: Final = "isr"

Done = Callable[[IsrAnswer], None]
Waiting = tuple[IsrProposal, Done]
Outcome = IsrState | str
"""The new state, or why there is none."""


class IsrRefused(OperatingError):
    """Refused by the controller, which may have accepted an earlier attempt: see the metadata."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the change was refused: {reason}")


class _NotSeenYet(NotController):
    """The controller does not have this registration yet; nothing was changed."""


class IsrSender:
    """Implements `IsrProposals`; runs on the loop's thread."""

    def __init__(
        self,
        calls: ControllerCalls,
        *,
        broker_id: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch | None],
        spawn: Spawn,
    ) -> None:
        """`broker_epoch` is that of the current registration; None without one."""
        self._calls = calls
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._spawn = spawn
        self._waiting: list[Waiting] = []
        self._is_sending = False

    def propose(self, proposal: IsrProposal, done: Done) -> None:
        self._waiting.append((proposal, done))
        if not self._is_sending:
            self._is_sending = True
            self._spawn(self._send_all(), "in-sync replicas")

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = (
                    self._waiting[:PROPOSALS_MAX],
                    self._waiting[PROPOSALS_MAX:],
                )
                for (_, done), answer in zip(batch, await self._answers(batch), strict=True):
                    done(answer)
        finally:
            self._is_sending = False

    async def _answers(self, batch: Sequence[Waiting]) -> list[IsrAnswer]:
        epoch = self._broker_epoch()
        if epoch is None:
            return [NotController()] * len(batch)
        proposals = [proposal for proposal, _ in batch]
        is_sure = True
        """Whether no earlier attempt can have been applied without its answer arriving."""

        async def call_local(controller: ClusterController) -> list[Outcome]:
            nonlocal is_sure
            try:
                return await self._decide_locally(controller, proposals, epoch)
            except NotController as error:
                is_sure &= isinstance(error, _NotSeenYet)
                raise

        async def call_remote(send: Callable[[Any], Any]) -> list[Outcome]:
            nonlocal is_sure
            try:
                return _read(await send(self._request(proposals, epoch)), proposals)
            except (NotController, RpcError, MalformedFrame) as error:
                is_sure &= isinstance(error, RpcError) and not error.may_have_been_processed
                raise

        try:
            outcomes = await self._calls.call(
                call_local,
                call_remote,
                purpose=PURPOSE,
                is_wanted=lambda: self._broker_epoch() == epoch,
            )
            return [_answer(one, is_sure=is_sure) for one in outcomes]
        except GivenUp:
            # The leaderships of that epoch are over: the answer is not used any more.
            return [StaleBrokerEpoch(self._broker_id, epoch)] * len(batch)

    async def _decide_locally(
        self, controller: ClusterController, proposals: Sequence[IsrProposal], epoch: BrokerEpoch
    ) -> list[Outcome]:
        changes = [
            IsrChange(
                one.topic_id,
                one.partition.partition,
                one.leader_epoch,
                one.partition_epoch,
                tuple((member.broker_id, member.broker_epoch) for member in one.isr),
            )
            for one in proposals
        ]
        try:
            outcomes = await controller.alter_partitions(
                changes, broker_id=self._broker_id, broker_epoch=epoch
            )
        except StaleBrokerEpoch:
            raise _NotSeenYet from None
        return [_state(one) if isinstance(one, PartitionImage) else str(one) for one in outcomes]

    def _request(
        self, proposals: Sequence[IsrProposal], epoch: BrokerEpoch
    ) -> AlterPartitionRequest:
        topics: dict[Any, list[RequestPartitionData]] = {}
        for one in proposals:
            data = RequestPartitionData(
                partition_index=one.partition.partition,
                leader_epoch=one.leader_epoch,
                partition_epoch=one.partition_epoch,
                new_isr_with_epochs=[
                    BrokerState(broker_id=member.broker_id, broker_epoch=member.broker_epoch)
                    for member in one.isr
                ],
            )
            topics.setdefault(one.topic_id, []).append(data)
        return AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=epoch,
            topics=[
                RequestTopicData(topic_id=key, partitions=all_) for key, all_ in topics.items()
            ],
        )


def _state(one: PartitionImage) -> IsrState:
    return IsrState(one.leader, one.leader_epoch, one.isr, one.partition_epoch)


def _read(response: AlterPartitionResponse, proposals: Sequence[IsrProposal]) -> list[Outcome]:
    if response.error_code:
        return [ErrorCode(response.error_code).name] * len(proposals)
    found = {
        (topic.topic_id, one.partition_index): one
        for topic in response.topics
        for one in topic.partitions
    }
    return [_outcome(found.get((one.topic_id, one.partition.partition))) for one in proposals]


def _outcome(one: ResponsePartitionData | None) -> Outcome:
    if one is None:
        return "missing in the response"
    if one.error_code:
        return ErrorCode(one.error_code).name
    isr = tuple(map(BrokerId, one.isr))
    return IsrState(
        BrokerId(one.leader_id), LeaderEpoch(one.leader_epoch), isr, one.partition_epoch
    )


def _answer(outcome: Outcome, *, is_sure: bool) -> IsrAnswer:
    if isinstance(outcome, IsrState):
        return outcome
    return ProposalRefused(outcome) if is_sure else IsrRefused(outcome)

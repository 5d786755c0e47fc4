"""Reports replicas whose log has failed to the controller.

A broker whose disk fails is alive, so no other broker would notice: it would remain the leader and
refuse requests. What has to be reported is determined at each check, from the failed logs and the
metadata. So no state is kept across changes of the controller and new registrations of this broker.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final
from uuid import UUID

from millstream.broker.cluster.controller_calls import ControllerCalls, GivenUp
from millstream.controller.cluster.errors import NotController, StaleBrokerEpoch
from millstream.controller.cluster.port import ClusterController, LostReplica, ReplicaName
from millstream.controller.identity import LOST_DIRECTORY
from millstream.controller.image import ClusterImage
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId, TopicId
from millstream.observe.logs import get_logger
from millstream.replication.partitions import Partitions
from millstream.runtime.scheduler import chunked, run_on_loop
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    RequestDirectoryData,
    RequestPartitionData,
    RequestTopicData,
)

log = get_logger("millstream.broker.lost")

CHECK_INTERVAL_S: Final = 0.5
"""A failure is reported within this time; a check without one costs nothing."""

REPLICAS_MAX: Final = 2_000
"""In one request; the rest follow in the next one. Kafka's brokers send 2250 at most."""

PURPOSE: Final = "lost"


class LostReplicas:
    """One per broker; runs on the loop's thread."""

    def __init__(
        self,
        calls: ControllerCalls,
        partitions: Callable[[], Partitions],
        image: Callable[[], ClusterImage],
        *,
        broker_id: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
    ) -> None:
        """`image` is this broker's metadata; `broker_epoch` NO_BROKER_EPOCH without a session."""
        self._calls = calls
        self._partitions = partitions
        self._image = image
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch

    def check(self) -> Coroutine[Any, Any, None] | None:
        """The work to do now; None if there is nothing to report."""
        if not self._partitions().has_lost or self._broker_epoch() == NO_BROKER_EPOCH:
            return None
        return self._report(self._broker_epoch())

    async def _report(self, epoch: BrokerEpoch) -> None:
        found = await run_on_loop(self._partitions().find_lost_steps())
        lost = [LostReplica(*one) for one in found if not self._is_known(*one)]
        for part in chunked(lost, REPLICAS_MAX):
            try:
                await self._send(part, epoch)
            except GivenUp:
                return  # the next epoch's check finds them again
            log.warning("reported offline replicas to the controller", partitions=len(part))

    def _is_known(self, topic_id: TopicId, index: int) -> bool:
        """Whether the metadata has the replica as lost, or has no such replica any more."""
        topic = self._image().topics_by_id.get(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return True
        partition = topic.partitions[index]
        return self._broker_id not in partition.replicas or self._broker_id in partition.lost

    async def _send(self, lost: Sequence[LostReplica], epoch: BrokerEpoch) -> None:
        """Until a controller has recorded it; repeating it does no harm."""

        async def call_local(controller: ClusterController) -> None:
            try:
                await controller.lose_replicas(lost, broker_id=self._broker_id, broker_epoch=epoch)
            except StaleBrokerEpoch:
                raise NotController from None  # it has not seen this registration yet

        async def call_remote(send: Callable[[Any], Any]) -> None:
            await send(assign_request(lost, LOST_DIRECTORY, self._broker_id, epoch))

        await self._calls.call(
            call_local,
            call_remote,
            purpose=PURPOSE,
            is_wanted=lambda: self._broker_epoch() == epoch,
        )


def assign_request(
    replicas: Sequence[ReplicaName], directory: UUID, broker_id: BrokerId, epoch: BrokerEpoch
) -> AssignReplicasToDirsRequest:
    """All of them in one directory."""
    topics: dict[TopicId, list[RequestPartitionData]] = {}
    for one in replicas:
        data = RequestPartitionData(partition_index=one.partition)
        topics.setdefault(one.topic_id, []).append(data)
    return AssignReplicasToDirsRequest(
        broker_id=broker_id,
        broker_epoch=epoch,
        directories=[
            RequestDirectoryData(
                id=directory,
                topics=[
                    RequestTopicData(topic_id=key, partitions=all_) for key, all_ in topics.items()
                ],
            )
        ],
    )

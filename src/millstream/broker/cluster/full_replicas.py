"""Reports replicas that cannot grow to the controller, and when they can again (ADR 0027).

A broker whose disk is full is alive and refuses every append, so what it leads is unavailable for
producers although other replicas have room, and acks=all waits for what it follows. What has to be
reported is determined at each check, from the full directories and the metadata. What was reported
is kept until it is reported as usable; a new registration removes the marks.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from millstream.broker.cluster.controller_calls import ControllerCalls, GivenUp
from millstream.broker.cluster.lost_replicas import REPLICAS_MAX, assign_request
from millstream.controller.cluster.elections import Electorate
from millstream.controller.cluster.errors import NotController, StaleBrokerEpoch
from millstream.controller.cluster.full_replicas import can_step_back
from millstream.controller.cluster.port import ClusterController, ReplicaName
from millstream.controller.identity import FULL_DIRECTORY, USABLE_DIRECTORY
from millstream.controller.image import ClusterImage
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.observe.logs import get_logger
from millstream.replication.partitions import Partitions
from millstream.runtime.scheduler import chunked, run_on_loop

log = get_logger("millstream.broker.full")

PURPOSE: Final = "full"


class FullReplicas:
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
        """As `LostReplicas`."""
        self._calls = calls
        self._partitions = partitions
        self._image = image
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._marked: set[ReplicaName] = set()
        """Full or lost for the controller, or perhaps, and to be reported when they are usable."""
        self._marked_epoch = NO_BROKER_EPOCH

    def note_usable(self, replica: ReplicaName) -> None:
        """A lost replica has begun from the beginning: it is reported as usable."""
        self._marked.add(replica)
        self._marked_epoch = self._broker_epoch()

    def check(self) -> Coroutine[Any, Any, None] | None:
        """The work to do now; None if there is nothing to report."""
        epoch = self._broker_epoch()
        if self._marked_epoch != epoch:
            self._marked.clear()
        has_work = self._marked or self._partitions().has_full
        return self._report(epoch) if has_work and epoch != NO_BROKER_EPOCH else None

    async def _report(self, epoch: BrokerEpoch) -> None:
        found = await run_on_loop(self._partitions().find_full_steps())
        full = [ReplicaName(*one) for one in found]
        new = [one for one in full if self._is_due(one)]
        if self._marked.difference(full):
            # Usable would remove the mark as lost, too. A log that begins again is noted by itself.
            failed = await run_on_loop(self._partitions().find_lost_steps())
            self._marked.difference_update(ReplicaName(*one) for one in failed)
        usable = sorted(self._marked.difference(full))
        try:
            for part in chunked(new, REPLICAS_MAX):
                self._marked_epoch = epoch
                self._marked.update(part)
                await self._send(part, epoch, is_full=True)
                log.warning("reported full replicas to the controller", partitions=len(part))
            for part in chunked(usable, REPLICAS_MAX):
                await self._send(part, epoch, is_full=False)
                self._marked.difference_update(part)
                log.info("reported usable replicas to the controller", partitions=len(part))
        except GivenUp:
            return  # the next epoch's check finds them again

    def _is_due(self, one: ReplicaName) -> bool:
        """Whether the mark is missing, or another replica could take over by now."""
        image = self._image()
        topic = image.topics_by_id.get(one.topic_id)
        if topic is None or not 0 <= one.partition < len(topic.partitions):
            return False
        partition, me = topic.partitions[one.partition], self._broker_id
        if me not in partition.replicas or me in partition.lost:
            return False
        if me not in partition.full:
            return True
        return can_step_back(partition, me, Electorate.of(image.brokers))

    async def _send(
        self, replicas: Sequence[ReplicaName], epoch: BrokerEpoch, *, is_full: bool
    ) -> None:
        """Until a controller has recorded it; repeating it does no harm."""

        async def call_local(controller: ClusterController) -> None:
            try:
                await controller.note_room(
                    replicas, is_full=is_full, broker_id=self._broker_id, broker_epoch=epoch
                )
            except StaleBrokerEpoch:
                raise NotController from None  # it has not seen this registration yet

        async def call_remote(send: Callable[[Any], Any]) -> None:
            directory = FULL_DIRECTORY if is_full else USABLE_DIRECTORY
            await send(assign_request(replicas, directory, self._broker_id, epoch))

        await self._calls.call(
            call_local,
            call_remote,
            purpose=PURPOSE,
            is_wanted=lambda: self._broker_epoch() == epoch,
        )

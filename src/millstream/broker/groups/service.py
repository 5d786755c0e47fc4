"""Hosts the group coordinator in a broker.

Its modules are imported when this broker first leads a partition of the offsets topic, or with the
first request: a broker without groups starts as fast as before.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from millstream.controller.topics import NewTopic
from millstream.model.errors import OperatingError
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import StepGenerator

if TYPE_CHECKING:
    from millstream.broker.groups.topics import ImageTopics
    from millstream.broker.requests.services import Services
    from millstream.controller.image import ImageChange, TopicImage
    from millstream.groups.coordinator import GroupCoordinator
    from millstream.groups.memory import GroupMemory
    from millstream.groups.shard import Shard
    from millstream.model.ids import LeaderEpoch
    from millstream.runtime.clock import Clock
    from millstream.runtime.scheduler import CooperativeScheduler
    from millstream.runtime.timers import Timers
    from millstream.shards.effects import Outbox
    from millstream.storage.ports import PartitionLog

log = get_logger("millstream.broker.groups")

OFFSETS_TOPIC: Final = "__consumer_offsets"
REPLICATION_FACTOR: Final = "offsets.topic.replication.factor"
CREATE_WAIT_S: Final = 5.0
"""For the offsets topic; then the client has to retry, while its creation continues."""
MEMBER_PREFIX_CHARACTERS_MAX: Final = 8_000
"""Of a client id or instance id in a member id, which must fit a string of the protocol whatever
the characters are: otherwise responses with it, and the group's record, could not be encoded."""


@dataclass(slots=True, kw_only=True)
class GroupServiceDependencies:
    """What it takes from its broker."""

    services: "Callable[[], Services]"
    clock: "Clock"
    """For the deadlines of members: it does not go on while the broker does not serve them."""
    timers: "Timers"
    scheduler: "CooperativeScheduler"
    spawn: Callable[[Coroutine[Any, Any, None], str], None]
    at_iteration_end: Callable[[Callable[[], None]], object]
    """Calls back once, at the end of the event-loop iteration."""


class GroupService:
    """Implements `storage.ports.LeadershipListener` for the offsets topic."""

    def __init__(self, dependencies: GroupServiceDependencies) -> None:
        self._dependencies = dependencies
        self._coordinator: GroupCoordinator | None = None
        self._topics: ImageTopics | None = None
        self._creating: asyncio.Future[None] | None = None
        self._is_stopped = False
        self._memory: GroupMemory | None = None

    @property
    def members_bytes(self) -> int:
        """What the members of all groups keep in memory."""
        return 0 if self._memory is None else self._memory.size_bytes

    @property
    def loaded(self) -> "GroupCoordinator | None":
        """The coordinator, if it has been needed."""
        return self._coordinator

    @property
    def coordinator(self) -> "GroupCoordinator":
        if self._coordinator is None:
            self._coordinator = self._make()
            if self._is_stopped:  # metadata arrived while the broker stops
                self._coordinator.stop()
        return self._coordinator

    def _make(self) -> "GroupCoordinator":
        from millstream.broker.groups.settings import BrokerGroupSettings
        from millstream.broker.groups.topics import ImageTopics
        from millstream.groups.coordinator import GroupCoordinator, GroupDependencies
        from millstream.groups.memory import GroupMemory
        from millstream.groups.shard import Shard

        memory = self._memory = GroupMemory()
        services = self._dependencies.services
        settings = BrokerGroupSettings(services)
        topics = self._topics = ImageTopics(services)
        randomness = services().randomness

        def new_member_id(prefix: str) -> Any:
            from uuid import UUID

            made = UUID(bytes=randomness.bytes(16), version=4)
            return f"{prefix[:MEMBER_PREFIX_CHARACTERS_MAX]}-{made}"

        def new_shard(index: int, outbox: "Outbox") -> "Shard":
            return Shard(
                index,
                settings=settings,
                outbox=outbox,
                new_member_id=new_member_id,
                topics=topics,
                memory=memory,
            )

        return GroupCoordinator(
            GroupDependencies(
                clock=self._dependencies.clock,
                timers=self._dependencies.timers,
                scheduler=self._dependencies.scheduler,
                settings=settings,
                new_shard=new_shard,
                partition_of=self.partition_of,
                awaited=self._awaited,
                at_iteration_end=self._dependencies.at_iteration_end,
            )
        )

    # -- leadership ------------------------------------------------------------------------

    def leadership_gained(self, log: "PartitionLog", leader_epoch: "LeaderEpoch") -> None:
        self.coordinator.shards.leadership_gained(log, leader_epoch)

    def leadership_lost(self, log: "PartitionLog") -> None:
        self.coordinator.leadership_lost(log)

    def high_watermark_moved(self, log: "PartitionLog") -> None:
        self.coordinator.shards.high_watermark_moved(log)

    # -- requests --------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int:
        """The partition of the offsets topic that the group is in."""
        from millstream.groups.records.partition_of import partition_of

        topic = self._topic
        if topic is not None:
            return partition_of(group_id, len(topic.partitions))
        count = self._dependencies.services().configs.get_int("offsets.topic.num.partitions")
        return partition_of(group_id, count)

    def _awaited(self, group_id: str) -> int | None:
        """See `shards.early_requests.Awaited`."""
        from millstream.shards.early_requests import TOPIC_UNKNOWN

        services, topic = self._dependencies.services(), self._topic
        if topic is None:
            # The broker that sent the client here may know a topic that this one does not yet.
            return TOPIC_UNKNOWN if services.membership is not None else None
        index = self.partition_of(group_id)
        return index if topic.partitions[index].leader == services.broker_id else None

    # -- topics ----------------------------------------------------------------------------

    @property
    def _topic(self) -> "TopicImage | None":
        return self._dependencies.services().image.topics.get(OFFSETS_TOPIC)

    def metadata_changed_steps(self, change: "ImageChange") -> StepGenerator[None]:
        """Notify groups of created, deleted and grown topics, in steps."""
        coordinator, topics = self._coordinator, self._topics
        if coordinator is None or topics is None:
            return
        coordinator.on_metadata_changed()
        deleted = [topic.name for topic in change.deleted]
        names = {topic.name for topic in change.created}
        names |= {grown.topic.name for grown in change.grown}
        names.update(deleted)
        if names or change.brokers_changed:
            topics.changed(is_any_created=bool(change.created))
        if names:
            yield from coordinator.topics_changed_steps(names, deleted)

    async def topic(self) -> "TopicImage | None":
        """The offsets topic, created if it does not exist; None if that is not possible now."""
        found = self._topic
        if found is not None:
            return found
        if self._creating is None:
            self._creating = asyncio.get_running_loop().create_future()
            self._dependencies.spawn(self._create(self._creating), "create the offsets topic")
        try:
            async with asyncio.timeout(CREATE_WAIT_S):
                await asyncio.shield(self._creating)
        except TimeoutError:
            return None
        return self._topic

    async def _create(self, done: "asyncio.Future[None]") -> None:
        """One creation for all requests that wait for it."""
        services = self._dependencies.services()
        try:
            error = await self._try_create(services)
            if error is not None and self._topic is None:
                message = f"cannot create topic {OFFSETS_TOPIC}; consumer groups are waiting for it"
                services.client_log.warning(log, message, client="", reason=error)
        finally:
            self._creating = None
            if not done.done():
                done.set_result(None)

    async def _try_create(self, services: "Services") -> str | None:
        """The error, or None if it was created."""
        topic = self._new_topic(services)
        try:
            if services.membership is not None:
                codes = await services.membership.create_missing([topic])
                return next((code.text for code in codes.values()), None)
            (outcome,) = await services.controller.create_topics([topic])
        except OperatingError as error:
            return str(error)
        return str(outcome) if isinstance(outcome, OperatingError) else None

    def _new_topic(self, services: "Services") -> NewTopic:
        """With Kafka's settings."""
        configs = services.configs
        is_standalone = services.membership is None and not configs.is_set(REPLICATION_FACTOR)
        return NewTopic(
            name=OFFSETS_TOPIC,
            partition_count=configs.get_int("offsets.topic.num.partitions"),
            # Kafka's default is three, which a standalone broker cannot have.
            replication_factor=1 if is_standalone else configs.get_int(REPLICATION_FACTOR),
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(configs.get_int("offsets.topic.segment.bytes")),
            },
        )

    def stop(self) -> None:
        """Stop all timers."""
        self._is_stopped = True
        if self._coordinator is not None:
            self._coordinator.stop()

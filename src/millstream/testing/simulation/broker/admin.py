"""A simulated administrator, and what must hold for topics whatever happens.

What was acknowledged or once seen stays so: a topic exists until its deletion is requested; one
that was gone never comes back, and its id is not given again; partitions are never removed; a
config has the value that was set last; deleted records stay deleted.
"""

from typing import Final
from uuid import UUID

from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.checker import PartitionName
from millstream.testing.simulation.broker.client import RETRIABLE, Client
from millstream.testing.simulation.broker.consumers import EARLIEST, LATEST, list_offset
from millstream.testing.simulation.broker.scene import FLUSH_EVERY, Scene, Topic
from millstream.testing.simulation.broker.watch import require
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseTopic,
)

TOPIC_RESOURCE: Final = 2
SET: Final = 0
ALTERED_KEY: Final = "delete.retention.ms"
"""A setting that changes nothing here but itself."""
TEMPORARY: Final = "temp"
PARTITIONS_MAX: Final = 5
_NO_ID: Final = UUID(int=0)


class TopicLedger:
    """What must hold for topics, by the answers that the administrator got."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._present: dict[UUID, str] = {}
        self._gone: set[UUID] = set()
        self._partition_counts: dict[UUID, int] = {}
        self.settings: dict[UUID, set[str]] = {}
        """Values of `ALTERED_KEY` that are possible now."""
        self.starts: dict[PartitionName, tuple[int, int]] = {}
        """Lowest and highest possible start of each log whose front was deleted."""

    def seen(self, topic: MetadataResponseTopic) -> None:
        topic_id, name = topic.topic_id, topic.name or ""
        require(topic_id not in self._gone, "a deleted topic is back", topic=name, id=topic_id)
        self._present[topic_id] = name
        known = self._partition_counts.get(topic_id, 0)
        count = len(topic.partitions)
        require(count >= known, "partitions are gone", topic=name, have=count, known=known)
        self._partition_counts[topic_id] = count

    def created(self, name: str, topic_id: UUID, partition_count: int) -> None:
        require(topic_id not in self._gone, "a topic id was given again", id=topic_id)
        self._present[topic_id] = name
        self._partition_counts[topic_id] = partition_count

    def grown(self, topic_id: UUID, partition_count: int) -> None:
        self._partition_counts[topic_id] = partition_count

    def missing(self, topic_id: UUID) -> None:
        """It was not in a listing of all topics, or its deletion was acknowledged."""
        name = self._present.pop(topic_id)
        is_requested = topic_id in self._scene.deletion_requested
        require(is_requested, "a topic is gone that was not deleted", topic=name, id=topic_id)
        self._gone.add(topic_id)
        self._scene.topics.pop(topic_id, None)

    def take_listing(self, response: MetadataResponse) -> None:
        """Check a listing of all topics."""
        listed = {topic.topic_id for topic in response.topics}
        for topic in response.topics:
            self.seen(topic)
        for topic_id in [one for one in self._present if one not in listed]:
            self.missing(topic_id)


class Admin(Client):
    """One action after the other, each completed before the next."""

    def __init__(self, scene: Scene, name: str, randomness: SeededRandomness) -> None:
        super().__init__(scene, name, randomness)
        self.ledger = TopicLedger(scene)
        self.enabled_actions: frozenset[str] = frozenset()
        """The actions that are switched on in this run."""
        self._made_count = 0

    async def work(self) -> None:
        actions = {
            "create topic": self._create_temporary,
            "delete topic": self._delete_temporary,
            "create partitions": self._grow,
            "alter config": self._alter,
            "delete records": self._delete_records,
            "list topics": self.list_topics,
        }
        enabled = [name for name in actions if name in self.enabled_actions] or ["list topics"]
        while not self.scene.is_ending:
            name = self.randomness.choice(enabled)
            self.scene.counts[name] += 1
            await actions[name]()
            await self.pause(0.0, 1.0)

    async def finish(self) -> None:
        """Check everything once more."""
        await self.list_topics()
        for topic in list(self.scene.topics.values()):
            await self._check_setting(topic)
        for partition_name, (low, high) in self.ledger.starts.items():
            at = self._topic_at(partition_name)
            if at is not None:
                start = await list_offset(self, at, partition_name[1], EARLIEST)
                require(
                    low <= start <= high,
                    "a log's start",
                    partition_name=partition_name,
                    start=start,
                    low=low,
                )
        await self._connections.close()

    def _topic_at(self, partition_name: PartitionName) -> Topic | None:
        topics = self.scene.topics.values()
        return next((one for one in topics if one.partition_name(0)[0] == partition_name[0]), None)

    # -- topics ----------------------------------------------------------------------------

    async def create(self, name: str, partition_count: int, *, is_durable: bool) -> Topic:
        """Send requests until the topic exists."""
        segment_bytes = self.randomness.choice([4_000, 20_000, 500_000])
        configs = {"internal.segment.bytes": str(segment_bytes), "retention.ms": "-1"}
        configs["file.delete.delay.ms"] = self.randomness.choice(["0", "1000", "60000"])
        if is_durable:
            configs[FLUSH_EVERY] = "1"
        wanted = CreatableTopic(
            name=name,
            num_partitions=partition_count,
            replication_factor=1,
            configs=[CreatableTopicConfig(name=key, value=text) for key, text in configs.items()],
        )
        while True:
            try:
                response = await self.call(CreateTopicsRequest(topics=[wanted]))
                code = response.topics[0].error_code
                if code == ErrorCode.NONE:
                    self.ledger.created(name, response.topics[0].topic_id, partition_count)
                    break
                if code == ErrorCode.TOPIC_ALREADY_EXISTS:
                    break
                require(code in RETRIABLE, "CreateTopics", code=code)
            except RpcError:
                pass
            await self.pause(0.05, 0.5)
        listed = [one for one in (await self.list_topics()).topics if one.name == name]
        require(listed, "a topic that was created does not exist", topic=name)
        topic = listed[0]
        found = Topic(name, topic.topic_id, len(topic.partitions), is_durable, segment_bytes)
        self.scene.topics[topic.topic_id] = found
        self.ledger.settings.setdefault(topic.topic_id, {"86400000"})
        return found

    async def list_topics(self) -> MetadataResponse:
        while True:
            response: MetadataResponse = await self.call_with_retries(MetadataRequest(topics=None))
            if not any(one.error_code for one in response.topics):
                break
            await self.pause(0.05, 0.5)
        self.ledger.take_listing(response)
        return response

    async def _create_temporary(self) -> None:
        names = {one.name for one in self.scene.topics.values()}
        name = f"{TEMPORARY}-{self.randomness.integer(0, 3)}"
        if name not in names:
            count = self.randomness.integer(1, 3)
            await self.create(name, count, is_durable=self.randomness.chance(0.5))

    async def _delete_temporary(self) -> None:
        topics = [one for one in self.scene.topics.values() if one.name.startswith(TEMPORARY)]
        if not topics:
            return
        topic = self.randomness.choice(topics)
        self.scene.deletion_requested.add(topic.topic_id)
        if self.randomness.chance(0.5):
            state = DeleteTopicState(topic_id=topic.topic_id)
        else:
            state = DeleteTopicState(name=topic.name)
        while True:
            try:
                response = await self.call(DeleteTopicsRequest(topics=[state], timeout_ms=5000))
            except RpcError:
                if topic.topic_id not in {
                    one.topic_id for one in (await self.list_topics()).topics
                }:
                    return
                continue
            code = response.responses[0].error_code
            if code in (
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            ):
                break
            require(code in RETRIABLE, "DeleteTopics", code=code)
            await self.pause(0.05, 0.5)
        if topic.topic_id in self.scene.topics:
            self.ledger.missing(topic.topic_id)

    async def _grow(self) -> None:
        topics = [t for t in self.scene.topics.values() if t.partition_count < PARTITIONS_MAX]
        if not topics:
            return
        topic = self.randomness.choice(topics)
        count = topic.partition_count + 1
        wanted = CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        try:
            response = await self.call(CreatePartitionsRequest(topics=[wanted], timeout_ms=5000))
        except RpcError:
            return
        code = response.results[0].error_code
        if code == ErrorCode.NONE:
            self.ledger.grown(topic.topic_id, count)
            self.scene.topics[topic.topic_id] = topic._replace(partition_count=count)
        else:
            # It may have been done by an earlier request whose answer was lost.
            is_known = code in RETRIABLE or code == ErrorCode.INVALID_PARTITIONS
            require(is_known, "CreatePartitions", code=code)
            if code == ErrorCode.INVALID_PARTITIONS:
                self.scene.topics[topic.topic_id] = topic._replace(partition_count=count)

    # -- settings and records --------------------------------------------------------------

    async def _alter(self) -> None:
        if not self.scene.topics:
            return
        topic = self.randomness.choice(list(self.scene.topics.values()))
        value = str(self.randomness.integer(1, 10**9))
        change = AlterableConfig(name=ALTERED_KEY, config_operation=SET, value=value)
        resource = AlterConfigsResource(
            resource_type=TOPIC_RESOURCE, resource_name=topic.name, configs=[change]
        )
        possible = self.ledger.settings[topic.topic_id]
        possible.add(value)
        try:
            response = await self.call(IncrementalAlterConfigsRequest(resources=[resource]))
        except RpcError:
            return
        code = response.responses[0].error_code
        if code == ErrorCode.NONE:
            self.ledger.settings[topic.topic_id] = {value}
            await self._check_setting(topic)
        else:
            require(code in RETRIABLE, "IncrementalAlterConfigs", code=code)

    async def _check_setting(self, topic: Topic) -> None:
        resource = DescribeConfigsResource(
            resource_type=TOPIC_RESOURCE,
            resource_name=topic.name,
            configuration_keys=[ALTERED_KEY],
        )
        response = await self.call_with_retries(DescribeConfigsRequest(resources=[resource]))
        value = response.results[0].configs[0].value
        possible = self.ledger.settings[topic.topic_id]
        require(value in possible, "a setting", topic=topic.name, have=value, possible=possible)

    async def _delete_records(self) -> None:
        if not self.scene.topics:
            return
        topic = self.randomness.choice(list(self.scene.topics.values()))
        partition = self.randomness.integer(0, topic.partition_count)
        partition_name = topic.partition_name(partition)
        end = await list_offset(self, topic, partition, LATEST)
        # What was stored and not acknowledged is sent again, and has to be known then. A broker
        # whose log no longer has it may know no more than that the sequence is not the next.
        end = min(end, self.scene.history.acked_end(partition_name))
        offset = self.randomness.integer(0, end + 1)
        low, high = self.ledger.starts.get(partition_name, (0, 0))
        self.ledger.starts[partition_name] = (low, max(high, offset))
        part = DeleteRecordsPartition(partition_index=partition, offset=offset)
        of_topic = DeleteRecordsTopic(name=topic.name, partitions=[part])
        try:
            response = await self.call(DeleteRecordsRequest(topics=[of_topic], timeout_ms=5000))
        except RpcError:
            return
        answer = response.topics[0].partitions[0]
        code = answer.error_code
        if code == ErrorCode.NONE:
            require(answer.low_watermark >= offset, "DeleteRecords", answer=answer)
            self.ledger.starts[partition_name] = (max(low, answer.low_watermark), max(high, offset))
        elif code != ErrorCode.OFFSET_OUT_OF_RANGE:
            require(code in RETRIABLE, "DeleteRecords", code=code)

"""What our client does with a cluster, whoever's it is: the same stories for every target."""

import asyncio
from collections.abc import Callable

import pytest

from kits.process.waiting_for import until
from millstream.client.admin import (
    HIGH_WATERMARK,
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ConfigSource,
    CreatedTopic,
    NewTopic,
    or_raise,
)
from millstream.client.blocking import BlockingClient
from millstream.client.cluster import Cluster, LeaderConnection
from millstream.client.errors import (
    RequestRefused,
    TopicExists,
    TopicInvalid,
    TopicUnknown,
)
from millstream.client.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetSpec
from millstream.client.targets import LeaderOf
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.rpc.errors import RpcError
from millstream.testing.record_batches import build_batch
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

Story = Callable[[BlockingClient, str], None]
NOW_MS = 1_700_000_000_000


def created(client: BlockingClient, name: str, partitions: int = 1, **configs: str) -> CreatedTopic:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    wanted = NewTopic(name=name, partitions=partitions, replication_factor=1, configs=named)
    return or_raise(client.create_topics([wanted])[name])


def has_leaders(client: BlockingClient, name: str) -> bool:
    """A new topic may be known before its leaders are."""
    return all(one.leader is not None for one in client.topics([name])[name].partitions)


def append(client: BlockingClient, to: TopicPartition, *times_ms: int) -> int:
    """A batch of one record for each time, over the seam for hot paths; its first offset."""

    async def work(cluster: Cluster) -> int:
        attempts = cluster.attempts(cluster.deadline("append"))
        while True:
            leader = await cluster.leader_connection(to, purpose="produce")
            code, offset = await _produce(leader, to, times_ms)
            if code is ErrorCode.NONE:
                return offset
            await cluster.recover(attempts, code, to=LeaderOf(to))

    return client.run(work)


async def _produce(
    leader: LeaderConnection, to: TopicPartition, times_ms: tuple[int, ...]
) -> tuple[ErrorCode, int]:
    connection = leader.connection
    version = connection.version_of(ProduceRequest, range(3, 13))  # the next names topics by id
    pairs = [(b"k", b"v%d" % at) for at in range(len(times_ms))]
    batch = build_batch(pairs, timestamps=times_ms)
    data = PartitionProduceData(index=to.partition, records=batch)
    topic = TopicProduceData(name=to.topic, partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic])
    done: asyncio.Future[memoryview | RpcError] = asyncio.get_running_loop().create_future()
    connection.send_raw(ApiKey.PRODUCE, version, [request.encode(version)], done.set_result)
    body = await done
    assert isinstance(body, memoryview), body
    told = ProduceResponse.decode(body, version).responses[0].partition_responses[0]
    return ErrorCode(told.error_code), told.base_offset


# -- stories ---------------------------------------------------------------------------------------


def topics_are_made_shown_grown_and_removed(client: BlockingClient, name: str) -> None:
    made = created(client, name, 3)
    assert (made.partitions, made.replication_factor) == (3, 1)
    until(lambda: has_leaders(client, name), "every partition has a leader")
    topic = client.topics([name])[name]
    assert (topic.topic_id, topic.partition_count) == (made.topic_id, 3)
    assert not topic.is_internal
    for one in topic.partitions:
        assert one.leader is not None
        assert one.replicas == one.isr == (one.leader,)
    assert client.topics(pattern=f"{name[:-1]}.")[name] == topic
    assert client.list_topics()[name] == topic
    assert client.create_partitions({name: 5}) == {name: True}
    until(lambda: client.topics([name])[name].partition_count == 5, "a broker heard of them")
    assert client.delete_topics([name]) == {name: True}
    until(
        lambda: isinstance(client.describe_topics([name])[name], TopicUnknown),
        "a broker heard that it is gone",
    )
    again = created(client, name)
    assert again.topic_id != made.topic_id


def each_of_many_has_an_outcome_of_its_own(client: BlockingClient, name: str) -> None:
    created(client, name)
    outcomes = client.create_topics(
        [
            NewTopic(name=name, partitions=1),
            NewTopic(name="not possible", partitions=1),
            NewTopic(name=f"{name}-2", partitions=1, replication_factor=99),
            NewTopic(name=f"{name}-3", partitions=1, configs={"retention.ms": "soon"}),
            NewTopic(name=f"{name}-4", partitions=2),
        ]
    )
    assert isinstance(outcomes[name], TopicExists)
    assert isinstance(outcomes["not possible"], TopicInvalid)
    for number, code in ((2, ErrorCode.INVALID_REPLICATION_FACTOR), (3, ErrorCode.INVALID_CONFIG)):
        error = outcomes[f"{name}-{number}"]
        assert isinstance(error, RequestRefused)
        assert error.code is code
    assert or_raise(outcomes[f"{name}-4"]).partitions == 2
    gone = client.delete_topics([name, f"{name}-9"])
    assert gone[name] is True
    assert isinstance(gone[f"{name}-9"], TopicUnknown)
    fewer = client.create_partitions({f"{name}-4": 1})[f"{name}-4"]
    assert isinstance(fewer, RequestRefused)
    assert fewer.code is ErrorCode.INVALID_PARTITIONS


def a_creation_can_be_tried_without_doing_it(client: BlockingClient, name: str) -> None:
    wanted = NewTopic(name=name, partitions=2)
    tried = client.create_topics([wanted], validates_only=True)
    assert or_raise(tried[name]).partitions == 2
    assert name not in client.list_topics()


def offsets_are_found_by_end_time_and_epoch(client: BlockingClient, name: str) -> None:
    created(client, name, 2, retention_ms="-1")
    full, empty = TopicPartition(name, 0), TopicPartition(name, 1)
    assert append(client, full, NOW_MS, NOW_MS + 10) == 0
    assert append(client, full, NOW_MS + 5, NOW_MS + 20) == 2
    ends = client.list_offsets({full: LATEST, empty: LATEST})
    assert (ends[full].offset, ends[empty].offset) == (4, 0)
    assert client.list_offsets({full: EARLIEST})[full].offset == 0
    last = client.list_offsets({full: MAX_TIMESTAMP, empty: MAX_TIMESTAMP})
    assert (last[full].offset, last[full].timestamp_ms) == (3, NOW_MS + 20)
    assert last[empty].offset is None
    for after_ms, offset, found_ms in ((0, 0, 0), (1, 1, 10), (11, 3, 20)):
        found = client.list_offsets({full: OffsetSpec.at_time(NOW_MS + after_ms)})[full]
        assert (found.offset, found.timestamp_ms) == (offset, NOW_MS + found_ms)
        assert found.leader_epoch >= 0
    assert client.list_offsets({full: OffsetSpec.at_time(NOW_MS + 21)})[full].offset is None
    assert client.list_offsets({full: LATEST}, is_committed=True)[full].offset == 4
    epoch = LeaderEpoch(ends[full].leader_epoch)
    end = client.offsets_for_leader_epoch({full: epoch})[full]
    assert (end.leader_epoch, end.end_offset) == (epoch, 4)
    with pytest.raises(TopicUnknown, match="has no partition 2"):
        client.list_offsets({full: LATEST, TopicPartition(name, 2): LATEST})


def records_are_deleted_below_an_offset(client: BlockingClient, name: str) -> None:
    created(client, name, 2, retention_ms="-1")
    one, other = TopicPartition(name, 0), TopicPartition(name, 1)
    for partition in (one, other):
        append(client, partition, *range(NOW_MS, NOW_MS + 10))
    assert client.delete_records({one: Offset(4), other: HIGH_WATERMARK}) == {one: 4, other: 10}
    begins = client.list_offsets({one: EARLIEST, other: EARLIEST})
    assert (begins[one].offset, begins[other].offset) == (4, 10)
    refused = client.delete_records({one: Offset(11), other: Offset(10)})
    assert refused[other] == 10
    error = refused[one]
    assert isinstance(error, Exception)
    assert error.code is ErrorCode.OFFSET_OUT_OF_RANGE


def settings_are_shown_and_changed(client: BlockingClient, name: str) -> None:
    created(client, name, retention_ms="5000")
    topic = ConfigResource.topic(name)
    change = [
        ConfigChange("max.message.bytes", "2000"),
        ConfigChange("retention.ms", operation=ConfigOperation.DELETE),
        ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND),
    ]
    wrong = ConfigResource.topic(f"{name}-9")
    assert client.alter_configs({topic: change}) == {topic: True}
    assert isinstance(client.describe_configs([wrong])[wrong], TopicUnknown)
    wanted = {"max.message.bytes": "2000", "cleanup.policy": "delete,compact"}

    def changed() -> bool:
        """A broker of Apache Kafka's hears of it after the controller has answered."""
        entries = or_raise(client.describe_configs([topic])[topic])
        return {one.name: one.value for one in entries.values() if not one.is_default} == wanted

    until(changed, "the settings are shown as they were changed")
    entries = or_raise(client.describe_configs([topic])[topic])
    assert entries["max.message.bytes"].source is ConfigSource.TOPIC
    assert entries["retention.ms"].value == "604800000"
    refused = client.alter_configs({topic: [ConfigChange("max.message.bytes", "much")]})[topic]
    assert isinstance(refused, RequestRefused)
    assert refused.code is ErrorCode.INVALID_CONFIG
    (broker,) = client.describe_cluster().brokers
    one = ConfigResource.broker(broker.broker_id)
    named = or_raise(client.describe_configs([one], names=["num.partitions"])[one])
    assert list(named) == ["num.partitions"]


def the_cluster_is_described(client: BlockingClient, name: str) -> None:
    created(client, name)
    told = client.describe_cluster()
    (broker,) = told.brokers
    assert told.cluster_id
    assert told.controller_id == broker.broker_id
    assert f"{broker.host}:{broker.port}" == str(client.settings.bootstrap_servers[0])


def a_topic_that_is_not_there_is_told_soon(client: BlockingClient, name: str) -> None:
    with pytest.raises(TopicUnknown, match=name):
        client.topics([name])
    with pytest.raises(TopicUnknown, match=name):
        client.list_offsets({TopicPartition(name, 0): LATEST})
    assert name not in client.list_topics(), "reading made it"


STORIES: list[Story] = [
    topics_are_made_shown_grown_and_removed,
    each_of_many_has_an_outcome_of_its_own,
    a_creation_can_be_tried_without_doing_it,
    offsets_are_found_by_end_time_and_epoch,
    records_are_deleted_below_an_offset,
    settings_are_shown_and_changed,
    the_cluster_is_described,
    a_topic_that_is_not_there_is_told_soon,
]

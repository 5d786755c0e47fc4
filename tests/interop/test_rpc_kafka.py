"""Our request connection against a real Apache Kafka: versions, pipelining, long polls, acks=0."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.rpc.connection import Connection, connect
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import ConnectFailed, ConnectionLost, RpcError
from millstream.rpc.settings import RpcSettings
from millstream.runtime.network import LoopNetwork
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.peers.kafka import ApacheKafka
from millstream.testing.record_batches import build_batch
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

pytestmark = pytest.mark.interop

SETTINGS = RpcSettings(client_id="rpc-test")


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with ApacheKafka(tmp_path_factory.mktemp("rpc") / "kafka", jars=jars) as started:
        yield started


def address_of(kafka: ApacheKafka) -> tuple[str, int]:
    host, _, port = kafka.bootstrap_servers.partition(":")
    return host, int(port)


def play(kafka: ApacheKafka, scenario: Callable[[Connection], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        host, port = address_of(kafka)
        connection = await connect(LoopNetwork(), SETTINGS, host=host, port=port)
        try:
            async with asyncio.timeout(120):
                await scenario(connection)
        finally:
            connection.close()
            await connection.wait_closed()

    asyncio.run(main())


async def create(connection: Connection, name: str) -> None:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    response = await connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    while (await metadata(connection, name)).topics[0].error_code != ErrorCode.NONE:
        pass
    while await end_offset(connection, name) < 0:  # the metadata tells of it before it is led
        pass


async def metadata(connection: Connection, name: str, versions: range | None = None) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    return await connection.send(request, versions=versions)


def produce(name: str, value: bytes, *, acks: int) -> ProduceRequest:
    batch = build_batch([(None, value)])
    partition = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name=name, partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[topic])


async def end_offset(connection: Connection, name: str) -> int:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    topic = ListOffsetsTopic(name=name, partitions=[partition])
    response = await connection.send(ListOffsetsRequest(replica_id=-1, topics=[topic]))
    offset: int = response.topics[0].partitions[0].offset
    return offset


def test_every_common_version_of_metadata_is_spoken(kafka: ApacheKafka) -> None:
    async def scenario(connection: Connection) -> None:
        highest = connection.version_of(MetadataRequest)
        assert highest == APIS[ApiKey.METADATA].versions[-1]
        await create(connection, "spoken")
        for version in range(4, highest + 1):
            told = await metadata(connection, "spoken", range(version, version + 1))
            assert told.topics[0].name == "spoken"
            assert told.brokers[0].port == address_of(kafka)[1]

    play(kafka, scenario)


def test_many_requests_in_flight_each_get_their_answer(kafka: ApacheKafka) -> None:
    async def scenario(connection: Connection) -> None:
        names = [f"unknown-{n}" for n in range(300)]
        told = await asyncio.gather(*(metadata(connection, name) for name in names))
        assert [one.topics[0].name for one in told] == names

    play(kafka, scenario)


def test_produce_with_and_without_acks_and_a_raw_long_poll(kafka: ApacheKafka) -> None:
    async def scenario(connection: Connection) -> None:
        await create(connection, "written")
        named = range(3, 13)  # the next version names topics by id
        start = await end_offset(connection, "written")
        for number in range(20):
            connection.send_nowait_no_response(
                produce("written", b"%d" % number, acks=0), versions=named
            )
        response = await connection.send(produce("written", b"last", acks=-1), versions=named)
        partition = response.responses[0].partition_responses[0]
        assert (partition.error_code, partition.base_offset) == (ErrorCode.NONE, start + 20)
        assert await end_offset(connection, "written") == start + 21
        await long_poll(connection, start + 21)

    play(kafka, scenario)


async def long_poll(connection: Connection, offset: int) -> None:
    """A fetch at the end waits at the broker; a produce on another connection wakes it."""
    version = connection.apis.choose(ApiKey.FETCH, range(4, 13))
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1_000_000)
    fetch = FetchRequest(
        max_wait_ms=20_000,
        min_bytes=1,
        max_bytes=1_000_000,
        topics=[FetchTopic(topic="written", partitions=[partition])],
    )
    done: asyncio.Future[memoryview | RpcError] = asyncio.get_running_loop().create_future()
    connection.send_raw(ApiKey.FETCH, version, [fetch.encode(version)], done.set_result)
    host, _, port = connection.address.partition(":")
    other = await connect(LoopNetwork(), SETTINGS, host=host, port=int(port))
    await other.send(produce("written", b"woken by this", acks=1), versions=range(3, 13))
    outcome = await done
    assert isinstance(outcome, memoryview)
    assert b"woken by this" in bytes(outcome)
    other.close()
    await other.wait_closed()


def test_bytes_that_kafka_does_not_take_lose_the_connection(kafka: ApacheKafka) -> None:
    async def scenario(connection: Connection) -> None:
        done: asyncio.Future[memoryview | RpcError] = asyncio.get_running_loop().create_future()
        connection.send_raw(ApiKey.METADATA, 12, [b"\xff" * 20], done.set_result)
        waiting = asyncio.create_task(metadata(connection, "x"))
        assert isinstance(await done, ConnectionLost)
        with pytest.raises(ConnectionLost):
            await waiting
        assert not connection.is_open

    play(kafka, scenario)


def test_a_pool_outlives_the_broker(jars: Path, tmp_path: Path) -> None:
    async def main(kafka: ApacheKafka) -> None:
        address = Address(*address_of(kafka))
        connections = Connections(LoopNetwork(), SETTINGS, SeededRandomness(1))
        connection = await connections.get(address)
        kafka.kill()
        with pytest.raises(ConnectionLost):
            await metadata(connection, "x")
        with pytest.raises(ConnectFailed):
            await connections.get(address)
        await asyncio.to_thread(kafka.start)
        again = await connections.get(address)
        assert (await metadata(again, "x")).topics[0].name == "x"
        await connections.close()

    with ApacheKafka(tmp_path / "kafka", jars=jars) as kafka:
        asyncio.run(main(kafka))

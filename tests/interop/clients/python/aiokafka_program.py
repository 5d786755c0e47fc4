"""aiokafka by the contract of the client programs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code
from aiokafka_group import AiokafkaMember
from client_contract import (
    TIMEOUT_S,
    Action,
    Ask,
    RefusedError,
    as_bytes,
    consumed,
    headers_of,
    serve,
)
from client_group import group_actions

KINDS: Final = {"topic": ConfigResourceType.TOPIC, "broker": ConfigResourceType.BROKER}
ACKS: Final[dict[str, Any]] = {"0": 0, "1": 1, "all": "all"}
DEFAULT_CONFIG: Final = 5
# Higher than any broker's limit, so that it is the broker who refuses.
MESSAGE_BYTES_MAX: Final = 64 << 20


@asynccontextmanager
async def admin(ask: Ask) -> AsyncIterator[Any]:
    client = AIOKafkaAdminClient(bootstrap_servers=ask["servers"])
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def check(code: int, text: str | None = None) -> None:
    if code:
        raise RefusedError(code, text or for_code(code).__name__)


async def hello(ask: Ask) -> dict[str, str]:
    return {"client": "aiokafka", "version": aiokafka.__version__}


async def create_topic(ask: Ask) -> None:
    wanted = NewTopic(ask["topic"], ask["partitions"], 1, topic_configs=ask["configs"])
    async with admin(ask) as client:
        response = await client.create_topics([wanted])
    check(response.topic_errors[0][1], response.topic_errors[0][2])


async def delete_topic(ask: Ask) -> None:
    async with admin(ask) as client:
        response = await client.delete_topics([ask["topic"]])
    check(response.topic_error_codes[0][1])


async def add_partitions(ask: Ask) -> None:
    async with admin(ask) as client:
        response = await client.create_partitions({ask["topic"]: NewPartitions(ask["total"])})
    check(response.topic_errors[0][1], response.topic_errors[0][2])


async def list_topics(ask: Ask) -> list[str]:
    async with admin(ask) as client:
        return list(await client.list_topics())


async def describe_topic(ask: Ask) -> dict[str, Any]:
    async with admin(ask) as client:
        described = (await client.describe_topics([ask["topic"]]))[0]
    check(described["error_code"])
    partitions = sorted(described["partitions"], key=lambda one: int(one["partition"]))
    return {
        "partitions": len(partitions),
        "leaders": [partition["leader"] for partition in partitions],
        "replicas": [list(partition["replicas"]) for partition in partitions],
    }


async def describe_cluster(ask: Ask) -> dict[str, Any]:
    async with admin(ask) as client:
        described = await client.describe_cluster()
    brokers = described["brokers"]
    return {
        "brokers": [{"id": b["node_id"], "host": b["host"], "port": b["port"]} for b in brokers],
        "controller": described["controller_id"],
    }


async def produce(ask: Ask) -> list[int]:
    config: dict[str, Any] = {
        "bootstrap_servers": ask["servers"],
        "acks": ACKS[ask["acks"]],
        "compression_type": None if ask["codec"] == "none" else ask["codec"],
        "linger_ms": 20,
        "max_request_size": MESSAGE_BYTES_MAX,
    }
    if ask["idempotent"] is not None:
        config["enable_idempotence"] = ask["idempotent"]
    producer = AIOKafkaProducer(**config)
    await producer.start()
    try:
        sent = [
            await producer.send(
                ask["topic"],
                partition=ask["partition"],
                key=as_bytes(record["key"]),
                value=as_bytes(record["value"]),
                headers=headers_of(record),
                timestamp_ms=record["timestamp_ms"],
            )
            for record in ask["records"]
        ]
        await producer.flush()
        # Nothing is known of what was not acknowledged.
        done = [await asyncio.wait_for(future, TIMEOUT_S) for future in sent]
        return [-1 if one is None else int(one.offset) for one in done]
    finally:
        await producer.stop()


@asynccontextmanager
async def reader_of(ask: Ask) -> AsyncIterator[Any]:
    reader = AIOKafkaConsumer(
        bootstrap_servers=ask["servers"], enable_auto_commit=False, auto_offset_reset="none"
    )
    await reader.start()
    try:
        reader.assign([TopicPartition(ask["topic"], ask["partition"])])
        yield reader
    finally:
        await reader.stop()


async def consume(ask: Ask) -> list[dict[str, Any]]:
    partition, origin = TopicPartition(ask["topic"], ask["partition"]), ask["from"]
    async with reader_of(ask) as reader:
        if origin["at"] == "beginning":
            await reader.seek_to_beginning(partition)
        elif origin["at"] == "offset":
            reader.seek(partition, origin["offset"])
        else:
            found = await reader.offsets_for_times({partition: origin["timestamp_ms"]})
            reader.seek(partition, found[partition].offset)
        messages = [
            await asyncio.wait_for(reader.getone(partition), TIMEOUT_S) for _ in range(ask["count"])
        ]
    return [
        consumed(
            offset=message.offset,
            timestamp_ms=message.timestamp,
            key=message.key,
            value=message.value,
            headers=list(message.headers),
        )
        for message in messages
    ]


async def offsets(ask: Ask) -> dict[str, int]:
    partition = TopicPartition(ask["topic"], ask["partition"])
    async with reader_of(ask) as reader:
        found = (await reader.offsets_for_times({partition: ask["timestamp_ms"]}))[partition]
        return {
            "earliest": (await reader.beginning_offsets([partition]))[partition],
            "latest": (await reader.end_offsets([partition]))[partition],
            "at_time": -1 if found is None else found.offset,
        }


async def describe_configs(ask: Ask) -> dict[str, dict[str, Any]]:
    resource = ConfigResource(KINDS[ask["kind"]], ask["name"])
    async with admin(ask) as client:
        response = (await client.describe_configs([resource]))[0]
    code, text, _, _, entries = response.resources[0]
    check(code, text)
    return {
        name: {
            "value": value,
            "is_default": source == DEFAULT_CONFIG,
            "is_read_only": read_only,
        }
        for name, value, read_only, source, *_ in entries
    }


async def alter_configs(ask: Ask) -> None:
    """It only knows the old request, which replaces everything that was set before."""
    resource = ConfigResource(KINDS[ask["kind"]], ask["name"], configs=ask["set"])
    async with admin(ask) as client:
        responses = await client.alter_configs([resource])
    for response in responses:
        for code, text, *_ in response.resources:
            check(code, text)


async def delete_records(ask: Ask) -> int:
    partition = TopicPartition(ask["topic"], ask["partition"])
    async with admin(ask) as client:
        done = await client.delete_records({partition: RecordsToDelete(ask["before"])})
    return int(done[partition])


def run(action: Callable[[Ask], Awaitable[Any]]) -> Action:
    async def whole(ask: Ask) -> Any:
        return await action(ask)

    return lambda ask: asyncio.run(whole(ask))


if __name__ == "__main__":
    serve(
        {
            **group_actions(AiokafkaMember),
            **{
                action.__name__: run(action)
                for action in (
                    hello,
                    create_topic,
                    delete_topic,
                    add_partitions,
                    list_topics,
                    describe_topic,
                    describe_cluster,
                    produce,
                    consume,
                    offsets,
                    describe_configs,
                    alter_configs,
                    delete_records,
                )
            },
        }
    )

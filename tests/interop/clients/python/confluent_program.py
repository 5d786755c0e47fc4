"""confluent-kafka, which is librdkafka, by the contract of the client programs."""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from typing import Any, Final

import confluent_kafka
from client_contract import TIMEOUT_S, Ask, RefusedError, as_bytes, consumed, headers_of, serve
from client_group import group_actions
from confluent_group import ConfluentMember
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

ADMIN: Final[Any] = vars(kafka_admin)  # several of its names have no types
KINDS: Final = {
    "topic": ADMIN["ConfigResource"].Type.TOPIC,
    "broker": ADMIN["ConfigResource"].Type.BROKER,
}
# Higher than any broker's limit, so that it is the broker who refuses.
MESSAGE_BYTES_MAX: Final = 64 << 20


def refused(error: KafkaError) -> RefusedError:
    """Negative numbers are librdkafka's own, except the broker's -1."""
    return RefusedError(error.code() if error.code() >= -1 else None, error.str())


def done(future: "Future[Any]") -> Any:
    try:
        return future.result(TIMEOUT_S)
    except KafkaException as failure:
        raise refused(failure.args[0]) from failure


def admin(ask: Ask) -> AdminClient:
    return admin_at(ask["servers"])


@cache
def admin_at(servers: str) -> AdminClient:
    """Kept: what it was asked for fails when it goes before the answer comes."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 3})


def hello(ask: Ask) -> dict[str, str]:
    version = f"{confluent_kafka.__version__} with librdkafka {confluent_kafka.libversion()[0]}"
    return {"client": "confluent-kafka", "version": version}


def create_topic(ask: Ask) -> None:
    topic = ADMIN["NewTopic"](
        ask["topic"], ask["partitions"], replication_factor=1, config=ask["configs"]
    )
    done(admin(ask).create_topics([topic])[ask["topic"]])


def delete_topic(ask: Ask) -> None:
    done(admin(ask).delete_topics([ask["topic"]])[ask["topic"]])


def add_partitions(ask: Ask) -> None:
    wanted = ADMIN["NewPartitions"](ask["topic"], ask["total"])
    done(admin(ask).create_partitions([wanted])[ask["topic"]])


def list_topics(ask: Ask) -> list[str]:
    return list(admin(ask).list_topics(timeout=TIMEOUT_S).topics)


def describe_topic(ask: Ask) -> dict[str, Any]:
    topics = confluent_kafka.TopicCollection([ask["topic"]])
    described = done(admin(ask).describe_topics(topics)[ask["topic"]])
    return {
        "partitions": len(described.partitions),
        "leaders": [partition.leader.id for partition in described.partitions],
        "replicas": [[node.id for node in part.replicas] for part in described.partitions],
    }


def describe_cluster(ask: Ask) -> dict[str, Any]:
    described = done(admin(ask).describe_cluster())
    return {
        "brokers": [{"id": n.id, "host": n.host, "port": n.port} for n in described.nodes],
        "controller": described.controller.id,
    }


def produce(ask: Ask) -> list[int]:
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            errors.append(error)
        offset = message.offset()
        offsets.append(-1 if offset is None or ask["acks"] == "0" else offset)

    config: dict[str, Any] = {
        "bootstrap.servers": ask["servers"],
        "acks": ask["acks"],
        "compression.type": ask["codec"],
        "linger.ms": 20,
        "message.max.bytes": MESSAGE_BYTES_MAX,
        "log_level": 3,
    }
    if ask["idempotent"] is not None:
        config["enable.idempotence"] = ask["idempotent"]
    producer = Producer(config)
    for record in ask["records"]:
        producer.produce(
            ask["topic"],
            partition=ask["partition"],
            key=as_bytes(record["key"]),
            value=as_bytes(record["value"]),
            headers=[*headers_of(record)],
            timestamp=record["timestamp_ms"] or 0,
            on_delivery=delivered,
        )
    if producer.flush(TIMEOUT_S):
        raise RefusedError(None, "not everything was delivered in time")
    if errors:
        raise refused(errors[0])
    return offsets


def consumer(ask: Ask) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": ask["servers"],
            "group.id": "never-joined",  # librdkafka wants one even where nothing joins it
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 3,
        }
    )


def start_of(reader: Consumer, ask: Ask) -> int:
    origin = ask["from"]
    if origin["at"] == "beginning":
        return confluent_kafka.OFFSET_BEGINNING
    if origin["at"] == "offset":
        return int(origin["offset"])
    asked = TopicPartition(ask["topic"], ask["partition"], origin["timestamp_ms"])
    found = reader.offsets_for_times([asked], timeout=TIMEOUT_S)[0]
    return int(found.offset)


def consume(ask: Ask) -> list[dict[str, Any]]:
    reader = consumer(ask)
    try:
        reader.assign([TopicPartition(ask["topic"], ask["partition"], start_of(reader, ask))])
        records: list[dict[str, Any]] = []
        while len(records) < ask["count"]:
            message = reader.poll(TIMEOUT_S)
            if message is None:
                raise RefusedError(None, f"only {len(records)} records came")
            error = message.error()
            if error is not None:
                raise refused(error)
            records.append(one_record(message))
        return records
    finally:
        reader.close()


def one_record(message: Message) -> dict[str, Any]:
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or []
    return consumed(
        offset=offset,
        timestamp_ms=message.timestamp()[1],
        key=message.key(),
        value=message.value(),
        headers=[(name, value) for name, value in headers],
    )


def offsets(ask: Ask) -> dict[str, int]:
    spec = ADMIN["OffsetSpec"]
    wanted = {
        "earliest": spec.earliest(),
        "latest": spec.latest(),
        "at_time": spec.for_timestamp(ask["timestamp_ms"]),
    }
    client = admin(ask)
    partition = TopicPartition(ask["topic"], ask["partition"])
    return {
        name: done(client.list_offsets({partition: one})[partition]).offset
        for name, one in wanted.items()
    }


def describe_configs(ask: Ask) -> dict[str, dict[str, Any]]:
    resource = ADMIN["ConfigResource"](KINDS[ask["kind"]], ask["name"])
    entries = done(admin(ask).describe_configs([resource])[resource])
    return {
        name: {
            "value": entry.value,
            "is_default": bool(entry.is_default),
            "is_read_only": bool(entry.is_read_only),
        }
        for name, entry in entries.items()
    }


def alter_configs(ask: Ask) -> None:
    operation = ADMIN["AlterConfigOpType"]
    changes: Mapping[Any, Mapping[str, str | None]] = {
        operation.SET: ask["set"],
        operation.DELETE: dict.fromkeys(ask["remove"]),
    }
    entries = [
        ADMIN["ConfigEntry"](name, value, incremental_operation=kind)
        for kind, values in changes.items()
        for name, value in values.items()
    ]
    resource = ADMIN["ConfigResource"](KINDS[ask["kind"]], ask["name"], incremental_configs=entries)
    done(admin(ask).incremental_alter_configs([resource])[resource])


def delete_records(ask: Ask) -> int:
    partition = TopicPartition(ask["topic"], ask["partition"], ask["before"])
    return int(done(admin(ask).delete_records([partition])[partition]).low_watermark)


if __name__ == "__main__":
    serve(
        {
            **group_actions(ConfluentMember),
            **{
                action.__name__: action
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

"""kafka-python by the contract of the client programs."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import kafka
from client_contract import TIMEOUT_S, Ask, RefusedError, as_bytes, consumed, headers_of, serve
from client_group import group_actions
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import for_code
from kafka_python_group import KafkaPythonMember

KINDS: Final = {"topic": ConfigResourceType.TOPIC, "broker": ConfigResourceType.BROKER}
CODECS: Final = {"none": None}
ACKS: Final[dict[str, Any]] = {"0": 0, "1": 1, "all": "all"}
# Higher than any broker's limit, so that it is the broker who refuses.
MESSAGE_BYTES_MAX: Final = 64 << 20


@contextmanager
def admin(ask: Ask) -> Iterator[Any]:
    with closing(KafkaAdminClient(bootstrap_servers=ask["servers"])) as client:
        yield client


def hello(ask: Ask) -> dict[str, str]:
    return {"client": "kafka-python", "version": kafka.__version__}


def create_topic(ask: Ask) -> None:
    wanted = {
        "num_partitions": ask["partitions"],
        "replication_factor": 1,
        "configs": ask["configs"],
    }
    with admin(ask) as client:
        client.create_topics({ask["topic"]: wanted})


def delete_topic(ask: Ask) -> None:
    with admin(ask) as client:
        client.delete_topics([ask["topic"]])


def add_partitions(ask: Ask) -> None:
    with admin(ask) as client:
        client.create_partitions({ask["topic"]: ask["total"]})


def list_topics(ask: Ask) -> list[str]:
    with admin(ask) as client:
        return list(client.list_topics())


def describe_topic(ask: Ask) -> dict[str, Any]:
    with admin(ask) as client:
        described = client.describe_topics([ask["topic"]])[0]
    if described["error_code"]:
        raise for_code(described["error_code"])
    partitions = sorted(described["partitions"], key=lambda one: int(one["partition_index"]))
    return {
        "partitions": len(partitions),
        "leaders": [partition["leader_id"] for partition in partitions],
        "replicas": [list(partition["replica_nodes"]) for partition in partitions],
    }


def describe_cluster(ask: Ask) -> dict[str, Any]:
    with admin(ask) as client:
        described = client.describe_cluster()
    brokers = described["brokers"]
    return {
        "brokers": [{"id": b["broker_id"], "host": b["host"], "port": b["port"]} for b in brokers],
        "controller": described["controller_id"],
    }


def produce(ask: Ask) -> list[int]:
    config: dict[str, Any] = {
        "bootstrap_servers": ask["servers"],
        "acks": ACKS[ask["acks"]],
        "compression_type": CODECS.get(ask["codec"], ask["codec"]),
        "linger_ms": 20,
        "max_request_size": MESSAGE_BYTES_MAX,
    }
    if ask["idempotent"] is not None:
        config["enable_idempotence"] = ask["idempotent"]
    elif ask["acks"] != "all":
        config["enable_idempotence"] = False
    with closing(KafkaProducer(**config)) as producer:
        sent = [
            producer.send(
                ask["topic"],
                partition=ask["partition"],
                key=as_bytes(record["key"]),
                value=as_bytes(record["value"]),
                headers=headers_of(record),
                timestamp_ms=record["timestamp_ms"],
            )
            for record in ask["records"]
        ]
        producer.flush(TIMEOUT_S)
        return [int(future.get(TIMEOUT_S).offset) for future in sent]


def start_at(reader: Any, partition: TopicPartition, origin: dict[str, Any]) -> None:
    if origin["at"] == "beginning":
        reader.seek_to_beginning(partition)
    elif origin["at"] == "offset":
        reader.seek(partition, origin["offset"])
    else:
        found = reader.offsets_for_times({partition: origin["timestamp_ms"]})[partition]
        reader.seek(partition, found.offset)


def consume(ask: Ask) -> list[dict[str, Any]]:
    partition = TopicPartition(ask["topic"], ask["partition"])
    config = {
        "bootstrap_servers": ask["servers"],
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "consumer_timeout_ms": int(TIMEOUT_S * 1000),
    }
    with closing(KafkaConsumer(**config)) as reader:
        reader.assign([partition])
        start_at(reader, partition, ask["from"])
        records: list[dict[str, Any]] = []
        while len(records) < ask["count"]:
            message = next(reader, None)
            if message is None:
                raise RefusedError(None, f"only {len(records)} records came")
            records.append(one_record(message))
        return records


def one_record(message: Any) -> dict[str, Any]:
    return consumed(
        offset=message.offset,
        timestamp_ms=message.timestamp,
        key=message.key,
        value=message.value,
        headers=list(message.headers),
    )


def offsets(ask: Ask) -> dict[str, int]:
    partition = TopicPartition(ask["topic"], ask["partition"])
    with closing(KafkaConsumer(bootstrap_servers=ask["servers"])) as reader:
        found = reader.offsets_for_times({partition: ask["timestamp_ms"]})[partition]
        return {
            "earliest": reader.beginning_offsets([partition])[partition],
            "latest": reader.end_offsets([partition])[partition],
            "at_time": -1 if found is None else found.offset,
        }


def describe_configs(ask: Ask) -> dict[str, dict[str, Any]]:
    resource = ConfigResource(KINDS[ask["kind"]], ask["name"])
    with admin(ask) as client:
        described = client.describe_configs([resource], config_filter="all")
    entries = described[ask["kind"]][ask["name"]]
    return {
        name: {
            "value": entry["value"],
            "is_default": entry["config_source"] == "DEFAULT_CONFIG",
            "is_read_only": entry["read_only"],
        }
        for name, entry in entries.items()
    }


def alter_configs(ask: Ask) -> None:
    changes: dict[str, Any] = {name: (AlterConfigOp.SET, v) for name, v in ask["set"].items()}
    changes |= dict.fromkeys(ask["remove"], (AlterConfigOp.DELETE, None))
    resource = ConfigResource(KINDS[ask["kind"]], ask["name"], configs=changes)
    with admin(ask) as client:
        result = client.alter_configs([resource], raise_on_unknown=False)
    outcome = result[ask["kind"]][ask["name"]]
    if outcome != "OK":  # words only: "[Error 40] InvalidConfigurationError: ..."
        raise RefusedError(int(outcome.removeprefix("[Error ").partition("]")[0]), outcome)


def delete_records(ask: Ask) -> int:
    partition = TopicPartition(ask["topic"], ask["partition"])
    with admin(ask) as client:
        done = client.delete_records({partition: ask["before"]})[partition]
    return int(done["low_watermark"])


if __name__ == "__main__":
    serve(
        {
            **group_actions(KafkaPythonMember),
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

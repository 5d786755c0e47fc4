"""kcat by the contract of the client programs: each request is one run of it.

It cannot give a record a timestamp, tells no offsets when it produces, and administers nothing.
"""

import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any, Final

from client_contract import TIMEOUT_S, Ask, RefusedError, as_bytes, consumed, serve

# Bytes that no record of the tests holds.
RECORD_END: Final = b"\x1e"
KEY_END: Final = b"\x1f"
RECORD_FORMAT: Final = r"%o %T %K %S %h\n%k%s"

# kcat gives words only. They are librdkafka's, one for each of the broker's numbers.
CODES: Final = {
    "Broker: Offset out of range": 1,
    "Broker: Unknown topic or partition": 3,
    "Broker: Message size too large": 10,
    "Broker: Invalid topic": 17,
}


def kcat(ask: Ask, *arguments: str, data: bytes = b"") -> bytes:
    command = ["kcat", "-b", ask["servers"], "-m", "20", *arguments]
    done = subprocess.run(
        command, input=data, capture_output=True, timeout=2 * TIMEOUT_S, check=False
    )
    said = done.stderr.decode(errors="replace")
    code = next((number for words, number in CODES.items() if words in said), None)
    if done.returncode or code is not None:
        raise RefusedError(code, said)
    return done.stdout


def hello(ask: Ask) -> dict[str, str]:
    said = subprocess.run(["kcat", "-V"], capture_output=True, check=True, text=True).stdout
    version = next(line for line in said.splitlines() if line.startswith("Version "))
    return {"client": "kcat", "version": version.removeprefix("Version ").partition(" ")[0]}


def metadata(ask: Ask, *arguments: str) -> dict[str, Any]:
    listed: dict[str, Any] = json.loads(kcat(ask, "-L", "-J", *arguments))
    return listed


def list_topics(ask: Ask) -> list[str]:
    return [topic["topic"] for topic in metadata(ask)["topics"]]


def describe_topic(ask: Ask) -> dict[str, Any]:
    topic = metadata(ask, "-t", ask["topic"])["topics"][0]
    if "error" in topic:
        raise RefusedError(CODES.get(topic["error"]), topic["error"])
    partitions = sorted(topic["partitions"], key=lambda one: int(one["partition"]))
    return {
        "partitions": len(partitions),
        "leaders": [partition["leader"] for partition in partitions],
        "replicas": [[node["id"] for node in part["replicas"]] for part in partitions],
    }


def describe_cluster(ask: Ask) -> dict[str, Any]:
    listed = metadata(ask)
    brokers = []
    for broker in listed["brokers"]:
        host, _, port = broker["name"].rpartition(":")
        brokers.append({"id": broker["id"], "host": host, "port": int(port)})
    return {"brokers": brokers, "controller": listed["controllerid"]}


def produce(ask: Ask) -> list[int]:
    settings = {
        "acks": ask["acks"],
        "linger.ms": "20",
        "message.max.bytes": str(64 << 20),
        "compression.type": ask["codec"],
    }
    if ask["idempotent"] is not None:
        settings["enable.idempotence"] = "true" if ask["idempotent"] else "false"
    options = ["-P", "-t", ask["topic"], "-p", str(ask["partition"]), "-Z"]
    options += [f"-X{name}={value}" for name, value in settings.items()]
    options += [f"-D\\x{RECORD_END.hex()}", f"-K\\x{KEY_END.hex()}"]
    # Headers are given once for all records of a run.
    for headers, records in itertools.groupby(ask["records"], key=lambda one: one["headers"]):
        given = [f"-H{name}={(as_bytes(value) or b'').decode()}" for name, value in headers]
        data = RECORD_END.join(line_of(record) for record in records)
        kcat(ask, *options, *given, data=data)
    return [-1] * len(ask["records"])


def line_of(record: dict[str, Any]) -> bytes:
    """With -Z an empty key or value is a missing one; so is a key without its end."""
    return (as_bytes(record["key"]) or b"") + KEY_END + (as_bytes(record["value"]) or b"")


def consume(ask: Ask) -> list[dict[str, Any]]:
    start = start_of(ask["from"])
    options = ["-C", "-q", "-t", ask["topic"], "-p", str(ask["partition"]), "-o", start]
    options += ["-c", str(ask["count"]), "-f", RECORD_FORMAT, "-Xauto.offset.reset=error"]
    return list(parsed(kcat(ask, *options)))


def start_of(origin: dict[str, Any]) -> str:
    if origin["at"] == "beginning":
        return "beginning"
    return str(origin["offset"]) if origin["at"] == "offset" else f"s@{origin['timestamp_ms']}"


def parsed(output: bytes) -> Iterator[dict[str, Any]]:
    while output:
        line, _, output = output.partition(b"\n")
        offset, timestamp_ms, key_bytes, value_bytes, headers = line.split(b" ", 4)
        key, output = cut(output, int(key_bytes))
        value, output = cut(output, int(value_bytes))
        pairs = [pair.partition(b"=") for pair in headers.split(b",") if pair]
        yield consumed(
            offset=int(offset),
            timestamp_ms=int(timestamp_ms),
            key=key,
            value=value,
            headers=[(name.decode(), data) for name, _, data in pairs],
        )


def cut(output: bytes, size: int) -> tuple[bytes | None, bytes]:
    return (None, output) if size < 0 else (output[:size], output[size:])


def offsets(ask: Ask) -> dict[str, int]:
    return {
        name: queried(ask, timestamp_ms)
        for name, timestamp_ms in (
            ("earliest", -2),
            ("latest", -1),
            ("at_time", ask["timestamp_ms"]),
        )
    }


def queried(ask: Ask, timestamp_ms: int) -> int:
    said = kcat(ask, "-Q", "-J", "-t", f"{ask['topic']}:{ask['partition']}:{timestamp_ms}")
    return int(json.loads(said)[ask["topic"]][str(ask["partition"])]["offset"])


if __name__ == "__main__":
    serve(
        {
            action.__name__: action
            for action in (
                hello,
                list_topics,
                describe_topic,
                describe_cluster,
                produce,
                consume,
                offsets,
            )
        }
    )

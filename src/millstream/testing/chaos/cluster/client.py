"""The client of a cluster under chaos, as a process of its own inside its network.

    python -m millstream.testing.chaos.cluster.client write|read|late|last JSON

librdkafka, which finds new leaders and retries by itself. `write` produces numbered records to
all partitions with idempotence and acks=all; `read` follows all of them by assign; `late` and
`last` read everything there is and end, `late` while more is written. Each appends to a history
(`history/lines.py`). `write` and `read` run until their standard input ends.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.testing.history.lines import HistoryWriter

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

FLUSH_MAX_S: Final = 120.0
SILENCE_MAX_S: Final = 60.0
IN_FLIGHT_MAX: Final = 1_000
"""Unacknowledged records: while a partition has no leader, its records pile up."""
POLL_RECORDS_MAX: Final = 500
POLL_S: Final = 0.1
EXIT_FAILED: Final = 1
_PARTITION_END: Final = -191
_TRANSIENT: Final = {-195, -193, -192, -187, -185, 5, 6}
"""Codes that librdkafka reports while it retries: a broker that is down, no answer in time, no
leader yet."""

# So that it notices a fault within seconds, as an application that needs it would set it: with the
# defaults a connection over a cut link is given up only after half a minute.
_COMMON: Final[Mapping[str, Any]] = {
    "socket.timeout.ms": 6_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 1_000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "topic.metadata.propagation.max.ms": 60_000,
    "log_level": 0,
}
_WRITE: Final[Mapping[str, Any]] = {
    **_COMMON,
    "enable.idempotence": True,
    "acks": "all",
    # With more, librdkafka doubles records by itself (its issue 4953): after one request failed the
    # next is out of order, for which it raises its epoch and sends what is unanswered in *all*
    # partitions again, also what was stored. Seen on Apache Kafka; no broker can prevent it.
    "max.in.flight.requests.per.connection": 1,
    "linger.ms": 5,
    "message.timeout.ms": 300_000,
    "request.timeout.ms": 5_000,
}
_READ: Final[Mapping[str, Any]] = {
    **_COMMON,
    "group.id": "chaos",
    "enable.auto.commit": False,
    "check.crcs": True,
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,
    "fetch.error.backoff.ms": 50,
}


@dataclass(frozen=True, kw_only=True)
class ClientTask:
    """The configuration of a client process."""

    bootstrap: str
    topic: str
    partitions: int
    history: str
    name: str
    """The client's name; its lanes begin with it."""
    codec: str = "none"
    records_per_s: float = 400.0

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class _Failed(Exception):
    """An error that an application would have to handle."""


class Writer:
    """Sends at a steady rate and records every outcome."""

    def __init__(self, task: ClientTask, lines: HistoryWriter) -> None:
        from confluent_kafka import Producer

        self._task = task
        self._lines = lines
        self._waiting = 0
        self._failure = ""
        settings = {"bootstrap.servers": task.bootstrap, "compression.type": task.codec, **_WRITE}
        self._producer = Producer(settings)

    def run(self, is_over: threading.Event) -> None:
        number, next_s = 0, time.monotonic()
        while not is_over.is_set():
            now_s = time.monotonic()
            if self._failure:
                raise _Failed(self._failure)
            if now_s < next_s or self._waiting >= IN_FLIGHT_MAX:
                self._producer.poll(max(0.001, min(next_s - now_s, POLL_S)))
                continue
            self._send(number)
            number += 1
            # Not more of a burst after a stall than a tenth of a second's worth.
            next_s = max(next_s, now_s - 0.1) + 1 / self._task.records_per_s
        left = self._producer.flush(FLUSH_MAX_S)
        if left or self._failure:
            raise _Failed(self._failure or f"{left} records have no answer")

    def _send(self, number: int) -> None:
        partition = number % self._task.partitions
        lane = f"{self._task.name}-{partition}"
        value = f"{lane}:{number}:{'x' * (number % 50)}"
        self._lines.write("send", lane=lane, n=number, topic=self._task.topic, p=partition, v=value)

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            self._waiting -= 1
            if error is None:
                offset, at = message.offset(), time.monotonic()
                self._lines.write("ok", lane=lane, n=number, offset=offset, at=at)
                return
            self._lines.write("info", lane=lane, n=number, why=str(error))
            self._failure = self._failure or f"{value[:40]} was not acknowledged: {error}"

        self._waiting += 1
        self._producer.produce(
            self._task.topic, value=value, partition=partition, on_delivery=delivered
        )


class Reader:
    """Reads all partitions from their start continuously, or once to their end."""

    def __init__(self, task: ClientTask, lines: HistoryWriter) -> None:
        self._task = task
        self._lines = lines

    def _open(self, **settings: object) -> "Consumer":
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._task.bootstrap, **_READ, **settings})
        partitions = range(self._task.partitions)
        consumer.assign([TopicPartition(self._task.topic, one, 0) for one in partitions])
        return consumer

    def run(self, is_over: threading.Event) -> None:
        consumer = self._open()
        while not is_over.is_set():
            found: dict[int, list[tuple[int, str]]] = defaultdict(list)
            for message in consumer.consume(POLL_RECORDS_MAX, POLL_S):
                error = message.error()
                if error is None:
                    _collect(found, message)
                elif error.code() not in _TRANSIENT:
                    raise _Failed(f"partition {message.partition()} cannot be read: {error}")
            for partition, records in found.items():
                self._log_poll(partition, records)
        consumer.close()

    def run_late(self) -> None:
        """Read all partitions to their current ends."""
        for partition, records in self._read_all().items():
            if records:
                self._log_poll(partition, records)

    def run_last(self) -> None:
        """Read all partitions to their ends."""
        for partition, records in self._read_all().items():
            # Nothing is deleted from these topics: a log that begins later has lost records.
            self._lines.write(
                "final", topic=self._task.topic, p=partition, start=0, records=records
            )

    def _log_poll(self, partition: int, records: list[tuple[int, str]]) -> None:
        self._lines.write(
            "poll", c=self._task.name, topic=self._task.topic, p=partition, records=records
        )

    def _read_all(self) -> dict[int, list[tuple[int, str]]]:
        consumer = self._open(**{"enable.partition.eof": True})
        found: dict[int, list[tuple[int, str]]] = {one: [] for one in range(self._task.partitions)}
        unfinished, last_message_s = set(found), time.monotonic()
        while unfinished:
            message = consumer.poll(POLL_S)
            if time.monotonic() - last_message_s > SILENCE_MAX_S:
                raise _Failed(f"partitions {sorted(unfinished)} cannot be read to their ends")
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() in _TRANSIENT):
                continue
            last_message_s = time.monotonic()
            if error is None:
                _collect(found, message)
            elif error.code() == _PARTITION_END:
                unfinished.discard(message.partition() or 0)
            else:
                raise _Failed(f"partition {message.partition()} cannot be read: {error}")
        consumer.close()
        return found


def _collect(found: dict[int, list[tuple[int, str]]], message: "Message") -> None:
    value = (message.value() or b"").decode()
    found[message.partition() or 0].append((message.offset() or 0, value))


def _end_of_input(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def main(arguments: list[str]) -> int:
    """Return 1 when there was an error that an application would have to handle."""
    kind, task = arguments[0], ClientTask(**json.loads(arguments[1]))
    lines = HistoryWriter(Path(task.history))
    is_over = threading.Event()
    waiting = threading.Thread(target=_end_of_input, args=(is_over,), daemon=True)
    waiting.start()
    try:
        if kind == "write":
            Writer(task, lines).run(is_over)
        elif kind == "read":
            Reader(task, lines).run(is_over)
        elif kind == "late":
            Reader(task, lines).run_late()
        else:
            Reader(task, lines).run_last()
    except _Failed as failed:
        lines.write("error", why=f"{task.name}: {failed}")
        return EXIT_FAILED
    finally:
        lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

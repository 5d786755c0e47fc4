"""A real client for brokers that are killed: it keeps writing, and reads everything back.

librdkafka, which retries by itself and is idempotent: every record that it reports as delivered
must be there once, at the offset that was acknowledged, in the order of writing.
"""

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.wire.catalogue import response_type
from millstream.wire.headers import encode_request_header, response_header_version

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

TOPIC: Final = "chaos"
PARTITIONS: Final = 4
ANSWER_MAX_S: Final = 30.0
IN_FLIGHT_MAX: Final = 2_000
_PARTITION_END: Final = -191
"""librdkafka's code for the end of a partition."""

_PRODUCER: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "linger.ms": 1,
    "batch.num.messages": 50,
    "message.timeout.ms": 300_000,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}


class BrokerWriter:
    """Writes numbered values to all partitions from a thread of its own, until `stop`."""

    def __init__(
        self, bootstrap_servers: str, *, codec: str = "none", first_number: int = 0
    ) -> None:
        from confluent_kafka import Producer

        self.acknowledged: dict[int, list[tuple[int, int]]] = {one: [] for one in range(PARTITIONS)}
        """By partition: (offset, number) of every record, as it was acknowledged."""
        self.failures: list[str] = []
        self.next_number = first_number
        self._in_flight = 0
        self._is_over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap_servers, "compression.type": codec, **_PRODUCER}
        )
        self._thread = threading.Thread(target=self._run, name="chaos writer", daemon=True)
        self._thread.start()

    @property
    def acknowledged_count(self) -> int:
        """How many records were acknowledged."""
        return sum(len(found) for found in self.acknowledged.values())

    def stop(self) -> None:
        """Wait for an answer to every record; raises ChaosFailed if one is missing or an error."""
        self._is_over.set()
        self._thread.join(ANSWER_MAX_S)
        left = self._producer.flush(ANSWER_MAX_S)
        if left or self._thread.is_alive():
            raise ChaosFailed(f"{left} records were neither acknowledged nor refused")
        if self.failures:
            raise ChaosFailed(f"records were refused: {self.failures[0]}")

    def _on_delivery(self, error: "KafkaError | None", message: "Message") -> None:
        self._in_flight -= 1
        if error is not None:
            self.failures.append(str(error))
            return
        number = int((message.value() or b"").split()[0])
        self.acknowledged[message.partition() or 0].append((message.offset() or 0, number))

    def _run(self) -> None:
        while not self._is_over.is_set():
            number = self.next_number
            try:
                self._producer.produce(
                    TOPIC,
                    value=b"%d %s" % (number, b"x" * (number % 200)),
                    partition=number % PARTITIONS,
                    on_delivery=self._on_delivery,
                )
                self.next_number += 1
                self._in_flight += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0 if self._in_flight < IN_FLIGHT_MAX else 0.01)


def read_all(bootstrap_servers: str, partition: int) -> list[tuple[int, int]]:
    """(offset, number) of every record of the partition; raises ChaosFailed."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    found: list[tuple[int, int]] = []
    try:
        consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(ANSWER_MAX_S)
            if message is None:
                raise ChaosFailed(f"partition {partition} could not be read to its end")
            error = message.error()
            if error is not None and error.code() == _PARTITION_END:
                return found
            if error is not None:
                raise ChaosFailed(f"partition {partition} cannot be read: {error}")
            found.append((message.offset() or 0, int((message.value() or b"").split()[0])))
    finally:
        consumer.close()


def check_partition(
    records: list[tuple[int, int]], acknowledged: list[tuple[int, int]], partition: int
) -> None:
    """Raise ChaosFailed unless the records are what was acknowledged, once and in order."""
    offsets = [offset for offset, _ in records]
    if offsets != list(range(len(records))):
        raise ChaosFailed(f"I-02 offsets of partition {partition} have gaps")
    numbers = [number for _, number in records]
    for first, second in pairwise(numbers):
        if first >= second:
            raise ChaosFailed(f"I-20 partition {partition} has {second} after {first}")
    for offset, number in acknowledged:
        if offset >= len(numbers) or numbers[offset] != number:
            found = numbers[offset] if offset < len(numbers) else "nothing"
            raise ChaosFailed(
                f"I-01 {number} was acknowledged at {partition}:{offset}, found {found}"
            )
    if len(records) != len(acknowledged):
        raise ChaosFailed(
            f"partition {partition} has {len(records)} records of {len(acknowledged)}"
        )


def send_and_receive(address: str, request: Any, version: int) -> Any:
    """Send one request on a new connection and return the response."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_MAX_S) as connection:
        send_request(connection, request, version)
        return read_answer(connection, request, version)


def send_request(connection: socket.socket, request: Any, version: int) -> None:
    """Send the request without waiting for the response: the broker may be paused."""
    body = encode_request_header(request.API_KEY, version, 1, "chaos") + request.encode(version)
    connection.sendall(struct.pack(">i", len(body)) + body)


def read_answer(connection: socket.socket, request: Any, version: int) -> Any:
    """The response to the only request in flight on the connection."""
    (size,) = struct.unpack(">i", _receive_exactly(connection.recv, 4))
    frame = memoryview(_receive_exactly(connection.recv, size))
    skip = 5 if response_header_version(request.API_KEY, version) == 1 else 4
    return response_type(request.API_KEY).decode(frame[skip:], version)


def _receive_exactly(receive: Callable[[int], bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = receive(size - len(data))
        if not chunk:
            raise ConnectionError("closed in the middle of a response")
        data += chunk
    return data

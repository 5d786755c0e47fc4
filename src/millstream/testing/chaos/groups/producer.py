"""Produces to the topics that groups read, as a process of its own.

    python -m millstream.testing.chaos.groups.producer SERVERS LOG RECORDS_PER_S

Its standard input names topics, one JSON object a line with `topic` and `partitions`, as often as
there are new ones; its end ends it, when everything is acknowledged. Values are unique. What was
acknowledged is recorded in the log (`history/group_events.py`).
"""

import json
import sys
import threading
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millstream.testing.history.group_events import EventWriter, PartitionName

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

FLUSH_MAX_S: Final = 120.0
IN_FLIGHT_MAX: Final = 1_000
POLL_S: Final = 0.05
_UNKNOWN_PARTITION: Final = -190
_SETTINGS: Final[Mapping[str, Any]] = {
    "enable.idempotence": True,
    "acks": "all",
    # With more, librdkafka may send stored records again (see `chaos/cluster/client.py`).
    "max.in.flight.requests.per.connection": 1,
    "linger.ms": 5,
    "message.timeout.ms": 300_000,
    "request.timeout.ms": 5_000,
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


class Feeder:
    """Sends to all known partitions in turn, at a steady rate."""

    def __init__(self, servers: str, log: EventWriter, records_per_s: float) -> None:
        from confluent_kafka import Producer

        self._log = log
        self._interval_s = 1 / records_per_s
        self._producer = Producer({"bootstrap.servers": servers, **_SETTINGS})
        self._partitions: dict[str, int] = {}
        self._waiting = 0
        self._failure = ""
        self._is_over = threading.Event()

    def read_topics(self) -> None:
        """Read topics from standard input, in a thread."""
        for line in sys.stdin:
            message = json.loads(line)
            self._partitions = {**self._partitions, message["topic"]: message["partitions"]}
        self._is_over.set()

    def run(self) -> int:
        next_s, numbers = time.monotonic(), count()
        while not self._is_over.is_set() and not self._failure:
            places = [(name, p) for name, n in self._partitions.items() for p in range(n)]
            wait_s = next_s - time.monotonic()
            if wait_s > 0 or not places or self._waiting >= IN_FLIGHT_MAX:
                self._producer.poll(max(0.001, min(wait_s, POLL_S)))
                continue
            number = next(numbers)
            self._send(places[number % len(places)], f"r{number}")
            next_s = max(next_s, time.monotonic() - 0.1) + self._interval_s
        left = self._producer.flush(FLUSH_MAX_S)
        if left or self._failure:
            self._log.write("error", why=self._failure or f"{left} records have no answer")
            return 1
        return 0

    def _send(self, place: PartitionName, value: str) -> None:
        from confluent_kafka import KafkaException

        topic, partition = place

        def delivered(error: "KafkaError | None", message: "Message") -> None:
            self._waiting -= 1
            if error is None:
                offset = message.offset()
                self._log.write("produced", topic=topic, p=partition, o=offset, v=value)
                return
            self._failure = self._failure or f"{value} to {place}: {error}"

        try:
            self._producer.produce(topic, value=value, partition=partition, on_delivery=delivered)
        except KafkaException as error:
            if error.args[0].code() != _UNKNOWN_PARTITION:
                raise
            return  # it is new, and the client has not refreshed its metadata since
        self._waiting += 1


def main(arguments: list[str]) -> int:
    """Return 1 when a record was not acknowledged."""
    servers, log, records_per_s = arguments
    feeder = Feeder(servers, EventWriter(Path(log)), float(records_per_s))
    threading.Thread(target=feeder.read_topics, daemon=True).start()
    return feeder.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

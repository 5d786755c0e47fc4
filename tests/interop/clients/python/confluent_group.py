"""confluent-kafka as a member: eager, cooperative, and in the next generation's protocol."""

import struct
from collections.abc import Sequence
from typing import Any, Final

from client_group import (
    BACKOFF_MS,
    METADATA_MAX_AGE_MS,
    POLL_RECORDS_MAX,
    POLL_S,
    Member,
    Place,
)
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

ASSIGNORS: Final = {"eager": "range", "cooperative": "cooperative-sticky"}
METADATA_MARK: Final = b"CGMDv2:"
FENCED: Final = (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)


class ConfluentMember(Member):
    """Its callbacks run inside of poll, so nothing here happens at one time."""

    def __init__(self, ask: dict[str, Any]) -> None:
        super().__init__(ask)
        self._pending: dict[Place, int] = {}
        self._is_fenced = False
        """By itself: librdkafka whose session has run out joins without its member id, and a commit
        of the old one that is under way ends it. An application is started again then."""

    def work(self) -> None:
        while not self.is_leaving.is_set():
            self._is_fenced = False
            self._work_with(Consumer(self._settings()))

    def _work_with(self, consumer: Consumer) -> None:
        wanted = [self.ask["pattern"]] if self.ask["pattern"] else self.ask["topics"]
        consumer.subscribe(
            wanted, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not self.is_leaving.is_set() and not self._is_fenced:
            self.wait_while_stalled()
            self._poll(consumer)
            self._commit(consumer)
        consumer.close()

    def _settings(self) -> dict[str, Any]:
        ask = self.ask
        settings = {
            "bootstrap.servers": ask["servers"],
            "group.id": ask["group"],
            "client.id": ask["member"],
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": ask["poll_interval_ms"],
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "metadata.max.age.ms": 3 * METADATA_MAX_AGE_MS,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 5 * BACKOFF_MS,
            "log_level": 3,
        }
        if ask["instance"] is not None:
            settings["group.instance.id"] = ask["instance"]
        if ask["protocol"] == "consumer":  # timeouts and assignor are the broker's there
            return {**settings, "group.protocol": "consumer"}
        return {
            **settings,
            "session.timeout.ms": ask["session_ms"],
            "heartbeat.interval.ms": ask["heartbeat_ms"],
            "partition.assignment.strategy": ASSIGNORS[ask["protocol"]],
        }

    def _poll(self, consumer: Consumer) -> None:
        timeout_s = POLL_S
        for _ in range(POLL_RECORDS_MAX):
            message = consumer.poll(timeout_s)
            timeout_s = 0.0
            if message is None:
                return
            error = message.error()
            if error is not None:
                if self.ask["instance"] is not None and error.code() in FENCED:
                    self._is_fenced = True
                    return
                if error.fatal():
                    raise RuntimeError(f"{error.name()}: {error.str()}")
                continue  # it tells what it tries again, and that it was not polled for too long
            place, offset = (str(message.topic()), message.partition() or 0), message.offset() or 0
            self.processed(place, offset, message.value())
            self._pending[place] = offset + 1

    def _commit(self, consumer: Consumer) -> None:
        offsets, self._pending = self._pending, {}
        if offsets:
            wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
            self.committed(offsets, lambda: self._send(consumer, wanted))

    def _send(self, consumer: Consumer, wanted: list[TopicPartition]) -> None:
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as refused:
            self._is_fenced |= refused.args[0].code() in FENCED
            raise

    def _on_assign(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self.assigned(_places(partitions), _generation(consumer))

    def _on_revoke(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._commit(consumer)
        self.given_up("revoked", _places(partitions))

    def _on_lost(self, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        self._pending.clear()
        self.given_up("lost", _places(partitions))


def _places(partitions: Sequence[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]


def _generation(consumer: Consumer) -> int | None:
    """Opaque, for transactions; after a mark the generation is its first number."""
    opaque: Any = consumer.consumer_group_metadata()
    if not isinstance(opaque, bytes) or not opaque.startswith(METADATA_MARK):
        return None
    (found,) = struct.unpack_from("=i", opaque, len(METADATA_MARK))
    return int(found)

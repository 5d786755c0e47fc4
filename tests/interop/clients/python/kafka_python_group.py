"""kafka-python as a member: eager and cooperative."""

import threading
from collections.abc import Iterable
from typing import Any, Final

from client_group import (
    BACKOFF_MS,
    METADATA_MAX_AGE_MS,
    POLL_RECORDS_MAX,
    Member,
    Place,
)
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

ASSIGNORS: Final[dict[str, Any]] = {
    "eager": RangePartitionAssignor,
    "cooperative": CooperativeStickyAssignor,
}

COMMIT_MAX_MS: Final = 5_000
REQUEST_MS: Final = 10_000
"""As an application sets it that cares: so long it waits for a broker that stands still."""
POLL_MS: Final = 12_000
"""Longer than any rebalance takes; a poll that finds records ends at once. The client forgets a
join that it began because of new topics or partitions and that outlasts the poll: its answer is
never looked at, and the member is gone for good (kafka-python 3.0.12, `join_group_async`)."""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # without types
    def __init__(self, member: "KafkaPythonMember") -> None:
        self._member = member

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._member.on_assigned(_places(assigned))

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._member.on_gone("revoked", _places(revoked))

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._member.on_gone("lost", _places(lost))


class KafkaPythonMember(Member):
    """Its callbacks run in the client's own thread, so what is owned is looked up each time."""

    def __init__(self, ask: dict[str, Any]) -> None:
        super().__init__(ask)
        self._lock = threading.Lock()
        self._consumer: Any = KafkaConsumer(**self._settings())

    def work(self) -> None:
        consumer, listener = self._consumer, _Listener(self)
        if self.ask["pattern"]:
            consumer.subscribe(pattern=self.ask["pattern"], listener=listener)
        else:
            consumer.subscribe(self.ask["topics"], listener=listener)
        while not self.is_leaving.is_set():
            self.wait_while_stalled()
            try:
                found = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
            except KafkaError as error:
                if not error.retriable:
                    raise
                continue  # as an application does: a broker may stand still
            offsets = self._process(found)
            if offsets:
                self._commit(offsets)
        consumer.close()

    def _settings(self) -> dict[str, Any]:
        ask = self.ask
        return {
            "bootstrap_servers": ask["servers"],
            "group_id": ask["group"],
            "client_id": ask["member"],
            "group_instance_id": ask["instance"],
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": ask["session_ms"],
            "request_timeout_ms": REQUEST_MS,
            "heartbeat_interval_ms": ask["heartbeat_ms"],
            "max_poll_interval_ms": ask["poll_interval_ms"],
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "retry_backoff_ms": BACKOFF_MS,
            "reconnect_backoff_max_ms": 5 * BACKOFF_MS,
            "fetch_max_wait_ms": 100,
            "partition_assignment_strategy": [ASSIGNORS[ask["protocol"]]],
        }

    def _process(self, found: Any) -> dict[Place, int]:
        offsets: dict[Place, int] = {}
        for partition, records in found.items():
            place = (partition.topic, partition.partition)
            for record in records:
                with self._lock:
                    if place not in self.owned:
                        break
                    self.processed(place, record.offset, record.value)
                    offsets[place] = record.offset + 1
        return offsets

    def _commit(self, offsets: dict[Place, int]) -> None:
        still = {place: offset for place, offset in offsets.items() if place in self.owned}
        wanted = {
            TopicPartition(*place): OffsetAndMetadata(offset, "", -1)
            for place, offset in still.items()
        }
        if wanted:
            # With a limit: otherwise it waits for a rebalance that waits for the next poll.
            self.committed(still, lambda: self._consumer.commit(wanted, timeout_ms=COMMIT_MAX_MS))

    def on_assigned(self, places: list[Place]) -> None:
        with self._lock:
            self.assigned(places, self._consumer.group_metadata().generation_id)

    def on_gone(self, event: str, places: list[Place]) -> None:
        with self._lock:
            self.given_up(event, places)


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]

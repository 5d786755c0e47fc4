"""aiokafka as a member: eager, with a static instance where that is asked for."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from client_group import (
    BACKOFF_MS,
    METADATA_MAX_AGE_MS,
    POLL_RECORDS_MAX,
    POLL_S,
    Member,
    Place,
)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # without types
    """It has no word for what was lost: without a member id it was."""

    def __init__(self, member: "AiokafkaMember") -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        await self._member.on_assigned(_places(assigned))

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._member.on_revoked(_places(revoked))


class AiokafkaMember(Member):
    """A rebalance waits for the batch in hand: both happen on one loop, under one lock."""

    def __init__(self, ask: dict[str, Any]) -> None:
        super().__init__(ask)
        self._consumer: Any = None
        self._busy = asyncio.Lock()

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        ask = self.ask
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=ask["servers"],
            group_id=ask["group"],
            client_id=ask["member"],
            group_instance_id=ask["instance"],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=ask["session_ms"],
            heartbeat_interval_ms=ask["heartbeat_ms"],
            max_poll_interval_ms=ask["poll_interval_ms"],
            rebalance_timeout_ms=ask["poll_interval_ms"],
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            retry_backoff_ms=BACKOFF_MS,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        wanted = {"pattern": ask["pattern"]} if ask["pattern"] else {"topics": ask["topics"]}
        self._consumer.subscribe(listener=_Listener(self), **wanted)
        await self._consumer.start()
        try:
            while not self.is_leaving.is_set():
                # In a thread: the loop goes on, and its heartbeats with it.
                await asyncio.to_thread(self.wait_while_stalled)
                await self._poll()
        finally:
            self.given_up("revoked", list(self.owned))
            await self._consumer.stop()

    async def _poll(self) -> None:
        wait_ms = int(POLL_S * 1000)
        found = await self._consumer.getmany(timeout_ms=wait_ms, max_records=POLL_RECORDS_MAX)
        async with self._busy:
            offsets: dict[Place, int] = {}
            for partition, records in found.items():
                place = (partition.topic, partition.partition)
                for record in records if place in self.owned else ():
                    self.processed(place, record.offset, record.value)
                    offsets[place] = record.offset + 1
            if offsets:
                await self._commit(offsets)

    async def _commit(self, offsets: dict[Place, int]) -> None:
        began_ns = time.monotonic_ns()
        try:
            await self._consumer.commit(
                {TopicPartition(*place): offset for place, offset in offsets.items()}
            )
        except Exception as error:  # noqa: BLE001 - noted: the checker knows what may be refused
            self.refused(offsets, error)
        else:
            self.acknowledged(offsets, began_ns)

    async def on_assigned(self, places: list[Place]) -> None:
        async with self._busy:
            self.assigned(places, self._consumer._coordinator.generation)

    async def on_revoked(self, places: list[Place]) -> None:
        async with self._busy:
            was_fenced = self._consumer._coordinator.member_id == ""
            self.given_up("lost" if was_fenced else "revoked", places)


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]

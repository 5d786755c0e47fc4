"""A broker without sockets and with some records, for handlers that look at logs."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from kits.broker.topic_handlers_kit import Desk
from kits.storage.log_stories import NOW, batch_of, of_producer
from millstream.broker.produce.producer_ids import ProducerIds
from millstream.model.ids import LeaderEpoch, Offset
from millstream.replication.partition import Partition
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import BatchSpec, build_marker

TOPIC = "events"


class LogDesk(Desk):
    """A topic with one partition; records at NOW, NOW + 10, NOW + 20, ..."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(settings)
        self._tasks: set[asyncio.Task[None]] = set()
        self.services.producer_ids = ProducerIds(self.controller, self._spawn)
        self.create(TOPIC)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def leader(self) -> Partition:
        return self.partitions.get((TOPIC, 0))

    def put(self, *values: bytes, epoch: int | None = None) -> None:
        """One batch each, replicated."""
        log = self.leader.log
        for value in values:
            batch = batch_of(value, stamps=[NOW + 10 * int(log.log_end)])
            log.append_as_leader(batch, leader_epoch=LeaderEpoch(epoch or 0))
        log.set_high_watermark(log.log_end)

    def put_open_transaction(self, producer_id: int = 5) -> None:
        """A record that nobody has committed yet."""
        log = self.leader.log
        spec = of_producer(producer_id, 0, txn=True)
        stamp = NOW + 10 * int(log.log_end)
        batch = batch_of(b"undecided", spec=spec, stamps=[stamp])
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(0), origin=Origin.COORDINATOR)
        log.set_high_watermark(log.log_end)

    def end_transaction(self, producer_id: int = 5) -> None:
        log = self.leader.log
        spec = BatchSpec(producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW)
        marker = build_marker(spec, is_commit=True, coordinator_epoch=3)
        log.append_as_leader(marker, leader_epoch=LeaderEpoch(0), origin=Origin.COORDINATOR)
        log.set_high_watermark(log.log_end)

    def hide_from(self, offset: int) -> None:
        """Let the high watermark lag, as it does when followers are slow."""
        self.leader.log.set_high_watermark(Offset(offset))

"""Writes Arrow batches, or batches of bytes, to topics: idempotent, in order, with back-pressure.

`send` returns when a batch is accepted, not when it is stored; `flush` returns what was stored.
Small batches are gathered until there is enough for a record batch or `linger.ms` is over; large
ones are split into chunks, so that the first are sent while the last are encoded.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final, NamedTuple, Self

from millstream.client.cluster import Cluster, or_raise
from millstream.client.errors import (
    BrokersUnreachable,
    ClientClosed,
    ClientError,
    DeadlinePassed,
)
from millstream.client.metadata import TopicInfo
from millstream.client.produce.arrow_coalescer import Gatherer, Portion
from millstream.client.produce.batches import Batch, Source
from millstream.client.produce.bytes_batch import BytesBatch
from millstream.client.produce.errors import (
    BufferFull,
    ColumnInvalid,
    PartitionInvalid,
    RowInvalid,
    WriterBroken,
)
from millstream.client.produce.machine import Delivered, ProduceMachine, Rules
from millstream.client.produce.row_partitioner import Spreader, SpreadRules
from millstream.client.produce.rows import RowBatch, Rows
from millstream.client.produce.sender import Sender
from millstream.client.settings import ClientSettings
from millstream.kernels.columns import BatchOptions
from millstream.kernels.compression import Codec
from millstream.model.ids import TopicPartition
from millstream.runtime.clock import Clock, SystemClock
from millstream.runtime.randomness import Randomness, system_randomness

BATCH_BYTES: Final = 1_000_000
"""Of a record batch before compression, where `batch.size` is not larger. That setting is about how
much memory may be reserved for rows to come; here the rows are present. Nearly the default limit
of a topic and a request: batches of half the size cost a tenth more for rows of 1 KB."""

_LZ4_LEVEL: Final = 9
"""The default of `compression.lz4.level`."""

CHUNK_BYTES: Final = 4 * 1024 * 1024
"""A larger Arrow batch is encoded and sent in chunks of this size: encoding and sending overlap,
and the buffered memory is bounded by chunks instead of batches."""

CREATION_S: Final = 5.0
"""How long to retry an unknown topic that brokers may create: the first response after a creation
began says unknown, and a cluster takes a moment to create it."""

DOUBT_S: Final = CREATION_S + 1.0
"""How long to refresh a topic that is already cached."""


class RowChunk(NamedTuple):
    """Rows that are encoded together."""

    batch: RowBatch
    source: Source


class ColumnProducer:
    """One producer; made and used on a loop. All its errors are ClientErrors."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        topic: str | None = None,
        creates_topics: bool = False,
        randomness: Randomness | None = None,
        clock: Clock | None = None,
    ) -> None:
        """With `creates_topics` a broker may create a missing topic, as Kafka's do."""
        self.settings = settings = cluster.settings
        self._cluster = cluster
        self._topic = topic
        self._creates_topics = creates_topics
        self._clock = clock if clock is not None else SystemClock()
        randomness = randomness if randomness is not None else system_randomness()
        options = batch_options(settings)
        batch_bytes = min(max(settings.batch_size, BATCH_BYTES), settings.max_request_size)
        self._spreader = Spreader(
            SpreadRules(
                batch_bytes=batch_bytes,
                record_bytes_max=settings.max_request_size,
                options=options,
            ),
            randomness,
        )
        rules = Rules(
            delivery_timeout_s=settings.delivery_timeout_ms / 1000,
            backoff=settings.retry_backoff,
            in_flight_max=settings.max_in_flight_requests_per_connection,
            request_bytes_max=settings.max_request_size,
            batch_options=options,
            is_idempotent=settings.enable_idempotence,
        )
        self._sender = Sender(
            cluster, ProduceMachine(rules, randomness), on_too_large=self._spreader.too_large
        )
        # Gathered rows and chunks are in addition to what is being sent: a share of the buffer.
        share_bytes = max(1, settings.buffer_memory // 4)
        gathered_bytes = min(batch_bytes, share_bytes) if settings.linger_ms else 0
        self._gatherer = Gatherer(bytes_min=gathered_bytes)
        self._linger: asyncio.TimerHandle | None = None
        self._chunk_bytes = min(CHUNK_BYTES, share_bytes)
        self._turn = asyncio.Lock()
        """Held during a send: the order of sends is the order of records."""
        self._writes = 0
        self._loop = asyncio.get_running_loop()
        self._handed_bytes = self._taken_bytes = 0
        """Total bytes passed to `hand_over`, and taken by the loop."""
        self._is_closed = False
        self._doubted: set[str] = set()
        """Topics to refresh before their cached metadata is used."""

    # -- writing

    async def send(self, batch: RowBatch, *, topic: str | None = None) -> None:
        """Accept the rows; waits for memory (`buffer.memory`) up to `max.block.ms`.

        Raises errors of the batch, and of earlier ones.
        """
        async with self._turn:
            topic = topic if topic is not None else self._topic
            if self.is_small(batch):
                self._check()
                self._writes += 1
                if batch.num_rows:
                    await self._gather(batch, topic)
                return
            await self._begin_write()
            for chunk in self.chunks(batch):
                rows = self.rows_of(chunk, topic)
                topics = self.known_topics(rows) or await self.topics_of(rows)
                try:
                    batches = self.encode(chunk, rows, topics)
                except PartitionInvalid:
                    batches = self.encode(chunk, rows, await self.refresh_topics(rows))
                await self.enqueue(batches)

    async def begin_write(self) -> None:
        """Before the chunks of a large batch: gathered rows are sent first."""
        async with self._turn:
            await self._begin_write()

    async def _begin_write(self) -> None:
        self._check()
        self._writes += 1
        await self._send_gathered()

    @property
    def write_count(self) -> int:
        """Writes so far; errors name a row by the number of its write."""
        return self._writes

    def is_small(self, batch: RowBatch) -> bool:
        return self._gatherer.takes(batch.nbytes)

    def chunks(self, batch: RowBatch) -> Iterator[RowChunk]:
        """Slices without copies."""
        count = max(1, -(-batch.nbytes // self._chunk_bytes))
        length = max(1, -(-batch.num_rows // count))
        for start in range(0, batch.num_rows, length):
            yield RowChunk(batch.slice(start, length), Source((self._writes,), (-start,)))

    def rows_of(self, chunk: RowChunk, topic: str | None) -> Rows:
        """May be called on any thread, as `encode`, but by one at a time."""
        try:
            return _rows_of(chunk.batch, topic=topic, now_ms=self._clock.wall_ms())
        except RowInvalid as error:
            raise error.moved(-chunk.source.starts[0]) from None

    def known_topics(self, rows: Rows) -> dict[str, TopicInfo] | None:
        """From the cache; None when a topic has to be refreshed."""
        names = rows.topics.names
        if self._doubted and not self._doubted.isdisjoint(names):
            return None
        return self._known(names)

    def _known(self, names: Iterable[str]) -> dict[str, TopicInfo] | None:
        metadata = self._cluster.metadata
        found: dict[str, TopicInfo] = {}
        for name in names:
            info = metadata.topic(name)
            if info is None:
                return None
            found[name] = info
        return found

    def doubt_topics(self) -> None:
        """Refresh each topic when it is next written to: it may be deleted, or have grown."""
        self._doubted = set(self._cluster.metadata.topic_names)

    async def topics_of(self, rows: Rows) -> dict[str, TopicInfo]:
        """Raises TopicUnknown and the like, within `max.block.ms`."""
        found = self.known_topics(rows)
        if found is not None:
            return found
        doubted = self._known(rows.topics.names)
        if doubted is None:
            return await self.refresh_topics(rows)
        try:
            return await self.refresh_topics(rows, within_s=DOUBT_S)
        except (BrokersUnreachable, DeadlinePassed):
            # No broker responds at present: the sender decides how long that may last.
            self._doubted.difference_update(rows.topics.names)
            return doubted

    async def refresh_topics(
        self, rows: Rows, *, within_s: float = math.inf
    ) -> dict[str, TopicInfo]:
        """With current metadata: an unknown partition may have been added since."""
        within_s = min(within_s, self.settings.max_block_ms / 1000)
        deadline = self._cluster.deadline("metadata of topics to write to", within_s)
        names = rows.topics.names
        if self._creates_topics:
            each = await self._cluster.topics_each(
                names, deadline=deadline, unknown_grace_s=CREATION_S, creates=True
            )
            found = {name: or_raise(one) for name, one in each.items()}
        else:
            found = await self._cluster.topics(names, deadline=deadline)
        self._doubted.difference_update(names)
        return found

    def encode(self, chunk: RowChunk, rows: Rows, topics: dict[str, TopicInfo]) -> list[Batch]:
        try:
            return self._spreader.spread(rows, topics, chunk.source)
        except RowInvalid as error:
            raise error.moved(-chunk.source.starts[0]) from None

    async def enqueue(self, batches: list[Batch]) -> None:
        """Pass them to the sender as soon as there is memory; all or none."""
        total = sum(one.size for one in batches)
        machine, limit = self._sender.machine, self.settings.buffer_memory

        def has_room() -> bool:
            return machine.open_bytes + total <= limit or not machine.open_bytes or self._is_closed

        within_s = self.settings.max_block_ms / 1000
        if not await self._sender.until(has_room, within_s):
            last = machine.errors[0] if machine.errors else None
            raise BufferFull(within_s=within_s, bytes_max=limit, last_error=last)
        self._check()
        self._sender.append(batches)

    # -- from another thread

    @property
    def has_unsent(self) -> bool:
        """Rows were accepted, and their outcome is not known yet."""
        handed = self._handed_bytes != self._taken_bytes
        return handed or not self._gatherer.is_empty or bool(self._sender.machine.open_batches)

    @property
    def is_clear(self) -> bool:
        """Nothing is gathered and nothing failed: a large batch may be handed over at once."""
        return self._gatherer.is_empty and not self._is_closed and not self._sender.machine.errors

    def begin_clear_write(self) -> None:
        """`begin_write` for a caller that checked `is_clear`."""
        self._writes += 1

    def hand_over(self, batches: list[Batch]) -> bool:
        """`enqueue` from the one thread that writes, without waiting for the loop.

        Returns False without effect when there is no memory or something failed. Batches that the
        loop has not taken yet are counted; counters that only one side writes need no lock.
        """
        total = sum(one.size for one in batches)
        used = self._sender.machine.open_bytes + self._handed_bytes - self._taken_bytes
        if not self.is_clear or used + total > self.settings.buffer_memory:
            return False
        self._handed_bytes += total
        try:
            self._loop.call_soon_threadsafe(self._take_over, batches, total)
        except RuntimeError:
            raise ClientClosed from None  # the loop was closed
        return True

    def _take_over(self, batches: list[Batch], total: int) -> None:
        self._taken_bytes += total
        self._sender.append(batches)

    # -- small batches

    async def _gather(self, batch: RowBatch, topic: str | None) -> None:
        rows = _rows_of(batch, topic=topic, now_ms=self._clock.wall_ms())
        try:
            self._spreader.check(rows, await self.topics_of(rows))
        except PartitionInvalid:
            self._spreader.check(rows, await self.refresh_topics(rows))
        if not self._gatherer.fits(batch.schema, topic):
            await self._send_gathered()
        self._gatherer.add(batch, topic, self._writes)
        if self._gatherer.is_full:
            await self._send_gathered()
        elif self._linger is None:
            self._linger = self._loop.call_later(self.settings.linger_ms / 1000, self._lingered)

    async def _send_gathered(self) -> None:
        portion = self._take_gathered()
        if portion is not None:
            chunk = RowChunk(portion.batch, portion.source)
            rows = self.rows_of(chunk, portion.topic)
            topics = await self.topics_of(rows)
            await self.enqueue(self.encode(chunk, rows, topics))

    def _take_gathered(self) -> Portion | None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        return self._gatherer.take()

    def _lingered(self) -> None:
        """`linger.ms` is over. Does not wait for memory, as it is less than one batch."""
        self._linger = None
        portion = self._gatherer.take()
        if portion is None or self._is_closed:
            return
        try:
            chunk = RowChunk(portion.batch, portion.source)
            rows = self.rows_of(chunk, portion.topic)
            topics = self.known_topics(rows)
            if topics is None:
                # Dropped from the cache meanwhile: the next send or flush refreshes it.
                self._gatherer.put_back(portion)
            else:
                self._sender.append(self.encode(chunk, rows, topics))
        except ClientError as error:
            self._sender.machine.refuse(error, portion.batch.num_rows)
        except Exception as bug:  # noqa: BLE001 - the loop would log it, and the rows be missing
            self._sender.machine.refuse(WriterBroken(bug), portion.batch.num_rows)

    # -- ends

    async def flush(self) -> dict[TopicPartition, Delivered]:
        """Wait until everything has ended; returns what was stored since the last flush.

        Raises the first error of a batch that was not stored; each ends within
        `delivery.timeout.ms`. After that the producer can be used again, unless the error concerns
        the producer itself.
        """
        async with self._turn:
            if self._is_closed:
                raise ClientClosed
            await self._send_gathered()
            machine = self._sender.machine
            await self._sender.until(lambda: not machine.open_batches)
            self._raise_errors()
            delivered, machine.delivered = machine.delivered, {}
            return delivered

    def _check(self) -> None:
        if self._is_closed:
            raise ClientClosed
        if self._sender.machine.errors:
            self._raise_errors()

    def _raise_errors(self) -> None:
        machine = self._sender.machine
        if machine.fatal is not None and not machine.errors:
            raise machine.fatal
        if not machine.errors:
            return
        error: ClientError = machine.errors[0]
        count = machine.undelivered_records
        machine.errors, machine.undelivered_records = [], 0
        error.add_note(f"{count} records in all were not acknowledged")
        raise error

    async def abort(self) -> None:
        """Drop everything that is not acknowledged; the producer is closed."""
        self._is_closed = True
        self._take_gathered()
        await self._sender.close()

    async def close(self) -> None:
        """Flush, then close."""
        if self._is_closed:
            return
        try:
            await self.flush()
        finally:
            await self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.close()
        else:
            await self.abort()


def _rows_of(batch: RowBatch, *, topic: str | None, now_ms: int) -> Rows:
    if isinstance(batch, BytesBatch):
        if topic is None:
            raise ColumnInvalid("topic", "is missing, and no topic was given for all rows; add one")
        return batch.rows(topic=topic, now_ms=now_ms)
    # Local import: it loads pyarrow, which may be missing where batches of bytes are written.
    from millstream.client.arrow_write import rows_of

    return rows_of(batch, topic=topic, now_ms=now_ms)


def batch_options(settings: ClientSettings) -> BatchOptions:
    """Compression codec and level of batches."""
    codec = Codec[settings.compression_type.upper()]
    level = {
        Codec.GZIP: settings.compression_gzip_level,
        Codec.LZ4: settings.compression_lz4_level,
        Codec.ZSTD: settings.compression_zstd_level,
    }.get(codec)
    # In Java's client these mean the codec's own default, which for lz4 is its fast mode.
    if (codec, level) in ((Codec.GZIP, -1), (Codec.LZ4, _LZ4_LEVEL)):
        level = None
    return BatchOptions(codec=codec, level=level)

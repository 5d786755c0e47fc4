"""Writes Arrow record batches from blocking code: Spark's tasks, scripts, the command line.

Rows are encoded on the caller's thread while the client's loop sends earlier batches: compression
and checksums, which release the GIL, run in parallel with the sending.
"""

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.column_producer import ColumnProducer
from millstream.client.errors import ClientClosed
from millstream.client.produce.bytes_batch import BytesBatch
from millstream.client.produce.errors import PartitionInvalid
from millstream.client.produce.machine import Delivered
from millstream.client.produce.rows import RowBatch
from millstream.model.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.client.blocking import BlockingClient

T = TypeVar("T")


class ColumnWriter:
    """Created by `BlockingClient.column_writer`. Calls from several threads are serialized."""

    def __init__(
        self, client: "BlockingClient", *, topic: str | None = None, creates_topics: bool = False
    ) -> None:
        self._client = client
        self._topic = topic
        self._creates_topics = creates_topics
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()
        self._cluster = client.borrow()
        try:
            self._producer: ColumnProducer = client.run(self._make)
        except BaseException:
            client.give_back()
            raise
        self._warning = weakref.finalize(self, _warn_of_unsent, self._producer, self._pid)

    async def _make(self, cluster: Cluster) -> ColumnProducer:
        return ColumnProducer(cluster, topic=self._topic, creates_topics=self._creates_topics)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run on the producer's loop: a client that was closed meanwhile has another."""

        async def guarded(cluster: Cluster) -> T:
            if cluster is not self._cluster:
                raise ClientClosed
            return await work()

        return self._client.run(guarded, timeout_s=timeout_s)

    @property
    def _block_s(self) -> float:
        return self._client.settings.max_block_ms / 1000

    @property
    def _delivery_s(self) -> float:
        return self._client.settings.delivery_timeout_ms / 1000

    @property
    def write_count(self) -> int:
        """Batches written so far; errors name a row by the number of its write."""
        return self._producer.write_count

    def doubt_topics(self) -> None:
        """See `ColumnProducer.doubt_topics`: for a writer that was not used for a while."""
        with self._lock:
            self._producer.doubt_topics()

    def write(self, rows: "RowBatch | pa.Table", *, topic: str | None = None) -> None:
        """See `ColumnProducer.send`; blocks while the send buffer is full.

        The batches of a table are written one after another, like separate writes.
        """
        batches = [rows] if isinstance(rows, BytesBatch) else _arrow_batches(rows)
        with self._lock:
            self._check()
            for batch in batches:
                self._write(batch, topic)

    def _write(self, batch: RowBatch, topic: str | None) -> None:
        producer = self._producer
        if producer.is_small(batch):
            self._run(lambda: producer.send(batch, topic=topic), self._block_s)
        else:
            self._write_chunks(batch, topic if topic is not None else self._topic)

    def _write_chunks(self, batch: RowBatch, topic: str | None) -> None:
        """Wait for the loop only where necessary."""
        producer = self._producer
        if producer.is_clear:
            producer.begin_clear_write()
        else:
            self._run(producer.begin_write, self._block_s)
        for chunk in producer.chunks(batch):
            rows = producer.rows_of(chunk, topic)
            topics = producer.known_topics(rows)
            if topics is None:
                topics = self._run(partial(producer.topics_of, rows), self._block_s)
            try:
                batches = producer.encode(chunk, rows, topics)
            except PartitionInvalid:
                topics = self._run(partial(producer.refresh_topics, rows), self._block_s)
                batches = producer.encode(chunk, rows, topics)
            if not producer.hand_over(batches):
                self._run(partial(producer.enqueue, batches), self._block_s)

    def flush(self) -> dict[TopicPartition, Delivered]:
        """See `ColumnProducer.flush`: what was stored since the last one, by partition."""
        with self._lock:
            self._check()
            return self._run(self._producer.flush, self._delivery_s + self._block_s)

    def abort(self) -> None:
        """Drop unsent rows; those that were sent may be stored. The writer is closed."""
        with self._lock:
            self._end()

    def close(self) -> None:
        """Flush, then close; raises what `flush` raises."""
        with self._lock:
            if self._is_closed:
                return
            try:
                self._run(self._producer.flush, self._delivery_s + self._block_s)
            finally:
                self._end()

    def _check(self) -> None:
        # A forked child does not have the loop's thread.
        if self._is_closed or self._pid != os.getpid():
            raise ClientClosed

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._warning.detach()
        try:
            self._run(self._producer.abort, self._block_s)
        except ClientClosed:
            pass  # the client was closed first, and the producer with it
        finally:
            self._client.give_back()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _arrow_batches(rows: "RowBatch | pa.Table") -> Sequence[RowBatch]:
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return [rows]
    if isinstance(rows, pa.Table):
        return list(rows.to_batches())
    kind = type(rows).__name__
    raise TypeError(f"rows must be a pyarrow.RecordBatch or pyarrow.Table, not {kind}")


def _warn_of_unsent(producer: ColumnProducer, pid: int) -> None:
    """A writer was garbage-collected, or still open at the end of the interpreter."""
    if pid == os.getpid() and producer.has_unsent:
        warnings.warn(
            "a ColumnWriter was not closed: some rows may not be stored; use `with`, or call"
            " close()",
            ResourceWarning,
            stacklevel=2,
        )

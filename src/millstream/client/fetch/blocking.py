"""Arrow record batches for blocking code: the loop's thread fetches, the caller decodes.

The loop's thread only moves bytes and reads batch headers. The iterating thread decodes, one chunk
at a time, while the next ones are in flight; so memory is bounded by the prefetched bytes and one
Arrow batch. Chunks are passed through a SimpleQueue, which takes no Python lock, and the loop is
woken only when it waits for memory to be released.
"""

import asyncio
import queue
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from millstream.client.errors import ClientClosed, ClientError, DeadlinePassed
from millstream.client.fetch.chunks import Chunk, ReadRange
from millstream.client.fetch.fetcher import LATE_S, Fetcher
from millstream.client.fetch.options import NO_OPTIONS, ReadOptions
from millstream.client.fetch.parts import PartitionBatch
from millstream.client.fetch.ranges import checked_ranges, partition_of
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.loop_thread import LoopEnded

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.client.blocking import BlockingClient, Running
    from millstream.client.cluster import Cluster
    from millstream.client.fetch.decoder import BatchShape

_ALIVE_CHECK_INTERVAL_S: Final = 1.0
"""How often a wait checks that the loop's thread is alive: a forked child has none."""

_END: Final = None
Item = Chunk | BaseException | None


class _Handover:
    """The loop's side; without a reference to the iterator, which may be garbage-collected."""

    def __init__(self, ranges: Sequence[ReadRange], options: ReadOptions) -> None:
        self._ranges = ranges
        self._options = options
        self.queue: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self.fetcher: Fetcher | None = None

    async def run(self, cluster: "Cluster") -> None:
        put = self.queue.put
        try:
            self.fetcher = Fetcher(
                cluster,
                self._ranges,
                self._options.limits(cluster.settings),
                deliver=put,
                timeout_s=self._options.timeout_s,
            )
            await self.fetcher.run()
            put(_END)
        except ClientError as error:
            put(error)
        except asyncio.CancelledError:
            # The chunks are not needed any more, and the traceback would keep them alive.
            self._drop()
            put(ClientClosed())
            raise
        except BaseException as error:
            put(error)
            raise

    def _drop(self) -> None:
        with suppress(queue.Empty):
            while True:
                self.queue.get_nowait()


class PartitionRows(Protocol):
    """Rows of one partition."""

    @property
    def partition(self) -> TopicPartition: ...

    @property
    def next_offset(self) -> Offset:
        """Where to continue after these rows."""


B = TypeVar("B", bound=PartitionRows)
B_co = TypeVar("B_co", bound=PartitionRows, covariant=True)


class ChunkDecoder(Protocol[B_co]):
    """Decodes chunks into rows, lazily."""

    def batches(self, chunk: Chunk) -> Iterator[B_co]: ...


class ChunkIterator(Iterator[B]):
    """Batches of one or many partitions. One thread at a time; the first `next` starts the fetch.

    `close`, the end, an error, or garbage collection stop the fetch and free its memory.
    """

    def __init__(
        self,
        client: "BlockingClient",
        ranges: Sequence[ReadRange],
        decoder: ChunkDecoder[B],
        options: ReadOptions,
    ) -> None:
        self._client = client
        self._is_bounded = all(one.end is not None for one in ranges)
        timeout_s = options.timeout_s
        self._timeout_s = client.settings.api_timeout_s if timeout_s is None else timeout_s
        self._decoder = decoder
        self._handover = _Handover(ranges, options)
        self._running: Running | None = None
        self._work: Future[None] | None = None
        self._chunk: Chunk | None = None
        self._batches: Iterator[B] = iter(())
        self._is_closed = False
        self.positions: dict[TopicPartition, Offset] = {one.partition: one.start for one in ranges}
        """Where each partition continues, after returned rows and ranges without visible rows."""

    def __next__(self) -> B:
        try:
            while True:
                found = next(self._batches, None)
                if found is not None:
                    self.positions[found.partition] = found.next_offset
                    return found
                self._release_chunk()
                self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        """Wait for the next chunk."""
        if self._is_closed:
            raise StopIteration
        item = self._wait()
        if item is _END:
            raise StopIteration
        if isinstance(item, BaseException):
            raise item
        self._chunk = item
        self._batches = self._decoder.batches(item)

    def _release_chunk(self) -> None:
        """Release the current chunk, and wake the loop if it waits for that."""
        chunk, self._chunk = self._chunk, None
        self._batches = iter(())
        fetcher, running = self._handover.fetcher, self._running
        if chunk is None or fetcher is None or running is None:
            return
        self.positions[chunk.partition] = chunk.stop
        if fetcher.release_chunk(chunk):
            running.thread.call(fetcher.send_ready)

    def _wait(self) -> Item:
        running = self._running
        if running is None:
            running = self._start()
        waited_s = 0.0
        while True:
            step_s = min(_ALIVE_CHECK_INTERVAL_S, max(0.0, self._limit_s() - waited_s))
            try:
                return self._handover.queue.get(timeout=step_s)
            except queue.Empty:
                waited_s += step_s
            if not running.thread.is_alive:
                raise ClientClosed
            if waited_s >= self._limit_s():
                raise self._stalled()

    def _limit_s(self) -> float:
        """How long this wait may take at present."""
        if not self._is_bounded:
            return float("inf")
        fetcher = self._handover.fetcher
        is_failing = fetcher is not None and fetcher.is_failing
        return self._timeout_s + (LATE_S if is_failing else 0.0)

    def _stalled(self) -> ClientError:
        fetcher = self._handover.fetcher
        if fetcher is not None:
            return fetcher.stalled_error(self._timeout_s)
        return DeadlinePassed("reading records", within_s=self._timeout_s)

    def _start(self) -> "Running":
        running = self._running = self._client.begin_read(self._handover)
        try:
            self._work = running.thread.start(self._handover.run(running.cluster))
        except LoopEnded:
            raise ClientClosed from None
        return running

    def close(self) -> None:
        """Stop; may be called at any time, and does not block."""
        self._is_closed = True
        self._chunk = None
        self._batches = iter(())
        running, self._running = self._running, None
        if running is None:
            return
        running.reads.discard(self._handover)
        if running.thread.is_ours and self._work is not None:
            self._work.cancel()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class BatchIterator(ChunkIterator[PartitionBatch]):
    """Arrow batches."""

    def __init__(
        self,
        client: "BlockingClient",
        ranges: Sequence[ReadRange],
        shape: "BatchShape",
        options: ReadOptions,
    ) -> None:
        # Local import: it loads pyarrow, which may be missing where Python rows are read.
        from millstream.client.fetch.decoder import Decoder

        super().__init__(client, ranges, Decoder(shape), options)


class ColumnIterator(Iterator["pa.RecordBatch"]):
    """The batches of one partition."""

    def __init__(self, batches: BatchIterator, partition: TopicPartition) -> None:
        self._batches = batches
        self._partition = partition

    @property
    def position(self) -> Offset:
        """Where to continue: after returned rows and ranges without visible rows."""
        return self._batches.positions[self._partition]

    def __next__(self) -> "pa.RecordBatch":
        return next(self._batches).batch

    def close(self) -> None:
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_many(
    client: "BlockingClient",
    ranges: Iterable[ReadRange],
    columns: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> BatchIterator:
    """Raises errors of columns and ranges at once, all others when iterated."""
    from millstream.client.fetch.decoder import shape_of

    options = options or NO_OPTIONS
    shape = shape_of(client.settings, columns, options)
    return BatchIterator(client, checked_ranges(ranges), shape, options)


def read_columns(
    client: "BlockingClient",
    wanted: ReadRange,
    columns: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> ColumnIterator:
    """The batches of one partition."""
    partition = partition_of(wanted.partition)
    return ColumnIterator(read_many(client, [wanted], columns, options), partition)

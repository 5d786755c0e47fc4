"""Arrow record batches for asyncio, on the client's own loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Self

import pyarrow as pa

from millstream.client.cluster import Cluster
from millstream.client.errors import ClientClosed
from millstream.client.fetch.chunks import Chunk, ReadRange
from millstream.client.fetch.decoder import Decoder, shape_of
from millstream.client.fetch.fetcher import LATE_S, Fetcher
from millstream.client.fetch.options import NO_OPTIONS, ReadOptions
from millstream.client.fetch.parts import PartitionBatch
from millstream.client.fetch.ranges import checked_ranges
from millstream.model.ids import Offset, TopicPartition


class Batches(AsyncIterator[PartitionBatch]):
    """Batches of one or many partitions, in the order in which they arrive.

    The first `anext` starts the fetch; `aclose`, the end, or an error stop it. Use it with
    `async with`, or read it to its end.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Iterable[ReadRange],
        columns: Sequence[str] | None = None,
        options: ReadOptions | None = None,
    ) -> None:
        wanted, options = checked_ranges(ranges), options or NO_OPTIONS
        self._decoder = Decoder(shape_of(cluster.settings, columns, options))
        self._chunks: deque[Chunk] = deque()
        self._changed = asyncio.Event()
        self._is_bounded = all(one.end is not None for one in wanted)
        timeout_s = options.timeout_s
        self._timeout_s = cluster.settings.api_timeout_s if timeout_s is None else timeout_s
        self._fetcher = Fetcher(
            cluster,
            wanted,
            options.limits(cluster.settings),
            deliver=self._deliver,
            timeout_s=timeout_s,
        )
        self._work: asyncio.Task[None] | None = None
        self._chunk: Chunk | None = None
        self._batches: Iterator[PartitionBatch] = iter(())
        self.positions: dict[TopicPartition, Offset] = {one.partition: one.start for one in wanted}
        """Where each partition continues, after returned rows and ranges without visible rows."""

    def _deliver(self, chunk: Chunk) -> None:
        self._chunks.append(chunk)
        self._changed.set()

    async def __anext__(self) -> PartitionBatch:
        try:
            while True:
                found = next(self._batches, None)
                if found is not None:
                    self.positions[found.partition] = found.next_offset
                    return found
                self._release_chunk()
                self._chunk = await self._next_chunk()
                self._batches = self._decoder.batches(self._chunk)
        except BaseException:
            await self.aclose()
            raise

    def _release_chunk(self) -> None:
        chunk, self._chunk = self._chunk, None
        self._batches = iter(())
        if chunk is not None:
            self.positions[chunk.partition] = chunk.stop
            if self._fetcher.release_chunk(chunk):
                self._fetcher.send_ready()

    async def _next_chunk(self) -> Chunk:
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(
                self._fetcher.run(), name="read records"
            )
            self._work.add_done_callback(lambda _: self._changed.set())
        while not self._chunks:
            self._changed.clear()
            if not self._work.done():
                await self._wait()
            elif self._work.cancelled():
                raise ClientClosed
            else:
                self._work.result()
                raise StopAsyncIteration
        return self._chunks.popleft()

    async def _wait(self) -> None:
        """Wait for a chunk or the end; a read that has an end does not wait forever."""
        if await self._changes_within(self._timeout_s if self._is_bounded else None):
            return
        # A leader search that times out raises a more specific error.
        if self._fetcher.is_failing and await self._changes_within(LATE_S):
            return
        raise self._fetcher.stalled_error(self._timeout_s)

    async def _changes_within(self, time_s: float | None) -> bool:
        try:
            async with asyncio.timeout(time_s):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def aclose(self) -> None:
        """Stop the fetch and free its memory."""
        self._chunk = None
        self._batches = iter(())
        self._chunks.clear()
        if self._work is None or self._work.done():
            return
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def read_many(
    cluster: Cluster,
    ranges: Iterable[ReadRange],
    *,
    columns: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> Batches:
    """The records of many ranges."""
    return Batches(cluster, ranges, columns, options)


async def read_range(
    cluster: Cluster,
    wanted: ReadRange,
    *,
    columns: Sequence[str] | None = None,
    options: ReadOptions | None = None,
) -> AsyncIterator[pa.RecordBatch]:
    """The records of one range; an async generator of Arrow batches."""
    async with Batches(cluster, [wanted], columns, options) as batches:
        async for one in batches:
            yield one.batch

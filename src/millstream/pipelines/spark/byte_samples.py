"""Fetches from the brokers how many bytes offsets have: the input of `maxBytesPerTrigger`.

Sizes of whole logs come from DescribeLogDirs, once for every set of partitions. They are a mean
over the whole log, so before each batch a sample is fetched where it begins. Both are best effort:
what a broker does not return, or not in time, is left out, and the batch is limited by what is
known.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from millstream.client.blocking import BlockingClient
from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError
from millstream.client.fetch.chunks import Chunk, FetchLimits, ReadRange
from millstream.client.fetch.fetcher import Fetcher
from millstream.client.offsets import by_topic
from millstream.client.targets import Node
from millstream.model.ids import BrokerId, Offset, TopicPartition
from millstream.model.limits import KIB, MIB
from millstream.pipelines.admission import Positions
from millstream.pipelines.byte_estimate import ByteEstimate, Span
from millstream.pipelines.data_loss import ClusterView
from millstream.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

SAMPLE_BYTES: Final = 64 * KIB
"""Of one partition; at least one batch is returned."""
SAMPLES_BYTES_MAX: Final = 8 * MIB
"""Of all partitions together, at a time."""
SAMPLES_TIMEOUT_S: Final = 5.0
"""A batch does not wait longer for what only improves its size."""

_BASE_OFFSET_BYTES: Final = 8
"""A record batch begins with its first offset."""


class ByteSamples:
    """Keeps the estimate of one query up to date."""

    def __init__(self) -> None:
        self.estimate = ByteEstimate()
        self._sized_partitions: frozenset[TopicPartition] | None = None

    def refresh(self, client: BlockingClient, view: ClusterView, begins: Positions) -> ByteEstimate:
        """Update the estimate before a batch that begins there."""
        if self._sized_partitions != frozenset(view.latest):
            self._sized_partitions = frozenset(view.latest)
            sizes = client.run(lambda cluster: log_sizes(cluster, view.latest))
            logs = {
                partition: Span(view.latest[partition] - view.earliest[partition], size)
                for partition, size in sizes.items()
                if partition in view.earliest
            }
            self.estimate = self.estimate.with_log_sizes(logs)
        ranges = [
            ReadRange(partition, begin, view.latest[partition], view.topic_ids.get(partition.topic))
            for partition, begin in begins.items()
            if begin < view.latest.get(partition, begin)
        ]
        if ranges:
            seen = client.run(lambda cluster: sampled(cluster, ranges))
            self.estimate = self.estimate.observed(seen)
        return self.estimate


async def log_sizes(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Bytes of each log on its leader."""
    by_leader: dict[BrokerId, list[TopicPartition]] = {}
    for one in partitions:
        leader = cluster.metadata.leader_of(one)
        if leader is not None:
            by_leader.setdefault(leader.broker.broker_id, []).append(one)
    found = await asyncio.gather(
        *(_log_sizes_at(cluster, broker_id, led) for broker_id, led in by_leader.items())
    )
    return {partition: size for sizes in found for partition, size in sizes.items()}


async def _log_sizes_at(
    cluster: Cluster, broker_id: BrokerId, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    topics = [
        DescribableLogDirTopic(topic=name, partitions=[one.partition for one in members])
        for name, members in by_topic(partitions).items()
    ]
    deadline = cluster.deadline("sizes of logs", SAMPLES_TIMEOUT_S)
    try:
        response: DescribeLogDirsResponse = await cluster.call(
            DescribeLogDirsRequest(topics=topics), to=Node(broker_id), deadline=deadline
        )
    except ClientError:
        return {}  # it needs permissions that a reader need not have
    return {
        TopicPartition(topic.name, one.partition_index): one.partition_size
        for directory in response.results
        for topic in directory.topics
        for one in topic.partitions
        if not one.is_future_key
    }


async def sampled(cluster: Cluster, ranges: Collection[ReadRange]) -> Mapping[TopicPartition, Span]:
    """The first batches of each range: offsets and bytes."""
    seen: dict[TopicPartition, Span] = {}
    has_all = asyncio.Event()

    def deliver(chunk: Chunk) -> None:
        if chunk.partition not in seen and chunk.records:
            seen[chunk.partition] = _span(chunk)
            if len(seen) == len(ranges):
                has_all.set()

    limits = FetchLimits(
        fetch_bytes_max=SAMPLES_BYTES_MAX,
        partition_bytes_max=SAMPLE_BYTES,
        prefetch_bytes_max=SAMPLES_BYTES_MAX,
        fetch_bytes_min=1,
        wait_ms_max=0,
        is_committed=False,
    )
    fetcher = Fetcher(cluster, ranges, limits, deliver=deliver, timeout_s=SAMPLES_TIMEOUT_S)
    with suppress(ClientError):
        await _until(has_all, fetcher)
    return seen


async def _until(has_all: asyncio.Event, fetcher: Fetcher) -> None:
    """Fetch until everything was seen, the ranges end or time is up."""
    work = asyncio.ensure_future(fetcher.run())
    seen = asyncio.ensure_future(has_all.wait())
    try:
        done, _ = await asyncio.wait(
            (work, seen), timeout=SAMPLES_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if work in done:
            work.result()
    finally:
        work.cancel()
        seen.cancel()
        await asyncio.gather(work, seen, return_exceptions=True)


def _span(chunk: Chunk) -> Span:
    """Counted from the first offset of its first batch, which may be before the start."""
    first = Offset(int.from_bytes(chunk.records[:_BASE_OFFSET_BYTES], "big"))
    return Span(chunk.stop - min(first, chunk.start), chunk.records.nbytes)

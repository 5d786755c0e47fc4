"""What the driver looks up: topics, partitions, earliest and latest offsets, offsets of times.

One lookup is one call of the client, so its requests go out together and share one time limit
(`kafka.default.api.timeout.ms`). Within it, answers that may come from a broker with stale
metadata are requested again, as `fetchOffset.numRetries` and `retryIntervalMs` say.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from millstream.client.blocking import BlockingClient, client_for
from millstream.client.cluster import Cluster, or_raise
from millstream.client.errors import (
    BrokersUnreachable,
    ClientClosed,
    ClientError,
    ConfigInvalid,
    DeadlinePassed,
    TopicUnknown,
)
from millstream.client.metadata import TopicInfo
from millstream.client.offsets import ListedOffset, OffsetSpec, list_offsets_each
from millstream.client.retries import Deadline
from millstream.model.ids import NO_OFFSET, Offset, TopicId, TopicPartition
from millstream.pipelines.data_loss import ClusterView, behind
from millstream.pipelines.errors import RangeInvalid
from millstream.pipelines.offsets_json import EARLIEST_OFFSET, LATEST_OFFSET
from millstream.pipelines.options import ReadOptions
from millstream.pipelines.source_offset import SourceOffset
from millstream.pipelines.spark.notices import client_settings
from millstream.pipelines.subscription import (
    Assign,
    Subscribe,
    SubscribePattern,
    Subscription,
    TopicFacts,
)
from millstream.runtime.clock import Clock, SystemClock

T = TypeVar("T")

_FINAL: Final = (BrokersUnreachable, DeadlinePassed, ConfigInvalid, ClientClosed)
"""Errors that an immediate retry cannot fix."""

Work = Callable[[Cluster, Deadline], Coroutine[Any, Any, T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The partitions that a query reads, by the current metadata."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, TopicId]


class MetadataLookup:
    """Looks up metadata and offsets for one query, on its driver."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._settings = client_settings(options)
        self._clock = clock if clock is not None else SystemClock()
        self._cached: Selection | None = None
        self._cached_at_s = 0.0

    @property
    def client(self) -> BlockingClient:
        return client_for(self._settings)

    # -- lookups

    def selection(self) -> Selection:
        """The partitions of a query that starts; an unknown topic is an error."""
        return self._run("looking up topics", self._selected)

    def offsets(self, lookups: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
        """By the timestamps of ListOffsets; NO_OFFSET where no record is that late."""

        async def work(cluster: Cluster, deadline: Deadline) -> dict[TopicPartition, Offset]:
            found = await self._listed(cluster, lookups, deadline)
            return {partition: or_raise(one) for partition, one in found.items()}

        return self._run("looking up offsets", work) if lookups else {}

    def view(self, start: SourceOffset | None = None) -> ClusterView:
        """A snapshot of the partitions that are read.

        An answer that contradicts the query's position (`start`) is requested again before it is
        believed. Topics that do not exist are left out.
        """
        attempts = iter(range(self._options.offset_fetch.attempts - 1))

        async def work(cluster: Cluster, deadline: Deadline) -> ClusterView:
            while True:
                found = await self._viewed(cluster, deadline)
                if start is None or not _is_doubtful(start, found):
                    return found
                self._cached = None
                if next(attempts, None) is None:
                    return found
                await asyncio.sleep(self._interval_s)

        return self._run("looking up partitions and offsets", work)

    # -- steps

    async def _viewed(self, cluster: Cluster, deadline: Deadline) -> ClusterView:
        selection = await self._selected(cluster, deadline, is_strict=False)
        earliest, latest = await asyncio.gather(
            self._listed(cluster, dict.fromkeys(selection.partitions, EARLIEST_OFFSET), deadline),
            self._listed(cluster, dict.fromkeys(selection.partitions, LATEST_OFFSET), deadline),
        )
        return ClusterView(
            earliest=_present(earliest), latest=_present(latest), topic_ids=selection.topic_ids
        )

    async def _selected(
        self, cluster: Cluster, deadline: Deadline, *, is_strict: bool = True
    ) -> Selection:
        cached = self._fresh_selection()
        if cached is not None:
            return cached
        subscription = self._options.subscription
        infos = await _topic_infos(cluster, subscription, deadline)
        if not is_strict:
            subscription = _without_missing(subscription, infos)
        facts = {
            name: TopicFacts(partition_count=one.partition_count, is_internal=one.is_internal)
            for name, one in infos.items()
        }
        partitions = subscription.selected(facts)
        ids = {name: infos[name].topic_id for name in {one.topic for one in partitions}}
        found = Selection(
            partitions=partitions,
            topic_ids={name: one for name, one in ids.items() if one is not None},
        )
        self._cached, self._cached_at_s = found, self._clock.monotonic_s()
        return found

    def _fresh_selection(self) -> Selection | None:
        ttl_ms = self._options.partition_cache_ttl_ms
        if ttl_ms is None or self._cached is None:
            return None
        age_s = self._clock.monotonic_s() - self._cached_at_s
        return self._cached if age_s * 1000 < ttl_ms else None

    async def _listed(
        self, cluster: Cluster, lookups: Mapping[TopicPartition, int], deadline: Deadline
    ) -> dict[TopicPartition, Offset | ClientError]:
        specs = {partition: OffsetSpec(timestamp) for partition, timestamp in lookups.items()}
        # With read_committed, latest is the last stable offset.
        found = await list_offsets_each(cluster, specs, deadline=deadline)
        return {partition: _offset(one) for partition, one in found.items()}

    # -- attempts

    def _run(self, what: str, work: Work[T]) -> T:
        fetch = self._options.offset_fetch

        async def attempt(cluster: Cluster) -> T:
            deadline = cluster.deadline(what)
            for attempts_left in range(fetch.attempts - 1, -1, -1):
                try:
                    return await work(cluster, deadline)
                except (ClientError, RangeInvalid) as error:
                    self._cached = None
                    if not attempts_left or isinstance(error, _FINAL):
                        raise
                await asyncio.sleep(self._interval_s)
            raise RangeInvalid(f"{what}: no attempt was made")

        client = self.client
        pauses_s = fetch.attempts * self._interval_s
        return client.run(attempt, timeout_s=client.settings.api_timeout_s + pauses_s)

    @property
    def _interval_s(self) -> float:
        return self._options.offset_fetch.interval_ms / 1000


async def _topic_infos(
    cluster: Cluster, subscription: Subscription, deadline: Deadline
) -> dict[str, TopicInfo]:
    """The existing topics, as far as the subscription needs them."""
    if isinstance(subscription, SubscribePattern):
        return await cluster.topics(deadline=deadline)
    each = await cluster.topics_each(subscription.topics, deadline=deadline, unknown_grace_s=0.0)
    return {name: or_raise(one) for name, one in each.items() if not isinstance(one, TopicUnknown)}


def _without_missing(subscription: Subscription, infos: Collection[str]) -> Subscription:
    """Leave out topics that no longer exist: `survey` judges them, they are not an error here."""
    match subscription:
        case Subscribe(topics):
            return Subscribe(tuple(name for name in topics if name in infos))
        case Assign(partitions):
            return Assign(frozenset(one for one in partitions if one.topic in infos))
        case SubscribePattern():
            return subscription


def _offset(found: ListedOffset | ClientError) -> Offset | ClientError:
    if isinstance(found, ClientError):
        return found
    return NO_OFFSET if found.offset is None else found.offset


def _present(
    found: Mapping[TopicPartition, Offset | ClientError],
) -> dict[TopicPartition, Offset]:
    """Leave out partitions that were deleted between two requests, as if never there."""
    return {
        partition: or_raise(one)
        for partition, one in found.items()
        if not isinstance(one, TopicUnknown)
    }


def _is_doubtful(start: SourceOffset, view: ClusterView) -> bool:
    """Whether records seem to be lost, which a broker with stale metadata may report too."""
    is_gone = any(partition not in view.latest for partition in start.positions)
    is_other = any(
        view.topic_ids.get(name, topic_id) != topic_id for name, topic_id in start.topic_ids.items()
    )
    return is_gone or is_other or bool(behind(start, view.latest))

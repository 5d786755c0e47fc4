"""The blocking client, safe in other programs' processes such as Spark's Python workers.

Nothing starts at import or construction. The first call starts one daemon thread with an event loop
for these settings; later calls share it, from any thread. A forked child detects that the thread is
its parent's and starts its own. `client_for` caches one client per settings, so that a worker which
runs task after task connects once.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import ClientClosed, ClientError, DeadlinePassed
from millstream.client.fetch.chunks import ReadRange
from millstream.client.metadata import TopicInfo
from millstream.client.offsets import (
    EpochEnd,
    ListedOffset,
    OffsetSpec,
    list_offsets,
    offsets_for_leader_epoch,
)
from millstream.client.settings import ClientSettings
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.runtime.loop_thread import (
    ForkSafeLock,
    LoopEnded,
    LoopThread,
    keep_forever,
)

if TYPE_CHECKING:  # these load pyarrow, or modules that a process which only reads does not need
    import re

    from millstream.client.admin import (
        Admin,
        ClusterInfo,
        ConfigChange,
        ConfigEntry,
        ConfigResource,
        CreatedTopic,
        NewPartitions,
        NewTopic,
    )
    from millstream.client.column_writer import ColumnWriter
    from millstream.client.fetch.blocking import BatchIterator, ColumnIterator
    from millstream.client.fetch.options import ReadOptions

T = TypeVar("T")

CLIENTS_MAX: Final = 16
"""Clients of `client_for` that keep thread and connections: beyond that, the least recently used
idle ones close theirs until they are used again. Calls and reads in progress finish first."""

LATE_S: Final = 5.0
"""A call ends by its own deadline; this much later the caller's thread stops waiting."""

CLOSE_TIMEOUT_S: Final = 2.0
"""Closing a client waits no longer for its connections to close. The end of the interpreter does
not wait at all: the thread is a daemon, and the system closes the connections."""

_lock = ForkSafeLock()
_known: weakref.WeakValueDictionary[ClientSettings, BlockingClient] = weakref.WeakValueDictionary()
"""Those that are referenced, or in use."""
_in_use: OrderedDict[ClientSettings, BlockingClient] = OrderedDict()
"""Those that keep thread and connections, the last used last."""


def _settings(given: ClientSettings | Mapping[str, object]) -> ClientSettings:
    return given if isinstance(given, ClientSettings) else ClientSettings.from_configs(given)


def _used(client: BlockingClient) -> list[BlockingClient]:
    """Mark it as used, under the lock; returns idle ones to close instead."""
    if _known.get(client.settings) is not client:
        return []  # not from the cache: its creator closes it
    _in_use[client.settings] = client
    _in_use.move_to_end(client.settings)
    return _surplus()


def _surplus() -> list[BlockingClient]:
    """Remove, under the lock, idle clients above CLIENTS_MAX."""
    count = len(_in_use) - CLIENTS_MAX
    if count <= 0:
        return []
    surplus = [one for one in _in_use.values() if one.is_idle][:count]
    for one in surplus:
        del _in_use[one.settings]
    return surplus


def _rest(surplus: list[BlockingClient]) -> None:
    """Without the lock, as it waits for connections. Clients used meanwhile are kept."""
    for one in surplus:
        one.rest(only_if_idle=True)


class Running(NamedTuple):
    """What a client has while it is in use."""

    thread: LoopThread
    cluster: Cluster
    reads: set[object]
    """Open iterators: added and removed without the lock, also by the garbage collector."""


class BlockingClient:
    """All methods may be called from any thread; errors are those of the asynchronous client."""

    def __init__(
        self,
        settings: ClientSettings | Mapping[str, object],
        *,
        make_cluster: Callable[[ClientSettings], Cluster] = Cluster,
    ) -> None:
        self.settings = _settings(settings)
        self._make_cluster = make_cluster
        self._running: Running | None = None
        self._call_count = 0
        """Calls in progress."""
        self._is_closed = False

    # -- the loop

    def run(
        self,
        work: Callable[[Cluster], Coroutine[Any, Any, T]],
        *,
        timeout_s: float | None = None,
    ) -> T:
        """The coroutine's result; `timeout_s` (`default.api.timeout.ms`) is the longest it takes.

        The extension point for code on top of the client: it runs on the client's loop.
        """
        running = self._begin()
        limit_s = (self.settings.api_timeout_s if timeout_s is None else timeout_s) + LATE_S
        try:
            return running.thread.run(_guarded(work, running.cluster), limit_s)
        except _RaisedTimeout as error:
            raise error.original from None
        except LoopEnded:
            raise ClientClosed from None
        except TimeoutError:
            raise DeadlinePassed("client call", within_s=limit_s) from None
        finally:
            self.give_back()

    def begin_read(self, read: object) -> Running:
        """For iterators: thread and connections are kept until it is removed from `reads`."""
        running = self._begin()
        running.reads.add(read)
        self.give_back()
        return running

    def _begin(self) -> Running:
        with _lock:
            if self._is_closed:
                raise ClientClosed
            running = self._running
            if running is not None and not running.thread.is_ours:
                keep_forever(running)
                running = None
                self._call_count = 0  # those were calls of the parent's threads
            if running is None or not running.thread.is_alive:
                thread = LoopThread("millstream client")
                cluster = self._make_cluster(self.settings)
                running = self._running = Running(thread, cluster, set())
            self._call_count += 1
            surplus = _used(self)
        try:
            _rest(surplus)
        except BaseException:  # Ctrl-C: the call does not begin
            self.give_back()
            raise
        return running

    def borrow(self) -> Cluster:
        """What `run` passes, kept until `give_back`: for callers with state on the loop."""
        return self._begin().cluster

    def give_back(self) -> None:
        with _lock:
            # A forked child counts its own calls alone.
            self._call_count = max(0, self._call_count - 1)
            # While all are busy there may be more than CLIENTS_MAX; the first idle ones close.
            surplus = _surplus()
        _rest(surplus)

    @property
    def is_idle(self) -> bool:
        """No call and no read is in progress."""
        running = self._running
        return self._call_count == 0 and not (running is not None and running.reads)

    def close(self) -> None:
        """Close the connections and end the thread; later calls raise ClientClosed."""
        self._is_closed = True
        with _lock:
            if _known.get(self.settings) is self:
                del _known[self.settings]
                _in_use.pop(self.settings, None)
        self.rest()

    def rest(self, *, only_if_idle: bool = False) -> None:
        """Give up thread and connections; the next call takes new ones."""
        with _lock:
            if only_if_idle and not self.is_idle:
                return
            running, self._running = self._running, None
        if running is None:
            return
        if not running.thread.is_ours:
            keep_forever(running)
            return
        with suppress(TimeoutError, LoopEnded):
            running.thread.run(running.cluster.close(), CLOSE_TIMEOUT_S)
        running.thread.stop(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- topics and offsets

    def topics(
        self,
        names: Iterable[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, TopicInfo]:
        """See `Cluster.topics`."""

        async def work(cluster: Cluster) -> dict[str, TopicInfo]:
            deadline = cluster.deadline("metadata of topics", timeout_s)
            return await cluster.topics(names, pattern=pattern, deadline=deadline)

        return self.run(work, timeout_s=timeout_s)

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, OffsetSpec],
        *,
        is_committed: bool | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, ListedOffset]:
        """See `offsets.list_offsets`."""

        async def work(cluster: Cluster) -> dict[TopicPartition, ListedOffset]:
            deadline = cluster.deadline("offsets of partitions", timeout_s)
            return await list_offsets(cluster, specs, is_committed=is_committed, deadline=deadline)

        return self.run(work, timeout_s=timeout_s)

    def offsets_for_leader_epoch(
        self, epochs: Mapping[TopicPartition, LeaderEpoch], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """See `offsets.offsets_for_leader_epoch`."""

        async def work(cluster: Cluster) -> dict[TopicPartition, EpochEnd]:
            deadline = cluster.deadline("ends of leader epochs", timeout_s)
            return await offsets_for_leader_epoch(cluster, epochs, deadline=deadline)

        return self.run(work, timeout_s=timeout_s)

    # -- records

    def read_columns(
        self,
        partition: TopicPartition,
        start: Offset,
        end: Offset | None,
        *,
        columns: Sequence[str] | None = None,
        options: ReadOptions | None = None,
    ) -> ColumnIterator:
        """The records `[start, end)` as Arrow record batches; see `reading.blocking`."""
        from millstream.client.fetch.blocking import read_columns

        return read_columns(self, ReadRange(partition, start, end), columns, options)

    def read_many(
        self,
        ranges: Iterable[ReadRange],
        *,
        columns: Sequence[str] | None = None,
        options: ReadOptions | None = None,
    ) -> BatchIterator:
        """The same of many partitions at once, in the order in which they come."""
        from millstream.client.fetch.blocking import read_many

        return read_many(self, ranges, columns, options)

    def column_writer(
        self, *, topic: str | None = None, creates_topics: bool = False
    ) -> ColumnWriter:
        """A writer of Arrow batches; to be closed. Without `topic` the batches have a column.

        With `creates_topics` brokers that create topics by themselves do so.
        """
        from millstream.client.column_writer import ColumnWriter

        return ColumnWriter(self, topic=topic, creates_topics=creates_topics)

    # -- admin; see `Admin` for each

    def _admin(self, work: Callable[[Admin], Coroutine[Any, Any, T]], timeout_s: float | None) -> T:
        from millstream.client.admin import Admin

        return self.run(lambda cluster: work(Admin(cluster)), timeout_s=timeout_s)

    def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, CreatedTopic | ClientError]:
        wanted = list(topics)
        return self._admin(
            lambda admin: admin.create_topics(
                wanted, validates_only=validates_only, timeout_s=timeout_s
            ),
            timeout_s,
        )

    def delete_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, bool | ClientError]:
        wanted = list(names)
        return self._admin(
            lambda admin: admin.delete_topics(wanted, timeout_s=timeout_s), timeout_s
        )

    def create_partitions(
        self,
        totals: Mapping[str, int | NewPartitions],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[str, bool | ClientError]:
        return self._admin(
            lambda admin: admin.create_partitions(
                totals, validates_only=validates_only, timeout_s=timeout_s
            ),
            timeout_s,
        )

    def describe_topics(
        self, names: Iterable[str], *, timeout_s: float | None = None
    ) -> dict[str, TopicInfo | ClientError]:
        wanted = list(names)
        return self._admin(
            lambda admin: admin.describe_topics(wanted, timeout_s=timeout_s), timeout_s
        )

    def list_topics(
        self, *, includes_internal: bool = False, timeout_s: float | None = None
    ) -> dict[str, TopicInfo]:
        return self._admin(
            lambda admin: admin.list_topics(
                includes_internal=includes_internal, timeout_s=timeout_s
            ),
            timeout_s,
        )

    def delete_records(
        self, before: Mapping[TopicPartition, Offset], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, Offset | ClientError]:
        return self._admin(
            lambda admin: admin.delete_records(before, timeout_s=timeout_s), timeout_s
        )

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Collection[str] | None = None,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry] | ClientError]:
        wanted = list(resources)
        return self._admin(
            lambda admin: admin.describe_configs(wanted, names=names, timeout_s=timeout_s),
            timeout_s,
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Collection[ConfigChange]],
        *,
        validates_only: bool = False,
        timeout_s: float | None = None,
    ) -> dict[ConfigResource, bool | ClientError]:
        return self._admin(
            lambda admin: admin.alter_configs(
                changes, validates_only=validates_only, timeout_s=timeout_s
            ),
            timeout_s,
        )

    def describe_cluster(self, *, timeout_s: float | None = None) -> ClusterInfo:
        return self._admin(lambda admin: admin.describe_cluster(timeout_s=timeout_s), timeout_s)


class _RaisedTimeout(Exception):
    """A TimeoutError of the work itself, to distinguish it from ours."""

    def __init__(self, original: TimeoutError) -> None:
        super().__init__()
        self.original = original


async def _guarded(work: Callable[[Cluster], Coroutine[Any, Any, T]], cluster: Cluster) -> T:
    try:
        return await work(cluster)
    except TimeoutError as error:
        raise _RaisedTimeout(error) from None


def client_for(settings: ClientSettings | Mapping[str, object]) -> BlockingClient:
    """The client of this process for these settings; equal settings share one."""
    settings = _settings(settings)
    with _lock:
        client = _known.get(settings)
        if client is None:
            client = _known[settings] = BlockingClient(settings)
    return client

"""Keeps fetches in flight to all leaders of a read: the shell around `FetchMachine`.

The normal path runs in callbacks, one per response, without a task or a future. A partition that
has no leader, or whose leader did not serve, gets a task that ends when a leader is found.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Final

from millstream.client.cluster import Cluster, LeaderConnection
from millstream.client.errors import (
    AnswerUnreadable,
    ClientError,
    DeadlinePassed,
    LogTruncated,
    OffsetOutOfRange,
)
from millstream.client.fetch.chunks import Chunk, FetchLimits, ReadRange
from millstream.client.fetch.machine import FetchMachine, FetchRequestSpec, PartitionFailure
from millstream.client.fetch.requests import FIRST_WITH_LAST_EPOCH, fetch_body, fetch_version
from millstream.client.offsets import (
    EARLIEST,
    LATEST,
    OffsetSpec,
    list_offsets,
    offsets_for_leader_epoch,
)
from millstream.client.retries import Attempts, Failure
from millstream.client.targets import LeaderOf
from millstream.model.ids import BrokerId, Offset, TopicPartition
from millstream.rpc.connection import Connection
from millstream.rpc.errors import RpcError
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse
from millstream.wire.primitives import MalformedFrame

LATE_S: Final = 1.0
"""A leader search that times out raises a specific error; the wait for records times out this
much later, so that it does not hide that error."""

KEPT_S: Final = 5.0
"""How long a connection keeps its buffers for the next read: consecutive reads, as of a query's
tasks, would otherwise allocate memory again and again."""

Deliver = Callable[[Chunk], None]

PURPOSE: Final = "fetch"
"""Each read has connections of its own: a fetch that waits for records blocks its connection."""


class Fetcher:
    """One read. Only `run` waits; all methods are called on the loop's thread."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: Collection[ReadRange],
        limits: FetchLimits,
        *,
        deliver: Deliver,
        timeout_s: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._limits = limits
        self._deliver = deliver
        self._timeout_s = cluster.settings.api_timeout_s if timeout_s is None else timeout_s
        self.machine = FetchMachine(ranges, limits)
        self._slot = -1
        self._connections: dict[BrokerId, Connection] = {}
        self._attempts: dict[TopicPartition, Attempts] = {}
        """Of partitions that fail, since their first failure."""
        self._tasks: asyncio.TaskGroup
        self._ended = asyncio.Event()
        self._recovery_count = 0
        """Tasks that search for a leader, or check an error of one."""
        self._error: Exception | None = None
        self._is_closed = False
        self._under_way = 0
        """Requests without a response yet."""
        self._freed_total = 0
        """Bytes of all chunks that were released; written by the consumer's thread."""
        self._released_total = 0
        """How much of it the machine has been credited."""
        self._lacks_room = False
        """A fetch is waiting for chunks to be released."""

    @property
    def is_failing(self) -> bool:
        """A leader search is in progress: it raises a specific error when it times out."""
        return bool(self._recovery_count)

    def stalled_error(self, within_s: float) -> ClientError:
        """The error for a read without records for that long."""
        pending = self.machine.pending()
        places = ", ".join(f"{name} from offset {at}" for name, at in pending[:3])
        what = f"reading {places or 'records'} (no records; does the range end after the log?)"
        last = next((one.last for one in self._attempts.values()), None)
        return DeadlinePassed(what, within_s=within_s, last_error=last)

    async def run(self) -> None:
        """Deliver every chunk; raises the error that ended the read, after earlier chunks."""
        self._slot = self._cluster.fetch_slots.take()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for partition in self.machine.without_leader():
                    self._start_leader_search(partition)
                self._check_done()
                await self._ended.wait()
                if self._error is not None:
                    raise _Ended  # cancels the tasks
        except* _Ended:
            pass
        finally:
            self._is_closed = True
            self._give_back_slot()
        if self._error is not None:
            raise self._error

    def release_chunk(self, chunk: Chunk) -> bool:
        """Release a chunk's memory; True: `send_ready` must be called on the loop's thread.

        For the one thread that consumes the chunks. No lock is needed: it writes the total before
        it reads the flag, and the loop's thread sets the flag before it reads the total.
        """
        self._freed_total += chunk.charge_bytes
        return self._lacks_room

    # -- the path of records

    def send_ready(self) -> None:
        """Send the fetches that now fit into the bound on memory."""
        self._lacks_room = False
        for broker_id in self.machine.idle_brokers():
            self._send_next_or_fail(broker_id)

    def _next_request(self, broker_id: BrokerId) -> FetchRequestSpec | None:
        self._release_used()
        request = self.machine.next_request(broker_id)
        if request is None and self.machine.idle_brokers():
            self._lacks_room = True
            self._release_used()
            request = self.machine.next_request(broker_id)
        return request

    def _release_used(self) -> None:
        freed_total = self._freed_total
        self.machine.release(freed_total - self._released_total)
        self._released_total = freed_total

    def _send_next(self, broker_id: BrokerId) -> None:
        """Send the next fetch to the broker, if there is one."""
        request = self._next_request(broker_id)
        if request is None:
            return
        connection = self._connections[broker_id]
        try:
            version = fetch_version(connection, has_ids=request.has_ids)
            body = fetch_body(request, self._limits, version)
            connection.send_raw(
                ApiKey.FETCH,
                version,
                (body,),
                partial(self._on_outcome, request, version),
                timeout_s=self._cluster.settings.request_timeout_s
                + self._limits.wait_ms_max / 1000,
            )
        except RpcError as error:
            # Mostly a connection that was closed while idle: no failure, so it is reopened.
            self._on_lost(request, error, is_failure=error.may_have_been_processed)
            return
        self._under_way += 1

    def _on_outcome(
        self, request: FetchRequestSpec, version: int, outcome: memoryview | RpcError
    ) -> None:
        self._under_way -= 1
        if self._is_closed:
            self._give_back_slot()
            return
        if isinstance(outcome, RpcError):
            self._on_lost(request, outcome, is_failure=True)
            return
        try:
            self._take(request, FetchResponse.decode(outcome, version))
        except MalformedFrame as error:
            self._fail(AnswerUnreadable("a fetch", str(error)))
        except Exception as error:  # noqa: BLE001 - the loop would log it, and the reader wait on
            self._fail(error)

    def _take(self, request: FetchRequestSpec, response: FetchResponse) -> None:
        result = self.machine.on_response(request, response)
        if self._attempts:
            for partition in result.served:
                self._attempts.pop(partition, None)
        # The next request is sent before these records are decoded.
        if not result.errors:
            self._send_next(request.broker_id)
        for chunk in result.chunks:
            self._deliver(chunk)
        for failure in result.failures:
            self._start_recovery(self._recover(failure), f"mend {failure.partition}")
        if result.errors:
            self._fail(result.errors[0])
        self._check_done()

    def _check_done(self) -> None:
        if self.machine.is_done:
            self._ended.set()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._ended.set()

    def _give_back_slot(self) -> None:
        """Not before the last response: the next read would have to wait for it."""
        if self._slot < 0 or self._under_way:
            return
        slots, slot, self._slot = self._cluster.fetch_slots, self._slot, -1
        slots.give_back(slot)
        uses, connections = slots.uses(slot), list(self._connections.values())

        def trim() -> None:
            if slots.uses(slot) == uses:
                for connection in connections:
                    connection.trim()

        asyncio.get_running_loop().call_later(KEPT_S, trim)

    # -- leaders

    def _on_lost(self, request: FetchRequestSpec, error: RpcError, *, is_failure: bool) -> None:
        self.machine.on_lost(request)
        self._connections.pop(request.broker_id, None)
        if self._is_closed:
            return
        for one in request.partitions:
            self._start_leader_search(one.partition, error if is_failure else None)

    def _start_leader_search(
        self, partition: TopicPartition, failure: Failure | None = None
    ) -> None:
        self._start_recovery(
            self._find_leader(partition, failure), f"find the leader of {partition}"
        )

    def _start_recovery(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._recovery_count += 1
        self._tasks.create_task(work, name=name).add_done_callback(self._on_recovery_done)

    def _on_recovery_done(self, _: object) -> None:
        self._recovery_count -= 1

    async def _find_leader(self, partition: TopicPartition, failure: Failure | None = None) -> None:
        """Find the leader and start to fetch; after a failure with backoff."""
        attempts = self._attempts_of(partition)
        try:
            while True:
                try:
                    if failure is not None:
                        await self._cluster.recover(attempts, failure, to=LeaderOf(partition))
                    found = await self._cluster.leader_connection(
                        partition,
                        purpose=f"{PURPOSE} {self._slot}",
                        topic_id=self.machine.topic_id(partition),
                        deadline=attempts.deadline,
                    )
                    await self._check_epoch(partition, found, attempts)
                    break
                except RpcError as error:
                    failure = error
        except ClientError as error:
            self._fail(error)
            return
        self._use_leader(partition, found)

    def _use_leader(self, partition: TopicPartition, found: LeaderConnection) -> None:
        leader = found.leader
        broker_id = leader.broker.broker_id
        self.machine.set_leader(
            partition, broker_id, leader_epoch=leader.leader_epoch, topic_id=leader.topic_id
        )
        self._connections[broker_id] = found.connection
        # Partitions that become ready in the same event-loop iteration share a request.
        asyncio.get_running_loop().call_soon(self._send_next_or_fail, broker_id)

    def _send_next_or_fail(self, broker_id: BrokerId) -> None:
        if self._is_closed or broker_id not in self._connections:
            return
        try:
            self._send_next(broker_id)
        except Exception as error:  # noqa: BLE001 - the loop would log it, and the reader wait on
            self._fail(error)

    def _attempts_of(self, partition: TopicPartition) -> Attempts:
        """The attempts since the partition's first failure; a response ends them."""
        found = self._attempts.get(partition)
        if found is None:
            what = f"reading {partition} from offset {self.machine.position(partition)}"
            deadline = self._cluster.deadline(what, self._timeout_s)
            found = self._attempts[partition] = self._cluster.attempts(deadline)
        return found

    async def _check_epoch(
        self, partition: TopicPartition, found: LeaderConnection, attempts: Attempts
    ) -> None:
        """Detect truncation below the position, for versions that cannot in every fetch."""
        epoch, position = self.machine.last_epoch(partition), self.machine.position(partition)
        version = fetch_version(found.connection, has_ids=found.leader.topic_id is not None)
        if epoch < 0 or position is None or version >= FIRST_WITH_LAST_EPOCH:
            return
        ends = await offsets_for_leader_epoch(
            self._cluster, {partition: epoch}, deadline=attempts.deadline
        )
        end = ends[partition].end_offset
        if 0 <= end < position:
            raise LogTruncated(partition, position=position, diverges_at=end)

    # -- failures

    async def _recover(self, failure: PartitionFailure) -> None:
        """Recover a partition that its leader did not serve."""
        partition = failure.partition
        if failure.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._check_range(partition, failure.offset)
            return
        if failure.hint is not None:
            before = self._cluster.metadata.leader_of(partition)
            self._cluster.partition_failed(partition, failure.code, failure.hint)
            if self._cluster.metadata.leader_of(partition) != before:
                self._attempts_of(partition)
                await self._find_leader(partition)  # the response named the new leader
                return
        await self._find_leader(partition, failure.code)

    async def _check_range(self, partition: TopicPartition, wanted: Offset) -> None:
        """Check an OFFSET_OUT_OF_RANGE; raises it with the range if the leader confirms it."""
        attempts = self._attempts_of(partition)
        try:
            start = await self._offset(partition, EARLIEST, attempts)
            end = await self._offset(partition, LATEST, attempts)
            if not start <= wanted <= end:
                raise OffsetOutOfRange(partition, wanted=wanted, start=start, end=end)
            # The broker that responded was behind, or is not the leader any more.
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            await asyncio.sleep(attempts.failed(code, now_s=self._cluster.now_s()))
        except ClientError as error:
            self._fail(error)
            return
        await self._find_leader(partition)

    async def _offset(
        self, partition: TopicPartition, spec: OffsetSpec, attempts: Attempts
    ) -> Offset:
        found = await list_offsets(
            self._cluster, {partition: spec}, is_committed=False, deadline=attempts.deadline
        )
        return found[partition].offset or Offset(0)


class _Ended(Exception):
    """The read ends with the error in `_error`."""

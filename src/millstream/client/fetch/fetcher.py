"""Keeping answers on their way from all the leaders of a read: the shell around `FetchMachine`.

What is well runs in callbacks, one an answer, without a task or a future. A partition that has no
leader, or whose leader did not serve, gets a task of its own, which ends when it is led again.
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
from millstream.client.fetch.machine import FetchAsk, FetchMachine, Trouble
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
"""Who looks for a leader says what is wrong when its time is up; who waits for records says so
only this much later."""

KEPT_S: Final = 5.0
"""How long a connection keeps its buffers for the next read: one range after another, as the tasks
of a query, would pay for fresh memory again and again."""

Deliver = Callable[[Chunk], None]

PURPOSE: Final = "fetch"
"""Reads have connections of their own, one each: who waits for new records must hold up nobody."""


class Fetching:
    """One read. Everything but `run` returns at once; all on the loop's thread."""

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
        """Of partitions that fail, since they began to."""
        self._tasks: asyncio.TaskGroup
        self._ended = asyncio.Event()
        self._seeking = 0
        """Tasks that look for a leader, or for what is wrong with one."""
        self._error: Exception | None = None
        self._is_closed = False
        self._under_way = 0
        """Requests without an answer yet."""
        self._freed_total = 0
        """Bytes of all chunks that were used up; written by who uses them, maybe another thread."""
        self._settled_total = 0
        """How much of it the machine knows."""
        self._lacks_room = False
        """Something would be asked for if chunks were used up."""

    @property
    def is_failing(self) -> bool:
        """A leader is being looked for: an error will tell what is wrong when time is up."""
        return bool(self._seeking)

    def stalled(self, within_s: float) -> ClientError:
        """What to say when nothing came for so long."""
        pending = self.machine.pending()
        places = ", ".join(f"{name} from offset {at}" for name, at in pending[:3])
        what = f"reading {places or 'records'} (nothing came; does the range end behind the log?)"
        last = next((one.last for one in self._attempts.values()), None)
        return DeadlinePassed(what, within_s=within_s, last_error=last)

    async def run(self) -> None:
        """Deliver every chunk; raises the error that ended it, after what came before."""
        self._slot = self._cluster.fetch_slots.take()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for partition in self.machine.without_leader():
                    self._begin(partition)
                self._look_for_end()
                await self._ended.wait()
                if self._error is not None:
                    raise _Ended  # takes the tasks down
        except* _Ended:
            pass
        finally:
            self._is_closed = True
            self._give_back_slot()
        if self._error is not None:
            raise self._error

    def use_up(self, chunk: Chunk) -> bool:
        """A chunk's memory is free again; True: `ask_all` has to be called on the loop's thread.

        For the one thread that takes the chunks. No lock is needed: it writes the total before it
        reads the flag, and the loop's thread sets the flag before it reads the total.
        """
        self._freed_total += chunk.charge_bytes
        return self._lacks_room

    # -- the path of records

    def ask_all(self) -> None:
        """There is room again, perhaps."""
        self._lacks_room = False
        for broker_id in self.machine.brokers_to_ask():
            self._ask_now(broker_id)

    def _next_ask(self, broker_id: BrokerId) -> FetchAsk | None:
        self._settle()
        ask = self.machine.next_ask(broker_id)
        if ask is None and self.machine.brokers_to_ask():
            self._lacks_room = True
            self._settle()
            ask = self.machine.next_ask(broker_id)
        return ask

    def _settle(self) -> None:
        freed_total = self._freed_total
        self.machine.released(freed_total - self._settled_total)
        self._settled_total = freed_total

    def _ask(self, broker_id: BrokerId) -> None:
        """Send what the broker can be asked for, if anything."""
        ask = self._next_ask(broker_id)
        if ask is None:
            return
        connection = self._connections[broker_id]
        try:
            version = fetch_version(connection, has_ids=ask.has_ids)
            body = fetch_body(ask, self._limits, version)
            connection.send_raw(
                ApiKey.FETCH,
                version,
                (body,),
                partial(self._answered, ask, version),
                timeout_s=self._cluster.settings.request_timeout_s
                + self._limits.wait_ms_max / 1000,
            )
        except RpcError as error:
            # Mostly a connection that was idle: not a failure of anybody, so it is made again.
            self._lost(ask, error, counts=error.may_have_been_processed)
            return
        self._under_way += 1

    def _answered(self, ask: FetchAsk, version: int, outcome: memoryview | RpcError) -> None:
        self._under_way -= 1
        if self._is_closed:
            self._give_back_slot()
            return
        if isinstance(outcome, RpcError):
            self._lost(ask, outcome, counts=True)
            return
        try:
            self._take(ask, FetchResponse.decode(outcome, version))
        except MalformedFrame as error:
            self._fail(AnswerUnreadable("a fetch", str(error)))
        except Exception as error:  # noqa: BLE001 - the loop would log it, and the reader wait on
            self._fail(error)

    def _take(self, ask: FetchAsk, response: FetchResponse) -> None:
        answered = self.machine.on_answer(ask, response)
        if self._attempts:
            for partition in answered.served:
                self._attempts.pop(partition, None)
        # The next request leaves before anybody looks at these records.
        if not answered.errors:
            self._ask(ask.broker_id)
        for chunk in answered.chunks:
            self._deliver(chunk)
        for trouble in answered.troubles:
            self._seek(self._mend(trouble), f"mend {trouble.partition}")
        if answered.errors:
            self._fail(answered.errors[0])
        self._look_for_end()

    def _look_for_end(self) -> None:
        if self.machine.is_done:
            self._ended.set()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
        self._ended.set()

    def _give_back_slot(self) -> None:
        """Not before the last answer came: the next read would have to wait for it."""
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

    def _lost(self, ask: FetchAsk, error: RpcError, *, counts: bool) -> None:
        self.machine.lost(ask)
        self._connections.pop(ask.broker_id, None)
        if self._is_closed:
            return
        for one in ask.partitions:
            self._begin(one.partition, error if counts else None)

    def _begin(self, partition: TopicPartition, failure: Failure | None = None) -> None:
        self._seek(self._lead(partition, failure), f"find the leader of {partition}")

    def _seek(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._seeking += 1
        self._tasks.create_task(work, name=name).add_done_callback(self._sought)

    def _sought(self, _: object) -> None:
        self._seeking -= 1

    async def _lead(self, partition: TopicPartition, failure: Failure | None = None) -> None:
        """Find who leads and begin to ask; after a failure not at once."""
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
        self._led(partition, found)

    def _led(self, partition: TopicPartition, found: LeaderConnection) -> None:
        leader = found.leader
        broker_id = leader.broker.broker_id
        self.machine.found_leader(
            partition, broker_id, leader_epoch=leader.leader_epoch, topic_id=leader.topic_id
        )
        self._connections[broker_id] = found.connection
        # Those that became ready in the same moment go into the same request.
        asyncio.get_running_loop().call_soon(self._ask_now, broker_id)

    def _ask_now(self, broker_id: BrokerId) -> None:
        if self._is_closed or broker_id not in self._connections:
            return
        try:
            self._ask(broker_id)
        except Exception as error:  # noqa: BLE001 - the loop would log it, and the reader wait on
            self._fail(error)

    def _attempts_of(self, partition: TopicPartition) -> Attempts:
        """Since the partition began to fail; an answer ends it."""
        found = self._attempts.get(partition)
        if found is None:
            what = f"reading {partition} from offset {self.machine.position(partition)}"
            deadline = self._cluster.deadline(what, self._timeout_s)
            found = self._attempts[partition] = self._cluster.attempts(deadline)
        return found

    async def _check_epoch(
        self, partition: TopicPartition, found: LeaderConnection, attempts: Attempts
    ) -> None:
        """With versions that cannot ask it in every fetch: was the log cut below what was read?"""
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

    # -- trouble

    async def _mend(self, trouble: Trouble) -> None:
        """A leader did not serve a partition."""
        partition = trouble.partition
        if trouble.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._check_range(partition, trouble.offset)
            return
        if trouble.hint is not None:
            before = self._cluster.metadata.leader_of(partition)
            self._cluster.partition_failed(partition, trouble.code, trouble.hint)
            if self._cluster.metadata.leader_of(partition) != before:
                self._attempts_of(partition)
                await self._lead(partition)  # the answer told who leads now
                return
        await self._lead(partition, trouble.code)

    async def _check_range(self, partition: TopicPartition, wanted: Offset) -> None:
        """An offset is out of the range of who answered; tell the range, if it is so."""
        attempts = self._attempts_of(partition)
        try:
            start = await self._offset(partition, EARLIEST, attempts)
            end = await self._offset(partition, LATEST, attempts)
            if not start <= wanted <= end:
                raise OffsetOutOfRange(partition, wanted=wanted, start=start, end=end)
            # Whoever answered was behind; or is not the leader any more.
            code = ErrorCode.OFFSET_OUT_OF_RANGE
            await asyncio.sleep(attempts.failed(code, now_s=self._cluster.now_s()))
        except ClientError as error:
            self._fail(error)
            return
        await self._lead(partition)

    async def _offset(
        self, partition: TopicPartition, spec: OffsetSpec, attempts: Attempts
    ) -> Offset:
        found = await list_offsets(
            self._cluster, {partition: spec}, is_committed=False, deadline=attempts.deadline
        )
        return found[partition].offset or Offset(0)


class _Ended(Exception):
    """The read ends with an error that was noted."""

"""The shell around `ProduceMachine`: finds leaders, sends, reads responses, keeps time.

Callbacks and one timer; a task only where something has to be looked up first (the producer's id, a
leader, a connection). Nothing runs while no batch is open.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from millstream.client.cluster import Cluster
from millstream.client.errors import (
    AnswerUnreadable,
    BrokersUnreachable,
    ClientClosed,
    ClientError,
    DeadlinePassed,
    TopicUnknown,
)
from millstream.client.metadata import Leader
from millstream.client.produce.answers import Answer, Verdict
from millstream.client.produce.batches import Batch, Identity
from millstream.client.produce.errors import WriterBroken
from millstream.client.produce.machine import ProduceMachine
from millstream.client.produce.requests import (
    IDS_FROM,
    PartitionResponse,
    ProduceHead,
    produce_parts,
    read_answers,
)
from millstream.client.retries import Deadline, Failure, Remedy
from millstream.model.ids import ProducerEpoch, ProducerId, TopicId, TopicPartition
from millstream.rpc.connection import Connection
from millstream.rpc.errors import RpcError
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitives import MalformedFrame

PURPOSE: Final = "produce"
"""Produce requests have connections of their own: a waiting fetch would hold them up."""

VERSIONS: Final = range(3, 14)
_NO_TRANSACTION_TIMEOUT_MS: Final = 2**31 - 1
_PASSING: Final = (BrokersUnreachable, DeadlinePassed, TopicUnknown)
"""Retriable reasons why a leader could not be found."""


class _Guard:
    """Around callbacks: the loop would only log an exception, and a flush would wait forever."""

    __slots__ = ("_broke",)

    def __init__(self, broke: Callable[[Exception], None]) -> None:
        self._broke = broke

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool:
        if isinstance(error, Exception):
            self._broke(error)
            return True
        return False


class Sender:
    """Made and used on the loop's thread."""

    def __init__(
        self,
        cluster: Cluster,
        machine: ProduceMachine,
        *,
        on_too_large: Callable[[str, int], None],
    ) -> None:
        self.machine = machine
        self._cluster = cluster
        self._on_too_large = on_too_large
        settings = cluster.settings
        self._head = ProduceHead(acks=settings.acks, timeout_ms=settings.request_timeout_ms)
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[TopicPartition | None, asyncio.Task[None]] = {}
        """Lookups in progress: a partition's leader, or (None) the producer's id."""
        self._muted_until_s: dict[Connection, float] = {}
        self._waiters: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping = False
        self._is_closed = False
        self._guard = _Guard(self._broke)

    # -- for the producer

    def append(self, batches: Iterable[Batch]) -> None:
        self.machine.append(batches, self._loop.time())
        self.wake()

    def wake(self) -> None:
        """Send what is due in this event-loop iteration; once, however often it is called."""
        if not self._is_pumping and not self._is_closed:
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    async def until(self, holds: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until it holds; False on a timeout."""
        if holds():
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append((holds, future))
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return holds()
        finally:
            self._waiters = [one for one in self._waiters if one[1] is not future]
        return True

    def _wake_waiters(self) -> None:
        for holds, future in self._waiters:
            if not future.done() and holds():
                future.set_result(None)

    async def close(self) -> None:
        """Stop at once; open batches end with an error."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.machine.close()
        self._wake_waiters()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- sending

    def _pump(self) -> None:
        self._is_pumping = False
        if self._is_closed:
            return
        with self._guard:
            self._send_due()

    def _broke(self, bug: Exception) -> None:
        self.machine.end(WriterBroken(bug))
        self._wake_waiters()

    def _send_due(self) -> None:
        machine, now_s = self.machine, self._loop.time()
        machine.expire(now_s)
        if machine.identity_wanted and machine.open_batches:
            self._begin(None)
        leaders: dict[str, Leader] = {}
        ready: dict[Connection, list[TopicPartition]] = {}
        for partition in machine.sendable(now_s):
            found = self._cluster.leader_connection_now(partition, purpose=PURPOSE)
            if found is None:
                self._begin(partition)
            else:
                ready.setdefault(found.connection, []).append(partition)
                leaders[partition.topic] = found.leader
        for connection, partitions in ready.items():
            if self._muted_until_s.get(connection, now_s) <= now_s:
                self._send_all(connection, partitions, leaders)
        self._set_timer(now_s)
        self._wake_waiters()

    def _send_all(
        self,
        connection: Connection,
        partitions: list[TopicPartition],
        leaders: dict[str, Leader],
    ) -> None:
        machine, now_s = self.machine, self._loop.time()
        while batches := machine.take(partitions, connection, now_s):
            ids = {one.partition.topic: leaders[one.partition.topic].topic_id for one in batches}
            self._send(connection, batches, ids)

    def _send(
        self, connection: Connection, batches: list[Batch], ids: dict[str, TopicId | None]
    ) -> None:
        try:
            has_ids = all(one is not None for one in ids.values())
            versions = VERSIONS if has_ids else range(VERSIONS[0], IDS_FROM)
            version = connection.version_of(ProduceRequest, versions)
            parts = produce_parts(self._head, batches, ids, version)
            if self._head.acks == 0:
                connection.send_raw_no_response(ApiKey.PRODUCE, version, parts)
                self._loop.call_soon(self._unanswered, connection, batches)
                return
            names = {one: name for name, one in ids.items() if one is not None}
            connection.send_raw(
                ApiKey.PRODUCE,
                version,
                parts,
                lambda outcome: self._answered(connection, batches, version, names, outcome),
            )
        except RpcError as error:
            # Nothing was sent; reported later, as a response would be.
            self._loop.call_soon(self._failed, connection, batches, error)

    def _set_timer(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        muted = {one: at_s for one, at_s in self._muted_until_s.items() if at_s > now_s}
        self._muted_until_s = muted
        at_s = min([self.machine.wake_s(now_s), *muted.values()])
        if at_s < float("inf"):
            self._timer = self._loop.call_at(at_s, self._pump)

    # -- answers

    def _answered(
        self,
        connection: Connection,
        batches: list[Batch],
        version: int,
        names: dict[TopicId, str],
        outcome: memoryview | RpcError,
    ) -> None:
        with self._guard:
            if isinstance(outcome, RpcError):
                self._failed(connection, batches, outcome)
            else:
                self._take_all(connection, batches, version, names, outcome)

    def _take_all(
        self,
        connection: Connection,
        batches: list[Batch],
        version: int,
        names: dict[TopicId, str],
        outcome: memoryview,
    ) -> None:
        try:
            responses, throttle_ms = read_answers(outcome, version, names)
        except MalformedFrame as error:
            connection.close(str(error))
            self._failed(connection, batches, AnswerUnreadable("Produce", str(error)))
            return
        now_s = self._loop.time()
        if throttle_ms > 0:
            self._muted_until_s[connection] = now_s + throttle_ms / 1000
        self.machine.request_ended(connection)
        for batch in batches:
            self._take(batch, responses.get(batch.partition), now_s)
        self.wake()
        self._wake_waiters()

    def _take(self, batch: Batch, response: PartitionResponse | None, now_s: float) -> None:
        if response is None:
            # The response does not contain the partition.
            response = PartitionResponse(Answer(ErrorCode.UNKNOWN_SERVER_ERROR), None)
        size = batch.size
        verdict = self.machine.answered(batch, response.answer, now_s)
        if verdict is Verdict.SPLIT and batch.row_count > 1:
            self._on_too_large(batch.partition.topic, size)
        elif verdict is Verdict.AGAIN:
            remedy = self._cluster.partition_failed(
                batch.partition, response.answer.failure, response.hint
            )
            if response.hint is not None and Remedy.REFRESH not in remedy:
                self.machine.leader_found(batch.partition)

    def _failed(self, connection: Connection, batches: list[Batch], failure: Failure) -> None:
        """The request has no response and will not get one."""
        now_s = self._loop.time()
        if not connection.is_open:
            self._muted_until_s.pop(connection, None)
        self.machine.request_ended(connection)
        for batch in batches:
            self.machine.answered(batch, Answer(failure), now_s)
            self._cluster.partition_failed(batch.partition, failure)
        self.wake()
        self._wake_waiters()

    def _unanswered(self, connection: Connection, batches: list[Batch]) -> None:
        """With acks=0 a sent batch is regarded as stored: there is no response."""
        self.machine.request_ended(connection)
        for batch in batches:
            self.machine.answered(batch, Answer(ErrorCode.NONE), self._loop.time())
        self.wake()
        self._wake_waiters()

    # -- lookups

    def _begin(self, about: TopicPartition | None) -> None:
        if about not in self._tasks:
            name = f"{PURPOSE} {about or 'id'}"
            self._tasks[about] = self._loop.create_task(self._find_out(about), name=name)

    async def _find_out(self, about: TopicPartition | None) -> None:
        try:
            with self._guard:
                await (self._identify() if about is None else self._find(about))
        finally:
            del self._tasks[about]
            self.wake()

    async def _find(self, partition: TopicPartition) -> None:
        """Find and connect to the leader, before the deadline of the first batch."""
        machine, now_s = self.machine, self._loop.time()
        left_s = machine.first_deadline_s(partition) - now_s
        deadline = Deadline.after(
            max(0.0, left_s), now_s=now_s, what=f"a connection to the leader of {partition}"
        )
        try:
            await self._cluster.leader_connection(partition, purpose=PURPOSE, deadline=deadline)
        except _PASSING as error:
            machine.unreachable(partition, error, self._loop.time())
        except ClientError as error:
            machine.fail_partition(partition, error)

    async def _identify(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=_NO_TRANSACTION_TIMEOUT_MS
        )
        settings = self._cluster.settings
        deadline = self._cluster.deadline(
            "a producer id from any broker", settings.delivery_timeout_ms / 1000
        )
        try:
            response: InitProducerIdResponse = await self._cluster.call(request, deadline=deadline)
        except (BrokersUnreachable, DeadlinePassed) as error:
            self.machine.no_identity(error)
        except ClientClosed as error:
            self.machine.fail_all(error)
        except ClientError as error:
            self.machine.end(error)
        else:
            identity = Identity(
                ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch)
            )
            self.machine.identified(identity)

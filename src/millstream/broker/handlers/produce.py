"""Produce (key 0), versions 3-13.

Behaviour: one batch per partition, checked record by record, stored with its offsets assigned.
acks=1 is answered when the batch is in the log, and flushed if `flush.messages` requires it;
acks=-1 when the high watermark has passed it, or with REQUEST_TIMED_OUT; acks=0 has no answer, and
an error closes the connection. A duplicate sequence is answered with the original offset.
Most requests take the fast path of the connection core, which does the same.
v5 log start · v7 zstd · v8 record errors · v9 flexible · v10 leader hints (KIP-951) · v12 implicit
add to transaction (KIP-890) · v13 topic ids (KIP-516). 0-2 are announced and not supported.

Where it differs from Kafka: there is no transaction coordinator yet, so no transaction is open and
transactional records are refused with INVALID_TXN_STATE; trailing bytes after the batch that are no
complete second one are refused (Kafka truncates them); missing records are INVALID_RECORD (Kafka
does not answer); an unknown codec, or data that does not decompress, is CORRUPT_MESSAGE (Kafka:
UNKNOWN_SERVER_ERROR); a batch with the flag of log append time or a delete horizon, with offset
deltas that do not start at 0, or with a producer id and no epoch is refused (Kafka accepts some of
these); the answer to a duplicate has no append time unless the topic has one; every error has a
message.
Invariants: I-01, I-03, I-20, I-21, I-36.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from millstream.broker.fetch.delayed import DelayedProduce
from millstream.broker.produce.records import (
    InternalTopic,
    InvalidRequiredAcks,
    RecordError,
    Records,
    check_first_offset,
    check_one_batch,
    is_transactional,
    record_errors,
)
from millstream.broker.requests.advertised_brokers import leader_hint
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.controller.topics import INTERNAL_TOPICS
from millstream.model.errors import (
    BatchTooLarge,
    InvalidTransactionState,
    OperatingError,
    without_frames,
)
from millstream.model.ids import TopicId
from millstream.model.limits import KIB, MIB
from millstream.replication.errors import ReplicationTimedOut
from millstream.replication.partition import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Partition
from millstream.runtime.scheduler import Computation, StepGenerator, chunked
from millstream.storage.config import LogConfig
from millstream.storage.ports import AppendOutcome
from millstream.storage.producers.machine import Origin
from millstream.storage.validation import Allowance, CheckedRecords, TooLargeForNow, check
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

ADMIN_CLIENT_ID: Final = "__admin_client"
"""Kafka's exception from the rule that clients do not write to internal topics."""

BYTES_PER_TURN: Final = 2 * MIB
"""Decompressed bytes of records checked per step, between which others are served: some
milliseconds. A batch that decompresses to more than the rest is checked in a worker thread."""

BATCHES_AT_ONCE_MAX: Final = 1_000
"""Batches checked for the transactional flag per step, between which others are served."""

BATCH_COST_BYTES: Final = 8 * KIB
"""The fixed cost of a batch, as bytes: about twenty microseconds."""

_FIRST_WITH_HINTS: Final = 10
_FIRST_WITH_TOPIC_IDS: Final = 13

_WITHOUT_LOG_START: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors with which Kafka returns no log start."""


def handle(
    context: Context, request: ProduceRequest
) -> ProduceResponse | StepGenerator[ProduceResponse | None] | None:
    """Append every partition's batch; the answer is sent when the last one is acknowledged."""
    work = _Produce(context, request)
    if len(work.batches) > BATCHES_AT_ONCE_MAX:
        return work.all_steps()
    if request.transactional_id is None and work.has_transactional(work.batches):
        return work.refuse_transaction()
    stop = work.append_some()
    return work.finish_or_wait() if stop is None else work.rest_steps(stop)


class _Batch(NamedTuple):
    """One partition of the request and its part of the answer."""

    topic: TopicProduceData
    data: PartitionProduceData
    answer: PartitionProduceResponse


class _Heavy(NamedTuple):
    """A batch to be checked in a worker thread; without one, only a pause to serve others."""

    answer: PartitionProduceResponse | None = None
    leader: Partition | None = None
    records: Records = b""


class _Produce:
    """One request and its answer, as it is filled in."""

    def __init__(self, context: Context, request: ProduceRequest) -> None:
        self._context = context
        self._request = request
        self._response = ProduceResponse()
        self._delayed: DelayedProduce | None = None
        self._append_count = 0
        self._open: dict[int, tuple[PartitionProduceResponse, Partition]] = {}
        """Partitions that have not answered, by their number in the request."""
        self._records: Records | None = None
        """What is being appended; the bytes are valid only while the request is processed."""
        self._wrong: list[RecordError] | None = None
        """The invalid records of it, if they are known already."""
        self.batches = self._all_batches()
        self._todo = iter(self.batches)
        self._allowance = Allowance(BYTES_PER_TURN)
        self._first_error = ""
        self._is_silent = False
        """A request without answer is done; a late error can still close the connection."""

    # -- partitions ------------------------------------------------------------------------

    def _all_batches(self) -> list[_Batch]:
        batches = []
        for topic in self._request.topic_data:
            answer = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
            self._response.responses.append(answer)
            for data in topic.partition_data:
                one = PartitionProduceResponse(index=data.index, base_offset=-1)
                answer.partition_responses.append(one)
                batches.append(_Batch(topic, data, one))
        return batches

    def append_some(self) -> _Heavy | None:
        """Append batches until others must be served; None when all are done."""
        for topic, data, one in self._todo:
            self._allowance.left_bytes -= BATCH_COST_BYTES
            try:
                leader = self._check(topic, data)
            except OperatingError as error:
                self._fail(one, error)
            else:
                records = data.records or b""
                try:
                    self._append(one, leader, records)
                except TooLargeForNow:
                    return _Heavy(one, leader, records)
            if self._allowance.left_bytes <= 0:
                return _Heavy()
        self._context.services.partitions.wake_readers()
        return None

    def rest_steps(self, stop: _Heavy) -> StepGenerator[ProduceResponse | None]:
        """Append what `append_some` left, in steps between which others are served."""
        heavy: _Heavy | None = stop
        while heavy is not None:
            one, leader, records = heavy
            if one is None or leader is None:
                yield None
            else:
                yield from self._append_steps(one, leader, records)
            self._allowance.left_bytes = BYTES_PER_TURN
            heavy = self.append_some()
        return self.finish_or_wait()

    def _append_steps(
        self, one: PartitionProduceResponse, leader: Partition, records: Records
    ) -> StepGenerator[None]:
        # Read-only: if the topic's settings change meanwhile it is checked once more.
        view = memoryview(records).toreadonly()
        config = None
        while config is not leader.log.config:
            config, now_ms = leader.log.config, self._context.services.clock.wall_ms()
            checked, self._wrong = yield Computation(_check_in_worker_thread, view, config, now_ms)
        self._append(one, leader, records, checked)
        self._wrong = None

    def all_steps(self) -> StepGenerator[ProduceResponse | None]:
        """The same for a request of very many batches."""
        if self._request.transactional_id is None:
            for part in chunked(self.batches, BATCHES_AT_ONCE_MAX):
                if self.has_transactional(part):
                    return self.refuse_transaction()
                yield None
        return (yield from self.rest_steps(_Heavy()))

    def has_transactional(self, batches: Sequence[_Batch]) -> bool:
        """Whether a batch claims to belong to a transaction."""
        return any(is_transactional(data.records) for _, data, _ in batches)

    def refuse_transaction(self) -> ProduceResponse | None:
        """Kafka first checks the authorization of the transactional id, and there is none."""
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refuse(self._context, self._request, error)

    def _check(self, topic: TopicProduceData, data: PartitionProduceData) -> Partition:
        """In Kafka's order: the partition, the batch's form, acks, the topic, the transaction."""
        context = self._context
        partitions = context.services.partitions
        if context.version >= _FIRST_WITH_TOPIC_IDS:
            leader = partitions.get_by_id(TopicId(topic.topic_id), data.index)
        else:
            leader = partitions.get((topic.name, data.index))
        check_one_batch(data.records, context.version)
        acks = self._request.acks
        if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
            raise InvalidRequiredAcks(f"acks must be -1, 0 or 1, not {acks}")
        if leader.partition.topic in INTERNAL_TOPICS and context.client_id != ADMIN_CLIENT_ID:
            raise InternalTopic(f"{leader.partition.topic} is an internal topic")
        if is_transactional(data.records):
            raise InvalidTransactionState("the partition was not added to a transaction")
        return leader

    def _append(
        self,
        one: PartitionProduceResponse,
        leader: Partition,
        records: Records,
        checked: CheckedRecords | None = None,
    ) -> None:
        """Raises TooLargeForNow, with nothing done, if it decompresses to too much."""
        try:
            check_first_offset(records)
        except OperatingError as error:
            outcome = AppendOutcome(log_start=leader.log_start, error=without_frames(error))
            self._fail_append(one, leader, outcome)
            return
        number = self._append_count
        self._append_count += 1
        self._open[number] = (one, leader)
        self._records = records
        try:
            leader.append(
                checked or records,
                acks=self._request.acks,
                done=partial(self._done, number),
                allowance=self._allowance,
            )
        except TooLargeForNow:
            del self._open[number]
            raise
        finally:
            self._records = None

    def _done(self, number: int, outcome: AppendOutcome) -> None:
        found = self._open.pop(number, None)
        if found is None:
            return  # it was answered with a timeout
        one, leader = found
        if outcome.error is None:
            one.base_offset = outcome.base_offset
            one.log_start_offset = outcome.log_start
            if outcome.append_time_ms is not None:
                one.log_append_time_ms = outcome.append_time_ms
        else:
            self._fail_append(one, leader, outcome)
        if self._delayed is not None:
            self._delayed.one_done()
        elif self._is_silent and self._first_error:
            self._end_silently()

    # -- errors ----------------------------------------------------------------------------

    def _fail_append(
        self, one: PartitionProduceResponse, leader: Partition, outcome: AppendOutcome
    ) -> None:
        error, config = outcome.error, leader.log.config
        if error is None:
            return
        code = code_of(error)
        if isinstance(error, BatchTooLarge) and error.size_bytes <= config.max_message_bytes:
            code = ErrorCode.RECORD_LIST_TOO_LARGE  # the segment is too small
        self._fail(one, error, code)
        if code not in _WITHOUT_LOG_START:
            one.log_start_offset = outcome.log_start
        if self._records is not None:
            one.record_errors = [
                BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
                for index, message in self._wrong_records(self._records, config, error)
            ]

    def _wrong_records(
        self, records: Records, config: LogConfig, error: OperatingError
    ) -> list[RecordError]:
        if self._wrong is not None:
            return self._wrong
        return record_errors(records, config, error, now_ms=self._context.services.clock.wall_ms())

    def _fail(
        self, one: PartitionProduceResponse, error: OperatingError, code: ErrorCode | None = None
    ) -> None:
        one.error_code = code_of(error) if code is None else code
        one.error_message = text_of(error)
        self._first_error = self._first_error or one.error_message

    def _time_out(self) -> None:
        for one, leader in self._open.values():
            self._fail(one, ReplicationTimedOut(leader.partition))
        self._open.clear()

    # -- the answer ------------------------------------------------------------------------

    def finish_or_wait(self) -> ProduceResponse | None:
        """The answer, or None: it was sent, or is sent later."""
        if self._request.acks == ACKS_NONE:
            self._is_silent = True
            self._end_silently()
            return None
        if not self._open:
            self._add_hints()
            return self._response
        self._delayed = DelayedProduce(self._context, self._answer, self._time_out)
        self._delayed.waiting = len(self._open)
        self._delayed.start(timeout_ms=self._request.timeout_ms)
        return None

    def _answer(self) -> None:
        self._add_hints()
        self._context.answer(self._response)

    def _end_silently(self) -> None:
        """A producer with acks=0 learns of an error from the closed connection."""
        if self._first_error:
            self._context.close(f"a produce request without answer failed: {self._first_error}")
        else:
            self._context.answer_nothing()

    def _add_hints(self) -> None:
        if not self._first_error or self._context.version < _FIRST_WITH_HINTS:
            return
        for topic in self._response.responses:
            for one in topic.partition_responses:
                if one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    self._add_hint(topic, one)

    def _add_hint(self, topic: TopicProduceResponse, one: PartitionProduceResponse) -> None:
        name = topic.name
        if not name:
            name = self._context.services.partitions.name_of(topic.topic_id.bytes)
        hint = leader_hint(self._context, name, one.index)
        if hint is None:
            return
        one.current_leader = LeaderIdAndEpoch(
            leader_id=hint.leader_id, leader_epoch=hint.leader_epoch
        )
        nodes = self._response.node_endpoints
        if hint.host is not None and all(node.node_id != hint.leader_id for node in nodes):
            nodes.append(
                NodeEndpoint(node_id=hint.leader_id, host=hint.host, port=hint.port, rack=hint.rack)
            )


def _check_in_worker_thread(
    records: memoryview, config: LogConfig, now_ms: int
) -> tuple[CheckedRecords, list[RecordError]]:
    """The checked batch, and which of its records are invalid."""
    checked = check(records, config, now_ms=now_ms, origin=Origin.CLIENT)
    if checked.error is None:
        return checked, []
    return checked, record_errors(records, config, checked.error, now_ms=now_ms)


def _refuse(context: Context, request: ProduceRequest, error: ErrorCode) -> ProduceResponse | None:
    if request.acks == ACKS_NONE:
        context.close(f"a produce request without answer failed: {error.text}")
        return None
    return failed(request, error, context.version)


def failed(request: ProduceRequest, error: ErrorCode, version: int) -> ProduceResponse:
    """The same error for every partition."""
    del version
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=one.index,
                        error_code=error,
                        base_offset=-1,
                        error_message=error.text,
                    )
                    for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )

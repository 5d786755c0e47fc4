"""The idempotent producer's decisions, without I/O and without a clock.

Batches go in, requests come out, responses go in, and every batch ends exactly once: stored or with
an error, by its deadline. The shell calls `sendable` and `take`, sends, and reports to `answered`;
it checks `identity_wanted` for InitProducerId and `wake_s` for when to run again.

Transactions are not supported yet, and would fit in here: a transactional id goes into Identity's
request and into ProduceRequest; a partition is added to the transaction where `next_to_send` is
called; an error that ends a transaction is a Verdict of its own; and a lost sequence aborts instead
of taking a new epoch.
"""

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from millstream.client.errors import (
    ClientClosed,
    ClientError,
    DeadlinePassed,
    RecordTooLarge,
    error_for,
)
from millstream.client.produce.answers import Answer, Verdict, leaves_open, verdict_on
from millstream.client.produce.batches import NO_IDENTITY, Batch, Identity, split
from millstream.client.produce.errors import OutcomeOpen
from millstream.client.produce.partition_queue import PartitionQueue
from millstream.client.retries import Failure, as_client_error
from millstream.kernels.columns import BatchOptions
from millstream.model.ids import NO_OFFSET, Offset, ProducerEpoch, TopicPartition
from millstream.model.invariant import invariant
from millstream.rpc.backoff import Backoff
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode

EPOCH_MAX: Final = 2**15 - 1


class Rules(NamedTuple):
    """How to send."""

    delivery_timeout_s: float
    backoff: Backoff
    in_flight_max: int
    """Requests in flight to one broker."""
    request_bytes_max: int
    batch_options: BatchOptions
    """How a batch that is too large is encoded again."""
    is_idempotent: bool = True


class Delivered(NamedTuple):
    """What was stored in one partition."""

    records: int
    first_offset: Offset
    """-1 when no broker returned it."""
    last_offset: Offset

    def with_batch(self, batch: Batch) -> "Delivered":
        first, last = batch.offset, batch.last_offset
        if self.first_offset >= 0:
            first = min(self.first_offset, first) if first >= 0 else self.first_offset
        return Delivered(self.records + batch.row_count, first, Offset(max(self.last_offset, last)))


_NOTHING: Final = Delivered(0, NO_OFFSET, NO_OFFSET)


class ProduceMachine:
    """Times are passed in, all of one clock."""

    def __init__(self, rules: Rules, randomness: Randomness) -> None:
        self._rules = rules
        self._randomness = randomness
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        """Those with batches, the last served one last."""
        self._resting: dict[TopicPartition, PartitionQueue] = {}
        """Those without, with their sequences."""
        self._requests: dict[Hashable, int] = {}
        self.identity = NO_IDENTITY
        self.identity_wanted = False
        """An InitProducerId is needed before anything can be sent."""
        self.fatal: ClientError | None = None
        self.open_bytes = 0
        """Of batches that have not ended."""
        self.open_batches = 0
        self._expiry_s = float("inf")
        """No batch expires before that; checked often, so that all deadlines are not."""
        self.delivered: dict[TopicPartition, Delivered] = {}
        self.errors: list[ClientError] = []
        """Of batches that failed, in the order of failing."""
        self.undelivered_records = 0

    # -- in

    def append(self, batches: Iterable[Batch], now_s: float) -> None:
        """Add batches; each ends by `delivery_timeout_s` from now."""
        for batch in batches:
            batch.deadline_s = now_s + self._rules.delivery_timeout_s
            self._expiry_s = min(self._expiry_s, batch.deadline_s)
            self.open_bytes += batch.size
            self.open_batches += 1
            self._queue(batch.partition).append(batch)
        if self.fatal is not None:
            self.fail_all(self.fatal)
        elif self._rules.is_idempotent and self.identity is NO_IDENTITY:
            self.identity_wanted = True

    def refuse(self, error: ClientError, row_count: int) -> None:
        """Record rows that could not be encoded."""
        self.errors.append(error)
        self.undelivered_records += row_count

    def _queue(self, partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._resting.pop(partition, None)
            if queue is None:
                queue = PartitionQueue(partition, is_idempotent=self._rules.is_idempotent)
            self._queues[partition] = queue
        return queue

    def identified(self, identity: Identity) -> None:
        """The answer to InitProducerId."""
        invariant(identity != self.identity, "the same producer id twice", identity=identity)
        self.identity = identity
        self.identity_wanted = False

    # -- out

    def sendable(self, now_s: float) -> list[TopicPartition]:
        """Partitions with a batch that may be sent now, if their leader is not busy."""
        if self.identity_wanted or self.fatal is not None:
            return []
        return [
            partition
            for partition, queue in self._queues.items()
            if queue.next_to_send(queue.destination, now_s) is not None
        ]

    def has_room(self, destination: Hashable) -> bool:
        """Whether another request may be sent there."""
        return self._requests.get(destination, 0) < self._rules.in_flight_max

    def take(
        self, partitions: Iterable[TopicPartition], destination: Hashable, now_s: float
    ) -> list[Batch]:
        """The batches of one request: at most one of each partition, all with the same leader.

        Empty when nothing may be sent there. Otherwise the request is in flight until
        `request_ended`.
        """
        taken: list[Batch] = []
        used = 0
        if not self.has_room(destination):
            return taken
        for partition in partitions:
            queue = self._queues.get(partition)
            batch = queue.next_to_send(destination, now_s) if queue is not None else None
            if queue is None or batch is None:
                continue
            if taken and used + batch.size > self._rules.request_bytes_max:
                continue
            if queue.needs_identity(self.identity, now_s):
                if queue.must_wait_for_lingering(self.identity, now_s):
                    continue
                if not self._give_identity(queue):
                    break
            queue.take(batch, destination, now_s)
            taken.append(batch)
            used += batch.size
            self._queues[partition] = self._queues.pop(partition)
        if taken:
            self._requests[destination] = self._requests.get(destination, 0) + 1
        return taken

    def _give_identity(self, queue: PartitionQueue) -> bool:
        """False when a new producer id has to be requested first."""
        producer_id, epoch = queue.identity
        if producer_id != self.identity.producer_id:
            queue.adopt(self.identity)
            return True
        if epoch >= EPOCH_MAX:
            self.identity_wanted = True
            return False
        # Brokers accept a higher epoch that begins with sequence 0 without a request, and fence
        # lingering requests of the older. They keep epochs by partition: others keep theirs.
        queue.adopt(Identity(producer_id, ProducerEpoch(epoch + 1)))
        return True

    # -- answers

    def request_ended(self, destination: Hashable) -> None:
        """The request is not in flight any more; each of its batches is `answered` too."""
        left = self._requests[destination] - 1
        invariant(left >= 0, "more answers than requests", destination=destination)
        if left:
            self._requests[destination] = left
        else:
            del self._requests[destination]

    def answered(self, batch: Batch, answer: Answer, now_s: float) -> Verdict:
        """Handle the response to a batch in flight, or that there was none."""
        queue = self._queues[batch.partition]
        queue.landed(batch)
        verdict = verdict_on(answer.failure)
        if verdict is Verdict.OUT_OF_ORDER and queue.is_passed(batch):
            verdict = Verdict.STORED
        if answer.failure is not ErrorCode.NONE:
            batch.last = queue.last = answer.failure
            batch.may_be_stored |= leaves_open(answer.failure)
            if isinstance(answer.failure, RpcError):
                queue.lost_s = now_s
        if verdict is Verdict.STORED:
            queue.stored(batch)
            batch.offset = answer.base_offset
            self._end(queue, batch)
        elif batch.is_done:
            # It expired before; the response matters only for the batches after it.
            if not batch.may_be_stored:
                queue.lost_sequence(batch)
            self._rest(queue)
        else:
            self._not_stored(queue, batch, answer, now_s)
        return verdict

    def _not_stored(
        self, queue: PartitionQueue, batch: Batch, answer: Answer, now_s: float
    ) -> None:
        verdict = verdict_on(answer.failure)
        if verdict is Verdict.OUT_OF_ORDER and self._rules.is_idempotent:
            queue.again(batch)
            self._pause(queue, now_s)
            undecided = queue.missed(batch)
            if undecided is not None:
                self._give_up(queue, undecided, self._too_late(queue, undecided))
        elif verdict in (Verdict.AGAIN, Verdict.OUT_OF_ORDER):
            queue.again(batch)
            self._pause(queue, now_s)
        elif verdict is Verdict.SPLIT and batch.row_count > 1:
            self._split(queue, batch)
        else:
            if not batch.may_be_stored:
                queue.lost_sequence(batch)
            error = _error_of(batch, answer)
            self._end(queue, batch, error)
            if verdict is Verdict.FATAL:
                self.end(error)

    def _pause(self, queue: PartitionQueue, now_s: float) -> None:
        """Once for all that fails together, such as the requests of a lost connection."""
        if now_s >= queue.not_before_s:
            queue.failures += 1
            queue.not_before_s = now_s + self._rules.backoff.delay_s(
                queue.failures, self._randomness
            )

    def leader_found(self, partition: TopicPartition) -> None:
        """A response named the leader: there is no reason to back off any longer."""
        if partition in self._queues:
            self._queues[partition].not_before_s = float("-inf")

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        parts = split(batch, self._rules.batch_options)
        invariant(sum(one.row_count for one in parts) == batch.row_count, "rows lost in a split")
        self.open_bytes += sum(one.size for one in parts) - batch.size
        self.open_batches += len(parts) - 1
        queue.put_parts(batch, parts)

    def unreachable(self, partition: TopicPartition, failure: Failure, now_s: float) -> None:
        """Its leader could not be found or reached; its batches keep waiting."""
        queue = self._queues.get(partition)
        if queue is not None:
            queue.last = failure
            self._pause(queue, now_s)

    def no_identity(self, failure: Failure) -> None:
        """No broker returned a producer id; all batches keep waiting."""
        for queue in self._queues.values():
            queue.last = failure

    # -- ends

    def _end(self, queue: PartitionQueue, batch: Batch, error: ClientError | None = None) -> None:
        """End a batch; nothing else does."""
        if not batch.is_done:
            batch.is_done = True
            batch.error = error
            self.open_bytes -= batch.size
            self.open_batches -= 1
            if error is None:
                before = self.delivered.get(batch.partition, _NOTHING)
                self.delivered[batch.partition] = before.with_batch(batch)
            else:
                self.errors.append(error)
                self.undelivered_records += batch.row_count
                if batch.may_be_stored or batch in queue.in_flight:
                    queue.ended_open(batch)
        self._rest(queue)

    def _rest(self, queue: PartitionQueue) -> None:
        if queue.is_empty and queue.partition in self._queues:
            del self._queues[queue.partition]
            self._resting[queue.partition] = queue

    def expire(self, now_s: float) -> None:
        """End batches at their deadline, also those in flight."""
        if now_s < self._expiry_s:
            return
        self._expiry_s = float("inf")
        for queue in list(self._queues.values()):
            for batch in list(queue):
                if batch.is_done:
                    continue
                if batch.deadline_s <= now_s:
                    self._give_up(queue, batch, self._too_late(queue, batch))
                else:
                    self._expiry_s = min(self._expiry_s, batch.deadline_s)

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: ClientError) -> None:
        if batch in queue.waiting:
            queue.waiting.remove(batch)
            if not batch.may_be_stored:
                queue.lost_sequence(batch)
        self._end(queue, batch, error)

    def _too_late(self, queue: PartitionQueue, batch: Batch) -> ClientError:
        count = f"{batch.row_count} record{'s' if batch.row_count != 1 else ''}"
        what = f"writing {count} to {batch.partition}"
        last = batch.last if batch.last is not None else queue.last
        within_s = self._rules.delivery_timeout_s
        if batch.may_be_stored or batch in queue.in_flight:
            return OutcomeOpen(what, within_s=within_s, last_error=last)
        return DeadlinePassed(
            what, within_s=within_s, last_error=last, setting="delivery.timeout.ms"
        )

    def fail_partition(self, partition: TopicPartition, error: ClientError) -> None:
        """End the waiting batches of a partition: they can never be sent."""
        queue = self._queues.get(partition)
        for batch in list(queue.waiting) if queue is not None else ():
            self._give_up(self._queues[partition], batch, error)

    def fail_all(self, error: ClientError) -> None:
        """End everything that is open."""
        for queue in list(self._queues.values()):
            for batch in list(queue):
                if not batch.is_done:
                    self._give_up(queue, batch, error)

    def end(self, error: ClientError) -> None:
        """Send nothing any more; open and later batches end with the error."""
        if self.fatal is None:
            self.fatal = error
        self.fail_all(self.fatal)

    def close(self) -> None:
        self.end(ClientClosed())

    def wake_s(self, now_s: float) -> float:
        """When to run again without a response."""
        times = [float("inf")]
        for queue in self._queues.values():
            times.append(next((one.deadline_s for one in queue if not one.is_done), times[0]))
            if queue.waiting and queue.not_before_s > now_s:
                times.append(queue.not_before_s)
        return min(times)

    def first_deadline_s(self, partition: TopicPartition) -> float:
        """Of the partition's waiting batches."""
        queue = self._queues.get(partition)
        return min((one.deadline_s for one in queue.waiting), default=0.0) if queue else 0.0


def _error_of(batch: Batch, answer: Answer) -> ClientError:
    partition, failure = batch.partition, answer.failure
    if not isinstance(failure, ErrorCode):
        return as_client_error(failure, f"writing to {partition}")
    origin = batch.origin
    if answer.bad_row is not None and 0 <= answer.bad_row < batch.row_count:
        origin = origin.part(answer.bad_row, answer.bad_row + 1)
    if verdict_on(failure) is Verdict.SPLIT:
        about = f"{partition}, {origin}"
        return RecordTooLarge(failure, about, answer.message, write_and_row=origin.write_and_row)
    message = answer.message or failure.text
    if answer.bad_row is not None:
        message = f"{origin}: {message}"
    if batch.may_be_stored and not leaves_open(failure):
        message += "; an earlier attempt without a response may have stored it"
    return error_for(failure, topic=partition.topic, partition=partition.partition, message=message)

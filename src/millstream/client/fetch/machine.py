"""What to fetch next and what a response means, without I/O and without a clock.

One request per broker is in flight at a time, and the next one is sent before the response's
records are decoded: the headers of its batches say where to continue. Every request has the epoch
of the last batch that was read, so that a leader whose log was truncated below it reports that
(KIP-320).

A partition is fetched again while its earlier chunks are buffered, as long as all of them stay
below the bound. Partitions that waited longest come first: a broker fills its response in the order
of the request, and only the first is guaranteed to get a batch that is larger than the limits.

A read_committed reader can be stuck before a gap that ends where an open transaction begins:
compaction removed the records, and nothing after them may be sent. So when a partition stays empty
although all of its range is stable, one batch is fetched with read_uncommitted, just to see its
offset: if it begins after the range, the range is complete.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from millstream.client.errors import (
    AnswerUnreadable,
    ClientError,
    LogTruncated,
    RecordsUnreadable,
    code_of,
    error_for,
)
from millstream.client.fetch.chunks import AbortedTransaction, Chunk, FetchLimits, ReadRange
from millstream.client.metadata import Broker, LeaderHint
from millstream.client.retries import remedy_for
from millstream.kernels.batches import BASE_OFFSET, LAST_OFFSET, LEADER_EPOCH, ROW_FIELDS, walk
from millstream.kernels.errors import Reason
from millstream.model.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicId,
    TopicPartition,
)
from millstream.model.invariant import invariant
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse, PartitionData

if TYPE_CHECKING:
    from array import array


class PartitionFetchSpec(NamedTuple):
    """One partition of a request."""

    partition: TopicPartition
    offset: Offset
    leader_epoch: LeaderEpoch
    last_epoch: LeaderEpoch
    """Of the last batch that was read; -1: none."""
    topic_id: TopicId | None


class FetchRequestSpec(NamedTuple):
    """One request, to be sent now."""

    broker_id: BrokerId
    partitions: tuple[PartitionFetchSpec, ...]
    bytes_max: int
    is_peek: bool = False
    """Only to see where the next batch begins, also in an open transaction."""

    @property
    def has_ids(self) -> bool:
        return all(one.topic_id is not None for one in self.partitions)


class PartitionFailure(NamedTuple):
    """A partition that was not served; it is not fetched until a leader is set again."""

    partition: TopicPartition
    code: ErrorCode
    offset: Offset
    hint: LeaderHint | None


class FetchResult(NamedTuple):
    """The result of a response."""

    chunks: list[Chunk]
    failures: list[PartitionFailure]
    """To be retried."""
    errors: list[ClientError]
    """Errors that end the read, after these chunks."""
    served: list[TopicPartition]
    """Partitions without an error, with records or without."""


class _Partition:
    """The read position of one partition."""

    __slots__ = (
        "broker_id",
        "end",
        "last_epoch",
        "leader_epoch",
        "name",
        "peeks",
        "position",
        "topic_id",
    )

    def __init__(self, wanted: ReadRange) -> None:
        self.name = wanted.partition
        self.position = wanted.start
        self.end = wanted.end
        self.topic_id = wanted.topic_id
        self.last_epoch = NO_LEADER_EPOCH
        self.leader_epoch = NO_LEADER_EPOCH
        self.broker_id: BrokerId | None = None
        self.peeks = False

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end


class FetchMachine:
    """All partitions of one read."""

    def __init__(self, ranges: Iterable[ReadRange], limits: FetchLimits) -> None:
        self._limits = limits
        self._partitions: dict[TopicPartition, _Partition] = {}
        """Those that waited longest for a response first."""
        for one in ranges:
            invariant(one.partition not in self._partitions, "read twice", partition=one.partition)
            partition = _Partition(one)
            if not partition.is_done:
                self._partitions[one.partition] = partition
        self._held_bytes = 0
        """Of chunks that were delivered and not released."""
        self._in_flight_bytes: dict[BrokerId, int] = {}
        """What the request in flight to each broker may return."""

    @property
    def is_done(self) -> bool:
        """Everything was delivered."""
        return not self._partitions

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def reserved_bytes(self) -> int:
        """What requests in flight may return."""
        return sum(self._in_flight_bytes.values())

    def pending(self) -> list[tuple[TopicPartition, Offset]]:
        """Partitions that are not read to their end, with their positions."""
        return [(one.name, one.position) for one in self._partitions.values()]

    def position(self, name: TopicPartition) -> Offset | None:
        """Where the next request begins; None when the range was read to its end."""
        one = self._partitions.get(name)
        return one.position if one is not None else None

    def last_epoch(self, name: TopicPartition) -> LeaderEpoch:
        """Of the last batch that was read; -1 before the first, and after the last."""
        one = self._partitions.get(name)
        return one.last_epoch if one is not None else NO_LEADER_EPOCH

    def topic_id(self, name: TopicPartition) -> TopicId | None:
        """The topic id of the range, once it is known."""
        one = self._partitions.get(name)
        return one.topic_id if one is not None else None

    # -- leaders

    def without_leader(self) -> list[TopicPartition]:
        return [one.name for one in self._partitions.values() if one.broker_id is None]

    def set_leader(
        self,
        name: TopicPartition,
        broker_id: BrokerId,
        *,
        leader_epoch: LeaderEpoch,
        topic_id: TopicId | None,
    ) -> None:
        """Fetch the partition from this broker from now on."""
        one = self._partitions.get(name)
        if one is None:
            return
        invariant(
            one.topic_id is None or topic_id is None or one.topic_id == topic_id,
            "offsets of one topic would be read from another",
            partition=name,
        )
        one.broker_id, one.leader_epoch = broker_id, leader_epoch
        if topic_id is not None:
            one.topic_id = topic_id

    # -- requests

    def idle_brokers(self) -> list[BrokerId]:
        """Leaders of unfinished partitions without a request in flight."""
        found = dict.fromkeys(one.broker_id for one in self._partitions.values())
        return [one for one in found if one is not None and one not in self._in_flight_bytes]

    def next_request(self, broker_id: BrokerId) -> FetchRequestSpec | None:
        """The request to send to the broker now; None: nothing to fetch, or no memory for it."""
        if broker_id in self._in_flight_bytes:
            return None
        wanted = [one for one in self._partitions.values() if one.broker_id == broker_id]
        if not wanted:
            return None
        if wanted[0].peeks:
            self._in_flight_bytes[broker_id] = 1
            return FetchRequestSpec(broker_id, (_partition_spec(wanted[0]),), 1, is_peek=True)
        bytes_max = self._room_for(len(wanted))
        if bytes_max is None:
            return None
        self._in_flight_bytes[broker_id] = bytes_max
        return FetchRequestSpec(broker_id, tuple(map(_partition_spec, wanted)), bytes_max)

    def _room_for(self, count: int) -> int | None:
        """Maximum bytes of a request for that many partitions; None: wait."""
        limits = self._limits
        if not self._held_bytes and not self._in_flight_bytes:
            # Nothing else is buffered: even with the smallest bound the read must progress.
            room = limits.prefetch_bytes_max
        else:
            room = limits.prefetch_bytes_max - self._held_bytes - self.reserved_bytes
            if room < limits.partition_bytes_max:
                return None
        # No broker takes all the memory from the others.
        brokers = {one.broker_id for one in self._partitions.values()}
        share = max(limits.partition_bytes_max, limits.prefetch_bytes_max // len(brokers))
        return min(limits.fetch_bytes_max, share, room, count * limits.partition_bytes_max)

    def release(self, byte_count: int) -> None:
        """Chunks of that many bytes were released."""
        self._held_bytes -= byte_count
        invariant(self._held_bytes >= 0, "released more than was held", held=self._held_bytes)

    # -- answers

    def on_lost(self, request: FetchRequestSpec) -> None:
        """The request failed; its partitions need a leader again."""
        del self._in_flight_bytes[request.broker_id]
        for spec in request.partitions:
            one = self._partitions[spec.partition]
            one.broker_id, one.peeks = None, False

    def on_response(self, request: FetchRequestSpec, response: FetchResponse) -> FetchResult:
        """Advance the positions; returns chunks to deliver, failures to retry, and errors."""
        del self._in_flight_bytes[request.broker_id]
        top = response.error_code
        found = FetchResult([], [], [], [])
        by_partition = _by_partition(request, response)
        for spec in request.partitions:
            one = self._partitions[spec.partition]
            data = by_partition.get(one.name)
            if top != ErrorCode.NONE:
                data = PartitionData(partition_index=one.name.partition, error_code=top)
            if data is None:
                # A throttled client gets a response without partitions; the connection waits.
                if not response.throttle_time_ms:
                    found.errors.append(
                        AnswerUnreadable(_about(one), "no entry for this partition")
                    )
            elif data.error_code != ErrorCode.NONE:
                self._refused(one, data, found)
            else:
                self._served(one, data, found)
        if found.failures and response.node_endpoints:
            found = found._replace(failures=_with_endpoints(found.failures, response))
        return found._replace(chunks=self._charged(found.chunks))

    def _refused(self, one: _Partition, data: PartitionData, found: FetchResult) -> None:
        one.broker_id, one.peeks = None, False
        code = code_of(data.error_code)
        if code is not ErrorCode.OFFSET_OUT_OF_RANGE and not remedy_for(code).is_retry:
            about = one.name
            found.errors.append(error_for(code, topic=about.topic, partition=about.partition))
            return
        leader = data.current_leader
        hint = None
        if leader.leader_id >= 0 and leader.leader_epoch >= 0:
            hint = LeaderHint(leader.leader_id, leader.leader_epoch)
        found.failures.append(PartitionFailure(one.name, code, one.position, hint))

    def _served(self, one: _Partition, data: PartitionData, found: FetchResult) -> None:
        diverging = data.diverging_epoch
        if diverging.epoch >= 0 or diverging.end_offset >= 0:
            at = Offset(max(0, diverging.end_offset))
            found.errors.append(LogTruncated(one.name, position=one.position, diverges_at=at))
            return
        found.served.append(one.name)
        if one.peeks:
            self._peeked(one, data, found)
        elif not data.records:
            one.peeks = self._may_be_gap(one, data)
        else:
            self._advance(one, memoryview(data.records), data, found)
        if one.peeks:
            return  # first in the line
        del self._partitions[one.name]
        if not one.is_done:
            self._partitions[one.name] = one  # at the end of the line

    def _may_be_gap(self, one: _Partition, data: PartitionData) -> bool:
        """Whether nothing was returned although the rest of the range is stable."""
        if not self._limits.is_committed or one.end is None:
            return False
        return data.last_stable_offset >= one.end and next(iter(self._partitions.values())) is one

    def _peeked(self, one: _Partition, data: PartitionData, found: FetchResult) -> None:
        one.peeks = False
        records = memoryview(data.records or b"")
        rows, _, _ = walk(records, 0, len(records), check_crc=False, size_max=BATCH_BYTES_MAX)
        if rows and one.end is not None and rows[BASE_OFFSET] >= one.end:
            start, one.position = one.position, one.end
            found.chunks.append(Chunk(one.name, memoryview(b""), start, one.end, (), 0))

    def _advance(
        self, one: _Partition, records: memoryview, data: PartitionData, found: FetchResult
    ) -> None:
        rows, valid_end, reason = walk(
            records, 0, len(records), check_crc=False, size_max=BATCH_BYTES_MAX
        )
        if rows:
            self._take(one, rows, records[:valid_end], data, found)
        if one.is_done or reason == Reason.NONE:
            return
        if reason != Reason.SHORT:
            why = f"malformed: {Reason(reason).name.lower()}"
            found.errors.append(RecordsUnreadable(one.name, offset=one.position, why=why))
        elif not found.chunks and len(found.served) == 1:
            # The first partition has at least one complete batch, whatever the limits.
            why = f"{len(records)} bytes without a complete batch"
            found.errors.append(AnswerUnreadable(_about(one), why))

    def _take(
        self,
        one: _Partition,
        rows: "array[int]",
        records: memoryview,
        data: PartitionData,
        found: FetchResult,
    ) -> None:
        """Deliver complete batches, and continue after them."""
        start, after_last = one.position, rows[LAST_OFFSET - ROW_FIELDS] + 1
        if after_last <= start:
            found.errors.append(AnswerUnreadable(_about(one), f"batches end at {after_last}"))
            return
        one.position = Offset(after_last if one.end is None else min(after_last, one.end))
        one.last_epoch = LeaderEpoch(rows[LEADER_EPOCH - ROW_FIELDS])
        aborted = tuple(
            AbortedTransaction(ProducerId(each.producer_id), Offset(each.first_offset))
            for each in data.aborted_transactions or ()
        )
        found.chunks.append(Chunk(one.name, records, start, one.position, aborted, records.nbytes))

    def _charged(self, chunks: list[Chunk]) -> list[Chunk]:
        """The response's memory is free when its last chunk is: that one is charged all of it."""
        if not chunks:
            return chunks
        total = sum(one.charge_bytes for one in chunks)
        self._held_bytes += total
        charged = [one._replace(charge_bytes=0) for one in chunks[:-1]]
        return [*charged, chunks[-1]._replace(charge_bytes=total)]


def _partition_spec(one: _Partition) -> PartitionFetchSpec:
    return PartitionFetchSpec(
        one.name, one.position, one.leader_epoch, one.last_epoch, one.topic_id
    )


def _by_partition(
    request: FetchRequestSpec, response: FetchResponse
) -> dict[TopicPartition, PartitionData]:
    """The parts of a response by partition, with topic ids resolved to names."""
    names = {one.topic_id: one.partition.topic for one in request.partitions if one.topic_id}
    found: dict[TopicPartition, PartitionData] = {}
    for topic in response.responses:
        name = topic.topic or names.get(TopicId(topic.topic_id), "")
        for data in topic.partitions:
            found[TopicPartition(name, data.partition_index)] = data
    return found


def _with_endpoints(
    failures: list[PartitionFailure], response: FetchResponse
) -> list[PartitionFailure]:
    """Their leader hints with the endpoints of the response."""
    endpoints = tuple(
        Broker(BrokerId(one.node_id), one.host, one.port, one.rack)
        for one in response.node_endpoints
    )
    return [
        one._replace(hint=one.hint._replace(endpoints=endpoints)) if one.hint is not None else one
        for one in failures
    ]


def _about(one: _Partition) -> str:
    return f"a fetch of {one.name} at offset {one.position}"

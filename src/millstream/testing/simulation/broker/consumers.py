"""Simulated consumers: by fetch, with and without sessions, with long polls and small limits.

A consumer that sends leader epochs does what KIP-320 requires: a fenced one refreshes its metadata,
requests the end of its last epoch, and goes back to it. One that also sends the epoch of its last
record learns of a divergence from the fetch itself. The others may miss that a tail was lost, as
the protocol lets them.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final
from uuid import UUID

from millstream.broker.fetch.sessions import next_epoch
from millstream.broker.requests.registry import SERVED
from millstream.model.limits import KIB
from millstream.rpc.errors import RpcError
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.checker import PartitionName
from millstream.testing.record_batches import read_records
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.scene import Scene, Topic
from millstream.testing.simulation.broker.watch import require
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.wire.primitives import Bytes

EARLIEST: Final = -2
LATEST: Final = -1
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_EPOCHS: Final = 9
FIRST_WITH_DIVERGENCE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13

_SESSION_ERRORS: Final = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
_STALE: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
_BATCH_START: Final = Struct(">qii")

Records = list[tuple[int, bytes]]


def records_in(data: Bytes | None) -> Records:
    """Offsets and values of the whole batches."""
    return [(one.offset, one.value or b"") for one in read_records(data or b"")]


def last_epoch_in(data: Bytes) -> int:
    """The leader epoch of the last whole batch; -1 without one."""
    view, at, epoch = memoryview(data), 0, -1
    while len(view) - at >= _BATCH_START.size:
        _, length, batch_epoch = _BATCH_START.unpack_from(view, at)
        at += 12 + length
        if at > len(view):
            break
        epoch = batch_epoch
    return epoch


async def list_offset(client: Client, topic: Topic, partition: int, timestamp: int) -> int:
    """The first or last offset; retried until there is an answer."""
    while True:
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        of_topic = ListOffsetsTopic(name=topic.name, partitions=[wanted])
        response = await client.call_with_retries(
            ListOffsetsRequest(replica_id=-1, topics=[of_topic])
        )
        answer = response.topics[0].partitions[0]
        if answer.error_code == ErrorCode.NONE:
            return int(answer.offset)
        require(answer.error_code in client.retriable, "ListOffsets", code=answer.error_code)
        await client.pause(0.05, 0.5)


class Cursor:
    """Where a consumer is in one partition."""

    def __init__(self, consumer: "Consumer", topic: Topic, partition: int) -> None:
        self._consumer = consumer
        self.topic, self.partition = topic, partition
        self.partition_name: PartitionName = topic.partition_name(partition)
        self.position = 0
        self.leader_epoch = -1
        """As the metadata says."""
        self.last_epoch = -1
        """Of the last record that was read."""
        self.high_watermark = -1
        self.is_stale = True
        """Metadata and position have to be refreshed before the next fetch."""
        self.seek(0)

    def seek(self, position: int) -> None:
        self.position = position
        consumer = self._consumer
        self._run = consumer.scene.history.seek(
            consumer.name, self.partition_name, is_fenced=consumer.is_fenced
        )

    def take(self, data: Bytes) -> None:
        records = [one for one in records_in(data) if one[0] >= self.position]
        self._consumer.scene.history.polled(self._run, self.position, records)
        if records:
            self.position = records[-1][0] + 1
            self.last_epoch = last_epoch_in(data)
            self._consumer.scene.counts["records polled"] += len(records)


class Consumer(Client):
    """Reads some partitions from their beginning, forever."""

    def __init__(self, scene: Scene, name: str, randomness: SeededRandomness) -> None:
        super().__init__(scene, name, randomness)
        self.version = self.any_version(FetchRequest, SERVED[ApiKey.FETCH].versions)
        self.has_session = self.version >= FIRST_WITH_SESSIONS and randomness.chance(0.6)
        self.is_fenced = self.version >= FIRST_WITH_EPOCHS
        self._diverges = self.version >= FIRST_WITH_DIVERGENCE and randomness.chance(0.4)
        self._is_patient = randomness.chance(0.6)
        self.cursors: list[Cursor] = []
        self._session_id = self._session_epoch = 0
        self._starts_over = False
        self._last_sent: dict[Cursor, tuple[int, int, int]] = {}

    def assign(self, targets: Iterable[tuple[Topic, int]]) -> None:
        self.cursors = [Cursor(self, topic, partition) for topic, partition in targets]

    def recheck_ends(self) -> None:
        """Nothing more will be written: fetch again where each partition ends."""
        self._starts_over = True

    @property
    def is_at_end(self) -> bool:
        is_fresh = not self._starts_over
        return is_fresh and all(one.position >= one.high_watermark >= 0 for one in self.cursors)

    async def work(self) -> None:
        while not self.is_finished:
            try:
                for cursor in self.cursors:
                    if cursor.is_stale:
                        await self._refresh_metadata(cursor)
                await self._poll()
            except RpcError as error:
                require(
                    not self.scene.is_quiet, "I-41 a fetch failed after the faults", error=error
                )
                self._forget_session()
                await self.pause(0.0, 0.3)

    # -- positions -------------------------------------------------------------------------

    async def _refresh_metadata(self, cursor: Cursor) -> None:
        """Fetch the leader's epoch, and validate the position against its log."""
        wanted = [MetadataRequestTopic(name=cursor.topic.name)]
        response = await self.call(MetadataRequest(topics=wanted))
        topic = response.topics[0]
        if topic.error_code:
            require(topic.error_code in self.retriable, "Metadata", code=topic.error_code)
            await self.pause(0.05, 0.3)
            return
        cursor.leader_epoch = topic.partitions[cursor.partition].leader_epoch
        if self.is_fenced and not self._diverges and cursor.last_epoch >= 0:
            cursor.is_stale = not await self._validate(cursor)
        else:
            cursor.is_stale = False

    async def _validate(self, cursor: Cursor) -> bool:
        """Go back to where our history and the leader's diverge; False when that is unknown."""
        wanted = OffsetForLeaderPartition(
            partition=cursor.partition,
            current_leader_epoch=cursor.leader_epoch,
            leader_epoch=cursor.last_epoch,
        )
        of_topic = OffsetForLeaderTopic(topic=cursor.topic.name, partitions=[wanted])
        response = await self.call(OffsetForLeaderEpochRequest(topics=[of_topic]))
        answer = response.topics[0].partitions[0]
        if answer.error_code == ErrorCode.NONE:
            if answer.leader_epoch < cursor.last_epoch or answer.end_offset < cursor.position:
                self._go_back(cursor, answer.leader_epoch, answer.end_offset)
            return True
        is_retriable = answer.error_code in self.retriable or answer.error_code in _STALE
        require(is_retriable, "OffsetForLeaderEpoch", code=answer.error_code)
        await self.pause(0.05, 0.3)
        return False

    def _go_back(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        is_lost = self.scene.may_have_lost(cursor.partition_name)
        require(is_lost, "I-08 a log was truncated without loss", at=cursor.partition_name)
        self.scene.counts["truncations noticed"] += 1
        cursor.last_epoch = epoch
        cursor.seek(max(0, min(end_offset, cursor.position)))

    async def _reset(self, cursor: Cursor) -> None:
        """Out of range: the front was deleted, or a tail that was read is gone."""
        start = await list_offset(self, cursor.topic, cursor.partition, EARLIEST)
        self.scene.counts["positions out of range"] += 1
        cursor.last_epoch = -1
        cursor.seek(start)

    # -- fetches ---------------------------------------------------------------------------

    async def _poll(self) -> None:
        if self._starts_over:
            self._starts_over = False
            self._forget_session()  # a session returns only what is new
            for cursor in self.cursors:
                cursor.high_watermark = -1
        if self._session_epoch and self.randomness.chance(0.05):
            await self._probe_session()
        request = self._request()
        response: FetchResponse = await self.call(request, self.version)
        if response.error_code in _SESSION_ERRORS:
            self.scene.counts["sessions lost"] += 1
            self._forget_session()
            return
        require(not response.error_code, "Fetch", code=response.error_code)
        if self.has_session:
            self._session_id = response.session_id
            self._session_epoch = next_epoch(self._session_epoch) if response.session_id else 0
        is_troubled = False
        for topic in response.responses:
            for data in topic.partitions:
                is_troubled |= await self._take(self._cursor(topic, data), data)
        if is_troubled or not self._is_patient:
            await self.pause(0.05, 0.6)

    def _request(self) -> FetchRequest:
        full = self._session_epoch == 0
        wanted = {one: (one.position, one.leader_epoch, one.last_epoch) for one in self.cursors}
        named = [one for one in self.cursors if full or self._last_sent.get(one) != wanted[one]]
        self._last_sent = wanted
        request = FetchRequest(
            max_wait_ms=self.randomness.choice([50, 500]) if self._is_patient else 0,
            min_bytes=self.randomness.choice([1, 1, 300]),
            max_bytes=self.randomness.choice([200, 64 * KIB, 1024 * KIB]),
            isolation_level=self.randomness.choice([0, 1]),
            session_id=self._session_id,
            session_epoch=self._session_epoch if self.has_session else -1,
        )
        for cursor in named:
            self._add(request, cursor)
        return request

    def _add(self, request: FetchRequest, cursor: Cursor) -> None:
        part = FetchPartition(
            partition=cursor.partition,
            fetch_offset=cursor.position,
            partition_max_bytes=self.randomness.choice([100, 64 * KIB, 1024 * KIB]),
        )
        if self.is_fenced:
            part.current_leader_epoch = cursor.leader_epoch
        if self._diverges:
            part.last_fetched_epoch = cursor.last_epoch
        topic = FetchTopic(partitions=[part])
        if self.version >= FIRST_WITH_TOPIC_IDS:
            topic.topic_id = cursor.topic.topic_id
        else:
            topic.topic = cursor.topic.name
        request.topics.append(topic)

    def _cursor(self, topic: FetchableTopicResponse, data: PartitionData) -> Cursor:
        for one in self.cursors:
            if one.partition == data.partition_index and one.topic.name == topic.topic:
                return one
            is_same_id = topic.topic_id != UUID(int=0) and one.topic.topic_id == topic.topic_id
            if one.partition == data.partition_index and is_same_id:
                return one
        raise AssertionError(f"an answer for a partition that was not requested: {topic}")

    async def _take(self, cursor: Cursor, data: PartitionData) -> bool:
        """Handle one partition of the response; True after an error."""
        code = data.error_code
        if code == ErrorCode.NONE:
            if data.diverging_epoch.end_offset >= 0:
                self._go_back(cursor, data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
                return True
            self._take_records(cursor, data)
            return False
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._reset(cursor)
        elif code in _STALE:
            self.scene.counts["consumers fenced"] += 1
            cursor.is_stale = True
        else:
            # Right after a start some partitions may not be loaded yet.
            is_gone = code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            require(code in self.retriable or is_gone, "Fetch of a partition", code=code)
        return True

    def _take_records(self, cursor: Cursor, data: PartitionData) -> None:
        records = data.records or b""
        last = max((offset for offset, _ in records_in(records)), default=-1)
        require(
            last < data.high_watermark,
            "I-07 a record at or above the high watermark",
            offset=last,
            high_watermark=data.high_watermark,
            partition_name=cursor.partition_name,
        )
        cursor.high_watermark = data.high_watermark
        cursor.take(records)

    def _forget_session(self) -> None:
        if self.randomness.chance(0.5):
            self._session_id = 0  # otherwise the broker closes the old one
        self._session_epoch = 0
        self._last_sent = {}
        for cursor in self.cursors:
            cursor.is_stale = cursor.is_stale or self.randomness.chance(0.3)

    async def _probe_session(self) -> None:
        """A request with a wrong epoch must be refused: its answer could be another request's."""
        request = self._request()
        request.session_epoch = next_epoch(next_epoch(request.session_epoch))
        request.max_wait_ms = 0
        response = await self.call(request, self.version)
        require(
            response.error_code in _SESSION_ERRORS,
            "a fetch out of turn was served by its session",
            code=response.error_code,
        )
        self._forget_session()
        self.scene.counts["sessions probed"] += 1


class LastReader(Client):
    """Reads everything once after the faults are over."""

    async def read_all(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            for partition in range(topic.partition_count):
                await self._read(topic, partition)
        await self._connections.close()

    async def _read(self, topic: Topic, partition: int) -> None:
        start = await list_offset(self, topic, partition, EARLIEST)
        end = await list_offset(self, topic, partition, LATEST)
        records: Records = []
        position = start
        while position < end:
            part = FetchPartition(
                partition=partition, fetch_offset=position, partition_max_bytes=1024 * KIB
            )
            of_topic = FetchTopic(topic_id=topic.topic_id, partitions=[part])
            request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[of_topic])
            response = await self.call_with_retries(request)
            data = response.responses[0].partitions[0]
            require(
                not data.error_code, "the last read", code=data.error_code, partition_name=topic
            )
            found = [one for one in records_in(data.records) if one[0] >= position]
            require(found, "the last read does not go on", at=position, end=end, topic=topic)
            records += found
            position = found[-1][0] + 1
        self.scene.history.record_final_read(topic.partition_name(partition), start, records)

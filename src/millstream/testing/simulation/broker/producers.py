"""Simulated producers: idempotent ones that never give up, and non-idempotent ones that send once.

An idempotent lane does what real producers do: up to five batches in flight; after a lost
connection or a retriable error all unacknowledged batches are sent again, the same bytes with the
same sequence numbers, in order. Where the broker lost its state of the producer in a power loss,
the lane goes on under a new id from sequence 0.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from millstream.broker.requests.registry import SERVED
from millstream.kernels.compression import Codec
from millstream.rpc.connection import Connection
from millstream.rpc.errors import RpcError
from millstream.testing.history.checker import Send
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.scene import Topic
from millstream.testing.simulation.broker.watch import require
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)

IN_FLIGHT: Final = 5
_FIRST_WITH_TOPIC_IDS: Final = 13
_CODECS: Final = (Codec.NONE, Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.SNAPPY)
_SIZES: Final = (0, 0, 10, 100, 100, 1_000, 30_000)
"""Bytes of filling in a value; the largest make answers that a transport does not take at once."""
_VALUES_MAX: Final = 5

_GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
LOST_STATE: Final = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID}
)
"""The errors of a broker that does not know what a producer has stored."""


class Batch:
    """Values to be stored, and their encoded batch."""

    def __init__(self, send: Send, codec: Codec) -> None:
        self.send = send
        self.codec = codec
        self.records = b""
        self.was_refused = False

    def build(self, *, timestamp_ms: int, producer_id: int = -1, sequence: int = -1) -> None:
        spec = BatchSpec(
            codec=self.codec,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            timestamp_ms=timestamp_ms,
        )
        self.records = bytes(build_batch([(None, value) for value in self.send.values], spec))


class ProducerClient(Client):
    """What both kinds share."""

    acks: Sequence[int] = (-1, 1, 0)
    """One of them for every request."""
    _values_made = 0

    def new_batch(self, topic: Topic, partition: int, *, lane: str, number: int) -> Batch:
        partition_name = topic.partition_name(partition)
        size_max = topic.segment_bytes // (_VALUES_MAX + 1) - 100  # a batch fits in a segment
        values = []
        for _ in range(self.randomness.choice([1, 1, 2, _VALUES_MAX])):
            self._values_made += 1
            size = min(size_max, self.randomness.choice(_SIZES))
            filling = self.randomness.bytes(size)
            source = f"{self.name}.{self.life} {self._values_made}"
            values.append(b"%s %s" % (source.encode(), filling))
        send = self.scene.history.send(lane, number, partition_name, values)
        return Batch(send, self.randomness.choice(_CODECS))

    def request(
        self, topic: Topic, batch: Batch, *, partition: int, acks: int, version: int
    ) -> ProduceRequest:
        data = TopicProduceData(
            partition_data=[PartitionProduceData(index=partition, records=batch.records)]
        )
        if version >= _FIRST_WITH_TOPIC_IDS:
            data.topic_id = topic.topic_id
        else:
            data.name = topic.name
        return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[data])

    async def produce(
        self, connection: Connection, request: ProduceRequest, version: int
    ) -> PartitionProduceResponse | RpcError:
        try:
            response = await connection.send(request, versions=range(version, version + 1))
        except RpcError as error:
            return error
        answer: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return answer


class IdempotentProducer(ProducerClient):
    """One lane for each of some partitions; ends when everything is acknowledged."""

    acks: Sequence[int] = (-1, -1, -1, 1)
    targets: list[tuple[Topic, int]]

    async def work(self) -> None:
        async with asyncio.TaskGroup() as lanes:
            for topic, partition in self.targets:
                lane = _Lane(self, topic, partition)
                lanes.create_task(lane.run(), name=f"{self.name} {topic.name}-{partition}")

    async def new_producer_id(self) -> int:
        while True:
            version = self.any_version(
                InitProducerIdRequest, SERVED[ApiKey.INIT_PRODUCER_ID].versions
            )
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            answer = await self.call_with_retries(request, version)
            if answer.error_code == ErrorCode.NONE:
                producer_id = int(answer.producer_id)
                known = self.scene.producer_ids
                require(producer_id not in known, "I-20 a producer id twice", id=producer_id)
                known.add(producer_id)
                return producer_id
            require(answer.error_code in self.retriable, "InitProducerId", code=answer.error_code)
            await self.pause(0.05, 0.5)


class _Lane:
    """One idempotent producer's batches to one partition."""

    def __init__(self, owner: IdempotentProducer, topic: Topic, partition: int) -> None:
        self._owner = owner
        self._topic, self._partition = topic, partition
        self._name = f"{owner.name}.{owner.life}>{topic.name}-{partition}"
        self._number = 0
        self._producer_id = -1
        self._sequence = 0
        self._unacknowledged: deque[Batch] = deque()
        self._lost: Batch | None = None
        """The first one, refused as out of order: the broker does not know those before it."""
        self._is_known = False
        """Something was acknowledged under this producer id."""
        self._is_overtaken = False
        """The broker refused the first batch of a producer and accepted a later one as its first,
        as Kafka does: it cannot know that there was an earlier one."""

    async def run(self) -> None:
        owner = self._owner
        self._producer_id = await owner.new_producer_id()
        while not owner.scene.is_ending or self._unacknowledged:
            self._fill()
            await self._round()
            await owner.pause(0.0, owner.randomness.choice([0.0, 1.0, 3.0]))

    def _fill(self) -> None:
        """Add batches to send, unless the run is ending."""
        owner = self._owner
        wanted = owner.randomness.integer(1, IN_FLIGHT + 1)
        while not owner.scene.is_ending and len(self._unacknowledged) < wanted:
            if self._unacknowledged and self._number - self._unacknowledged[0].send.number >= 4:
                break  # the broker knows the last five: no retry may be of an older one
            self._number += 1
            batch = owner.new_batch(
                self._topic, self._partition, lane=self._name, number=self._number
            )
            self._build(batch)
            self._unacknowledged.append(batch)

    def _build(self, batch: Batch) -> None:
        batch.build(
            timestamp_ms=self._owner.clock.wall_ms(),
            producer_id=self._producer_id,
            sequence=self._sequence,
        )
        self._sequence += len(batch.send.values)

    async def _round(self) -> None:
        """Send all unacknowledged batches, pipelined and in order, and handle the responses."""
        owner = self._owner
        try:
            connection = await owner.connection()
        except RpcError:
            await owner.pause(0.0, 0.2)
            return
        version = owner.any_version(ProduceRequest, SERVED[ApiKey.PRODUCE].versions)
        acks = owner.randomness.choice(owner.acks)
        sent = []
        for batch in list(self._unacknowledged):
            request = owner.request(
                self._topic, batch, partition=self._partition, acks=acks, version=version
            )
            work = owner.produce(connection, request, version)
            sent.append((batch, asyncio.get_running_loop().create_task(work, name=self._name)))
            if owner.randomness.chance(0.2):
                await owner.pause(0.0, 0.05)
        owner.scene.counts["batches sent"] += len(sent)
        for batch, task in sent:
            self._take(batch, await task)
        # Not before all are answered: some after it may have been accepted.
        if self._lost is not None and self._unacknowledged[0] is self._lost:
            await self._start_over()
        self._lost = None

    def _take(self, batch: Batch, outcome: PartitionProduceResponse | RpcError) -> None:
        owner = self._owner
        if isinstance(outcome, RpcError):
            owner.scene.counts["sends without answer"] += 1
            return
        code = outcome.error_code
        is_first = self._unacknowledged[0] is batch
        if code == ErrorCode.NONE:
            # Not always the first: an earlier one may be stored and its answer late.
            if not is_first and not self._is_known and self._unacknowledged[0].was_refused:
                self._is_overtaken = True
            self._is_known = True
            self._unacknowledged.remove(batch)
            owner.scene.history.acknowledged(batch.send, outcome.base_offset)
            owner.scene.counts["acknowledged"] += 1
        elif code in LOST_STATE:
            # After a failed batch this is expected; of the first batch it means that the broker
            # does not know what it acknowledged.
            if is_first:
                self._lost = batch
        else:
            is_retriable = code in owner.retriable or code in _GONE
            require(is_retriable, "an idempotent batch was refused", code=code, batch=batch.send)
            batch.was_refused = True
            owner.scene.counts["refused for now"] += 1

    async def _start_over(self) -> None:
        """What this producer had stored is gone, or was never accepted in order."""
        owner = self._owner
        partition_name = self._topic.partition_name(self._partition)
        is_known_trouble = owner.scene.may_have_lost(partition_name) or self._is_overtaken
        require(is_known_trouble, "I-20 a sequence was refused without loss", lane=self._name)
        self._is_known = self._is_overtaken = False
        owner.scene.counts["producers restarted"] += 1
        self._producer_id = await owner.new_producer_id()
        self._sequence = 0
        # A broker that forgot a producer accepts any of its batches as the first, also one after a
        # batch that it had no room for: order is promised for each producer id.
        self._name = f"{self._name}'"
        rebuilt = deque(Batch(one.send, one.codec) for one in self._unacknowledged)
        for batch in rebuilt:
            batch.send.lane = self._name
            self._build(batch)
        self._unacknowledged = rebuilt


class NonIdempotentProducer(ProducerClient):
    """Sends a batch once, to any partition of any topic, with or without waiting for the answer."""

    async def work(self) -> None:
        lives = 0
        while not self.scene.is_ending:
            lives += 1
            try:
                connection = await self.connection()
            except RpcError:
                await self.pause(0.05, 0.5)
                continue
            async with asyncio.TaskGroup() as sends:
                await self._send_on(connection, lives, sends)

    async def _send_on(self, connection: Connection, life: int, sends: asyncio.TaskGroup) -> None:
        """As long as the connection lasts: what it carries arrives in order."""
        number = 0
        while connection.is_open and not self.scene.is_ending and not self.has_to_move():
            topic = self.choose_topic()
            if topic is not None and connection.has_room:
                number += 1
                self._send_one(connection, topic, f"{self.name}.{self.life}.{life}", number, sends)
                if self.randomness.chance(0.3):
                    sends.create_task(self._request_metadata(connection, topic), name=self.name)
            await self.pause(0.0, self.randomness.choice([0.0, 0.5, 1.5]))

    def has_to_move(self) -> bool:
        """Whether the next batch has to go to another broker."""
        return False

    def choose_topic(self) -> Topic | None:
        topics = list(self.scene.topics.values())
        return self.randomness.choice(topics) if topics else None

    def choose_partition(self, topic: Topic) -> int:
        return self.randomness.integer(0, topic.partition_count)

    async def _request_metadata(self, connection: Connection, topic: Topic) -> None:
        """A request that could be answered at once, after batches that wait for a flush."""
        wanted = [MetadataRequestTopic(name=topic.name)]
        with suppress(RpcError):
            await connection.send(MetadataRequest(topics=wanted))

    def _send_one(
        self,
        connection: Connection,
        topic: Topic,
        lane: str,
        number: int,
        sends: asyncio.TaskGroup,
    ) -> None:
        partition = self.choose_partition(topic)
        batch = self.new_batch(topic, partition, lane=lane, number=number)
        batch.build(timestamp_ms=self.clock.wall_ms())
        acks = self.randomness.choice(self.acks)
        # By id: a topic that was deleted and created again must not get batches for the old one.
        version = _FIRST_WITH_TOPIC_IDS
        request = self.request(topic, batch, partition=partition, acks=acks, version=version)
        self.scene.counts["batches sent once"] += 1
        if acks == 0:
            connection.send_nowait_no_response(request, versions=range(version, version + 1))
            return
        sends.create_task(self._finish(connection, request, batch), name=lane)

    async def _finish(self, connection: Connection, request: ProduceRequest, batch: Batch) -> None:
        outcome = await self.produce(connection, request, _FIRST_WITH_TOPIC_IDS)
        if isinstance(outcome, RpcError):
            if not outcome.may_have_been_processed:
                self.scene.history.refused(batch.send)
        elif outcome.error_code == ErrorCode.NONE:
            self.scene.history.acknowledged(batch.send, outcome.base_offset)
        else:
            code = outcome.error_code
            is_retriable = code in self.retriable or code in _GONE
            require(
                is_retriable,
                "a batch without a producer id was refused",
                code=code,
                batch=batch.send,
            )

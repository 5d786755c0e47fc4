"""A broker's core in small: connections, slots and real logs on a simulated disk; either twin."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock
from uuid import UUID

import pytest

from kits.kernels.kernel_twins import compiled, needs_compiled, plain
from millstream.kernels.errors import FrameError
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch, Offset, TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import MIB
from millstream.storage.config import LogConfig
from millstream.storage.log import base as log_base
from millstream.storage.log.log import Log
from millstream.storage.producers import machine as producers
from millstream.storage.producers import snapshot as producer_snapshot
from millstream.testing.log_kit import SMALL_SEGMENTS, OpenedLog, open_log
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.clock import WALL_START_MS, ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import (
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from millstream.wire.primitives import MalformedFrame

NOW = WALL_START_MS
TOPIC = "events"
TOPIC_ID = UUID(int=7)
VERSIONS = range(3, 14)
BIG_SEGMENTS = replace(SMALL_SEGMENTS, segment_bytes=MIB)


class Twin(NamedTuple):
    """One implementation of the core."""

    slots: ModuleType
    connection: ModuleType


def twin(name: str) -> Twin | None:
    find = compiled if name == "compiled" else plain
    slots, connection = find("slots"), find("connection")
    return None if slots is None or connection is None else Twin(slots, connection)


TWINS = [
    pytest.param(twin("compiled"), id="compiled", marks=needs_compiled("slots", "connection")),
    pytest.param(twin("plain"), id="plain"),
]


@contextmanager
def logs_use(kernel: Twin) -> Iterator[None]:
    """Logs that are opened inside have the slots and producers of this twin."""
    entry = kernel.slots.ProducerEntry
    with (
        mock.patch.object(log_base, "LogSlot", kernel.slots.PartitionSlot),
        mock.patch.object(producers, "ProducerEntry", entry),
        mock.patch.object(producer_snapshot, "ProducerEntry", entry),
    ):
        yield


# -- frames ------------------------------------------------------------------------------------

Part = tuple[int, bytes | bytearray | None]
"""A partition and its records."""


def produce_body(
    parts: Sequence[Part],
    version: int = 9,
    *,
    acks: int = 1,
    topic: str = TOPIC,
    topic_id: UUID = TOPIC_ID,
    transactional_id: str | None = None,
) -> bytes:
    """A Produce request for one topic."""
    data = [PartitionProduceData(index=index, records=records) for index, records in parts]
    topics = [TopicProduceData(name=topic, topic_id=topic_id, partition_data=data)]
    if version < 13:
        topics[0].topic_id = UUID(int=0)
    else:
        topics[0].name = ""
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=1500, topic_data=topics
    )
    return request.encode(version)


def frame(
    body: bytes, *, key: ApiKey = ApiKey.PRODUCE, version: int = 9, correlation_id: int = 1
) -> bytes:
    """A whole request frame."""
    data = encode_request_header(key, version, correlation_id, "tester") + body
    return len(data).to_bytes(4, "big") + data


def produce_frame(
    parts: Sequence[Part], version: int = 9, *, acks: int = 1, correlation_id: int = 1
) -> bytes:
    body = produce_body(parts, version, acks=acks)
    return frame(body, version=version, correlation_id=correlation_id)


def batch(*values: bytes, spec: BatchSpec | None = None) -> bytearray:
    """Records of now with these values."""
    pairs = [(b"key", value) for value in values or (b"value",)]
    return build_batch(pairs, spec or BatchSpec(timestamp_ms=NOW))


def sequenced(producer_id: int, sequence: int, *, count: int = 1, epoch: int = 0) -> bytearray:
    """The batch of an idempotent producer."""
    spec = BatchSpec(
        producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, timestamp_ms=NOW
    )
    return build_batch([(b"k", b"%d" % (sequence + at)) for at in range(count)], spec)


class Answer(NamedTuple):
    """A Produce response as a client sees it."""

    correlation_id: int
    response: ProduceResponse

    @property
    def partitions(self) -> list[tuple[int, int, int, int]]:
        """(index, error code, base offset, log start) of all topics."""
        return [
            (one.index, one.error_code, one.base_offset, one.log_start_offset)
            for topic in self.response.responses
            for one in topic.partition_responses
        ]


def frames_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        assert len(data) >= 4 + size, "half a frame was sent"
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def read_answer(data: bytes, version: int) -> Answer:
    correlation_id, at = decode_response_header(data, ApiKey.PRODUCE, version)
    return Answer(correlation_id, ProduceResponse.decode(memoryview(data)[at:], version))


def code_of(error: Exception) -> int:
    """A number for each error of the log; the broker has the true ones."""
    return 1 + sum(map(ord, type(error).__name__)) % 100


# -- the core with logs ------------------------------------------------------------------------


@dataclass
class Core:
    """A table with some partitions of one topic; the high watermark follows each commit."""

    twin: Twin
    partitions: int = 2
    config: LogConfig = BIG_SEGMENTS
    is_followed: bool = True
    """Whether the high watermark follows the log end by itself."""
    disk: SimDisk = field(init=False)
    clock: ManualClock = field(default_factory=ManualClock)
    table: Any = field(init=False)
    opened: list[OpenedLog] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = SimDisk(7, directories=[self.root(at) for at in range(self.partitions)])
        self.table = self.twin.slots.SlotTable(violation=InvariantViolated)
        for index in range(self.partitions):
            self.open(index)

    @staticmethod
    def root(index: int) -> str:
        return f"/data{index}"

    def open(self, index: int) -> None:
        """Open partition `index` and lead it; its first batch went through Python."""
        with logs_use(self.twin):
            opened = open_log(
                self.disk,
                self.clock,
                self.config,
                root=self.root(index),
                partition=TopicPartition(TOPIC, index),
            )
        self.opened.append(opened)
        self.lead(opened.log)
        opened.log.append_as_leader(batch(b"first"), leader_epoch=LeaderEpoch(0))
        opened.log.set_high_watermark(opened.log.log_end)
        self.table.add(
            opened.log.slot, topic=TOPIC.encode(), topic_id=TOPIC_ID.bytes, partition=index
        )

    def lead(self, log: Log, epoch: int = 0) -> None:
        log.start_leading(LeaderEpoch(epoch), after_write=lambda: self.follow(log))

    def follow(self, log: Log) -> None:
        if self.is_followed:
            log.set_high_watermark(log.log_end)

    def log(self, index: int = 0) -> Log:
        return self.opened[index].log

    def slot(self, index: int = 0) -> Any:
        return self.log(index).slot

    def know(self, producer_id: int, *, index: int = 0, epoch: int = 0) -> None:
        """Let the partition know a producer whose sequence 0 is there."""
        data = sequenced(producer_id, 0, epoch=epoch)
        with logs_use(self.twin):
            self.log(index).append_as_leader(data, leader_epoch=LeaderEpoch(0))
        self.follow(self.log(index))

    def connect(self, **options: int) -> "Client":
        limits = {"frame_bytes_max": 4 * MIB, "in_flight_max": 1000} | options
        return Client(self, self.twin.connection.Connection(self.table, **limits))

    def write_staged(self) -> None:
        self.table.write_staged(code_of)

    def facts(self) -> list[Any]:
        """Everything that two ways to the same log must agree on."""
        found: list[Any] = []
        for opened in self.opened:
            log = opened.log
            entries = log.producers.states.entries()
            active = log.segments.active
            found.append(
                (
                    [segment.read_all() for segment in map(_Bytes, log.segments)],
                    (log.log_start, log.log_end, log.high_watermark, log.unflushed_records),
                    [
                        (one.producer_id, one.epoch, one.batches, one.last_timestamp_ms)
                        for one in entries
                    ],
                    [active.offset_index.size_bytes, active.time_index.size_bytes],
                    (active.max_timestamp, active.size_bytes, log.epochs.entries()),
                )
            )
        return found


class _Bytes(NamedTuple):
    segment: Any

    def read_all(self) -> bytes:
        if not self.segment.size_bytes:
            return b""
        return bytes(self.segment.log.open().read_at(0, self.segment.size_bytes + 1))


@dataclass(eq=False)
class Client:
    """A connection and what its client has received."""

    core: Core
    connection: Any
    received: bytearray = field(default_factory=bytearray)
    error: str = ""

    def send(self, data: bytes) -> None:
        """Into the buffer, chunk by chunk where it does not fit at once."""
        rest = memoryview(data)
        while rest:
            room = self.connection.get_buffer(-1)
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            del room
            self.connection.received(size)
            rest = rest[size:]

    def requests(self) -> list[tuple[Any, ...]]:
        """What comes out for Python, bodies copied."""
        found = []
        while (request := self.connection.next_request(self.core.clock.wall_ms())) is not None:
            found.append((*request[:5], bytes(request[5])))
        return found

    def collect(self) -> bytes:
        """Take the output as the client would receive it."""
        taken = b"".join(bytes(part) for part in self.connection.take_output())
        self.received += taken
        return taken

    def answers(self, version: int = 9) -> list[Answer]:
        """The Produce responses that came since the last call."""
        return [read_answer(one, version) for one in frames_of(self.collect())]

    def serve(self) -> None:
        """As a broker: dispatch what is not staged, commit, send."""
        connection, core = self.connection, self.core
        try:
            while (request := connection.next_request(core.clock.wall_ms())) is not None:
                core.write_staged()
                if request[1] == ApiKey.PRODUCE and request[2] in VERSIONS:
                    produce_in_python(core, connection, request)
                else:
                    connection.answer(request[0], [b"\0\0\0\4other"[: 4 + 4]])
        except FrameError as error:
            self.error = str(error)
        core.write_staged()
        self.collect()


def produce_in_python(core: Core, connection: Any, request: tuple[Any, ...]) -> None:
    """The slow path, one partition after the other: the oracle of the core."""
    number, _, version, correlation_id, _, body = request
    try:
        decoded = ProduceRequest.decode(body, version)
    except MalformedFrame:
        connection.answer(number, [b"\0\0\0\1m"])
        return
    topics = [
        TopicProduceResponse(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[
                _append(core, topic, one, decoded) for one in topic.partition_data
            ],
        )
        for topic in decoded.topic_data
    ]
    if decoded.acks == 0:
        connection.answer_nothing(number)
        return
    body = ProduceResponse(responses=topics).encode(version)
    data = encode_response_header(ApiKey.PRODUCE, version, correlation_id) + body
    connection.answer(number, [len(data).to_bytes(4, "big"), data])


def _append(
    core: Core, topic: TopicProduceData, one: PartitionProduceData, decoded: ProduceRequest
) -> PartitionProduceResponse:
    refused = PartitionProduceResponse(index=one.index, error_code=3, base_offset=-1)
    is_ours = topic.name == TOPIC or topic.topic_id == TOPIC_ID
    if not is_ours or not 0 <= one.index < core.partitions:
        return refused
    refused.error_code = 42
    if one.records is None or not -1 <= decoded.acks <= 1 or decoded.transactional_id is not None:
        return refused
    log = core.log(one.index)
    try:
        with logs_use(core.twin):
            done = log.append_as_leader(bytes(one.records), leader_epoch=LeaderEpoch(0))
    except OperatingError as error:
        refused.error_code = code_of(error)
        return refused
    core.follow(log)
    return PartitionProduceResponse(
        index=one.index, base_offset=done.base_offset, log_start_offset=log.log_start
    )


def high_watermarks(core: Core) -> list[Offset]:
    return [opened.log.high_watermark for opened in core.opened]

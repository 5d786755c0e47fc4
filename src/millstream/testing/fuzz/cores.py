"""The connection core with logs on a simulated disk, once compiled and once plain, for comparison.

Both get the same bytes, cut at the same places. What comes out must be the same: requests for
Python, answers, the error that closes the connection, and what is in the logs.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.kernels.errors import FrameError
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch, TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.model.limits import MIB
from millstream.storage.config import LogConfig
from millstream.storage.log import base as log_base
from millstream.storage.producers import machine as producers
from millstream.storage.producers import snapshot as producer_snapshot
from millstream.testing.log_kit import OpenedLog, open_log
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.clock import WALL_START_MS, ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitives import MalformedFrame

TOPIC: Final = "topic"
TOPIC_ID: Final = UUID(int=1)
PARTITIONS: Final = 2
NOW_MS: Final = WALL_START_MS
_CONFIG: Final = LogConfig(
    segment_bytes=MIB, index_interval_bytes=300, max_message_bytes=3_000, retention_ms=-1
)
_FRAME_BYTES_MAX: Final = 4 * MIB
_IN_FLIGHT_MAX: Final = 1_000
_PRODUCE_VERSIONS: Final = range(3, 14)
_OTHER_ANSWER: Final = b"\0\0\0\4othr"


def compiled_kernel(name: str) -> ModuleType | None:
    """None where it was not built; its source run interpreted is no twin."""
    spec = importlib.util.find_spec(f"millstream.kernels._compiled.{name}")
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    return importlib.import_module(spec.name)


def plain_kernel(name: str) -> ModuleType:
    return importlib.import_module(f"millstream.kernels._plain.{name}")


def twins_of(name: str) -> list[ModuleType]:
    """The compiled one first, if there is one."""
    found = compiled_kernel(name)
    return [plain_kernel(name)] if found is None else [found, plain_kernel(name)]


class CoreKernels(NamedTuple):
    """One implementation of the core."""

    slots: ModuleType
    connection: ModuleType


def core_twins() -> list[CoreKernels]:
    pairs = zip(twins_of("slots"), twins_of("connection"), strict=True)
    return [CoreKernels(*pair) for pair in pairs]


@contextmanager
def _logs_use(kernels: CoreKernels) -> Iterator[None]:
    """Logs that are opened inside have the slots and producers of this twin."""
    entry: Any = kernels.slots.ProducerEntry
    places: list[tuple[Any, str, Any]] = [
        (log_base, "LogSlot", kernels.slots.PartitionSlot),
        (producers, "ProducerEntry", entry),
        (producer_snapshot, "ProducerEntry", entry),
    ]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)


class FuzzedCore:
    """One connection, a table, and the logs of one topic."""

    def __init__(self, kernels: CoreKernels) -> None:
        self._kernels = kernels
        self._clock = ManualClock()
        disk = SimDisk(7, directories=[f"/data{index}" for index in range(PARTITIONS)])
        self._table: Any = kernels.slots.SlotTable(violation=InvariantViolated)
        self._opened = [self._open(disk, index) for index in range(PARTITIONS)]
        self._connection: Any = kernels.connection.Connection(
            self._table, frame_bytes_max=_FRAME_BYTES_MAX, in_flight_max=_IN_FLIGHT_MAX
        )
        self.seen: list[object] = []
        """All that a caller could tell the twins apart by."""
        self.is_closed = False

    def _open(self, disk: SimDisk, index: int) -> OpenedLog:
        with _logs_use(self._kernels):
            opened = open_log(
                disk,
                self._clock,
                _CONFIG,
                root=f"/data{index}",
                partition=TopicPartition(TOPIC, index),
            )
            log = opened.log
            log.start_leading(
                LeaderEpoch(0), after_write=lambda: log.set_high_watermark(log.log_end)
            )
            first = build_batch([(b"key", b"first")], BatchSpec(timestamp_ms=NOW_MS))
            log.append_as_leader(first, leader_epoch=LeaderEpoch(0))
        log.set_high_watermark(log.log_end)
        self._table.add(log.slot, topic=TOPIC.encode(), topic_id=TOPIC_ID.bytes, partition=index)
        return opened

    def receive(self, data: bytes) -> None:
        """As a shell does it: into the buffer, then everything that is whole is served."""
        rest = memoryview(data)
        while rest and not self.is_closed:
            room = self._connection.get_buffer(-1)
            size = min(len(room), len(rest))
            room[:size] = rest[:size]
            del room
            self._connection.received(size)
            rest = rest[size:]
            self._serve()

    def _serve(self) -> None:
        try:
            while (request := self._connection.next_request(self._clock.wall_ms())) is not None:
                self._write_staged()
                number, key, version, correlation_id, client_id, body = request
                self.seen.append((number, key, version, correlation_id, client_id, bytes(body)))
                if key == ApiKey.PRODUCE and version in _PRODUCE_VERSIONS:
                    self._produce(bytes(body), version)
                self._connection.answer(number, [_OTHER_ANSWER])
        except FrameError as error:
            self.seen.append(f"closed: {error.reason}")
            self.is_closed = True
        self._write_staged()
        self.seen.append(b"".join(bytes(part) for part in self._connection.take_output()))

    def _write_staged(self) -> None:
        self._table.write_staged(_code_of)

    def _produce(self, body: bytes, version: int) -> None:
        """The slow path, for what the core did not stage."""
        try:
            request = ProduceRequest.decode(body, version)
        except MalformedFrame:
            return
        for topic in request.topic_data:
            if topic.name != TOPIC and topic.topic_id != TOPIC_ID:
                continue
            for one in topic.partition_data:
                if one.index in range(PARTITIONS) and one.records is not None:
                    self._append(one.index, bytes(one.records))

    def _append(self, index: int, records: bytes) -> None:
        log = self._opened[index].log
        try:
            with _logs_use(self._kernels):
                done = log.append_as_leader(records, leader_epoch=LeaderEpoch(0))
        except OperatingError as error:
            self.seen.append(type(error).__name__)
            return
        log.set_high_watermark(log.log_end)
        self.seen.append(done.base_offset)

    def facts(self) -> list[object]:
        """The logs' state in the end."""
        return [
            (one.log.log_start, one.log.log_end, one.log.high_watermark, one.log.slot.position)
            for one in self._opened
        ]

    def close(self) -> None:
        self._connection.drop_output()
        for one in self._opened:
            one.abandon()


def _code_of(error: Exception) -> int:
    return 1 + sum(map(ord, type(error).__name__)) % 100

"""What is checked while a simulated broker runs: its answers, its limits, its files.

The answers are checked where they leave the broker, apart from its code and from the client's:
frames in, frames out (I-36). The limits are read from the broker's parts (I-37). The files are
compared before and after every end of the process: a kill loses nothing, a power loss at most what
was not flushed, and what is there afterwards is a prefix of what was there before (I-02, I-11).
"""

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from millstream.broker.broker import Broker
from millstream.model.ids import TopicPartition
from millstream.model.invariant import invariant
from millstream.model.limits import OPEN_FILES_MAX, REQUEST_MEMORY_BYTES
from millstream.runtime.disk import Disk
from millstream.testing.simulation.broker.process import Tap
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import decode_request_header
from millstream.wire.messages.produce import ProduceRequest

_SIZE: Final = Struct(">i")
_BATCH: Final = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""


class SimulationFailed(AssertionError):
    """The broker violated an invariant."""


def require(condition: object, message: str, **facts: object) -> None:
    """Fail the run unless the condition holds."""
    if not condition:
        details = ", ".join(f"{name}={value!r}" for name, value in facts.items())
        raise SimulationFailed(f"{message}: {details}")


# -- answers -----------------------------------------------------------------------------------


class _Due(NamedTuple):
    correlation_id: int
    api_key: int
    since_s: float


class AnswerWatch:
    """All connections of one broker."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.open: dict[AnswerTap, None] = {}
        self.answered = 0

    def tap(self) -> "AnswerTap":
        return AnswerTap(self)

    def overdue(self, *, limit_s: float) -> list[str]:
        """Requests on open connections that should have been answered by now."""
        since_s = self.now_s() - limit_s
        return [
            f"{ApiKey(one.api_key).name} {one.correlation_id}, {self.now_s() - one.since_s:.1f} s"
            for tap in self.open
            for one in tap.due
            if one.since_s < since_s
        ]


class AnswerTap(Tap):
    """One connection: every answer belongs to the oldest request that waits for one (I-36)."""

    def __init__(self, watch: AnswerWatch) -> None:
        self._watch = watch
        self._in = bytearray()
        self._out = bytearray()
        self._out_left = 0
        """Of the frame that is being written."""
        self.due: deque[_Due] = deque()
        watch.open[self] = None

    def received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= _SIZE.size:
            size = _SIZE.unpack_from(self._in)[0] + _SIZE.size
            if len(self._in) < size:
                return
            self._request(bytes(self._in[_SIZE.size : size]))
            del self._in[:size]

    def _request(self, frame: bytes) -> None:
        header, at = decode_request_header(memoryview(frame))
        if header.api_key == ApiKey.PRODUCE:
            request = ProduceRequest.decode(memoryview(frame)[at:], header.api_version)
            if request.acks == 0:
                return
        self.due.append(_Due(header.correlation_id, header.api_key, self._watch.now_s()))

    def sent(self, data: bytes) -> None:
        self._out += data
        while True:
            skipped = min(self._out_left, len(self._out))
            del self._out[:skipped]
            self._out_left -= skipped
            if self._out_left or len(self._out) < 2 * _SIZE.size:
                return
            self._out_left = _SIZE.unpack_from(self._out)[0] + _SIZE.size
            self._answer(_SIZE.unpack_from(self._out, _SIZE.size)[0])

    def _answer(self, correlation_id: int) -> None:
        invariant(bool(self.due), "I-36 an answer that no request waits for", answer=correlation_id)
        expected = self.due.popleft()
        invariant(
            expected.correlation_id == correlation_id,
            "I-36 an answer out of order",
            answer=correlation_id,
            expected=expected.correlation_id,
            api=ApiKey(expected.api_key).name,
        )
        self._watch.answered += 1

    def ended(self) -> None:
        self._watch.open.pop(self, None)


# -- limits ------------------------------------------------------------------------------------


def check_limits(broker: Broker, *, session_slots: int, connections_max: int) -> None:
    """I-37, and the numbers that must agree with each other."""
    sessions = broker.services.fetch_sessions
    require(len(sessions) <= session_slots, "I-37 too many fetch sessions", have=len(sessions))
    members = list(sessions._sessions.values())  # noqa: SLF001
    counted = sum(len(one.cursors) for one in members)
    require(
        counted == sessions.partition_count,
        "I-37 partitions of fetch sessions are counted wrongly",
        counted=counted,
        noted=sessions.partition_count,
    )
    server = broker.server
    require(server.connection_count <= connections_max, "I-37 too many connections")
    used = server.exchange.held.memory.used_bytes
    require(0 <= used <= REQUEST_MEMORY_BYTES, "I-37 memory of requests", used=used)
    files = broker.logs.files
    pins = sum(one._pins for one in files._ring)  # noqa: SLF001
    require(files.open_count <= max(OPEN_FILES_MAX, pins), "I-37 open files", have=files.open_count)
    for log in broker.logs:
        order = (log.log_start, log.last_stable_offset, log.high_watermark, log.log_end)
        require(list(order) == sorted(order), "I-05 ends out of order", ends=order)


def check_idle(broker: Broker) -> None:
    """No client is connected any more: nothing may be kept for one."""
    readers = [str(one.partition) for one in broker.partitions if one.readers]
    require(not readers, "I-42 fetches wait for clients that are gone", partitions=readers)
    pinned = [one.path for one in broker.logs.files._ring if one._pins]  # noqa: SLF001
    require(not pinned, "I-42 files are pinned without a reader", files=pinned)


# -- files -------------------------------------------------------------------------------------


class StoredBatch(NamedTuple):
    """What identifies a batch."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int


class StoredLog(NamedTuple):
    """One partition at one time, as the page cache has it."""

    topic_id: str
    log_start: int
    log_end: int
    flushed_end: int
    batches: list[StoredBatch]


def stored_logs(broker: Broker, disk: Disk) -> dict[TopicPartition, StoredLog]:
    """Every partition of a running broker."""
    return {
        log.partition: StoredLog(
            str(log.context.topic_id),
            log.log_start,
            log.log_end,
            log.recovery_point,
            _batches_in(disk, log.context.directory),
        )
        for log in broker.logs
    }


def _batches_in(disk: Disk, directory: str) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    for name in disk.list_directory(directory):
        if name.endswith(".log"):
            with disk.open_read(f"{directory}/{name}") as file:
                found += _batches_of(file.read_at(0, file.size()))
    return found


def _batches_of(data: bytes) -> list[StoredBatch]:
    found: list[StoredBatch] = []
    at = 0
    while len(data) - at >= _BATCH.size:
        base_offset, length, epoch, _, crc, _, delta = _BATCH.unpack_from(data, at)
        if length <= 0 or at + 12 + length > len(data):
            break
        found.append(StoredBatch(base_offset, base_offset + delta + 1, epoch, crc))
        at += 12 + length
    return found


def check_survivor(
    partition: TopicPartition, before: StoredLog, after: StoredLog, *, is_power_loss: bool
) -> None:
    """What a start found of a log that had ended without warning."""
    facts = {"partition": partition, "before": before[1:4], "after": after[1:4]}
    lowest = before.flushed_end if is_power_loss else before.log_end
    require(after.log_end >= lowest, "I-11 less than what had to survive", **facts)
    require(after.log_end <= before.log_end, "I-11 more than was written", **facts)
    start = max(before.log_start, after.log_start)
    was = [one for one in before.batches if start <= one.base_offset < after.log_end]
    now = [one for one in after.batches if one.base_offset >= start]
    require(was == now, "I-02 other batches than before", was=was[-3:], now=now[-3:], **facts)

"""Produce on the fast path, versions 3-13: the check and the answer; see `connection.pyi`.

No reason is given for the slow path: the handler in Python finds out itself.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.kernels._plain import batches, records
from millstream.kernels.batch_layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_OFFSET_AT,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    LAST_OFFSET,
    LEADER_EPOCH,
    LEADER_EPOCH_AT,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.kernels.request_layout import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ANSWER_ERROR_AT,
    FRAME_SIZE_BYTES,
    NULL_SIZE,
    PRODUCE_FLEXIBLE_FROM,
    PRODUCE_LOG_START_FROM,
    PRODUCE_RECORD_ERRORS_FROM,
    PRODUCE_TOPIC_IDS_FROM,
    PRODUCE_VERSION_MAX,
    PRODUCE_VERSION_MIN,
    TOPIC_ID_BYTES,
)

if TYPE_CHECKING:
    from array import array

    from millstream.kernels._plain.slots import PartitionSlot, SlotTable
    from millstream.kernels._plain.staging import ProducerEntry

VERSIONS: Final = range(PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX + 1)

_BATCH_BYTES_MAX: Final = 2**30
_TIME_MAX: Final = 2**61
"""Sums and differences of numbers inside this stay 64-bit; records beyond take the slow path."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_PARTITION: Final = Struct(">ihqq")  # index, error code, base offset, append time
_ACKS: Final = (ACKS_ALL, ACKS_NONE, ACKS_LEADER)


class NotEligible(Exception):
    """The request takes the slow path, whatever the reason."""


class CheckedBatch(NamedTuple):
    """One partition's batch, checked."""

    slot: PartitionSlot
    start: int
    stop: int
    row: array[int]
    entry: ProducerEntry | None

    def stamp(
        self, data: memoryview, *, position: int, base_offset: int, slot: PartitionSlot
    ) -> array[int]:
        """Write offset and epoch into the batch; returns its row."""
        row = self.row
        row[POSITION] = position
        row[BASE_OFFSET], row[LAST_OFFSET] = base_offset, base_offset + row[RECORD_COUNT] - 1
        row[LEADER_EPOCH] = slot.leader_epoch
        _OFFSET.pack_into(data, BASE_OFFSET_AT, base_offset)
        _EPOCH.pack_into(data, LEADER_EPOCH_AT, slot.leader_epoch)
        return row


class CheckedTopic(NamedTuple):
    """A topic as the request names it, and its partitions in the request's order."""

    name_or_id: bytes
    batches: list[tuple[int, CheckedBatch]]


class CheckedProduce(NamedTuple):
    """A request that can be staged."""

    acks: int
    timeout_ms: int
    topics: list[CheckedTopic]


class _Reader:
    """Reads a body field by field; a missing byte raises NotEligible."""

    def __init__(self, view: memoryview, version: int) -> None:
        self.view = view
        self.at = 0
        self.is_flexible = version >= PRODUCE_FLEXIBLE_FROM

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self.view) - self.at:
            raise NotEligible
        self.at += size
        return self.view[self.at - size : self.at]

    def number(self, form: Struct) -> int:
        return int(form.unpack(self.take(form.size))[0])

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            (byte,) = self.take(1)
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise NotEligible

    def size(self, form: Struct) -> int:
        """Of a string, bytes or an array; NULL_SIZE for null."""
        return self.varint() - 1 if self.is_flexible else self.number(form)

    def tags(self) -> None:
        if self.is_flexible and self.varint() != 0:
            raise NotEligible  # Python handles unknown ones


def check(table: SlotTable, body: memoryview, version: int, wall_ms: int) -> CheckedProduce | None:
    """The request if the fast path takes it in every partition; changes nothing."""
    table.requests_checked += 1
    reader = _Reader(body, version)
    try:
        if reader.size(_INT16) != NULL_SIZE:  # a transactional id
            return None
        acks, timeout_ms = reader.number(_INT16), reader.number(_INT32)
        topics = [_topic(table, reader, version, acks) for _ in range(reader.size(_INT32))]
        reader.tags()
        if acks not in _ACKS or not topics or reader.at != len(body):
            return None
        for topic in topics:
            for _, batch in topic.batches:
                _check_batch(body, batch, wall_ms)
    except NotEligible:
        return None
    return CheckedProduce(acks, timeout_ms, topics)


def _topic(table: SlotTable, reader: _Reader, version: int, acks: int) -> CheckedTopic:
    is_by_id = version >= PRODUCE_TOPIC_IDS_FROM
    name = bytes(reader.take(TOPIC_ID_BYTES if is_by_id else reader.size(_INT16)))
    found = []
    for _ in range(reader.size(_INT32)):
        partition = reader.number(_INT32)
        slot = table.find_by_id(name, partition) if is_by_id else table.find(name, partition)
        size = reader.size(_INT32)
        start = reader.at
        data = reader.take(size)
        reader.tags()
        if slot is None or slot.seen_by == table.requests_checked or slot.failure is not None:
            raise NotEligible
        slot.seen_by = table.requests_checked
        if (
            not slot.allows_fast_path
            or slot.leader_epoch < 0
            or (acks == ACKS_ALL and not slot.allows_fast_path_acks_all)
        ):
            raise NotEligible
        found.append((partition, _batch(slot, data, start)))
    reader.tags()
    if not found:
        raise NotEligible
    return CheckedTopic(name, found)


def _batch(slot: PartitionSlot, data: memoryview, start: int) -> CheckedBatch:
    """The only batch in `data`, as far as the header allows a decision."""
    rows, _, reason = batches.walk(data, 0, len(data), check_crc=True, size_max=_BATCH_BYTES_MAX)
    if reason or len(rows) != ROW_FIELDS or len(data) > slot.message_bytes_max:
        raise NotEligible
    count = rows[RECORD_COUNT]
    # Producers count their offsets from 0.
    if rows[BASE_OFFSET] or rows[ATTRIBUTES] or not count or rows[LAST_OFFSET] + 1 != count:
        raise NotEligible
    if not slot.has_room_for(records=count, size_bytes=len(data)):
        raise NotEligible
    entry = None
    if rows[PRODUCER_ID] >= 0:
        entry = slot.producers.get(rows[PRODUCER_ID])
        if (
            entry is None
            or entry.epoch != rows[PRODUCER_EPOCH]
            or entry.epoch < 0
            or entry.transaction_first_offset >= 0
            or rows[BASE_SEQUENCE] < 0
            or not entry.expects(rows[BASE_SEQUENCE], slot.round)
        ):
            raise NotEligible
    return CheckedBatch(slot, start, start + len(data), rows, entry)


def _check_batch(body: memoryview, batch: CheckedBatch, wall_ms: int) -> None:
    """Every record, and the timestamps, which only the records have."""
    slot, row = batch.slot, batch.row
    reason, lowest, highest, _, null_keys = records.inspect(
        body, batch.start + HEADER_BYTES, batch.stop, row[RECORD_COUNT], contiguous=True
    )
    base, newest = row[BASE_TIMESTAMP], row[MAX_TIMESTAMP]
    if reason or (null_keys and slot.needs_key):
        raise NotEligible
    if any(abs(number) > _TIME_MAX for number in (base, lowest, highest)):
        raise NotEligible
    if (
        newest != base + highest
        or newest - wall_ms > slot.timestamp_after_max_ms
        or wall_ms - base - lowest > slot.timestamp_before_max_ms
        or newest > slot.roll_timestamp_ms
    ):
        raise NotEligible


def encode_answer(
    correlation_id: int, version: int, topics: list[tuple[bytes, list[tuple[int, int, int]]]]
) -> tuple[bytearray, list[int]]:
    """The response frame, and for each partition where its error code is.

    A partition is (index, base offset, log start). That position is negative where no log start
    follows, so that an error knows what to overwrite.
    """
    is_flexible = version >= PRODUCE_FLEXIBLE_FROM
    out = bytearray(FRAME_SIZE_BYTES) + _INT32.pack(correlation_id) + b"\0" * is_flexible
    errors_at = []
    out += _size(len(topics), is_flexible)
    for name, partitions in topics:
        if version < PRODUCE_TOPIC_IDS_FROM:
            out += _size(len(name), is_flexible) if is_flexible else _INT16.pack(len(name))
        out += name
        out += _size(len(partitions), is_flexible)
        for index, base_offset, log_start in partitions:
            at = len(out) + ANSWER_ERROR_AT
            out += _PARTITION.pack(index, 0, base_offset, -1)
            if version >= PRODUCE_LOG_START_FROM:
                out += _OFFSET.pack(log_start)
            errors_at.append(at if version >= PRODUCE_LOG_START_FROM else -at)
            if version >= PRODUCE_RECORD_ERRORS_FROM:  # no record errors, no message, no tags
                out += b"\1\0\0" if is_flexible else b"\0\0\0\0\xff\xff"
        out += b"\0" * is_flexible
    out += b"\0\0\0\0" + b"\0" * is_flexible  # not throttled
    _INT32.pack_into(out, 0, len(out) - FRAME_SIZE_BYTES)
    return out, errors_at


def _size(count: int, is_flexible: bool) -> bytes:  # noqa: FBT001
    if not is_flexible:
        return _INT32.pack(count)
    rest, out = count + 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)

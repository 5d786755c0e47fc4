"""What slots keep: producers, and requests between their check and their answer; `slots.pyi`."""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final

from millstream.kernels.batch_layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CONTROL,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_EPOCH,
    RECORD_COUNT,
    ROW_FIELDS,
    SEQUENCE_MASK,
    SIZE,
    TRANSACTIONAL,
)
from millstream.kernels.request_layout import (
    ACKS_NONE,
    ANSWER_ERROR_AT,
    ANSWER_LOG_START_AT,
)

if TYPE_CHECKING:
    from array import array

    from millstream.kernels._plain.connection import Connection
    from millstream.kernels._plain.slots import PartitionSlot

BATCHES_KEPT: Final = 5

_NONE_YET: Final = -1
_NEVER_STAGED: Final = -2
"""A round that no slot has: nothing is staged while Python appends a batch."""
_ERROR_AND_BASE: Final = Struct(">hq")
_LOG_START: Final = Struct(">q")
_LOG_START_AFTER: Final = ANSWER_LOG_START_AT - ANSWER_ERROR_AT
"""From the error code on: base offset and append time come first."""
_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


class ProducerEntry:
    """See the stub."""

    __slots__ = (
        "_kept",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "staged_round",
        "staged_sequence",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = _NONE_YET
        self.last_timestamp_ms = _NONE_YET
        self.transaction_first_offset = _NONE_YET
        self._kept: deque[tuple[int, int, int, int, int]] = deque(maxlen=BATCHES_KEPT)
        self.staged_round = _NONE_YET
        """The slot's round in which `staged_sequence` was the last that was staged."""
        self.staged_sequence = _NONE_YET

    @property
    def batches(self) -> list[tuple[int, int, int, int, int]]:
        return list(self._kept)

    @property
    def last_sequence(self) -> int:
        return self._kept[-1][1] if self._kept else _NONE_YET

    @property
    def last_offset(self) -> int:
        return self._kept[-1][3] if self._kept else _NONE_YET

    def start_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self._kept.clear()

    def keep(
        self,
        first_sequence: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
    ) -> None:
        self._kept.append((first_sequence, last_sequence, base_offset, last_offset, timestamp_ms))

    def is_next(self, rows: array[int], at: int) -> bool:
        _check_row(rows, at)
        return (
            rows[at + PRODUCER_EPOCH] == self.epoch >= 0
            and rows[at + BASE_SEQUENCE] >= 0
            and bool(self.transaction_first_offset < 0 or rows[at + ATTRIBUTES] & TRANSACTIONAL)
            and self.expects(rows[at + BASE_SEQUENCE], _NEVER_STAGED)
        )

    def take(self, rows: array[int], at: int) -> bool:
        _check_row(rows, at)
        sequence, attributes = rows[at + BASE_SEQUENCE], rows[at + ATTRIBUTES]
        first, last = rows[at + BASE_OFFSET], rows[at + LAST_OFFSET]
        is_begun = attributes & TRANSACTIONAL and self.transaction_first_offset < 0
        if rows[at + PRODUCER_EPOCH] != self.epoch or is_begun or attributes & CONTROL:
            return False
        if sequence < 0 or not self.last_offset < first <= last:
            return False
        if self.last_sequence >= 0 and sequence != (self.last_sequence + 1) & SEQUENCE_MASK:
            return False
        stamp_ms = rows[at + MAX_TIMESTAMP]
        self.keep(sequence, last_sequence_of(sequence, last - first + 1), first, last, stamp_ms)
        self.last_timestamp_ms = stamp_ms
        return True

    def forget_batches(self) -> None:
        self._kept.clear()

    def expects(self, base_sequence: int, staged_round: int) -> bool:
        """Whether a batch is certainly the next one, counting what is staged."""
        if any(kept[0] == base_sequence for kept in self._kept):
            return False  # may be a retry
        last = self.last_sequence
        if self.staged_round == staged_round:
            last = self.staged_sequence
        return base_sequence == (last + 1) & SEQUENCE_MASK


class Staged:
    """A produce request on its way: the answer is made, its write is not."""

    __slots__ = ("acks", "answer", "connection", "deadline_ms", "number", "partitions", "waits_for")

    def __init__(self, connection: Connection, number: int, acks: int, deadline_ms: int) -> None:
        self.connection = connection
        self.number = number
        self.acks = acks
        self.deadline_ms = deadline_ms
        self.answer = bytearray()
        self.partitions: list[tuple[PartitionSlot, int, int]] = []
        """Slot, where its error code is in the answer (-1: no log start follows), end offset."""
        self.waits_for = 0

    def refuse(self, at: int, code: int) -> None:
        """Turn the partition at `at` of the answer into an error."""
        if self.acks == ACKS_NONE:
            return
        _ERROR_AND_BASE.pack_into(self.answer, abs(at), code, -1)
        if at > 0:
            _LOG_START.pack_into(self.answer, at + _LOG_START_AFTER, -1)

    def release_one(self) -> None:
        self.waits_for -= 1
        if self.waits_for == 0:
            self.connection.release(self.number, self.answer)


def _check_row(rows: array[int], at: int) -> None:
    if rows.itemsize != 8 or not 0 <= at <= len(rows) - ROW_FIELDS:
        raise ValueError("rows must be an array('q') with a whole row there")


def index_steps(
    rows: array[int],
    offset_entries: bytearray,
    time_entries: bytearray,
    *,
    shift: int,
    base_offset: int,
    interval_bytes: int,
    since: tuple[int, int, int],
) -> tuple[int, int, int]:
    since_bytes, newest_ms, newest_offset = since
    for row in range(0, len(rows), ROW_FIELDS):
        if rows[row + MAX_TIMESTAMP] > newest_ms and rows[row + RECORD_COUNT]:
            newest_ms, newest_offset = rows[row + MAX_TIMESTAMP], rows[row + LAST_OFFSET]
        if since_bytes > interval_bytes:
            relative, position = rows[row + LAST_OFFSET] - base_offset, rows[row + POSITION] + shift
            if relative < 0 or position < 0:
                raise ValueError(f"offset {relative} and position {position} of a segment")
            offset_entries += _OFFSET_ENTRY.pack(relative, position)
            _add_time(time_entries, newest_ms, newest_offset - base_offset)
            since_bytes = 0
        since_bytes += rows[row + SIZE]
    return since_bytes, newest_ms, newest_offset


def _add_time(entries: bytearray, stamp_ms: int, relative: int) -> None:
    newest = _TIME_ENTRY.unpack(entries[-_TIME_ENTRY.size :]) if entries else (_NONE_YET, _NONE_YET)
    if stamp_ms > newest[0] and relative > newest[1]:
        entries += _TIME_ENTRY.pack(stamp_ms, relative)


def last_sequence_of(base_sequence: int, count: int) -> int:
    return (base_sequence + count - 1) & SEQUENCE_MASK

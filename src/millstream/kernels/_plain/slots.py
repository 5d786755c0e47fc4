"""Partitions and producers as numbers, and the table of partitions; see `slots.pyi`.

Written apart from the compiled twin, so that an error in one shows against the other.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from millstream.kernels._plain.staging import (
    BATCHES_KEPT,
    ProducerEntry,
    Staged,
    index_steps,
    last_sequence_of,
)
from millstream.kernels.batch_layout import (
    BASE_OFFSET,
    BASE_SEQUENCE,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.kernels.outcomes import NOT_AT_TAIL, NOTHING_NEW
from millstream.kernels.request_layout import ACKS_ALL, ACKS_NONE

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.kernels._plain.connection import Connection
    from millstream.kernels._plain.produce import CheckedBatch
    from millstream.kernels.slot_owner import SlotOwner

__all__ = [
    "BATCHES_KEPT",
    "ENDS_KEPT",
    "NOTHING_NEW",
    "NOT_AT_TAIL",
    "NO_LIMIT",
    "PartitionSlot",
    "ProducerEntry",
    "SlotTable",
    "index_steps",
]

NO_LIMIT: Final = 2**63 - 1
ENDS_KEPT: Final = 16

_NOT_LED: Final = -1
_INDEX_ENTRY_BYTES: Final = 8
"""Each batch may add one; the segment rolls before an append that finds its index full."""


class PartitionSlot:
    """See the stub."""

    def __init__(self, owner: SlotOwner) -> None:
        self.owner = owner
        self.producers: dict[int, ProducerEntry] = {}
        self.log_start = self.log_end = self.high_watermark = 0
        self.leader_epoch = _NOT_LED
        self.position = self.position_max = self.offset_max = 0
        self.message_bytes_max = self.batches_max = 0
        self.timestamp_after_max_ms = self.timestamp_before_max_ms = NO_LIMIT
        self.roll_timestamp_ms = NO_LIMIT
        self.needs_key = self.allows_fast_path = self.allows_fast_path_acks_all = False
        self.bytes_in = self.records_in = 0
        self.tail_file: Any = None
        self.is_decided = False
        self._ends: dict[int, int] = {}
        """Positions by the offset from which on they were written, oldest first."""
        self.round = 0
        """Grows when what is staged is written or dropped: staged sequences are void then."""
        self.failure: Exception | None = None
        self.seen_by = -1
        """Serial number of the last request that was checked: no partition comes twice in one."""
        self._records = 0
        self._bytes = 0
        self._rows = array("q")
        self._buffers: list[bytes | bytearray | memoryview] = []
        self._entries: list[ProducerEntry | None] = []
        self._waiting: deque[tuple[int, Staged, int]] = deque()
        """End offset, request, and where the partition is in its answer; ends grow."""

    @property
    def staged_end(self) -> int:
        return self.log_end + self._records

    @property
    def staged_bytes(self) -> int:
        return self._bytes

    @property
    def staged_rows(self) -> array[int]:
        return self._rows

    @property
    def staged_buffers(self) -> list[bytes | bytearray | memoryview]:
        return self._buffers

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def has_room_for(self, *, records: int, size_bytes: int) -> bool:
        """Whether the active segment takes one more batch without a roll."""
        return (
            self._bytes + size_bytes + self.position <= self.position_max
            and self.staged_end + records - 1 <= self.offset_max
            and len(self._entries) < self.batches_max
        )

    def stage(self, batch: CheckedBatch, data: memoryview) -> int:
        """Take a checked batch, stamped with the offsets it will have; returns the base offset."""
        base_offset = self.staged_end
        row = batch.stamp(data, position=self._bytes, base_offset=base_offset, slot=self)
        self._rows.extend(row)
        self._buffers.append(data)
        self._entries.append(batch.entry)
        self._bytes += len(data)
        self._records += row[RECORD_COUNT]
        if batch.entry is not None:
            batch.entry.staged_round = self.round
            batch.entry.staged_sequence = last_sequence_of(row[BASE_SEQUENCE], row[RECORD_COUNT])
        return base_offset

    def write_staged(self) -> None:
        if not self._entries:
            return
        try:
            self.owner.write_staged()
        except Exception as error:  # noqa: BLE001 - `code_of_error` gets it
            self.failure = error
            self.drop_staged()

    def apply_staged(self) -> None:
        rows = self._rows
        for number, entry in enumerate(self._entries):
            base_offset, last_offset, _, _, _, timestamp_ms, _, _, sequence, count = rows[
                number * ROW_FIELDS + BASE_OFFSET : (number + 1) * ROW_FIELDS
            ]
            if entry is not None:
                last = last_sequence_of(sequence, count)
                entry.keep(sequence, last, base_offset, last_offset, timestamp_ms)
                entry.last_timestamp_ms = timestamp_ms
        self.bytes_in += self._bytes
        self.records_in += self._records
        self.position += self._bytes
        self.log_end += self._records
        self.drop_staged()

    def drop_staged(self) -> None:
        self.round += 1
        self._records = self._bytes = 0
        # New ones: the log may still hold the old.
        self._rows, self._buffers, self._entries = array("q"), [], []

    def takes(self, last_offset: int, size_bytes: int, timestamp_ms: int) -> bool:
        return (
            self.position + size_bytes <= self.position_max
            and last_offset <= self.offset_max
            and self.batches_max > 0
            and timestamp_ms <= self.roll_timestamp_ms
        )

    def follow(self, log_end: int, position: int, index_room_bytes: int) -> None:
        self.log_end, self.position = log_end, position
        self.batches_max = max(0, -(-index_room_bytes // _INDEX_ENTRY_BYTES))
        self._ends[log_end] = position
        if len(self._ends) > ENDS_KEPT:
            del self._ends[next(iter(self._ends))]

    def forget_tail(self) -> None:
        self.tail_file = None
        self._ends.clear()

    def tail(self, offset: int, size_max: int) -> int:
        return (
            self.end_tail(offset, size_max) if self.high_watermark == self.log_end else NOT_AT_TAIL
        )

    def end_tail(self, offset: int, size_max: int) -> int:
        if offset < self.log_start:
            return NOT_AT_TAIL
        if offset == self.log_end:
            return NOTHING_NEW
        position = self._ends.get(offset) if self.tail_file is not None else None
        if position is None or not 0 < self.position - position <= size_max:
            return NOT_AT_TAIL
        return position

    def wait(self, end_offset: int, staged: Staged, at: int) -> None:
        staged.waits_for += 1
        self._waiting.append((end_offset, staged, at))

    def advance_high_watermark(self, offset: int) -> None:
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        while self._waiting and self._waiting[0][0] <= offset:
            self._waiting.popleft()[1].release_one()

    def fail_waiting(self, error_code: int) -> int:
        return self._refuse_waiting(error_code, lambda _: True)

    def expire_waiting(self, wall_ms: int, error_code: int) -> int:
        return self._refuse_waiting(error_code, lambda staged: staged.deadline_ms <= wall_ms)

    def _refuse_waiting(self, error_code: int, is_due: Callable[[Staged], bool]) -> int:
        due = [one for one in self._waiting if is_due(one[1])]
        self._waiting = deque(one for one in self._waiting if not is_due(one[1]))
        for _, staged, at in due:
            staged.refuse(at, error_code)
            staged.release_one()
        return len(due)


class SlotTable:
    """See the stub."""

    def __init__(self, *, violation: type[BaseException]) -> None:
        self.violation = violation
        self.produce_requests = self.produce_errors = 0
        self.produce_bytes_in = self.produce_bytes_out = 0
        self.requests_checked = 0
        self._by_key: dict[tuple[bytes, int], PartitionSlot] = {}
        """By name and by id: an id has 16 bytes, a name of as many differs by its prefix."""
        self._requests: list[Staged] = []
        self._ready: dict[Connection, None] = {}
        self._failed: dict[Connection, None] = {}

    @property
    def staged(self) -> int:
        return len(self._requests)

    def add(self, slot: PartitionSlot, *, topic: bytes, topic_id: bytes, partition: int) -> None:
        self._by_key[b"n" + topic, partition] = slot
        if topic_id:
            self._by_key[b"i" + topic_id, partition] = slot

    def remove(self, slot: PartitionSlot, *, topic: bytes, topic_id: bytes, partition: int) -> None:
        for key in (b"n" + topic, b"i" + topic_id):
            if self._by_key.get((key, partition)) is slot:
                del self._by_key[key, partition]

    def find(self, topic: bytes, partition: int) -> PartitionSlot | None:
        return self._by_key.get((b"n" + topic, partition))

    def find_by_id(self, topic_id: bytes, partition: int) -> PartitionSlot | None:
        return self._by_key.get((b"i" + topic_id, partition))

    def stage(self, staged: Staged) -> None:
        self._requests.append(staged)
        self.produce_requests += 1

    def write_staged(self, code_of_error: Callable[[Exception], int]) -> None:
        slots = {slot: None for request in self._requests for slot, _, _ in request.partitions}
        for slot in slots:
            slot.write_staged()
        codes = {
            slot: int(code_of_error(slot.failure)) for slot in slots if slot.failure is not None
        }
        for slot in codes:
            slot.failure = None
        requests, self._requests = self._requests, []
        for request in requests:
            self._finish(request, codes)

    def _finish(self, request: Staged, codes: dict[PartitionSlot, int]) -> None:
        request.waits_for = 1  # nothing is released before all its partitions are checked
        for slot, at, end_offset in request.partitions:
            if slot in codes:
                self.produce_errors += 1
                request.refuse(at, codes[slot])
            elif request.acks == ACKS_ALL and slot.high_watermark < end_offset:
                slot.wait(end_offset, request, at)
        if request.acks == ACKS_NONE and any(slot in codes for slot, _, _ in request.partitions):
            self._failed[request.connection] = None
        request.release_one()

    def note_ready(self, connection: Connection) -> None:
        self._ready[connection] = None

    def take_ready(self) -> list[Connection]:
        ready, self._ready = self._ready, {}
        return list(ready)

    def take_failed(self) -> list[Connection]:
        failed, self._failed = self._failed, {}
        return list(failed)

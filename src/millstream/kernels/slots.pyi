"""Partitions and producers as numbers, and the table of partitions. For both twins.

A `PartitionSlot` holds the numbers of one log that every produce request needs; the log owns it
and reads and writes the same numbers, so there is one truth. The connection core stages batches
into slots; `SlotTable.write_staged` lets each log write what was staged, then releases the answers.
"""

from array import array
from collections.abc import Callable
from typing import Any, Final

from millstream.kernels.connection import Connection
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

BATCHES_KEPT: Final = 5
ENDS_KEPT: Final = 16
NOT_AT_TAIL: Final = -1
NOTHING_NEW: Final = -2
NO_LIMIT: Final = 9_223_372_036_854_775_807

class ProducerEntry:
    """One producer's state in one partition: the newest few batches of its epoch."""

    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_timestamp_ms: int
    transaction_first_offset: int

    def __init__(self, producer_id: int, epoch: int) -> None: ...
    @property
    def batches(self) -> list[tuple[int, int, int, int, int]]:
        """First and last sequence, base and last offset, timestamp; oldest first. A copy."""

    @property
    def last_sequence(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    def start_epoch(self, epoch: int) -> None:
        """Sequences start again: batches of another epoch say nothing about them."""

    def keep(
        self,
        first_sequence: int,
        last_sequence: int,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
    ) -> None:
        """Remember one more batch; the oldest goes when there are too many."""

    def is_next(self, rows: array[int], at: int) -> bool:
        """Whether the walked batch in the row at `at` is certainly the producer's next one.

        False: it may be that, a retry or wrong. Nothing must be staged.
        """

    def take(self, rows: array[int], at: int) -> bool:
        """Follow the batch in the row, which is in the log. False, and nothing done, where that
        takes more than remembering the batch: another epoch, sequences that start again, a
        transaction's first batch or marker, or something impossible.
        """

    def forget_batches(self) -> None: ...

class PartitionSlot:
    """The numbers of one partition. See `storage/log/slot.py` for how a log keeps them."""

    owner: SlotOwner
    producers: dict[int, ProducerEntry]

    log_start: int
    log_end: int
    high_watermark: int
    """Set it where no request waits for it; `advance_high_watermark` releases those that do."""
    leader_epoch: int
    """-1: this broker does not lead the partition."""

    position: int
    """Bytes in the active segment."""
    position_max: int
    offset_max: int
    """The last offset that the active segment can address."""
    message_bytes_max: int
    batches_max: int
    """Batches that can be staged at once, whatever they make of the segment's index."""
    timestamp_after_max_ms: int
    timestamp_before_max_ms: int
    roll_timestamp_ms: int
    """A batch with a later max timestamp makes the segment roll."""
    needs_key: bool
    allows_fast_path: bool
    """Whether appends may take the fast path."""
    allows_fast_path_acks_all: bool
    """Whether appends with acks=-1 may, too."""

    tail_file: Any
    """The active segment's file while `tail` may be called; the log sets and withdraws it."""
    is_decided: bool
    """No transaction is undecided, and none with records in the active segment was aborted."""

    bytes_in: int
    records_in: int

    def __init__(self, owner: SlotOwner) -> None: ...
    @property
    def staged_end(self) -> int:
        """The log end once everything staged is written."""

    @property
    def staged_bytes(self) -> int: ...
    @property
    def staged_rows(self) -> array[int]:
        """As `kernels.batches` has them; positions count from the first staged byte."""

    @property
    def staged_buffers(self) -> list[bytes | bytearray | memoryview]:
        """What to write, in order, at `position`."""

    @property
    def waiting(self) -> int:
        """Requests with acks=-1 that wait for the high watermark."""

    def takes(self, last_offset: int, size_bytes: int, timestamp_ms: int) -> bool:
        """Whether the active segment takes this append of the slow path without a roll,
        checking only the limits; nothing is staged then.
        """

    def follow(self, log_end: int, position: int, index_room_bytes: int) -> None:
        """What is appended next begins at `position`, with an offset of `log_end` or more.

        `index_room_bytes`: what the segment's offset index may still grow by before it rolls.
        """

    def forget_tail(self) -> None:
        """Known positions are void: the segment rolls, is cut or moves."""

    def tail(self, offset: int, size_max: int) -> int:
        """Where in `tail_file` the batches from `offset` to the log's end begin.

        NOTHING_NEW when the log ends there. NOT_AT_TAIL when that is not known, when it is more
        than `size_max`, or when the high watermark is not the log's end.
        """

    def end_tail(self, offset: int, size_max: int) -> int:
        """The same wherever the high watermark is: for followers, which see everything."""

    def write_staged(self) -> None:
        """Write what is staged, now. An error is kept for the requests, until the next write."""

    def apply_staged(self) -> None:
        """The staged batches are in the file: follow them in all numbers and producers."""

    def drop_staged(self) -> None:
        """The staged batches are not in the file and never will be."""

    def advance_high_watermark(self, offset: int) -> None:
        """Raise it (a lower offset changes nothing) and release the answers it covers."""

    def fail_waiting(self, error_code: int) -> int:
        """Answer every waiting request with an error: leadership is lost. Returns how many."""

    def expire_waiting(self, wall_ms: int, error_code: int) -> int:
        """The same for the requests whose own time limit has passed."""

class SlotTable:
    """All partitions that this broker leads, by name and by id, and what an iteration staged."""

    produce_requests: int
    """Requests that were answered without Python; the next three count the same ones."""
    produce_bytes_in: int
    produce_bytes_out: int
    produce_errors: int

    def __init__(self, *, violation: type[BaseException]) -> None:
        """`violation` is raised for our own bugs: kernels do not know the model's class."""

    @property
    def staged(self) -> int:
        """Requests that wait for `write_staged`."""

    def add(self, slot: PartitionSlot, *, topic: bytes, topic_id: bytes, partition: int) -> None:
        """Let produce requests find the slot. Empty `topic_id`: by name only."""

    def remove(self, slot: PartitionSlot, *, topic: bytes, topic_id: bytes, partition: int) -> None:
        """Remove it; no error if the table has another slot for the partition, or none."""

    def find(self, topic: bytes, partition: int) -> PartitionSlot | None: ...
    def find_by_id(self, topic_id: bytes, partition: int) -> PartitionSlot | None: ...
    def write_staged(self, code_of_error: Callable[[Exception], int]) -> None:
        """Let every log write what was staged for it, then release the answers.

        Where a log fails, exactly its batches are dropped and answered with the error's code.
        """

    def take_ready(self) -> list[Connection]:
        """Connections that got output since the last call."""

    def take_failed(self) -> list[Connection]:
        """Connections to be closed: a request with acks=0 failed, which has no other answer."""

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
    """Add to a segment's indexes what walked batches give them; `shift` turns a row's position
    into the file's.

    `since`, and what is returned: the bytes since the last entry, the largest timestamp so far and
    the last offset of its batch. Raises ValueError for what a segment cannot address.
    """

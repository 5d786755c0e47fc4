"""A record batch on its way to a partition: its bytes, its place in the order, its outcome."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.kernels.columns import (
    COLUMN_BYTES_MAX,
    BatchOptions,
    DecodeOptions,
    RecordColumns,
    decode,
    encode,
    encode_many,
)
from millstream.kernels.crc import crc32c, shift_difference
from millstream.model.ids import (
    NO_OFFSET,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TopicPartition,
)

if TYPE_CHECKING:
    from millstream.client.errors import ClientError
    from millstream.client.retries import Failure

_PRODUCER: Final = Struct(">qhi")
"""Producer id, epoch and base sequence as they stand in a batch's header."""
_PRODUCER_AT: Final = 43
_PRODUCER_END: Final = 57
_BASE_OFFSET: Final = bytes(8)
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_SEQUENCES: Final = 2**31


class Identity(NamedTuple):
    """Who writes, as brokers tell writers apart."""

    producer_id: ProducerId
    epoch: ProducerEpoch


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Source(NamedTuple):
    """Which calls brought rows, so that an error can name one as it came."""

    writes: tuple[int, ...]
    """Their numbers, from 1."""
    starts: tuple[int, ...]
    """Where the rows of each begin; below zero when it began before."""

    def place(self, row: int) -> tuple[int, int]:
        """The number of the write, and of the row in it."""
        index = bisect_right(self.starts, row) - 1
        return self.writes[index], row - self.starts[index]


class Origin(NamedTuple):
    """Where the rows of a batch come from."""

    source: Source
    rows: memoryview | range
    """Their numbers."""

    def part(self, start: int, stop: int) -> Origin:
        return Origin(self.source, self.rows[start:stop])

    @property
    def place(self) -> tuple[int, int] | None:
        """Of the first row: the number of the write, and of the row in it."""
        return self.source.place(self.rows[0]) if len(self.rows) else None

    def __str__(self) -> str:
        place = self.place
        return "no row" if place is None else f"row {place[1]} of write {place[0]}"


class Batch:
    """One batch. Plain numbers: there is one for every few hundred kilobytes."""

    __slots__ = (
        "data",
        "deadline_s",
        "error",
        "identity",
        "is_done",
        "last",
        "may_be_stored",
        "offset",
        "order",
        "origin",
        "partition",
        "row_count",
        "sent_s",
        "sequence",
        "was_sent",
    )

    def __init__(
        self, partition: TopicPartition, data: bytearray, row_count: int, origin: Origin
    ) -> None:
        self.partition = partition
        # Encoded together with others it counts on from them; brokers want each to begin at 0.
        data[: len(_BASE_OFFSET)] = _BASE_OFFSET
        self.data = data
        self.row_count = row_count
        self.origin = origin
        self.deadline_s = float("inf")
        self.order = (0, 0)
        """Among the batches of its partition; parts of one batch differ in the second number."""
        self.identity = NO_IDENTITY
        self.sequence = NO_SEQUENCE
        self.was_sent = False
        self.sent_s = float("-inf")
        """When the last attempt began."""
        self.may_be_stored = False
        """An attempt had no answer, or one that leaves it open."""
        self.last: Failure | None = None
        """What the last attempt met."""
        self.is_done = False
        self.offset = NO_OFFSET
        """Of its first record, when it was stored and the broker told."""
        self.error: ClientError | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def last_offset(self) -> Offset:
        return Offset(self.offset + self.row_count - 1) if self.offset >= 0 else NO_OFFSET

    def give(self, identity: Identity, sequence: Sequence) -> None:
        """Write as whom, and in which place, into the bytes; the checksum covers both."""
        if (identity, sequence) == (self.identity, self.sequence):
            return
        if self.was_sent:
            # A transport may still hold the bytes of an earlier attempt.
            self.data = bytearray(self.data)
        self.identity, self.sequence = identity, sequence
        before = self.data[_PRODUCER_AT:_PRODUCER_END]
        _PRODUCER.pack_into(self.data, _PRODUCER_AT, *identity, sequence)
        # The records left the processor's caches when they were made: summing them up again would
        # cost more than anything else here. And the sum stays that of what was made, should the
        # bytes be damaged in memory meanwhile.
        difference = crc32c(before) ^ crc32c(self.data[_PRODUCER_AT:_PRODUCER_END])
        (crc,) = _CRC.unpack_from(self.data, _CRC_AT)
        crc ^= shift_difference(difference, len(self.data) - _PRODUCER_END)
        _CRC.pack_into(self.data, _CRC_AT, crc)


def sequence_after(sequence: int, row_count: int) -> Sequence:
    """Sequences wrap from the largest int32 to zero."""
    return Sequence((sequence + row_count) % _SEQUENCES)


def split(batch: Batch, options: BatchOptions) -> list[Batch]:
    """Smaller batches with the same records, in order; each has at least one.

    They continue each other's sequences, so whatever follows the batch keeps its own.
    """
    decoded = decode(
        batch.data,
        0,
        len(batch.data),
        DecodeOptions(check_crc=False, batch_bytes_max=COLUMN_BYTES_MAX),
    )
    columns = decoded.columns
    size_max = _data_bytes(columns) // 2
    pieces = encode_many(columns, 0, columns.rows, options, size_max=size_max)
    if len(pieces) == 1:
        half = columns.rows // 2
        pieces = [
            (encode(columns, 0, half, options), half),
            (encode(columns, half, columns.rows, options), columns.rows - half),
        ]
    parts, start = [], 0
    for data, rows in pieces:
        part = Batch(batch.partition, data, rows, batch.origin.part(start, start + rows))
        part.order = (batch.order[0], batch.order[1] + start)
        part.deadline_s = batch.deadline_s
        if batch.sequence >= 0:
            part.give(batch.identity, sequence_after(batch.sequence, start))
        parts.append(part)
        start += rows
    return parts


def _data_bytes(columns: RecordColumns) -> int:
    binaries = [columns.keys, columns.values]
    if columns.headers is not None:
        binaries += [columns.headers.keys, columns.headers.values]
    return sum(memoryview(one.data).nbytes for one in binaries if one is not None)

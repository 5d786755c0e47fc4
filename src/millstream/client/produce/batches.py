"""A record batch to be sent to a partition: its bytes, its order, its outcome."""

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
"""Producer id, epoch and base sequence in a batch's header."""
_PRODUCER_AT: Final = 43
_PRODUCER_END: Final = 57
_BASE_OFFSET: Final = bytes(8)
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_SEQUENCES: Final = 2**31


class Identity(NamedTuple):
    """Producer id and epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch


NO_IDENTITY: Final = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Source(NamedTuple):
    """Which write calls rows come from, so that an error can name the row of the caller."""

    writes: tuple[int, ...]
    """Their numbers, from 1."""
    starts: tuple[int, ...]
    """Where the rows of each begin; negative when it began in an earlier chunk."""

    def locate(self, row: int) -> tuple[int, int]:
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
    def write_and_row(self) -> tuple[int, int] | None:
        """Of the first row: the number of the write, and of the row in it."""
        return self.source.locate(self.rows[0]) if len(self.rows) else None

    def __str__(self) -> str:
        found = self.write_and_row
        return "no row" if found is None else f"row {found[1]} of write {found[0]}"


class Batch:
    """One batch. Uses slots: there is one for every few hundred kilobytes."""

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
        # Encoded together with others its offsets continue theirs; brokers want each to start at 0.
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
        """An attempt had no response, or one that leaves the outcome open."""
        self.last: Failure | None = None
        """The failure of the last attempt."""
        self.is_done = False
        self.offset = NO_OFFSET
        """Of its first record, when it was stored and the broker returned it."""
        self.error: ClientError | None = None

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def last_offset(self) -> Offset:
        return Offset(self.offset + self.row_count - 1) if self.offset >= 0 else NO_OFFSET

    def give(self, identity: Identity, sequence: Sequence) -> None:
        """Write producer id, epoch and sequence into the bytes, and update the checksum."""
        if (identity, sequence) == (self.identity, self.sequence):
            return
        if self.was_sent:
            # A transport may still hold the bytes of an earlier attempt.
            self.data = bytearray(self.data)
        self.identity, self.sequence = identity, sequence
        before = self.data[_PRODUCER_AT:_PRODUCER_END]
        _PRODUCER.pack_into(self.data, _PRODUCER_AT, *identity, sequence)
        # The records have left the CPU's caches since they were encoded: computing the checksum
        # again would cost more than anything else here. And it still detects damage to the bytes
        # in memory meanwhile.
        difference = crc32c(before) ^ crc32c(self.data[_PRODUCER_AT:_PRODUCER_END])
        (crc,) = _CRC.unpack_from(self.data, _CRC_AT)
        crc ^= shift_difference(difference, len(self.data) - _PRODUCER_END)
        _CRC.pack_into(self.data, _CRC_AT, crc)


def sequence_after(sequence: int, row_count: int) -> Sequence:
    """Sequences wrap from the largest int32 to zero."""
    return Sequence((sequence + row_count) % _SEQUENCES)


def split(batch: Batch, options: BatchOptions) -> list[Batch]:
    """Smaller batches with the same records, in order; each has at least one.

    They continue each other's sequences, so batches after this one keep theirs.
    """
    decoded = decode(
        batch.data,
        0,
        len(batch.data),
        DecodeOptions(check_crc=False, batch_bytes_max=COLUMN_BYTES_MAX),
    )
    columns = decoded.columns
    size_max = _data_bytes(columns) // 2
    encoded = encode_many(columns, 0, columns.rows, options, size_max=size_max)
    if len(encoded) == 1:
        half = columns.rows // 2
        encoded = [
            (encode(columns, 0, half, options), half),
            (encode(columns, half, columns.rows, options), columns.rows - half),
        ]
    parts, start = [], 0
    for data, rows in encoded:
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

"""A partition that checks producers as a broker does, with a log to look at. For tests."""

from dataclasses import dataclass, field

import pyarrow as pa

from kits.kernels.column_batches import HEADER, Header
from millstream.kernels.columns import (
    BatchOptions,
    BinaryColumn,
    DecodeOptions,
    RecordColumns,
    decode,
    encode,
)
from millstream.wire.errors import ErrorCode

REMEMBERED = 5
SEQUENCES = 2**31


def columns_of(values: list[int]) -> RecordColumns:
    """Records whose value is a number."""
    column = pa.array([b"%d" % value for value in values], pa.binary())
    _, offsets, data = column.buffers()
    return RecordColumns(
        rows=len(values),
        timestamps=bytes(8 * len(values)),
        keys=None,
        values=BinaryColumn(offsets=offsets, data=data),
    )


def encoded(values: list[int], codec: int = 0) -> bytearray:
    return encode(columns_of(values), 0, len(values), BatchOptions(codec=codec))


def values_of(data: bytes | bytearray) -> list[int]:
    """The numbers of a batch; its checksum is looked at."""
    columns = decode(data, 0, len(data), DecodeOptions()).columns
    assert columns.values is not None
    buffers = [None, pa.py_buffer(columns.values.offsets), pa.py_buffer(columns.values.data)]
    return [
        int(one) for one in pa.Array.from_buffers(pa.binary(), columns.rows, buffers).to_pylist()
    ]


@dataclass
class Producer:
    """What is remembered of one producer id."""

    epoch: int
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """(first sequence, last sequence, first offset) of the last five."""


class SimPartition:
    """The log of one partition, whoever leads it."""

    def __init__(self, *, bytes_max: int = 2**31) -> None:
        self.log: list[int] = []
        self.producers: dict[int, Producer] = {}
        self.bytes_max = bytes_max
        self.knows_unknown = False
        """Like old brokers: a producer that is not known must begin with sequence 0."""

    def append(self, data: bytes | bytearray) -> tuple[ErrorCode, int]:
        """The code and the first offset, as Kafka's `ProducerStateManager` decides."""
        if len(data) > self.bytes_max:
            return ErrorCode.MESSAGE_TOO_LARGE, -1
        head = Header(*HEADER.unpack_from(data))
        if head.base_offset != 0:
            return ErrorCode.INVALID_RECORD, -1
        values = values_of(data)
        if head.producer_id >= 0:
            code, offset = self._check(head)
            if code is not ErrorCode.NONE or offset >= 0:
                return code, offset
        offset = len(self.log)
        self.log += values
        if head.producer_id >= 0:
            last = (head.base_sequence + head.record_count - 1) % SEQUENCES
            known = self.producers.setdefault(head.producer_id, Producer(head.producer_epoch))
            if known.epoch != head.producer_epoch:
                known.epoch, known.batches = head.producer_epoch, []
            known.batches = [*known.batches, (head.base_sequence, last, offset)][-REMEMBERED:]
        return ErrorCode.NONE, offset

    def _check(self, head: Header) -> tuple[ErrorCode, int]:
        """NONE with an offset is a repetition."""
        known = self.producers.get(head.producer_id)
        if known is None:
            refused = self.knows_unknown and head.base_sequence != 0
            return (ErrorCode.UNKNOWN_PRODUCER_ID if refused else ErrorCode.NONE), -1
        if head.producer_epoch < known.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if head.producer_epoch > known.epoch:
            is_first = head.base_sequence == 0
            return (ErrorCode.NONE if is_first else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
        last = (head.base_sequence + head.record_count - 1) % SEQUENCES
        for first_kept, last_kept, offset in known.batches:
            if (first_kept, last_kept) == (head.base_sequence, last):
                return ErrorCode.NONE, offset
        if head.base_sequence != (known.batches[-1][1] + 1) % SEQUENCES:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        return ErrorCode.NONE, -1

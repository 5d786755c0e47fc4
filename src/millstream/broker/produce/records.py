"""Kafka's checks of produced records before they go to a log, and which records were wrong.

The first reads one header. The second is done only after a log has refused a batch: from version 8
of Produce on clients get the list of its invalid records (KIP-467).
"""

from array import array
from struct import Struct
from typing import Final, NamedTuple

from millstream.kernels import records as kernel
from millstream.kernels.batches import HEADER_BYTES
from millstream.kernels.compression import Codec, decompress
from millstream.kernels.errors import MalformedRecords
from millstream.kernels.records import KEY_BYTES, SPAN_FIELDS, TIMESTAMP_DELTA
from millstream.model.errors import CorruptRecords, InvalidRecords, InvalidTimestamp, OperatingError
from millstream.model.ids import NO_TIMESTAMP
from millstream.storage.config import LogConfig, TimestampType
from millstream.storage.segments.batch_attributes import (
    CODEC_MASK,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)

Records = bytes | bytearray | memoryview

RECORD_ERRORS_MAX: Final = 1_000
"""Wrong records that are listed: a batch may hold a million."""

RECORDS_CHECKED_MAX: Final = 100_000
"""Of a larger batch no record is listed: locating them takes 56 bytes for each."""

_HEAD: Final = Struct(">qiib")  # base offset, length, leader epoch, magic
_FACTS: Final = Struct(">hiqqqhii")  # attributes, last delta, base and max time, producer, count
_FACTS_AT: Final = 21
_OVERHEAD: Final = 12
_OLDEST_BATCH_BYTES_MIN: Final = 14
_MAGIC: Final = 2
_FIRST_WITH_ZSTD: Final = 7


class UnsupportedCompression(OperatingError):
    """Compressed in a way that clients of the request's version cannot read."""


class InvalidRequiredAcks(OperatingError):
    """Acks must be 0, 1 or -1."""


class InternalTopic(OperatingError):
    """Only the broker writes to its internal topics."""


class RecordError(NamedTuple):
    """One wrong record of a batch."""

    batch_index: int
    message: str


def check_one_batch(records: Records | None, version: int) -> None:
    """Exactly one batch of magic 2: the rule of Produce since version 3.

    Raises InvalidRecords, CorruptRecords or UnsupportedCompression.
    """
    size = len(records) if records is not None else 0
    if records is None or size < _OVERHEAD:
        raise InvalidRecords("there must be one record batch")
    if size < _HEAD.size:
        length = int.from_bytes(records[8:12], "big", signed=True)
        _check_length(length)
        raise InvalidRecords("there must be one whole record batch")
    _, length, _, magic = _HEAD.unpack_from(records)
    _check_length(length)
    if not 0 <= magic <= _MAGIC:
        raise CorruptRecords(f"no record batch has magic {magic}")
    if _OVERHEAD + length > size:
        raise InvalidRecords("there must be one whole record batch")
    if magic != _MAGIC:
        raise InvalidRecords(f"record batches must have magic {_MAGIC}, not {magic}")
    if version < _FIRST_WITH_ZSTD and _attributes(records) & CODEC_MASK == Codec.ZSTD:
        raise UnsupportedCompression(f"zstd needs Produce version {_FIRST_WITH_ZSTD} or higher")
    if _OVERHEAD + length < size:
        raise InvalidRecords("there must be one record batch and nothing after it")


def check_first_offset(records: Records) -> None:
    """Producers count their offsets from 0; raises InvalidRecords."""
    base_offset = int.from_bytes(records[:8], "big", signed=True)
    if base_offset != 0:
        raise InvalidRecords(f"the base offset of a produced batch must be 0, not {base_offset}")


def _check_length(length: int) -> None:
    if length < _OLDEST_BATCH_BYTES_MIN:
        raise CorruptRecords(f"no record batch has {length} bytes")


def is_transactional(records: Records | None) -> bool:
    """Whether the first batch is transactional; False for what is no batch."""
    return records is not None and bool(_attributes(records) & TRANSACTIONAL_BIT)


def _attributes(records: Records) -> int:
    if len(records) < HEADER_BYTES or records[_HEAD.size - 1] != _MAGIC:
        return 0
    return int.from_bytes(records[_FACTS_AT : _FACTS_AT + 2], "big")


# -- after a refusal -------------------------------------------------------------------------


def record_errors(
    records: Records, config: LogConfig, error: OperatingError, *, now_ms: int
) -> list[RecordError]:
    """The records for which a log refused the batch with `error`; none if the batch was wrong."""
    if not isinstance(error, InvalidRecords | InvalidTimestamp):
        return []
    attributes, _, base_ms, _, _, _, _, count = _FACTS.unpack_from(records, _FACTS_AT)
    if count > RECORDS_CHECKED_MAX:
        return []
    try:
        spans = _spans(records, attributes, count, config)
    except MalformedRecords:
        return []
    is_stamped = config.timestamp_type is TimestampType.LOG_APPEND_TIME
    wrong: list[RecordError] = []
    for index in range(count):
        at = index * SPAN_FIELDS
        message = None
        if config.cleanup_compact and spans[at + KEY_BYTES] < 0:
            message = "a record of a compacted topic needs a key"
        elif attributes & LOG_APPEND_TIME_BIT:
            message = "a producer must not set the timestamp type to LogAppendTime"
        elif not is_stamped:
            message = _wrong_time(base_ms + spans[at + TIMESTAMP_DELTA], config, now_ms)
        if message is not None:
            wrong.append(RecordError(index, message))
            if len(wrong) == RECORD_ERRORS_MAX:
                break
    return wrong


def _spans(records: Records, attributes: int, count: int, config: LogConfig) -> "array[int]":
    body: memoryview | bytes = memoryview(records)[HEADER_BYTES:]
    codec = Codec(attributes & CODEC_MASK)
    if codec is not Codec.NONE:
        body = decompress(codec, body, config.decompressed_batch_bytes_max)
    return kernel.locate(body, 0, len(body), count)


def _wrong_time(stamp_ms: int, config: LogConfig, now_ms: int) -> str | None:
    if stamp_ms == NO_TIMESTAMP:
        return None
    first_ms = now_ms - config.timestamp_before_max_ms
    last_ms = now_ms + config.timestamp_after_max_ms
    if first_ms <= stamp_ms <= last_ms:
        return None
    return f"timestamp {stamp_ms} is not within [{first_ms}, {last_ms}]"

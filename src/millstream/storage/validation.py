"""What a leader checks and changes in a producer's batches before they enter the log.

The bytes are kept as sent unless the topic is configured otherwise: LogAppendTime is stamped in
place, another `compression.type` means that the payload is compressed again. Every record is
checked, because a batch that claims three records and holds two would break every consumer.
"""

from array import array
from struct import Struct
from typing import Final, NamedTuple

from millstream.kernels import batches, records
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.compression import Codec, compress, decompress
from millstream.kernels.crc import crc32c
from millstream.kernels.errors import MalformedRecords, Reason
from millstream.model.errors import (
    BatchTooLarge,
    CorruptRecords,
    InvalidRecords,
    InvalidTimestamp,
    OperatingError,
    without_frames,
)
from millstream.model.ids import NO_TIMESTAMP
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.storage.config import FOREVER, LogConfig, TimestampType
from millstream.storage.producers.machine import Origin
from millstream.storage.segments.batch_attributes import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    INT64_MAX,
    INT64_MIN,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
)

_RARE_BITS: Final = LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT | CONTROL_BIT | DELETE_HORIZON_BIT
# A lookup in an enum class costs as much as four comparisons.
_CLIENT: Final = Origin.CLIENT
_CREATE_TIME: Final = TimestampType.CREATE_TIME

_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_LENGTH_AT: Final = 8
_MAX_TIMESTAMP_AT: Final = 35
_UINT32: Final = Struct(">I")
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_INT64: Final = Struct(">q")


class TooLargeForNow(Exception):
    """The batches decompress to more than the caller's allowance; nothing was done."""


class Allowance:
    """How many decompressed bytes may be checked before other requests are served."""

    __slots__ = ("left_bytes",)

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes


class CheckedRecords(NamedTuple):
    """The result of checking a producer's batches before they go to the log's owner."""

    records: bytes | bytearray | memoryview
    config: LogConfig
    """What they were checked against; if the log's has changed they are checked again."""
    now_ms: int
    prepared: "tuple[bytearray | memoryview, array[int]] | None"
    error: OperatingError | None

    def result(self) -> "tuple[bytearray | memoryview, array[int]]":
        """The batches, prepared; raises what is wrong with them."""
        if self.prepared is None:
            raise self.error or InvalidRecords("batches that were not checked")
        return self.prepared


def check(
    buffer: bytes | bytearray | memoryview, config: LogConfig, *, now_ms: int, origin: Origin
) -> CheckedRecords:
    """`prepare` for any thread: the error is part of the outcome."""
    try:
        prepared = prepare(buffer, config, now_ms=now_ms, origin=origin)
    except OperatingError as error:
        return CheckedRecords(buffer, config, now_ms, None, without_frames(error))
    return CheckedRecords(buffer, config, now_ms, prepared, None)


def walk_whole(buffer: bytearray | bytes | memoryview, *, check_crc: bool = True) -> "array[int]":
    """Rows of all batches; raises CorruptRecords unless every byte belongs to a valid one."""
    rows, end, reason = batches.walk(
        buffer, 0, len(buffer), check_crc=check_crc, size_max=BATCH_BYTES_MAX
    )
    if reason or not rows:
        raise CorruptRecords(f"{Reason(reason).text} at byte {end} of {len(buffer)}")
    return rows


def walk_uncut(
    buffer: bytearray | bytes | memoryview,
) -> tuple[bytearray | bytes | memoryview, "array[int]"]:
    """The batches of a fetch without a last one that is not whole, and their rows; at least one."""
    rows, end, reason = batches.walk(
        buffer, 0, len(buffer), check_crc=True, size_max=BATCH_BYTES_MAX
    )
    if not rows or reason not in (Reason.NONE, Reason.SHORT):
        raise CorruptRecords(f"{Reason(reason).text} at byte {end} of {len(buffer)}")
    return (memoryview(buffer)[:end] if reason else buffer), rows


def _walk_produced(buffer: bytes | bytearray | memoryview) -> "array[int]":
    """As `walk_whole`; a batch whose CRC is right and whose fields are wrong is InvalidRecords."""
    rows, end, reason = batches.walk(
        buffer, 0, len(buffer), check_crc=True, size_max=BATCH_BYTES_MAX
    )
    if reason or not rows:
        reason_text = f"{Reason(reason).text} at byte {end} of {len(buffer)}"
        if reason in (Reason.OFFSETS, Reason.COUNT):
            raise InvalidRecords(reason_text)
        raise CorruptRecords(reason_text)
    return rows


def prepare(
    buffer: bytes | bytearray | memoryview,
    config: LogConfig,
    *,
    now_ms: int,
    origin: Origin,
    allowance: Allowance | None = None,
) -> tuple[bytearray | memoryview, "array[int]"]:
    """Check everything a leader must check; stamp and recompress as the topic is configured.

    Returns the batches, which may be appended once offsets are assigned, and their rows. Works in
    the caller's buffer, or in a copy where that cannot be written to. Raises TooLargeForNow where
    the batches decompress to more than the allowance has left.
    """
    rows = _walk_produced(buffer)
    view = memoryview(buffer)
    if isinstance(buffer, bytes) or view.readonly:
        buffer = bytearray(buffer)
        view = memoryview(buffer)
    payloads = []
    for row in range(0, len(rows), ROW_FIELDS):
        _check_header(rows, row, config, origin)
        payload = _check_records(view, rows, row, (config, now_ms, allowance))
        if config.compression is not None:
            payloads.append(payload)
    if payloads:
        renewed = _recompress_all(view, rows, payloads, config)
        if renewed is not None:
            buffer, rows = renewed, walk_whole(renewed, check_crc=False)
    if config.timestamp_type is not _CREATE_TIME:
        batches.set_append_time(buffer, rows, now_ms)
    return buffer, rows


def _recompress_all(
    view: memoryview, rows: "array[int]", payloads: list[bytes | None], config: LogConfig
) -> bytearray | None:
    """All batches in the topic's codec; None when they are in it already."""
    parts: list[bytes | memoryview] = []
    is_rebuilt = False
    for row, payload in zip(range(0, len(rows), ROW_FIELDS), payloads, strict=True):
        attributes, batch = rows[row + ATTRIBUTES], _batch(view, rows, row)
        # Markers are read by all that follow transactions: they stay as they are.
        is_same = config.compression == attributes & CODEC_MASK or bool(attributes & CONTROL_BIT)
        uncompressed = batch[HEADER_BYTES:] if payload is None else payload
        parts.append(batch if is_same else _recompress(batch, uncompressed, config))
        is_rebuilt |= not is_same
    return bytearray(b"".join(parts)) if is_rebuilt else None


def _check_header(rows: "array[int]", row: int, config: LogConfig, origin: Origin) -> None:
    if rows[row + SIZE] > config.max_message_bytes:
        raise BatchTooLarge(size_bytes=rows[row + SIZE], limit_bytes=config.max_message_bytes)
    count = rows[row + RECORD_COUNT]
    if count <= 0 or rows[row + LAST_OFFSET] - rows[row + BASE_OFFSET] + 1 != count:
        raise InvalidRecords(f"batch of {count} records does not span as many offsets")
    attributes, producer_id = rows[row + ATTRIBUTES], rows[row + PRODUCER_ID]
    if attributes & _RARE_BITS:
        _check_attributes(attributes, producer_id, origin)
    if producer_id >= 0 and rows[row + BASE_SEQUENCE] < 0 and origin is _CLIENT:
        raise InvalidRecords("a batch with a producer id needs a sequence number")


def _check_attributes(attributes: int, producer_id: int, origin: Origin) -> None:
    if origin is _CLIENT:
        if attributes & CONTROL_BIT:
            raise InvalidRecords("clients must not write control batches")
        if attributes & DELETE_HORIZON_BIT:
            raise InvalidRecords("clients must not set a delete horizon")
        if attributes & LOG_APPEND_TIME_BIT:
            raise InvalidTimestamp("clients must not claim the broker's timestamp")
    if attributes & TRANSACTIONAL_BIT and producer_id < 0:
        raise InvalidRecords("a transactional batch needs a producer id")


def _check_records(
    view: memoryview, rows: "array[int]", row: int, limits: tuple[LogConfig, int, Allowance | None]
) -> bytes | None:
    """Check every record of the batch; returns the payload if it had to be decompressed."""
    config, now_ms, allowance = limits
    start, stop = rows[row + POSITION] + HEADER_BYTES, rows[row + POSITION] + rows[row + SIZE]
    codec = rows[row + ATTRIBUTES] & CODEC_MASK
    payload: bytes | None = None
    if codec:
        payload = _decompress(codec, view[start:stop], config, allowance)
        start, stop = 0, len(payload)
    if allowance is not None:
        allowance.left_bytes -= stop - start
    reason, lowest, highest, _, null_keys = records.inspect(
        view if payload is None else payload,
        start,
        stop,
        rows[row + RECORD_COUNT],
        contiguous=True,
    )
    if reason:
        raise InvalidRecords(f"the records of a batch are malformed: {Reason(reason).text}")
    if null_keys and config.cleanup_compact:
        raise InvalidRecords(f"{null_keys} records without a key in a compacted topic")
    base = rows[row + BASE_TIMESTAMP]
    is_in_range = (
        rows[row + MAX_TIMESTAMP] == base + highest
        and base + highest - now_ms <= config.timestamp_after_max_ms
        and now_ms - base - lowest <= config.timestamp_before_max_ms
    )
    if not is_in_range and config.timestamp_type is _CREATE_TIME:
        _check_timestamps(view, rows, row, (lowest, highest), (config, now_ms))
    return payload


def _decompress(
    codec: int, compressed: memoryview, config: LogConfig, allowance: Allowance | None
) -> bytes:
    limit = config.decompressed_batch_bytes_max
    size_max = limit if allowance is None else min(limit, max(0, allowance.left_bytes))
    try:
        return decompress(codec, compressed, size_max)
    except MalformedRecords as error:
        if error.reason is Reason.TOO_LARGE:
            if size_max < limit:
                raise TooLargeForNow from None
            raise BatchTooLarge(size_bytes=limit + 1, limit_bytes=limit) from error
        raise CorruptRecords(str(error)) from error


def _check_timestamps(
    view: memoryview,
    rows: "array[int]",
    row: int,
    deltas: tuple[int, int],
    limits: tuple[LogConfig, int],
) -> None:
    config, now_ms = limits
    base = rows[row + BASE_TIMESTAMP]
    lowest, highest = base + deltas[0], base + deltas[1]
    before, after = config.timestamp_before_max_ms, config.timestamp_after_max_ms
    if before != FOREVER and lowest != NO_TIMESTAMP and now_ms - lowest > before:
        raise InvalidTimestamp(f"timestamp {lowest} is more than {before} ms before {now_ms}")
    if after != FOREVER and highest - now_ms > after:
        raise InvalidTimestamp(f"timestamp {highest} is more than {after} ms after {now_ms}")
    if not INT64_MIN <= lowest <= highest <= INT64_MAX:
        raise InvalidTimestamp(f"timestamps from {lowest} to {highest} are no 64-bit numbers")
    if rows[row + MAX_TIMESTAMP] != highest:
        # Searches by time trust the header, so the header must agree with the records.
        batch = _batch(view, rows, row)
        rows[row + MAX_TIMESTAMP] = highest
        _INT64.pack_into(batch, _MAX_TIMESTAMP_AT, highest)
        _renew_crc(batch)


def _recompress(batch: memoryview, payload: memoryview | bytes, config: LogConfig) -> bytes:
    codec = config.compression or Codec.NONE
    body = payload if codec is Codec.NONE else compress(codec, payload, config.compression_level)
    renewed = bytearray(batch[:HEADER_BYTES])
    renewed += body
    _INT32.pack_into(renewed, _LENGTH_AT, len(renewed) - 12)
    (attributes,) = _INT16.unpack_from(batch, _ATTRIBUTES_AT)
    _INT16.pack_into(renewed, _ATTRIBUTES_AT, (attributes & ~CODEC_MASK) | codec)
    _renew_crc(renewed)
    if len(renewed) > config.max_message_bytes:
        raise BatchTooLarge(size_bytes=len(renewed), limit_bytes=config.max_message_bytes)
    return bytes(renewed)


def _batch(view: memoryview, rows: "array[int]", row: int) -> memoryview:
    return view[rows[row + POSITION] : rows[row + POSITION] + rows[row + SIZE]]


def _renew_crc(batch: bytearray | memoryview) -> None:
    _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[_ATTRIBUTES_AT:]))

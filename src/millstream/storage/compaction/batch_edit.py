"""Rewrites a stored batch with fewer records or with a delete horizon.

What the log and its producers depend on stays: base offset, last offset delta, leader epoch,
producer fields. The delete horizon is Kafka's format: bit 6 of the attributes says that the base
timestamp is the time from which tombstones or the marker may be removed, so every record's
timestamp delta is relative to that.
"""

from array import array
from itertools import compress as select
from struct import Struct
from typing import Final, NamedTuple

from millstream.kernels import records
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    HEADER_BYTES,
    MAX_TIMESTAMP,
    POSITION,
    RECORD_COUNT,
    SIZE,
)
from millstream.kernels.compression import Codec, compress, decompress
from millstream.kernels.crc import crc32c
from millstream.kernels.records import SPAN_FIELDS, START, STOP, TIMESTAMP_DELTA
from millstream.model.ids import NO_TIMESTAMP, TimestampMs
from millstream.storage.segments.batch_attributes import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    INT64_MAX,
    INT64_MIN,
    LOG_APPEND_TIME_BIT,
)

_LENGTH: Final = Struct(">i")
_LENGTH_AT: Final = 8
_LENGTH_EXCLUDES: Final = 12
_CRC: Final = Struct(">I")
_CRC_AT: Final = 17
_ATTRIBUTES: Final = Struct(">h")
_ATTRIBUTES_AT: Final = 21
_TIMESTAMPS: Final = Struct(">qq")  # base, max
_TIMESTAMPS_AT: Final = 27
_COUNT: Final = Struct(">i")
COUNT_AT: Final = 57
"""Where a batch's header has the number of its records."""
_UINT64: Final = 0xFFFF_FFFF_FFFF_FFFF


class OpenBatch(NamedTuple):
    """The records of a batch; spans are positions in `payload`."""

    payload: memoryview | bytes
    spans: "array[int]"


def open_batch(view: memoryview, rows: "array[int]", row: int, size_max: int) -> OpenBatch:
    """Decompress where needed and find the records; raises MalformedRecords."""
    start = rows[row + POSITION] + HEADER_BYTES
    stop = rows[row + POSITION] + rows[row + SIZE]
    codec = rows[row + ATTRIBUTES] & CODEC_MASK
    payload: memoryview | bytes = view
    if codec != Codec.NONE:
        payload = decompress(codec, view[start:stop], size_max)
        start, stop = 0, len(payload)
    return OpenBatch(payload, records.locate(payload, start, stop, rows[row + RECORD_COUNT]))


def delete_horizon(rows: "array[int]", row: int) -> TimestampMs | None:
    """From when on tombstones (or the marker) of the batch may be removed; None if not set."""
    if rows[row + ATTRIBUTES] & DELETE_HORIZON_BIT:
        return TimestampMs(rows[row + BASE_TIMESTAMP])
    return None


def fits_horizon(horizon_ms: int, rows: "array[int]", row: int, batch: OpenBatch) -> bool:
    """Whether all timestamps of the batch fit into int64 deltas relative to that time."""
    base_ms, deltas = rows[row + BASE_TIMESTAMP], batch.spans[TIMESTAMP_DELTA::SPAN_FIELDS]
    lowest_ms, highest_ms = base_ms + min(deltas), base_ms + max(deltas)
    if rows[row + ATTRIBUTES] & LOG_APPEND_TIME_BIT:
        lowest_ms = highest_ms = rows[row + MAX_TIMESTAMP]
    return lowest_ms - horizon_ms >= INT64_MIN and highest_ms - horizon_ms <= INT64_MAX


def raw_batch(view: memoryview, rows: "array[int]", row: int) -> memoryview:
    """The batch as it is stored."""
    return view[rows[row + POSITION] : rows[row + POSITION] + rows[row + SIZE]]


def empty_batch(view: memoryview, rows: "array[int]", row: int) -> bytes:
    """Only the header: offsets, sequence and epoch of a batch without its records."""
    kept = rows[row + ATTRIBUTES] & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    header = bytearray(raw_batch(view, rows, row)[:HEADER_BYTES])
    stamps = (NO_TIMESTAMP, rows[row + MAX_TIMESTAMP])
    return _seal_batch(header, b"", attributes=kept, stamps=stamps, count=0)


def thin_batch(
    view: memoryview,
    rows: "array[int]",
    row: int,
    batch: OpenBatch,
    keep: bytearray,
    *,
    horizon_ms: int | None = None,
    level: int | None = None,
) -> bytes:
    """The batch with the records whose flag in `keep` is not zero, of which there is at least one.

    `horizon_ms` sets the delete horizon; without it a horizon that is there stays.
    """
    attributes = rows[row + ATTRIBUTES]
    base_ms, max_ms = rows[row + BASE_TIMESTAMP], rows[row + MAX_TIMESTAMP]
    is_append_time = bool(attributes & LOG_APPEND_TIME_BIT)
    if not is_append_time:
        max_ms = base_ms + max(select(batch.spans[TIMESTAMP_DELTA::SPAN_FIELDS], keep))
    if horizon_ms is None:
        body = records.retain(batch.payload, batch.spans, keep)
    else:
        shift = base_ms - horizon_ms
        fixed = max_ms - horizon_ms if is_append_time else None
        body = _restamp(batch, keep, shift=shift, fixed=fixed)
        base_ms, attributes = horizon_ms, attributes | DELETE_HORIZON_BIT
    codec = attributes & CODEC_MASK
    if codec != Codec.NONE:
        body = compress(codec, body, level)
    header = bytearray(raw_batch(view, rows, row)[:HEADER_BYTES])
    count = len(keep) - keep.count(0)
    return _seal_batch(header, body, attributes=attributes, stamps=(base_ms, max_ms), count=count)


def _seal_batch(
    header: bytearray, body: bytes, *, attributes: int, stamps: tuple[int, int], count: int
) -> bytes:
    _LENGTH.pack_into(header, _LENGTH_AT, len(header) + len(body) - _LENGTH_EXCLUDES)
    _ATTRIBUTES.pack_into(header, _ATTRIBUTES_AT, attributes)
    _TIMESTAMPS.pack_into(header, _TIMESTAMPS_AT, *stamps)
    _COUNT.pack_into(header, COUNT_AT, count)
    crc = crc32c(body, crc32c(memoryview(header)[_ATTRIBUTES_AT:]))
    _CRC.pack_into(header, _CRC_AT, crc)
    return bytes(header) + body


def _restamp(batch: OpenBatch, keep: bytearray, *, shift: int, fixed: int | None) -> bytes:
    """The kept records with `shift` added to their timestamp deltas, or all with one delta."""
    payload, spans = batch.payload, batch.spans
    parts: list[bytes | memoryview] = []
    for number, flag in enumerate(keep):
        if not flag:
            continue
        at = number * SPAN_FIELDS
        delta = spans[at + TIMESTAMP_DELTA] + shift if fixed is None else fixed
        attributes_at = _after_varint(payload, spans[at + START])
        rest_at = _after_varint(payload, attributes_at + 1)
        stamp = _varint(delta)
        rest = payload[rest_at : spans[at + STOP]]
        parts += (
            _varint(1 + len(stamp) + len(rest)),
            payload[attributes_at : attributes_at + 1],
            stamp,
            rest,
        )
    return b"".join(parts)


def _after_varint(payload: memoryview | bytes, position: int) -> int:
    """The kernel that located the record has checked the varint."""
    while payload[position] & 0x80:
        position += 1
    return position + 1


def _varint(number: int) -> bytes:
    rest = ((number << 1) ^ (number >> 63)) & _UINT64
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)

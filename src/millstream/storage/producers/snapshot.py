"""The `.snapshot` files: a partition's producers as of an offset, in Kafka's format.

They save recovery from replaying the whole log. The format has room for the last batch of each
producer only, so after a restart a retry of one of the four batches before it is refused as out of
order, in Kafka as here: it can never be stored twice. The batches that are replayed after the
snapshot are remembered in full. There is one timestamp per producer, its newest batch's or
marker's, and it stands for both after a reload.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from millstream.kernels.crc import crc32c
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_OFFSET, Offset, ProducerEpoch, ProducerId, TimestampMs
from millstream.storage.producers.machine import SEQUENCE_MAX, ProducerEntry, ProducerStates

_VERSION: Final = 1
_HEAD: Final = Struct(">hI")  # version, CRC-32C of all that follows
_COUNT: Final = Struct(">i")
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
# first offset of the open transaction
_ENTRY: Final = Struct(">qhiqiqiq")
_ENTRIES_AT: Final = _HEAD.size + _COUNT.size


class CorruptSnapshot(OperatingError):
    """Bytes that are not a valid snapshot: an older one or the log itself is used instead."""


def encode(states: ProducerStates) -> bytes:
    """The snapshot of all producers."""
    entries = states.entries()
    body = _COUNT.pack(len(entries)) + b"".join(map(_encode_entry, entries))
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode(raw: bytes, *, end_offset: Offset) -> ProducerStates:
    """The producers of a snapshot taken when the log ended at `end_offset` (its file's name)."""
    if len(raw) < _ENTRIES_AT:
        raise CorruptSnapshot(f"only {len(raw)} bytes")
    version, crc = _HEAD.unpack_from(raw)
    if version != _VERSION:
        raise CorruptSnapshot(f"unknown version {version}")
    if crc != crc32c(memoryview(raw)[_HEAD.size :]):
        raise CorruptSnapshot("the CRC does not match")
    (count,) = _COUNT.unpack_from(raw, _HEAD.size)
    if count < 0 or len(raw) != _ENTRIES_AT + count * _ENTRY.size:
        raise CorruptSnapshot(f"{count} producers in {len(raw)} bytes")
    return _load(_ENTRY.iter_unpack(memoryview(raw)[_ENTRIES_AT:]), end_offset)


def _encode_entry(entry: ProducerEntry) -> bytes:
    offset_delta = 0
    if entry.batches:
        _first, _last, base_offset, last_offset, _timestamp = entry.batches[-1]
        offset_delta = last_offset - base_offset
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_offset,
        offset_delta,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        entry.transaction_first_offset,
    )


def _load(rows: Iterable[tuple[int, ...]], end_offset: Offset) -> ProducerStates:
    states = ProducerStates()
    transactions_seen: set[Offset] = set()
    for row in rows:
        entry = _decode_entry(row, end_offset)
        first_offset = entry.transaction_first_offset
        if states.get(entry.producer_id) is not None or first_offset in transactions_seen:
            raise CorruptSnapshot(f"producer {entry.producer_id} or its transaction occurs twice")
        if first_offset >= 0:
            transactions_seen.add(first_offset)
        states.load(entry)
    return states


def _decode_entry(row: tuple[int, ...], end_offset: Offset) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator, txn = row
    # A CRC can be right and the content still wrong: state from beyond the end of the log would
    # make us refuse or mislead correct producers.
    if producer_id < 0 or not NO_OFFSET <= last_offset < end_offset or txn >= end_offset:
        raise CorruptSnapshot(f"producer {producer_id} lies beyond offset {end_offset}")
    if last_offset >= 0 and not 0 <= delta <= last_offset:
        raise CorruptSnapshot(f"producer {producer_id}: batch of {delta + 1} offsets")
    entry = ProducerEntry(ProducerId(producer_id), ProducerEpoch(epoch))
    entry.coordinator_epoch = coordinator
    entry.last_timestamp_ms = TimestampMs(timestamp_ms)
    entry.transaction_first_offset = Offset(txn) if txn >= 0 else NO_OFFSET
    if last_offset >= 0:
        # Batches of our coordinators have no sequences.
        first = (last_sequence - delta) & SEQUENCE_MAX if last_sequence >= 0 else last_sequence
        entry.keep(first, last_sequence, last_offset - delta, last_offset, timestamp_ms)
    return entry

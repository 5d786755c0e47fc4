"""Restores from the log what a snapshot does not have of a producer.

Kafka's snapshot has the last batch of each producer only. A producer with five requests under way
when its broker stops sends all of them again, and only the last one would be known: the others
would be refused as out of order, or stored a second time under a new epoch (I-20). With several
brokers another one leads by then, which saw all of them; a standalone broker has the log.
"""

from typing import Final

from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    ROW_FIELDS,
)
from millstream.kernels.slots import BATCHES_KEPT
from millstream.model.ids import Offset
from millstream.model.limits import MIB
from millstream.storage.producers.machine import (
    SEQUENCE_MAX,
    KeptBatch,
    ProducerBatch,
    ProducerEntry,
)
from millstream.storage.segments.batch_attributes import CONTROL_BIT
from millstream.storage.segments.segment_list import Segments

RECALL_BYTES_MAX: Final = 8 * MIB
"""Read of the log for one producer: more than five of its requests, without a long pause."""
RECALL_OFFSETS_MAX: Final = 100_000


def recall(segments: Segments, entry: ProducerEntry, *, log_start: Offset) -> bool:
    """Add the batches before the last one to the entry; False when none are found.

    Raises OSError, or CorruptRecords for a log that cannot be read.
    """
    known = entry.batches
    if not known or len(known) >= BATCHES_KEPT:
        return False
    last = known[-1]
    found = _batches_of(segments, entry, start=_start(segments, log_start, Offset(last[2])))
    while found and found[-1][2] > last[2]:
        found.pop()
    if not found or found[-1][:4] != last[:4]:
        return False
    chain = [found.pop()]
    while found and len(chain) < BATCHES_KEPT:
        if (found[-1][1] + 1) & SEQUENCE_MAX != chain[-1][0]:
            break  # it began again in between: older numbers mean other batches
        chain.append(found.pop())
    if len(chain) <= len(known):
        return False
    entry.forget_batches()
    for batch in reversed(chain):
        entry.keep(*batch)
    return True


def _batches_of(segments: Segments, entry: ProducerEntry, *, start: Offset) -> list[KeptBatch]:
    found: list[KeptBatch] = []
    for segment in segments.from_number(segments.number_at(start)):
        location = segment.find_offset(max(start, segment.base_offset))
        if location is None:
            continue
        for step in segment.walk(location.position):
            found += [
                _kept(ProducerBatch.of_row(step.rows, row))
                for row in range(0, len(step.rows), ROW_FIELDS)
                if step.rows[row + PRODUCER_ID] == entry.producer_id
                and step.rows[row + PRODUCER_EPOCH] == entry.epoch
                and step.rows[row + BASE_OFFSET] >= start
                and not step.rows[row + ATTRIBUTES] & CONTROL_BIT
            ]
    return found


def _kept(batch: ProducerBatch) -> KeptBatch:
    count = batch.last_offset - batch.base_offset + 1
    last_sequence = (batch.base_sequence + count - 1) & SEQUENCE_MAX
    return (
        batch.base_sequence,
        last_sequence,
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp_ms,
    )


def _start(segments: Segments, log_start: Offset, last: Offset) -> Offset:
    """Where to begin to read: not farther back than what may be read."""
    start = Offset(max(log_start, last - RECALL_OFFSETS_MAX))
    while start < last and _bytes_from(segments, start) > RECALL_BYTES_MAX:
        start = Offset((start + last + 1) // 2)
    return start


def _bytes_from(segments: Segments, start: Offset) -> int:
    size = 0
    for segment in segments.from_number(segments.number_at(start)):
        location = segment.find_offset(max(start, segment.base_offset))
        if location is not None:
            size += segment.size_bytes - location.position
    return size

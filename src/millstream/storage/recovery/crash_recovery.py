"""After a crash: read what lies above the recovery point, keep the valid prefix, rebuild the rest.

Offsets must grow and leader epochs must not fall from batch to batch (I-03, I-10): after a power
loss the bytes behind the first bad batch can be anything, also whole batches of an older file.
"""

from array import array
from typing import NamedTuple

from millstream.kernels.batches import (
    BASE_OFFSET,
    LAST_OFFSET,
    LEADER_EPOCH,
    POSITION,
    ROW_FIELDS,
    SIZE,
)
from millstream.kernels.errors import Reason
from millstream.model.errors import InvalidRecords
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.producers.producer_log import ProducerLog
from millstream.storage.recovery.strays import end_of_cut
from millstream.storage.segments.file_walk import WalkStep
from millstream.storage.segments.segment import Segment, plausible_rows
from millstream.storage.segments.sparse_index import unless_full


class RecoveryResult(NamedTuple):
    """The result of the recovery of a segment."""

    end_offset: Offset
    bytes_cut: int
    reason: Reason
    """Why the rest was cut off; NONE when nothing was."""
    epoch: LeaderEpoch
    """Of the last batch so far."""
    cut_end: Offset | None = None
    """After the last record that was cut off, where its header could still be read."""


def recover_segment(
    segment: Segment,
    start_offset: Offset,
    epoch: LeaderEpoch,
    *,
    epochs: LeaderEpochs,
    producers: ProducerLog,
) -> RecoveryResult:
    """Walk the segment with all checks, rebuild its indexes, cut it at the first bad byte.

    `epoch` is that of the last batch before the segment. `producers` describes the log before it
    and follows it. `epochs` may know more than the batches show, because compaction can remove all
    batches of an epoch: it is corrected where a batch contradicts it, and never the reason to cut
    one off. The walk and the checks are the same whether it is the first recovery or a repetition
    (I-11).
    """
    segment.start_indexes()
    segment.txn_index.reset()
    size_before = segment.size_bytes
    end_offset, valid_end = start_offset, 0
    walk = segment.walk(check_crc=True)
    reason = Reason.NONE
    for step in walk:
        good = plausible_rows(
            step.rows, base_offset=segment.base_offset, expected=end_offset, epoch=epoch
        )
        try:
            _follow(segment, step, good, epochs=epochs, producers=producers)
        except InvalidRecords:
            reason = Reason.RECORD
            break
        if good:
            epoch = LeaderEpoch(good[LEADER_EPOCH - ROW_FIELDS])
            end_offset = Offset(good[LAST_OFFSET - ROW_FIELDS] + 1)
            valid_end = step.shift + good[POSITION - ROW_FIELDS] + good[SIZE - ROW_FIELDS]
        if len(good) < len(step.rows):
            reason = Reason.OFFSETS
            break
    cut_end = None
    if valid_end < size_before:
        cut_end = end_of_cut(segment, valid_end, end_offset)
        _cut(segment, valid_end)
        reason = reason or walk.reason
    with unless_full():
        segment.save_indexes()
    return RecoveryResult(end_offset, size_before - valid_end, reason, epoch, cut_end)


def _follow(
    segment: Segment,
    step: WalkStep,
    rows: "array[int]",
    *,
    epochs: LeaderEpochs,
    producers: ProducerLog,
) -> None:
    aborted = producers.apply(step.buffer, rows)
    segment.index(rows, step.shift)
    for transaction in aborted:
        segment.txn_index.append(transaction)
    for row in range(0, len(rows), ROW_FIELDS):
        epoch, first = LeaderEpoch(rows[row + LEADER_EPOCH]), Offset(rows[row + BASE_OFFSET])
        known = epochs.epoch_at(first)
        # Of what lies below the log start the epochs before the earliest entry are forgotten.
        is_forgotten = known == NO_LEADER_EPOCH and epoch <= epochs.earliest
        if known != epoch and not is_forgotten:
            epochs.truncate_from_end(first)
            if epoch >= 0:
                epochs.assign(epoch, first)


def _cut(segment: Segment, end: int) -> None:
    file = segment.log.open()
    file.truncate(end)
    file.sync()
    segment.size_bytes = end

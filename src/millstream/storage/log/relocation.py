"""A log that can continue in another directory, where a copy of its files is.

The log stays the same object with the same producers, epochs and watermarks: leadership, requests
that wait for the high watermark and readers are not affected. Slices that are being sent keep the
old files open.
"""

from millstream.model.invariant import invariant
from millstream.storage import names
from millstream.storage.epochs import EpochFile
from millstream.storage.log.base import LogContext
from millstream.storage.log.durability import DurableLog
from millstream.storage.segments.segment import Segment
from millstream.storage.segments.segment_list import Segments


class MovableLog(DurableLog):
    """Adds the change of directories; `storage/moves/directory_move.py` copies and decides."""

    def move_to(self, context: LogContext) -> None:
        """Use the copy in `context.directory` from now on. It is durable and complete except for
        the active segment's indexes, which are in memory. Nothing here can fail: there is no undo.

        Flushes that have begun are void: they sync files that are no longer used. Requests that
        wait for them are still correct, since the copy is synced up to the log's end.
        """
        self._check_open()
        invariant(
            context.partition == self.partition and context.owner is not self._context.owner,
            "I-02 a log moves to another directory and stays its partition's",
            partition=self.partition,
            to=context.directory,
        )
        invariant(
            not self.slot.staged_bytes,
            "I-03 batches were staged while their log moved",
            partition=self.partition,
        )
        self._forget_limits()
        old = list(self._segments)
        self._epoch_file.retire()
        self._context = context
        self._epoch_file = EpochFile(f"{context.directory}/{names.LEADER_EPOCHS}")
        self._segments = Segments([self._relocate_segment(segment) for segment in old])
        active = self._segments.active
        active.offset_index.take_over(old[-1].offset_index)
        active.time_index.take_over(old[-1].time_index)
        self.producers.move_to(context.directory)
        self._are_names_synced = False
        self._truncations += 1
        for segment in old:
            segment.forget()
        self._check()

    def _relocate_segment(self, old: Segment) -> Segment:
        segment = Segment(self._segment_context(), old.base_offset)
        segment.size_bytes = old.size_bytes
        segment.max_timestamp = old.max_timestamp
        segment.first_batch_timestamp = old.first_batch_timestamp
        return segment

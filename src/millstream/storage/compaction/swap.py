"""Replaces segments with the one written from them; `recovery/tidy.py` describes the names.

The owner makes the renames, another thread syncs the directory after each step. The log's own name
changes to `.swap` in the same step as the segments in memory: before it a crash (or a truncation)
finds only the old ones, after it only the new one is valid.
"""

from collections.abc import Sequence

from millstream.model.invariant import invariant
from millstream.storage import names
from millstream.storage.compaction.job import CleanedGroup
from millstream.storage.log.log import Log
from millstream.storage.segments.segment import Segment, SegmentContext


class Swap:
    """The steps, in order; after each the directory must be synced before the next."""

    def __init__(self, log: Log, old: Sequence[Segment], group: CleanedGroup) -> None:
        context = log.context
        segment_context = SegmentContext(
            context.directory, context.files, context.cache, log.config.index_interval_bytes
        )
        self._log = log
        self._old = list(old)
        self._new = Segment(segment_context, group.base_offset, state=names.SWAP)
        self._new.size_bytes = group.size_bytes
        self._steps = [self._begin, self._retire_old, self._name_indexes, self._name_log]

    @property
    def is_done(self) -> bool:
        return not self._steps

    def step(self) -> None:
        """Do the next step. Raises OSError."""
        invariant(bool(self._steps), "I-02 a swap continued after its end")
        self._steps[0]()
        self._steps.pop(0)

    def finish(self) -> None:
        """Do all remaining steps, syncs included, on this thread: a truncation cannot wait."""
        context = self._log.context
        while self._steps:
            context.owner.disk.sync_directory(context.directory)
            self.step()
        context.owner.disk.sync_directory(context.directory)

    def _begin(self) -> None:
        cleaned = self._new.log.path.removesuffix(names.SWAP) + names.CLEANED
        self._log.owner.disk.rename(cleaned, self._new.log.path)
        self._log.segments.replace(self._old, self._new)

    def _retire_old(self) -> None:
        log = self._log
        delay_s = log.config.file_delete_delay_ms / 1000
        due_s = log.context.clock.monotonic_s() + delay_s
        for segment in self._old:
            log.owner.discard(segment.change_state(names.DELETED), due_s=due_s)
            segment.forget()
        gone = [one.base_offset for one in self._old if one.base_offset != self._new.base_offset]
        log.producers.delete_snapshots_at(gone)

    def _name_indexes(self) -> None:
        if self._new in self._log.segments:  # unless retention took it meanwhile
            self._new.rename_indexes("")

    def _name_log(self) -> None:
        if self._new in self._log.segments:
            self._new.change_state("")

"""Writes one new segment in the background, under names that loading a log ignores."""

from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from millstream.model.ids import Offset
from millstream.model.limits import MIB
from millstream.runtime.disk import Disk, ReadableBuffer
from millstream.storage import names
from millstream.storage.segments.files import OpenFiles
from millstream.storage.segments.segment import Segment, SegmentContext
from millstream.storage.segments.sparse_index import IndexCache
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.storage.validation import walk_whole

_INDEX_CACHE_BYTES: Final = MIB
"""Never filled: the one segment's indexes are in memory while they are written."""


class Output:
    """A segment being written. The log's own file pool and index cache belong to its owner."""

    def __init__(
        self, disk: Disk, directory: str, base_offset: Offset, *, index_interval_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        files = OpenFiles(disk, open_max=1)
        cache = IndexCache(bytes_max=_INDEX_CACHE_BYTES)
        context = SegmentContext(directory, files, cache, index_interval_bytes)
        self._segment = Segment.create(context, base_offset, state=names.CLEANED)
        self._segment.txn_index.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._segment.forget()

    @property
    def size_bytes(self) -> int:
        return self._segment.size_bytes

    def append(
        self, batches: Sequence[ReadableBuffer], aborted: Sequence[AbortedTransaction]
    ) -> None:
        """Add batches and the aborted transactions whose markers are among them."""
        if batches:
            data = batches[0] if len(batches) == 1 else b"".join(batches)
            self._segment.append(data, walk_whole(data, check_crc=False))
        for transaction in aborted:
            self._segment.txn_index.append(transaction)

    def finish(self, *, aged_since_ms: int | None = None) -> None:
        """Sync everything, then rename the indexes to `.swap`; only the log is not renamed.

        `aged_since_ms` becomes the file's modification time: batches without records have no other
        age.
        """
        segment = self._segment
        segment.stop_writing()
        if aged_since_ms is not None:
            self._disk.set_modified_ms(segment.log.path, max(0, aged_since_ms))
        segment.txn_index.save()  # an entry may wait for room, and is stored nowhere else
        for path in segment.file_paths():
            if self._disk.exists(path):
                with self._disk.open_read(path) as file:
                    file.sync()
        segment.rename_indexes(names.SWAP)
        self._disk.sync_directory(self._directory)


def remove_leftovers(disk: Disk, directory: str, base_offset: Offset) -> None:
    """Remove what an output that will not be used left behind.

    A `.swap` index belongs to a swap in progress once the log has that state too.
    """
    log_path = names.segment_path(directory, base_offset, names.LOG)
    states = [names.CLEANED] if disk.exists(log_path + names.SWAP) else [names.CLEANED, names.SWAP]
    for suffix in names.SEGMENT_SUFFIXES:
        for state in states:
            path = names.segment_path(directory, base_offset, suffix) + state
            if disk.exists(path):
                disk.remove(path)

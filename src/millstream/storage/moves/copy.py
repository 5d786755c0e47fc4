"""Copies the files of a partition to another log directory, in any thread.

All inputs are values taken by the log's owner. A log only grows at its end while it moves (the
owner notices truncations, compaction waits), so what was copied once stays right, and a later call
copies only what is missing. What a call wrote is durable when it returns, except for the names: the
small files that complete the copy are written later and sync those.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from typing import Final, NamedTuple

from millstream.model.ids import Offset
from millstream.model.limits import MIB
from millstream.runtime.disk import Disk, File
from millstream.storage import names
from millstream.storage.throttle import CancelFlag, Throttle

CHUNK_BYTES: Final = MIB
"""One read and one write; between two the copy can be throttled or cancelled."""

SYNCED_TOGETHER_MAX: Final = 64
"""Files held open for one sync: in parallel they cost little more than a single one."""

_KEPT: Final = (names.PARTITION_METADATA, names.LEADER_EPOCHS, names.MOVED_HERE)
"""In the copy besides the segments' files."""


class Side(Enum):
    """Whose disk had an error."""

    SOURCE = "source"
    TARGET = "target"


class CopyFailed(Exception):
    """An error of the disk, with the side that had it."""

    def __init__(self, side: Side, error: OSError, *, is_sync: bool = False) -> None:
        self.side, self.error, self.is_sync = side, error, is_sync
        super().__init__(f"{side.value}: {error}")


class SegmentPart(NamedTuple):
    """One segment, as far as it is to be copied."""

    base_offset: Offset
    size_bytes: int
    end_offset: Offset
    """Where the copy ends once this part is copied."""
    is_closed: bool


class CopyPlan(NamedTuple):
    """What the log consists of at one moment."""

    parts: Sequence[SegmentPart]
    snapshots: Sequence[Offset]
    truncations: int
    """If the log has had more since, all of this is void."""


@contextmanager
def blame(side: Side, *, is_sync: bool = False) -> Iterator[None]:
    """Attribute a disk error inside to that side."""
    try:
        yield
    except OSError as error:
        raise CopyFailed(side, error, is_sync=is_sync) from error


class Copier:
    """One copy: where from, where to, and how far it has come. Used by one thread at a time."""

    def __init__(self, disk: Disk, *, source: str, target: str, throttle: Throttle) -> None:
        self._disk = disk
        self._source = source
        self._target = target
        self._throttle = throttle
        self.cancel = CancelFlag()
        self._is_hurried = False
        self._log_bytes: dict[Offset, int] = {}
        self._completed: set[Offset] = set()
        """Closed segments that are copied with all their files."""
        self._snapshots: set[Offset] = set()
        self._unsynced: dict[str, None] = {}
        """Files that were written and not synced yet; an order, not a set, for repeatable runs."""
        self.end_offset = Offset(0)
        """The copy has all of the log below it; for the reported lag."""
        self.size_bytes = 0

    def missing_bytes(self, plan: CopyPlan) -> int:
        """How much of the segments is not copied."""
        return sum(
            part.size_bytes - self._log_bytes.get(part.base_offset, 0) for part in plan.parts
        )

    def copy(self, plan: CopyPlan, *, bytes_max: int, is_hurried: bool = False) -> bool:
        """Copy what is missing, about `bytes_max` of it; whether that was all.

        `is_hurried` is for the loop's own thread, which must not wait for the throttle. Raises
        CopyFailed, and CleaningCancelled when it was cancelled.
        """
        self._is_hurried = is_hurried
        self._remove_unplanned(plan)
        is_all = self._copy_segments(plan, bytes_max)
        if is_all:
            for offset in plan.snapshots:
                if offset not in self._snapshots:
                    self._copy_file(offset, names.SNAPSHOT)
                    self._snapshots.add(offset)
        self._sync()
        return is_all

    def _copy_segments(self, plan: CopyPlan, bytes_max: int) -> bool:
        left = bytes_max
        for part in plan.parts:
            left -= self._copy_segment(part, max(left, CHUNK_BYTES))
            if self._log_bytes[part.base_offset] < part.size_bytes:
                return False
            self.end_offset = part.end_offset
            if left <= 0 and part is not plan.parts[-1]:
                return False
        return True

    def _sync(self) -> None:
        while self._unsynced:
            some = list(self._unsynced)[:SYNCED_TOGETHER_MAX]
            with ExitStack() as opened:
                with blame(Side.TARGET):
                    files = [opened.enter_context(self._disk.open_read(path)) for path in some]
                with blame(Side.TARGET, is_sync=True):
                    self._disk.sync_many(files, [])
            for path in some:
                del self._unsynced[path]

    # -- segments --------------------------------------------------------------------------

    def _copy_segment(self, part: SegmentPart, bytes_max: int) -> int:
        """Copy the rest of a segment; how many bytes that was."""
        base = part.base_offset
        if base in self._completed:
            return 0
        start = self._log_bytes.get(base, 0)
        stop = min(part.size_bytes, start + bytes_max)
        if start < stop or base not in self._log_bytes:
            self._copy_range(base, start, stop)
        if stop == part.size_bytes:
            self._copy_file(base, names.TXN_INDEX)
            if part.is_closed:
                self._copy_file(base, names.OFFSET_INDEX)
                self._copy_file(base, names.TIME_INDEX)
                self._keep_age(base)
                self._completed.add(base)
        return stop - start

    def _keep_age(self, base: Offset) -> None:
        """A closed segment keeps its age: retention may have to take it from the file's time."""
        with blame(Side.SOURCE):
            time_ms = self._disk.modified_ms(names.segment_path(self._source, base, names.LOG))
        if time_ms is not None:
            with blame(Side.TARGET):
                target = names.segment_path(self._target, base, names.LOG)
                self._disk.set_modified_ms(target, time_ms)

    def _copy_range(self, base: Offset, start: int, stop: int) -> None:
        source = names.segment_path(self._source, base, names.LOG)
        target = names.segment_path(self._target, base, names.LOG)
        with blame(Side.SOURCE):
            reader = self._disk.open_read(source)
        with reader:
            with blame(Side.TARGET):
                writer = self._disk.open_write(target)
            with writer:
                if not start:
                    with blame(Side.TARGET):
                        writer.truncate(0)
                for position in range(start, stop, CHUNK_BYTES):
                    self._copy_chunk(reader, writer, position, min(CHUNK_BYTES, stop - position))
        self._unsynced[target] = None
        self._log_bytes[base] = stop
        self.size_bytes += stop - start

    def _copy_chunk(self, reader: File, writer: File, position: int, size: int) -> None:
        with blame(Side.SOURCE):
            data = reader.read_at(position, size)
            if len(data) < size:
                raise OSError(errno.EIO, "segment file is shorter than its batches", reader.path)
        with blame(Side.TARGET):
            writer.write_at(position, data)
        if self._is_hurried:
            self._throttle.note(size)
        else:
            self._throttle.spend(size, self.cancel)

    def _copy_file(self, base: Offset, kind: str) -> None:
        """Copy an index or a snapshot as a whole. A missing one can be built again."""
        source = names.segment_path(self._source, base, kind)
        target = names.segment_path(self._target, base, kind)
        with blame(Side.SOURCE):
            try:
                reader = self._disk.open_read(source)
            except FileNotFoundError:
                self._remove(target)
                return
        with reader:
            with blame(Side.TARGET):
                writer = self._disk.open_write(target)
            with writer:
                self._copy_all(reader, writer)
        self._unsynced[target] = None

    def _copy_all(self, reader: File, writer: File) -> None:
        with blame(Side.TARGET):
            writer.truncate(0)
        position = 0
        while True:
            with blame(Side.SOURCE):
                data = reader.read_at(position, CHUNK_BYTES)
            if not data:
                break
            with blame(Side.TARGET):
                writer.write_at(position, data)
            position += len(data)

    # -- what was removed meanwhile --------------------------------------------------------

    def _remove_unplanned(self, plan: CopyPlan) -> None:
        """Segments that retention removed from the log must not come back with the copy."""
        planned = {part.base_offset for part in plan.parts}
        wanted = {names.SNAPSHOT: set(plan.snapshots)}
        with blame(Side.TARGET):
            present = self._disk.list_directory(self._target)
        for name in present:
            parsed = names.parse_segment_file(name)
            if parsed is None:
                if name not in _KEPT:
                    self._remove(f"{self._target}/{name}")
                continue
            base, kind, state = parsed
            if state or base not in wanted.get(kind, planned):
                self._remove(f"{self._target}/{name}")
        for base in [one for one in self._log_bytes if one not in planned]:
            self.size_bytes -= self._log_bytes.pop(base)
            self._completed.discard(base)
        self._snapshots.intersection_update(plan.snapshots)

    def _remove(self, path: str) -> None:
        self._unsynced.pop(path, None)
        with blame(Side.TARGET), suppress(FileNotFoundError):
            self._disk.remove(path)

"""Whether what is about to be read of a file is still what was written to it.

A file can be cut, zeroed or overwritten by others while it is in use, and ranges go from the page
cache to a socket without anybody looking at them. So the headers of the batches in a range are
checked first. Once is enough: a file that has not changed since needs no second check. If it was
changed after our last write, the CRCs are checked as well.
"""

from struct import Struct
from typing import Final

from millstream.kernels import batches, header_chain
from millstream.kernels.header_chain import BROKEN, SHORT, WHOLE
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset
from millstream.runtime.disk import File, ShortFile
from millstream.storage.segments.file_walk import FileWalk

_HEADER: Final = Struct(">qi4xb6xi34x")  # base offset, length, magic, last offset delta
_MAGIC: Final = 2
_LENGTH_OVERHEAD: Final = 12
_INT64_MAX: Final = 2**63 - 1


class CheckedRange:
    """The range of one file that was checked, and the file's stamp at that time."""

    __slots__ = ("_end", "_is_suspect", "_stamp", "_start", "_written")

    def __init__(self) -> None:
        self._start = self._end = self._stamp = self._written = 0
        self._is_suspect = False
        """Whether another process has changed the file."""

    def note_write(self, file: File) -> None:
        """This broker has changed the file: changes up to now are its own."""
        self._written = file.now()

    def check(self, file: File, position: int, stop: int, *, end: int, offset: Offset) -> None:
        """Raise ShortFile unless the file has `end` bytes, and CorruptRecords unless the batches
        that begin in [position, stop), the first of them at `position`, follow each other.

        None has an offset below `offset`. What is not in the page cache is not read for this: the
        loop would wait for the disk. There only holes are noticed, and the header at `position`,
        which every search reads.
        """
        size, stamp, is_certain = file.state()
        if size < end:
            raise ShortFile(file.path, size=size, expected=end)
        if stamp > self._written:
            self._is_suspect = self._is_suspect or self._written != 0
            self._written = self._written or file.now()
        is_known = stamp == self._stamp and self._start <= position <= self._end
        start = self._end if is_known else position
        if start >= stop:
            return
        found, outcome = _check(file, start, stop, end, offset)
        if outcome == SHORT:
            raise ShortFile(file.path, size=found, expected=end)
        if outcome == BROKEN:
            raise CorruptRecords(f"{file.path}: no record batch at byte {found} of {size}")
        if self._is_suspect:
            _check_crcs(file, start, found)
        if not is_known:
            self._start, self._stamp = position, stamp if is_certain else 0
        self._end = found


def _check_crcs(file: File, start: int, stop: int) -> None:
    walk = FileWalk(file, start=start, stop=stop, check_crc=True)
    for _ in walk:
        pass
    if walk.valid_end != stop:
        raise CorruptRecords(f"{file.path}: {walk.reason.text} at byte {walk.valid_end}")


def _check(file: File, position: int, stop: int, end: int, offset: int) -> tuple[int, int]:
    descriptor = file.descriptor
    if descriptor is not None:
        return header_chain.check_file(descriptor, position, stop, end, offset, False)
    while position < stop:
        header = file.read_at(position, batches.HEADER_BYTES)
        if len(header) < batches.HEADER_BYTES:
            return position, SHORT
        base, length, magic, last_delta = _HEADER.unpack(header)
        size, last = length + _LENGTH_OVERHEAD, base + last_delta
        is_whole = batches.HEADER_BYTES <= size <= end - position
        if magic != _MAGIC or not is_whole or not offset <= base <= last < _INT64_MAX:
            return position, BROKEN
        position += size
        offset = last + 1
    return position, WHOLE

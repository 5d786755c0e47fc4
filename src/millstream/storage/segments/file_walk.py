"""A sequential walk over the batches of a file, many at a time, in bounded memory."""

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.kernels import batches
from millstream.kernels.errors import Reason
from millstream.model.limits import BATCH_BYTES_MAX, MIB
from millstream.runtime.disk import File

CHUNK_BYTES: Final = 4 * MIB
"""Read at once; a batch that is larger gets a buffer of its own size."""


class WalkStep(NamedTuple):
    """Some whole batches: their bytes, their rows, and file position minus row position."""

    buffer: memoryview
    rows: "array[int]"
    shift: int

    @property
    def last_offset(self) -> int:
        return self.rows[batches.LAST_OFFSET - batches.ROW_FIELDS]


class FileWalk:
    """Iterate to walk; afterwards `valid_end` and `reason` say where and why it stopped.

    The buffer of a step is reused by the next one.
    """

    def __init__(self, file: File, *, start: int, stop: int, check_crc: bool) -> None:
        self._file = file
        self._stop = stop
        self._check_crc = check_crc
        self.valid_end = start
        self.reason = Reason.NONE

    def __iter__(self) -> Iterator[WalkStep]:
        buffer = memoryview(bytearray(min(CHUNK_BYTES, self._stop - self.valid_end)))
        while self.valid_end < self._stop:
            start = self.valid_end
            size = self._file.read_into(start, buffer[: self._stop - start])
            if not size:
                self.reason = Reason.SHORT  # the file was cut since its size was taken
                return
            rows, end, reason = batches.walk(
                buffer, 0, size, check_crc=self._check_crc, size_max=BATCH_BYTES_MAX
            )
            self.valid_end = start + end
            if rows:
                yield WalkStep(buffer, rows, start)
            elif reason == Reason.SHORT:
                claimed = self._claimed_size(buffer[:size])
                if claimed <= len(buffer) or start + claimed > self._stop:
                    self.reason = Reason.SHORT
                    return
                # Claimed by a stored header and checked against the file's size.
                buffer = memoryview(bytearray(claimed))
                continue
            if reason not in (Reason.NONE, Reason.SHORT):
                self.reason = Reason(reason)
                return

    @staticmethod
    def _claimed_size(head: memoryview) -> int:
        if len(head) < batches.HEADER_BYTES:
            return 0
        return int.from_bytes(head[8:12], "big", signed=True) + 12

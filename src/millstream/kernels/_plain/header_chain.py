"""Whether batches follow each other, by their headers only; see `header_chain.pyi`."""

import errno
import os
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from millstream.kernels.batch_layout import HEADER_BYTES, MAGIC_V2, UNCOUNTED_BYTES
from millstream.kernels.outcomes import BROKEN, COLD_CHAIN, SHORT_CHAIN, WHOLE

__all__ = ["BROKEN", "COLD", "SHORT", "WHOLE", "check_bytes", "check_file"]

COLD: Final = COLD_CHAIN
SHORT: Final = SHORT_CHAIN

_HEADER: Final = Struct(">qi4xb6xi34x")  # base offset, length, magic, last offset delta
_INT64_MAX: Final = 2**63 - 1
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)


def check_file(
    file: int,
    position: int,
    stop: int,
    end: int,
    offset: int,
    may_wait: bool,  # noqa: FBT001 - as in the compiled twin
) -> tuple[int, int]:
    if position < 0 or stop > end:
        raise ValueError(f"[{position}, {stop}) of {end} bytes")
    header, flags = bytearray(HEADER_BYTES), 0 if may_wait else _NOWAIT
    while position < stop:
        size = _read(file, header, position, flags)
        is_partial = 0 < size < HEADER_BYTES <= end - position
        if size < 0 or (is_partial and flags):
            return position, BROKEN if _has_hole(file, position, stop) else COLD
        if size < HEADER_BYTES:
            return position, SHORT if end - position >= HEADER_BYTES else BROKEN
        size, offset = _step(header, 0, offset)
        if not 0 < size <= end - position:
            return position, BROKEN
        position += size
    return position, WHOLE


def check_bytes(buffer: Buffer, offset: int) -> bool:
    with memoryview(buffer).cast("B") as view:
        position = 0
        while len(view) - position >= HEADER_BYTES:
            size, offset = _step(view, position, offset)
            if size <= 0:
                return False
            position += size
        return position == len(view)


def _step(header: Buffer, position: int, offset: int) -> tuple[int, int]:
    """The size of the batch, and the smallest offset that may follow it; no size if it is wrong."""
    base, length, magic, last_delta = _HEADER.unpack_from(header, position)
    last = base + last_delta
    size = length + UNCOUNTED_BYTES
    if magic != MAGIC_V2 or size < HEADER_BYTES or not offset <= base <= last < _INT64_MAX:
        return 0, offset
    return size, last + 1


def _read(file: int, header: bytearray, position: int, flags: int) -> int:
    """The bytes read; -1 where they are not in the page cache."""
    try:
        return os.preadv(file, [header], position, flags)
    except BlockingIOError:
        return -1
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP or not flags:
            raise
        return os.preadv(file, [header], position)


def _has_hole(file: int, position: int, stop: int) -> bool:
    """A log has none: bytes that were never written are read as zeros."""
    try:
        return os.lseek(file, position, os.SEEK_HOLE) < stop
    except OSError:
        return False  # not known

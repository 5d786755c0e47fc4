"""From a file's pages to a socket without a copy in between; see `send_file.pyi`."""

import ctypes
import errno
import mmap
import os
from typing import Final

from millstream.kernels.outcomes import COLD, FULL, SENT, SHORT, UNKNOWN

__all__ = ["COLD", "FULL", "SENT", "SHORT", "UNKNOWN", "send_file"]

_WINDOW_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = mmap.PAGESIZE
_PROT_NONE: Final = 0
_MAP_FAILED: Final = ctypes.c_void_p(-1).value

_libc: Final = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def send_file(sock: int, file: int, position: int, size: int) -> tuple[int, int]:
    if position < 0 or size < 0:
        raise ValueError(f"{size} bytes from byte {position}")
    sent = 0
    while sent < size:
        at = position + sent
        cached = _cached_bytes(file, at, min(size - sent, _WINDOW_BYTES))
        if cached <= 0:
            return sent, UNKNOWN if cached < 0 else COLD
        try:
            done = os.sendfile(sock, file, at, cached)
        except BlockingIOError:
            return sent, FULL
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOSYS):
                raise
            return sent, UNKNOWN
        sent += done
        if done < cached:
            return sent, FULL if done else SHORT
    return sent, SENT


def _cached_bytes(file: int, position: int, size: int) -> int:
    """From `position` on; -1 where that is unknown."""
    start = position - position % _PAGE_BYTES
    length = position + size - start
    count = -(-length // _PAGE_BYTES)
    found = ctypes.create_string_buffer(count)
    address = _libc.mmap(None, length, _PROT_NONE, mmap.MAP_SHARED, file, start)
    if address == _MAP_FAILED:
        return -1
    failed = _libc.mincore(address, length, found)
    _libc.munmap(address, length)
    if failed:
        return -1
    pages = next((number for number, page in enumerate(found.raw) if not page & 1), count)
    return max(0, min(size, pages * _PAGE_BYTES - (position - start)))

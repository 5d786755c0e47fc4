"""How the C library keeps memory that was given back to it."""

import ctypes
from contextlib import suppress
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
"""Of `mallopt(3)`, in glibc's numbering."""

OWN_MAPPING_BYTES_MIN: Final = 1024 * 1024
"""Smaller blocks come and go with every request, and a mapping costs its page faults each time."""


def return_large_blocks() -> None:
    """Let every large block be a mapping of its own, which is gone when it is freed.

    glibc raises the size from which that is so to that of the largest block it has seen freed, up
    to 32 MB. After one large request the buffers of all others come from the heap, and what
    disconnected clients had sent stays allocated below whatever lies above it, forever.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, OWN_MAPPING_BYTES_MIN)


def return_free_pages() -> None:
    """Give free pages inside the heap back to the system: about 0.1 ms for each MiB of them.

    Smaller blocks than the large ones share the heap, which only shrinks from its end by itself.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

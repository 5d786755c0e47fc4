"""How many descriptors the process may have: connections and segment files share them."""

import resource
from contextlib import suppress
from typing import Final

SEGMENT_FILES_SHARE: Final = 2
"""Every second descriptor may be a segment file; the rest is for connections."""
SEGMENT_FILES_MAX: Final = 32_768
"""Beyond this an open file costs more memory than opening it again costs time."""
OTHERS_MAX: Final = 384
"""Kept from clients' connections, so that they never shut out others: connections of brokers and
administrators, those beyond the limits, of HTTP (128), to the coordination service, and files."""
UNLIMITED: Final = 2**31 - 1


def raise_limit() -> int:
    """Raise the soft limit to the hard one, as servers do; the limit then in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # kept as it is where the system says no
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def segment_files_max(limit: int, *, lowest: int) -> int:
    """How many segment files to hold open with that many descriptors."""
    return max(lowest, min(limit // SEGMENT_FILES_SHARE, SEGMENT_FILES_MAX))


def connections_max(limit: int, segment_files: int) -> int:
    """How many connections of clients to accept with that many descriptors."""
    if limit == resource.RLIM_INFINITY:
        return UNLIMITED
    return max(limit // 4, limit - segment_files - OTHERS_MAX)

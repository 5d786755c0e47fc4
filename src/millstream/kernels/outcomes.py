"""What kernels return beside numbers; the stubs say what each of them means.

For the plain twins. The compiled kernels have the same names as C constants in
`_compiled/outcomes.pxd`, and a test compares the two.
"""

from typing import Final

# `PartitionSlot.tail`, instead of a position.
NOT_AT_TAIL: Final = -1
NOTHING_NEW: Final = -2

# `find_offset` and `find_timestamp`, instead of a size.
NOT_FOUND: Final = -1
MALFORMED_HEADER: Final = -2

# `KeyMap.keep_flags`, one byte per record.
OUTDATED: Final = 0
NEWEST: Final = 1
WITHOUT_KEY: Final = 2
NEWEST_TOMBSTONE: Final = 3

# `EpollShell.read_ready`: bits of what a connection needs.
REQUESTS: Final = 1
WRITABLE: Final = 2
ENDED: Final = 4

# `EpollShell.wait`: bits of what it found.
CONNECTIONS_READY: Final = 1
LOOP_READY: Final = 2

# `check_file` of `header_chain`: why it stopped.
WHOLE: Final = 0
COLD_CHAIN: Final = 1
SHORT_CHAIN: Final = 2
BROKEN: Final = 3

# `send_file`: why it stopped.
SENT: Final = 0
FULL: Final = 1
COLD: Final = 2
SHORT: Final = 3
UNKNOWN: Final = 4
FAILED: Final = 5
"""Becomes an OSError: no caller sees it."""

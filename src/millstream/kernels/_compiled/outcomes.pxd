# What kernels return beside numbers. Constants only: there is no module behind it.
# `kernels/outcomes.py` has the same names for plain Python; a test compares the two.

cdef enum:
    # `PartitionSlot.tail`, instead of a position.
    NOT_AT_TAIL = -1
    NOTHING_NEW = -2

cdef enum:
    # `find_offset` and `find_timestamp`, instead of a size.
    NOT_FOUND = -1
    MALFORMED_HEADER = -2

cdef enum:
    # `KeyMap.keep_flags`, one byte per record.
    OUTDATED = 0
    NEWEST = 1
    WITHOUT_KEY = 2
    NEWEST_TOMBSTONE = 3

cdef enum:
    # `EpollShell.read_ready`: bits of what a connection needs.
    REQUESTS = 1
    WRITABLE = 2
    ENDED = 4
    # `EpollShell.wait`: bits of what it found.
    CONNECTIONS_READY = 1
    LOOP_READY = 2

cdef enum:
    # `check_file` of `header_chain`: why it stopped.
    WHOLE = 0
    COLD_CHAIN = 1
    SHORT_CHAIN = 2
    BROKEN = 3

cdef enum:
    # `send_file`: why it stopped.
    SENT = 0
    FULL = 1
    COLD = 2
    SHORT = 3
    UNKNOWN = 4
    FAILED = 5  # errno says how; becomes an OSError

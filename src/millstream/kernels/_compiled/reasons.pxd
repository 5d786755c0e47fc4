# `Reason` of `kernels/errors.py` as C constants, which a test compares with it. There is no module
# behind it.

cdef enum:
    NONE = 0
    SHORT = 1
    LENGTH = 2
    MAGIC = 3
    CRC = 4
    OFFSETS = 5
    COUNT = 6
    CODEC = 7
    RECORD = 8
    COMPRESSION = 9
    TOO_LARGE = 10

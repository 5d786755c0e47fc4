# C layout and constants of keymap.py.
from libc.stdint cimport uint64_t

cdef struct Hash:
    uint64_t low
    uint64_t high

cdef struct Slot:
    uint64_t low
    uint64_t high
    uint64_t offset_plus_one

cdef struct SipState:
    uint64_t v0
    uint64_t v1
    uint64_t v2
    uint64_t v3

cdef enum:
    SLOT_BYTES = 24
    HASH_KEY_BYTES = 16
    # SipHash: what makes it the variant with 128 bits, and before its second half.
    WIDE_MARK = 0xEE
    SECOND_MARK = 0xDD

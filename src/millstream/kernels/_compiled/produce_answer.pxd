# The bytes of a Produce response, versions 3-13. Inline only: there is no module behind it.
# `Plan.answer_bytes_max` says how much room they need at most.
from libc.string cimport memcpy

from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put32, ms_put64, ms_put_varint


cdef inline unsigned char* put_start(
    unsigned char* at, int version, int correlation_id, Py_ssize_t topics
) noexcept:
    """The header and the number of topics; the frame's size is written by `put_end`."""
    at = ms_put32(at + 4, <unsigned int>correlation_id)
    if version < 9:
        return ms_put32(at, <unsigned int>topics)
    at[0] = 0
    return ms_put_varint(at + 1, <unsigned int>topics + 1)


cdef inline unsigned char* put_topic(
    unsigned char* at, int version, unsigned char* name, Py_ssize_t size, unsigned int partitions
) noexcept:
    """`name` is the topic's id from version 13 on."""
    if version < 9:
        at = ms_put16(at, <unsigned int>size)
    elif version < 13:
        at = ms_put_varint(at, <unsigned int>size + 1)
    memcpy(at, name, size)
    at += size
    return ms_put32(at, partitions) if version < 9 else ms_put_varint(at, partitions + 1)


cdef inline unsigned char* put_partition(
    unsigned char* at, int version, unsigned int partition, long long base_offset, long long log_start
) noexcept:
    """Index, no error, base offset, no append time, log start, no record errors, no message."""
    at = ms_put16(ms_put32(at, partition), 0)
    at = ms_put64(at, <unsigned long long>base_offset)
    at = ms_put64(at, <unsigned long long>-1)
    if version >= 5:
        at = ms_put64(at, <unsigned long long>log_start)
    if version == 8:
        return ms_put16(ms_put32(at, 0), 0xFFFF)
    if version > 8:
        at[0], at[1], at[2] = 1, 0, 0
        at += 3
    return at


cdef inline unsigned char* put_no_tags(unsigned char* at, int version) noexcept:
    if version < 9:
        return at
    at[0] = 0
    return at + 1


cdef inline Py_ssize_t put_end(unsigned char* made, unsigned char* at, int version) noexcept:
    """Not throttled, no tags; returns the size of the whole frame."""
    at = put_no_tags(ms_put32(at, 0), version)
    ms_put32(made, <unsigned int>(at - made - 4))
    return at - made

# The bytes of a Produce response, versions 3-13. Inline only: there is no module behind it.
# `Plan.answer_bytes_max` says how much room they need at most.
from libc.string cimport memcpy

from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put32, ms_put64, ms_put_varint
from millstream.kernels._compiled.request_layout cimport (
    FRAME_SIZE_BYTES, NULL_SIZE, PRODUCE_FLEXIBLE_FROM, PRODUCE_LOG_START_FROM,
    PRODUCE_RECORD_ERRORS_FROM, PRODUCE_TOPIC_IDS_FROM,
)

cdef enum:
    # Bytes that are needed at most.
    FRAME_BYTES = 32  # size, header, number of topics, throttle time, tags
    TOPIC_BYTES = 16  # beside its name or id
    PARTITION_BYTES = 48
    NO_ERROR = 0
    NO_TAGS = 0
    NO_TIMESTAMP = -1


cdef inline unsigned char* put_start(
    unsigned char* at, int version, int correlation_id, Py_ssize_t topics
) noexcept:
    """The header and the number of topics; the frame's size is written by `put_end`."""
    at = ms_put32(at + FRAME_SIZE_BYTES, <unsigned int>correlation_id)
    if version < PRODUCE_FLEXIBLE_FROM:
        return ms_put32(at, <unsigned int>topics)
    at[0] = NO_TAGS
    return ms_put_varint(at + 1, <unsigned int>topics + 1)


cdef inline unsigned char* put_topic(
    unsigned char* at, int version, unsigned char* name, Py_ssize_t size, unsigned int partitions
) noexcept:
    """`name` is the topic's id from version 13 on."""
    if version < PRODUCE_FLEXIBLE_FROM:
        at = ms_put16(at, <unsigned int>size)
    elif version < PRODUCE_TOPIC_IDS_FROM:
        at = ms_put_varint(at, <unsigned int>size + 1)
    memcpy(at, name, size)
    at += size
    if version < PRODUCE_FLEXIBLE_FROM:
        return ms_put32(at, partitions)
    return ms_put_varint(at, partitions + 1)


cdef inline unsigned char* put_partition(
    unsigned char* at, int version, unsigned int partition, long long base_offset,
    long long log_start,
) noexcept:
    """Index, no error, base offset, no append time, log start, no record errors, no message."""
    at = ms_put16(ms_put32(at, partition), NO_ERROR)
    at = ms_put64(at, <unsigned long long>base_offset)
    at = ms_put64(at, <unsigned long long>NO_TIMESTAMP)
    if version >= PRODUCE_LOG_START_FROM:
        at = ms_put64(at, <unsigned long long>log_start)
    if version < PRODUCE_RECORD_ERRORS_FROM:
        return at
    if version < PRODUCE_FLEXIBLE_FROM:
        return ms_put16(ms_put32(at, 0), <unsigned int>NULL_SIZE)
    at[0], at[1], at[2] = 1, 0, NO_TAGS  # compact lengths are one more, 0 is null
    return at + 3


cdef inline unsigned char* put_no_tags(unsigned char* at, int version) noexcept:
    if version < PRODUCE_FLEXIBLE_FROM:
        return at
    at[0] = NO_TAGS
    return at + 1


cdef inline Py_ssize_t put_end(unsigned char* made, unsigned char* at, int version) noexcept:
    """Not throttled, no tags; returns the size of the whole frame."""
    at = put_no_tags(ms_put32(at, 0), version)
    ms_put32(made, <unsigned int>(at - made - FRAME_SIZE_BYTES))
    return at - made

# The bytes of a Fetch response. Inline only: there is no module behind it.
from cpython.bytes cimport PyBytes_AS_STRING
from libc.string cimport memcpy

from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put32, ms_put64, ms_put_varint
from millstream.kernels._compiled.fetch_layout cimport (
    FLEXIBLE_FROM, LOG_START_FROM, RACK_FROM, SESSIONS_FROM, TOPIC_IDS_FROM,
)
from millstream.kernels._compiled.request_layout cimport (
    FRAME_SIZE_BYTES, NULL_SIZE, TOPIC_ID_BYTES,
)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    # Bytes that are needed at most.
    FRAME_BYTES = 32  # size, header, the response's own fields, its last tags
    TOPIC_BYTES = 12  # beside its name
    PARTITION_BYTES = 56  # beside its records
    CHARACTER_BYTES_MAX = 4
    NAME_BYTES_MAX = 0x7FFF
    NO_REPLICA = -1


cdef struct Facts:
    # Of a partition. `with_aborted`: the list of aborted transactions is empty, not missing.
    long long partition
    int error
    long long high_watermark
    long long last_stable_offset
    long long log_start
    bint with_aborted
    Py_ssize_t size_bytes


cdef inline unsigned char* put_length(
    unsigned char* at, int version, unsigned int number
) noexcept:
    return ms_put_varint(at, number + 1) if version >= FLEXIBLE_FROM else ms_put32(at, number)


cdef inline unsigned char* put_start(
    unsigned char* made, int version, int correlation_id, int error, int session_id
) noexcept:
    """The header and the response's own fields; the frame's size comes last."""
    cdef unsigned char* at = ms_put32(made + FRAME_SIZE_BYTES, <unsigned int>correlation_id)
    if version >= FLEXIBLE_FROM:
        at = ms_put_varint(at, 0)
    at = ms_put32(at, 0)  # not throttled
    if version >= SESSIONS_FROM:
        at = ms_put32(ms_put16(at, <unsigned int>error), <unsigned int>session_id)
    return at


cdef inline unsigned char* put_topic(
    unsigned char* at, int version, key, unsigned int siblings
) except NULL:
    """Its name or id and the number of its partitions."""
    cdef Py_ssize_t size
    cdef const char* name
    if version >= TOPIC_IDS_FROM:
        if not isinstance(key, bytes) or len(key) != TOPIC_ID_BYTES:
            raise ValueError(f"{key!r} is no topic id")
        memcpy(at, PyBytes_AS_STRING(key), TOPIC_ID_BYTES)
        at += TOPIC_ID_BYTES
    else:
        name = PyUnicode_AsUTF8AndSize(key, &size)
        if version >= FLEXIBLE_FROM:
            at = ms_put_varint(at, <unsigned int>size + 1)
        elif size <= NAME_BYTES_MAX:
            at = ms_put16(at, <unsigned int>size)
        else:
            raise ValueError(f"a topic's name of {size} bytes")
        memcpy(at, name, size)
        at += size
    return put_length(at, version, siblings)


cdef inline unsigned char* put_facts(unsigned char* at, int version, Facts* facts) noexcept:
    """A partition up to its records, whose size comes last."""
    at = ms_put32(at, <unsigned int>facts.partition)
    at = ms_put16(at, <unsigned int>facts.error)
    at = ms_put64(at, <unsigned long long>facts.high_watermark)
    at = ms_put64(at, <unsigned long long>facts.last_stable_offset)
    if version >= LOG_START_FROM:
        at = ms_put64(at, <unsigned long long>facts.log_start)
    if facts.with_aborted:
        at = put_length(at, version, 0)
    elif version >= FLEXIBLE_FROM:
        at[0] = 0
        at += 1
    else:
        at = ms_put32(at, <unsigned int>NULL_SIZE)
    if version >= RACK_FROM:
        at = ms_put32(at, <unsigned int>NO_REPLICA)
    return put_length(at, version, <unsigned int>facts.size_bytes)

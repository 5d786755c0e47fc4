"""The common shapes of Fetch requests; `parse` of `fetch.pyi`.

A request of another shape, one that ends too early and one of very many partitions set `is_bad`:
reading goes on with zeros, so that loops and lengths end, and `parse` returns None.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8

from millstream.kernels._compiled.big_endian cimport get_i16, get_i32, get_i64
from millstream.kernels._compiled.fetch_layout cimport (
    FLEXIBLE_FROM, LAST_EPOCH_FROM, LEADER_EPOCH_FROM, LOG_START_FROM, RACK_FROM, REPLICA_EPOCH_AT,
    REPLICA_ID_AT, REPLICA_STATE_BYTES, REPLICA_STATE_FROM, REPLICA_STATE_TAG, REPLICA_TAGS_AT,
    SESSIONS_FROM, TAGS_BYTES, TOPIC_IDS_FROM,
)
from millstream.kernels._compiled.request_layout cimport (
    INT16_BYTES, INT32_BYTES, INT64_BYTES, NULL_SIZE, TOPIC_ID_BYTES,
)

__all__ = ["parse"]

cdef enum:
    LENGTH_BITS_MAX = 28  # four bytes of a varint: more than a frame can hold
    NOT_SAID = -1  # of a field that the version does not have
    NO_SESSION_EPOCH = -1  # no session is wanted
    ITEMS_MAX = 4000  # topics and partitions: more are read in Python, where threads take turns


cdef struct Walk:
    const unsigned char* at
    const unsigned char* end
    int version
    int items  # topics and partitions so far
    bint is_bad  # it ends too early, has another shape or too many items


cdef bint has(Walk* walk, Py_ssize_t size) noexcept:
    if walk.is_bad or size < 0 or walk.end - walk.at < size:
        walk.is_bad = True
        return False
    return True


cdef long long int32(Walk* walk) noexcept:
    if not has(walk, INT32_BYTES):
        return 0
    walk.at += INT32_BYTES
    return get_i32(walk.at - INT32_BYTES)


cdef long long int64(Walk* walk) noexcept:
    if not has(walk, INT64_BYTES):
        return 0
    walk.at += INT64_BYTES
    return get_i64(walk.at - INT64_BYTES)


cdef long long length(Walk* walk, bint is_text) noexcept:
    """A count of items, or the bytes of a text; null sets `is_bad`."""
    cdef unsigned int number = 0
    cdef long long found
    cdef unsigned char byte
    cdef int shift = 0
    if walk.version < FLEXIBLE_FROM:
        if not is_text:
            found = int32(walk)
        elif has(walk, INT16_BYTES):
            found = get_i16(walk.at)
            walk.at += INT16_BYTES
        else:
            found = NULL_SIZE
    else:
        while True:
            if shift == LENGTH_BITS_MAX or not has(walk, 1):
                walk.is_bad = True
                return 0
            byte = walk.at[0]
            walk.at += 1
            number |= <unsigned int>(byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        found = <long long>number - 1
    if found < 0:
        walk.is_bad = True
        return 0
    return found


cdef long long count_items(Walk* walk) noexcept:
    """The number of topics, or of partitions of one."""
    cdef long long count = length(walk, False)
    if count > ITEMS_MAX - walk.items:
        walk.is_bad = True
        return 0
    walk.items += <int>count
    return count


cdef int no_tags(Walk* walk) noexcept:
    if walk.version >= FLEXIBLE_FROM and has(walk, 1):
        walk.is_bad = walk.at[0] != 0
        walk.at += 1
    return 0


cdef int replica_tags(Walk* walk, long long* replica_id, long long* replica_epoch) noexcept:
    """The request's own tagged fields: none, or a follower's state and nothing else."""
    if walk.version < REPLICA_STATE_FROM or not has(walk, 1) or walk.at[0] == 0:
        return no_tags(walk)
    if (
        not has(walk, TAGS_BYTES)
        or walk.at[0] != 1
        or walk.at[1] != REPLICA_STATE_TAG
        or walk.at[2] != REPLICA_STATE_BYTES
        or walk.at[REPLICA_TAGS_AT]
    ):
        walk.is_bad = True
        return 0
    replica_id[0] = get_i32(walk.at + REPLICA_ID_AT)
    replica_epoch[0] = get_i64(walk.at + REPLICA_EPOCH_AT)
    walk.at += TAGS_BYTES
    return 0


cdef object text(Walk* walk):
    cdef Py_ssize_t size = <Py_ssize_t>length(walk, True)
    if not has(walk, size):
        return None
    walk.at += size
    try:
        return PyUnicode_DecodeUTF8(<const char*>walk.at - size, size, NULL)
    except UnicodeDecodeError:
        walk.is_bad = True
        return None


cdef object topic(Walk* walk):
    if walk.version < TOPIC_IDS_FROM:
        return text(walk)
    if not has(walk, TOPIC_ID_BYTES):
        return None
    walk.at += TOPIC_ID_BYTES
    return PyBytes_FromStringAndSize(<const char*>walk.at - TOPIC_ID_BYTES, TOPIC_ID_BYTES)


cdef tuple partition(Walk* walk, key):
    cdef int version = walk.version
    cdef long long index = int32(walk)
    cdef long long epoch = int32(walk) if version >= LEADER_EPOCH_FROM else NOT_SAID
    cdef long long offset = int64(walk)
    cdef long long last_epoch = int32(walk) if version >= LAST_EPOCH_FROM else NOT_SAID
    cdef long long log_start = int64(walk) if version >= LOG_START_FROM else NOT_SAID
    cdef long long max_bytes = int32(walk)
    no_tags(walk)
    return (key, index, epoch, offset, last_epoch, log_start, max_bytes)


cdef list topics(Walk* walk, bint is_forgotten):
    cdef list found = []
    cdef long long count = count_items(walk)
    cdef long long siblings
    while count > 0 and not walk.is_bad:
        count -= 1
        key = topic(walk)
        siblings = count_items(walk)
        while siblings > 0 and not walk.is_bad:
            siblings -= 1
            found.append((key, int32(walk)) if is_forgotten else partition(walk, key))
        no_tags(walk)
    return found


cdef tuple parse_walk(Walk* walk):
    cdef int version = walk.version
    cdef long long replica_id = int32(walk) if version < REPLICA_STATE_FROM else NOT_SAID
    cdef long long replica_epoch = NOT_SAID
    cdef long long max_wait_ms = int32(walk)
    cdef long long min_bytes = int32(walk)
    cdef long long max_bytes = int32(walk)
    cdef long long isolation = 0
    cdef long long session_id = 0
    cdef long long session_epoch = NO_SESSION_EPOCH
    if has(walk, 1):
        isolation = <signed char>walk.at[0]
        walk.at += 1
    if version >= SESSIONS_FROM:
        session_id, session_epoch = int32(walk), int32(walk)
    partitions = topics(walk, False)
    forgotten = topics(walk, True) if version >= SESSIONS_FROM else []
    rack_id = text(walk) if version >= RACK_FROM else ""
    replica_tags(walk, &replica_id, &replica_epoch)
    if walk.is_bad or walk.at != walk.end:
        return None
    return (
        version, replica_id, max_wait_ms, min_bytes, max_bytes, isolation,
        session_id, session_epoch, partitions, forgotten, rack_id, replica_epoch,
    )


def parse(body, int version):
    cdef Py_buffer view
    cdef Walk walk
    PyObject_GetBuffer(body, &view, PyBUF_SIMPLE)
    try:
        walk.at = <const unsigned char*>view.buf
        walk.end = walk.at + view.len
        walk.version, walk.items, walk.is_bad = version, 0, False
        return parse_walk(&walk)
    finally:
        PyBuffer_Release(&view)

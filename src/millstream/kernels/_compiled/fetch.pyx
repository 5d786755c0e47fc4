"""The common shapes of Fetch: requests read, answers written, cursors; see `fetch.pyi`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put32, ms_put64, ms_put_varint
from millstream.kernels._compiled.partition_slot cimport PartitionSlot

from millstream.kernels._compiled.fetch_request import parse

__all__ = [
    "UNKNOWN",
    "Cursor",
    "answer_frame",
    "moved",
    "moved_for_follower",
    "parse",
    "tail_frame",
]

UNKNOWN = -1

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int file, void* buffer, size_t size, long long position)

cdef enum:
    FLEXIBLE = 12
    WITH_IDS = 13
    FRAME_BYTES = 32  # size, header, the answer's own fields, its last tags
    TOPIC_BYTES = 12  # beside its name
    PARTITION_BYTES = 56  # beside its records


cdef class Cursor:
    """See the stub."""

    cdef public tuple key
    cdef public object name
    cdef public object leader
    cdef public PartitionSlot slot
    cdef public long long current_leader_epoch
    cdef public long long fetch_offset
    cdef public long long last_fetched_epoch
    cdef public long long log_start
    cdef public long long max_bytes
    cdef public long long sent_high_watermark
    cdef public long long sent_log_start
    cdef public long long visible_end

    def __init__(self, tuple asked) -> None:
        self.key = asked[:2]
        self.sent_high_watermark = self.sent_log_start = -1
        self.ask(asked)

    def ask(self, tuple asked) -> None:
        _, _, self.current_leader_epoch, self.fetch_offset, self.last_fetched_epoch = asked[:5]
        self.log_start, self.max_bytes = asked[5], asked[6]
        self.visible_end = -1

    def __repr__(self) -> str:
        return f"Cursor({self.key}, {self.fetch_offset})"


def moved(cursors) -> list:
    cdef Cursor cursor
    cdef PartitionSlot slot
    cdef list found = []
    for cursor in cursors:
        slot = cursor.slot
        if (
            slot is None
            or cursor.fetch_offset != cursor.visible_end
            or slot.high_watermark != cursor.sent_high_watermark
            or slot.log_start != cursor.sent_log_start
        ):
            found.append(cursor)
    return found


def moved_for_follower(cursors) -> list:
    cdef Cursor cursor
    cdef PartitionSlot slot
    cdef list found = []
    for cursor in cursors:
        slot = cursor.slot
        if (
            slot is None
            or cursor.fetch_offset != cursor.visible_end
            or slot.log_end != cursor.visible_end
            or slot.high_watermark != cursor.sent_high_watermark
            or slot.log_start != cursor.sent_log_start
        ):
            found.append(cursor)
    return found


# -- answers

cdef unsigned char* put_length(unsigned char* at, int version, unsigned int number) noexcept:
    return ms_put_varint(at, number + 1) if version >= FLEXIBLE else ms_put32(at, number)


cdef Py_ssize_t bound_of(found) except -1:
    """Bytes that the frame takes at most without its ranges; 0: it is not common."""
    cdef Py_ssize_t bound = FRAME_BYTES
    for one in found:
        key, aborted, raw = (<Cursor?>one[0]).key, one[5], one[6].raw
        if aborted or one[7] is not None:
            return 0
        # A character has at most four bytes.
        bound += TOPIC_BYTES + PARTITION_BYTES + 4 * len(key[0])
        if raw is not None:
            bound += len(raw)
    return bound


cdef Py_ssize_t siblings_of(found, Py_ssize_t at, key) except -1:
    """How many from `at` on are of that topic."""
    cdef Py_ssize_t end = at
    while end < len(found) and (<Cursor>found[end][0]).key[0] == key:
        end += 1
    return end - at


cdef unsigned char* put_topic(
    unsigned char* at, int version, key, unsigned int siblings
) except NULL:
    cdef Py_ssize_t size
    cdef const char* name
    if version >= WITH_IDS:
        if not isinstance(key, bytes) or len(key) != 16:
            raise ValueError(f"{key!r} is no topic id")
        memcpy(at, PyBytes_AS_STRING(key), 16)
        at += 16
    else:
        name = PyUnicode_AsUTF8AndSize(key, &size)
        if version >= FLEXIBLE:
            at = ms_put_varint(at, <unsigned int>size + 1)
        elif size <= 0x7FFF:
            at = ms_put16(at, <unsigned int>size)
        else:
            raise ValueError(f"a topic's name of {size} bytes")
        memcpy(at, name, size)
        at += size
    return put_length(at, version, siblings)


cdef struct Facts:
    # Of a partition. `with_aborted`: the list of aborted transactions is empty, not missing.
    long long partition
    int error
    long long high_watermark
    long long last_stable_offset
    long long log_start
    bint with_aborted
    Py_ssize_t size_bytes


cdef unsigned char* put_facts(unsigned char* at, int version, Facts* facts) noexcept:
    at = ms_put32(at, <unsigned int>facts.partition)
    at = ms_put16(at, <unsigned int>facts.error)
    at = ms_put64(at, <unsigned long long>facts.high_watermark)
    at = ms_put64(at, <unsigned long long>facts.last_stable_offset)
    if version >= 5:
        at = ms_put64(at, <unsigned long long>facts.log_start)
    if facts.with_aborted:
        at = put_length(at, version, 0)
    elif version >= FLEXIBLE:
        at[0] = 0
        at += 1
    else:
        at = ms_put32(at, 0xFFFFFFFF)
    if version >= 11:
        at = ms_put32(at, 0xFFFFFFFF)  # no preferred replica
    return put_length(at, version, <unsigned int>facts.size_bytes)


cdef unsigned char* put_start(
    unsigned char* made, int version, int correlation_id, int error, int session_id
) noexcept:
    """The header and the answer's own fields; the frame's size comes last."""
    cdef unsigned char* at = ms_put32(made + 4, <unsigned int>correlation_id)
    if version >= FLEXIBLE:
        at = ms_put_varint(at, 0)
    at = ms_put32(at, 0)  # not throttled
    if version >= 7:
        at = ms_put32(ms_put16(at, <unsigned int>error), <unsigned int>session_id)
    return at


cdef unsigned char* put_topics(
    unsigned char* made, unsigned char* at, int version, found, list cuts
) except NULL:
    """All partitions; where a range belongs is noted in `cuts`."""
    cdef Py_ssize_t index, left = 0
    cdef Facts facts
    for index in range(len(found)):
        one = found[index]
        if left == 0:
            key = (<Cursor>one[0]).key[0]
            left = siblings_of(found, index, key)
            at = put_topic(at, version, key, <unsigned int>left)
        data = one[6]
        facts.partition, facts.error = (<Cursor>one[0]).key[1], one[1]
        facts.high_watermark, facts.last_stable_offset, facts.log_start = one[2], one[3], one[4]
        facts.with_aborted, facts.size_bytes = one[5] is not None, data.size_bytes
        at = put_facts(at, version, &facts)
        raw = data.raw
        if raw is not None:
            if not isinstance(raw, bytes) or PyBytes_GET_SIZE(raw) != data.size_bytes:
                raise ValueError("records are not as many bytes as they say")
            memcpy(at, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))
            at += PyBytes_GET_SIZE(raw)
        elif data.size_bytes:
            cuts.append((at - made, data))
        left -= 1
        if version >= FLEXIBLE:
            at = ms_put16(at, 0) - (left != 0)  # no tags; the topic's after its last
    return at


cdef Py_ssize_t topic_count(found) except -1:
    cdef Py_ssize_t count = 0
    last = None
    for one in found:
        key = (<Cursor>one[0]).key[0]
        if key != last:
            count += 1
            last = key
    return count


cdef tuple cut(unsigned char* made, Py_ssize_t end, list cuts):
    """The parts, and their size without the first four bytes, which are filled in here."""
    cdef long long size = end - 4
    cdef Py_ssize_t start = 0, stop
    cdef list parts = []
    for _, data in cuts:
        size += data.size_bytes
    if size > 0x7FFFFFFF:
        return None
    ms_put32(made, <unsigned int>size)
    for stop, data in cuts:
        parts.append(PyBytes_FromStringAndSize(<char*>made + start, stop - start))
        parts.append(data)
        start = stop
    if start < end:
        parts.append(PyBytes_FromStringAndSize(<char*>made + start, end - start))
    return parts, size


def answer_frame(int version, int correlation_id, int error, int session_id, found):
    cdef Py_ssize_t bound = bound_of(found)
    cdef unsigned char* made
    cdef unsigned char* at
    cdef list cuts = []
    if not bound:
        return None
    made = <unsigned char*>malloc(bound)
    if made == NULL:
        raise MemoryError
    try:
        at = put_start(made, version, correlation_id, error, session_id)
        at = put_length(at, version, <unsigned int>topic_count(found))
        at = put_topics(made, at, version, found, cuts)
        if version >= FLEXIBLE:
            at[0] = 0
            at += 1
        return cut(made, at - made, cuts)
    finally:
        free(made)


# -- the newest records of one partition

def tail_frame(
    int version, int correlation_id, int session_id, Cursor cursor, long long size_max,
    bint is_committed, bint is_follower,
):
    cdef PartitionSlot slot = cursor.slot
    cdef long long position = -1
    cdef Py_ssize_t size = FRAME_BYTES + TOPIC_BYTES + PARTITION_BYTES + 4 * len(cursor.key[0])
    if slot is not None and is_follower:
        position = slot.end_tail(cursor.fetch_offset, size_max)
    elif slot is not None and slot.is_decided:
        position = slot.tail(cursor.fetch_offset, size_max)
    if position < 0:
        return None
    try:
        file = slot.tail_file.open().descriptor
    except OSError:
        return None  # the long way says what that means
    if file is None:
        return None
    frame = PyBytes_FromStringAndSize(NULL, size + <Py_ssize_t>(slot.position - position))
    made = <unsigned char*>PyBytes_AS_STRING(frame)
    at = put_start(made, version, correlation_id, 0, session_id)
    at = put_tail(at, version, cursor, is_committed, file, position)
    if at == NULL:
        return None
    ms_put32(made, <unsigned int>(at - made - 4))
    cursor.visible_end = slot.log_end  # the high watermark is there, too, for a consumer
    cursor.sent_high_watermark = slot.high_watermark
    cursor.sent_log_start = slot.log_start
    return frame[: at - made], slot.position - position


cdef unsigned char* put_tail(
    unsigned char* at, int version, Cursor cursor, bint is_committed, int file, long long position
) except? NULL:
    """One partition and the end of the answer; NULL when the file has less than it should."""
    cdef PartitionSlot slot = cursor.slot
    cdef Facts facts
    cdef Py_ssize_t size = <Py_ssize_t>(slot.position - position)
    topic, facts.partition = cursor.key
    facts.error, facts.with_aborted, facts.size_bytes = 0, is_committed, size
    facts.high_watermark = facts.last_stable_offset = slot.high_watermark
    facts.log_start = slot.log_start
    at = put_topic(put_length(at, version, 1), version, topic, 1)
    at = put_facts(at, version, &facts)
    if pread(file, at, size, position) != size:
        return NULL
    if version < FLEXIBLE:
        return at + size
    return ms_put_varint(ms_put16(at + size, 0), 0)  # no tags: partition, topic, answer

"""The common shapes of Fetch: requests read, answers written, cursors; see `fetch.pyi`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from millstream.kernels._compiled cimport outcomes
from millstream.kernels._compiled.big_endian cimport ms_put16, ms_put32, ms_put_varint
from millstream.kernels._compiled.fetch_answer cimport (
    CHARACTER_BYTES_MAX, FRAME_BYTES, PARTITION_BYTES, TOPIC_BYTES, Facts, put_facts, put_length,
    put_start, put_topic,
)
from millstream.kernels._compiled.fetch_layout cimport FLEXIBLE_FROM
from millstream.kernels._compiled.header_chain cimport is_chain
from millstream.kernels._compiled.partition_slot cimport PartitionSlot
from millstream.kernels._compiled.request_layout cimport FRAME_SIZE_BYTES

from millstream.kernels._compiled.fetch_request import parse

__all__ = [
    "UNKNOWN",
    "Cursor",
    "answer_frame",
    "cursors_to_read",
    "cursors_to_read_for_follower",
    "parse",
    "tail_frame",
]

cdef enum:
    NOT_SENT_YET = -1
    FRAME_BYTES_MAX = 0x7FFFFFFF

cdef enum:
    # Columns of the broker's `Found`.
    CURSOR = 0
    ERROR = 1
    HIGH_WATERMARK = 2
    LAST_STABLE_OFFSET = 3
    LOG_START = 4
    ABORTED = 5
    DATA = 6
    DIVERGING = 7

UNKNOWN = NOT_SENT_YET

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t pread(int file, void* buffer, size_t size, long long position)


cdef class Cursor:
    """See the stub."""

    cdef public tuple key
    cdef public object name
    cdef public object replica
    cdef public PartitionSlot slot
    cdef public long long current_leader_epoch
    cdef public long long fetch_offset
    cdef public long long last_fetched_epoch
    cdef public long long log_start
    cdef public long long max_bytes
    cdef public long long sent_high_watermark
    cdef public long long sent_log_start
    cdef public long long visible_end

    def __init__(self, tuple requested) -> None:
        self.key = requested[:2]
        self.sent_high_watermark = self.sent_log_start = NOT_SENT_YET
        self.update(requested)

    def update(self, tuple requested) -> None:
        _, _, self.current_leader_epoch, self.fetch_offset, self.last_fetched_epoch = requested[:5]
        self.log_start, self.max_bytes = requested[5], requested[6]
        self.visible_end = NOT_SENT_YET

    def __repr__(self) -> str:
        return f"Cursor({self.key}, {self.fetch_offset})"


def cursors_to_read(cursors) -> list:
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


def cursors_to_read_for_follower(cursors) -> list:
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

cdef Py_ssize_t bound_of(found) except -1:
    """Bytes that the frame takes at most without its ranges; 0 for the slow path."""
    cdef Py_ssize_t bound = FRAME_BYTES
    for one in found:
        key, raw = (<Cursor?>one[CURSOR]).key, one[DATA].raw
        if one[ABORTED] or one[DIVERGING] is not None:
            return 0
        bound += TOPIC_BYTES + PARTITION_BYTES + CHARACTER_BYTES_MAX * len(key[0])
        if raw is not None:
            bound += len(raw)
    return bound


cdef Py_ssize_t siblings_of(found, Py_ssize_t at, key) except -1:
    """How many from `at` on are of that topic."""
    cdef Py_ssize_t end = at
    while end < len(found) and (<Cursor>found[end][CURSOR]).key[0] == key:
        end += 1
    return end - at


cdef unsigned char* put_topics(
    unsigned char* made, unsigned char* at, int version, found, list cuts
) except NULL:
    """All partitions; where a range belongs is noted in `cuts`."""
    cdef Py_ssize_t index, left = 0
    cdef Facts facts
    for index in range(len(found)):
        one = found[index]
        if left == 0:
            key = (<Cursor>one[CURSOR]).key[0]
            left = siblings_of(found, index, key)
            at = put_topic(at, version, key, <unsigned int>left)
        data = one[DATA]
        facts.partition, facts.error = (<Cursor>one[CURSOR]).key[1], one[ERROR]
        facts.high_watermark = one[HIGH_WATERMARK]
        facts.last_stable_offset, facts.log_start = one[LAST_STABLE_OFFSET], one[LOG_START]
        facts.with_aborted, facts.size_bytes = one[ABORTED] is not None, data.size_bytes
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
        if version >= FLEXIBLE_FROM:
            at = ms_put16(at, 0) - (left != 0)  # no tags; the topic's after its last
    return at


cdef Py_ssize_t topic_count(found) except -1:
    cdef Py_ssize_t count = 0
    last = None
    for one in found:
        key = (<Cursor>one[CURSOR]).key[0]
        if key != last:
            count += 1
            last = key
    return count


cdef tuple cut(unsigned char* made, Py_ssize_t end, list cuts):
    """The parts, and the frame's size, which is filled in here and does not count itself."""
    cdef long long size = end - FRAME_SIZE_BYTES
    cdef Py_ssize_t start = 0, stop
    cdef list parts = []
    for _, data in cuts:
        size += data.size_bytes
    if size > FRAME_BYTES_MAX:
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
        if version >= FLEXIBLE_FROM:
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
    cdef long long position = outcomes.NOT_AT_TAIL
    cdef Py_ssize_t size = FRAME_BYTES + TOPIC_BYTES + PARTITION_BYTES
    size += CHARACTER_BYTES_MAX * len(cursor.key[0])
    if slot is not None and is_follower:
        position = slot.end_tail(cursor.fetch_offset, size_max)
    elif slot is not None and slot.is_decided:
        position = slot.tail(cursor.fetch_offset, size_max)
    if position < 0:
        return None
    try:
        file = slot.tail_file.open().descriptor
    except OSError:
        return None  # the slow path says what that means
    if file is None:
        return None
    frame = PyBytes_FromStringAndSize(NULL, size + <Py_ssize_t>(slot.position - position))
    made = <unsigned char*>PyBytes_AS_STRING(frame)
    at = put_start(made, version, correlation_id, 0, session_id)
    at = put_tail(at, version, cursor, is_committed, file, position)
    if at == NULL:
        return None
    ms_put32(made, <unsigned int>(at - made - FRAME_SIZE_BYTES))
    cursor.visible_end = slot.log_end  # the high watermark is there, too, for a consumer
    cursor.sent_high_watermark = slot.high_watermark
    cursor.sent_log_start = slot.log_start
    return frame[: at - made], slot.position - position


cdef unsigned char* put_tail(
    unsigned char* at, int version, Cursor cursor, bint is_committed, int file, long long position
) except? NULL:
    """One partition and the end of the answer; NULL when the file has not what it should."""
    cdef PartitionSlot slot = cursor.slot
    cdef Facts facts
    cdef Py_ssize_t size = <Py_ssize_t>(slot.position - position)
    topic, facts.partition = cursor.key
    facts.error, facts.with_aborted, facts.size_bytes = 0, is_committed, size
    facts.high_watermark = facts.last_stable_offset = slot.high_watermark
    facts.log_start = slot.log_start
    at = put_topic(put_length(at, version, 1), version, topic, 1)
    at = put_facts(at, version, &facts)
    # What was cut, zeroed or overwritten is no answer: the slow path says what it means.
    if pread(file, at, size, position) != size or not is_chain(at, size, cursor.fetch_offset):
        return NULL
    if version < FLEXIBLE_FROM:
        return at + size
    return ms_put_varint(ms_put16(at + size, 0), 0)  # no tags: partition, topic, answer

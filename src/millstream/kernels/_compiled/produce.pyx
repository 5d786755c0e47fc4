"""Produce requests of versions 3-13: whether the fast path takes one; see `connection.pyi`.

Every length is proved against the end of the frame before it is followed.
"""

import cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdlib cimport free
from libc.string cimport memcmp

from millstream.kernels._compiled.batch_layout cimport (
    ATTRIBUTES_AT, BASE_OFFSET_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, HEADER_BYTES,
    LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT, MAGIC_V2, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT,
    PRODUCER_ID_AT, RECORD_COUNT_AT, UNCOUNTED_BYTES,
)
from millstream.kernels._compiled.big_endian cimport get_i16, get_i32, get_i64, ms_get32
from millstream.kernels._compiled.crc cimport crc32c_of
from millstream.kernels._compiled.growth cimport grow
from millstream.kernels._compiled.partition_slot cimport PartitionSlot
from millstream.kernels._compiled.produce_answer cimport FRAME_BYTES, PARTITION_BYTES, TOPIC_BYTES
from millstream.kernels._compiled.producer_entry cimport ProducerEntry
from millstream.kernels._compiled.records cimport Inspection, inspect_records
from millstream.kernels._compiled.request_layout cimport (
    ACKS_ALL, ACKS_LEADER, INT16_BYTES, INT32_BYTES, NULL_SIZE, PRODUCE_FLEXIBLE_FROM,
    PRODUCE_TOPIC_IDS_FROM, TOPIC_ID_BYTES,
)
from millstream.kernels._compiled.slots cimport SlotTable, Topic

from millstream.kernels._compiled cimport reasons

cdef enum:
    BATCH_BYTES_MAX = 1 << 30
    VARINT_BITS_MAX = 35  # five bytes of seven
    WRONG = -2  # instead of a size; NULL_SIZE is one
cdef long long TIME_MAX = 1 << 61


cdef long long read_varint(unsigned char** at, unsigned char* end) noexcept:
    """An unsigned varint of at most five bytes; WRONG when it is none."""
    cdef long long number = 0
    cdef int shift = 0
    cdef unsigned char byte
    while at[0] < end and shift < VARINT_BITS_MAX:
        byte = at[0][0]
        at[0] += 1
        number |= <long long>(byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
    return WRONG


cdef long long read_size(
    unsigned char** at, unsigned char* end, int width, bint is_flexible
) noexcept:
    """Of a string, bytes or an array, with `width` bytes where not flexible; or NULL_SIZE."""
    cdef long long size
    if is_flexible:
        size = read_varint(at, end)
        return size - 1 if size >= 0 else WRONG
    if end - at[0] < width:
        return WRONG
    size = get_i16(at[0]) if width == INT16_BYTES else get_i32(at[0])
    at[0] += width
    return size


cdef bint read_no_tags(unsigned char** at, unsigned char* end, bint is_flexible) noexcept:
    return not is_flexible or read_varint(at, end) == 0


cdef bint is_whole_batch(unsigned char* batch, Py_ssize_t size) noexcept:
    """Exactly one batch that a leader may take as it is, by its header and CRC."""
    cdef long long delta, count
    if size < HEADER_BYTES or size > BATCH_BYTES_MAX:
        return False
    if get_i32(batch + LENGTH_AT) + UNCOUNTED_BYTES != size or batch[MAGIC_AT] != MAGIC_V2:
        return False
    delta, count = get_i32(batch + LAST_OFFSET_DELTA_AT), get_i32(batch + RECORD_COUNT_AT)
    if get_i64(batch + BASE_OFFSET_AT) != 0 or delta < 0:  # producers count their offsets from 0
        return False
    if count <= 0 or delta + 1 != count or get_i16(batch + ATTRIBUTES_AT) != 0:
        return False
    return crc32c_of(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT) == ms_get32(batch + CRC_AT)


cdef bint are_records_eligible(
    PartitionSlot slot, unsigned char* batch, Py_ssize_t size, long long wall_ms
) noexcept:
    """Every record, and the timestamps, which only the records have."""
    cdef Inspection found
    cdef long long base = get_i64(batch + BASE_TIMESTAMP_AT)
    cdef long long newest = get_i64(batch + MAX_TIMESTAMP_AT)
    cdef long long count = get_i32(batch + RECORD_COUNT_AT)
    inspect_records(batch + HEADER_BYTES, batch + size, count, True, &found)
    if found.reason != reasons.NONE or (found.null_keys and slot.needs_key):
        return False
    if not -TIME_MAX <= base <= TIME_MAX:
        return False
    if not (-TIME_MAX <= found.oldest and found.newest <= TIME_MAX):
        return False
    if found.oldest > TIME_MAX or found.newest < -TIME_MAX:
        return False
    return (
        newest == base + found.newest
        and newest - wall_ms <= slot.timestamp_after_max_ms
        and wall_ms - (base + found.oldest) <= slot.timestamp_before_max_ms
        and newest <= slot.roll_timestamp_ms
    )


@cython.final
cdef class Plan:
    """See the layout."""

    def __cinit__(self, SlotTable table):
        self.table = table

    def __dealloc__(self):
        free(self.parts)

    cdef bint check(
        self, unsigned char* at, unsigned char* end, int version, long long wall_ms
    ) except -1:
        """Whether the request can be staged in every partition; changes nothing."""
        cdef bint is_flexible = version >= PRODUCE_FLEXIBLE_FROM
        cdef long long topics
        cdef Planned* part
        cdef Py_ssize_t index
        self.table.requests_checked += 1
        self.count = self.names_bytes = 0
        if read_size(&at, end, INT16_BYTES, is_flexible) != NULL_SIZE:  # a transactional id
            return False
        if end - at < INT16_BYTES + INT32_BYTES:
            return False
        self.acks, self.timeout_ms = <int>get_i16(at), get_i32(at + INT16_BYTES)
        at += INT16_BYTES + INT32_BYTES
        topics = read_size(&at, end, INT32_BYTES, is_flexible)
        if topics <= 0 or topics > end - at or not ACKS_ALL <= self.acks <= ACKS_LEADER:
            return False
        self.topics = topics
        while topics > 0:
            if not self.check_topic(&at, end, version):
                return False
            topics -= 1
        if not read_no_tags(&at, end, is_flexible) or at != end:
            return False
        for index in range(self.count):
            part = self.parts + index
            if not are_records_eligible(
                <PartitionSlot>part.slot, part.batch, part.batch_size, wall_ms
            ):
                return False
        return True

    cdef bint check_topic(self, unsigned char** at, unsigned char* end, int version) except -1:
        cdef bint is_flexible = version >= PRODUCE_FLEXIBLE_FROM
        cdef bint is_by_id = version >= PRODUCE_TOPIC_IDS_FROM
        cdef long long size = TOPIC_ID_BYTES
        cdef long long partitions
        cdef Py_ssize_t first = self.count
        cdef unsigned char* name
        cdef Topic topic
        if not is_by_id:
            size = read_size(at, end, INT16_BYTES, is_flexible)
        name = at[0]
        if size < 0 or size > end - at[0]:
            return False
        at[0] += size
        partitions = read_size(at, end, INT32_BYTES, is_flexible)
        if partitions <= 0 or partitions > end - at[0]:
            return False
        topic = self.find(name, size, is_by_id)
        if topic is None:
            return False
        while self.count - first < partitions:
            if not self.add(at, end, is_flexible, topic):
                return False
        self.parts[first].name, self.parts[first].name_size = name, size
        self.parts[first].siblings = <unsigned int>partitions
        self.names_bytes += size
        return read_no_tags(at, end, is_flexible)

    cdef bint add(
        self, unsigned char** at, unsigned char* end, bint is_flexible, Topic topic
    ) except -1:
        """One partition of the topic, as far as the header allows a decision."""
        cdef long long partition, size
        cdef unsigned char* batch
        cdef PartitionSlot slot
        cdef PyObject* entry = NULL
        cdef Planned* part
        if end - at[0] < INT32_BYTES:
            return False
        partition = get_i32(at[0])
        at[0] += INT32_BYTES
        size = read_size(at, end, INT32_BYTES, is_flexible)
        batch = at[0]
        if size < 0 or size > end - batch or not 0 <= partition < len(topic.slots):
            return False
        at[0] += size
        if topic.slots[partition] is None or not read_no_tags(at, end, is_flexible):
            return False
        slot = <PartitionSlot>topic.slots[partition]
        if slot.seen_by == self.table.requests_checked or slot.failure is not None:
            return False
        slot.seen_by = self.table.requests_checked
        if not slot.allows_fast_path or slot.leader_epoch < 0:
            return False
        if self.acks == ACKS_ALL and not slot.allows_fast_path_acks_all:
            return False
        if size > slot.message_bytes_max or not is_whole_batch(batch, size):
            return False
        if not slot.has_room_for(get_i32(batch + RECORD_COUNT_AT), size):
            return False
        if get_i64(batch + PRODUCER_ID_AT) >= 0:
            entry = find_producer(slot, batch)
            if entry == NULL:
                return False
        if self.count == self.room:
            grow(<void**>&self.parts, &self.room, self.count + 1, sizeof(Planned))
        part = self.parts + self.count
        part.slot, part.entry, part.batch, part.batch_size = <PyObject*>slot, entry, batch, size
        part.partition, part.siblings = <unsigned int>partition, 0
        self.count += 1
        return True

    cdef Topic find(self, unsigned char* name, Py_ssize_t size, bint is_by_id):
        cdef SlotTable table = self.table
        if (
            self.known_name is not None
            and self.known_version == table.version
            and self.known_by_id == is_by_id
            and PyBytes_GET_SIZE(self.known_name) == size
            and memcmp(PyBytes_AS_STRING(self.known_name), name, size) == 0
        ):
            return self.known_topic
        self.known_name = PyBytes_FromStringAndSize(<char*>name, size)
        self.known_topic = (table.by_id if is_by_id else table.by_name).get(self.known_name)
        self.known_by_id = is_by_id
        self.known_version = table.version
        return self.known_topic

    cdef Py_ssize_t answer_bytes_max(self) noexcept:
        return (
            FRAME_BYTES
            + self.names_bytes
            + TOPIC_BYTES * self.topics
            + PARTITION_BYTES * self.count
        )


cdef PyObject* find_producer(PartitionSlot slot, unsigned char* batch) except? NULL:
    """The known producer whose next batch this certainly is; NULL when it may not be."""
    cdef PyObject* found = PyDict_GetItem(slot.producers, get_i64(batch + PRODUCER_ID_AT))
    cdef ProducerEntry entry
    cdef long long sequence = get_i32(batch + BASE_SEQUENCE_AT)
    if found == NULL:
        return NULL
    entry = <ProducerEntry>found
    if entry.epoch != get_i16(batch + PRODUCER_EPOCH_AT) or entry.epoch < 0 or sequence < 0:
        return NULL
    if entry.transaction_first_offset >= 0 or not entry.expects(sequence, slot.round):
        return NULL
    return found

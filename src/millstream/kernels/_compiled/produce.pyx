"""Produce requests of versions 3-13: whether one is plain; described by `connection.pyi`.

Every length is proved against the end of the frame before it is followed.
"""

import cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdlib cimport free
from libc.string cimport memcmp

from millstream.kernels._compiled.big_endian cimport get_i16, get_i32, get_i64, ms_get32
from millstream.kernels._compiled.crc cimport crc32c_of
from millstream.kernels._compiled.partition_slot cimport PartitionSlot, grow
from millstream.kernels._compiled.producer_entry cimport ProducerEntry
from millstream.kernels._compiled.records cimport Inspection, inspect_records
from millstream.kernels._compiled.slots cimport SlotTable, Topic

cdef enum:
    BATCH_BYTES_MAX = 1 << 30
cdef long long TIME_MAX = 1 << 61
cdef long long WRONG = -2


cdef long long read_varint(unsigned char** at, unsigned char* end) noexcept:
    """An unsigned varint of at most five bytes; WRONG when it is none."""
    cdef long long number = 0
    cdef int shift = 0
    cdef unsigned char byte
    while at[0] < end and shift < 35:
        byte = at[0][0]
        at[0] += 1
        number |= <long long>(byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
    return WRONG


cdef long long read_size(unsigned char** at, unsigned char* end, int width, bint is_flexible) noexcept:
    """Of a string, bytes or an array, with `width` bytes where not flexible; -1 is null."""
    cdef long long size
    if is_flexible:
        size = read_varint(at, end)
        return size - 1 if size >= 0 else WRONG
    if end - at[0] < width:
        return WRONG
    size = get_i16(at[0]) if width == 2 else get_i32(at[0])
    at[0] += width
    return size


cdef bint read_no_tags(unsigned char** at, unsigned char* end, bint is_flexible) noexcept:
    return not is_flexible or read_varint(at, end) == 0


cdef bint is_whole_batch(unsigned char* batch, Py_ssize_t size) noexcept:
    """Exactly one batch that a leader may take as it is, by its header and CRC."""
    cdef long long delta, count
    if size < 61 or size > BATCH_BYTES_MAX or get_i32(batch + 8) + 12 != size or batch[16] != 2:
        return False
    delta, count = get_i32(batch + 23), get_i32(batch + 57)
    if get_i64(batch) != 0 or delta < 0:  # producers count their offsets from 0
        return False
    if count <= 0 or delta + 1 != count or get_i16(batch + 21) != 0:
        return False
    return crc32c_of(batch + 21, size - 21) == ms_get32(batch + 17)


cdef bint are_records_plain(PartitionSlot slot, unsigned char* batch, Py_ssize_t size, long long wall_ms) noexcept:
    """Every record, and the timestamps, which only the records tell."""
    cdef Inspection found
    cdef long long base = get_i64(batch + 27)
    cdef long long newest = get_i64(batch + 35)
    inspect_records(batch + 61, batch + size, get_i32(batch + 57), True, &found)
    if found.reason != 0 or (found.null_keys and slot.needs_key):
        return False
    if not (-TIME_MAX <= base <= TIME_MAX and -TIME_MAX <= found.oldest and found.newest <= TIME_MAX):
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

    cdef bint check(self, unsigned char* at, unsigned char* end, int version, long long wall_ms) except -1:
        """Whether the body is a request that is plain in every partition; changes nothing."""
        cdef bint is_flexible = version >= 9
        cdef long long topics
        cdef Planned* part
        cdef Py_ssize_t index
        self.table.requests_checked += 1
        self.count = self.names_bytes = 0
        if read_size(&at, end, 2, is_flexible) != -1 or end - at < 6:  # a transactional id
            return False
        self.acks, self.timeout_ms = <int>get_i16(at), get_i32(at + 2)
        at += 6
        topics = read_size(&at, end, 4, is_flexible)
        if topics <= 0 or topics > end - at or not -1 <= self.acks <= 1:
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
            if not are_records_plain(<PartitionSlot>part.slot, part.batch, part.batch_size, wall_ms):
                return False
        return True

    cdef bint check_topic(self, unsigned char** at, unsigned char* end, int version) except -1:
        cdef bint is_flexible = version >= 9
        cdef long long size = 16 if version >= 13 else read_size(at, end, 2, is_flexible)
        cdef long long partitions
        cdef Py_ssize_t first = self.count
        cdef unsigned char* name = at[0]
        cdef Topic topic
        if size < 0 or size > end - at[0]:
            return False
        at[0] += size
        partitions = read_size(at, end, 4, is_flexible)
        if partitions <= 0 or partitions > end - at[0]:
            return False
        topic = self.find(name, size, version >= 13)
        if topic is None:
            return False
        while self.count - first < partitions:
            if not self.add(at, end, is_flexible, topic):
                return False
        self.parts[first].name, self.parts[first].name_size = name, size
        self.parts[first].siblings = <unsigned int>partitions
        self.names_bytes += size
        return read_no_tags(at, end, is_flexible)

    cdef bint add(self, unsigned char** at, unsigned char* end, bint is_flexible, Topic topic) except -1:
        """One partition of the topic, as far as its header tells."""
        cdef long long partition, size
        cdef unsigned char* batch
        cdef PartitionSlot slot
        cdef PyObject* entry = NULL
        cdef Planned* part
        if end - at[0] < 4:
            return False
        partition = get_i32(at[0])
        at[0] += 4
        size = read_size(at, end, 4, is_flexible)
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
        if not slot.is_plain or slot.leader_epoch < 0 or (self.acks == -1 and not slot.is_all_plain):
            return False
        if size > slot.message_bytes_max or not is_whole_batch(batch, size):
            return False
        if not slot.has_room_for(get_i32(batch + 57), size):
            return False
        if get_i64(batch + 43) >= 0:
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
        return 32 + self.names_bytes + 16 * self.topics + 48 * self.count


cdef PyObject* find_producer(PartitionSlot slot, unsigned char* batch) except? NULL:
    """The known producer whose next batch this is for sure; NULL when it is not."""
    cdef PyObject* found = PyDict_GetItem(slot.producers, get_i64(batch + 43))
    cdef ProducerEntry entry
    cdef long long sequence = get_i32(batch + 53)
    if found == NULL:
        return NULL
    entry = <ProducerEntry>found
    if entry.epoch != get_i16(batch + 51) or entry.epoch < 0 or sequence < 0:
        return NULL
    if entry.transaction_first_offset >= 0 or not entry.expects(sequence, slot.round):
        return NULL
    return found

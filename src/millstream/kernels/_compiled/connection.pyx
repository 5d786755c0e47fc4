"""One client's connection without I/O: frames in, answers out in order; see `connection.pyi`."""

from cpython.bytes cimport PyBytes_FromStringAndSize

from millstream.kernels._compiled.answers cimport Answer
from millstream.kernels._compiled.big_endian cimport get_i16, get_i32
from millstream.kernels._compiled.input_buffer cimport InputBuffer
from millstream.kernels._compiled.partition_slot cimport PartitionSlot
from millstream.kernels._compiled.produce cimport Plan, Planned
from millstream.kernels._compiled.produce_answer cimport (
    put_end, put_no_tags, put_partition, put_start, put_topic,
)
from millstream.kernels._compiled.producer_entry cimport ProducerEntry
from millstream.kernels._compiled.request_layout cimport (
    ACKS_NONE, ANSWER_ERROR_AT, API_KEY_AT, API_VERSION_AT, CLIENT_ID_AT, CLIENT_ID_SIZE_AT,
    CORRELATION_ID_AT, FRAME_SIZE_BYTES, HEADER_TAGS_MAX, NULL_SIZE, PRODUCE_KEY,
    PRODUCE_LOG_START_FROM, PRODUCE_VERSION_MAX, PRODUCE_VERSION_MIN,
)
from millstream.kernels._compiled.slots cimport Request, SlotTable

from millstream.kernels.errors import FrameError
from millstream.kernels.request_headers import FLEXIBLE_FROM

__all__ = ["Connection", "FrameError"]

cdef enum:
    KEYS = 128
    INCOMPLETE = -2  # instead of a frame's size
    VARINT_BITS_MAX = 35  # five bytes of seven

cdef int flexible_from[KEYS]
for _key in range(KEYS):
    flexible_from[_key] = FLEXIBLE_FROM[_key] if _key < len(FLEXIBLE_FROM) else 0


cdef class Connection(InputBuffer):
    """See the stub."""

    def __init__(
        self,
        SlotTable table,
        *,
        long long frame_bytes_max,
        Py_ssize_t in_flight_max,
        long long output_bytes_max=1_048_576,
    ) -> None:
        self.allows_fast_path = True
        self.descriptor = NO_DESCRIPTOR
        self.frame_bytes_max = frame_bytes_max
        self.in_flight_max = in_flight_max
        self.output_bytes_max = output_bytes_max
        self.plan = Plan(table)

    # -- requests

    cdef bint must_wait(self) noexcept:
        return (
            self.is_closed
            or self.count >= self.in_flight_max
            or self.queued_bytes + self.late_size + self.unsent_bytes >= self.output_bytes_max
        )

    cdef bint sends_more(self, double now_s) noexcept:
        """Its socket can take more: whether planned output goes on, so that Python need not run."""
        if self.planned is None:
            return False
        self.last_active_s = now_s
        return self.planned.send_more(self.descriptor)

    @property
    def is_blocked(self):
        return not self.is_closed and self.must_wait()

    @property
    def has_request(self):
        return self.is_for_python

    def next_request(self, long long wall_ms):
        cdef Py_ssize_t size
        cdef unsigned char* frame
        cdef Header header
        if not self.walk(wall_ms):
            return None
        self.is_for_python = False
        size = self.frame_size()
        frame = self.data + self.start + FRAME_SIZE_BYTES
        self.read_header(frame, frame + size, &header)
        self.start += FRAME_SIZE_BYTES + size
        self.begin()
        client_id = None
        if header.client_id_size >= 0:
            client_id = PyBytes_FromStringAndSize(<char*>header.client_id, header.client_id_size)
        body = memoryview(self.buffer)[header.body - self.data : self.start]
        return (
            self.numbered - 1, header.api_key, header.version, header.correlation_id,
            client_id, body,
        )

    cdef bint walk(self, long long wall_ms) except -1:
        """Stage what the fast path takes; whether the next frame is complete and for Python."""
        cdef Py_ssize_t size
        cdef unsigned char* frame
        cdef Header header
        while not self.must_wait():
            size = self.frame_size()
            if size < 0:
                self.release_input()
                return False
            if self.is_for_python:
                return True
            frame = self.data + self.start + FRAME_SIZE_BYTES
            self.read_header(frame, frame + size, &header)
            if not (
                header.api_key == PRODUCE_KEY
                and PRODUCE_VERSION_MIN <= header.version <= PRODUCE_VERSION_MAX
                and self.allows_fast_path
                and self.plan.check(header.body, frame + size, header.version, wall_ms)
            ):
                self.is_for_python = True
                return True
            self.start += FRAME_SIZE_BYTES + size
            self.table.produce_bytes_in += FRAME_SIZE_BYTES + size
            self.stage(&header, wall_ms)
        return False

    cdef Py_ssize_t frame_size(self) except? -1:
        """Of the next frame if all of it is there, else INCOMPLETE."""
        cdef long long size
        if self.end - self.start < FRAME_SIZE_BYTES:
            return INCOMPLETE
        size = get_i32(self.data + self.start)
        if size < 0:
            raise FrameError(f"a frame of {size} bytes")
        if size > self.frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes, the limit is {self.frame_bytes_max}")
        if size > self.end - self.start - FRAME_SIZE_BYTES:
            return INCOMPLETE
        return <Py_ssize_t>size

    cdef int read_header(self, unsigned char* at, unsigned char* end, Header* header) except -1:
        cdef Py_ssize_t size
        if end - at < CLIENT_ID_AT:
            raise FrameError(f"a frame of {end - at} bytes has no request header")
        header.api_key = <int>get_i16(at + API_KEY_AT)
        header.version = <int>get_i16(at + API_VERSION_AT)
        header.correlation_id = <int>get_i32(at + CORRELATION_ID_AT)
        size = <Py_ssize_t>get_i16(at + CLIENT_ID_SIZE_AT)
        at += CLIENT_ID_AT
        if size < NULL_SIZE or size > end - at:
            raise FrameError(f"a client id of {size} bytes")
        header.client_id, header.client_id_size = at, size
        at += max(size, 0)
        if header.api_key >= 0 and header.version >= (
            flexible_from[header.api_key] if header.api_key < KEYS else 0
        ):
            at = skip_tags(at, end)
        header.body = at
        return 0

    cdef int stage(self, Header* header, long long wall_ms) except -1:
        """Assign offsets, keep the batches in their slots, make the answer."""
        cdef Plan plan = self.plan
        cdef Request request
        cdef Answer* answer
        cdef Py_ssize_t size = 0
        request.acks, request.deadline_ms = plan.acks, wall_ms + plan.timeout_ms
        request.first_partition, request.partition_count = self.table.partition_count, plan.count
        request.number = self.numbered
        if plan.acks != ACKS_NONE:
            size = self.stage_parts(header, self.make_room(plan.answer_bytes_max()))
        else:
            self.stage_parts(header, NULL)
        answer = self.begin()
        if size:
            answer.at, answer.size = self.made_bytes, size
            self.made_bytes += size
            self.made_count += 1
            self.table.produce_bytes_out += size
        return self.table.add_request(self, &request)

    cdef Py_ssize_t stage_parts(self, Header* header, unsigned char* made) except -1:
        """The size of the answer at `made`; no answer when that is NULL."""
        cdef Plan plan = self.plan
        cdef Planned* part
        cdef PartitionSlot slot
        cdef ProducerEntry entry
        cdef unsigned char* at = NULL
        cdef Py_ssize_t index, error_at = 0
        cdef unsigned int left = 0
        cdef long long base_offset
        cdef int version = header.version
        if made != NULL:
            at = put_start(made, version, header.correlation_id, plan.topics)
        for index in range(plan.count):
            part = plan.parts + index
            slot = <PartitionSlot>part.slot
            entry = None if part.entry == NULL else <ProducerEntry>part.entry
            base_offset = slot.stage(self.buffer, part.batch, part.batch_size, entry)
            if made != NULL:
                if part.siblings:
                    left = part.siblings
                    at = put_topic(at, version, part.name, part.name_size, left)
                error_at = at - made + ANSWER_ERROR_AT
                if version < PRODUCE_LOG_START_FROM:
                    error_at = -error_at
                at = put_partition(at, version, part.partition, base_offset, slot.log_start)
                left -= 1
                if left == 0:
                    at = put_no_tags(at, version)
            self.table.add_partition(slot, error_at)
        return 0 if made == NULL else put_end(made, at, version)


cdef unsigned char* skip_tags(unsigned char* at, unsigned char* end) except NULL:
    """Behind the tagged fields of a request header."""
    cdef unsigned int count = read_varint(&at, end)
    cdef unsigned int size
    if count > HEADER_TAGS_MAX:
        raise FrameError(f"{count} tagged fields in the request header")
    while count > 0:
        read_varint(&at, end)
        size = read_varint(&at, end)
        if size > end - at:
            raise FrameError(f"a tagged field of {size} bytes in the request header")
        at += size
        count -= 1
    return at


cdef unsigned int read_varint(unsigned char** at, unsigned char* end) except? 0xFFFFFFFF:
    cdef unsigned int number = 0
    cdef int shift = 0
    cdef unsigned char byte
    while at[0] < end and shift < VARINT_BITS_MAX:
        byte = at[0][0]
        at[0] += 1
        number |= <unsigned int>(byte & 0x7F) << shift
        if byte < 0x80:
            return number
        shift += 7
    raise FrameError("a tagged field of the request header is cut off")

"""The table of partitions, and what one event-loop iteration staged; described by `slots.pyi`."""

import cython
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdlib cimport free

from millstream.kernels._compiled.growth cimport grow
from millstream.kernels._compiled.partition_slot cimport (
    NOT_STAGED, Answerer, PartitionSlot, Waiting,
)
from millstream.kernels._compiled.request_layout cimport ACKS_ALL, ACKS_NONE

from millstream.kernels._compiled.index_steps import index_steps
from millstream.kernels._compiled import partition_slot as _partition_slot
from millstream.kernels._compiled.partition_slot import (
    ENDS_KEPT, NO_LIMIT, NOT_AT_TAIL, NOTHING_NEW,
)
from millstream.kernels._compiled.producer_entry import BATCHES_KEPT, ProducerEntry

globals()["PartitionSlot"] = _partition_slot.PartitionSlot  # only the name comes from C

__all__ = [
    "BATCHES_KEPT", "ENDS_KEPT", "NOTHING_NEW", "NOT_AT_TAIL", "NO_LIMIT",
    "PartitionSlot", "ProducerEntry", "SlotTable", "index_steps",
]

cdef enum:
    SPARES_MAX = 64
    SPARE_BYTES = 32768


@cython.final
cdef class Topic:
    """The slots of one topic by partition; None where this broker does not lead a partition."""


cdef int put(dict topics, bytes key, Py_ssize_t partition, slot) except -1:
    cdef Topic topic = topics.get(key)
    if topic is None:
        topic = topics[key] = Topic()
        topic.slots = []
    while len(topic.slots) <= partition:
        topic.slots.append(None)
    topic.slots[partition] = slot
    return 0


cdef PartitionSlot get(dict topics, bytes key, Py_ssize_t partition):
    cdef Topic topic = topics.get(key)
    if topic is None or not 0 <= partition < len(topic.slots):
        return None
    return topic.slots[partition]


cdef int clear(dict topics, bytes key, Py_ssize_t partition, slot) except -1:
    cdef Topic topic
    if slot is None or get(topics, key, partition) is not slot:
        return 0
    topic = topics[key]
    topic.slots[partition] = None
    if topic.slots.count(None) == len(topic.slots):
        del topics[key]
    return 0


@cython.final
cdef class SlotTable:
    """See the stub."""

    def __init__(self, *, violation) -> None:
        self.violation = violation
        self.by_name, self.by_id = {}, {}
        self.slots, self.connections = [], []
        self.ready, self.failed = [], []
        self.spares, self.large_spares = [], []

    def __dealloc__(self):
        free(self.requests)
        free(self.partitions)

    @property
    def staged(self):
        return self.request_count

    def add(self, PartitionSlot slot, *, bytes topic, bytes topic_id, Py_ssize_t partition) -> None:
        self.version += 1
        put(self.by_name, topic, partition, slot)
        if topic_id:
            put(self.by_id, topic_id, partition, slot)

    def remove(
        self, PartitionSlot slot, *, bytes topic, bytes topic_id, Py_ssize_t partition
    ) -> None:
        self.version += 1
        clear(self.by_name, topic, partition, slot)
        clear(self.by_id, topic_id, partition, slot)

    def find(self, bytes topic, Py_ssize_t partition):
        return get(self.by_name, topic, partition)

    def find_by_id(self, bytes topic_id, Py_ssize_t partition):
        return get(self.by_id, topic_id, partition)

    # -- staging

    cdef int add_request(self, Answerer connection, Request* request) except -1:
        """Its partitions were added just before."""
        if connection.staged_index < 0:
            connection.staged_index = len(self.connections)
            self.connections.append(connection)
        request.connection = connection.staged_index
        if self.request_count == self.request_room:
            grow(
                <void**>&self.requests, &self.request_room, self.request_count + 1, sizeof(Request)
            )
        self.requests[self.request_count] = request[0]
        self.request_count += 1
        self.produce_requests += 1
        return 0

    cdef int add_partition(self, PartitionSlot slot, Py_ssize_t at) except -1:
        cdef StagedPartition* staged
        if slot.staged_index < 0:
            slot.staged_index = len(self.slots)
            self.slots.append(slot)
        if self.partition_count == self.partition_room:
            grow(
                <void**>&self.partitions,
                &self.partition_room,
                self.partition_count + 1,
                sizeof(StagedPartition),
            )
        staged = self.partitions + self.partition_count
        staged.slot, staged.at = slot.staged_index, at
        staged.end_offset = slot.log_end + slot.records
        self.partition_count += 1
        return 0

    # -- write

    def write_staged(self, code_of_error) -> None:
        cdef PartitionSlot slot
        cdef Answerer connection
        cdef Py_ssize_t index
        for slot in self.slots:
            slot.write_staged()
        for slot in self.slots:
            if slot.failure is not None:
                slot.failure_code = int(code_of_error(slot.failure))
        for index in range(self.request_count):
            self.finish(self.requests + index)
        self.request_count = self.partition_count = 0
        for slot in self.slots:
            slot.failure = None
            slot.staged_index = NOT_STAGED
        self.slots.clear()
        for connection in self.connections:
            connection.staged_index = NOT_STAGED
            connection.release_input()
        self.connections.clear()

    cdef int finish(self, Request* request) except -1:
        cdef Answerer connection = <Answerer>self.connections[request.connection]
        cdef Waiting waiting = None
        cdef PartitionSlot slot
        cdef StagedPartition* staged
        cdef Py_ssize_t index, end = request.first_partition + request.partition_count
        cdef bint is_failed = False
        for index in range(request.first_partition, end):
            staged = self.partitions + index
            slot = <PartitionSlot>self.slots[staged.slot]
            if slot.failure is not None:
                is_failed = True
                self.produce_errors += 1
                connection.refuse(request.number, staged.at, slot.failure_code)
            elif request.acks == ACKS_ALL and slot.high_watermark < staged.end_offset:
                if waiting is None:
                    waiting = Waiting.__new__(Waiting)
                    waiting.connection, waiting.number = connection, request.number
                    waiting.deadline_ms = request.deadline_ms
                slot.wait(waiting, staged.end_offset, staged.at)
        if is_failed and request.acks == ACKS_NONE and connection not in self.failed:
            self.failed.append(connection)
        return connection.release(request.number) if waiting is None else 0

    cdef int note_ready(self, Answerer connection) except -1:
        if not connection.is_ready:
            connection.is_ready = True
            self.ready.append(connection)
        return 0

    def take_ready(self) -> list:
        cdef Answerer connection
        ready, self.ready = self.ready, []
        for connection in ready:
            connection.is_ready = False
        return ready

    def take_failed(self) -> list:
        failed, self.failed = self.failed, []
        return failed

    # -- buffers that no connection needs right now

    cdef bytearray take_spare(self, Py_ssize_t size_min, Py_ssize_t size_best):
        """One of `size_best` or more if there is one, else of `size_min` or somewhat more."""
        cdef bytearray found
        cdef Py_ssize_t size = SPARE_BYTES
        if size_best <= SPARE_BYTES:
            return self.spares.pop() if self.spares else bytearray(SPARE_BYTES)
        found = self.newest_spare(size_best, LARGE_BYTES_MAX)
        if found is not None:
            return found
        if size_min > LARGE_BYTES_MAX:
            size = size_min
        else:
            while size < size_min:  # powers of two, so that another can use it
                size *= 2
            found = self.newest_spare(size, size)
            if found is not None:
                return found
        return PyByteArray_FromStringAndSize(NULL, size)  # its pages are not touched yet

    cdef bytearray newest_spare(self, Py_ssize_t size_min, Py_ssize_t size_max):
        cdef Py_ssize_t index
        for index in range(len(self.large_spares) - 1, -1, -1):
            if size_min <= len(self.large_spares[index]) <= size_max:
                self.large_bytes -= len(self.large_spares[index])
                return self.large_spares.pop(index)
        return None

    cdef int give_spare(self, bytearray buffer) except -1:
        cdef Py_ssize_t size = len(buffer)
        if size == SPARE_BYTES:
            if len(self.spares) < SPARES_MAX:
                self.spares.append(buffer)
        elif size <= LARGE_BYTES_MAX:
            while self.large_bytes + size > LARGE_BYTES_MAX:
                self.large_bytes -= len(self.large_spares.pop(0))
            self.large_bytes += size
            self.large_spares.append(buffer)
        return 0

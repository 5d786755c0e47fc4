# Produce requests checked and answered in C, for connection.
from cpython.object cimport PyObject

from millstream.kernels._compiled.slots cimport SlotTable, Topic


cdef struct Planned:
    # One partition of a request. Slot and entry are borrowed: nothing runs between check and
    # stage. `siblings` is the topic's number of partitions at its first one, else 0.
    PyObject* slot
    PyObject* entry
    unsigned char* batch
    Py_ssize_t batch_size
    unsigned char* name
    Py_ssize_t name_size
    unsigned int partition
    unsigned int siblings


cdef class Plan:
    # A request that can be staged, as far as it was checked. One object serves all requests of a
    # connection.
    cdef SlotTable table
    cdef Planned* parts
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef Py_ssize_t topics
    cdef Py_ssize_t names_bytes
    cdef int acks
    cdef long long timeout_ms
    # The topic looked up last: most connections have one.
    cdef bytes known_name
    cdef bint known_by_id
    cdef Topic known_topic
    cdef long long known_version

    cdef bint check(
        self, unsigned char* at, unsigned char* end, int version, long long wall_ms
    ) except -1
    cdef bint check_topic(self, unsigned char** at, unsigned char* end, int version) except -1
    cdef bint add(
        self, unsigned char** at, unsigned char* end, bint is_flexible, Topic topic
    ) except -1
    cdef Topic find(self, unsigned char* name, Py_ssize_t size, bint is_by_id)
    cdef Py_ssize_t answer_bytes_max(self) noexcept

# Room in a C array. Inline only: there is no module behind it.
from libc.stdlib cimport realloc


cdef inline int grow(
    void** block, Py_ssize_t* room, Py_ssize_t wanted, Py_ssize_t item
) except -1:
    """Room for `wanted` items, at least doubling."""
    cdef Py_ssize_t more = max(wanted, 2 * room[0], 4)
    cdef void* larger = realloc(block[0], more * item)
    if larger == NULL:
        raise MemoryError
    block[0] = larger
    room[0] = more
    return 0

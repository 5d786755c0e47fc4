"""What a segment's indexes get for walked batches; described by `slots.pyi`."""

from cpython.array cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize

from millstream.kernels._compiled.big_endian cimport get_i32, get_i64, ms_put32, ms_put64

cdef long long INT32_MAX = 2_147_483_647


cdef unsigned char* grown(bytearray entries, Py_ssize_t more) except NULL:
    """Where `more` bytes were added to the entries."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries)
    PyByteArray_Resize(entries, size + more)
    return <unsigned char*>PyByteArray_AS_STRING(entries) + size


cdef int add_offset(bytearray entries, long long relative, long long position) except -1:
    cdef unsigned char* at
    if not (0 <= relative <= INT32_MAX and 0 <= position <= INT32_MAX):
        raise ValueError(f"offset {relative} and position {position} of a segment")
    at = grown(entries, 8)
    ms_put32(ms_put32(at, <unsigned int>relative), <unsigned int>position)
    return 0


cdef int add_time(bytearray entries, long long stamp_ms, long long relative) except -1:
    """Unless the newest entry has that timestamp or a later one."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries)
    cdef unsigned char* at
    cdef long long newest_ms = -1
    cdef long long newest = -1
    if size >= 12:
        at = <unsigned char*>PyByteArray_AS_STRING(entries) + size - 12
        newest_ms, newest = get_i64(at), get_i32(at + 8)
    if stamp_ms <= newest_ms or relative <= newest:
        return 0
    if relative > INT32_MAX:
        raise ValueError(f"offset {relative} of a segment")
    at = grown(entries, 12)
    ms_put32(ms_put64(at, <unsigned long long>stamp_ms), <unsigned int>relative)
    return 0


def index_steps(
    array rows,
    bytearray offset_entries,
    bytearray time_entries,
    *,
    long long shift,
    long long base_offset,
    long long interval_bytes,
    tuple since,
):
    cdef long long since_bytes, newest_ms, newest_offset
    cdef long long* row
    cdef Py_ssize_t index
    if rows.ob_descr.itemsize != 8 or len(rows) % 12 != 0:
        raise ValueError("rows must be an array('q') of whole rows")
    since_bytes, newest_ms, newest_offset = since
    row = rows.data.as_longlongs
    for index in range(len(rows) // 12):
        if row[7] > newest_ms and row[11] != 0:
            newest_ms = row[7]
            newest_offset = row[3]
        if since_bytes > interval_bytes:
            add_offset(offset_entries, row[3] - base_offset, row[0] + shift)
            add_time(time_entries, newest_ms, newest_offset - base_offset)
            since_bytes = 0
        since_bytes += row[1]
        row += 12
    return since_bytes, newest_ms, newest_offset

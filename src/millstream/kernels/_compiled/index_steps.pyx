"""What a segment's indexes get for walked batches; described by `slots.pyi`."""

from cpython.array cimport array
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize

from millstream.kernels._compiled.batch_layout cimport (
    LAST_OFFSET, MAX_TIMESTAMP, POSITION, RECORD_COUNT, ROW_FIELDS, SIZE,
)
from millstream.kernels._compiled.big_endian cimport get_i32, get_i64, ms_put32, ms_put64
from millstream.kernels._compiled.index_layout cimport (
    OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, TIME_ENTRY_OFFSET_AT,
)

cdef long long INT32_MAX = 2_147_483_647

cdef enum:
    NONE_YET = -1


cdef unsigned char* grown(bytearray entries, Py_ssize_t more) except NULL:
    """Where `more` bytes were added to the entries."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries)
    PyByteArray_Resize(entries, size + more)
    return <unsigned char*>PyByteArray_AS_STRING(entries) + size


cdef int add_offset(bytearray entries, long long relative, long long position) except -1:
    cdef unsigned char* at
    if not (0 <= relative <= INT32_MAX and 0 <= position <= INT32_MAX):
        raise ValueError(f"offset {relative} and position {position} of a segment")
    at = grown(entries, OFFSET_ENTRY_BYTES)
    ms_put32(ms_put32(at, <unsigned int>relative), <unsigned int>position)
    return 0


cdef int add_time(bytearray entries, long long stamp_ms, long long relative) except -1:
    """Unless the newest entry has that timestamp or a later one."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(entries)
    cdef unsigned char* at
    cdef long long newest_ms = NONE_YET
    cdef long long newest = NONE_YET
    if size >= TIME_ENTRY_BYTES:
        at = <unsigned char*>PyByteArray_AS_STRING(entries) + size - TIME_ENTRY_BYTES
        newest_ms, newest = get_i64(at), get_i32(at + TIME_ENTRY_OFFSET_AT)
    if stamp_ms <= newest_ms or relative <= newest:
        return 0
    if relative > INT32_MAX:
        raise ValueError(f"offset {relative} of a segment")
    at = grown(entries, TIME_ENTRY_BYTES)
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
    cdef Py_ssize_t _index
    if rows.ob_descr.itemsize != 8 or len(rows) % ROW_FIELDS != 0:
        raise ValueError("rows must be an array('q') of whole rows")
    since_bytes, newest_ms, newest_offset = since
    row = rows.data.as_longlongs
    for _index in range(len(rows) // ROW_FIELDS):
        if row[MAX_TIMESTAMP] > newest_ms and row[RECORD_COUNT] != 0:
            newest_ms = row[MAX_TIMESTAMP]
            newest_offset = row[LAST_OFFSET]
        if since_bytes > interval_bytes:
            add_offset(offset_entries, row[LAST_OFFSET] - base_offset, row[POSITION] + shift)
            add_time(time_entries, newest_ms, newest_offset - base_offset)
            since_bytes = 0
        since_bytes += row[SIZE]
        row += ROW_FIELDS
    return since_bytes, newest_ms, newest_offset

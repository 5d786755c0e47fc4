"""What a segment's indexes get for walked batches; described by `slots.pyi`."""

from cpython.array cimport array


def index_steps(
    array rows,
    long long interval_bytes,
    long long since_bytes,
    long long newest_ms,
    long long newest_offset,
):
    cdef long long* row
    cdef Py_ssize_t index
    if rows.ob_descr.itemsize != 8 or len(rows) % 12 != 0:
        raise ValueError("rows must be an array('q') of whole rows")
    row = rows.data.as_longlongs
    entries = []
    for index in range(len(rows) // 12):
        if row[7] > newest_ms and row[11] != 0:
            newest_ms = row[7]
            newest_offset = row[3]
        if since_bytes > interval_bytes:
            entries.append((row[3], row[0], newest_ms, newest_offset))
            since_bytes = 0
        since_bytes += row[1]
        row += 12
    return since_bytes, newest_ms, newest_offset, entries

# A walk that keeps no rows, as a start needs it, and records that lost a sector. The reference is in `_plain_log.py`.

cdef enum:
    SECTOR = 512


cdef bint lost_sector(const uint8_t* data, int64_t at, const Row* row) noexcept nogil:
    """Whether a whole sector's part of a record's topic and properties is zero; see `first_torn`."""
    cdef int64_t end = at + row.size - (0 if row.properties_length else 2)
    cdef int64_t sector = (at + row.topic_at + SECTOR - 1) // SECTOR * SECTOR, i
    while sector < end:
        i = sector
        while i < end and i < sector + SECTOR and data[i] == 0:
            i += 1
        if i == end or i == sector + SECTOR:
            return True
        sector += SECTOR
    return False


def first_torn(data, int64_t base, rows):
    """The number of the first row whose topic or properties have lost a sector, -1 if none has."""
    cdef _RowBuffer held = _RowBuffer(rows, False)
    cdef Py_buffer source
    cdef const uint8_t* record
    cdef int64_t number, torn = -1
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        for number in range(held.count):
            record = record_of(&source, base, held.rows + number)
            if record == NULL:
                raise ValueError(f"row {number} does not lie in the data")
            if lost_sector(<const uint8_t*>source.buf, record - <const uint8_t*>source.buf, held.rows + number):
                torn = number
                break
    finally:
        PyBuffer_Release(&source)
    return torn


def walk_past(data, int64_t base, int64_t start, int64_t stop, bint check_crc):
    """As `walk`, without rows: the position after the valid records, why it ends there, and the last one's store time.

    A record that has lost a sector (`first_torn`) is none: the walk ends there as where nothing was written. The time
    is 0 if there is no record.
    """
    cdef Py_buffer source
    cdef const uint8_t* content
    cdef int64_t at = start, newest = 0
    cdef int reason = STOP
    cdef Row row
    if start < 0:
        raise ValueError(f"{start} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    content = <const uint8_t*>source.buf
    stop = min(stop, source.len)
    with nogil:
        while at < stop:
            reason = examine(content, source.len, at, base, check_crc, &row)
            if reason != STOP:
                break
            if lost_sector(content, at, &row):
                reason = UNWRITTEN
                break
            newest = row.store_timestamp
            fetch_ahead(content + at, row.size)
            at += row.size
    PyBuffer_Release(&source)
    return at, reason, newest

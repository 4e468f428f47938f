# One record as Python values. The reference is `_plain_fields.py`.

cdef dict properties_of(const uint8_t* text, int64_t size):
    """All properties; later duplicates win, empty names and values are left out."""
    cdef dict made = {}
    cdef const uint8_t* end = text + size
    cdef const uint8_t* piece_end
    cdef const uint8_t* equals
    while text < end:
        piece_end = <const uint8_t*>memchr(text, 2, end - text)
        if piece_end == NULL:
            piece_end = end
        equals = <const uint8_t*>memchr(text, 1, piece_end - text)
        if equals != NULL and equals > text and equals + 1 < piece_end:
            made[PyUnicode_DecodeUTF8(<char*>text, equals - text, "surrogateescape")] = PyUnicode_DecodeUTF8(
                <char*>equals + 1, piece_end - equals - 1, "surrogateescape"
            )
        text = piece_end + 1
    return made


def record_fields(data, int64_t at):
    """The fields of the record at data[at] in the order of `Record`, hosts as bytes; a Reason's number if none is.

    Checks the record's shape, neither its position nor its CRC.
    """
    cdef Py_buffer source
    cdef Row row
    cdef const uint8_t* p
    cdef int64_t left
    cdef int reason, born_size, store_size
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or at > source.len:
            raise ValueError(f"{at} is not a position")
        p = <const uint8_t*>source.buf + at
        left = source.len - at
        reason = examine(p, left, 0, load64(p + 28) if left >= 36 else 0, False, &row) if left else BEYOND_END
        if reason != STOP:
            return reason
        born_size = 20 if row.sys_flag & 0x10 else 8
        store_size = 20 if row.sys_flag & 0x20 else 8
        return (
            PyUnicode_DecodeUTF8(<char*>p + row.topic_at, row.topic_length, "surrogateescape"),
            row.queue_id,
            row.queue_offset,
            row.physical_offset,
            row.size,
            row.flag,
            row.sys_flag,
            row.born_timestamp,
            PyBytes_FromStringAndSize(<char*>p + 48, born_size),
            row.store_timestamp,
            PyBytes_FromStringAndSize(<char*>p + 56 + born_size, store_size),
            row.reconsume_times,
            row.prepared_transaction_offset,
            properties_of(p + row.properties_at, row.properties_length),
            PyBytes_FromStringAndSize(<char*>p + row.body_at, row.body_length),
            row.body_crc,
        )
    finally:
        PyBuffer_Release(&source)

# A pulled page: concatenated records, taken apart for a consumer.


def split_records(data):
    """Returns the records in `data`, which is nothing but records, the position where the walk ended, and its Reason.

    A record is (its bytes, topic, queue offset, reconsume times, body), with None for a body that is compressed.
    The walk ends at the end of `data` with STOP, or at the first record that is not valid. Checks a record's lengths,
    but not its position or CRC.
    """
    cdef Py_buffer source
    cdef Row row
    cdef const uint8_t* p
    cdef const uint8_t* topic_at = NULL
    cdef int64_t at = 0, left, topic_length = -1
    cdef int reason = STOP
    cdef list found = []
    cdef object topic = None
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        while at < source.len:
            p = <const uint8_t*>source.buf + at
            left = source.len - at
            reason = examine(p, left, 0, load64(p + 28) if left >= 36 else 0, False, &row)
            if reason != STOP:
                break
            if row.topic_length != topic_length or memcmp(p + row.topic_at, topic_at, topic_length) != 0:
                topic_at, topic_length = p + row.topic_at, row.topic_length
                topic = PyUnicode_DecodeUTF8(<char*>topic_at, topic_length, "surrogateescape")
            found.append((
                PyBytes_FromStringAndSize(<char*>p, row.size),
                topic,
                row.queue_offset,
                row.reconsume_times,
                None if row.sys_flag & 1 else PyBytes_FromStringAndSize(<char*>p + row.body_at, row.body_length),
            ))
            at += row.size
        return found, at, reason
    finally:
        PyBuffer_Release(&source)

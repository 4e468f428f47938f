# Records: CRC, hash, encode, publish. The reference is `_plain_log.py`.

cdef extern from "Python.h":
    int PyUnicode_KIND(object text) nogil
    void* PyUnicode_DATA(object text) nogil
    Py_ssize_t PyUnicode_GET_LENGTH(object text) nogil


def crc32(data):
    """CRC-32 with the top bit cleared, as records store it."""
    cdef Py_buffer source
    cdef uint32_t crc
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    if source.len > 16384:
        with nogil:
            crc = crc_of(<const uint8_t*>source.buf, source.len)
    else:
        crc = crc_of(<const uint8_t*>source.buf, source.len)
    PyBuffer_Release(&source)
    return crc


cdef int32_t hash_text(str text):
    cdef Py_ssize_t i, size = PyUnicode_GET_LENGTH(text)
    cdef int kind = PyUnicode_KIND(text)
    cdef void* units = PyUnicode_DATA(text)
    cdef uint32_t code = 0, point
    if kind == 1:
        for i in range(size):
            code = 31 * code + (<uint8_t*>units)[i]
    elif kind == 2:
        for i in range(size):
            code = 31 * code + (<unsigned short*>units)[i]
    else:
        for i in range(size):
            point = (<uint32_t*>units)[i]
            if point >= 0x10000:
                code = 31 * code + 0xD7C0 + (point >> 10)
                point = 0xDC00 + (point & 0x3FF)
            code = 31 * code + point
    return <int32_t>code


def java_hash(str text not None):
    """Java's String.hashCode: signed 32 bit, over UTF-16 code units."""
    return hash_text(text)


cdef int check_room(int64_t length, int64_t at, int64_t size) except -1:
    if at < 0 or size > MAX_INT or at > length or size > length - at:
        raise ValueError(f"{size} bytes at {at} do not fit into {length}")
    return 0


cdef inline void store_head(uint8_t* at, int32_t size, int32_t magic) noexcept nogil:
    """Size, then magic: whoever sees the magic sees everything stored before."""
    release_fence()
    store32(at, size)
    release_fence()
    store32(at + 4, magic)


def encode_record(
    out,
    int64_t at,
    int64_t physical_offset,
    int64_t queue_offset,
    int64_t store_timestamp,
    int32_t queue_id,
    int32_t flag,
    int32_t sys_flag,
    int64_t born_timestamp,
    bytes born_host not None,
    bytes store_host not None,
    int32_t reconsume_times,
    int64_t prepared_transaction_offset,
    body,
    bytes topic not None,
    bytes properties not None,
    bint publish_now,
):
    """Writes a V1 record at out[at:] and returns its size; its first 8 bytes only if `publish_now`."""
    cdef Py_ssize_t born_size = PyBytes_GET_SIZE(born_host), store_size = PyBytes_GET_SIZE(store_host)
    cdef Py_ssize_t topic_size = PyBytes_GET_SIZE(topic), properties_size = PyBytes_GET_SIZE(properties)
    cdef Py_buffer target, source
    cdef uint8_t* p
    cdef int64_t size
    if born_size != (20 if sys_flag & 0x10 else 8) or store_size != (20 if sys_flag & 0x20 else 8):
        raise ValueError("the hosts' lengths contradict the IPv6 bits of sys_flag")
    if topic_size > 127:
        raise ValueError(f"the topic takes {topic_size} bytes; at most 127 fit")
    if properties_size > 32767:
        raise ValueError(f"the properties take {properties_size} bytes; at most 32767 fit")
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(body, &source, PyBUF_SIMPLE)
        try:
            size = 75 + born_size + store_size + source.len + topic_size + properties_size
            check_room(target.len, at, size)
            p = <uint8_t*>target.buf + at
            store32(p + 8, <int32_t>crc_of(<const uint8_t*>source.buf, source.len))
            store32(p + 12, queue_id)
            store32(p + 16, flag)
            store64(p + 20, queue_offset)
            store64(p + 28, physical_offset)
            store32(p + 36, sys_flag)
            store64(p + 40, born_timestamp)
            memcpy(p + 48, PyBytes_AS_STRING(born_host), born_size)
            p += 48 + born_size
            store64(p, store_timestamp)
            memcpy(p + 8, PyBytes_AS_STRING(store_host), store_size)
            p += 8 + store_size
            store32(p, reconsume_times)
            store64(p + 4, prepared_transaction_offset)
            store32(p + 12, <int32_t>source.len)
            memcpy(p + 16, source.buf, source.len)
            p += 16 + source.len
            p[0] = <uint8_t>topic_size
            memcpy(p + 1, PyBytes_AS_STRING(topic), topic_size)
            p += 1 + topic_size
            store16(p, <int16_t>properties_size)
            memcpy(p + 2, PyBytes_AS_STRING(properties), properties_size)
            if publish_now:
                store_head(<uint8_t*>target.buf + at, <int32_t>size, MESSAGE_MAGIC)
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)
    return size


cdef int write_head(out, int64_t at, int64_t size, int32_t magic) except -1:
    cdef Py_buffer target
    if size < 8:
        raise ValueError(f"{size} bytes are not a record")
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        check_room(target.len, at, size)
        store_head(<uint8_t*>target.buf + at, <int32_t>size, magic)
    finally:
        PyBuffer_Release(&target)
    return 0


def publish(out, int64_t at, int64_t size):
    """Stores the size, then the magic: from now on a reader sees the record."""
    write_head(out, at, size, MESSAGE_MAGIC)


def write_blank(out, int64_t at, int64_t size):
    """Stores the header of a filler of `size` bytes; the rest of it is left alone."""
    write_head(out, at, size, BLANK_MAGIC)


def copy_published(out, int64_t at, data):
    """Copies whole records so that the first one's size and magic are stored last, in this order."""
    cdef Py_buffer target, source
    cdef const uint8_t* p
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            if source.len < 8:
                raise ValueError(f"{source.len} bytes are not a record")
            check_room(target.len, at, source.len)
            p = <const uint8_t*>source.buf
            memcpy(<uint8_t*>target.buf + at + 8, p + 8, source.len - 8)
            store_head(<uint8_t*>target.buf + at, load32(p), load32(p + 4))
        finally:
            PyBuffer_Release(&source)
    finally:
        PyBuffer_Release(&target)

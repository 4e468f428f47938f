# Records to values: what a page or a query found becomes `Record`s in one step. The plain twin is plain/decode.py.

cdef extern from "Python.h":
    object PyObject_Vectorcall(object callable, PyObject** arguments, size_t count, PyObject* names)
    bint PyUnicode_IS_ASCII(object text) nogil
    void Py_INCREF(object value)
    void Py_XDECREF(PyObject* value)

cdef enum:
    RECORD_FIELDS = 16
    NAMES = 64  # a power of two


cdef struct Seen:  # texts that the records of one call share; they own a reference
    PyObject* names[NAMES]  # names of properties by their hash; ASCII only, so that their bytes are their characters
    PyObject* topic
    const uint8_t* topic_bytes
    int64_t topic_size
    PyObject* born_host
    const uint8_t* born_bytes
    int born_size
    PyObject* store_host
    const uint8_t* store_bytes
    int store_size


cdef void forget(Seen* seen) noexcept:
    cdef int i
    for i in range(NAMES):
        Py_XDECREF(seen.names[i])
    Py_XDECREF(seen.topic)
    Py_XDECREF(seen.born_host)
    Py_XDECREF(seen.store_host)


cdef inline void keep(PyObject** place, object value) noexcept:
    Py_INCREF(value)
    Py_XDECREF(place[0])
    place[0] = <PyObject*>value


cdef object name_of(const uint8_t* text, int64_t size, Seen* seen):
    cdef PyObject** known = &seen.names[hash_bytes(text, size) & (NAMES - 1)]
    if (
        known[0] != NULL and PyUnicode_GET_LENGTH(<object>known[0]) == size
        and not memcmp(PyUnicode_DATA(<object>known[0]), text, size)
    ):
        return <object>known[0]
    name = PyUnicode_DecodeUTF8(<char*>text, size, "surrogateescape")
    if PyUnicode_IS_ASCII(name):
        keep(known, name)
    return name


cdef dict properties_of(const uint8_t* text, int64_t size, Seen* seen):
    """Returns all properties but the record's CRC. The last of duplicates wins; empty names and values are left out."""
    cdef dict properties = {}
    if ends_with_record_crc(text, size):
        size -= RECORD_CRC_SIZE
    cdef const uint8_t* end = text + size
    cdef const uint8_t* piece_end
    cdef const uint8_t* equals
    while text < end:
        piece_end = <const uint8_t*>memchr(text, 2, end - text)
        if piece_end == NULL:
            piece_end = end
        equals = <const uint8_t*>memchr(text, 1, piece_end - text)
        if equals != NULL and equals > text and equals + 1 < piece_end:
            properties[name_of(text, equals - text, seen)] = PyUnicode_DecodeUTF8(
                <char*>equals + 1, piece_end - equals - 1, "surrogateescape"
            )
        text = piece_end + 1
    return properties


cdef object decode_one(const uint8_t* p, const Row* row, object record_type, Seen* seen):
    """Returns the value of a record that `examine` accepted. The record's bytes must stay until the call ends."""
    cdef int born_size = 20 if row.sys_flag & 0x10 else 8
    cdef int store_size = 20 if row.sys_flag & 0x20 else 8
    cdef const uint8_t* at = p + row.topic_at
    cdef PyObject* fields[RECORD_FIELDS]
    if seen.topic == NULL or seen.topic_size != row.topic_length or memcmp(seen.topic_bytes, at, row.topic_length):
        keep(&seen.topic, PyUnicode_DecodeUTF8(<char*>at, row.topic_length, "surrogateescape"))
        seen.topic_bytes = at
        seen.topic_size = row.topic_length
    at = p + 48
    if seen.born_host == NULL or seen.born_size != born_size or memcmp(seen.born_bytes, at, born_size):
        keep(&seen.born_host, _decode_host(PyBytes_FromStringAndSize(<char*>at, born_size)))
        seen.born_bytes = at
        seen.born_size = born_size
    at = p + 56 + born_size
    if seen.store_host == NULL or seen.store_size != store_size or memcmp(seen.store_bytes, at, store_size):
        keep(&seen.store_host, _decode_host(PyBytes_FromStringAndSize(<char*>at, store_size)))
        seen.store_bytes = at
        seen.store_size = store_size
    cdef object queue_id = row.queue_id
    cdef object queue_offset = row.queue_offset
    cdef object physical_offset = row.physical_offset
    cdef object size = row.size
    cdef object flag = row.flag
    cdef object sys_flag = row.sys_flag
    cdef object born_timestamp = row.born_timestamp
    cdef object store_timestamp = row.store_timestamp
    cdef object reconsume_times = row.reconsume_times
    cdef object prepared = row.prepared_transaction_offset
    properties = properties_of(p + row.properties_at, row.properties_length, seen)
    body = PyBytes_FromStringAndSize(<char*>p + row.body_at, row.body_length)
    cdef object body_crc = row.body_crc
    fields[0] = seen.topic
    fields[1] = <PyObject*>queue_id
    fields[2] = <PyObject*>queue_offset
    fields[3] = <PyObject*>physical_offset
    fields[4] = <PyObject*>size
    fields[5] = <PyObject*>flag
    fields[6] = <PyObject*>sys_flag
    fields[7] = <PyObject*>born_timestamp
    fields[8] = seen.born_host
    fields[9] = <PyObject*>store_timestamp
    fields[10] = seen.store_host
    fields[11] = <PyObject*>reconsume_times
    fields[12] = <PyObject*>prepared
    fields[13] = <PyObject*>properties
    fields[14] = <PyObject*>body
    fields[15] = <PyObject*>body_crc
    return PyObject_Vectorcall(record_type, fields, RECORD_FIELDS, NULL)


def decode_records(data, int64_t at, int64_t max_records, record_type):
    """Returns the first `max_records` records of those that lie one after the other from data[at] to its end.

    record_type   called with the fields of `Record`, in its order

    Checks each record's lengths, but not its position or CRC. Raises CorruptData.
    """
    cdef Py_buffer source
    cdef Row row
    cdef Seen seen
    cdef const uint8_t* p
    cdef int64_t left
    cdef int reason
    cdef list records = []
    memset(&seen, 0, sizeof(seen))
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or at > source.len:
            raise ValueError(f"{at} is not a position")
        while at < source.len and PyList_GET_SIZE(records) < max_records:
            p = <const uint8_t*>source.buf + at
            left = source.len - at
            reason = examine(p, left, 0, load64(p + 28) if left >= 36 else 0, False, &row)
            if reason != STOP:
                raise _CorruptData(f"not a valid record: {_Reason(reason).name}", offset=at)
            records.append(decode_one(p, &row, record_type, &seen))
            at += row.size
    finally:
        forget(&seen)
        PyBuffer_Release(&source)
    return records


cdef extern from *:
    """
    /* Loads a byte of each page of [p, p + size), so that a page fault happens here. */
    static inline void touch(const uint8_t *p, int64_t size) {
        volatile uint8_t byte;
        for (int64_t at = 0; at < size; at += 4096) byte = p[at];
        if (size > 0) byte = p[size - 1];
        (void)byte;
    }
    """
    void touch(const uint8_t* p, int64_t size) noexcept nogil


cdef const uint8_t* log_file_of(
    int64_t offset, const Py_buffer* logs, int64_t log_count, int64_t log_base, int64_t file_size, int64_t log_end,
    int64_t* length, int64_t* base, int64_t* at,
) noexcept nogil:
    """Returns the file that a physical offset lies in, how much of it may be read, and the position; else NULL."""
    cdef int64_t place
    if not log_base <= offset < log_end:
        return NULL
    place = (offset - log_base) // file_size
    if place >= log_count:
        return NULL
    base[0] = log_base + place * file_size
    at[0] = offset - base[0]
    length[0] = min(logs[place].len, log_end - base[0])
    return <const uint8_t*>logs[place].buf if at[0] < length[0] else NULL


def decode_at(offsets, list logs not None, int64_t log_base, int64_t file_size, int64_t log_end, record_type):
    """Returns the records at these physical offsets, None for each offset at which no valid record starts.

    offsets          int64 numbers
    logs             the files of the log in order, each of `file_size` bytes; the first starts at `log_base`
    log_end          physical offset up to which the log may be read
    record_type      called with the fields of `Record`, in its order

    Checks each record's position and lengths, but not its CRC. Loads what is not in memory without the GIL.
    """
    cdef Py_buffer wanted
    cdef Py_buffer* held = <Py_buffer*>malloc((len(logs) + 1) * sizeof(Py_buffer))
    cdef Py_ssize_t taken = 0
    cdef int64_t count, i, length = 0, base = 0, at = 0
    cdef const int64_t* places
    cdef const uint8_t* data
    cdef Row row
    cdef Seen seen
    cdef list records = []
    memset(&seen, 0, sizeof(seen))
    if held == NULL:
        raise MemoryError
    try:
        if file_size <= 0 or log_base < 0:
            raise ValueError("a log file has bytes")
        for view in logs:
            PyObject_GetBuffer(view, &held[taken], PyBUF_SIMPLE)
            taken += 1
        PyObject_GetBuffer(offsets, &wanted, PyBUF_SIMPLE)
        try:
            places = <const int64_t*>wanted.buf
            count = wanted.len // 8
            with nogil:
                for i in range(count):
                    data = log_file_of(places[i], held, taken, log_base, file_size, log_end, &length, &base, &at)
                    if data != NULL and examine(data, length, at, base, False, &row) == STOP:
                        touch(data + at, row.size)
            for i in range(count):
                data = log_file_of(places[i], held, taken, log_base, file_size, log_end, &length, &base, &at)
                if data == NULL or examine(data, length, at, base, False, &row) != STOP:
                    records.append(None)
                else:
                    records.append(decode_one(data + at, &row, record_type, &seen))
        finally:
            PyBuffer_Release(&wanted)
    finally:
        forget(&seen)
        for i in range(taken):
            PyBuffer_Release(&held[i])
        free(held)
    return records

# Records by key: candidates from the index, and whether a record really has the key. The reference is `_plain_query.py`.

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE


cdef enum:
    AT_ONCE = 64


cdef bint has_key(
    const uint8_t* record, const Row* row, const char* topic, int64_t topic_size, const char* key, int64_t key_size,
    int64_t begin, int64_t end,
) noexcept nogil:
    """Whether a checked record has this topic, this key or unique key, and a store time in [begin, end]."""
    cdef const uint8_t* properties = record + row.properties_at
    cdef const uint8_t* text = NULL
    cdef const uint8_t* last
    cdef const uint8_t* piece_end
    cdef int64_t size = 0
    if row.topic_length != topic_size or memcmp(record + row.topic_at, topic, topic_size) or key_size == 0:
        return False
    if row.store_timestamp < begin or row.store_timestamp > end:
        return False
    if last_value(properties, row.properties_length, b"KEYS", 4, &text, &size):
        last = text + size
        while text < last:
            piece_end = <const uint8_t*>memchr(text, 32, last - text)
            if piece_end == NULL:
                piece_end = last
            if piece_end - text == key_size and memcmp(text, key, key_size) == 0:
                return True
            text = piece_end + 1
    if last_value(properties, row.properties_length, b"UNIQ_KEY", 8, &text, &size):
        return size == key_size and memcmp(text, key, key_size) == 0
    return False


cpdef match_record(
    data, int64_t at, int64_t base, int64_t readable, bint check_crc, bytes topic, bytes key, begin, end
):
    """The bytes of the record at `at` if it is valid and has this topic, key and time; else None."""
    cdef Py_buffer source
    cdef Row row
    cdef int64_t first = clamp_long(begin), last = clamp_long(end)
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        readable = min(readable, source.len)
        if at < 0 or at >= readable:
            return None
        if examine(<const uint8_t*>source.buf, readable, at, base, check_crc, &row) != STOP or not has_key(
            <const uint8_t*>source.buf + at, &row, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic),
            PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), first, last,
        ):
            return None
        return PyBytes_FromStringAndSize(<char*>source.buf + at, row.size)
    finally:
        PyBuffer_Release(&source)


def find_key(
    bytes key not None, bytes topic not None, list indexes not None, int64_t slots, int64_t items, list logs not None,
    int64_t log_base, int64_t file_size, int64_t log_end, begin, end, int64_t most, bint check_crc,
):
    """The newest `most` records with a key, oldest first, each once, as bytes; arguments as for `find_keys`."""
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), hashed, number, count, i, offset, place, item
    cdef int64_t* found = NULL
    cdef Py_buffer table
    cdef uint32_t code = 31 * hash_on(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), 0) + 35
    cdef dict records = {}
    hashed = without_sign(hash_on(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), code))
    for item in range(PyList_GET_SIZE(indexes) - 1, -1, -1):
        PyObject_GetBuffer(<object>PyList_GET_ITEM(indexes, item), &table, PyBUF_SIMPLE)
        try:
            check_geometry(table.len, slots, items)
            number = load32(<const uint8_t*>table.buf + 40 + 4 * (hashed % slots))
            while 0 < number < items and PyDict_Size(records) < most:
                acquire_fence()
                with nogil:
                    count = follow(
                        <const uint8_t*>table.buf, slots, items, hashed, first, last, &number, AT_ONCE, &found
                    )
                if count < 0:
                    raise MemoryError
                for i in range(count):
                    offset = found[i]
                    if PyDict_Size(records) >= most or not log_base <= offset < log_end or offset in records:
                        continue
                    place = (offset - log_base) // file_size
                    if place < PyList_GET_SIZE(logs):
                        record = match_record(
                            <object>PyList_GET_ITEM(logs, place), offset - log_base - place * file_size,
                            log_base + place * file_size, log_end - log_base - place * file_size, check_crc, topic, key,
                            begin, end,
                        )
                        if record is not None:
                            records[offset] = record
        finally:
            PyBuffer_Release(&table)
            free(found)
            found = NULL
    if PyDict_Size(records) < 2:
        return list(records.values())
    return [records[offset] for offset in sorted(records)]


ctypedef struct Wanted:
    const char* text
    Py_ssize_t size
    int64_t hashed


cdef int search_file(
    const uint8_t* index, int64_t slots, int64_t items, const Wanted* wanted, int64_t count, const char* topic,
    int64_t topic_size, const Py_buffer* logs, int64_t log_count, int64_t log_base, int64_t file_size, int64_t log_end,
    int64_t begin, int64_t end, Keys* hits, int64_t** offsets,
) noexcept nogil:
    """Looks all keys up in one index file, some at once so that their cache misses overlap; -1 without memory."""
    cdef int64_t start, stop, i, number, place, at, room, previous
    cdef int64_t[AT_ONCE] numbers
    cdef int64_t[AT_ONCE] lefts
    cdef const uint8_t* tails[AT_ONCE]
    cdef const uint8_t* item
    cdef const uint8_t* first_item = index + 40 + 4 * slots
    cdef int64_t first_time = load64(index), offset
    cdef int32_t seconds
    cdef void* larger
    cdef Row row
    start = 0
    while start < count:
        stop = min(start + AT_ONCE, count)
        memset(tails, 0, sizeof(tails))
        for i in range(start, stop):
            fetch(index + 40 + 4 * (wanted[i].hashed % slots))
        for i in range(start, stop):
            number = load32(index + 40 + 4 * (wanted[i].hashed % slots))
            numbers[i - start] = number if 0 < number < items else 0
            fetch(first_item + 20 * numbers[i - start])
        for i in range(start, stop):
            if numbers[i - start]:
                offset = load64(first_item + 20 * numbers[i - start] + 4)
                if log_base <= offset < log_end:
                    place = (offset - log_base) // file_size
                    at = offset - log_base - place * file_size
                    if place < log_count and at + 128 < logs[place].len:
                        fetch(<const uint8_t*>logs[place].buf + at)
                        fetch(<const uint8_t*>logs[place].buf + at + 64)
                        tails[i - start] = <const uint8_t*>logs[place].buf + at
                        lefts[i - start] = logs[place].len - at
        for i in range(start, stop):
            if tails[i - start] != NULL:  # topic and keys stand at a record's end
                room = load32(tails[i - start])
                if 128 < room <= lefts[i - start]:
                    fetch(tails[i - start] + room - 1)
                    fetch(tails[i - start] + room - 65)
        for i in range(start, stop):
            number = numbers[i - start]
            while 0 < number < items:
                item = first_item + 20 * number
                seconds = load32(item + 12) if number > 1 else 0
                if load32(item) == wanted[i].hashed and second_matches(first_time, seconds, begin, end):
                    offset = load64(item + 4)
                    if log_base <= offset < log_end:
                        place = (offset - log_base) // file_size
                        at = offset - log_base - place * file_size
                        if place < log_count and at < logs[place].len and examine(
                            <const uint8_t*>logs[place].buf, logs[place].len, at, log_base + place * file_size, False,
                            &row,
                        ) == STOP and has_key(
                            <const uint8_t*>logs[place].buf + at, &row, topic, topic_size, wanted[i].text,
                            wanted[i].size, begin, end,
                        ):
                            if hits.count == hits.room:
                                room = 2 * hits.room + 1024
                                larger = realloc(hits.numbers, room * sizeof(int64_t))
                                if larger == NULL:
                                    return -1
                                hits.numbers = <int64_t*>larger
                                larger = realloc(offsets[0], room * sizeof(int64_t))
                                if larger == NULL:
                                    return -1
                                offsets[0] = <int64_t*>larger
                                hits.room = room
                            hits.numbers[hits.count] = i
                            offsets[0][hits.count] = offset
                            hits.count += 1
                previous = load32(item + 16)
                number = previous if previous < number else 0
        start = stop
    return 0


def find_keys(
    list keys not None, bytes topic not None, list indexes not None, int64_t slots, int64_t items, list logs not None,
    int64_t log_base, int64_t file_size, int64_t log_end, begin, end,
):
    """Where records with these keys lie: (numbers of the keys, physical offsets), for many keys at once.

    `indexes` are whole index files, `logs` the log's files in order, the first beginning at `log_base`. Records are
    checked but for their body's CRC. A record that names a key twice comes twice.
    """
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), count = PyList_GET_SIZE(keys), i, log_count
    cdef Py_ssize_t taken = 0, index_taken = 0
    cdef Wanted* wanted = <Wanted*>malloc((count + 1) * sizeof(Wanted))
    cdef Py_buffer* held = <Py_buffer*>malloc((len(logs) + 1) * sizeof(Py_buffer))
    cdef Py_buffer* tables = <Py_buffer*>malloc((len(indexes) + 1) * sizeof(Py_buffer))
    cdef Keys hits
    cdef int64_t* offsets = NULL
    cdef const char* topic_text = PyBytes_AS_STRING(topic)
    cdef int64_t topic_size = PyBytes_GET_SIZE(topic)
    cdef uint32_t code
    cdef int failed = 0
    memset(&hits, 0, sizeof(hits))
    try:
        if wanted == NULL or held == NULL or tables == NULL or file_size <= 0:
            raise MemoryError
        code = 31 * hash_on(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), 0) + 35
        for i in range(count):
            key = <object>PyList_GET_ITEM(keys, i)
            if not PyUnicode_CheckExact(key):
                raise TypeError(f"key {i} is no text")
            wanted[i].text = PyUnicode_AsUTF8AndSize(key, &wanted[i].size)
            if wanted[i].text == NULL:
                PyErr_Clear()
                raise ValueError(f"key {i} holds half a character")
            wanted[i].hashed = without_sign(hash_on(<const uint8_t*>wanted[i].text, wanted[i].size, code))
        for table in indexes:
            PyObject_GetBuffer(table, &tables[index_taken], PyBUF_SIMPLE)
            index_taken += 1
            check_geometry(tables[index_taken - 1].len, slots, items)
        for data in logs:
            PyObject_GetBuffer(data, &held[taken], PyBUF_SIMPLE)
            taken += 1
        log_count = taken
        with nogil:
            for i in range(index_taken):
                failed = search_file(
                    <const uint8_t*>tables[i].buf, slots, items, wanted, count, topic_text,
                    topic_size, held, log_count, log_base, file_size, log_end, first, last, &hits, &offsets,
                )
                if failed:
                    break
        if failed:
            raise MemoryError
        return longs_from(hits.numbers, hits.count), longs_from(offsets, hits.count)
    finally:
        for i in range(taken):
            PyBuffer_Release(&held[i])
        for i in range(index_taken):
            PyBuffer_Release(&tables[i])
        free(held)
        free(tables)
        free(wanted)
        free(offsets)
        free(hits.numbers)

# Records by key: candidates from the index, and whether a record really has the key. The reference is `_plain_query.py`.

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE


cdef extern from *:
    """
    static inline void fetch(const void *p) { __builtin_prefetch(p, 0, 1); }
    """
    void fetch(const void* p) noexcept nogil


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


def index_candidates(
    data, int64_t slots, int64_t items, bytes topic not None, bytes key not None, begin, end, int64_t item, int64_t limit
):
    """As index_find, by topic and key instead of their hash, with the offsets as a tuple."""
    cdef Py_buffer source
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), number = item, count, i, hashed
    cdef int64_t* found = NULL
    cdef uint32_t code = 31 * hash_on(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), 0) + 35
    hashed = without_sign(hash_on(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), code))
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        check_geometry(source.len, slots, items)
        if number == 0:
            number = load32(<const uint8_t*>source.buf + 40 + 4 * (hashed % slots))
        if number <= 0 or number >= items:
            return (), 0
        acquire_fence()
        with nogil:
            count = follow(<const uint8_t*>source.buf, slots, items, hashed, first, last, &number, limit, &found)
        if count < 0:
            raise MemoryError
        return tuple([found[i] for i in range(count)]), number
    finally:
        free(found)
        PyBuffer_Release(&source)


def match_record(
    data, int64_t at, int64_t base, int64_t readable, bint check_crc, bytes topic not None, bytes key not None, begin, end
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


ctypedef struct Wanted:
    const char* text
    Py_ssize_t size
    int64_t hashed


cdef enum:
    AT_ONCE = 64


cdef int search_file(
    const uint8_t* index, int64_t slots, int64_t items, const Wanted* wanted, int64_t count, const char* topic,
    int64_t topic_size, const Py_buffer* logs, int64_t log_count, int64_t log_base, int64_t file_size, int64_t log_end,
    int64_t begin, int64_t end, Keys* hits, int64_t** offsets,
) noexcept nogil:
    """Looks all keys up in one index file, some at once so that their cache misses overlap; -1 without memory."""
    cdef int64_t start, stop, i, number, place, at, room, previous
    cdef int64_t[AT_ONCE] numbers
    cdef const uint8_t* item
    cdef const uint8_t* first_item = index + 40 + 4 * slots
    cdef int64_t first_time = load64(index), offset
    cdef int32_t seconds
    cdef void* larger
    cdef Row row
    start = 0
    while start < count:
        stop = min(start + AT_ONCE, count)
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

# Properties, tag codes and keys of rows. The reference is `_plain_columns.py`.

cdef bint last_value(
    const uint8_t* properties, int64_t size, const char* name, int64_t name_size,
    const uint8_t** value, int64_t* value_size,
) noexcept nogil:
    """The value of the last property of this name; the name holds no separator."""
    cdef const uint8_t* piece = properties
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* piece_end
    cdef bint found = False
    while piece < end:
        piece_end = <const uint8_t*>memchr(piece, 2, end - piece)
        if piece_end == NULL:
            piece_end = end
        if (
            piece_end - piece > name_size + 1
            and piece[name_size] == 1
            and memcmp(piece, name, name_size) == 0
        ):
            found = True
            value[0] = piece + name_size + 1
            value_size[0] = piece_end - value[0]
        piece = piece_end + 1
    return found


def find_property(data, int64_t at, bytes name not None):
    """The value of a property of the record at `at`; ValueError where no record of sound lengths starts."""
    cdef Py_buffer source
    cdef Row row
    cdef const uint8_t* p
    cdef const uint8_t* value
    cdef int64_t value_size
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        if at < 0 or source.len < 91 or at > source.len - 91:
            raise ValueError(f"no record starts at {at}")
        p = <const uint8_t*>source.buf + at
        reason = examine(p, source.len - at, 0, load64(p + 28), False, &row)
        if reason != STOP:
            raise ValueError(f"no record starts at {at}: {_Reason(reason).name}")
        if not name or b"\x01" in name or b"\x02" in name:
            return None
        p += row.properties_at
        if last_value(
            p, row.properties_length, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &value, &value_size
        ):
            return (<const char*>value)[:value_size]
        return None
    finally:
        PyBuffer_Release(&source)


cdef class _RowBuffer:
    """The rows of an array as C structs, held for as long as this object lives."""

    cdef Py_buffer held
    cdef Row* rows
    cdef int64_t count
    cdef bint taken

    def __cinit__(self, rows, bint writable):
        if rows.dtype != _ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise ValueError("rows must be a contiguous array of ROW")
        PyObject_GetBuffer(rows, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.taken = True
        self.rows = <Row*>self.held.buf
        self.count = rows.shape[0]

    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.held)


ctypedef struct Found:  # the last value of each property that dispatch asks for; size 0: there is none
    const uint8_t* tags
    const uint8_t* keys
    const uint8_t* unique
    int64_t tags_size
    int64_t keys_size
    int64_t unique_size


cdef inline void look_through(const uint8_t* record, const Row* row, Found* found) noexcept nogil:
    """What `last_value` finds for TAGS, KEYS and UNIQ_KEY in a record's properties, in one go."""
    cdef const uint8_t* piece = record + row.properties_at
    cdef const uint8_t* end = piece + row.properties_length
    cdef const uint8_t* piece_end
    found.tags = found.keys = found.unique = piece
    found.tags_size = found.keys_size = found.unique_size = 0
    while end - piece > 5:
        piece_end = end_of_piece(record, piece, end)
        if piece_end - piece > 5 and piece[4] == 1:
            if memcmp(piece, b"TAGS", 4) == 0:
                found.tags = piece + 5
                found.tags_size = piece_end - found.tags
            elif memcmp(piece, b"KEYS", 4) == 0:
                found.keys = piece + 5
                found.keys_size = piece_end - found.keys
        elif piece_end - piece > 9 and piece[8] == 1 and memcmp(piece, b"UNIQ_KEY", 8) == 0:
            found.unique = piece + 9
            found.unique_size = piece_end - found.unique
        piece = piece_end + 1


cdef inline const uint8_t* record_of(const Py_buffer* source, int64_t base, const Row* row) noexcept nogil:
    """Where a row's record starts; NULL unless it lies in the data, and topic and properties in it."""
    cdef uint64_t at
    if row.physical_offset < base or row.size < 0:
        return NULL
    at = <uint64_t>row.physical_offset - <uint64_t>base
    if at > <uint64_t>source.len or row.size > source.len - <int64_t>at:
        return NULL
    if row.topic_at < 0 or row.topic_length < 0 or <int64_t>row.topic_at + row.topic_length > row.size:
        return NULL
    if row.properties_at < 0 or row.properties_length < 0 or row.properties_length > 32767:
        return NULL
    if <int64_t>row.properties_at + row.properties_length > row.size:
        return NULL
    return <const uint8_t*>source.buf + at


cdef int64_t parse_level(const uint8_t* text, int64_t size) noexcept nogil:
    """The level as Java's parseInt reads it; 0 where it would refuse, and for every level below 1."""
    cdef int64_t i = 0, level = 0
    if size and (text[0] == 43 or text[0] == 45):  # + and -
        i = 1
    if i == size:
        return 0
    for i in range(i, size):
        if text[i] < 48 or text[i] > 57:
            return 0
        level = level * 10 + text[i] - 48
        if level > MAX_INT:
            return 0
    return 0 if text[0] == 45 else level


cdef int64_t* delays_of(tuple delay_levels) except NULL:
    """The levels' milliseconds as a C array, to be freed by the caller."""
    cdef int64_t number, count = len(delay_levels)
    cdef int64_t* delays = <int64_t*>malloc(max(1, count) * sizeof(int64_t))
    if delays == NULL:
        raise MemoryError
    for number in range(count):
        delays[number] = delay_levels[number]
    return delays


cdef inline int tag_row(
    const uint8_t* record, Row* row, const Found* found, const int64_t* delays, int64_t level_count
) except -1 nogil:
    """Fills the row's tags code."""
    cdef const uint8_t* value = NULL
    cdef int64_t level = 0, size = 0
    row.tags_code = 0
    if row.topic_length == 19 and memcmp(record + row.topic_at, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
        if last_value(record + row.properties_at, row.properties_length, b"DELAY", 5, &value, &size):
            level = min(parse_level(value, size), level_count)
    if level > 0:
        row.tags_code = <int64_t>(<uint64_t>row.store_timestamp + <uint64_t>delays[level - 1])
    elif found.tags_size:
        row.tags_code = <int32_t>hash_on(found.tags, found.tags_size, 0)
    return 0


def tag_codes(data, int64_t base, rows, tuple delay_levels not None):
    """Fills rows["tags_code"]: the tag's hash, or in the schedule topic the time it is due."""
    cdef _RowBuffer held = _RowBuffer(rows, True)
    cdef Py_buffer source
    cdef int64_t bad, level_count = len(delay_levels)
    cdef int64_t* delays = delays_of(delay_levels)
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            with nogil:
                bad = derive_rows(&source, base, held.rows, 0, held.count, delays, level_count, NULL)
        finally:
            PyBuffer_Release(&source)
    finally:
        free(delays)
    if bad >= 0:
        raise ValueError(f"row {bad} does not lie in the data")


cdef inline int32_t without_sign(uint32_t code) noexcept nogil:
    cdef int32_t signed = <int32_t>code
    if signed >= 0:
        return signed
    return 0 if code == <uint32_t>0x80000000 else -signed


ctypedef struct Keys:
    int32_t* hashes
    int64_t* numbers
    int64_t count
    int64_t room
    const uint8_t* topic  # the last one, and its hash with the separator: the next record's is often the same
    int32_t topic_length
    uint32_t topic_code


cdef int add_key(Keys* keys, uint32_t code, int64_t number) noexcept nogil:
    """Adds a key; -1 without memory."""
    cdef int64_t room
    cdef void* larger
    if keys.count == keys.room:
        room = 2 * keys.room + 64
        larger = realloc(keys.hashes, room * sizeof(int32_t))
        if larger == NULL:
            return -1
        keys.hashes = <int32_t*>larger
        larger = realloc(keys.numbers, room * sizeof(int64_t))
        if larger == NULL:
            return -1
        keys.numbers = <int64_t*>larger
        keys.room = room
    keys.hashes[keys.count] = without_sign(code)
    keys.numbers[keys.count] = number
    keys.count += 1
    return 0


cdef int add_keys_of(
    Keys* keys, const uint8_t* record, const Row* row, int64_t number, const Found* found
) except? -2 nogil:
    """Adds UNIQ_KEY, then each piece of KEYS; -1 without memory."""
    cdef const uint8_t* topic = record + row.topic_at
    cdef const uint8_t* text = found.keys
    cdef const uint8_t* end = found.keys + found.keys_size
    cdef const uint8_t* piece_end
    cdef int64_t size
    if not found.unique_size and not found.keys_size:
        return 0
    if keys.topic == NULL or keys.topic_length != row.topic_length or memcmp(keys.topic, topic, row.topic_length):
        keys.topic_code = 31 * hash_on(topic, row.topic_length, 0) + 35  # '#'
        keys.topic = topic
        keys.topic_length = row.topic_length
    if found.unique_size:
        if add_key(keys, hash_on(found.unique, found.unique_size, keys.topic_code), number) < 0:
            return -1
    if not found.keys_size:
        return 0
    while text < end:
        piece_end = <const uint8_t*>memchr(text, 32, end - text)
        if piece_end == NULL:
            piece_end = end
        size = piece_end - text
        if size:
            if add_key(keys, hash_on(text, size, keys.topic_code), number) < 0:
                return -1
        text = piece_end + 1
    return 0


cdef void free_keys(Keys* keys) noexcept:
    free(keys.hashes)
    free(keys.numbers)


cdef int64_t derive_rows(
    const Py_buffer* source, int64_t base, Row* rows, int64_t first, int64_t count,
    const int64_t* delays, int64_t level_count, Keys* keys,
) except? -2 nogil:
    """Fills tags codes if there are `delays`, collects keys if there are `keys`, for rows `first` to `count`.

    Returns the number of the first row that does not lie in the data, -1 if all do.
    """
    cdef const uint8_t* record
    cdef int64_t number
    cdef Row* row
    cdef Found found
    for number in range(first, count):
        row = rows + number
        record = record_of(source, base, row)
        if record == NULL:
            return number
        look_through(record, row, &found)
        if delays != NULL:
            tag_row(record, row, &found, delays, level_count)
        if keys != NULL and row.sys_flag & TRANSACTION_MASK != ROLLBACK:
            if add_keys_of(keys, record, row, number, &found):
                with gil:
                    raise MemoryError
    return -1


cdef object collected(Keys* keys):
    """(hashes, row numbers) as arrays."""
    cdef Py_buffer target
    hashes = np.empty(keys.count, dtype=np.int32)
    if keys.count:
        PyObject_GetBuffer(hashes, &target, PyBUF_WRITABLE)
        memcpy(target.buf, keys.hashes, keys.count * sizeof(int32_t))
        PyBuffer_Release(&target)
    return hashes, longs_from(keys.numbers, keys.count)


def index_keys(data, int64_t base, rows):
    """The index hash of every key of every row, and the number of its row."""
    cdef _RowBuffer held = _RowBuffer(rows, False)
    cdef Py_buffer source
    cdef Keys keys
    cdef int64_t bad
    memset(&keys, 0, sizeof(keys))
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            with nogil:
                bad = derive_rows(&source, base, held.rows, 0, held.count, NULL, 0, &keys)
        finally:
            PyBuffer_Release(&source)
        if bad >= 0:
            raise ValueError(f"row {bad} does not lie in the data")
        return collected(&keys)
    finally:
        free_keys(&keys)


cdef enum:
    ROWS_AT_ONCE = 128  # so few that their records are still in the cache when tags and keys are looked for


def derive(
    data, int64_t base, int64_t start, int64_t stop, TopicTable topics not None, tuple delay_levels not None, room
):
    """walk, tag_codes and index_keys in one go, without the GIL from beginning to end.

    Returns (rows, next, reason, hashes, numbers); the rows are a part of the array `room`.
    """
    cdef _RowBuffer held = _RowBuffer(room, True)
    cdef Py_buffer source
    cdef Keys keys
    cdef int64_t at = start, first, count = 0, level_count = len(delay_levels)
    cdef int64_t* delays
    cdef int reason
    if start < 0:
        raise ValueError(f"{start} is not a position")
    delays = delays_of(delay_levels)
    try:
        memset(&keys, 0, sizeof(keys))
        try:
            PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
            try:
                stop = min(stop, source.len)
                with nogil:
                    reason = FULL
                    while reason == FULL and count < held.count:
                        first = count
                        reason = walk_into(
                            <const uint8_t*>source.buf, source.len, base, &at, stop, False, &topics.core,
                            held.rows, min(held.count, first + ROWS_AT_ONCE), &count,
                        )
                        derive_rows(&source, base, held.rows, first, count, delays, level_count, &keys)
            finally:
                PyBuffer_Release(&source)
            if reason == NO_MEMORY:
                raise MemoryError
            hashes, numbers = collected(&keys)
        finally:
            free_keys(&keys)
    finally:
        free(delays)
    return room[:count], at, reason, hashes, numbers

# Records of a log: check, walk, find. The reference is `_plain_log.py`.

cdef extern from *:
    """
    /* Records of a log are often alike in size: has what lies around the start of the fourth one from here fetched,
       the end of the one before it and its own head. A wrong guess costs nothing else; no address is ever refused. */
    static inline void fetch_ahead(const uint8_t *record, int64_t size) {
        const uint8_t *there = record + 4 * size;
        for (int line = -128; line <= 64; line += 64) __builtin_prefetch(there + line);
    }
    """
    void fetch_ahead(const uint8_t* record, int64_t size) noexcept nogil


cdef bint is_incomplete(int32_t magic) noexcept nogil:
    """Whether some bytes of a magic are still zero: a store over two cache lines is seen in two halves."""
    return is_part(magic, MESSAGE_MAGIC) or is_part(magic, MESSAGE_MAGIC_V2) or is_part(magic, BLANK_MAGIC)


cdef bint is_part(int32_t magic, int32_t whole) noexcept nogil:
    cdef int shift
    cdef uint32_t seen
    for shift in range(0, 32, 8):
        seen = (<uint32_t>magic >> shift) & 0xFF
        if seen and seen != (<uint32_t>whole >> shift) & 0xFF:
            return False
    return True


cdef int examine(
    const uint8_t* data, int64_t length, int64_t at, int64_t base, bint check_crc, Row* row
) noexcept nogil:
    """Fills the row of a valid record (STOP), or tells what else stands at `at`, which is in [0, length)."""
    cdef const uint8_t* p = data + at
    cdef int64_t left = length - at, fixed = 91, room
    cdef int32_t magic, size, sys_flag, body_length, topic_length, properties_length
    cdef int born_size, store_size, middle_at, topic_digits = 1
    cdef int64_t i, physical_offset
    if left < 8:
        for i in range(left):
            if p[i]:
                return BAD_SIZE
        return UNWRITTEN
    magic = load32(p + 4)
    acquire_fence()
    if magic == 0:
        return UNWRITTEN
    size = load32(p)
    if magic == BLANK_MAGIC:
        return BLANK if size == left else BAD_SIZE
    if magic == MESSAGE_MAGIC_V2:
        fixed = 92
        topic_digits = 2
    elif magic != MESSAGE_MAGIC:
        return UNWRITTEN if is_incomplete(magic) else BAD_MAGIC
    if size < fixed:
        return BAD_SIZE
    if size > left:
        return BEYOND_END
    physical_offset = load64(p + 28)
    if physical_offset < base or <uint64_t>physical_offset - <uint64_t>base != <uint64_t>at:
        return BAD_POSITION

    sys_flag = load32(p + 36)
    born_size = 20 if sys_flag & 0x10 else 8
    store_size = 20 if sys_flag & 0x20 else 8
    room = size - (fixed - 16 + born_size + store_size)  # for body, topic and properties
    if room < 0:
        return BAD_LENGTHS
    middle_at = 48 + born_size + 8 + store_size
    body_length = load32(p + middle_at + 12)
    if body_length < 0 or body_length > room:
        return BAD_LENGTHS
    row.body_at = middle_at + 16
    row.body_length = body_length
    row.topic_at = row.body_at + body_length + topic_digits
    if topic_digits == 1:
        topic_length = <int8_t>p[row.topic_at - 1]
    else:
        topic_length = load16(p + row.topic_at - 2)
    if topic_length < 0 or topic_length > room - body_length:
        return BAD_LENGTHS
    row.topic_length = topic_length
    row.properties_at = row.topic_at + topic_length + 2
    properties_length = load16(p + row.properties_at - 2)
    if properties_length != room - body_length - topic_length:
        return BAD_LENGTHS
    row.properties_length = properties_length
    row.body_crc = load32(p + 8)
    if check_crc and body_length and <int32_t>crc_of(p + row.body_at, body_length) != row.body_crc:
        return BAD_CRC
    row.physical_offset = physical_offset
    row.queue_offset = load64(p + 20)
    row.store_timestamp = load64(p + 48 + born_size)
    row.born_timestamp = load64(p + 40)
    row.prepared_transaction_offset = load64(p + middle_at + 4)
    row.tags_code = 0
    row.size = size
    row.queue_id = load32(p + 12)
    row.flag = load32(p + 16)
    row.sys_flag = sys_flag
    row.reconsume_times = load32(p + middle_at)
    row.topic_id = -1
    row.reserved = 0
    return STOP


def check_record(data, int64_t at, int64_t base, bint check_crc):
    """Every check of a walk on one record: STOP if it is valid; BEYOND_END where data has ended."""
    cdef Py_buffer source
    cdef Row row
    cdef int reason = BEYOND_END
    if at < 0:
        raise ValueError(f"{at} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    if at < source.len:
        reason = examine(<const uint8_t*>source.buf, source.len, at, base, check_crc, &row)
    PyBuffer_Release(&source)
    return reason


cdef int walk_into(
    const uint8_t* data,
    int64_t length,
    int64_t base,
    int64_t* position,
    int64_t stop,
    bint check_crc,
    Topics* topics,
    Row* rows,
    int64_t capacity,
    int64_t* count,
) noexcept nogil:
    """Appends rows from *position on until `stop`, `capacity`, or something that is no record."""
    cdef int64_t at = position[0], n = count[0]
    cdef int reason = STOP
    cdef Row* row
    cdef TopicCache cache
    if topics != NULL:
        memset(&cache, 0, sizeof(cache))
    while at < stop:
        if n >= capacity:
            reason = FULL
            break
        row = rows + n
        reason = examine(data, length, at, base, check_crc, row)
        if reason != STOP:
            break
        if topics != NULL:
            row.topic_id = cached_topic(topics, &cache, data + at + row.topic_at, row.topic_length)
            if row.topic_id < 0:
                reason = NO_MEMORY
                break
        fetch_ahead(data + at, row.size)
        at += row.size
        n += 1
    position[0] = at
    count[0] = n
    return reason


def walk(
    data, int64_t base, int64_t start, int64_t stop, bint check_crc, TopicTable topics, int64_t max_rows
):
    """The valid records that start in [start, stop), the position after them, and why it ends there."""
    cdef Py_buffer source, target
    cdef int64_t at = start, count = 0, capacity, most
    cdef int reason = FULL
    cdef Topics* table = NULL if topics is None else &topics.core
    if start < 0:
        raise ValueError(f"{start} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        stop = min(stop, source.len)
        most = max(0, min(max_rows, (stop - start) // 91 + 1))
        rows = np.empty(min(most, 16384), dtype=_ROW)
        while True:
            capacity = rows.shape[0]
            PyObject_GetBuffer(rows, &target, PyBUF_WRITABLE)
            with nogil:
                reason = walk_into(
                    <const uint8_t*>source.buf, source.len, base, &at, stop, check_crc, table,
                    <Row*>target.buf, capacity, &count,
                )
            PyBuffer_Release(&target)
            if reason != FULL or capacity >= max_rows:
                break
            larger = np.empty(max(capacity + 1, min(2 * capacity, most)), dtype=_ROW)
            larger[:capacity] = rows
            rows = larger
    finally:
        PyBuffer_Release(&source)
    if reason == NO_MEMORY:
        raise MemoryError
    # A view would keep the whole array alive.
    return (rows[:count] if 2 * count > rows.shape[0] else rows[:count].copy()), at, reason


cdef inline int64_t next_byte(const uint8_t* data, int64_t start, int64_t stop, int byte) noexcept nogil:
    cdef const void* found = NULL
    if start < stop:
        found = memchr(data + start, byte, stop - start)
    return stop if found == NULL else <const uint8_t*>found - data


cdef int64_t find_from(
    const uint8_t* data, int64_t length, int64_t base, int64_t start, int64_t stop, bint check_crc
) noexcept nogil:
    # A magic's first byte stands 4 bytes into the record; two cursors, one for each such byte.
    cdef int64_t end = min(stop, length - 7) + 4
    cdef int64_t message = next_byte(data, start + 4, end, 0xDA)
    cdef int64_t blank = next_byte(data, start + 4, end, 0xCB)
    cdef int64_t at
    cdef int32_t magic
    cdef int reason
    cdef Row row
    while True:
        at = min(message, blank)
        if at >= end:
            return -1
        magic = load32(data + at)
        if magic == MESSAGE_MAGIC or magic == BLANK_MAGIC or magic == MESSAGE_MAGIC_V2:
            reason = examine(data, length, at - 4, base, check_crc, &row)
            if reason == STOP or reason == BLANK:
                return at - 4
        if at == message:
            message = next_byte(data, at + 1, end, 0xDA)
        else:
            blank = next_byte(data, at + 1, end, 0xCB)


def find_record(data, int64_t base, int64_t start, int64_t stop, bint check_crc):
    """The first position in [start, stop) where a valid record or filler starts; -1 if there is none."""
    cdef Py_buffer source
    cdef int64_t found = -1
    if start < 0:
        raise ValueError(f"{start} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    if source.len >= 8 and start < source.len and start < stop:
        with nogil:
            found = find_from(<const uint8_t*>source.buf, source.len, base, start, stop, check_crc)
    PyBuffer_Release(&source)
    return found

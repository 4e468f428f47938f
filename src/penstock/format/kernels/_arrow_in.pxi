# Columns of messages into the log: queues and records. The reference is `_plain_arrow_in.py`.
# Only the longest step lets go of the GIL: the others take less than getting it back.

cdef int64_t number_names(
    const Column* texts, int32_t* numbers, int64_t* firsts, int32_t* places, int64_t mask
) noexcept nogil:
    """`places` is an open addressing table: number of the text + 1, 0 where free."""
    cdef int64_t i, place, size, known = 0
    cdef int32_t before = -1
    for i in range(texts.count):
        if not has(texts, i):
            numbers[i] = -1
            continue
        size = length_of(texts, i)
        if before < 0 or not is_text(texts, firsts[before], text_of(texts, i), size):
            place = <int64_t>(hash_bytes(text_of(texts, i), size) & <uint64_t>mask)
            while places[place] and not is_text(texts, firsts[places[place] - 1], text_of(texts, i), size):
                place = (place + 1) & mask
            if places[place] == 0:
                firsts[known] = i
                known += 1
                places[place] = <int32_t>known
            before = places[place] - 1
        numbers[i] = before
    return known


cdef inline bint is_text(const Column* texts, int64_t i, const uint8_t* text, int64_t size) noexcept nogil:
    return length_of(texts, i) == size and memcmp(text_of(texts, i), text, size) == 0


def number_texts(texts):
    """Numbers different texts by first appearance, -1 where there is none; and the first row of each."""
    cdef _Column column = text_column(texts)
    cdef int64_t count = column.c.count, known, mask = 63
    while mask < 2 * count:
        mask = 2 * mask + 1
    numbers = np.empty(count, np.int32)
    cdef _Array held = _Array(numbers, _INT32, True)
    cdef int64_t* firsts = <int64_t*>malloc((count + 1) * sizeof(int64_t))
    cdef int32_t* places = <int32_t*>calloc(mask + 1, sizeof(int32_t))
    try:
        if firsts == NULL or places == NULL:
            raise MemoryError
        known = number_names(&column.c, <int32_t*>held.items, firsts, places, mask)
        return numbers, longs_from(firsts, known)
    finally:
        free(firsts)
        free(places)


def number_queues(rows):
    """Numbers the queues that the rows go to by first appearance, in rows["queue"]; returns the first row of each."""
    cdef _Array held = _Array(rows, _PUT_ROW, True)
    cdef PutRow* puts = <PutRow*>held.items
    cdef int64_t count = held.count, known, mask = 63
    while mask < 2 * count:
        mask = 2 * mask + 1
    cdef int64_t* firsts = <int64_t*>malloc((count + 1) * sizeof(int64_t))
    cdef int32_t* places = <int32_t*>calloc(mask + 1, sizeof(int32_t))
    try:
        if firsts == NULL or places == NULL:
            raise MemoryError
        known = number_into(puts, count, firsts, places, mask)
        return longs_from(firsts, known)
    finally:
        free(firsts)
        free(places)


cdef int64_t number_into(PutRow* rows, int64_t count, int64_t* firsts, int32_t* places, int64_t mask) noexcept nogil:
    """`places` is an open addressing table: number of the queue + 1, 0 where free."""
    cdef int64_t i, place, known = 0
    cdef PutRow* row
    cdef PutRow* first
    cdef PutRow* before = NULL
    cdef uint64_t key
    for i in range(count):
        row = rows + i
        if before != NULL and row.topic == before.topic and row.queue_id == before.queue_id:
            row.queue = before.queue
            continue
        before = row
        key = ((<uint64_t><uint32_t>row.topic << 32) | <uint32_t>row.queue_id) * <uint64_t>0x9E3779B97F4A7C15
        place = <int64_t>(key >> 32) & mask
        while places[place]:
            first = rows + firsts[places[place] - 1]
            if first.topic == row.topic and first.queue_id == row.queue_id:
                break
            place = (place + 1) & mask
        if places[place] == 0:
            firsts[known] = i
            known += 1
            places[place] = <int32_t>known
        row.queue = places[place] - 1
    return known


cdef int64_t check_puts(
    const PutRow* rows, int64_t count, const Column* topics, int64_t bodies, int64_t properties, int64_t queues,
    int64_t fixed,
) noexcept nogil:
    """What the records take together; -1 - the number of the first row that does not fit the columns."""
    cdef const PutRow* row
    cdef int64_t number, topic_size, total = 0
    for number in range(count):
        row = rows + number
        if row.topic < 0 or row.topic >= topics.count or row.queue < 0 or row.queue >= queues:
            return -1 - number
        topic_size = length_of(topics, row.topic)
        if (
            row.body_at < 0 or row.body_length < 0 or row.body_at > bodies or row.body_length > bodies - row.body_at
            or row.properties_at < 0 or row.properties_length < 0 or row.properties_length > 32767
            or row.properties_at > properties or row.properties_length > properties - row.properties_at
            or topic_size > 127
            or row.size != fixed + row.body_length + topic_size + row.properties_length
        ):
            return -1 - number
        total += row.size
    return total


cdef void write_puts(
    uint8_t* p, int64_t physical_offset, PutRow* rows, int64_t count, const Column* topics, const uint8_t* bodies,
    const uint8_t* properties, int64_t* next_offsets, int64_t now, int32_t sys_flag,
    const uint8_t* born_host, int64_t born_size, const uint8_t* store_host, int64_t store_size,
) noexcept nogil:
    cdef PutRow* row
    cdef int64_t number, topic_size
    cdef uint8_t* start
    cdef const uint8_t* body
    for number in range(count):
        row = rows + number
        start = p
        body = bodies + row.body_at
        row.physical_offset = physical_offset
        row.queue_offset = next_offsets[row.queue]
        next_offsets[row.queue] += 1
        store32(p + 8, <int32_t>crc_of(body, row.body_length))
        store32(p + 12, row.queue_id)
        store32(p + 16, row.flag)
        store64(p + 20, row.queue_offset)
        store64(p + 28, physical_offset)
        store32(p + 36, sys_flag)
        store64(p + 40, row.born_timestamp if row.born_timestamp else now)
        copy_short(p + 48, born_host, born_size)
        p += 48 + born_size
        store64(p, now)
        copy_short(p + 8, store_host, store_size)
        p += 8 + store_size
        memset(p, 0, 12)
        store32(p + 12, row.body_length)
        memcpy(p + 16, body, row.body_length)
        p += 16 + row.body_length
        topic_size = length_of(topics, row.topic)
        p[0] = <uint8_t>topic_size
        copy_short(p + 1, text_of(topics, row.topic), topic_size)
        p += 1 + topic_size
        store16(p, <int16_t>row.properties_length)
        copy_short(p + 2, properties + row.properties_at, row.properties_length)
        p = start + row.size
        physical_offset += row.size
        if number:
            store_head(start, row.size, MESSAGE_MAGIC)


def encode_puts(
    out,
    int64_t at,
    int64_t physical_offset,
    rows,
    topics,
    bodies,
    properties,
    next_offsets,
    int64_t store_timestamp,
    int32_t sys_flag,
    bytes born_host not None,
    bytes store_host not None,
):
    """Writes the rows' records at out[at:], all published but the first, and returns how many bytes they take.

    `next_offsets` has the next queue offset of each queue, and is moved on. Raises ValueError before it writes.
    """
    cdef _Bytes target = _Bytes(out, True)
    cdef _Bytes body_bytes = _Bytes(bodies), property_bytes = _Bytes(properties)
    cdef _Column topic_texts = text_column(topics)
    cdef _Array puts = _Array(rows, _PUT_ROW, True), offsets = _Array(next_offsets, _INT64, True)
    cdef Py_ssize_t born_size = PyBytes_GET_SIZE(born_host), store_size = PyBytes_GET_SIZE(store_host)
    cdef const uint8_t* born = <const uint8_t*>PyBytes_AS_STRING(born_host)
    cdef const uint8_t* stored = <const uint8_t*>PyBytes_AS_STRING(store_host)
    cdef int64_t total
    if born_size != (20 if sys_flag & 0x10 else 8) or store_size != (20 if sys_flag & 0x20 else 8):
        raise ValueError("the hosts' lengths contradict the IPv6 bits of sys_flag")
    total = check_puts(
        <PutRow*>puts.items, puts.count, &topic_texts.c, body_bytes.size, property_bytes.size, offsets.count,
        75 + born_size + store_size,
    )
    if total < 0:
        raise ValueError(f"row {-1 - total} does not fit the columns")
    check_room(target.size, at, total)
    with nogil:
        write_puts(
            target.p + at, physical_offset, <PutRow*>puts.items, puts.count, &topic_texts.c, body_bytes.p,
            property_bytes.p, <int64_t*>offsets.items, store_timestamp, sys_flag, born, born_size, stored, store_size,
        )
    return total

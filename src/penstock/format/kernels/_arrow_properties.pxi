# Property strings of columns of messages. The reference is `_plain_arrow_in.py`.

ctypedef packed struct PutRow:  # the dtype PUT_ROW
    int64_t body_at
    int64_t properties_at
    int64_t born_timestamp
    int64_t queue_offset
    int64_t physical_offset
    int32_t body_length
    int32_t properties_length
    int32_t topic
    int32_t queue_id
    int32_t queue
    int32_t flag
    int32_t size
    int32_t reserved

if sizeof(PutRow) != _PUT_ROW.itemsize:
    raise ImportError("the compiled kernels were built for another version of PUT_ROW")


cdef struct Entry:
    const uint8_t* name
    int64_t name_size
    const uint8_t* value    # NULL: the row's keys, joined with spaces
    int64_t value_size
    bint is_checked         # for separators; only the last value of a name counts


cdef struct Properties:     # the columns that make up the property strings, and the entries of one row
    PutRow* rows
    int64_t count
    const Column* topics
    const Column* lists     # of keys; these five are NULL where the column is not given
    const Column* items
    const Column* tags
    const Column* maps
    const Column* names
    const Column* values
    const int64_t* delay_levels
    int32_t schedule_topic
    int64_t level_count
    Entry* entries
    int64_t used
    int32_t* places         # open addressing by name: number + 1, 0 where free; for rows with many properties
    int64_t mask
    uint8_t[24] level_text
    uint8_t[24] queue_text

cdef enum:
    FEW = 12                # up to here a search is faster than a table


cdef inline bint has_name(const Entry* entry, const uint8_t* name, int64_t size) noexcept nogil:
    return entry.name_size == size and memcmp(entry.name, name, size) == 0


cdef Entry* find_entry(Properties* work, const uint8_t* name, int64_t size) noexcept nogil:
    cdef int64_t i
    for i in range(work.used):
        if has_name(work.entries + i, name, size):
            return work.entries + i
    return NULL


cdef Entry* add_entry(Properties* work, const uint8_t* name, int64_t size) noexcept nogil:
    cdef Entry* entry = work.entries + work.used
    work.used += 1
    entry.name = name
    entry.name_size = size
    return entry


cdef void set_entry(
    Properties* work, const char* name, int64_t size, const uint8_t* value, int64_t value_size
) noexcept nogil:
    """Changes the property of this name where it stands, or adds it at the end."""
    cdef Entry* entry = find_entry(work, <const uint8_t*>name, size)
    if entry == NULL:
        entry = add_entry(work, <const uint8_t*>name, size)
    entry.value = value
    entry.value_size = value_size
    entry.is_checked = True


cdef Entry* hashed_entry(Properties* work, const uint8_t* name, int64_t size) noexcept nogil:
    """The entry of this name through the table of places, a new one if there is none."""
    cdef int64_t place = <int64_t>(hash_bytes(name, size) & <uint64_t>work.mask)
    cdef Entry* entry
    while work.places[place]:
        entry = work.entries + work.places[place] - 1
        if has_name(entry, name, size):
            return entry
        place = (place + 1) & work.mask
    entry = add_entry(work, name, size)
    work.places[place] = <int32_t>work.used
    return entry


cdef inline bint holds(const Column* column, int64_t i, uint8_t byte) noexcept nogil:
    cdef const uint8_t* end = column.data + column.offsets[i + 1]
    return find_byte(text_of(column, i), end, byte, column.limit) != end


cdef bint collect_map(Properties* work, int64_t i) noexcept nogil:
    """The entries of a row's map, without those that have no value; False if a name is empty or holds a separator."""
    cdef int64_t number, size
    cdef bint many = length_of(work.maps, i) > FEW
    cdef Entry* entry
    if not has(work.maps, i):
        return True
    if many:
        memset(work.places, 0, (work.mask + 1) * sizeof(int32_t))
    for number in range(work.maps.offsets[i], work.maps.offsets[i + 1]):
        if not has(work.values, number):
            continue
        size = length_of(work.names, number)
        if not has(work.names, number) or size == 0 or holds(work.names, number, 1) or holds(work.names, number, 2):
            return False
        if many:
            entry = hashed_entry(work, text_of(work.names, number), size)
        else:
            entry = find_entry(work, text_of(work.names, number), size)
            if entry == NULL:
                entry = add_entry(work, text_of(work.names, number), size)
        entry.value = text_of(work.values, number)
        entry.value_size = length_of(work.values, number)
        entry.is_checked = False
    return True


cdef bint collect_keys(Properties* work, int64_t i) noexcept nogil:
    """Adds the row's keys, if there are any; False if one holds a separator."""
    cdef int64_t number, size = -1
    if not has(work.lists, i):
        return True
    for number in range(work.lists.offsets[i], work.lists.offsets[i + 1]):
        if has(work.items, number):
            size += 1 + length_of(work.items, number)
            if holds(work.items, number, 2):
                return False
    if size >= 0:
        set_entry(work, b"KEYS", 4, NULL, size)
    return True


cdef uint8_t* write_keys(uint8_t* p, const Properties* work, int64_t i) noexcept nogil:
    cdef int64_t number
    cdef bint first = True
    for number in range(work.lists.offsets[i], work.lists.offsets[i + 1]):
        if has(work.items, number):
            if not first:
                p[0] = 32
                p += 1
            first = False
            copy_short(p, text_of(work.items, number), length_of(work.items, number))
            p += length_of(work.items, number)
    return p


cdef int write_number(uint8_t* p, int64_t number) noexcept nogil:
    """Decimal digits; returns how many bytes they take, at most 20."""
    cdef uint8_t[20] digits
    cdef int count = 0, size = 0
    cdef uint64_t left = <uint64_t>number if number >= 0 else 0 - <uint64_t>number
    while True:
        digits[count] = <uint8_t>(48 + left % 10)
        count += 1
        left //= 10
        if left == 0:
            break
    if number < 0:
        p[0] = 45
        size = 1
    while count:
        count -= 1
        p[size] = digits[count]
        size += 1
    return size


cdef bint read_level(const uint8_t* text, int64_t size, int64_t* level) noexcept nogil:
    """Whether the text is a number of up to ten digits, and which."""
    cdef int64_t i, first = 1 if size > 0 and text[0] == 45 else 0, value = 0
    if size - first < 1 or size - first > 10:
        return False
    for i in range(first, size):
        if text[i] < 48 or text[i] > 57:
            return False
        value = 10 * value + text[i] - 48
    level[0] = -value if first else value
    return True


cdef bint collect_properties(Properties* work, int64_t i) noexcept nogil:
    """The properties of a row; False if they cannot be stored."""
    cdef Entry* entry
    cdef int64_t number
    work.used = 0
    if work.maps != NULL and not collect_map(work, i):
        return False
    if work.lists != NULL and not collect_keys(work, i):
        return False
    if work.tags != NULL and has(work.tags, i) and length_of(work.tags, i):
        if holds(work.tags, i, 2):
            return False
        set_entry(work, b"TAGS", 4, text_of(work.tags, i), length_of(work.tags, i))
    if work.delay_levels != NULL and work.delay_levels[i]:
        set_entry(work, b"DELAY", 5, work.level_text, write_number(work.level_text, work.delay_levels[i]))
    for number in range(work.used):
        entry = work.entries + number
        if not entry.is_checked and memchr(entry.value, 2, entry.value_size):
            return False
    return True


cdef bint delay_row(Properties* work, int64_t i) noexcept nogil:
    """Moves a delayed row to the schedule topic; False if the property DELAY is no number."""
    cdef PutRow* row = work.rows + i
    cdef Entry* entry = find_entry(work, <const uint8_t*>b"DELAY", 5)
    cdef int64_t level = 0
    if entry == NULL:
        return True
    if not read_level(entry.value, entry.value_size, &level):
        return False
    level = min(level, work.level_count)
    if level <= 0 or row.topic == work.schedule_topic:
        return True
    entry.value = work.level_text
    entry.value_size = write_number(work.level_text, level)
    set_entry(work, b"REAL_TOPIC", 10, text_of(work.topics, row.topic), length_of(work.topics, row.topic))
    set_entry(work, b"REAL_QID", 8, work.queue_text, write_number(work.queue_text, row.queue_id))
    row.topic = work.schedule_topic
    row.queue_id = <int32_t>(level - 1)
    return True


cdef bint wants_to_wait(Properties* work) noexcept nogil:
    cdef Entry* entry = find_entry(work, <const uint8_t*>b"WAIT", 4) if work.maps != NULL else NULL
    return entry == NULL or entry.value_size != 5 or memcmp(entry.value, b"false", 5) != 0


cdef int64_t size_of_entries(const Properties* work) noexcept nogil:
    """What the row's property string takes: entries without a value are left out."""
    cdef int64_t number, size = -1
    for number in range(work.used):
        if work.entries[number].value_size:
            size += work.entries[number].name_size + work.entries[number].value_size + 2
    return max(size, 0)


cdef void write_entries(uint8_t* p, const Properties* work, int64_t i) noexcept nogil:
    cdef Entry* entry
    cdef int64_t number
    cdef bint first = True
    for number in range(work.used):
        entry = work.entries + number
        if entry.value_size == 0:
            continue
        if not first:
            p[0] = 2
            p += 1
        first = False
        copy_short(p, entry.name, entry.name_size)
        p += entry.name_size
        p[0] = 1
        p += 1
        if entry.value == NULL:
            p = write_keys(p, work, i)
        else:
            copy_short(p, entry.value, entry.value_size)
            p += entry.value_size


cdef int64_t write_texts(Properties* work, uint8_t* out, int64_t* used, int64_t* waiting) noexcept nogil:
    """Writes all rows' strings; the number of the first row that cannot be stored, -1 if all can."""
    cdef int64_t i, size, at = 0
    for i in range(work.count):
        if not collect_properties(work, i) or not delay_row(work, i):
            return i
        waiting[0] += wants_to_wait(work)
        size = size_of_entries(work)
        if size > 32767:
            return i
        write_entries(out + at, work, i)
        work.rows[i].properties_at = at
        work.rows[i].properties_length = <int32_t>size
        at += size
    used[0] = at
    return -1


cdef int64_t most_entries(const Properties* work) noexcept nogil:
    cdef int64_t i, most = 0
    if work.maps != NULL:
        for i in range(work.count):
            most = max(most, length_of(work.maps, i))
    return most + 5  # KEYS, TAGS, DELAY, REAL_TOPIC, REAL_QID


cdef int64_t most_bytes(const Properties* work) noexcept nogil:
    """At least as many bytes as all property strings take together."""
    cdef int64_t i, size = 0, topic = 0
    if work.lists != NULL:
        size += 6 * work.count + span_of(work.items) + work.items.count
    if work.tags != NULL:
        size += 6 * work.count + span_of(work.tags)
    if work.maps != NULL:
        size += span_of(work.names) + span_of(work.values) + 2 * work.names.count
    if work.maps != NULL or work.delay_levels != NULL:
        for i in range(work.topics.count):
            topic = max(topic, length_of(work.topics, i))
        size += work.count * (7 + 20 + 12 + topic + 10 + 20)  # DELAY, REAL_TOPIC, REAL_QID
    return size


def property_texts(rows, keys, tags, properties, delay_levels, topics, int32_t schedule_topic, int64_t level_count):
    """The rows' property strings one after the other, how many rows want to wait for the disk, and the first bad row.

    Fills properties_at and properties_length, and moves delayed rows to the queues of the schedule topic. Without a
    bad row the last number is -1; with one, the rest means nothing.
    """
    cdef _Array puts = _Array(rows, _PUT_ROW, True)
    cdef _Array delays
    cdef _Column topic_texts = text_column(topics)
    cdef _Column lists, items, tag_texts, maps, names, values
    cdef _Bytes target
    cdef Properties work
    cdef int64_t i, bad = -1, used = 0, waiting = 0
    memset(&work, 0, sizeof(work))
    work.rows = <PutRow*>puts.items
    work.count = puts.count
    work.topics = &topic_texts.c
    work.schedule_topic = schedule_topic
    work.level_count = level_count
    for i in range(-1, work.count):
        if not 0 <= (schedule_topic if i < 0 else work.rows[i].topic) < topic_texts.c.count:
            raise ValueError("a row's topic is not one of the topics")
    if keys is not None:
        items = text_column(keys[1])
        lists = _Column(keys[0], keys[2], None, items.c.count)
        lists.demand(work.count)
        work.lists = &lists.c
        work.items = &items.c
    if tags is not None:
        tag_texts = text_column(tags)
        tag_texts.demand(work.count)
        work.tags = &tag_texts.c
    if properties is not None:
        names = text_column(properties[1])
        values = text_column(properties[2])
        values.demand(names.c.count)
        maps = _Column(properties[0], properties[3], None, names.c.count)
        maps.demand(work.count)
        work.maps = &maps.c
        work.names = &names.c
        work.values = &values.c
    if delay_levels is not None:
        delays = _Array(delay_levels, _INT64)
        if delays.count != work.count:
            raise ValueError(f"{work.count} delay levels are needed")
        work.delay_levels = <const int64_t*>delays.items
    work.mask = 31
    while work.mask < 2 * most_entries(&work):
        work.mask = 2 * work.mask + 1
    texts = np.empty(most_bytes(&work), np.uint8)
    target = _Bytes(texts, True)
    work.entries = <Entry*>malloc(most_entries(&work) * sizeof(Entry))
    work.places = <int32_t*>malloc((work.mask + 1) * sizeof(int32_t))
    try:
        if work.entries == NULL or work.places == NULL:
            raise MemoryError
        with nogil:
            bad = write_texts(&work, target.p, &used, &waiting)
    finally:
        free(work.entries)
        free(work.places)
    if bad >= 0:
        return np.empty(0, np.uint8), 0, bad
    return texts[:used], waiting, -1

# Arrow columns of messages into the log: property strings, queues, records. The plain twin is plain/arrow_in.py.

# -- buffers -------------------------------------------------------------------------------------------------
# Checked arguments, used here, in arrow_out.pxi and audit.pxi. Inconsistent ones raise ValueError.

_INT32, _INT64, _BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)

cdef extern from *:
    """
    /* Most texts are short, and for them a call of memcpy costs more than the copy. */
    static inline void copy_short(uint8_t *to, const uint8_t *from, int64_t size) {
        if (size > 16) { memcpy(to, from, size); return; }
        if (size >= 8) { memcpy(to, from, 8); memcpy(to + size - 8, from + size - 8, 8); return; }
        if (size >= 4) { memcpy(to, from, 4); memcpy(to + size - 4, from + size - 4, 4); return; }
        for (int64_t i = 0; i < size; i++) to[i] = from[i];
    }

    /* The same if `slack` bytes may be read and written, including bytes behind the text. */
    static inline void copy_text(uint8_t *to, const uint8_t *from, int64_t size, int64_t slack) {
        if (size <= 32 && slack >= 32) { memcpy(to, from, 32); return; }
        memcpy(to, from, size);
    }

    /* Eight bytes in the order of memory. */
    static inline uint64_t first_bytes(const uint8_t *p) { uint64_t word; memcpy(&word, p, 8); return word; }

    /* Returns the first such byte in [p, end), or end. Memory up to `limit` may be read. */
    static inline const uint8_t *find_byte(
        const uint8_t *p, const uint8_t *end, uint8_t byte, const uint8_t *limit
    ) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
        uint64_t word;
        for (int i = 0; i < 6; i++, p += 8) {
            if (p >= end) return end;
            if (limit - p < 8) break;
            memcpy(&word, p, 8);
            word ^= ones * byte;
            word = (word - ones) & ~word & tops;
            if (word) {
                p += __builtin_ctzll(word) / 8;
                return p < end ? p : end;
            }
        }
        if (p >= end) return end;
    #endif
        const uint8_t *found = (const uint8_t *)memchr(p, byte, end - p);
        return found ? found : end;
    }
    """
    void copy_short(uint8_t* to, const uint8_t* source, int64_t size) noexcept nogil
    uint64_t first_bytes(const uint8_t* p) noexcept nogil
    void copy_text(uint8_t* to, const uint8_t* source, int64_t size, int64_t slack) noexcept nogil
    const uint8_t* find_byte(
        const uint8_t* p, const uint8_t* end, uint8_t byte, const uint8_t* limit
    ) noexcept nogil


cdef class _Array:
    """The items of an array with the given dtype. Owns the buffer as long as this object lives."""

    cdef Py_buffer held
    cdef void* items
    cdef int64_t count
    cdef bint is_acquired

    def __cinit__(self, array, dtype, bint writable=False):
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError("an array has the wrong type or shape")
        PyObject_GetBuffer(array, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_acquired = True
        self.items = self.held.buf
        self.count = array.shape[0]

    def __dealloc__(self):
        if self.is_acquired:
            PyBuffer_Release(&self.held)


cdef class _Bytes:
    """The bytes of a buffer. Owns the buffer as long as this object lives."""

    cdef Py_buffer held
    cdef uint8_t* p
    cdef int64_t size
    cdef bint is_acquired

    def __cinit__(self, data, bint writable=False):
        PyObject_GetBuffer(data, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_acquired = True
        self.p = <uint8_t*>self.held.buf
        self.size = self.held.len

    def __dealloc__(self):
        if self.is_acquired:
            PyBuffer_Release(&self.held)


ctypedef struct Column:
    const int32_t* offsets  # count + 1, ascending, within the data or the number of items
    const uint8_t* data     # NULL for lists and maps
    const uint8_t* limit    # the end of the data
    const uint8_t* valid    # one byte per row, 0 for null; NULL if no row is null
    int64_t count


cdef class _Column:
    """A checked column of texts, or the ranges of a column of lists. Owns the buffers as long as this object lives."""

    cdef Column c
    cdef _Array offsets_held
    cdef _Array valid_held
    cdef _Bytes data_held

    def __cinit__(self, offsets, valid, data, int64_t length=0):
        cdef int64_t i
        cdef bint ascending = True
        self.offsets_held = _Array(offsets, _INT32)
        self.c.offsets = <const int32_t*>self.offsets_held.items
        self.c.count = self.offsets_held.count - 1
        if self.c.count < 0:
            raise ValueError("a column needs one more offset than it has rows")
        if valid is not None:
            self.valid_held = _Array(valid, _BOOL)
            self.require_count(self.valid_held.count)
            self.c.valid = <const uint8_t*>self.valid_held.items
        if data is not None:
            self.data_held = _Bytes(data)
            self.c.data = self.data_held.p
            length = self.data_held.size
            self.c.limit = self.c.data + length
        for i in range(self.c.count):
            ascending &= self.c.offsets[i] <= self.c.offsets[i + 1]
        if not ascending or self.c.offsets[0] < 0 or self.c.offsets[self.c.count] > length:
            raise ValueError("the offsets of a column are outside its data")

    cdef int require_count(self, int64_t count) except -1:
        """Raises ValueError unless the column has this many rows."""
        if self.c.count != count:
            raise ValueError(f"a column has {self.c.count} rows; {count} are needed")
        return 0


cdef _Column text_column(column):
    offsets, data, valid = column
    return _Column(offsets, valid, data)


cdef inline bint has(const Column* column, int64_t i) noexcept nogil:
    return column.valid == NULL or column.valid[i]


cdef inline int64_t length_of(const Column* column, int64_t i) noexcept nogil:
    return column.offsets[i + 1] - column.offsets[i]


cdef inline const uint8_t* text_of(const Column* column, int64_t i) noexcept nogil:
    return column.data + column.offsets[i]


cdef inline int64_t span_of(const Column* column) noexcept nogil:
    """The bytes, or items, of all rows together."""
    return column.offsets[column.count] - column.offsets[0]


# -- property strings ----------------------------------------------------------------------------------------

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
    const uint8_t* value    # NULL for the row's keys, joined with spaces
    int64_t value_size
    bint is_checked         # has no separator; of several values of a name only the last is checked


cdef struct Properties:     # the columns that property strings are built from, and the properties of one row
    PutRow* rows
    int64_t count
    const Column* topics
    const Column* lists     # of keys; this and the next six are NULL if the column is not given
    const Column* items
    const Column* tags
    const Column* maps
    const Column* names
    const Column* values
    const int64_t* delay_levels
    int32_t schedule_topic
    int64_t level_count
    bint has_record_crc
    Entry* entries
    int64_t used
    int32_t* places         # hash table by name for rows with many properties: number + 1, 0 if free
    int64_t mask
    uint8_t[24] level_text
    uint8_t[24] queue_text

cdef enum:
    FEW = 12                # up to this many a linear search is faster than a hash table


cdef inline bint has_name(const Entry* entry, const uint8_t* name, int64_t size) noexcept nogil:
    return entry.name_size == size and memcmp(entry.name, name, size) == 0


cdef Entry* find_entry(Properties* work, const uint8_t* name, int64_t size) noexcept nogil:
    """Returns the entry with this name by linear search, or NULL."""
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
    """Replaces the value of the property with this name in place, or adds the property at the end."""
    cdef Entry* entry = find_entry(work, <const uint8_t*>name, size)
    if entry == NULL:
        entry = add_entry(work, <const uint8_t*>name, size)
    entry.value = value
    entry.value_size = value_size
    entry.is_checked = True


cdef Entry* hashed_entry(Properties* work, const uint8_t* name, int64_t size) noexcept nogil:
    """Returns the entry with this name from the hash table, a new one if there is none."""
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


cdef inline bint contains(const Column* column, int64_t i, uint8_t byte) noexcept nogil:
    """Whether the text of row i contains this byte."""
    cdef const uint8_t* end = column.data + column.offsets[i + 1]
    return find_byte(text_of(column, i), end, byte, column.limit) != end


cdef bint collect_map(Properties* work, int64_t i) noexcept nogil:
    """Collects the row's map, except null values; False if a name is empty or contains a separator."""
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
        if not has(work.names, number) or size == 0:
            return False
        if contains(work.names, number, 1) or contains(work.names, number, 2):
            return False
        if size == 8 and memcmp(text_of(work.names, number), b"__CRC32#", 8) == 0:
            continue
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
    """Adds the row's keys, if it has any; False if one contains a separator."""
    cdef int64_t number, size = -1
    if not has(work.lists, i):
        return True
    for number in range(work.lists.offsets[i], work.lists.offsets[i + 1]):
        if has(work.items, number):
            size += 1 + length_of(work.items, number)
            if contains(work.items, number, 2):
                return False
    if size >= 0:
        set_entry(work, b"KEYS", 4, NULL, size)
    return True


cdef uint8_t* write_keys(uint8_t* p, const Properties* work, int64_t i) noexcept nogil:
    """Writes the row's keys with spaces between them; returns their end."""
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
    """Writes decimal digits; returns the number of bytes, at most 20."""
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
    """Reads a number of up to ten digits; returns False if the text is not one."""
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
    """Collects the properties of a row; False if they cannot be stored."""
    cdef Entry* entry
    cdef int64_t number
    work.used = 0
    if work.maps != NULL and not collect_map(work, i):
        return False
    if work.lists != NULL and not collect_keys(work, i):
        return False
    if work.tags != NULL and has(work.tags, i) and length_of(work.tags, i):
        if contains(work.tags, i, 2):
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
    """Moves a delayed row to the schedule topic; False if the property DELAY is not a number."""
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


cdef bint waits_for_flush(Properties* work) noexcept nogil:
    """Whether the property WAIT is not "false"."""
    cdef Entry* entry = find_entry(work, <const uint8_t*>b"WAIT", 4) if work.maps != NULL else NULL
    return entry == NULL or entry.value_size != 5 or memcmp(entry.value, b"false", 5) != 0


cdef int64_t size_of_entries(const Properties* work) noexcept nogil:
    """Returns the length of the row's property string, without entries that have an empty value."""
    cdef int64_t number, size = -1
    for number in range(work.used):
        if work.entries[number].value_size:
            size += work.entries[number].name_size + work.entries[number].value_size + 2
    return max(size, 0)


cdef void write_entries(uint8_t* p, const Properties* work, int64_t i) noexcept nogil:
    """Writes the row's property string."""
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
    """Writes the property strings of all rows; returns the first row that cannot be stored, or -1."""
    cdef int64_t i, size, given, at = 0
    for i in range(work.count):
        if not collect_properties(work, i) or not delay_row(work, i):
            return i
        waiting[0] += waits_for_flush(work)
        size = given = size_of_entries(work)
        if work.has_record_crc:
            size += (size > 0) + RECORD_CRC_SIZE
        if size > 32767:
            return i
        write_entries(out + at, work, i)
        if has_zeros(<const char*>out + at, given):
            return i
        if work.has_record_crc:
            if size > RECORD_CRC_SIZE:
                out[at + size - RECORD_CRC_SIZE - 1] = 2
            memcpy(out + at + size - RECORD_CRC_SIZE, b"__CRC32#\x010000000000\x02", RECORD_CRC_SIZE)
        work.rows[i].properties_at = at
        work.rows[i].properties_length = <int32_t>size
        at += size
    used[0] = at
    return -1


cdef int64_t max_entries(const Properties* work) noexcept nogil:
    """Returns an upper bound of the number of properties of a row."""
    cdef int64_t i, longest = 0
    if work.maps != NULL:
        for i in range(work.count):
            longest = max(longest, length_of(work.maps, i))
    return longest + 5  # KEYS, TAGS, DELAY, REAL_TOPIC, REAL_QID


cdef int64_t max_bytes(const Properties* work) noexcept nogil:
    """Returns an upper bound of the bytes of all property strings together."""
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
    if work.has_record_crc:
        size += work.count * (1 + RECORD_CRC_SIZE)
    return size


def property_texts(
    rows, keys, tags, properties, delay_levels, topics, int32_t schedule_topic, int64_t level_count, bint has_record_crc
):
    """Builds the property strings of all rows; returns (the strings end to end, rows that wait for a flush, bad row).

    With `has_record_crc` each string ends with RECORD_CRC, whose digits `encode_puts` will set. Fills properties_at and
    properties_length, and moves delayed rows to the queues of the schedule topic. The bad row is the first that cannot
    be stored, or -1; with a bad row the other results are meaningless.
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
    work.has_record_crc = has_record_crc
    for i in range(-1, work.count):
        if not 0 <= (schedule_topic if i < 0 else work.rows[i].topic) < topic_texts.c.count:
            raise ValueError("the topic of a row is not one of the topics")
    if keys is not None:
        items = text_column(keys[1])
        lists = _Column(keys[0], keys[2], None, items.c.count)
        lists.require_count(work.count)
        work.lists = &lists.c
        work.items = &items.c
    if tags is not None:
        tag_texts = text_column(tags)
        tag_texts.require_count(work.count)
        work.tags = &tag_texts.c
    if properties is not None:
        names = text_column(properties[1])
        values = text_column(properties[2])
        values.require_count(names.c.count)
        maps = _Column(properties[0], properties[3], None, names.c.count)
        maps.require_count(work.count)
        work.maps = &maps.c
        work.names = &names.c
        work.values = &values.c
    if delay_levels is not None:
        delays = _Array(delay_levels, _INT64)
        if delays.count != work.count:
            raise ValueError(f"{work.count} delay levels are needed")
        work.delay_levels = <const int64_t*>delays.items
    work.mask = 31
    while work.mask < 2 * max_entries(&work):
        work.mask = 2 * work.mask + 1
    texts = np.empty(max_bytes(&work), np.uint8)
    target = _Bytes(texts, True)
    work.entries = <Entry*>malloc(max_entries(&work) * sizeof(Entry))
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


# -- queues and records --------------------------------------------------------------------------------------
# Only encode_puts releases the GIL: the others take less time than getting it back.

cdef int64_t number_names(
    const Column* texts, int32_t* numbers, int64_t* firsts, int32_t* places, int64_t mask
) noexcept nogil:
    """Numbers the texts; `places` is a hash table with open addressing: number + 1, 0 if free."""
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
    """Numbers distinct texts by first appearance; returns (number of each row, -1 for null; first row of each text)."""
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
    """Numbers the queues of the rows by first appearance in rows["queue"]; returns the first row of each queue."""
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
    """Numbers the queues; `places` is a hash table with open addressing: number + 1, 0 if free."""
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
    """Returns the bytes of all records together, or -1 - n if row n does not fit the columns."""
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
    """Writes checked rows; publishes all but the first."""
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
        if ends_with_record_crc(p + 2, row.properties_length):
            seal_record(start, row.size, MESSAGE_MAGIC)
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
    """Writes the records of the rows at out[at:] and returns their bytes. Publishes all records but the first.

    `next_offsets` has the next queue offset of each queue and is advanced. `store_timestamp` is in milliseconds. Raises
    ValueError before anything is written.
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

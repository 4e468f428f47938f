# Work on rows: topics, properties, tag codes, keys, queues. The reference is `_plain_columns.py`.

from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.unicode cimport PyUnicode_DecodeUTF8

cdef extern from *:
    """
    static inline uint64_t hash_bytes(const uint8_t *p, int64_t size) {
        uint64_t h = 0x9E3779B97F4A7C15ull ^ (uint64_t)size, word;
        for (; size >= 8; size -= 8, p += 8) {
            memcpy(&word, p, 8);
            h = (h ^ word) * 0xD6E8FEB86659FD93ull;
            h ^= h >> 32;
        }
        for (word = 0; size > 0; size--, p++) word = word << 8 | *p;
        h = (h ^ word) * 0xD6E8FEB86659FD93ull;
        return h ^ h >> 32;
    }
    """
    uint64_t hash_bytes(const uint8_t* p, int64_t size) noexcept nogil

ctypedef struct Topic:
    uint64_t hashed
    uint8_t* name
    int32_t size

ctypedef struct Topics:
    PyThread_type_lock lock
    Topic* topics       # by number
    int32_t count
    int32_t room
    int32_t* places     # open addressing: number + 1, 0 where free; at most half full
    int32_t mask

ctypedef struct TopicCache:  # what one walk has met, so that it seldom needs the lock
    Topic topics[64]
    int32_t ids[64]


cdef int grow_topics(Topics* table) noexcept nogil:
    cdef int32_t room = table.room * 2 if table.room else 64
    cdef int32_t mask = 2 * room - 1, place, number
    cdef Topic* topics = <Topic*>realloc(table.topics, room * sizeof(Topic))
    if topics == NULL:
        return -1
    table.topics = topics
    cdef int32_t* places = <int32_t*>calloc(mask + 1, sizeof(int32_t))
    if places == NULL:
        return -1
    for number in range(table.count):
        place = <int32_t>(topics[number].hashed & <uint64_t>mask)
        while places[place]:
            place = (place + 1) & mask
        places[place] = number + 1
    free(table.places)
    table.places = places
    table.mask = mask
    table.room = room
    return 0


cdef int32_t intern_topic(Topics* table, const uint8_t* name, int32_t size, uint64_t hashed) noexcept nogil:
    """The topic's number, a new one if it was never seen; -1 without memory. The caller holds the lock."""
    cdef int32_t place, number
    cdef Topic* topic
    if table.count == table.room and grow_topics(table) < 0:
        return -1
    place = <int32_t>(hashed & <uint64_t>table.mask)
    while table.places[place]:
        number = table.places[place] - 1
        topic = table.topics + number
        if topic.hashed == hashed and topic.size == size and memcmp(topic.name, name, size) == 0:
            return number
        place = (place + 1) & table.mask
    topic = table.topics + table.count
    topic.name = <uint8_t*>malloc(size if size else 1)
    if topic.name == NULL:
        return -1
    memcpy(topic.name, name, size)
    topic.hashed = hashed
    topic.size = size
    table.places[place] = table.count + 1
    table.count += 1
    return table.count - 1


cdef int32_t cached_topic(Topics* table, TopicCache* cache, const uint8_t* name, int32_t size) noexcept nogil:
    cdef uint64_t hashed = hash_bytes(name, size)
    cdef int place = <int>(hashed & 63)
    cdef Topic* known = cache.topics + place
    cdef int32_t number
    if known.name != NULL and known.hashed == hashed and known.size == size and memcmp(known.name, name, size) == 0:
        return cache.ids[place]
    PyThread_acquire_lock(table.lock, 1)
    number = intern_topic(table, name, size, hashed)
    if number >= 0:
        known[0] = table.topics[number]
        cache.ids[place] = number
    PyThread_release_lock(table.lock)
    return number


cdef class TopicTable:
    """Numbers topics in the order in which they are first seen. Safe from several threads."""

    cdef Topics core

    def __cinit__(self):
        memset(&self.core, 0, sizeof(Topics))
        self.core.lock = PyThread_allocate_lock()
        if self.core.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef int32_t number
        for number in range(self.core.count):
            free(self.core.topics[number].name)
        free(self.core.topics)
        free(self.core.places)
        if self.core.lock != NULL:
            PyThread_free_lock(self.core.lock)

    def intern(self, bytes topic not None):
        """The number of a topic, a new one if it was never seen."""
        cdef const uint8_t* name = <const uint8_t*>PyBytes_AS_STRING(topic)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(topic)
        cdef int32_t number
        if size > MAX_INT:
            raise ValueError("the topic is too long")
        PyThread_acquire_lock(self.core.lock, 1)
        number = intern_topic(&self.core, name, <int32_t>size, hash_bytes(name, size))
        PyThread_release_lock(self.core.lock)
        if number < 0:
            raise MemoryError
        return number

    def name(self, int64_t topic_id):
        """The topic of a number."""
        cdef Topic topic
        cdef bint known
        PyThread_acquire_lock(self.core.lock, 1)
        known = 0 <= topic_id < self.core.count
        if known:
            topic = self.core.topics[topic_id]
        PyThread_release_lock(self.core.lock)
        if not known:
            raise IndexError(f"no topic has the number {topic_id}")
        return PyUnicode_DecodeUTF8(<char*>topic.name, topic.size, "surrogateescape")

    @property
    def names(self):
        """All topics, by number."""
        return [self.name(number) for number in range(len(self))]

    def __len__(self):
        return self.core.count


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
        if piece_end - piece > name_size + 1 and piece[name_size] == 1 and memcmp(piece, name, name_size) == 0:
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
        if last_value(p, row.properties_length, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), &value, &value_size):
            return (<const char*>value)[:value_size]
        return None
    finally:
        PyBuffer_Release(&source)


cdef class RowBuffer:
    """The rows of an array as C structs, held for as long as this object lives."""

    cdef Py_buffer held
    cdef Row* rows
    cdef int64_t count
    cdef bint taken

    def __cinit__(self, rows, bint writable):
        if rows.dtype != ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise ValueError("rows must be a contiguous array of ROW")
        PyObject_GetBuffer(rows, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.taken = True
        self.rows = <Row*>self.held.buf
        self.count = rows.shape[0]

    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.held)


cdef inline const uint8_t* record_of(const Py_buffer* source, int64_t base, const Row* row) noexcept nogil:
    """Where a row's record starts; NULL if topic or properties are not inside the record, or that not in the data."""
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


cdef inline bint hash_ascii(const uint8_t* text, int64_t size, uint32_t* code) noexcept nogil:
    """Carries Java's hash on over ASCII text; False, with the code spoilt, if some of it is not ASCII."""
    cdef uint32_t h = code[0]
    cdef uint8_t seen = 0
    cdef int64_t i
    for i in range(size):
        h = 31 * h + text[i]
        seen |= text[i]
    code[0] = h
    return seen < 0x80


cdef uint32_t hash_utf8(const uint8_t* text, int64_t size, uint32_t code) except? 7 with gil:
    """Carries Java's hash on over any text; bytes that are not UTF-8 count as U+FFFD, as Java decodes them."""
    decoded = PyUnicode_DecodeUTF8(<char*>text, size, "replace")
    encoded = decoded.encode("utf-16-le")
    cdef const uint8_t* units = <const uint8_t*>PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(encoded) // 2):
        code = 31 * code + (units[2 * i] | (<uint32_t>units[2 * i + 1] << 8))
    return code


cdef inline uint32_t hash_on(const uint8_t* text, int64_t size, uint32_t code) except? 7 nogil:
    cdef uint32_t carried = code
    if hash_ascii(text, size, &carried):
        return carried
    return hash_utf8(text, size, code)


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


def tag_codes(data, int64_t base, rows, tuple delay_levels not None):
    """Fills rows["tags_code"]: the tag's hash, or in the schedule topic the time it is due."""
    cdef RowBuffer held = RowBuffer(rows, True)
    cdef Py_buffer source
    cdef int64_t number, level, level_count = len(delay_levels), bad = -1
    cdef const uint8_t* record
    cdef const uint8_t* value = NULL
    cdef int64_t size = 0
    cdef Row* row
    cdef int64_t* delays = <int64_t*>malloc(max(1, level_count) * 8)
    if delays == NULL:
        raise MemoryError
    try:
        for number in range(level_count):
            delays[number] = delay_levels[number]
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            with nogil:
                for number in range(held.count):
                    row = held.rows + number
                    record = record_of(&source, base, row)
                    if record == NULL:
                        bad = number
                        break
                    level = 0
                    if row.topic_length == 19 and memcmp(record + row.topic_at, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
                        if last_value(
                            record + row.properties_at, row.properties_length, b"DELAY", 5, &value, &size
                        ):
                            level = min(parse_level(value, size), level_count)
                    if level > 0:
                        row.tags_code = <int64_t>(<uint64_t>row.store_timestamp + <uint64_t>delays[level - 1])
                    elif last_value(record + row.properties_at, row.properties_length, b"TAGS", 4, &value, &size):
                        row.tags_code = <int32_t>hash_on(value, size, 0)
                    else:
                        row.tags_code = 0
        finally:
            PyBuffer_Release(&source)
    finally:
        free(delays)
    if bad >= 0:
        raise ValueError(f"row {bad} does not lie in the data")


ctypedef struct Keys:
    int32_t* hashes
    int64_t* numbers
    const uint8_t** texts  # of the keys of the present record
    int64_t* sizes
    int64_t count
    int64_t room


cdef int add_key(Keys* keys, int64_t first, int32_t hashed, int64_t number, const uint8_t* text, int64_t size) noexcept nogil:
    """Adds a key unless the record, whose keys begin at `first`, has given it already; -1 without memory."""
    cdef int64_t i, room
    cdef void* larger
    for i in range(first, keys.count):
        if keys.hashes[i] == hashed and keys.sizes[i - first] == size and memcmp(keys.texts[i - first], text, size) == 0:
            return 0
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
    keys.hashes[keys.count] = hashed
    keys.numbers[keys.count] = number
    keys.texts[keys.count - first] = text
    keys.sizes[keys.count - first] = size
    keys.count += 1
    return 0


cdef inline int32_t without_sign(uint32_t code) noexcept nogil:
    cdef int32_t signed = <int32_t>code
    if signed >= 0:
        return signed
    return 0 if code == <uint32_t>0x80000000 else -signed


cdef int add_keys_of(Keys* keys, const uint8_t* record, const Row* row, int64_t number) except? -2 nogil:
    """Adds UNIQ_KEY, then each piece of KEYS; -1 without memory."""
    cdef const uint8_t* properties = record + row.properties_at
    cdef const uint8_t* text = NULL
    cdef const uint8_t* piece_end
    cdef const uint8_t* end
    cdef int64_t size = 0, first = keys.count
    cdef uint32_t topic_code
    cdef bint unique = last_value(properties, row.properties_length, b"UNIQ_KEY", 8, &text, &size)
    cdef const uint8_t* keys_text = NULL
    cdef int64_t keys_size = 0
    cdef bint several = last_value(properties, row.properties_length, b"KEYS", 4, &keys_text, &keys_size)
    if not unique and not several:
        return 0
    topic_code = 31 * hash_on(record + row.topic_at, row.topic_length, 0) + 35  # '#'
    if unique and add_key(keys, first, without_sign(hash_on(text, size, topic_code)), number, text, size) < 0:
        return -1
    if several:
        text = keys_text
        end = keys_text + keys_size
        while text < end:
            piece_end = <const uint8_t*>memchr(text, 32, end - text)
            if piece_end == NULL:
                piece_end = end
            size = piece_end - text
            if size and add_key(keys, first, without_sign(hash_on(text, size, topic_code)), number, text, size) < 0:
                return -1
            text = piece_end + 1
    return 0


def index_keys(data, int64_t base, rows):
    """The index hash of every key of every row, and the number of its row; each key of a record once."""
    cdef RowBuffer held = RowBuffer(rows, False)
    cdef Py_buffer source, target
    cdef Keys keys
    cdef int64_t number, bad = -1
    cdef int failed = 0
    cdef const uint8_t* record
    memset(&keys, 0, sizeof(keys))
    # Properties are at most 32,767 bytes long: a record has fewer keys than half of that.
    keys.texts = <const uint8_t**>malloc(16400 * sizeof(void*))
    keys.sizes = <int64_t*>malloc(16400 * sizeof(int64_t))
    try:
        if keys.texts == NULL or keys.sizes == NULL:
            raise MemoryError
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            with nogil:
                for number in range(held.count):
                    record = record_of(&source, base, held.rows + number)
                    if record == NULL:
                        bad = number
                        break
                    if held.rows[number].sys_flag & TRANSACTION_MASK == ROLLBACK:
                        continue
                    failed = add_keys_of(&keys, record, held.rows + number, number)
                    if failed:
                        break
        finally:
            PyBuffer_Release(&source)
        if failed:
            raise MemoryError
        if bad >= 0:
            raise ValueError(f"row {bad} does not lie in the data")
        hashes = np.empty(keys.count, dtype=np.int32)
        if keys.count:
            PyObject_GetBuffer(hashes, &target, PyBUF_WRITABLE)
            memcpy(target.buf, keys.hashes, keys.count * sizeof(int32_t))
            PyBuffer_Release(&target)
        return hashes, longs_from(keys.numbers, keys.count)
    finally:
        free(keys.hashes)
        free(keys.numbers)
        free(keys.texts)
        free(keys.sizes)


ctypedef struct Group:
    int32_t topic_id
    int32_t queue_id
    int64_t count
    int64_t* picks


cdef int64_t group_into(const Row* rows, int64_t count, int64_t* group_of, Group* groups, int64_t* places, int64_t mask) noexcept nogil:
    """Numbers the groups by first appearance and counts their rows; returns how many groups there are."""
    cdef int64_t number, place, known = 0
    cdef int32_t kind
    cdef Group* group
    cdef uint64_t key
    for number in range(count):
        kind = rows[number].sys_flag & TRANSACTION_MASK
        if kind == PREPARED or kind == ROLLBACK:
            group_of[number] = -1
            continue
        key = (<uint64_t><uint32_t>rows[number].topic_id << 32) | <uint32_t>rows[number].queue_id
        key *= <uint64_t>0x9E3779B97F4A7C15
        place = <int64_t>(key >> 32) & mask
        while places[place]:
            group = groups + places[place] - 1
            if group.topic_id == rows[number].topic_id and group.queue_id == rows[number].queue_id:
                break
            place = (place + 1) & mask
        if places[place] == 0:
            groups[known].topic_id = rows[number].topic_id
            groups[known].queue_id = rows[number].queue_id
            groups[known].count = 0
            known += 1
            places[place] = known
        groups[places[place] - 1].count += 1
        group_of[number] = places[place] - 1
    return known


def group_rows(rows):
    """(topic_id, queue_id, row numbers) of the rows that belong into a queue; groups by first appearance."""
    cdef RowBuffer held = RowBuffer(rows, False)
    cdef int64_t count = held.count, number, known, mask = 63
    cdef Py_buffer target
    cdef Group* group
    while mask < 2 * count:
        mask = 2 * mask + 1
    cdef int64_t* group_of = <int64_t*>malloc((count + 1) * sizeof(int64_t))
    cdef Group* groups = <Group*>malloc((count + 1) * sizeof(Group))
    cdef int64_t* places = <int64_t*>calloc(mask + 1, sizeof(int64_t))
    made = []
    try:
        if group_of == NULL or groups == NULL or places == NULL:
            raise MemoryError
        with nogil:
            known = group_into(held.rows, count, group_of, groups, places, mask)
        for number in range(known):
            group = groups + number
            picks = np.empty(group.count, dtype=np.int64)
            PyObject_GetBuffer(picks, &target, PyBUF_WRITABLE)
            group.picks = <int64_t*>target.buf  # `made` keeps the array, and so its memory
            PyBuffer_Release(&target)
            made.append((group.topic_id, group.queue_id, picks))
        with nogil:
            for number in range(count):
                if group_of[number] >= 0:
                    group = groups + group_of[number]
                    group.picks[0] = number
                    group.picks += 1
    finally:
        free(group_of)
        free(groups)
        free(places)
    return made


def append_units(out, int64_t at, rows, picks):
    """Writes the 20-byte queue units of the picked rows at out[at:]."""
    cdef RowBuffer held = RowBuffer(rows, False)
    cdef Py_buffer target, chosen
    cdef int64_t number, count
    cdef const int64_t* picked
    cdef const Row* row
    cdef uint8_t* p
    picks = np.ascontiguousarray(picks, dtype=np.int64)
    count = picks.shape[0]
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        if at < 0 or at > target.len or count > (target.len - at) // 20:
            raise ValueError(f"{count} units at {at} do not fit into {target.len} bytes")
        PyObject_GetBuffer(picks, &chosen, PyBUF_SIMPLE)
        try:
            picked = <const int64_t*>chosen.buf
            for number in range(count):
                if picked[number] < 0 or picked[number] >= held.count:
                    raise ValueError("a pick is not the number of a row")
            with nogil:
                p = <uint8_t*>target.buf + at
                for number in range(count):
                    row = held.rows + picked[number]
                    store64(p, row.physical_offset)
                    store32(p + 8, row.size)
                    store64(p + 12, row.tags_code)
                    p += 20
        finally:
            PyBuffer_Release(&chosen)
    finally:
        PyBuffer_Release(&target)

# Records of the log: topics, CRC and hashes, encode, publish, check, walk, find. The plain twin is plain/record.py.

cdef extern from *:
    """
    /* A hash for tables in memory; never stored. */
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

# -- topics --------------------------------------------------------------------------------------------------

ctypedef struct Topic:
    uint64_t hashed
    uint8_t* name
    int32_t size

ctypedef struct Topics:
    PyThread_type_lock lock
    Topic* topics       # indexed by topic id
    int32_t count
    int32_t room
    int32_t* places     # hash table with open addressing: topic id + 1, 0 if free; at most half full
    int32_t mask

ctypedef struct TopicCache:  # topics that one walk has met, so it rarely needs the lock
    Topic topics[64]
    int32_t ids[64]


cdef int grow_topics(Topics* table) noexcept nogil:
    """Doubles the table; returns -1 if memory runs out."""
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
    """Returns the topic's id, a new one for a new topic; -1 if memory runs out. The caller holds the lock."""
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
    """As intern_topic, through the cache; takes the lock only for a topic that is not in it."""
    cdef uint64_t hashed = hash_bytes(name, size)
    cdef int place = <int>(hashed & 63)
    cdef Topic* known = cache.topics + place
    cdef int32_t number
    if known.name != NULL and known.hashed == hashed and known.size == size:
        if memcmp(known.name, name, size) == 0:
            return cache.ids[place]
    PyThread_acquire_lock(table.lock, 1)
    number = intern_topic(table, name, size, hashed)
    if number >= 0:
        known[0] = table.topics[number]
        cache.ids[place] = number
    PyThread_release_lock(table.lock)
    return number


cdef class TopicTable:
    """Gives each topic an id: 0, 1, 2 ... in order of first appearance. Thread-safe."""

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
        """Returns the id of a topic; a new topic gets the next one."""
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
        """Returns the topic with this id; raises IndexError if there is none."""
        cdef Topic topic
        cdef bint known
        PyThread_acquire_lock(self.core.lock, 1)
        known = 0 <= topic_id < self.core.count
        if known:
            topic = self.core.topics[topic_id]
        PyThread_release_lock(self.core.lock)
        if not known:
            raise IndexError(f"no topic has the id {topic_id}")
        return PyUnicode_DecodeUTF8(<char*>topic.name, topic.size, "surrogateescape")

    @property
    def names(self):
        """All topics, in the order of their ids."""
        return [self.name(number) for number in range(len(self))]

    def __len__(self):
        return self.core.count


# -- hashes and properties -----------------------------------------------------------------------------------

cdef extern from *:
    """
    /* Continues Java's hash over ASCII text. Returns 0 if some byte is not ASCII; *code is then meaningless. Takes
       eight bytes at a time, each multiplied by its power of 31: only one product depends on the round before. */
    static inline int hash_ascii(const uint8_t *text, int64_t size, uint32_t *code) {
        uint32_t h = *code;
        uint64_t seen = 0;
        for (; size >= 8; size -= 8, text += 8) {
            uint64_t word;
            memcpy(&word, text, 8);
            seen |= word;
            h = h * 2487512833u
              + ((text[0] * 1742810335u + text[1] * 887503681u) + (text[2] * 28629151u + text[3] * 923521u))
              + ((text[4] * 29791u + text[5] * 961u) + (text[6] * 31u + text[7]));
        }
        for (; size > 0; size--, text++) {
            seen |= *text;
            h = 31 * h + *text;
        }
        *code = h;
        return !(seen & 0x8080808080808080ull);
    }

    /* Returns the end of the property that starts at `piece`, before the separator or at `end`. The properties lie in
       the record that starts at `record`; a load of 16 bytes that ends at `end` stays inside this record. */
    static inline const uint8_t *end_of_piece(const uint8_t *record, const uint8_t *piece, const uint8_t *end) {
    #ifdef PENSTOCK_X86
        const __m128i separator = _mm_set1_epi8(2);
        uint32_t found;
        for (; end - piece >= 16; piece += 16) {
            found = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)piece), separator));
            if (found) return piece + __builtin_ctz(found);
        }
        if (end - record >= 16) {
            found = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(end - 16)), separator));
            found >>= 16 - (end - piece);
            return found ? piece + __builtin_ctz(found) : end;
        }
    #endif
        const void *there = piece < end ? memchr(piece, 2, end - piece) : NULL;
        return there ? (const uint8_t *)there : end;
    }
    """
    bint hash_ascii(const uint8_t* text, int64_t size, uint32_t* code) noexcept nogil
    const uint8_t* end_of_piece(const uint8_t* record, const uint8_t* piece, const uint8_t* end) noexcept nogil


cdef uint32_t hash_utf8(const uint8_t* text, int64_t size, uint32_t code) except? 7 with gil:
    """Continues Java's hash over any text; bytes that are not UTF-8 count as U+FFFD, as in Java."""
    decoded = PyUnicode_DecodeUTF8(<char*>text, size, "replace")
    encoded = decoded.encode("utf-16-le")
    cdef const uint8_t* units = <const uint8_t*>PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(encoded) // 2):
        code = 31 * code + (units[2 * i] | (<uint32_t>units[2 * i + 1] << 8))
    return code


cdef inline uint32_t hash_on(const uint8_t* text, int64_t size, uint32_t code) except? 7 nogil:
    """Continues Java's hash `code` over UTF-8 text, without the GIL if it is ASCII."""
    cdef uint32_t ascii_code = code
    if hash_ascii(text, size, &ascii_code):
        return ascii_code
    return hash_utf8(text, size, code)


# -- encode and publish --------------------------------------------------------------------------------------

def crc32(data):
    """Returns the CRC-32 with its top bit cleared, as records store it."""
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
    """Returns Java's String.hashCode: a signed 32-bit number over UTF-16 code units."""
    return hash_text(text)


cdef int check_room(int64_t length, int64_t at, int64_t size) except -1:
    """Raises ValueError unless `size` bytes fit at position `at` of a buffer of `length` bytes."""
    if at < 0 or size > MAX_INT or at > length or size > length - at:
        raise ValueError(f"{size} bytes at {at} do not fit into {length}")
    return 0


cdef inline void store_head(uint8_t* at, int32_t size, int32_t magic) noexcept nogil:
    """Stores the size, then the magic: a reader that sees the magic also sees everything stored before it."""
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
    """Writes a V1 record at out[at:] and returns its size in bytes; stores size and magic only if `publish_now`.

    If the properties end with RECORD_CRC, its digits become the record's CRC. Timestamps are in milliseconds. Raises
    ValueError, or OverflowError if a number does not fit its field, before anything is written.
    """
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
            if ends_with_record_crc(p + 2, properties_size):
                seal_record(<uint8_t*>target.buf + at, <int32_t>size, MESSAGE_MAGIC)
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


def publish(out, int64_t at, int64_t size, uint32_t magic=<uint32_t>MESSAGE_MAGIC):
    """Stores size and magic of the record at out[at:]: from now on readers see it. The magic is V1's or V2's."""
    write_head(out, at, size, <int32_t>magic)


cdef enum:
    HEADS_AT_ONCE = 512


cdef inline void clear_head(uint8_t* at) noexcept nogil:
    """Zeroes the magic, then the size: what is stored afterwards is not seen before."""
    store32(at + 4, 0)
    release_fence()
    store32(at, 0)
    release_fence()


cdef inline bint has_head(const uint8_t* at, int64_t left) noexcept nogil:
    """Whether a published record or filler of at most `left` bytes seems to begin here."""
    cdef int32_t magic
    if left < 8:
        return False
    magic = load32(at + 4)
    return (
        (magic == MESSAGE_MAGIC or magic == MESSAGE_MAGIC_V2 or magic == BLANK_MAGIC) and 8 <= load32(at) <= left
    )


cdef void erase_batch(uint8_t* data, int64_t start, int64_t stop, int64_t first_size) noexcept nogil:
    """Does what `take_back` says; data[start:stop] must be inside the buffer."""
    cdef int64_t[HEADS_AT_ONCE] heads  # the last ones: a batch with more is walked several times
    cdef int64_t at, count, number, end = stop
    while 0 < first_size <= stop - start:
        count = 0
        at = start + first_size
        while at < end and has_head(data + at, stop - at):
            heads[count % HEADS_AT_ONCE] = at
            count += 1
            at += load32(data + at)
        for number in range(count - 1, max(count - HEADS_AT_ONCE, 0) - 1, -1):
            end = heads[number % HEADS_AT_ONCE]
            clear_head(data + end)
        if count <= HEADS_AT_ONCE:
            break
    if stop - start >= 8:
        clear_head(data + start)
    memset(data + start, 0, stop - start)


def take_back(out, int64_t start, int64_t stop, int64_t first_size):
    """Zeroes out[start:stop], to which a batch was being written whose first record has `first_size` bytes.

    Unpublishes the records from the last one to the first before it zeroes anything else. So a kill at any moment
    leaves the records of the batch up to one of them, perhaps behind a first one that is not published, or none.
    """
    cdef Py_buffer target
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        if start < 0 or stop < start or stop > target.len:
            raise ValueError(f"{start} to {stop} is outside {target.len} bytes")
        with nogil:
            erase_batch(<uint8_t*>target.buf, start, stop, first_size)
    finally:
        PyBuffer_Release(&target)


def write_blank(out, int64_t at, int64_t size):
    """Stores the 8-byte header of a filler of `size` bytes; the bytes after it stay as they are."""
    write_head(out, at, size, BLANK_MAGIC)


def copy_published(out, int64_t at, data):
    """Copies whole records to out[at:]. Stores the first one's size and magic last, so all become visible at once."""
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


# -- check, walk, find ---------------------------------------------------------------------------------------

cdef class _RowBuffer:
    """The rows of an array as C structs. Owns the buffer as long as this object lives."""

    cdef Py_buffer held
    cdef Row* rows
    cdef int64_t count
    cdef bint is_acquired

    def __cinit__(self, rows, bint writable):
        if rows.dtype != _ROW or rows.ndim != 1 or not rows.flags.c_contiguous:
            raise ValueError("rows must be a contiguous array of ROW")
        PyObject_GetBuffer(rows, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.is_acquired = True
        self.rows = <Row*>self.held.buf
        self.count = rows.shape[0]

    def __dealloc__(self):
        if self.is_acquired:
            PyBuffer_Release(&self.held)


cdef inline const uint8_t* record_of(const Py_buffer* source, int64_t base, const Row* row) noexcept nogil:
    """Returns the start of a row's record, or NULL if the record, its topic or its properties exceed the data."""
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


cdef extern from *:
    """
    /* Records of a log often have similar sizes. Prefetches where the fourth record from here probably starts: its
       header, and the end of the record before it. A wrong guess is harmless: a prefetch accepts any address. */
    static inline void prefetch_ahead(const uint8_t *record, int64_t size) {
        const uint8_t *there = record + 4 * size;
        for (int line = -128; line <= 64; line += 64) __builtin_prefetch(there + line);
    }
    """
    void prefetch_ahead(const uint8_t* record, int64_t size) noexcept nogil


cdef bint is_incomplete(int32_t magic) noexcept nogil:
    """Whether this is a magic with some bytes still zero: a store across two cache lines can be seen in halves."""
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
    """Fills the row and returns STOP if a valid record starts at `at`, which is in [0, length); else the Reason."""
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
    if check_crc:
        if ends_with_record_crc(p + row.properties_at, properties_length):  # it covers the body, too
            if not is_sealed(p, size, magic):
                return BAD_CRC
        elif body_length and <int32_t>crc_of(p + row.body_at, body_length) != row.body_crc:
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
    """Checks one record as `walk` does. Returns a Reason: STOP if it is valid, BEYOND_END if `at` is past the data."""
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
    """Appends rows from *position until `stop`, `capacity`, or something that is not a valid record."""
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
        prefetch_ahead(data + at, row.size)
        at += row.size
        n += 1
    position[0] = at
    count[0] = n
    return reason


def walk(
    data, int64_t base, int64_t start, int64_t stop, bint check_crc, TopicTable topics, int64_t max_rows
):
    """Returns (rows of the valid records that start in [start, stop), position after them, Reason to end there).

    Reads at most `max_rows`. Fills topic_id if `topics` is given.
    """
    cdef Py_buffer source, target
    cdef int64_t at = start, count = 0, capacity, max_capacity
    cdef int reason = FULL
    cdef Topics* table = NULL if topics is None else &topics.core
    if start < 0:
        raise ValueError(f"{start} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        stop = min(stop, source.len)
        max_capacity = max(0, min(max_rows, (stop - start) // 91 + 1))
        rows = np.empty(min(max_capacity, 16384), dtype=_ROW)
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
            larger = np.empty(max(capacity + 1, min(2 * capacity, max_capacity)), dtype=_ROW)
            larger[:capacity] = rows
            rows = larger
    finally:
        PyBuffer_Release(&source)
    if reason == NO_MEMORY:
        raise MemoryError
    # A small view would keep the whole array alive.
    return (rows[:count] if 2 * count > rows.shape[0] else rows[:count].copy()), at, reason


cdef inline int64_t next_byte(const uint8_t* data, int64_t start, int64_t stop, int byte) noexcept nogil:
    cdef const void* found = NULL
    if start < stop:
        found = memchr(data + start, byte, stop - start)
    return stop if found == NULL else <const uint8_t*>found - data


cdef int64_t find_from(
    const uint8_t* data, int64_t length, int64_t base, int64_t start, int64_t stop, bint check_crc
) noexcept nogil:
    # A record's magic starts at its byte 4. Two cursors: one for the first byte of each magic.
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
    """Returns the first position in [start, stop) where a valid record or filler starts, or -1."""
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


cdef enum:
    SECTOR = 512


cdef bint lost_sector(const uint8_t* data, int64_t at, const Row* row) noexcept nogil:
    """Whether a sector's share of the record's topic and properties is all zero; see `first_torn`.

    False for a record with a CRC of its own, which says for certain what this can only guess.
    """
    cdef int64_t end = at + row.size - (0 if row.properties_length else 2)
    cdef int64_t sector = (at + row.topic_at + SECTOR - 1) // SECTOR * SECTOR, i
    if ends_with_record_crc(data + at + row.properties_at, row.properties_length):
        return False
    while sector < end:
        i = sector
        while i < end and i < sector + SECTOR and data[i] == 0:
            i += 1
        if i == end or i == sector + SECTOR:
            return True
        sector += SECTOR
    return False


cdef inline bint is_doubted(int64_t end, const Row* row, int64_t doubted_from, int64_t doubted_since) noexcept nogil:
    return end > doubted_from and row.store_timestamp >= doubted_since


def first_torn(data, int64_t base, rows, int64_t doubted_from=0, int64_t doubted_since=0):
    """Returns the number of the first doubted row whose topic or properties lost a sector, or -1.

    Doubted are records that end after the physical offset `doubted_from`, with a store time from `doubted_since` on.
    """
    cdef _RowBuffer held = _RowBuffer(rows, False)
    cdef Py_buffer source
    cdef const uint8_t* record
    cdef int64_t number, torn = -1
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        for number in range(held.count):
            record = record_of(&source, base, held.rows + number)
            if record == NULL:
                raise ValueError(f"row {number} is outside the data")
            if is_doubted(
                held.rows[number].physical_offset + held.rows[number].size, held.rows + number, doubted_from,
                doubted_since,
            ) and lost_sector(<const uint8_t*>source.buf, record - <const uint8_t*>source.buf, held.rows + number):
                torn = number
                break
    finally:
        PyBuffer_Release(&source)
    return torn


def find_valid_end(
    data, int64_t base, int64_t start, int64_t stop, bint check_crc, int64_t doubted_from=MAX_LONG,
    int64_t doubted_since=0,
):
    """As `walk`, without rows: returns (position after the valid records, Reason, last record's store timestamp).

    A doubted record that lost a sector (`first_torn`) is not valid; the Reason is then UNWRITTEN. The timestamp is in
    milliseconds, 0 if there is no record.
    """
    cdef Py_buffer source
    cdef const uint8_t* content
    cdef int64_t at = start, newest = 0
    cdef int reason = STOP
    cdef Row row
    if start < 0:
        raise ValueError(f"{start} is not a position")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    content = <const uint8_t*>source.buf
    stop = min(stop, source.len)
    with nogil:
        while at < stop:
            reason = examine(content, source.len, at, base, check_crc, &row)
            if reason != STOP:
                break
            if is_doubted(base + at + row.size, &row, doubted_from, doubted_since) and lost_sector(content, at, &row):
                reason = UNWRITTEN
                break
            newest = row.store_timestamp
            prefetch_ahead(content + at, row.size)
            at += row.size
    PyBuffer_Release(&source)
    return at, reason, newest

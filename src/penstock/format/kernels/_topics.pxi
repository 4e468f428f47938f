# The table of topics. The reference is in `_plain_columns.py`.

from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)

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

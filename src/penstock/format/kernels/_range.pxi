# A range of the log walked once: units and keys are made while each record is in the cache. The reference is
# `_plain_range.py`.

from cpython.buffer cimport PyBuffer_FillInfo

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif

    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define PENSTOCK_LE32(x) (x)
    #define PENSTOCK_LE64(x) (x)
    #else
    #define PENSTOCK_LE32(x) __builtin_bswap32(x)
    #define PENSTOCK_LE64(x) __builtin_bswap64(x)
    #endif

    static inline void store_key(uint8_t *p, int32_t hash, int64_t offset, int64_t time) {
        uint32_t h = PENSTOCK_LE32((uint32_t)hash);
        uint64_t o = PENSTOCK_LE64((uint64_t)offset), t = PENSTOCK_LE64((uint64_t)time);
        memcpy(p, &h, 4);
        memcpy(p + 4, &o, 8);
        memcpy(p + 12, &t, 8);
    }

    /* As realloc, for bytes that only become more: what is large lies in large pages where the system has them, because
       a fault for each small one takes longer than what is stored there. */
    #define LARGE_PAGE (2 << 20)
    static void *grown(void *memory, int64_t size, int64_t room) {
    #if defined(__linux__)
        if (room >= 2 * LARGE_PAGE) {
            void *larger = NULL;
            room = (room + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
            if (posix_memalign(&larger, LARGE_PAGE, room)) return NULL;
            madvise(larger, room, MADV_HUGEPAGE);  /* if not, not */
            if (size) memcpy(larger, memory, size);
            free(memory);
            return larger;
        }
    #endif
        return realloc(memory, room);
    }
    """
    void* grown(void* memory, int64_t size, int64_t room) noexcept nogil
    void store_key(uint8_t* p, int32_t hashed, int64_t offset, int64_t time) noexcept nogil

cdef enum:
    UNIT_BYTES = 20
    KEY_BYTES = 20
    LEAST_RECORD = 91

ctypedef struct Growing:  # bytes that become more
    uint8_t* memory
    int64_t size
    int64_t room

ctypedef struct Run:  # records of a queue whose queue offsets follow each other
    int64_t first
    int64_t end
    int64_t physical_first
    int64_t physical_end

ctypedef struct Lane:  # one queue
    int32_t topic_id
    int32_t queue_id
    int64_t since        # records before this position get no unit
    bint is_spoilt       # it has more runs than are kept
    Growing units
    Growing runs


cdef inline uint8_t* room_for(Growing* bytes_, int64_t size) noexcept nogil:
    """Where to store so many bytes more; NULL without memory."""
    cdef int64_t room
    cdef void* larger
    cdef uint8_t* place
    if bytes_.room - bytes_.size < size:
        room = max(2 * bytes_.room, bytes_.size + 64 * size)
        larger = grown(bytes_.memory, bytes_.size, room)
        if larger == NULL:
            return NULL
        bytes_.memory = <uint8_t*>larger
        bytes_.room = room
    place = bytes_.memory + bytes_.size
    bytes_.size += size
    return place


cdef class _Given:
    """Memory that is taken over, as a buffer."""

    cdef uint8_t* memory
    cdef int64_t size

    def __dealloc__(self):
        free(self.memory)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, True, flags)


cdef object taken_over(Growing* bytes_):
    cdef _Given made = _Given.__new__(_Given)
    made.memory, made.size = bytes_.memory, bytes_.size
    bytes_.memory = NULL
    bytes_.size = bytes_.room = 0
    return memoryview(made) if made.memory != NULL else memoryview(b"")


cdef class RangeBuilder:
    """Walks the log and makes units by queue, keys, and a list of what was rolled back. One thread.

    `since` is asked once for each queue from which position on its records get units. Queue offsets that a log of that
    length had no room for, more than `slack` ahead, get none. Nor does a queue with more than `most_runs` runs of queue
    offsets that follow each other.
    """

    cdef TopicTable topics
    cdef object since
    cdef int64_t* delays
    cdef int64_t level_count
    cdef bint with_keys
    cdef int64_t slack
    cdef int64_t most_runs
    cdef Lane* lanes
    cdef int32_t lane_count
    cdef int32_t lane_room
    cdef int32_t* places  # open addressing: number + 1, 0 where free; at most half full
    cdef int32_t mask
    cdef Growing keys
    cdef int32_t coded_topic  # the last one that had a key, and its hash with the separator
    cdef uint32_t topic_code
    cdef list rolled_back_rows
    cdef readonly int64_t records

    def __cinit__(self, TopicTable topics not None, tuple delay_levels not None, bint with_keys, since,
                  int64_t slack, int64_t most_runs):
        self.topics = topics
        self.since = since
        self.level_count = len(delay_levels)
        self.with_keys = with_keys
        self.slack = slack
        self.most_runs = most_runs
        self.rolled_back_rows = []
        self.coded_topic = -1
        self.delays = delays_of(delay_levels)
        self.grow()

    def __dealloc__(self):
        cdef int32_t number
        for number in range(self.lane_count):
            free(self.lanes[number].units.memory)
            free(self.lanes[number].runs.memory)
        free(self.lanes)
        free(self.places)
        free(self.delays)
        free(self.keys.memory)

    cdef int grow(self) except -1:
        cdef int32_t room = self.lane_room * 2 if self.lane_room else 64
        cdef int32_t mask = 2 * room - 1, number, place
        cdef void* larger = realloc(self.lanes, room * sizeof(Lane))
        if larger == NULL:
            raise MemoryError
        self.lanes = <Lane*>larger
        cdef int32_t* places = <int32_t*>calloc(mask + 1, sizeof(int32_t))
        if places == NULL:
            raise MemoryError
        free(self.places)
        self.places, self.mask, self.lane_room = places, mask, room
        for number in range(self.lane_count):
            place = place_of(self.lanes[number].topic_id, self.lanes[number].queue_id, mask)
            while places[place]:
                place = (place + 1) & mask
            places[place] = number + 1
        return 0

    cdef Lane* add_lane(self, int32_t topic_id, int32_t queue_id) except NULL with gil:
        cdef Lane* lane
        cdef int32_t place
        cdef int64_t since = self.since(self.topics.name(topic_id), queue_id)
        if self.lane_count == self.lane_room:
            self.grow()
        lane = self.lanes + self.lane_count
        memset(lane, 0, sizeof(Lane))
        lane.topic_id, lane.queue_id, lane.since = topic_id, queue_id, since
        place = place_of(topic_id, queue_id, self.mask)
        while self.places[place]:
            place = (place + 1) & self.mask
        self.lane_count += 1
        self.places[place] = self.lane_count
        return lane

    cdef inline Lane* lane_of(self, int32_t topic_id, int32_t queue_id) except NULL nogil:
        cdef int32_t place = place_of(topic_id, queue_id, self.mask)
        cdef Lane* lane
        while self.places[place]:
            lane = self.lanes + self.places[place] - 1
            if lane.topic_id == topic_id and lane.queue_id == queue_id:
                return lane
            place = (place + 1) & self.mask
        return self.add_lane(topic_id, queue_id)

    cdef inline int add_unit(self, const Row* row) except -1 nogil:
        cdef Lane* lane = self.lane_of(row.topic_id, row.queue_id)
        cdef Run* run
        cdef uint8_t* p
        if lane.is_spoilt or row.physical_offset < lane.since or row.queue_offset < 0:
            return 0
        if row.queue_offset > row.physical_offset // LEAST_RECORD + self.slack:
            return 0
        run = <Run*>(lane.runs.memory + lane.runs.size) - 1
        if lane.runs.size == 0 or run.end != row.queue_offset:
            if lane.runs.size >= self.most_runs * <int64_t>sizeof(Run):
                lane.is_spoilt = True
                lane.units.size = lane.runs.size = 0
                return 0
            run = <Run*>room_for(&lane.runs, sizeof(Run))
            if run == NULL:
                out_of_memory()
            run.first = row.queue_offset
            run.physical_first = row.physical_offset
        run.end = row.queue_offset + 1
        run.physical_end = row.physical_offset + row.size
        p = room_for(&lane.units, UNIT_BYTES)
        if p == NULL:
            out_of_memory()
        store64(p, row.physical_offset)
        store32(p + 8, row.size)
        store64(p + 12, row.tags_code)
        return 0

    cdef inline int add_key(self, const Row* row, const uint8_t* text, int64_t size) except -1 nogil:
        cdef uint32_t code = hash_on(text, size, self.topic_code)
        cdef uint8_t* p = room_for(&self.keys, KEY_BYTES)
        if p == NULL:
            out_of_memory()
        store_key(p, without_sign(code), row.physical_offset, row.store_timestamp)
        return 0

    cdef inline int add_keys(self, const uint8_t* record, const Row* row, const Found* found) except -1 nogil:
        """Adds UNIQ_KEY, then each piece of KEYS."""
        cdef const uint8_t* text = found.keys
        cdef const uint8_t* end = found.keys + found.keys_size
        cdef const uint8_t* piece_end
        if row.topic_id != self.coded_topic:
            self.topic_code = 31 * hash_on(record + row.topic_at, row.topic_length, 0) + 35  # '#'
            self.coded_topic = row.topic_id
        if found.unique_size:
            self.add_key(row, found.unique, found.unique_size)
        if not found.keys_size:
            return 0
        while text < end:
            piece_end = <const uint8_t*>memchr(text, 32, end - text)
            if piece_end == NULL:
                piece_end = end
            if piece_end > text:
                self.add_key(row, text, piece_end - text)
            text = piece_end + 1
        return 0

    cdef int add_rolled_back(self, const Row* row) except -1 with gil:
        self.rolled_back_rows.append((row.physical_offset, row.size, self.topics.name(row.topic_id)))
        return 0

    cdef inline int take_one(self, const uint8_t* record, Row* row) except -1 nogil:
        cdef int32_t kind = row.sys_flag & TRANSACTION_MASK
        cdef Found found
        look_through(record, row, &found)
        if kind != PREPARED and kind != ROLLBACK:
            tag_row(record, row, &found, self.delays, self.level_count)
            self.add_unit(row)
        if kind == ROLLBACK:
            self.add_rolled_back(row)
        elif self.with_keys:
            self.add_keys(record, row, &found)
        self.records += 1
        return 0

    def take(self, data, int64_t base, int64_t start, int64_t stop):
        """Takes the valid records that start in [start, stop), CRC checked.

        Returns the position after them, why it ends there, how many there are, and the size of the record at that
        position if it has lost a sector (`first_torn`), else 0.
        """
        cdef Py_buffer source
        cdef const uint8_t* content
        cdef int64_t at = start, before = self.records, torn = 0
        cdef int reason = STOP
        cdef TopicCache cache
        cdef Row row
        if start < 0:
            raise ValueError(f"{start} is not a position")
        memset(&cache, 0, sizeof(cache))
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            content = <const uint8_t*>source.buf
            stop = min(stop, source.len)
            with nogil:
                while at < stop:
                    reason = examine(content, source.len, at, base, True, &row)
                    if reason != STOP:
                        break
                    if lost_sector(content, at, &row):
                        torn = row.size
                        reason = UNWRITTEN
                        break
                    fetch_ahead(content + at, row.size)
                    row.topic_id = cached_topic(&self.topics.core, &cache, content + at + row.topic_at, row.topic_length)
                    if row.topic_id < 0:
                        out_of_memory()
                    self.take_one(content + at, &row)
                    at += row.size
        finally:
            PyBuffer_Release(&source)
        return at, reason, self.records - before, torn

    def queues(self):
        """(topic, queue id, runs, units) of each queue with records, by first appearance; the units are given away.

        A run is (first and end of its queue offsets, physical offset of its first record, and where its last one
        ends); its units follow those of the run before it. No runs: there were too many.
        """
        cdef int32_t number
        cdef int64_t each
        cdef Lane* lane
        cdef Run* run
        made = []
        for number in range(self.lane_count):
            lane = self.lanes + number
            if lane.runs.size or lane.is_spoilt:
                run = <Run*>lane.runs.memory
                runs = [
                    (run[each].first, run[each].end, run[each].physical_first, run[each].physical_end)
                    for each in range(lane.runs.size // <int64_t>sizeof(Run))
                ]
                made.append((self.topics.name(lane.topic_id), lane.queue_id, runs, taken_over(&lane.units)))
        return made

    def key_table(self):
        """The keys, 20 bytes each in log order: hash, physical offset and store time, little-endian; given away."""
        return taken_over(&self.keys)

    @property
    def rolled_back(self):
        """(physical offset, size, topic) of the records of ROLLBACK type."""
        return list(self.rolled_back_rows)


cdef inline int32_t place_of(int32_t topic_id, int32_t queue_id, int32_t mask) noexcept nogil:
    cdef uint64_t key = (<uint64_t><uint32_t>topic_id << 32) | <uint32_t>queue_id
    return <int32_t>((key * <uint64_t>0x9E3779B97F4A7C15) >> 32) & mask


cdef int out_of_memory() except -1 with gil:
    raise MemoryError

# What dispatch derives from records: tag codes, keys, queue units. The plain twin is plain/dispatch.py.

# -- properties, tag codes, keys -----------------------------------------------------------------------------

cdef bint last_value(
    const uint8_t* properties, int64_t size, const char* name, int64_t name_size,
    const uint8_t** value, int64_t* value_size,
) noexcept nogil:
    """Finds the value of the last property with this name, which contains no separator; False if there is none."""
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
    """Returns the value of a property of the record at `at`, or None.

    Raises ValueError if no record with valid lengths starts there.
    """
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


ctypedef struct DispatchProperties:  # the last value of each property that dispatch needs; size 0 if it is missing
    const uint8_t* tags
    const uint8_t* keys
    const uint8_t* unique
    int64_t tags_size
    int64_t keys_size
    int64_t unique_size


cdef inline void find_dispatch_properties(
    const uint8_t* record, const Row* row, DispatchProperties* found
) noexcept nogil:
    """Finds TAGS, KEYS and UNIQ_KEY in one pass over a record's properties."""
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


cdef int64_t parse_level(const uint8_t* text, int64_t size) noexcept nogil:
    """Returns the delay level as Java's parseInt reads it; 0 if it is not a number or is below 1."""
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
    """Returns the delays in milliseconds as a C array, which the caller frees."""
    cdef int64_t number, count = len(delay_levels)
    cdef int64_t* delays = <int64_t*>malloc(max(1, count) * sizeof(int64_t))
    if delays == NULL:
        raise MemoryError
    for number in range(count):
        delays[number] = delay_levels[number]
    return delays


cdef inline int tag_row(
    const uint8_t* record, Row* row, const DispatchProperties* found, const int64_t* delays, int64_t level_count
) except -1 nogil:
    """Fills the row's tags_code."""
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


cdef int64_t tag_rows(
    const Py_buffer* source, int64_t base, Row* rows, int64_t count, const int64_t* delays, int64_t level_count
) except? -2 nogil:
    """Fills tags_code of the rows. Returns the number of the first row that is outside the data, or -1."""
    cdef const uint8_t* record
    cdef int64_t number
    cdef DispatchProperties found
    for number in range(count):
        record = record_of(source, base, rows + number)
        if record == NULL:
            return number
        find_dispatch_properties(record, rows + number, &found)
        tag_row(record, rows + number, &found, delays, level_count)
    return -1


def tag_codes(data, int64_t base, rows, tuple delay_levels not None):
    """Fills rows["tags_code"]: the tag's hash, or in the schedule topic the time of delivery in milliseconds."""
    cdef _RowBuffer held = _RowBuffer(rows, True)
    cdef Py_buffer source
    cdef int64_t bad, level_count = len(delay_levels)
    cdef int64_t* delays = delays_of(delay_levels)
    try:
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            with nogil:
                bad = tag_rows(&source, base, held.rows, held.count, delays, level_count)
        finally:
            PyBuffer_Release(&source)
    finally:
        free(delays)
    if bad >= 0:
        raise ValueError(f"row {bad} is outside the data")


cdef inline int32_t without_sign(uint32_t code) noexcept nogil:
    """Returns the absolute value of a hash as the index stores it: 0 for the one that has none."""
    cdef int32_t signed = <int32_t>code
    if signed >= 0:
        return signed
    return 0 if code == <uint32_t>0x80000000 else -signed


# -- queues --------------------------------------------------------------------------------------------------
# These keep the GIL: they take less time than getting it back.

ctypedef struct Group:
    int32_t topic_id
    int32_t queue_id
    int64_t count
    int64_t* picks


cdef int64_t group_into(
    const Row* rows, int64_t count, int64_t* group_of, Group* groups, int64_t* places, int64_t mask
) noexcept nogil:
    """Numbers the groups by first appearance and counts their rows; returns the number of groups."""
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
    """Groups the rows that get a queue unit; returns (topic_id, queue_id, row numbers) by first appearance.

    Prepared and rolled back messages get none.
    """
    cdef _RowBuffer held = _RowBuffer(rows, False)
    cdef int64_t count = held.count, number, known, mask = 63
    cdef Py_buffer target
    cdef Group* group
    while mask < 2 * count:
        mask = 2 * mask + 1
    cdef int64_t* group_of = <int64_t*>malloc((count + 1) * sizeof(int64_t))
    cdef Group* groups = <Group*>malloc((count + 1) * sizeof(Group))
    cdef int64_t* places = <int64_t*>calloc(mask + 1, sizeof(int64_t))
    grouped = []
    try:
        if group_of == NULL or groups == NULL or places == NULL:
            raise MemoryError
        known = group_into(held.rows, count, group_of, groups, places, mask)
        for number in range(known):
            group = groups + number
            picks = np.empty(group.count, dtype=np.int64)
            PyObject_GetBuffer(picks, &target, PyBUF_WRITABLE)
            group.picks = <int64_t*>target.buf  # `grouped` keeps the array alive
            PyBuffer_Release(&target)
            grouped.append((group.topic_id, group.queue_id, picks))
        for number in range(count):
            if group_of[number] >= 0:
                group = groups + group_of[number]
                group.picks[0] = number
                group.picks += 1
    finally:
        free(group_of)
        free(groups)
        free(places)
    return grouped


# -- a range of the log in one pass --------------------------------------------------------------------------

cdef extern from *:
    """
    #if defined(__linux__)
    #include <sys/mman.h>
    #endif

    static inline void store_key(uint8_t *p, int32_t hash, int64_t offset, int64_t time) {
        uint32_t h = PENSTOCK_LE32((uint32_t)hash);
        uint64_t o = PENSTOCK_LE64((uint64_t)offset), t = PENSTOCK_LE64((uint64_t)time);
        memcpy(p, &h, 4);
        memcpy(p + 4, &o, 8);
        memcpy(p + 12, &t, 8);
    }

    /* As realloc, for memory that only grows. Large blocks use huge pages where the system has them: page faults for
       4 KB pages would take longer than the stores. */
    #define HUGE_PAGE (2 << 20)
    static void *grow_block(void *memory, int64_t size, int64_t room) {
    #if defined(__linux__)
        if (room >= 2 * HUGE_PAGE) {
            void *larger = NULL;
            room = (room + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
            if (posix_memalign(&larger, HUGE_PAGE, room)) return NULL;
            madvise(larger, room, MADV_HUGEPAGE);  /* a hint: a failure does not matter */
            if (size) memcpy(larger, memory, size);
            free(memory);
            return larger;
        }
    #endif
        return realloc(memory, room);
    }
    """
    void* grow_block(void* memory, int64_t size, int64_t room) noexcept nogil
    void store_key(uint8_t* p, int32_t hashed, int64_t offset, int64_t time) noexcept nogil

cdef enum:
    UNIT_BYTES = 20
    KEY_BYTES = 20
    MIN_RECORD = 91

ctypedef struct GrowingBytes:
    uint8_t* memory
    int64_t size
    int64_t room

ctypedef struct Run:  # records of a queue with consecutive queue offsets
    int64_t first
    int64_t end
    int64_t physical_first
    int64_t physical_end

ctypedef struct QueueBuilder:  # the units of one queue
    int32_t topic_id
    int32_t queue_id
    int64_t since        # physical offset; records before it get no unit
    bint is_dropped      # it has more than max_runs runs
    GrowingBytes units
    GrowingBytes runs


cdef inline uint8_t* room_for(GrowingBytes* bytes_, int64_t size) noexcept nogil:
    """Appends `size` bytes and returns where to store them; NULL if memory runs out."""
    cdef int64_t room
    cdef void* larger
    cdef uint8_t* place
    if bytes_.room - bytes_.size < size:
        room = max(2 * bytes_.room, bytes_.size + 64 * size)
        larger = grow_block(bytes_.memory, bytes_.size, room)
        if larger == NULL:
            return NULL
        bytes_.memory = <uint8_t*>larger
        bytes_.room = room
    place = bytes_.memory + bytes_.size
    bytes_.size += size
    return place


cdef class _OwnedBytes:
    """Memory from malloc as a read-only buffer; frees it at the end."""

    cdef uint8_t* memory
    cdef int64_t size

    def __dealloc__(self):
        free(self.memory)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, True, flags)


cdef object move_out(GrowingBytes* bytes_):
    """Returns the bytes as a memoryview and leaves none behind."""
    cdef _OwnedBytes owner = _OwnedBytes.__new__(_OwnedBytes)
    owner.memory, owner.size = bytes_.memory, bytes_.size
    bytes_.memory = NULL
    bytes_.size = bytes_.room = 0
    return memoryview(owner) if owner.memory != NULL else memoryview(b"")


cdef class RangeBuilder:
    """Walks ranges of the log and builds queue units, keys, and a list of rolled back messages. Not thread-safe.

    topics        numbers the topics
    delay_levels  the delay of each level in milliseconds
    with_keys     whether to collect keys
    since         called once per queue with (topic, queue id): the physical offset from which its records get units;
                  None: all records get units
    slack         a record gets no unit if its queue offset exceeds physical offset / 91 (the smallest record) + slack
    max_runs      a queue with more than this many runs of consecutive queue offsets is dropped
    """

    cdef TopicTable topics
    cdef object since
    cdef int64_t* delays
    cdef int64_t level_count
    cdef bint with_keys
    cdef int64_t slack
    cdef int64_t max_runs
    cdef QueueBuilder* builders
    cdef int32_t queue_count
    cdef int32_t queue_room
    cdef int32_t* places  # hash table with open addressing: number + 1, 0 if free; at most half full
    cdef int32_t mask
    cdef GrowingBytes keys
    cdef int32_t coded_topic  # the last topic with a key; topic_code hashes it and the separator
    cdef uint32_t topic_code
    cdef list rolled_back_rows
    cdef readonly int64_t records
    cdef readonly int64_t newest  # store timestamp of the last record, or 0

    def __cinit__(self, TopicTable topics not None, tuple delay_levels not None, bint with_keys, since,
                  int64_t slack, int64_t max_runs):
        self.topics = topics
        self.since = since
        self.level_count = len(delay_levels)
        self.with_keys = with_keys
        self.slack = slack
        self.max_runs = max_runs
        self.rolled_back_rows = []
        self.coded_topic = -1
        self.delays = delays_of(delay_levels)
        self.grow()

    def __dealloc__(self):
        cdef int32_t number
        for number in range(self.queue_count):
            free(self.builders[number].units.memory)
            free(self.builders[number].runs.memory)
        free(self.builders)
        free(self.places)
        free(self.delays)
        free(self.keys.memory)

    cdef int grow(self) except -1:
        """Doubles the room for queues."""
        cdef int32_t room = self.queue_room * 2 if self.queue_room else 64
        cdef int32_t mask = 2 * room - 1, number, place
        cdef void* larger = realloc(self.builders, room * sizeof(QueueBuilder))
        if larger == NULL:
            raise MemoryError
        self.builders = <QueueBuilder*>larger
        cdef int32_t* places = <int32_t*>calloc(mask + 1, sizeof(int32_t))
        if places == NULL:
            raise MemoryError
        free(self.places)
        self.places, self.mask, self.queue_room = places, mask, room
        for number in range(self.queue_count):
            place = place_of(self.builders[number].topic_id, self.builders[number].queue_id, mask)
            while places[place]:
                place = (place + 1) & mask
            places[place] = number + 1
        return 0

    cdef QueueBuilder* add_queue(self, int32_t topic_id, int32_t queue_id) except NULL with gil:
        cdef QueueBuilder* queue
        cdef int32_t place
        cdef int64_t since = 0 if self.since is None else self.since(self.topics.name(topic_id), queue_id)
        if self.queue_count == self.queue_room:
            self.grow()
        queue = self.builders + self.queue_count
        memset(queue, 0, sizeof(QueueBuilder))
        queue.topic_id, queue.queue_id, queue.since = topic_id, queue_id, since
        place = place_of(topic_id, queue_id, self.mask)
        while self.places[place]:
            place = (place + 1) & self.mask
        self.queue_count += 1
        self.places[place] = self.queue_count
        return queue

    cdef inline QueueBuilder* queue_of(self, int32_t topic_id, int32_t queue_id) except NULL nogil:
        cdef int32_t place = place_of(topic_id, queue_id, self.mask)
        cdef QueueBuilder* queue
        while self.places[place]:
            queue = self.builders + self.places[place] - 1
            if queue.topic_id == topic_id and queue.queue_id == queue_id:
                return queue
            place = (place + 1) & self.mask
        return self.add_queue(topic_id, queue_id)

    cdef inline int add_unit(self, const Row* row) except -1 nogil:
        cdef QueueBuilder* queue = self.queue_of(row.topic_id, row.queue_id)
        cdef Run* run = NULL
        cdef uint8_t* p
        if queue.is_dropped or row.physical_offset < queue.since or row.queue_offset < 0:
            return 0
        if row.queue_offset > row.physical_offset // MIN_RECORD + self.slack:
            return 0
        if queue.runs.size > 0:
            run = <Run*>(queue.runs.memory + queue.runs.size) - 1
        if run == NULL or run.end != row.queue_offset:
            if queue.runs.size >= self.max_runs * <int64_t>sizeof(Run):
                queue.is_dropped = True
                queue.units.size = queue.runs.size = 0
                return 0
            run = <Run*>room_for(&queue.runs, sizeof(Run))
            if run == NULL:
                out_of_memory()
            run.first = row.queue_offset
            run.physical_first = row.physical_offset
        run.end = row.queue_offset + 1
        run.physical_end = row.physical_offset + row.size
        p = room_for(&queue.units, UNIT_BYTES)
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

    cdef inline int add_keys(
        self, const uint8_t* record, const Row* row, const DispatchProperties* found
    ) except -1 nogil:
        """Adds UNIQ_KEY, then each word of KEYS."""
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

    cdef inline int add_record(self, const uint8_t* record, Row* row) except -1 nogil:
        cdef int32_t kind = row.sys_flag & TRANSACTION_MASK
        cdef DispatchProperties found
        find_dispatch_properties(record, row, &found)
        if kind != PREPARED and kind != ROLLBACK:
            tag_row(record, row, &found, self.delays, self.level_count)
            self.add_unit(row)
        if kind == ROLLBACK:
            self.add_rolled_back(row)
        elif self.with_keys:
            self.add_keys(record, row, &found)
        self.records += 1
        self.newest = row.store_timestamp
        return 0

    def take(self, data, int64_t base, int64_t start, int64_t stop, bint checked=True, int64_t most=MAX_LONG):
        """Adds the valid records that start in [start, stop), at most `most` of them.

        Checks their CRC if `checked`. Returns (position after them, Reason to end there, number of records).
        """
        cdef Py_buffer source
        cdef const uint8_t* content
        cdef int64_t at = start, before = self.records
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
                    if self.records - before == most:
                        reason = FULL
                        break
                    reason = examine(content, source.len, at, base, checked, &row)
                    if reason != STOP:
                        break
                    prefetch_ahead(content + at, row.size)
                    row.topic_id = cached_topic(
                        &self.topics.core, &cache, content + at + row.topic_at, row.topic_length
                    )
                    if row.topic_id < 0:
                        out_of_memory()
                    self.add_record(content + at, &row)
                    at += row.size
        finally:
            PyBuffer_Release(&source)
        return at, reason, self.records - before

    def queues(self):
        """Returns (topic, queue id, runs, units) of each queue with records, by first appearance. Moves the units out.

        A run is (first queue offset, end of the queue offsets, physical offset of the first record, physical end of
        the last one). The units of all runs follow each other. A dropped queue has no runs.
        """
        cdef int32_t number
        cdef int64_t each
        cdef QueueBuilder* queue
        cdef Run* run
        queues = []
        for number in range(self.queue_count):
            queue = self.builders + number
            if queue.runs.size or queue.is_dropped:
                run = <Run*>queue.runs.memory
                runs = [
                    (run[each].first, run[each].end, run[each].physical_first, run[each].physical_end)
                    for each in range(queue.runs.size // <int64_t>sizeof(Run))
                ]
                queues.append((self.topics.name(queue.topic_id), queue.queue_id, runs, move_out(&queue.units)))
        return queues

    def key_table(self):
        """Moves the keys out: 20 bytes each in log order, little-endian hash, physical offset and store timestamp."""
        return move_out(&self.keys)

    @property
    def rolled_back(self):
        """(physical offset, size, topic) of the records of type ROLLBACK."""
        return list(self.rolled_back_rows)


cdef inline int32_t place_of(int32_t topic_id, int32_t queue_id, int32_t mask) noexcept nogil:
    cdef uint64_t key = (<uint64_t><uint32_t>topic_id << 32) | <uint32_t>queue_id
    return <int32_t>((key * <uint64_t>0x9E3779B97F4A7C15) >> 32) & mask


cdef int out_of_memory() except -1 with gil:
    raise MemoryError

# The index file: put, find, rewind; and queries by key. The plain twin is plain/index.py.

cdef extern from *:
    """
    /* Whether an item's second overlaps the milliseconds [begin, end]; 128 bits, so garbage cannot overflow. */
    static inline int second_matches(int64_t first, int32_t seconds, int64_t begin, int64_t end) {
        __int128 time = (__int128)first + (int64_t)seconds * 1000;
        return (seconds == 0 || time <= end) && (time + 999 >= begin || seconds == INT32_MAX);
    }
    """
    bint second_matches(int64_t first, int32_t seconds, int64_t begin, int64_t end) noexcept nogil

cdef enum:
    SLOTS_AHEAD = 16  # slots are scattered over the file; prefetching lets their cache misses overlap


cdef int check_geometry(int64_t length, int64_t slots, int64_t items) except -1:
    """Raises ValueError unless a file of `length` bytes has room for the slots and items."""
    if slots < 1 or items < 1 or slots > length or items > length or 40 + 4 * slots + 20 * items > length:
        raise ValueError(f"{slots} slots and {items} items do not fit into {length} bytes")
    return 0


cdef inline void add_slots(uint8_t* file, int change) noexcept nogil:
    """Changes the header's count of used slots: never below zero; wraps to 0 if a garbage header is at the maximum."""
    cdef int64_t count = max(0, <int64_t>load32(file + 32) + change)
    store32(file + 32, 0 if count > MAX_INT else <int32_t>count)


cdef int64_t put_all(
    uint8_t* file, uint8_t* apart, int64_t slots, int64_t items,
    const int32_t* hashes, const int64_t* offsets, const int64_t* times, int64_t total,
) noexcept nogil:
    """Puts keys until the file is full; returns how many. Stores the item, then the slot, then the header."""
    cdef int64_t number, begin, seconds
    cdef int32_t count, previous
    cdef uint8_t* slot
    cdef uint8_t* item
    for number in range(total):
        if number + SLOTS_AHEAD < total:
            prefetch(file + 40 + 4 * (hashes[number + SLOTS_AHEAD] % slots))
        count = max(1, load32(file + 36))
        if count >= items:
            return number
        slot = file + 40 + 4 * (hashes[number] % slots)
        previous = load32(slot)
        if previous <= 0 or previous > count:
            previous = 0
        begin = load64(file)
        seconds = 0
        if begin > 0 and times[number] > begin:
            seconds = min((times[number] - begin) // 1000, MAX_INT)
        item = file + 40 + 4 * slots + 20 * <int64_t>count if apart == NULL else apart + 20 * number
        store32(item, hashes[number])
        store64(item + 4, offsets[number])
        store32(item + 12, <int32_t>seconds)
        store32(item + 16, previous)
        release_fence()
        store32(slot, count)
        release_fence()
        if count == 1:
            store64(file + 16, offsets[number])
            store64(file, times[number])
        if previous == 0:
            add_slots(file, 1)
        store32(file + 36, count + 1)
        store64(file + 24, offsets[number])
        store64(file + 8, times[number])
    return total


def index_put(out, int64_t slots, int64_t items, hashes, offsets, times, bytearray apart=None):
    """Puts keys until the file is full; returns how many were put. Times are in milliseconds.

    With `apart` the new items, 20 bytes each, go there instead of into the file; the caller writes them to the file.
    """
    cdef uint8_t* elsewhere = NULL
    cdef Py_buffer target, hash_buffer, offset_buffer, time_buffer
    cdef int64_t done, total, number
    hashes = np.ascontiguousarray(hashes, dtype=np.int32)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    times = np.ascontiguousarray(times, dtype=np.int64)
    total = len(hashes)
    if total != len(offsets) or total != len(times):
        raise ValueError("hashes, offsets and times differ in length")
    if apart is not None:
        check_room(len(apart), 0, 20 * total)
        elsewhere = <uint8_t*><char*>apart
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        check_geometry(target.len, slots, items)
        PyObject_GetBuffer(hashes, &hash_buffer, PyBUF_SIMPLE)
        PyObject_GetBuffer(offsets, &offset_buffer, PyBUF_SIMPLE)
        PyObject_GetBuffer(times, &time_buffer, PyBUF_SIMPLE)
        try:
            for number in range(total):
                if (<const int32_t*>hash_buffer.buf)[number] < 0:
                    raise ValueError("a key's hash is never negative")
            with nogil:
                done = put_all(
                    <uint8_t*>target.buf, elsewhere, slots, items, <const int32_t*>hash_buffer.buf,
                    <const int64_t*>offset_buffer.buf, <const int64_t*>time_buffer.buf, total,
                )
        finally:
            PyBuffer_Release(&hash_buffer)
            PyBuffer_Release(&offset_buffer)
            PyBuffer_Release(&time_buffer)
    finally:
        PyBuffer_Release(&target)
    return done


cdef int64_t follow(
    const uint8_t* file, int64_t slots, int64_t items, int64_t key_hash, int64_t begin, int64_t end,
    int64_t* number, int64_t limit, int64_t** found,
) noexcept nogil:
    """Follows a chain from item *number and collects physical offsets in *found, which the caller frees.

    Returns how many, or -1 if memory runs out. *number becomes the next item of the chain, 0 at its end.
    """
    cdef int64_t count = 0, room = 0, first = load64(file), previous
    cdef int32_t seconds
    cdef const uint8_t* item
    cdef void* larger
    while 0 < number[0] < items and count < limit:
        item = file + 40 + 4 * slots + 20 * number[0]
        # The header's begin is the time of item 1; that item's own seconds count from the end of the previous file.
        seconds = load32(item + 12) if number[0] > 1 else 0
        if load32(item) == key_hash and second_matches(first, seconds, begin, end):
            if count == room:
                room = 2 * room + 32
                larger = realloc(found[0], room * sizeof(int64_t))
                if larger == NULL:
                    return -1
                found[0] = <int64_t*>larger
            found[0][count] = load64(item + 4)
            count += 1
        previous = load32(item + 16)
        number[0] = previous if previous < number[0] else 0
    if not 0 < number[0] < items:
        number[0] = 0
    return count


cdef int64_t clamp_long(object value) except? -1:
    """Returns a time as 64 bits; a larger or smaller one becomes the last or first possible time."""
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return MAX_LONG if overflow > 0 else -MAX_LONG - 1
    return number


def index_find(data, int64_t slots, int64_t items, int64_t key_hash, begin, end, int64_t item, int64_t limit):
    """Returns (physical offsets of items with this hash, newest first; the item to continue with, 0 at the end).

    Finds items whose second overlaps the times [begin, end] in milliseconds, at most `limit`. `item` is where to start;
    0 starts at the slot.
    """
    cdef Py_buffer source
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), number = item, count
    cdef int64_t* found = NULL
    if key_hash < 0:
        raise ValueError("a key's hash is never negative")
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        check_geometry(source.len, slots, items)
        with nogil:
            if number == 0:
                number = load32(<const uint8_t*>source.buf + 40 + 4 * (key_hash % slots))
            acquire_fence()
            count = follow(
                <const uint8_t*>source.buf, slots, items, key_hash, first, last, &number, limit, &found
            )
        if count < 0:
            raise MemoryError
        return longs_from(found, count), number
    finally:
        free(found)
        PyBuffer_Release(&source)


cdef void rewind_to(uint8_t* file, int64_t slots, int64_t count, int64_t new_count) noexcept nogil:
    """Undoes puts from the newest item to item `new_count`."""
    cdef int64_t number
    cdef int32_t key_hash, previous
    cdef uint8_t* item
    cdef uint8_t* slot
    for number in range(count - 1, new_count - 1, -1):
        item = file + 40 + 4 * slots + 20 * number
        key_hash = load32(item)
        if key_hash >= 0:
            slot = file + 40 + 4 * (key_hash % slots)
            # A slot that points below this item never pointed to it: the put was interrupted before that.
            if load32(slot) >= number:
                previous = load32(item + 16)
                if previous <= 0 or previous >= number:
                    previous = 0
                    add_slots(file, -1)
                store32(slot, previous)
        memset(item, 0, 20)
    store32(file + 36, <int32_t>new_count)


def index_rewind(out, int64_t slots, int64_t items, int64_t count, int64_t new_count):
    """Undoes the puts of items new_count … count - 1 and zeroes them. The caller updates the header's end fields."""
    cdef Py_buffer target
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        check_geometry(target.len, slots, items)
        if not 1 <= new_count <= count <= items:
            raise ValueError(f"cannot go back from {count} items to {new_count} in a file for {items}")
        with nogil:
            rewind_to(<uint8_t*>target.buf, slots, count, new_count)
    finally:
        PyBuffer_Release(&target)


# -- queries by key ------------------------------------------------------------------------------------------

cdef enum:
    AT_ONCE = 64


cdef bint has_key(
    const uint8_t* record, const Row* row, const char* topic, int64_t topic_size, const char* key, int64_t key_size,
    int64_t begin, int64_t end,
) noexcept nogil:
    """Whether a valid record has this topic, this key or unique key, and a store timestamp in [begin, end]."""
    cdef const uint8_t* properties = record + row.properties_at
    cdef const uint8_t* text = NULL
    cdef const uint8_t* last
    cdef const uint8_t* piece_end
    cdef int64_t size = 0
    if row.topic_length != topic_size or memcmp(record + row.topic_at, topic, topic_size) or key_size == 0:
        return False
    if row.store_timestamp < begin or row.store_timestamp > end:
        return False
    if last_value(properties, row.properties_length, b"KEYS", 4, &text, &size):
        last = text + size
        while text < last:
            piece_end = <const uint8_t*>memchr(text, 32, last - text)
            if piece_end == NULL:
                piece_end = last
            if piece_end - text == key_size and memcmp(text, key, key_size) == 0:
                return True
            text = piece_end + 1
    if last_value(properties, row.properties_length, b"UNIQ_KEY", 8, &text, &size):
        return size == key_size and memcmp(text, key, key_size) == 0
    return False


def match_record(
    data, int64_t at, int64_t base, int64_t readable, bint check_crc, bytes topic, bytes key, begin, end
):
    """Returns the record at `at` as bytes if it is valid and has this topic, key and store timestamp; else None.

    `readable` is the length of the part of `data` that may be read.
    """
    cdef Py_buffer source
    PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
    try:
        return match_in(&source, at, base, readable, check_crc, topic, key, clamp_long(begin), clamp_long(end))
    finally:
        PyBuffer_Release(&source)


cdef match_in(
    const Py_buffer* source, int64_t at, int64_t base, int64_t readable, bint check_crc, bytes topic, bytes key,
    int64_t first, int64_t last,
):
    cdef Row row
    readable = min(readable, source.len)
    if at < 0 or at >= readable:
        return None
    if examine(<const uint8_t*>source.buf, readable, at, base, check_crc, &row) != STOP or not has_key(
        <const uint8_t*>source.buf + at, &row, PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic),
        PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), first, last,
    ):
        return None
    return PyBytes_FromStringAndSize(<char*>source.buf + at, row.size)


cdef int64_t cold_end(Residency residency, const Py_buffer* source, int64_t at, int64_t readable) noexcept:
    """Returns the end of the record at `at`, or of its size field, if that is not in memory; 0 if it is."""
    cdef int64_t end = min(at + 4, min(readable, source.len))
    if not residency.has(at, end):
        return end
    if end == at + 4:
        end = min(at + max(load32(<const uint8_t*>source.buf + at), 4), min(readable, source.len))
    return 0 if residency.has(at, end) else end


def find_key(
    bytes key not None, bytes topic not None, list indexes not None, int64_t slots, int64_t items, list logs not None,
    int64_t log_base, int64_t file_size, int64_t log_end, begin, end, int64_t max_records, bint check_crc,
    list index_residency=None, list log_residency=None,
):
    """Returns the newest `max_records` records with a key as bytes, oldest first, each once.

    The other arguments are those of `find_keys`. `index_residency` and `log_residency` tell what is in memory, for each
    file; None: all of it is. If a range that has to be read is not in memory, returns (whether it lies in the index,
    number of the file, start, stop) instead; the caller loads it and calls again. Chains of index items are followed
    without the GIL, in memory or not.
    """
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), hashed, number, count, i, offset, place, item, slot
    cdef int64_t at, base, stop
    cdef int64_t* found = NULL
    cdef Py_buffer table, source
    cdef uint32_t code = 31 * hash_on(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), 0) + 35
    cdef dict records = {}
    cdef Residency residency
    if slots <= 0 or file_size <= 0:
        raise ValueError("an index has slots, and a log file has bytes")
    if (index_residency is not None and PyList_GET_SIZE(index_residency) != PyList_GET_SIZE(indexes)) or (
        log_residency is not None and PyList_GET_SIZE(log_residency) != PyList_GET_SIZE(logs)
    ):
        raise ValueError("the residency of each file is needed")
    hashed = without_sign(hash_on(<const uint8_t*>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), code))
    slot = 40 + 4 * (hashed % slots)
    for item in range(PyList_GET_SIZE(indexes) - 1, -1, -1):
        residency = None if index_residency is None else index_residency[item]
        if residency is not None and not residency.has(slot, slot + 4):
            return True, item, slot, slot + 4
        PyObject_GetBuffer(<object>PyList_GET_ITEM(indexes, item), &table, PyBUF_SIMPLE)
        try:
            check_geometry(table.len, slots, items)
            number = load32(<const uint8_t*>table.buf + slot)
            while 0 < number < items and PyDict_Size(records) < max_records:
                acquire_fence()
                with nogil:
                    count = follow(
                        <const uint8_t*>table.buf, slots, items, hashed, first, last, &number, AT_ONCE, &found
                    )
                if count < 0:
                    raise MemoryError
                for i in range(count):
                    offset = found[i]
                    if PyDict_Size(records) >= max_records or not log_base <= offset < log_end or offset in records:
                        continue
                    place = (offset - log_base) // file_size
                    if place >= PyList_GET_SIZE(logs):
                        continue
                    base = log_base + place * file_size
                    at = offset - base
                    residency = None if log_residency is None else log_residency[place]
                    PyObject_GetBuffer(<object>PyList_GET_ITEM(logs, place), &source, PyBUF_SIMPLE)
                    try:
                        stop = 0 if residency is None else cold_end(residency, &source, at, log_end - base)
                        if stop:
                            return False, place, at, stop
                        record = match_in(&source, at, base, log_end - base, check_crc, topic, key, first, last)
                    finally:
                        PyBuffer_Release(&source)
                    if record is not None:
                        records[offset] = record
        finally:
            PyBuffer_Release(&table)
            free(found)
            found = NULL
    if PyDict_Size(records) < 2:
        return list(records.values())
    return [records[offset] for offset in sorted(records)]


ctypedef struct Wanted:
    const char* text
    Py_ssize_t size
    int64_t hashed


ctypedef struct Hits:
    int64_t* numbers
    int64_t* offsets
    uint8_t* confirmed
    int64_t count
    int64_t room


ctypedef struct UnitTable:  # a file of a queue of the topic
    int64_t queue_id
    int64_t first           # queue offset of its first unit
    int64_t count           # units that may be read
    const uint8_t* units


cdef const uint8_t* find_unit(
    const UnitTable* tables, int64_t count, int64_t queue_id, int64_t queue_offset
) noexcept nogil:
    """Returns the unit of a queue offset, NULL if there is none. The tables are in the order of queue and offset."""
    cdef int64_t low = 0, high = count, middle
    while low < high:  # the first table behind the unit
        middle = (low + high) // 2
        if tables[middle].queue_id < queue_id or (
            tables[middle].queue_id == queue_id and tables[middle].first <= queue_offset
        ):
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return NULL
    tables += low - 1
    if tables.queue_id != queue_id or queue_offset < tables.first or queue_offset - tables.first >= tables.count:
        return NULL
    return tables.units + 20 * (queue_offset - tables.first)


cdef int add_hit(Hits* hits, int64_t number, int64_t offset, bint confirmed) noexcept nogil:
    """Returns -1 if memory runs out."""
    cdef int64_t room
    cdef void* larger
    if hits.count == hits.room:
        room = 2 * hits.room + 1024
        larger = realloc(hits.numbers, room * sizeof(int64_t))
        if larger == NULL:
            return -1
        hits.numbers = <int64_t*>larger
        larger = realloc(hits.offsets, room * sizeof(int64_t))
        if larger == NULL:
            return -1
        hits.offsets = <int64_t*>larger
        larger = realloc(hits.confirmed, room)
        if larger == NULL:
            return -1
        hits.confirmed = <uint8_t*>larger
        hits.room = room
    hits.numbers[hits.count] = number
    hits.offsets[hits.count] = offset
    hits.confirmed[hits.count] = confirmed
    hits.count += 1
    return 0


cdef int search_file(
    const uint8_t* index, int64_t slots, int64_t items, const Wanted* wanted, int64_t count, const char* topic,
    int64_t topic_size, const Py_buffer* logs, int64_t log_count, int64_t log_base, int64_t file_size, int64_t log_end,
    int64_t begin, int64_t end, bint check_crc, const UnitTable* units, int64_t unit_count, Hits* hits,
) noexcept nogil:
    """Looks all keys up in one index file, AT_ONCE at a time so their cache misses overlap; -1 if memory runs out."""
    cdef int64_t start, stop, i, number, place, at, room, previous, line
    cdef int64_t[AT_ONCE] numbers
    cdef int64_t[AT_ONCE] lefts
    cdef const uint8_t* tails[AT_ONCE]
    cdef const uint8_t* item
    cdef const uint8_t* unit
    cdef const uint8_t* first_item = index + 40 + 4 * slots
    cdef int64_t first_time = load64(index), offset
    cdef int32_t seconds
    cdef Row row
    start = 0
    while start < count:
        stop = min(start + AT_ONCE, count)
        memset(tails, 0, sizeof(tails))
        for i in range(start, stop):
            prefetch_once(index + 40 + 4 * (wanted[i].hashed % slots))
        for i in range(start, stop):
            number = load32(index + 40 + 4 * (wanted[i].hashed % slots))
            numbers[i - start] = number if 0 < number < items else 0
            prefetch_once(first_item + 20 * numbers[i - start])
        for i in range(start, stop):
            if numbers[i - start]:
                offset = load64(first_item + 20 * numbers[i - start] + 4)
                if log_base <= offset < log_end:
                    place = (offset - log_base) // file_size
                    at = offset - log_base - place * file_size
                    if place < log_count and at + 128 < logs[place].len:
                        prefetch_once(<const uint8_t*>logs[place].buf + at)
                        prefetch_once(<const uint8_t*>logs[place].buf + at + 64)
                        tails[i - start] = <const uint8_t*>logs[place].buf + at
                        lefts[i - start] = logs[place].len - at
        for i in range(start, stop):
            if tails[i - start] != NULL:  # topic and keys are at the end of a record
                room = load32(tails[i - start])
                if 128 < room <= lefts[i - start]:
                    prefetch_once(tails[i - start] + room - 1)
                    prefetch_once(tails[i - start] + room - 65)
                    if check_crc:
                        for line in range(128, min(room - 65, 1536), 64):
                            prefetch_once(tails[i - start] + line)
                    unit = find_unit(units, unit_count, load32(tails[i - start] + 12), load64(tails[i - start] + 20))
                    if unit != NULL:
                        prefetch_once(unit)
        for i in range(start, stop):
            number = numbers[i - start]
            while 0 < number < items:
                item = first_item + 20 * number
                seconds = load32(item + 12) if number > 1 else 0
                if load32(item) == wanted[i].hashed and second_matches(first_time, seconds, begin, end):
                    offset = load64(item + 4)
                    if log_base <= offset < log_end:
                        place = (offset - log_base) // file_size
                        at = offset - log_base - place * file_size
                        if place < log_count and at < logs[place].len and examine(
                            <const uint8_t*>logs[place].buf, logs[place].len, at, log_base + place * file_size,
                            check_crc, &row,
                        ) == STOP and has_key(
                            <const uint8_t*>logs[place].buf + at, &row, topic, topic_size, wanted[i].text,
                            wanted[i].size, begin, end,
                        ):
                            unit = find_unit(units, unit_count, row.queue_id, row.queue_offset)
                            if add_hit(
                                hits, i, offset,
                                unit != NULL and load64(unit) == offset and load32(unit + 8) == row.size,
                            ) < 0:
                                return -1
                previous = load32(item + 16)
                number = previous if previous < number else 0
        start = stop
    return 0


def find_keys(
    list keys not None, bytes topic not None, list indexes not None, int64_t slots, int64_t items, list logs not None,
    int64_t log_base, int64_t file_size, int64_t log_end, begin, end, bint check_crc, list units not None,
):
    """Finds the records with many keys at once; returns (numbers of the keys, physical offsets, confirmed).

    indexes          whole index files, each with `slots` slots and `items` items
    logs             the files of the log in order, each of `file_size` bytes; the first starts at `log_base`
    log_end          physical offset up to which the log may be read
    begin, end       first and last store timestamp, in milliseconds
    check_crc        whether to check the CRC of each record's body
    units            the topic's queue files as UnitFile, in the order of queue id and offset

    A record that names a key twice is returned twice. Confirmed is a record whose own unit points to it.
    """
    cdef int64_t first = clamp_long(begin), last = clamp_long(end), count = PyList_GET_SIZE(keys), i, log_count
    cdef Py_ssize_t taken = 0, index_taken = 0, units_taken = 0
    cdef Py_buffer* unit_views = <Py_buffer*>malloc((len(units) + 1) * sizeof(Py_buffer))
    cdef UnitTable* unit_tables = <UnitTable*>malloc((len(units) + 1) * sizeof(UnitTable))
    cdef Wanted* wanted = <Wanted*>malloc((count + 1) * sizeof(Wanted))
    cdef Py_buffer* held = <Py_buffer*>malloc((len(logs) + 1) * sizeof(Py_buffer))
    cdef Py_buffer* tables = <Py_buffer*>malloc((len(indexes) + 1) * sizeof(Py_buffer))
    cdef Hits hits
    cdef const char* topic_text = PyBytes_AS_STRING(topic)
    cdef int64_t topic_size = PyBytes_GET_SIZE(topic)
    cdef uint32_t code
    cdef int failed = 0
    memset(&hits, 0, sizeof(hits))
    try:
        if wanted == NULL or held == NULL or tables == NULL or unit_views == NULL or unit_tables == NULL:
            raise MemoryError
        if file_size <= 0:
            raise ValueError("a log file has bytes")
        code = 31 * hash_on(<const uint8_t*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), 0) + 35
        for i in range(count):
            key = <object>PyList_GET_ITEM(keys, i)
            if not PyUnicode_CheckExact(key):
                raise TypeError(f"key {i} is not a str")
            wanted[i].text = PyUnicode_AsUTF8AndSize(key, &wanted[i].size)
            if wanted[i].text == NULL:
                PyErr_Clear()
                raise ValueError(f"key {i} contains a lone surrogate")
            wanted[i].hashed = without_sign(hash_on(<const uint8_t*>wanted[i].text, wanted[i].size, code))
        for table in indexes:
            PyObject_GetBuffer(table, &tables[index_taken], PyBUF_SIMPLE)
            index_taken += 1
            check_geometry(tables[index_taken - 1].len, slots, items)
        for data in logs:
            PyObject_GetBuffer(data, &held[taken], PyBUF_SIMPLE)
            taken += 1
        log_count = taken
        for queue_id, first_unit, readable, view in units:
            unit_tables[units_taken].queue_id = queue_id
            unit_tables[units_taken].first = first_unit
            PyObject_GetBuffer(view, &unit_views[units_taken], PyBUF_SIMPLE)
            unit_tables[units_taken].units = <const uint8_t*>unit_views[units_taken].buf
            unit_tables[units_taken].count = unit_views[units_taken].len // 20
            units_taken += 1
            unit_tables[units_taken - 1].count = max(0, min(<int64_t>readable // 20, unit_tables[units_taken - 1].count))
        with nogil:
            for i in range(index_taken):
                failed = search_file(
                    <const uint8_t*>tables[i].buf, slots, items, wanted, count, topic_text,
                    topic_size, held, log_count, log_base, file_size, log_end, first, last, check_crc, unit_tables,
                    units_taken, &hits,
                )
                if failed:
                    break
        if failed:
            raise MemoryError
        confirmed = np.frombuffer(PyBytes_FromStringAndSize(<char*>hits.confirmed, hits.count), np.bool_)
        return longs_from(hits.numbers, hits.count), longs_from(hits.offsets, hits.count), confirmed
    finally:
        for i in range(units_taken):
            PyBuffer_Release(&unit_views[i])
        for i in range(taken):
            PyBuffer_Release(&held[i])
        for i in range(index_taken):
            PyBuffer_Release(&tables[i])
        free(held)
        free(tables)
        free(wanted)
        free(unit_views)
        free(unit_tables)
        free(hits.offsets)
        free(hits.numbers)
        free(hits.confirmed)

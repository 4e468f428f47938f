# The index file: put, find, rewind. The reference is `_plain_index.py`.

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1


cdef extern from *:
    """
    /* Whether an item's second may hold a time in [begin, end]; wide, so that garbage cannot overflow. */
    static inline int second_matches(int64_t first, int32_t seconds, int64_t begin, int64_t end) {
        __int128 time = (__int128)first + (int64_t)seconds * 1000;
        return (seconds == 0 || time <= end) && (time + 999 >= begin || seconds == INT32_MAX);
    }
    """
    bint second_matches(int64_t first, int32_t seconds, int64_t begin, int64_t end) noexcept nogil
    void prefetch "__builtin_prefetch"(const void* there) noexcept nogil

cdef enum:
    SLOTS_AHEAD = 16  # slots lie anywhere in the file: the waits for them overlap


cdef int check_geometry(int64_t length, int64_t slots, int64_t items) except -1:
    if slots < 1 or items < 1 or slots > length or items > length or 40 + 4 * slots + 20 * items > length:
        raise ValueError(f"{slots} slots and {items} items do not fit into {length} bytes")
    return 0


cdef inline void add_slots(uint8_t* file, int change) noexcept nogil:
    """Non-empty slots: never below zero, wraps where a garbage header stands at the largest number."""
    cdef int64_t count = max(0, <int64_t>load32(file + 32) + change)
    store32(file + 32, 0 if count > MAX_INT else <int32_t>count)


cdef int64_t put_all(
    uint8_t* file, uint8_t* apart, int64_t slots, int64_t items,
    const int32_t* hashes, const int64_t* offsets, const int64_t* times, int64_t total,
) noexcept nogil:
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
    """Puts keys until the file is full; returns how many were put.

    With `apart` the new items, 20 bytes each, go there instead of into the file: the caller writes them to their place.
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
    """Collects offsets from *number on: how many, -1 without memory. *found is the caller's to free."""
    cdef int64_t count = 0, room = 0, first = load64(file), previous
    cdef int32_t seconds
    cdef const uint8_t* item
    cdef void* larger
    while 0 < number[0] < items and count < limit:
        item = file + 40 + 4 * slots + 20 * number[0]
        # The header's begin is the first item's time; its own seconds count from the end of the file before.
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
    """A time as 64 bits: one that has more lies before or after all times."""
    cdef int overflow = 0
    cdef int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        return MAX_LONG if overflow > 0 else -MAX_LONG - 1
    return number


def index_find(data, int64_t slots, int64_t items, int64_t key_hash, begin, end, int64_t item, int64_t limit):
    """Offsets of the items with this hash whose second may hold a time in [begin, end], newest first.

    `item` is where to go on (0: from the slot). Returns the offsets and where to go on, 0 at the chain's end.
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
    cdef int64_t number
    cdef int32_t key_hash, previous
    cdef uint8_t* item
    cdef uint8_t* slot
    for number in range(count - 1, new_count - 1, -1):
        item = file + 40 + 4 * slots + 20 * number
        key_hash = load32(item)
        if key_hash >= 0:
            slot = file + 40 + 4 * (key_hash % slots)
            # A slot that points below this item was never moved to it: the put was cut off before.
            if load32(slot) >= number:
                previous = load32(item + 16)
                if previous <= 0 or previous >= number:
                    previous = 0
                    add_slots(file, -1)
                store32(slot, previous)
        memset(item, 0, 20)
    store32(file + 36, <int32_t>new_count)


def index_rewind(out, int64_t slots, int64_t items, int64_t count, int64_t new_count):
    """Undoes the puts of items new_count … count - 1 and zeroes them. The end fields are the caller's."""
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

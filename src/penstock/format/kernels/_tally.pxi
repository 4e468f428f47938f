# Rows that are alike, and what they add up to. The reference is `_plain_tally.py`.

ctypedef struct Alike:
    const uint8_t* data
    const int64_t* places
    const int32_t* lengths
    const int64_t* values


cdef inline int32_t size_at(const Alike* rows, int64_t i) noexcept nogil:
    return rows.lengths[i] if rows.lengths[i] > 0 else 0


cdef inline bint are_alike(const Alike* rows, int64_t i, int64_t j) noexcept nogil:
    cdef int32_t size = size_at(rows, i)
    if rows.values[i] != rows.values[j] or size != size_at(rows, j):
        return False
    return size == 0 or memcmp(rows.data + rows.places[i], rows.data + rows.places[j], size) == 0


cdef int64_t number_rows_alike(
    const Alike* rows, int64_t count, int32_t* numbers, int64_t* firsts, int32_t* places, int64_t mask
) noexcept nogil:
    cdef int64_t i, place, known = 0
    cdef int32_t size
    cdef uint64_t hashed
    for i in range(count):
        size = size_at(rows, i)
        hashed = <uint64_t>rows.values[i] * <uint64_t>0x9E3779B97F4A7C15
        hashed ^= hashed >> 29
        if size:
            hashed ^= hash_bytes(rows.data + rows.places[i], size)
        place = <int64_t>(hashed & <uint64_t>mask)
        while places[place] and not are_alike(rows, i, firsts[places[place] - 1]):
            place = (place + 1) & mask
        if places[place] == 0:
            firsts[known] = i
            known += 1
            places[place] = <int32_t>known
        numbers[i] = places[place] - 1
    return known


def number_alike(data, places, lengths, values):
    """Numbers rows with the same text and value by first appearance, and the first row of each.

    No text counts as an empty one.
    """
    cdef _Places texts = _Places(data, places, lengths)
    cdef _Array value_array = _Array(values, _INT64)
    cdef int64_t count = texts.count, known, mask = 63
    cdef Alike rows
    if value_array.count != count:
        raise ValueError("texts and values differ in number")
    if count > MAX_INT:
        raise ValueError("too many rows")
    while mask < 2 * count:
        mask = 2 * mask + 1
    numbers = np.empty(count, np.int32)
    cdef _Array held = _Array(numbers, _INT32, True)
    cdef int64_t* firsts = <int64_t*>malloc((count + 1) * sizeof(int64_t))
    cdef int32_t* known_at = <int32_t*>calloc(mask + 1, sizeof(int32_t))
    try:
        if firsts == NULL or known_at == NULL:
            raise MemoryError
        rows.data, rows.places, rows.lengths = texts.data, texts.places, texts.lengths
        rows.values = <const int64_t*>value_array.items
        with nogil:
            known = number_rows_alike(&rows, count, <int32_t*>held.items, firsts, known_at, mask)
        return numbers, longs_from(firsts, known)
    finally:
        free(firsts)
        free(known_at)


def add_up(numbers, int64_t count, times, sizes):
    """Of the rows with each number from 0 to count - 1: how many, the sum of their sizes, their first and last time.

    Where there is none: 0, 0, the latest time there is and the earliest.
    """
    cdef _Array number_array = _Array(numbers, _INT32)
    cdef _Array time_array = _Array(times, _INT64)
    cdef _Array size_array = _Array(sizes, _INT32)
    cdef const int32_t* number = <const int32_t*>number_array.items
    cdef const int64_t* time = <const int64_t*>time_array.items
    cdef const int32_t* size = <const int32_t*>size_array.items
    cdef int64_t i, bad = -1
    if number_array.count != time_array.count or number_array.count != size_array.count:
        raise ValueError("numbers, times and sizes differ in length")
    info = np.iinfo(np.int64)
    made = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, info.max), np.full(count, info.min)
    cdef _Array rows_held = _Array(made[0], _INT64, True), total_held = _Array(made[1], _INT64, True)
    cdef _Array first_held = _Array(made[2], _INT64, True), last_held = _Array(made[3], _INT64, True)
    cdef int64_t* rows = <int64_t*>rows_held.items
    cdef int64_t* total = <int64_t*>total_held.items
    cdef int64_t* first = <int64_t*>first_held.items
    cdef int64_t* last = <int64_t*>last_held.items
    with nogil:
        for i in range(number_array.count):
            if number[i] < 0 or number[i] >= count:
                bad = i
                break
            rows[number[i]] += 1
            total[number[i]] += size[i]
            if time[i] < first[number[i]]:
                first[number[i]] = time[i]
            if time[i] > last[number[i]]:
                last[number[i]] = time[i]
    if bad >= 0:
        raise ValueError(f"row {bad} has a number that is not below {count}")
    return made

# The chains of an index file, for an audit; and counts of rows by group.
# The plain twin is plain/audit.py.

def check_chains(data, int64_t slots, int64_t items, int64_t start, int64_t stop, newest):
    """Checks the chains of items start … stop - 1; returns (items with a wrong link, items with a falling offset).

    `newest` has the newest item of each slot so far and is updated. A link is wrong if it does not point to the
    previous item of the slot. An offset falls if it is lower than that of the previous item of the file.
    """
    cdef _Bytes file = _Bytes(data)
    cdef _Array known = _Array(newest, _INT32, True)
    cdef int32_t* last = <int32_t*>known.items
    cdef int64_t number, offset, before = 0, chained = 0, ordered = 0, room
    cdef int64_t* wrong = NULL
    cdef int64_t* back = NULL
    cdef int32_t key_hash
    cdef const uint8_t* item
    check_geometry(file.size, slots, items)
    if known.count != slots:
        raise ValueError(f"{known.count} chains are not those of {slots} slots")
    if not 1 <= start <= items or stop > items:
        raise ValueError(f"a file for {items} has no items {start} to {stop}")
    room = stop - start if stop > start else 0
    wrong = <int64_t*>malloc((room + 1) * sizeof(int64_t))
    back = <int64_t*>malloc((room + 1) * sizeof(int64_t))
    try:
        if wrong == NULL or back == NULL:
            raise MemoryError
        with nogil:
            if start > 1:
                before = load64(file.p + 40 + 4 * slots + 20 * (start - 1) + 4)
            for number in range(start, stop):
                item = file.p + 40 + 4 * slots + 20 * number
                key_hash = load32(item)
                offset = load64(item + 4)
                if number > 1 and offset < before:
                    back[ordered] = number
                    ordered += 1
                before = offset
                if key_hash < 0 or load32(item + 16) != last[key_hash % slots]:
                    wrong[chained] = number
                    chained += 1
                if key_hash >= 0:
                    last[key_hash % slots] = <int32_t>number
        return longs_from(wrong, chained), longs_from(back, ordered)
    finally:
        free(wrong)
        free(back)


# -- counts by group -----------------------------------------------------------------------------------------

ctypedef struct GroupedRows:
    const uint8_t* data
    const int64_t* places
    const int32_t* lengths
    const int64_t* values


cdef inline int32_t size_at(const GroupedRows* rows, int64_t i) noexcept nogil:
    return rows.lengths[i] if rows.lengths[i] > 0 else 0


cdef inline bint is_same_group(const GroupedRows* rows, int64_t i, int64_t j) noexcept nogil:
    cdef int32_t size = size_at(rows, i)
    if rows.values[i] != rows.values[j] or size != size_at(rows, j):
        return False
    return size == 0 or memcmp(rows.data + rows.places[i], rows.data + rows.places[j], size) == 0


cdef int64_t number_into_groups(
    const GroupedRows* rows, int64_t count, int32_t* numbers, int64_t* firsts, int32_t* places, int64_t mask
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
        while places[place] and not is_same_group(rows, i, firsts[places[place] - 1]):
            place = (place + 1) & mask
        if places[place] == 0:
            firsts[known] = i
            known += 1
            places[place] = <int32_t>known
        numbers[i] = places[place] - 1
    return known


def number_groups(data, places, lengths, values):
    """Groups rows by text and value; returns (group of each row, first row of each group), by first appearance.

    A missing text counts as an empty one.
    """
    cdef _Places texts = _Places(data, places, lengths)
    cdef _Array value_array = _Array(values, _INT64)
    cdef int64_t count = texts.count, known, mask = 63
    cdef GroupedRows rows
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
            known = number_into_groups(&rows, count, <int32_t*>held.items, firsts, known_at, mask)
        return numbers, longs_from(firsts, known)
    finally:
        free(firsts)
        free(known_at)


def sum_groups(numbers, int64_t count, times, sizes):
    """Returns (rows, sum of sizes, first time, last time) of each of `count` groups.

    `numbers` has the group of each row. A group without rows has 0, 0, the largest int64 and the smallest.
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
    sums = np.zeros(count, np.int64), np.zeros(count, np.int64), np.full(count, info.max), np.full(count, info.min)
    cdef _Array rows_held = _Array(sums[0], _INT64, True), total_held = _Array(sums[1], _INT64, True)
    cdef _Array first_held = _Array(sums[2], _INT64, True), last_held = _Array(sums[3], _INT64, True)
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
    return sums

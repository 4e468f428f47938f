# What an audit compares in bulk: queue units, index items, index chains. The reference is `_plain_audit.py`.

def match_units(data, int64_t first, rows, picks, int64_t start):
    """How far picks[start:] go on as they should: queue offsets one apart, each row's unit at its place in `data`.

    `data` holds a queue's units from number `first` on. Returns the pick at which that ends.
    """
    cdef _RowBuffer held = _RowBuffer(rows, False)
    cdef _Array chosen = _Array(picks, _INT64)
    cdef _Bytes units = _Bytes(data)
    cdef const int64_t* picked = <const int64_t*>chosen.items
    cdef int64_t number, place, known = units.size // 20, last = 0
    cdef const Row* row
    cdef const uint8_t* p
    if start < 0:
        raise ValueError(f"{start} is not the number of a pick")
    for number in range(start, chosen.count):
        if picked[number] < 0 or picked[number] >= held.count:
            raise ValueError("a pick is not the number of a row")
        row = held.rows + picked[number]
        if row.queue_offset < first or (number > start and row.queue_offset != last + 1):
            return number
        place = row.queue_offset - first
        if place < 0 or place >= known:
            return number
        p = units.p + 20 * place
        if load64(p) != row.physical_offset or load32(p + 8) != row.size or load64(p + 12) != row.tags_code:
            return number
        last = row.queue_offset
    return max(start, chosen.count)


def match_items(data, int64_t slots, int64_t items, int64_t number, hashes, offsets, times):
    """How many items from `number` on are those of these keys, in this order, with the right seconds."""
    cdef _Bytes file = _Bytes(data)
    cdef _Array hash_array = _Array(hashes, _INT32)
    cdef _Array offset_array = _Array(offsets, _INT64)
    cdef _Array time_array = _Array(times, _INT64)
    cdef const int32_t* hashed = <const int32_t*>hash_array.items
    cdef const int64_t* offset = <const int64_t*>offset_array.items
    cdef const int64_t* time = <const int64_t*>time_array.items
    cdef int64_t count = hash_array.count, place = 0, begin, seconds
    cdef const uint8_t* item
    check_geometry(file.size, slots, items)
    if count != offset_array.count or count != time_array.count:
        raise ValueError("hashes, offsets and times differ in length")
    if number < 1:
        raise ValueError(f"{number} is not the number of an item")
    with nogil:
        begin = load64(file.p)
        while place < count and number < items:
            item = file.p + 40 + 4 * slots + 20 * number
            if load32(item) != hashed[place] or load64(item + 4) != offset[place]:
                break
            seconds = 0
            if begin > 0 and time[place] > begin:
                seconds = min((time[place] - begin) // 1000, MAX_INT)
            if number > 1 and load32(item + 12) != seconds:  # the first one's count from the end of the file before
                break
            place += 1
            number += 1
    return place


def check_chains(data, int64_t slots, int64_t items, int64_t start, int64_t stop, newest):
    """Follows the items start … stop - 1 as they were put; `newest`, by slot, is where the chains stand and moves on.

    Returns the numbers of the items that do not point to the one before them in their slot, and of those whose
    offset is lower than that of the item before them in the file.
    """
    cdef _Bytes file = _Bytes(data)
    cdef _Array known = _Array(newest, _INT32, True)
    cdef int32_t* last = <int32_t*>known.items
    cdef int64_t number, offset, before = 0, chained = 0, ordered = 0, room = max(0, stop - start)
    cdef int64_t* wrong = NULL
    cdef int64_t* back = NULL
    cdef int32_t key_hash
    cdef const uint8_t* item
    check_geometry(file.size, slots, items)
    if known.count != slots:
        raise ValueError(f"{known.count} chains are not those of {slots} slots")
    if start < 1 or stop > items:
        raise ValueError(f"a file for {items} has no items {start} to {stop}")
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

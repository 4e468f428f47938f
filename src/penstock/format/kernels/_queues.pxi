# Rows into queues. The reference is in `_plain_columns.py`. These keep the GIL: they take less than getting it back.

ctypedef struct Group:
    int32_t topic_id
    int32_t queue_id
    int64_t count
    int64_t* picks


cdef int64_t group_into(
    const Row* rows, int64_t count, int64_t* group_of, Group* groups, int64_t* places, int64_t mask
) noexcept nogil:
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
    cdef _RowBuffer held = _RowBuffer(rows, False)
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
        known = group_into(held.rows, count, group_of, groups, places, mask)
        for number in range(known):
            group = groups + number
            picks = np.empty(group.count, dtype=np.int64)
            PyObject_GetBuffer(picks, &target, PyBUF_WRITABLE)
            group.picks = <int64_t*>target.buf  # `made` keeps the array, and so its memory
            PyBuffer_Release(&target)
            made.append((group.topic_id, group.queue_id, picks))
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
    cdef _RowBuffer held = _RowBuffer(rows, False)
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

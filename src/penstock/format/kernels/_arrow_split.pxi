# Property strings and keys taken apart: where the pieces lie. The reference is `_plain_arrow_out.py`.

cdef struct WantedName:
    const char* name
    int64_t size            # 0: a name that no property has
    uint64_t word           # the name's first bytes and the separator behind it, as far as they go into a word,
    uint64_t mask           # and which bytes of the word these are
    int64_t* places
    int32_t* lengths


cdef void find_all(
    const uint8_t* data, const uint8_t* limit, const int64_t* places, const int32_t* lengths, int64_t count,
    WantedName* names, int name_count,
) noexcept nogil:
    cdef const uint8_t* piece
    cdef const uint8_t* end
    cdef const uint8_t* piece_end
    cdef int64_t i, size
    cdef int k
    for i in range(count):
        for k in range(name_count):
            names[k].places[i] = 0
            names[k].lengths[i] = -1
        if lengths[i] <= 0:
            continue
        piece = data + places[i]
        end = piece + lengths[i]
        while piece < end:
            piece_end = find_byte(piece, end, 2, limit)
            for k in range(name_count):
                size = names[k].size
                if not size or piece_end - piece <= size + 1:
                    continue
                if limit - piece >= 8 and (first_bytes(piece) ^ names[k].word) & names[k].mask:
                    continue
                if (size < 8 and limit - piece >= 8) or (
                    piece[size] == 1 and memcmp(piece, names[k].name, size) == 0
                ):
                    names[k].places[i] = piece - data + size + 1
                    names[k].lengths[i] = <int32_t>(piece_end - piece - size - 1)
            piece = piece_end + 1


def find_values(data, places, lengths, tuple names not None):
    """For each name the places and lengths of its values in property strings; length -1 where it has none."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef int k, name_count = len(names)
    cdef bytes name, head
    cdef _Array held
    cdef WantedName* wanted = <WantedName*>malloc((name_count + 1) * sizeof(WantedName))
    found, holds = [], []
    try:
        if wanted == NULL:
            raise MemoryError
        for k in range(name_count):
            name = names[k]
            wanted[k].size = 0 if b"\x01" in name or b"\x02" in name else len(name)
            wanted[k].name = PyBytes_AS_STRING(name)
            head = (name + b"\x01")[:8]
            wanted[k].word = first_bytes(head.ljust(8, b"\x00"))
            wanted[k].mask = first_bytes((b"\xff" * len(head)).ljust(8, b"\x00"))
            found.append((np.empty(texts.count, np.int64), np.empty(texts.count, np.int32)))
            held = _Array(found[k][0], _INT64, True)
            wanted[k].places = <int64_t*>held.items
            holds.append(held)
            held = _Array(found[k][1], _INT32, True)
            wanted[k].lengths = <int32_t*>held.items
            holds.append(held)
        with nogil:
            find_all(texts.data, texts.limit, texts.places, texts.lengths, texts.count, wanted, name_count)
    finally:
        free(wanted)
    return found


ctypedef struct Pieces:     # places and lengths that are still being found
    int64_t* places
    int32_t* lengths
    int64_t count
    int64_t room


cdef int add_text(Pieces* pieces, int64_t place, int64_t length) noexcept nogil:
    """Adds a place; -1 without memory."""
    cdef int64_t room
    cdef void* larger
    if pieces.count == pieces.room:
        room = 2 * pieces.room + 1024
        larger = realloc(pieces.places, room * sizeof(int64_t))
        if larger == NULL:
            return -1
        pieces.places = <int64_t*>larger
        larger = realloc(pieces.lengths, room * sizeof(int32_t))
        if larger == NULL:
            return -1
        pieces.lengths = <int32_t*>larger
        pieces.room = room
    pieces.places[pieces.count] = place
    pieces.lengths[pieces.count] = <int32_t>length
    pieces.count += 1
    return 0


cdef object pieces_found(Pieces* pieces):
    """Places and lengths as arrays."""
    cdef Py_buffer target
    lengths = np.empty(pieces.count, np.int32)
    if pieces.count:
        PyObject_GetBuffer(lengths, &target, PyBUF_WRITABLE)
        memcpy(target.buf, pieces.lengths, pieces.count * sizeof(int32_t))
        PyBuffer_Release(&target)
    return longs_from(pieces.places, pieces.count), lengths


cdef void free_pieces(Pieces* pieces) noexcept:
    free(pieces.places)
    free(pieces.lengths)


cdef int split_into(
    const uint8_t* data, const uint8_t* limit, const int64_t* places, const int32_t* lengths, int64_t count,
    int32_t* offsets, Pieces* pieces,
) noexcept nogil:
    cdef const uint8_t* piece
    cdef const uint8_t* end
    cdef const uint8_t* piece_end
    cdef int64_t i
    offsets[0] = 0
    for i in range(count):
        if lengths[i] > 0:
            piece = data + places[i]
            end = piece + lengths[i]
            while piece < end:
                piece_end = find_byte(piece, end, 32, limit)
                if piece_end > piece and add_text(pieces, piece - data, piece_end - piece) < 0:
                    return -1
                piece = piece_end + 1
        if pieces.count > MAX_INT:
            return -1
        offsets[i + 1] = <int32_t>pieces.count
    return 0


def split_keys(data, places, lengths):
    """The pieces between single spaces that are not empty: each text's first piece, then places and lengths."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef Pieces pieces
    cdef int failed
    memset(&pieces, 0, sizeof(pieces))
    offsets = np.empty(texts.count + 1, np.int32)
    cdef _Array held = _Array(offsets, _INT32, True)
    try:
        with nogil:
            failed = split_into(
                texts.data, texts.limit, texts.places, texts.lengths, texts.count, <int32_t*>held.items, &pieces
            )
        if failed:
            raise MemoryError
        return offsets, *pieces_found(&pieces)
    finally:
        free_pieces(&pieces)


ctypedef struct Names:      # the names that one row has so far, by place; only looked into once there are many
    int32_t* places         # open addressing: number within the row + 1, 0 where free
    int64_t mask


cdef int64_t name_place(
    const Names* known, const uint8_t* data, const Pieces* names, int64_t first, const uint8_t* name, int64_t size
) noexcept nogil:
    """The place of a name: with its number, or free."""
    cdef int64_t number, place = <int64_t>(hash_bytes(name, size) & <uint64_t>known.mask)
    while known.places[place]:
        number = first + known.places[place] - 1
        if names.lengths[number] == size and memcmp(data + names.places[number], name, size) == 0:
            break
        place = (place + 1) & known.mask
    return place


cdef int64_t find_name(
    Names* known, const uint8_t* data, const Pieces* names, int64_t first, const uint8_t* name, int64_t size
) noexcept nogil:
    """The number of the row's property that has this name, -1 if none has; then it is the next one's."""
    cdef int64_t number, place, count = names.count - first
    if count < FEW:
        for number in range(first, names.count):
            if names.lengths[number] == size and memcmp(data + names.places[number], name, size) == 0:
                return number
        return -1
    if count == FEW:
        memset(known.places, 0, (known.mask + 1) * sizeof(int32_t))
        for number in range(count):
            place = name_place(
                known, data, names, first, data + names.places[first + number], names.lengths[first + number]
            )
            known.places[place] = <int32_t>(number + 1)
    place = name_place(known, data, names, first, name, size)
    if known.places[place]:
        return first + known.places[place] - 1
    known.places[place] = <int32_t>(count + 1)
    return -1


cdef int split_row(
    const uint8_t* data, const uint8_t* limit, const uint8_t* piece, const uint8_t* end, Names* known, Pieces* names,
    Pieces* values,
) noexcept nogil:
    """Adds the properties of one text; -1 without memory."""
    cdef const uint8_t* piece_end
    cdef const uint8_t* name_end
    cdef int64_t number, first = names.count
    while piece < end:
        piece_end = find_byte(piece, end, 2, limit)
        name_end = find_byte(piece, piece_end, 1, limit)
        if name_end > piece and name_end + 1 < piece_end:
            number = find_name(known, data, names, first, piece, name_end - piece)
            if number >= 0:
                values.places[number] = name_end + 1 - data
                values.lengths[number] = <int32_t>(piece_end - name_end - 1)
            elif (
                add_text(names, piece - data, name_end - piece) < 0
                or add_text(values, name_end + 1 - data, piece_end - name_end - 1) < 0
            ):
                return -1
        piece = piece_end + 1
    return 0


cdef int split_pairs(
    const uint8_t* data, const uint8_t* limit, const int64_t* places, const int32_t* lengths, int64_t count,
    int32_t* offsets, Names* known, Pieces* names, Pieces* values,
) noexcept nogil:
    cdef int64_t i
    offsets[0] = 0
    for i in range(count):
        if lengths[i] > 0:
            known.mask = mask_for(lengths[i])
            if split_row(data, limit, data + places[i], data + places[i] + lengths[i], known, names, values) < 0:
                return -1
        if names.count > MAX_INT:
            return -1
        offsets[i + 1] = <int32_t>names.count
    return 0


cdef int64_t mask_for(int64_t length) noexcept nogil:
    """For a table that stays half empty: a property takes at least 4 bytes."""
    cdef int64_t mask = 31
    while mask < (length + 1) // 2:
        mask = 2 * mask + 1
    return mask


def split_properties(data, places, lengths):
    """All properties, each name once with its last value, where the name first stood.

    The number of each text's first property, then places and lengths of the names, then those of the values.
    """
    cdef _Places texts = _Places(data, places, lengths)
    cdef Pieces names, values
    cdef Names known
    cdef int64_t i, longest = 0
    cdef int failed
    memset(&names, 0, sizeof(names))
    memset(&values, 0, sizeof(values))
    offsets = np.empty(texts.count + 1, np.int32)
    cdef _Array held = _Array(offsets, _INT32, True)
    for i in range(texts.count):
        longest = max(longest, texts.lengths[i])
    known.places = <int32_t*>malloc((mask_for(longest) + 1) * sizeof(int32_t))
    try:
        if known.places == NULL:
            raise MemoryError
        with nogil:
            failed = split_pairs(
                texts.data, texts.limit, texts.places, texts.lengths, texts.count, <int32_t*>held.items,
                &known, &names, &values,
            )
        if failed:
            raise MemoryError
        return offsets, *pieces_found(&names), *pieces_found(&values)
    finally:
        free(known.places)
        free_pieces(&names)
        free_pieces(&values)

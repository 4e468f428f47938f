# Records into Arrow columns: rows, and texts found, split and gathered. The plain twin is plain/arrow_out.py.

# -- rows ----------------------------------------------------------------------------------------------------

cdef extern from "arpa/inet.h" nogil:
    int AF_INET6
    const char* inet_ntop(int family, const void* source, char* target, uint32_t size)

cdef extern from *:
    """
    /* Two upper-case hex digits for each byte. */
    static uint8_t hex_pairs[256][2];
    static void hex_prepare(void) {
        for (int n = 0; n < 256; n++) {
            hex_pairs[n][0] = (uint8_t)"0123456789ABCDEF"[n >> 4];
            hex_pairs[n][1] = (uint8_t)"0123456789ABCDEF"[n & 15];
        }
    }
    static inline void write_hex(uint8_t *p, const uint8_t *bytes, int64_t size) {
        for (int64_t i = 0; i < size; i++) memcpy(p + 2 * i, hex_pairs[bytes[i]], 2);
    }
    """
    void hex_prepare() noexcept nogil
    void write_hex(uint8_t* p, const uint8_t* bytes, int64_t size) noexcept nogil

hex_prepare()


cdef class _Places:
    """Places and lengths of texts in the data, checked; a length below 0 is a missing text. Owns the buffers."""

    cdef _Bytes data_held
    cdef _Array places_held
    cdef _Array lengths_held
    cdef const uint8_t* data
    cdef const uint8_t* limit
    cdef const int64_t* places
    cdef const int32_t* lengths
    cdef int64_t count
    cdef int64_t total

    def __cinit__(self, data, places, lengths):
        cdef int64_t i, bad = -1
        self.data_held = _Bytes(data)
        self.places_held = _Array(places, _INT64)
        self.lengths_held = _Array(lengths, _INT32)
        self.data = self.data_held.p
        self.limit = self.data + self.data_held.size
        self.places = <const int64_t*>self.places_held.items
        self.lengths = <const int32_t*>self.lengths_held.items
        self.count = self.places_held.count
        if self.lengths_held.count != self.count:
            raise ValueError("places and lengths differ in number")
        with nogil:
            for i in range(self.count):
                if self.lengths[i] < 0:
                    continue
                if self.places[i] < 0 or self.places[i] > self.data_held.size - self.lengths[i]:
                    bad = i
                    break
                self.total += self.lengths[i]
        if bad >= 0:
            raise ValueError(f"text {bad} is outside the data")

    cdef int require_hosts(self) except -1:
        """Raises ValueError unless every text has the length of a host."""
        cdef int64_t i
        for i in range(self.count):
            if self.lengths[i] != 8 and self.lengths[i] != 20:
                raise ValueError("a host takes 8 bytes (IPv4) or 20 (IPv6)")
        return 0


cdef enum:
    AHEAD = 6        # how many units ahead to prefetch
    FETCHED = 1536   # how many bytes of each record


cdef int64_t read_units(
    const uint8_t* data, int64_t base, int64_t stop, const int64_t* offsets, const int32_t* sizes,
    const int64_t* queue_offsets, int64_t count, const char* topic, int64_t topic_size, int32_t queue_id,
    bint check_crc, uint8_t* out, Row* rows, int32_t* reasons,
) noexcept nogil:
    cdef int64_t i, line, found = 0
    cdef int reason
    cdef const uint8_t* there
    cdef Row* row
    for i in range(count):
        if i + AHEAD < count and base <= offsets[i + AHEAD] < base + stop:
            # The records of a queue are scattered over the log, so the hardware does not prefetch them.
            there = data + (offsets[i + AHEAD] - base)
            line = 0
            while line < min(sizes[i + AHEAD], FETCHED):
                prefetch_once(there + line)
                line += 64
            prefetch_once(there + sizes[i + AHEAD] - 1)  # the last line, which the steps may not reach
        reasons[i] = UNWRITTEN
        if not base <= offsets[i] < base + stop or sizes[i] < 1 or sizes[i] > base + stop - offsets[i]:
            continue
        memcpy(out, data + (offsets[i] - base), sizes[i])
        row = rows + found
        reason = examine(out, sizes[i], 0, offsets[i], check_crc, row)
        if reason == STOP:
            if row.size != sizes[i]:
                reason = BAD_SIZE
            elif (
                row.queue_offset != queue_offsets[i] or row.queue_id != queue_id or row.topic_length != topic_size
                or memcmp(out + row.topic_at, topic, topic_size) != 0
            ):
                reason = BAD_POSITION
            else:
                found += 1
                out += sizes[i]
        reasons[i] = reason
    return found


def unit_rows(
    data, int64_t base, int64_t stop, offsets, sizes, queue_offsets, bytes topic not None, int32_t queue_id,
    bint check_crc, out,
):
    """Reads the records of queue units; returns (rows of the valid ones, Reason of each unit: STOP if it has a row).

    A record is valid if it ends at or before the position `stop`, passes every check of `walk`, has the unit's size,
    and is the message of this topic, queue and queue offset. Copies the records end to end into `out`, which must have
    room for all, and checks the copies.
    """
    cdef _Bytes source = _Bytes(data), target = _Bytes(out, True)
    cdef _Array places = _Array(offsets, _INT64), lengths = _Array(sizes, _INT32)
    cdef _Array numbers = _Array(queue_offsets, _INT64)
    cdef const char* name = PyBytes_AS_STRING(topic)
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(topic)
    cdef int64_t i, found, room = 0
    if lengths.count != places.count or numbers.count != places.count:
        raise ValueError("offsets, sizes and queue offsets differ in number")
    stop = max(0, min(stop, source.size))
    if base < 0 or base > MAX_LONG - stop:
        raise ValueError(f"{base} is not the offset of a file")
    for i in range(lengths.count):
        room += max(0, (<const int32_t*>lengths.items)[i])
    if room > target.size:
        raise ValueError(f"{room} bytes of records do not fit into {target.size}")
    rows = np.empty(places.count, _ROW)
    reasons = np.empty(places.count, np.int32)
    cdef _Array row_array = _Array(rows, _ROW, True), reason_array = _Array(reasons, _INT32, True)
    with nogil:
        found = read_units(
            source.p, base, stop, <const int64_t*>places.items, <const int32_t*>lengths.items,
            <const int64_t*>numbers.items, places.count, name, name_size, queue_id, check_crc,
            target.p, <Row*>row_array.items, <int32_t*>reason_array.items,
        )
    return rows[:found], reasons


def fill_rows(data, int64_t base, int64_t start, int64_t stop, bint check_crc, room):
    """As `walk` without topics, into the array `room`; returns (number of rows, position after them, Reason)."""
    cdef _Bytes source = _Bytes(data)
    cdef _Array rows = _Array(room, _ROW, True)
    cdef int64_t at = start, count = 0
    cdef int reason
    if start < 0:
        raise ValueError(f"{start} is not a position")
    stop = min(stop, source.size)
    with nogil:
        reason = walk_into(
            source.p, source.size, base, &at, stop, check_crc, NULL, <Row*>rows.items, rows.count, &count
        )
    return count, at, reason


def loose_rows(data, int64_t start, bint check_crc, room):
    """As `fill_rows`, for records outside of their log: does not check their physical offsets."""
    cdef _Bytes source = _Bytes(data)
    cdef _Array rows = _Array(room, _ROW, True)
    cdef Row* row = <Row*>rows.items
    cdef int64_t at = start, count = 0, base
    cdef int reason = STOP
    if start < 0:
        raise ValueError(f"{start} is not a position")
    with nogil:
        while at < source.size:
            if count >= rows.count:
                reason = FULL
                break
            base = max(0, load64(source.p + at + 28)) - at if source.size - at >= 91 else 0
            reason = examine(source.p, source.size, at, base, check_crc, row + count)
            if reason != STOP:
                break
            at += row[count].size
            count += 1
    return count, at, reason


cdef struct Field:
    int64_t offset
    int64_t* longs      # this or ints is NULL
    int32_t* ints


cdef void split_fields(
    const uint8_t* row, int64_t row_size, int64_t count, Field* fields, int field_count
) noexcept nogil:
    cdef int64_t i
    cdef int k
    for i in range(count):
        for k in range(field_count):
            if fields[k].ints != NULL:
                fields[k].ints[i] = (<const int32_t*>(row + fields[k].offset))[0]
            else:
                fields[k].longs[i] = (<const int64_t*>(row + fields[k].offset))[0]
        row += row_size


def row_fields(rows, tuple names not None):
    """Returns the named fields of all rows, each as a contiguous array."""
    cdef _Array held = _Array(rows, _ROW)
    cdef _Array column
    cdef int k, count = len(names)
    cdef Field* fields = <Field*>calloc(count + 1, sizeof(Field))
    found, buffers = [], []
    try:
        if fields == NULL:
            raise MemoryError
        for k in range(count):
            dtype, fields[k].offset = _ROW.fields[names[k]][:2]
            found.append(np.empty(held.count, dtype))
            column = _Array(found[k], dtype, True)
            buffers.append(column)
            if dtype == _INT32:
                fields[k].ints = <int32_t*>column.items
            else:
                fields[k].longs = <int64_t*>column.items
        with nogil:
            split_fields(<const uint8_t*>held.items, sizeof(Row), held.count, fields, count)
    finally:
        free(fields)
    return found


# -- texts and hosts -----------------------------------------------------------------------------------------

cdef void gather_into(
    uint8_t* out, int64_t room, const uint8_t* data, int64_t size, const int64_t* places, const int32_t* lengths,
    int64_t count,
) noexcept nogil:
    cdef int64_t i, at = 0
    for i in range(count):
        if lengths[i] > 0:
            copy_text(out + at, data + places[i], lengths[i], min(room - at, size - places[i]))
            at += lengths[i]


def gather(data, places, lengths, out):
    """Copies the texts end to end into `out`, which they must fill exactly."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef _Bytes target = _Bytes(out, True)
    if texts.total != target.size:
        raise ValueError(f"{texts.total} bytes do not fill {target.size}")
    with nogil:
        gather_into(target.p, target.size, texts.data, texts.data_held.size, texts.places, texts.lengths, texts.count)


cdef struct Text:
    const char* bytes
    int64_t size


cdef void compare_texts(
    const uint8_t* data, const int64_t* places, const int32_t* lengths, int64_t count, const Text* texts,
    int text_count, uint8_t* same,
) noexcept nogil:
    cdef int64_t i
    cdef int k
    for i in range(count):
        same[i] = 0
        for k in range(text_count):
            if lengths[i] == texts[k].size and memcmp(data + places[i], texts[k].bytes, texts[k].size) == 0:
                same[i] = 1
                break


def is_one_of(data, places, lengths, tuple texts not None):
    """Returns whether each text in the data is one of `texts`. A missing text is none of them."""
    cdef _Places found = _Places(data, places, lengths)
    cdef int k, text_count = len(texts)
    cdef bytes text
    cdef Text* wanted = <Text*>malloc((text_count + 1) * sizeof(Text))
    same = np.empty(found.count, np.bool_)
    cdef _Array held = _Array(same, same.dtype, True)
    try:
        if wanted == NULL:
            raise MemoryError
        for k in range(text_count):
            text = texts[k]
            wanted[k].bytes = PyBytes_AS_STRING(text)
            wanted[k].size = PyBytes_GET_SIZE(text)
        with nogil:
            compare_texts(
                found.data, found.places, found.lengths, found.count, wanted, text_count, <uint8_t*>held.items
            )
    finally:
        free(wanted)
    return same


cdef inline bint follows(uint8_t byte) noexcept nogil:
    """Whether a byte continues a character of UTF-8."""
    return byte & 0xC0 == 0x80


cdef bint is_utf8(const uint8_t* p, int64_t size) noexcept nogil:
    """Whether bytes are UTF-8: no overlong form, no surrogate, nothing above U+10FFFF."""
    cdef int64_t i = 0, left
    cdef uint8_t head
    while i < size:
        left = size - i
        if left >= 8 and not first_bytes(p + i) & 0x8080808080808080u:
            i += 8
            continue
        head = p[i]
        if head < 0x80:
            i += 1
        elif head < 0xC2:
            return False
        elif head < 0xE0:
            if left < 2 or not follows(p[i + 1]):
                return False
            i += 2
        elif head < 0xF0:
            if left < 3 or not follows(p[i + 1]) or not follows(p[i + 2]):
                return False
            if (head == 0xE0 and p[i + 1] < 0xA0) or (head == 0xED and p[i + 1] >= 0xA0):
                return False
            i += 3
        elif head < 0xF5:
            if left < 4 or not follows(p[i + 1]) or not follows(p[i + 2]) or not follows(p[i + 3]):
                return False
            if (head == 0xF0 and p[i + 1] < 0x90) or (head == 0xF4 and p[i + 1] >= 0x90):
                return False
            i += 4
        else:
            return False
    return True


def are_utf8(data, places, lengths):
    """Returns whether each text in the data is UTF-8. A missing text is not."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef int64_t i
    valid = np.empty(texts.count, np.bool_)
    cdef _Array held = _Array(valid, valid.dtype, True)
    cdef uint8_t* answers = <uint8_t*>held.items
    with nogil:
        for i in range(texts.count):
            answers[i] = texts.lengths[i] >= 0 and is_utf8(texts.data + texts.places[i], texts.lengths[i])
    return valid


cdef inline bint is_same_host(
    const uint8_t* data, const int64_t* places, const int32_t* lengths, int64_t i
) noexcept nogil:
    """Whether a host equals the previous one, as most do."""
    if i == 0 or lengths[i] != lengths[i - 1]:
        return False
    if lengths[i] == 8:
        return load64(data + places[i]) == load64(data + places[i - 1])
    return memcmp(data + places[i], data + places[i - 1], lengths[i]) == 0


cdef void write_ids(
    uint8_t* out, const uint8_t* data, const int64_t* places, const int32_t* lengths, const int64_t* numbers,
    int64_t count,
) noexcept nogil:
    cdef int64_t i
    cdef uint8_t[8] offset
    for i in range(count):
        if is_same_host(data, places, lengths, i):
            if lengths[i] == 8:
                memcpy(out, out - 32, 16)
            else:
                memcpy(out, out - 56, 40)
        else:
            write_hex(out, data + places[i], lengths[i])
        out += 2 * lengths[i]
        store64(offset, numbers[i])
        write_hex(out, offset, 8)
        out += 16


def message_ids(data, places, lengths, physical_offsets, out):
    """Writes the offset message ids of records end to end into `out`: store host and physical offset in hex."""
    cdef _Places hosts = _Places(data, places, lengths)
    cdef _Array numbers = _Array(physical_offsets, _INT64)
    cdef _Bytes target = _Bytes(out, True)
    hosts.require_hosts()
    if numbers.count != hosts.count:
        raise ValueError("hosts and offsets differ in number")
    if 2 * hosts.total + 16 * hosts.count != target.size:
        raise ValueError(f"{2 * hosts.total + 16 * hosts.count} bytes do not fill {target.size}")
    with nogil:
        write_ids(target.p, hosts.data, hosts.places, hosts.lengths, <const int64_t*>numbers.items, hosts.count)


cdef int write_host(uint8_t* p, const uint8_t* host, int32_t size) noexcept nogil:
    """Writes `ip:port`, an IPv6 address in brackets; returns the number of bytes, at most 26 (IPv4) or 58 (IPv6)."""
    cdef int i, length = 0
    if size == 8:
        for i in range(4):
            if i:
                p[length] = 46
                length += 1
            length += write_number(p + length, host[i])
    else:
        p[0] = 91
        length = 1
        if inet_ntop(AF_INET6, host, <char*>p + 1, 46) != NULL:
            while p[length]:
                length += 1
        p[length] = 93
        length += 1
    p[length] = 58
    return length + 1 + write_number(p + length + 1, <uint32_t>load32(host + size - 4))


cdef void write_hosts(
    uint8_t* out, int64_t room, const uint8_t* data, const int64_t* places, const int32_t* lengths, int64_t count,
    int32_t* offsets,
) noexcept nogil:
    cdef int64_t i, at = 0
    cdef int size = 0
    cdef uint8_t[64] text
    offsets[0] = 0
    for i in range(count):
        if not is_same_host(data, places, lengths, i):
            size = write_host(text, data + places[i], lengths[i])
        copy_text(out + at, text, size, room - at)
        at += size
        offsets[i + 1] = <int32_t>at


def host_texts(data, places, lengths, out):
    """Writes hosts as `ip:port` end to end into `out`; returns the offset of each, and the end.

    `out` must have 26 bytes for each IPv4 host and 58 for each IPv6 host.
    """
    cdef _Places hosts = _Places(data, places, lengths)
    cdef _Bytes target = _Bytes(out, True)
    cdef int64_t wide
    hosts.require_hosts()
    wide = (hosts.total - 8 * hosts.count) // 12
    if 26 * (hosts.count - wide) + 58 * wide > min(target.size, MAX_INT):
        raise ValueError("there is not enough room for the texts of the hosts")
    offsets = np.empty(hosts.count + 1, np.int32)
    cdef _Array held = _Array(offsets, _INT32, True)
    with nogil:
        write_hosts(
            target.p, target.size, hosts.data, hosts.places, hosts.lengths, hosts.count, <int32_t*>held.items
        )
    return offsets


# -- properties and keys -------------------------------------------------------------------------------------

cdef struct WantedName:
    const char* name
    int64_t size            # 0 for a name that no property can have
    uint64_t word           # the first 8 bytes of name and separator,
    uint64_t mask           # and which bytes of the word are used
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
    """Returns (places, lengths) of the values of each name in property strings; the length is -1 if it has none."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef int k, name_count = len(names)
    cdef bytes name, head
    cdef _Array held
    cdef WantedName* wanted = <WantedName*>malloc((name_count + 1) * sizeof(WantedName))
    found, buffers = [], []
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
            buffers.append(held)
            held = _Array(found[k][1], _INT32, True)
            wanted[k].lengths = <int32_t*>held.items
            buffers.append(held)
        with nogil:
            find_all(texts.data, texts.limit, texts.places, texts.lengths, texts.count, wanted, name_count)
    finally:
        free(wanted)
    return found


ctypedef struct Pieces:     # growing lists of places and lengths
    int64_t* places
    int32_t* lengths
    int64_t count
    int64_t room


cdef int add_text(Pieces* pieces, int64_t place, int64_t length) noexcept nogil:
    """Adds a place and a length; returns -1 if memory runs out."""
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
    """Returns places and lengths as arrays."""
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
    """Splits texts at spaces; returns (number of each text's first word and the end, places, lengths of the words)."""
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


ctypedef struct Names:      # hash table of the names of one row; used if the row has many
    int32_t* places         # open addressing: number within the row + 1, 0 if free
    int64_t mask


cdef int64_t name_place(
    const Names* known, const uint8_t* data, const Pieces* names, int64_t first, const uint8_t* name, int64_t size
) noexcept nogil:
    """Returns the place of a name in the table, or the free place for it."""
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
    """Returns the number of the row's property with this name, or -1; the caller then adds it as the next property."""
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
    """Adds the properties of one text; returns -1 if memory runs out."""
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
    cdef const uint8_t* end
    offsets[0] = 0
    for i in range(count):
        if lengths[i] > 0:
            known.mask = mask_for(lengths[i])
            end = data + places[i] + lengths[i]
            if ends_with_record_crc(data + places[i], lengths[i]):
                end -= RECORD_CRC_SIZE
            if split_row(data, limit, data + places[i], end, known, names, values) < 0:
                return -1
        if names.count > MAX_INT:
            return -1
        offsets[i + 1] = <int32_t>names.count
    return 0


cdef int64_t mask_for(int64_t length) noexcept nogil:
    """Returns the mask of a table that stays half empty: a property takes at least 4 bytes."""
    cdef int64_t mask = 31
    while mask < (length + 1) // 2:
        mask = 2 * mask + 1
    return mask


def split_properties(data, places, lengths):
    """Splits property strings; each name comes once, in the order of first appearance, with its last value.

    Leaves out the CRC of the record. Returns (number of each text's first property and the end, places and lengths of
    the names, places and lengths of the values).
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

# From records to columns. The reference is `_plain_arrow_out.py`.

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
    """Where texts lie in the data: checked, and held for as long as this object lives. A length below 0: no text."""

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
            raise ValueError(f"text {bad} does not lie in the data")

    cdef int demand_hosts(self) except -1:
        cdef int64_t i
        for i in range(self.count):
            if self.lengths[i] != 8 and self.lengths[i] != 20:
                raise ValueError("a host takes 8 bytes (IPv4) or 20 (IPv6)")
        return 0


cdef enum:
    AHEAD = 6  # units
    FETCHED = 1536  # bytes of each record


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
            # Records of one queue lie far from each other, where the processor does not look ahead by itself.
            there = data + (offsets[i + AHEAD] - base)
            line = 0
            while line < min(sizes[i + AHEAD], FETCHED):
                fetch(there + line)
                line += 64
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
    """The rows of the records that queue units point to, and for each unit STOP or the reason why it has no row.

    A record is taken if it ends at or before `stop`, passes every check of a walk, has the unit's size, and is the
    message of this topic, queue and queue offset. The records are copied one after the other into `out`, which has
    room for all, and checked there.
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
    cdef _Array made = _Array(rows, _ROW, True), judged = _Array(reasons, _INT32, True)
    with nogil:
        found = read_units(
            source.p, base, stop, <const int64_t*>places.items, <const int32_t*>lengths.items,
            <const int64_t*>numbers.items, places.count, name, name_size, queue_id, check_crc,
            target.p, <Row*>made.items, <int32_t*>judged.items,
        )
    return rows[:found], reasons


def fill_rows(data, int64_t base, int64_t start, int64_t stop, bint check_crc, room):
    """As walk, without topics, into the array `room`: how many rows it took, the position after them, and why."""
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
    """As fill_rows, of records that were taken out of their log: each may say that it lies anywhere."""
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
    int64_t* longs      # one of the two is NULL
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
    """Fields of all rows, each as an array of its own."""
    cdef _Array held = _Array(rows, _ROW)
    cdef _Array made
    cdef int k, count = len(names)
    cdef Field* fields = <Field*>calloc(count + 1, sizeof(Field))
    found, holds = [], []
    try:
        if fields == NULL:
            raise MemoryError
        for k in range(count):
            dtype, fields[k].offset = _ROW.fields[names[k]][:2]
            found.append(np.empty(held.count, dtype))
            made = _Array(found[k], dtype, True)
            holds.append(made)
            if dtype == _INT32:
                fields[k].ints = <int32_t*>made.items
            else:
                fields[k].longs = <int64_t*>made.items
        with nogil:
            split_fields(<const uint8_t*>held.items, sizeof(Row), held.count, fields, count)
    finally:
        free(fields)
    return found


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
    """Copies the texts one after the other into `out`, which they fill exactly."""
    cdef _Places texts = _Places(data, places, lengths)
    cdef _Bytes target = _Bytes(out, True)
    if texts.total != target.size:
        raise ValueError(f"{texts.total} bytes do not fill {target.size}")
    with nogil:
        gather_into(target.p, target.size, texts.data, texts.data_held.size, texts.places, texts.lengths, texts.count)


cdef inline bint is_same_host(
    const uint8_t* data, const int64_t* places, const int32_t* lengths, int64_t i
) noexcept nogil:
    """Whether a host is the one before, as most are."""
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
    """Writes the offset ids of records one after the other into `out`: store host and offset in hex."""
    cdef _Places hosts = _Places(data, places, lengths)
    cdef _Array numbers = _Array(physical_offsets, _INT64)
    cdef _Bytes target = _Bytes(out, True)
    hosts.demand_hosts()
    if numbers.count != hosts.count:
        raise ValueError("hosts and offsets differ in number")
    if 2 * hosts.total + 16 * hosts.count != target.size:
        raise ValueError(f"{2 * hosts.total + 16 * hosts.count} bytes do not fill {target.size}")
    with nogil:
        write_ids(target.p, hosts.data, hosts.places, hosts.lengths, <const int64_t*>numbers.items, hosts.count)


cdef int write_host(uint8_t* p, const uint8_t* host, int32_t size) noexcept nogil:
    """`ip:port`, an IPv6 address in brackets; returns how many bytes it takes, at most 26 or 58."""
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
    """Writes hosts as `ip:port` one after the other into `out`, and returns where each begins, and the end.

    `out` must have room for 26 bytes for each IPv4 host, and for 58 for each IPv6 one.
    """
    cdef _Places hosts = _Places(data, places, lengths)
    cdef _Bytes target = _Bytes(out, True)
    cdef int64_t wide
    hosts.demand_hosts()
    wide = (hosts.total - 8 * hosts.count) // 12
    if 26 * (hosts.count - wide) + 58 * wide > min(target.size, MAX_INT):
        raise ValueError("there is not enough room for the hosts' texts")
    offsets = np.empty(hosts.count + 1, np.int32)
    cdef _Array held = _Array(offsets, _INT32, True)
    with nogil:
        write_hosts(
            target.p, target.size, hosts.data, hosts.places, hosts.lengths, hosts.count, <int32_t*>held.items
        )
    return offsets

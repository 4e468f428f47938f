# The headers of requests that RequestPath serves, JSON and binary, scanned in place; and property texts.
# C functions only, so there is no plain twin. The bytes are a stranger's: each length is compared with its buffer before
# use.

cdef extern from *:
    """
    typedef struct { const char *name; uint8_t size, kind, is_required; } FieldDef;

    enum { TEXT_FIELD, INT_FIELD, LONG_FIELD, BOOL_FIELD, MAX_FIELDS = 16 };
    #define FIELD(name, kind, is_required) {name, sizeof name - 1, kind, is_required}

    enum { PRODUCER, SENT_TOPIC, DEFAULT_TOPIC, DEFAULT_QUEUES, SENT_QUEUE, SENT_SYS_FLAG, BORN, SENT_FLAG, PROPERTIES,
           RECONSUMED, UNIT_MODE, MAX_RECONSUMED, IS_BATCH, SENT_BROKER, SEND_FIELDS };
    #define SENDS(a, b, c, d, e, f, g, h, i, j, k, l, m, n) { \\
        FIELD(a, TEXT_FIELD, 1), FIELD(b, TEXT_FIELD, 1), FIELD(c, TEXT_FIELD, 1), FIELD(d, INT_FIELD, 1), \\
        FIELD(e, INT_FIELD, 1), FIELD(f, INT_FIELD, 1), FIELD(g, LONG_FIELD, 1), FIELD(h, INT_FIELD, 1), \\
        FIELD(i, TEXT_FIELD, 0), FIELD(j, INT_FIELD, 0), FIELD(k, BOOL_FIELD, 0), FIELD(l, INT_FIELD, 0), \\
        FIELD(m, BOOL_FIELD, 0), FIELD(n, TEXT_FIELD, 0)}
    static const FieldDef SEND_V1[] = SENDS("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums",
        "queueId", "sysFlag", "bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes",
        "batch", "brokerName");
    static const FieldDef SEND_V2[] = SENDS("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n");

    /* The first three fields of pulls, commits and queries are the same. */
    enum { GROUP, TOPIC, QUEUE };
    #define PLACE FIELD("consumerGroup", TEXT_FIELD, 1), FIELD("topic", TEXT_FIELD, 1), FIELD("queueId", INT_FIELD, 1)
    enum { PULL_OFFSET = 3, MAX_COUNT, PULL_SYS_FLAG, PULL_COMMIT, SUSPEND_MS, SUB_VERSION, SUBSCRIPTION,
           EXPRESSION_TYPE, MAX_MSG_BYTES, REQUEST_SOURCE, PULL_FIELDS };
    static const FieldDef PULL[] = {PLACE, FIELD("queueOffset", LONG_FIELD, 1), FIELD("maxMsgNums", INT_FIELD, 1),
        FIELD("sysFlag", INT_FIELD, 1), FIELD("commitOffset", LONG_FIELD, 1),
        FIELD("suspendTimeoutMillis", LONG_FIELD, 1), FIELD("subVersion", LONG_FIELD, 1),
        FIELD("subscription", TEXT_FIELD, 0), FIELD("expressionType", TEXT_FIELD, 0),
        FIELD("maxMsgBytes", INT_FIELD, 0), FIELD("requestSource", INT_FIELD, 0)};
    enum { COMMIT_OFFSET = 3, COMMIT_FIELDS };
    static const FieldDef COMMIT[] = {PLACE, FIELD("commitOffset", LONG_FIELD, 1)};
    enum { ZERO_IF_NOT_FOUND = 3, QUERY_FIELDS };
    static const FieldDef QUERY[] = {PLACE, FIELD("setZeroIfNotFound", BOOL_FIELD, 0)};
    """
    ctypedef struct FieldDef:
        const char* name
        uint8_t size
        uint8_t kind
        uint8_t is_required
    int TEXT_FIELD, INT_FIELD, LONG_FIELD, BOOL_FIELD
    enum: MAX_FIELDS
    int PRODUCER, SENT_TOPIC, DEFAULT_TOPIC, SENT_BROKER, SENT_QUEUE, SENT_SYS_FLAG, BORN, SENT_FLAG, PROPERTIES, RECONSUMED, IS_BATCH, SEND_FIELDS
    int GROUP, TOPIC, QUEUE, PULL_OFFSET, MAX_COUNT, PULL_SYS_FLAG, PULL_COMMIT, SUB_VERSION, SUBSCRIPTION
    int EXPRESSION_TYPE, PULL_FIELDS, COMMIT_OFFSET, COMMIT_FIELDS, QUERY_FIELDS
    const FieldDef* SEND_V1
    const FieldDef* SEND_V2
    const FieldDef* PULL
    const FieldDef* COMMIT
    const FieldDef* QUERY

cdef enum:
    FRAME_PREFIX = 8
    BINARY_KIND = 1 << 24
    HEADER_LENGTH = BINARY_KIND - 1
    BINARY_FIXED = 17  # the fixed part of a binary header, up to and including the length of the remark
    ONE_WAY_FLAG = 2
    QUERY_CODE = 14
    COMMIT_CODE = 15


cdef struct RequestHeader:
    int32_t code
    int32_t opaque
    bint is_one_way
    bint is_binary
    uint32_t seen                        # a bit for each field of the request
    int64_t[MAX_FIELDS] numbers          # the values of numbers and booleans
    const uint8_t* texts[MAX_FIELDS]     # the values of texts, in the frame
    int64_t[MAX_FIELDS] sizes
    bint[MAX_FIELDS] is_escaped
    bint[MAX_FIELDS] is_ascii


cdef const FieldDef* fields_of(int64_t code, int* count) noexcept nogil:
    """Returns the fields of a request that the kernel serves; NULL for any other code."""
    count[0] = SEND_FIELDS
    if code == 310 or code == 320:
        return SEND_V2
    if code == 10:
        return SEND_V1
    if code == 11 or code == 361:
        count[0] = PULL_FIELDS
        return PULL
    if code == COMMIT_CODE:
        count[0] = COMMIT_FIELDS
        return COMMIT
    if code == QUERY_CODE:
        count[0] = QUERY_FIELDS
        return QUERY
    return NULL


# -- JSON headers --------------------------------------------------------------------------------------------
# These functions return where the value ends, or NULL for anything that they do not know: then the frame is left to the
# general path, which says what is wrong with it if anything is.

cdef inline const uint8_t* skip_space(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and (p[0] == 32 or p[0] == 10 or p[0] == 13 or p[0] == 9):
        p += 1
    return p


cdef const uint8_t* scan_string(
    const uint8_t* p, const uint8_t* end, int64_t* size, bint* is_escaped, bint* is_ascii
) noexcept nogil:
    """Scans the rest of a string whose opening quote lies before `p`. Returns the place behind its closing quote."""
    cdef const uint8_t* start = p
    cdef uint8_t high = 0
    is_escaped[0] = False
    while p < end:
        if p[0] == 34:
            size[0] = p - start
            is_ascii[0] = high < 128
            return p + 1
        if p[0] < 32:
            return NULL
        if p[0] == 92:
            is_escaped[0] = True
            p += 1
            if p == end:
                return NULL
        high |= p[0]
        p += 1
    return NULL


cdef const uint8_t* scan_plain_string(const uint8_t* p, const uint8_t* end, int64_t* size) noexcept nogil:
    """Scans the rest of a string of ASCII without escapes."""
    cdef bint is_escaped = False, is_ascii = False
    p = scan_string(p, end, size, &is_escaped, &is_ascii)
    return p if p != NULL and is_ascii and not is_escaped else NULL


cdef const uint8_t* scan_number(const uint8_t* p, const uint8_t* end, int64_t* value) noexcept nogil:
    """Scans a whole number of 64 bits as JSON writes it: no plus sign, no leading zeros, not -0."""
    cdef bint is_negative = False
    cdef uint64_t number = 0
    cdef const uint8_t* start
    if p < end and p[0] == 45:
        is_negative = True
        p += 1
    start = p
    while p < end and 48 <= p[0] <= 57:
        if p - start == 19:  # 19 digits fit into an unsigned number of 64 bits
            return NULL
        number = number * 10 + (p[0] - 48)
        p += 1
    if p == start or (start[0] == 48 and (p - start > 1 or is_negative)):
        return NULL
    if number > <uint64_t>MAX_LONG:
        return NULL
    value[0] = -<int64_t>number if is_negative else <int64_t>number
    return p


cdef inline bint is_int(int64_t number) noexcept nogil:
    return number == <int32_t>number


cdef const uint8_t* scan_word(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Scans true, false or null."""
    if end - p >= 4 and (not memcmp(p, "true", 4) or not memcmp(p, "null", 4)):
        return p + 4
    if end - p >= 5 and not memcmp(p, "false", 5):
        return p + 5
    return NULL


cdef const uint8_t* skip_value(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Skips a value that does not matter: a plain string, a whole number, true, false or null."""
    cdef int64_t ignored = 0
    if p == end:
        return NULL
    if p[0] == 34:
        return scan_plain_string(p + 1, end, &ignored)
    if p[0] == 45 or 48 <= p[0] <= 57:
        return scan_number(p, end, &ignored)
    return scan_word(p, end)


cdef bint read_field(RequestHeader* header, const FieldDef* field, int i, const uint8_t* text, int64_t size) noexcept nogil:
    """Reads a number or a boolean from its text; returns False if the text is anything else."""
    cdef int64_t number = 0
    if field.kind == BOOL_FIELD:
        if size == 4 and not memcmp(text, "true", 4):
            number = 1
        elif size != 5 or memcmp(text, "false", 5):
            return False
    elif scan_number(text, text + size, &number) != text + size or (field.kind == INT_FIELD and not is_int(number)):
        return False
    header.numbers[i] = number
    return True


cdef int find_field(const FieldDef* fields, int count, const uint8_t* name, int64_t size) noexcept nogil:
    cdef int i
    if size == 1 and fields == SEND_V2:
        i = name[0] - 97
        return i if 0 <= i < count else -1
    for i in range(count):
        if fields[i].size == size and not memcmp(fields[i].name, name, size):
            return i
    return -1


cdef const uint8_t* scan_fields(
    RequestHeader* header, const FieldDef* fields, int count, const uint8_t* p, const uint8_t* end
) noexcept nogil:
    """Scans the object `extFields`, from behind its opening brace. Returns the place behind its closing one."""
    cdef const uint8_t* name
    cdef const uint8_t* value
    cdef int64_t size = 0
    cdef int i
    p = skip_space(p, end)
    if p < end and p[0] == 125:
        return p + 1
    while p < end and p[0] == 34:
        name = p + 1
        p = scan_plain_string(name, end, &size)
        if p == NULL:
            return NULL
        i = find_field(fields, count, name, size)
        p = skip_space(p, end)
        if p == end or p[0] != 58:
            return NULL
        p = skip_space(p + 1, end)
        if p == end:
            return NULL
        if i < 0:
            p = skip_value(p, end)
        elif header.seen >> i & 1:
            return NULL
        else:
            header.seen |= <uint32_t>1 << i
            value = p
            if p[0] == 34:
                value = p + 1
                p = scan_string(value, end, &header.sizes[i], &header.is_escaped[i], &header.is_ascii[i])
                if p == NULL:
                    return NULL
                header.texts[i] = value
                if fields[i].kind != TEXT_FIELD and not read_field(header, &fields[i], i, value, header.sizes[i]):
                    return NULL
            elif fields[i].kind == TEXT_FIELD:
                return NULL
            else:
                p = skip_value(p, end)
                if p == NULL or not read_field(header, &fields[i], i, value, p - value):
                    return NULL
        if p == NULL:
            return NULL
        p = skip_space(p, end)
        if p < end and p[0] == 125:
            return p + 1
        if p == end or p[0] != 44:
            return NULL
        p = skip_space(p + 1, end)
    return NULL


cdef bint parse_json(RequestHeader* header, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Reads the header of a request that the kernel serves; returns False for any other one."""
    cdef const FieldDef* fields = NULL
    cdef const uint8_t* name
    cdef int64_t size = 0, number = 0
    cdef int count = 0
    cdef bint has_fields = False
    cdef uint32_t seen = 0, bit
    p = skip_space(p, end)
    if p == end or p[0] != 123:
        return False
    p = skip_space(p + 1, end)
    while p < end and p[0] == 34:
        name = p + 1
        p = scan_plain_string(name, end, &size)
        if p == NULL:
            return False
        p = skip_space(p, end)
        if p == end or p[0] != 58:
            return False
        p = skip_space(p + 1, end)
        bit = 0
        if size == 4 and not memcmp(name, "code", 4):
            bit = 1
        elif size == 6 and not memcmp(name, "opaque", 6):
            bit = 2
        elif size == 4 and not memcmp(name, "flag", 4):
            bit = 4
        elif size == 7 and not memcmp(name, "version", 7):
            bit = 8
        if seen & bit:
            return False
        seen |= bit
        if bit:
            p = scan_number(p, end, &number)
            if p == NULL or not is_int(number):
                return False
            if bit == 1:
                fields = fields_of(number, &count)
                if fields == NULL:
                    return False
                header.code = <int32_t>number
            elif bit == 2:
                header.opaque = <int32_t>number
            elif bit == 4:
                if number != 0 and number != ONE_WAY_FLAG:
                    return False
                header.is_one_way = number == ONE_WAY_FLAG
        elif size == 9 and not memcmp(name, "extFields", 9):
            if has_fields or fields == NULL or p == end or p[0] != 123:
                return False
            has_fields = True
            p = scan_fields(header, fields, count, p + 1, end)
        elif (size == 8 and not memcmp(name, "language", 8)) or (size == 6 and not memcmp(name, "remark", 6)):
            if p == end or (p[0] != 34 and p[0] != 110):  # a plain string or null
                return False
            p = skip_value(p, end)
        else:
            p = skip_value(p, end)
        if p == NULL:
            return False
        p = skip_space(p, end)
        if p < end and p[0] == 125:
            return skip_space(p + 1, end) == end and has_fields and has_required(header, fields, count)
        if p == end or p[0] != 44:
            return False
        p = skip_space(p + 1, end)
    return False


cdef bint has_required(const RequestHeader* header, const FieldDef* fields, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        if fields[i].is_required and not header.seen >> i & 1:
            return False
    return True


# -- binary headers ------------------------------------------------------------------------------------------

cdef bint is_ascii_text(const uint8_t* text, int64_t size) noexcept nogil:
    cdef int64_t i
    cdef uint8_t high = 0
    for i in range(size):
        high |= text[i]
    return high < 128


cdef bint parse_binary(RequestHeader* header, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Like parse_json, for a binary header. A header with a remark, or with a name that is not ASCII, is left."""
    cdef const FieldDef* fields
    cdef const uint8_t* name
    cdef int64_t name_size, size
    cdef int count = 0, i
    cdef int32_t flag
    if end - p < BINARY_FIXED + 4 or load32(p + 13) != 0 or load32(p + BINARY_FIXED) != end - p - BINARY_FIXED - 4:
        return False
    fields = fields_of(load16(p), &count)
    flag = load32(p + 9)
    if fields == NULL or (flag != 0 and flag != ONE_WAY_FLAG):
        return False
    header.code = load16(p)
    header.opaque = load32(p + 5)
    header.is_one_way = flag == ONE_WAY_FLAG
    header.is_binary = True
    p += BINARY_FIXED + 4
    while p < end:
        if end - p < 2:
            return False
        name_size = p[0] << 8 | p[1]
        name = p + 2
        if end - name < name_size + 4:
            return False
        size = load32(name + name_size)
        p = name + name_size + 4
        if size < 0 or size > end - p:
            return False
        if size and name_size:
            if not is_ascii_text(name, name_size):
                return False
            i = find_field(fields, count, name, name_size)
            if i < 0:
                if not is_ascii_text(p, size):
                    return False
            else:
                if header.seen >> i & 1:
                    return False
                header.seen |= <uint32_t>1 << i
                header.texts[i] = p
                header.sizes[i] = size
                header.is_escaped[i] = False
                header.is_ascii[i] = is_ascii_text(p, size)
                if fields[i].kind != TEXT_FIELD and not read_field(header, &fields[i], i, p, size):
                    return False
        p += size
    return has_required(header, fields, count)


# -- properties ----------------------------------------------------------------------------------------------

cdef int hex_value(uint8_t digit) noexcept nogil:
    if 48 <= digit <= 57:
        return digit - 48
    digit |= 32
    return digit - 87 if 97 <= digit <= 102 else -1


cdef int64_t unescape(const uint8_t* text, int64_t size, uint8_t* out) noexcept nogil:
    """Writes a JSON string without its escapes; returns its length, at most `size`, or -1 for an unknown escape.

    A surrogate is unknown, so what follows an escape is valid UTF-8 if the rest of the string is.
    """
    cdef const uint8_t* end = text + size
    cdef uint8_t* p = out
    cdef int code, i, digit
    while text < end:
        if text[0] != 92:
            p[0] = text[0]
            p += 1
            text += 1
            continue
        text += 1
        if text == end:
            return -1
        code = text[0]
        text += 1
        if code == 117:
            if end - text < 4:
                return -1
            code = 0
            for i in range(4):
                digit = hex_value(text[i])
                if digit < 0:
                    return -1
                code = code << 4 | digit
            text += 4
            if 0xD800 <= code <= 0xDFFF:
                return -1
            if code >= 0x800:
                p[0] = <uint8_t>(0xE0 | code >> 12)
                p[1] = <uint8_t>(0x80 | (code >> 6 & 0x3F))
                p += 2
                code = 0x80 | (code & 0x3F)
            elif code >= 0x80:
                p[0] = <uint8_t>(0xC0 | code >> 6)
                p += 1
                code = 0x80 | (code & 0x3F)
        elif code == 110:
            code = 10
        elif code == 116:
            code = 9
        elif code == 114:
            code = 13
        elif code == 98:
            code = 8
        elif code == 102:
            code = 12
        elif code != 34 and code != 92 and code != 47:
            return -1
        p[0] = <uint8_t>code
        p += 1
    return p - out


cdef inline bint ends_with(const uint8_t* text, int64_t size, const char* wanted, int64_t wanted_size) noexcept nogil:
    return size >= wanted_size and not memcmp(text + size - wanted_size, wanted, wanted_size)


cdef int64_t plain_properties(
    uint8_t* text, int64_t size, const char* suffix, int64_t suffix_size
) noexcept nogil:
    """Turns the property text of a send into the one to store, in place; `broker.send.plain_text` says how.

    Returns its length, or -1 if the message is not ordinary. There must be room for one separator and the suffix.
    """
    cdef const uint8_t* found
    cdef int64_t at = 0, waits = 0
    while at < size:
        found = <const uint8_t*>memchr(text + at, 1, size - at)
        if found == NULL:
            break
        at = found - text
        if ends_with(text, at, "DELAY", 5) or ends_with(text, at, "TRAN_MSG", 8) or ends_with(text, at, "CLUSTER", 7):
            return -1
        waits += ends_with(text, at, "WAIT", 4)
        at += 1
    if size and text[size - 1] != 2:
        text[size] = 2
        size += 1
    if waits:
        found = <const uint8_t*>memmem(text, size, b"WAIT\x01true\x02", 10)
        if waits > 1 or found == NULL or (found > text and (found - 1)[0] != 2):
            return -1
        at = found - text
        memmove(text + at, text + at + 10, size - at - 10)
        size -= 10
    memcpy(text + size, suffix, suffix_size)
    size += suffix_size
    if memmem(text, size, b"__CRC32#", 8) != NULL or has_zeros(<const char*>text, size):
        return -1
    return size


cdef int64_t check_batch(const uint8_t* item, int64_t left) noexcept nogil:
    """Returns how many messages the body of a batch has; 0 if it is not an ordinary one."""
    cdef int64_t count = 0, size, body_size, properties_size
    if memmem(item, left, b"DELAY\x01", 6) != NULL or memmem(item, left, b"TRAN_MSG\x01", 9) != NULL:
        return 0
    while left > 0:
        if left < 22:
            return 0
        size, body_size = load32(item), load32(item + 16)
        if body_size < 0 or size > left or size < 22 + body_size:
            return 0
        properties_size = load16(item + 20 + body_size)
        if properties_size < 0 or 22 + body_size + properties_size != size:
            return 0
        if not is_utf8(item + 22 + body_size, properties_size):
            return 0
        item += size
        left -= size
        count += 1
    return count


cdef inline bint is_plain(const RequestHeader* header, int i) noexcept nogil:
    """Whether a text has neither escapes nor characters beyond ASCII."""
    return header.is_ascii[i] and not header.is_escaped[i]


cdef inline bint field_is(const RequestHeader* header, int i, const char* text, int64_t size) noexcept nogil:
    return header.sizes[i] == size and not memcmp(header.texts[i], text, size)


cdef inline str text_at(const RequestHeader* header, int i):
    return PyUnicode_DecodeUTF8(<const char*>header.texts[i], header.sizes[i], NULL)

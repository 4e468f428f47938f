# The request path: what one read of a socket brought, taken apart, served and answered in one step.
# The plain twin is plain/requests.py. It takes no frame; the reference is the broker's general path, which also serves
# every frame that this one leaves. The bytes are a stranger's: each length is compared with its buffer before use.

cdef enum:
    OWN_SUBSCRIPTION = 4  # a bit of a pull's sysFlag
    SCRATCH_BYTES = 65536
    REPLY_ROOM = 4096  # more than a reply takes beside its constant parts and its records
    MAX_CONSTANT = 16384
    MAX_ITEMS = 10000  # messages of a batch


# -- replies -------------------------------------------------------------------------------------------------

cdef inline uint8_t* add_number(uint8_t* p, int64_t number) noexcept nogil:
    return p + write_number(p, number)


cdef inline uint8_t* add_hex(uint8_t* p, int64_t number) noexcept nogil:
    """Writes 16 hex digits; returns the place behind them."""
    cdef uint8_t[8] big_endian
    store64(big_endian, number)
    write_hex(p, big_endian, 8)
    return p + 16


cdef inline uint8_t* add_bytes(uint8_t* p, bytes text) noexcept:
    memcpy(p, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))
    return p + PyBytes_GET_SIZE(text)


cdef inline uint8_t* begin_field(uint8_t* p, const char* name, int16_t size) noexcept nogil:
    """Writes the name of a field of a binary header; the value's length and the value follow."""
    store16(p, size)
    memcpy(p + 2, name, size)
    return p + 2 + size


cdef inline uint8_t* add_number_field(uint8_t* p, const char* name, int16_t size, int64_t number) noexcept nogil:
    cdef uint8_t* value = begin_field(p, name, size) + 4
    p = add_number(value, number)
    store32(value - 4, <int32_t>(p - value))
    return p


# -- the request path ----------------------------------------------------------------------------------------

cdef class RequestPath:
    """Serves ordinary requests straight from the bytes of a connection. The GIL is the lock, and is never released here.

    Each frame is served as a whole or left untouched. A send is ordinary if its topic is in `topics`, its message is
    ordinary for the appender, and it asks for nothing but to be stored. A pull is ordinary if it wants all messages, or
    those of its group's subscription, and `calls` finds some; an offset if `calls` commits or finds it.

    appender      appends the messages of sends
    topics        topics that take ordinary sends, each with its number of queues
    held          queues, as (topic, queue id), for which pulls wait
    calls         what is done in Python:
                      on_stored(topic, queue id), after a send to a queue in `held`
                      count_sent(topic, messages, bytes)
                      pull(client, group, topic, queue id, offset, count, sysFlag, commitOffset, subVersion), which
                      returns a page with data, next_begin_offset, min_offset and max_offset, or None
                      commit(client, group, topic, queue id, offset), which returns whether it did
                      query(group, topic, queue id), which returns the offset, or a negative number
    frame_bytes   the largest frame
    header_bytes  the largest header
    reply_bytes   `serve` returns when the replies have reached about this size
    """

    cdef Appender appender
    cdef dict topics, held
    cdef object on_stored, count_sent, find_page, commit_offset, query_offset
    cdef int64_t frame_bytes, header_bytes, reply_bytes
    cdef bytes suffix, message_host, binary_head, binary_tail
    cdef tuple send_pieces, pull_pieces, query_pieces, commit_pieces
    cdef object client
    cdef bint takes_sends, is_busy
    cdef const char* born_host
    cdef Py_ssize_t born_host_size
    cdef list done             # frames of replies, before those in `replies`
    cdef int64_t done_size
    cdef uint8_t* replies
    cdef int64_t replies_size, replies_room
    cdef uint8_t* scratch
    cdef str topic             # of the last send
    cdef int64_t sent_count, sent_bytes  # to `topic`, not counted yet

    def __cinit__(self):
        self.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        if self.scratch == NULL:
            raise MemoryError

    def __init__(
        self, Appender appender not None, dict topics not None, dict held not None, calls, int64_t frame_bytes,
        int64_t header_bytes, int64_t reply_bytes,
    ):
        self.appender = appender
        self.topics = topics
        self.held = held
        self.on_stored = calls.on_stored
        self.count_sent = calls.count_sent
        self.find_page = calls.pull
        self.commit_offset = calls.commit
        self.query_offset = calls.query
        self.frame_bytes = frame_bytes
        self.header_bytes = header_bytes
        self.reply_bytes = reply_bytes
        self.suffix = self.message_host = self.binary_head = self.binary_tail = b""
        self.send_pieces = (b"",) * 5
        self.pull_pieces = (b"",) * 5
        self.query_pieces = (b"",) * 3
        self.commit_pieces = (b"",) * 2

    def __dealloc__(self):
        free(self.scratch)
        free(self.replies)

    def answer_sends(
        self, bytes suffix not None, bytes message_host not None, tuple pieces not None, bytes binary_head not None,
        bytes binary_tail not None,
    ):
        """Sets what sends are stored and answered with.

        suffix        the last property of each message
        message_host  the start of each message id
        pieces        the JSON header of a reply around its message id, queue id, queue offset and opaque
        binary_head   the binary header of every reply up to its opaque
        binary_tail   the constant fields of a binary reply
        """
        check_pieces((suffix, message_host, *pieces, binary_head, binary_tail), 9)
        self.suffix, self.message_host, self.send_pieces = suffix, message_host, pieces
        self.binary_head, self.binary_tail = binary_head, binary_tail

    def answer_pulls(self, tuple pieces not None):
        """Sets the JSON header of a reply to a pull around its next, lowest and highest offset and its opaque."""
        check_pieces(pieces, 5)
        self.pull_pieces = pieces

    def answer_offsets(self, tuple query not None, tuple commit not None):
        """Sets the JSON headers of replies: to a query around offset and opaque, to a commit around its opaque."""
        check_pieces(query, 3)
        check_pieces(commit, 2)
        self.query_pieces, self.commit_pieces = query, commit

    def serve(self, client, bytes data not None, int64_t at, bytes born_host not None, bint takes_sends):
        """Serves the frames of `data` from `at` on, up to the first one that it leaves, or that is not complete.

        client       passed to `calls`
        born_host    the client's host in its 8 or 20 bytes
        takes_sends  whether sends are served at all

        Returns (at, stop, replies): the place of the first frame that was not served; where that frame ends if it must
        be served in another way, else `at`; and the frames of the replies, in pieces. With about `reply_bytes` of
        replies it returns early.
        """
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef int64_t end = PyBytes_GET_SIZE(data), total, length, stop, left = at
        cdef uint32_t kind
        if at < 0 or at > end:
            raise ValueError(f"{at} is outside {end} bytes")
        if self.is_busy or (PyBytes_GET_SIZE(born_host) != 8 and PyBytes_GET_SIZE(born_host) != 20):
            return at, at, []
        self.is_busy = True
        self.client = client
        self.takes_sends = takes_sends
        self.born_host = PyBytes_AS_STRING(born_host)
        self.born_host_size = PyBytes_GET_SIZE(born_host)
        self.replies_size = self.done_size = 0
        done = self.done = []
        try:
            while end - at >= FRAME_PREFIX and self.done_size + self.replies_size < self.reply_bytes:
                total = <uint32_t>load32(start + at)
                kind = <uint32_t>load32(start + at + 4)
                length = kind & HEADER_LENGTH
                stop = at + 4 + total
                if (
                    total > self.frame_bytes - 4 or at + FRAME_PREFIX + length > stop or length > self.header_bytes
                    or kind > (BINARY_KIND | HEADER_LENGTH) or stop > end
                ):
                    break
                if not self.take(
                    start + at + FRAME_PREFIX, length, start + at + FRAME_PREFIX + length,
                    total - 4 - length, kind >= BINARY_KIND,
                ):
                    left = stop
                    break
                at = stop
            self.finish_replies()
            return at, max(left, at), done
        finally:
            self.is_busy = False
            self.client = self.done = None
            if self.sent_count:
                self.count()
                self.appender.notify()

    cdef bint take(
        self, const uint8_t* head, int64_t head_size, const uint8_t* body, int64_t body_size, bint is_binary
    ) except -1:
        """Serves one request; returns False if it is left untouched."""
        cdef RequestHeader header
        header.seen = 0
        header.opaque = 0
        header.is_one_way = header.is_binary = False
        if is_binary:
            if not parse_binary(&header, head, head + head_size):
                return False
        elif not parse_json(&header, head, head + head_size):
            return False
        self.make_room(0)
        if header.code == 11 or header.code == 361:
            return body_size == 0 and self.pull(&header)
        if header.code == COMMIT_CODE:
            return body_size == 0 and self.commit(&header)
        if header.code == QUERY_CODE:
            return body_size == 0 and self.query(&header)
        return self.takes_sends and self.send(&header, body, body_size)

    # -- sends -----------------------------------------------------------------------------------------------

    cdef bint send(self, RequestHeader* header, const uint8_t* body, int64_t body_size) except -1:
        cdef Ordinary ordinary
        cdef Piece piece
        cdef Placed placed
        cdef PyObject* queues
        cdef int64_t size, queue_id = header.numbers[SENT_QUEUE], physical, end = 0, count = 1
        cdef bint is_batch = header.seen >> IS_BATCH & 1 and header.numbers[IS_BATCH]
        if not (is_plain(header, PRODUCER) and is_plain(header, SENT_TOPIC) and is_plain(header, DEFAULT_TOPIC)):
            return False
        if header.seen >> SENT_BROKER & 1 and not is_plain(header, SENT_BROKER):
            return False
        topic = self.topic_of(header.texts[SENT_TOPIC], header.sizes[SENT_TOPIC])
        queues = PyDict_GetItem(self.topics, topic)
        if queues is NULL or queue_id < 0 or queue_id >= PyLong_AsLongLong(<object>queues):
            return False
        size = self.properties_of(header)
        if size < 0:
            return False
        if is_batch:  # its own properties must be none, or wait=true: then nothing but the suffix is left
            if size != PyBytes_GET_SIZE(self.suffix) or body_size > self.appender.max_body_bytes:
                return False
            count = check_batch(body, body_size)
            if not 0 < count <= MAX_ITEMS:
                return False
        piece.text = <const char*>self.scratch
        piece.size = size
        ordinary.pieces = &piece
        ordinary.count = 1
        ordinary.properties_size = size
        ordinary.body = <const char*>body
        ordinary.body_size = body_size
        ordinary.born_host = self.born_host
        ordinary.born_host_size = self.born_host_size
        ordinary.queue_id = queue_id
        ordinary.flag = header.numbers[SENT_FLAG]
        ordinary.sys_flag = header.numbers[SENT_SYS_FLAG]
        ordinary.born = header.numbers[BORN]
        ordinary.reconsume_times = header.numbers[RECONSUMED] if header.seen >> RECONSUMED & 1 else 0
        ordinary.prepared_offset = 0
        queue = queue_id
        if is_batch:
            self.make_room(count * (PyBytes_GET_SIZE(self.message_host) + 17))
            physical = self.appender.append_batch(
                &ordinary, body, count, self.suffix, self.scratch, topic, queue, &placed, &end
            )
        else:
            physical = self.appender.append_one(&ordinary, topic, queue, &placed)
            end = physical + placed.size
        if physical < 0:
            return False
        self.sent_count += count
        self.sent_bytes += end - physical
        if not header.is_one_way:
            self.reply_sent(header, physical, count, queue_id, placed.queue_offset)
        if PyDict_Size(self.held) and (topic, queue) in self.held:
            self.on_stored(topic, queue)
        return True

    cdef str topic_of(self, const uint8_t* text, int64_t size):
        """Returns the topic of a send, and counts what was sent to the one before it."""
        cdef Py_ssize_t known_size = 0
        cdef const char* known
        if self.topic is not None:
            known = PyUnicode_AsUTF8AndSize(self.topic, &known_size)
            if known_size == size and not memcmp(known, text, size):
                return self.topic
            self.count()
        self.topic = PyUnicode_DecodeUTF8(<const char*>text, size, NULL)
        return self.topic

    cdef int count(self) except -1:
        """Counts what was sent to the current topic."""
        cdef int64_t count = self.sent_count, size = self.sent_bytes
        if count:
            self.sent_count = self.sent_bytes = 0
            self.count_sent(self.topic, count, size)
        return 0

    cdef int64_t properties_of(self, RequestHeader* header) noexcept:
        """Writes the property text to store into the scratch; returns its length, or -1 if it is not ordinary."""
        cdef int64_t size = 0
        if header.seen >> PROPERTIES & 1:
            size = header.sizes[PROPERTIES]
            if size > SCRATCH_BYTES - MAX_CONSTANT - 1:
                return -1
            if not header.is_ascii[PROPERTIES] and not is_utf8(header.texts[PROPERTIES], size):
                return -1
            if header.is_escaped[PROPERTIES]:
                size = unescape(header.texts[PROPERTIES], size, self.scratch)
                if size < 0:
                    return -1
            else:
                memcpy(self.scratch, header.texts[PROPERTIES], size)
        return plain_properties(self.scratch, size, PyBytes_AS_STRING(self.suffix), PyBytes_GET_SIZE(self.suffix))

    # -- pulls and offsets -----------------------------------------------------------------------------------

    cdef bint pull(self, const RequestHeader* header) except -1:
        cdef int64_t flags = header.numbers[PULL_SYS_FLAG], i
        if header.is_one_way or not (is_plain(header, GROUP) and is_plain(header, TOPIC)):
            return False
        for i in (SUBSCRIPTION, EXPRESSION_TYPE):
            if header.seen >> i & 1 and not is_plain(header, i):
                return False
        if flags & OWN_SUBSCRIPTION:
            if not (header.seen >> SUBSCRIPTION & 1 and field_is(header, SUBSCRIPTION, "*", 1)):
                return False
            if header.seen >> EXPRESSION_TYPE & 1 and header.sizes[EXPRESSION_TYPE]:
                if not field_is(header, EXPRESSION_TYPE, "TAG", 3):
                    return False
        page = self.find_page(
            self.client, text_at(header, GROUP), text_at(header, TOPIC), header.numbers[QUEUE],
            header.numbers[PULL_OFFSET], header.numbers[MAX_COUNT], flags, header.numbers[PULL_COMMIT],
            header.numbers[SUB_VERSION],
        )
        if page is None:
            return False
        self.reply_found(
            header, page.data, page.next_begin_offset, page.min_offset, page.max_offset
        )
        return True

    cdef int reply_found(
        self, const RequestHeader* header, bytes data, int64_t next_offset, int64_t lowest, int64_t highest
    ) except -1:
        cdef uint8_t* start = self.replies + self.replies_size
        cdef uint8_t* p
        cdef uint8_t* fields
        cdef int64_t size = PyBytes_GET_SIZE(data)
        if header.is_binary:
            p = self.begin_binary(start, header.opaque, "FOUND", 5)
            fields = p
            p = add_number_field(p, "suggestWhichBrokerId", 20, 0)
            p = add_number_field(p, "nextBeginOffset", 15, next_offset)
            p = add_number_field(p, "minOffset", 9, lowest)
            p = add_number_field(p, "maxOffset", 9, highest)
            store32(fields - 4, <int32_t>(p - fields))
        else:
            p = add_number(add_bytes(start + FRAME_PREFIX, <bytes>self.pull_pieces[0]), next_offset)
            p = add_number(add_bytes(p, <bytes>self.pull_pieces[1]), lowest)
            p = add_number(add_bytes(p, <bytes>self.pull_pieces[2]), highest)
            p = add_number(add_bytes(p, <bytes>self.pull_pieces[3]), header.opaque)
            p = add_bytes(p, <bytes>self.pull_pieces[4])
        self.add_frame(start, p, header.is_binary, size)
        self.finish_replies()
        self.done.append(data)
        self.done_size += size
        return 0

    cdef bint commit(self, const RequestHeader* header) except -1:
        cdef uint8_t* start = self.replies + self.replies_size
        cdef uint8_t* p
        if not (is_plain(header, GROUP) and is_plain(header, TOPIC)):
            return False
        if not self.commit_offset(
            self.client, text_at(header, GROUP), text_at(header, TOPIC), header.numbers[QUEUE],
            header.numbers[COMMIT_OFFSET],
        ):
            return False
        if header.is_one_way:
            return True
        if header.is_binary:
            p = self.begin_binary(start, header.opaque, NULL, 0)
            store32(p - 4, 0)
        else:
            p = add_number(add_bytes(start + FRAME_PREFIX, <bytes>self.commit_pieces[0]), header.opaque)
            p = add_bytes(p, <bytes>self.commit_pieces[1])
        self.add_frame(start, p, header.is_binary, 0)
        return True

    cdef bint query(self, const RequestHeader* header) except -1:
        cdef uint8_t* start = self.replies + self.replies_size
        cdef uint8_t* p
        cdef uint8_t* fields
        cdef int64_t offset
        if header.is_one_way or not (is_plain(header, GROUP) and is_plain(header, TOPIC)):
            return False
        offset = self.query_offset(text_at(header, GROUP), text_at(header, TOPIC), header.numbers[QUEUE])
        if offset < 0:
            return False
        if header.is_binary:
            p = self.begin_binary(start, header.opaque, NULL, 0)
            fields = p
            p = add_number_field(p, "offset", 6, offset)
            store32(fields - 4, <int32_t>(p - fields))
        else:
            p = add_number(add_bytes(start + FRAME_PREFIX, <bytes>self.query_pieces[0]), offset)
            p = add_number(add_bytes(p, <bytes>self.query_pieces[1]), header.opaque)
            p = add_bytes(p, <bytes>self.query_pieces[2])
        self.add_frame(start, p, header.is_binary, 0)
        return True

    # -- replies ---------------------------------------------------------------------------------------------

    cdef int make_room(self, int64_t more) except -1:
        """Makes room for one more reply, with `more` bytes than most."""
        cdef int64_t needed = self.replies_size + MAX_CONSTANT + REPLY_ROOM + more
        cdef uint8_t* replies
        if needed > self.replies_room:
            needed = max(needed, 2 * self.replies_room)
            replies = <uint8_t*>realloc(self.replies, needed)
            if replies == NULL:
                raise MemoryError
            self.replies = replies
            self.replies_room = needed
        return 0

    cdef int finish_replies(self) except -1:
        """Moves the laid-out replies to the finished ones."""
        if self.replies_size:
            self.done.append(PyBytes_FromStringAndSize(<char*>self.replies, self.replies_size))
            self.done_size += self.replies_size
            self.replies_size = 0
        return 0

    cdef void add_frame(self, uint8_t* start, uint8_t* end, bint is_binary, int64_t body_size) noexcept:
        """Adds the frame whose header was laid out from `start`, behind the prefix, to `end`."""
        store32(start, <int32_t>(end - start - 4 + body_size))
        store32(start + 4, <int32_t>(end - start - FRAME_PREFIX) | (BINARY_KIND if is_binary else 0))
        self.replies_size += end - start

    cdef uint8_t* begin_binary(self, uint8_t* start, int32_t opaque, const char* remark, int32_t size) noexcept:
        """Lays out a binary header up to its fields, whose length is to be stored just before them."""
        cdef uint8_t* p = add_bytes(start + FRAME_PREFIX, self.binary_head)
        store32(p, opaque)
        store32(p + 4, 1)  # a response
        store32(p + 8, size)
        if size:
            memcpy(p + 12, remark, size)
        return p + 16 + size

    cdef uint8_t* add_ids(self, uint8_t* p, int64_t physical, int64_t count) noexcept:
        """Writes the ids of messages that were just appended, joined by commas."""
        while True:
            p = add_hex(add_bytes(p, self.message_host), physical)
            count -= 1
            if not count:
                return p
            p[0] = 44
            p += 1
            physical += load32(<const uint8_t*>self.appender.target.buf + physical - self.appender.from_offset)

    cdef void reply_sent(
        self, const RequestHeader* header, int64_t physical, int64_t count, int64_t queue_id, int64_t queue_offset
    ) noexcept:
        """Lays out the reply to a send of `count` messages, whose records follow each other in the log."""
        cdef uint8_t* start = self.replies + self.replies_size
        cdef uint8_t* p
        cdef uint8_t* fields
        if header.is_binary:
            fields = self.begin_binary(start, header.opaque, NULL, 0)
            p = begin_field(fields, "msgId", 5)
            store32(p, <int32_t>(count * (PyBytes_GET_SIZE(self.message_host) + 17) - 1))
            p = self.add_ids(p + 4, physical, count)
            p = add_number_field(p, "queueId", 7, queue_id)
            p = add_number_field(p, "queueOffset", 11, queue_offset)
            p = add_bytes(p, self.binary_tail)
            store32(fields - 4, <int32_t>(p - fields))
        else:
            p = add_bytes(start + FRAME_PREFIX, <bytes>self.send_pieces[0])
            p = self.add_ids(p, physical, count)
            p = add_number(add_bytes(p, <bytes>self.send_pieces[1]), queue_id)
            p = add_number(add_bytes(p, <bytes>self.send_pieces[2]), queue_offset)
            p = add_number(add_bytes(p, <bytes>self.send_pieces[3]), header.opaque)
            p = add_bytes(p, <bytes>self.send_pieces[4])
        self.add_frame(start, p, header.is_binary, 0)


cdef int check_pieces(tuple pieces, Py_ssize_t count) except -1:
    """Raises ValueError if the constant parts of a reply are not as many bytes as there is room for."""
    if len(pieces) != count or not all([PyBytes_CheckExact(piece) for piece in pieces]):
        raise ValueError(f"a reply has {count} constant parts of bytes")
    if sum([len(piece) for piece in pieces]) > MAX_CONSTANT:
        raise ValueError(f"the constant parts of a reply take more than {MAX_CONSTANT} bytes")
    return 0

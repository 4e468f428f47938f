# The request path: what one read of a socket brought, taken apart, served and answered in one step.
# The plain twin is plain/requests.py. It takes no frame; the reference is the broker's general path, which also serves
# every frame that this one leaves. The bytes are a stranger's: each length is compared with its buffer before use.

cdef enum:
    COMMITS_OFFSET = 1  # bits of a pull's sysFlag
    OWN_SUBSCRIPTION = 4
    SLOW_NS = 1000000  # a pull that takes longer is counted by itself
    SCRATCH_BYTES = 65536
    REPLY_ROOM = 4096  # more than a reply takes beside its constant parts and its records
    MAX_CONSTANT = 16384
    MAX_ITEMS = 10000  # messages of a batch
    WAITING_BYTES = 2048  # message ids in a reply that waits, beyond which it counts as one more


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
    pulled        what `calls.pull` has kept for its key: (QueuePages, [messages, bytes]). Later pulls with the same key
                  are served from the pages, and counted in the list
    calls         what is done in Python:
                      when_safe(client, end offset, messages, seconds, count, replies), after sends whose replies wait:
                      `messages` end at that offset of the log and took `seconds` in all; `replies` are the frames for
                      `count` of them, the others want none. It must not raise
                      on_stored(topic, queue id), after a send to a queue in `held`
                      count_sent(topic, messages, bytes)
                      pull(client, key, group, topic, queue id, offset, count, sysFlag, commitOffset, subVersion), which
                      returns a page with data, next_begin_offset, min_offset and max_offset, or None. It may add the
                      key to `pulled`, if the pull wants all messages
                      commit_pulled(client, group, topic, queue id, offset), for a pull that was served from `pulled`
                      count_got(pages, messages, bytes, seconds), for pulls that were served from `pulled`
                      consume_hooks, a list: while it is not empty, no pull is served from `pulled`
                      commit(client, group, topic, queue id, offset), which returns whether it did
                      query(group, topic, queue id), which returns the offset, or a negative number
    frame_bytes   the largest frame
    header_bytes  the largest header
    reply_bytes   `serve` returns when the replies have reached about this size
    """

    cdef Appender appender
    cdef dict topics, held, pulled
    cdef object when_safe, on_stored, count_sent, find_page, commit_pulled, count_got, commit_offset, query_offset
    cdef list consume_hooks
    cdef int64_t frame_bytes, header_bytes, reply_bytes
    cdef bytes suffix, message_host, binary_head, binary_tail
    cdef tuple send_pieces, pull_pieces, query_pieces, commit_pieces
    cdef object client
    cdef bint takes_sends, is_busy
    cdef bint has_begun        # whether an error now comes from the frame that is taken, not from those before it
    cdef const char* born_host
    cdef Py_ssize_t born_host_size
    cdef list done             # frames of replies, before those in `replies`
    cdef int64_t done_size
    cdef uint8_t* replies
    cdef int64_t replies_size, replies_room
    cdef uint8_t* scratch
    cdef str topic             # of the last send
    cdef int64_t sent_count, sent_bytes  # to `topic`, not in `counted` yet
    cdef list counted          # (topic, messages, bytes) of sends
    cdef list stored           # queues of `held` that got messages
    cdef int64_t room          # how many replies to sends may still wait; -1 if they do not wait
    cdef int64_t run_messages, run_count, run_end, run_started  # sends since the last when_safe; theirs are `replies`
    cdef int64_t got_pages, got_messages, got_bytes, got_ns  # of pulls, not counted yet

    def __cinit__(self):
        self.scratch = <uint8_t*>malloc(SCRATCH_BYTES)
        if self.scratch == NULL:
            raise MemoryError

    def __init__(
        self, Appender appender not None, dict topics not None, dict held not None, dict pulled not None, calls,
        int64_t frame_bytes, int64_t header_bytes, int64_t reply_bytes,
    ):
        self.appender = appender
        self.topics = topics
        self.held = held
        self.pulled = pulled
        self.when_safe = calls.when_safe
        self.on_stored = calls.on_stored
        self.count_sent = calls.count_sent
        self.find_page = calls.pull
        self.commit_pulled = calls.commit_pulled
        self.count_got = calls.count_got
        self.consume_hooks = calls.consume_hooks
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

    def serve(
        self, client, bytes data not None, int64_t at, bytes born_host not None, bint takes_sends, int64_t room=-1
    ):
        """Serves the frames of `data` from `at` on, up to the first one that it leaves, or that is not complete.

        client       passed to `calls`
        born_host    the client's host in its 8 or 20 bytes
        takes_sends  whether sends are served at all
        room         how many replies to sends may wait until the messages are safe: they go to `calls.when_safe`, and
                     further sends are left; -1: replies to sends do not wait. The reply to a batch counts as one more
                     for each 2 KiB of message ids

        Returns (at, stop, replies, failure, late): the place of the first frame that was not served; where that frame
        ends if it must be served in another way, else `at`; the frames of the replies, in pieces; what was raised while
        that frame was served, or None: it has failed and must not be served again; and what one of `calls` raised after
        the frames before it were served, or None: it concerns no frame. With about `reply_bytes` of replies it returns
        early.
        """
        cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
        cdef int64_t end = PyBytes_GET_SIZE(data), total, length, stop = at, left = at
        cdef uint32_t kind
        cdef list done
        failure = late = None
        if at < 0 or at > end:
            raise ValueError(f"{at} is outside {end} bytes")
        if self.is_busy or (PyBytes_GET_SIZE(born_host) != 8 and PyBytes_GET_SIZE(born_host) != 20):
            return at, at, [], None, None
        self.is_busy = True
        self.client = client
        self.takes_sends = takes_sends
        self.room = room
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
        except Exception as error:
            left = stop
            if self.has_begun:
                failure = error
            else:
                late = error
        try:
            self.end_run()
            self.finish_replies()
        except Exception as error:
            late = late or error
        try:
            self.finish()
        except Exception as error:
            late = late or error
        finally:
            self.is_busy = False
            self.client = self.done = None
        return at, max(left, at), done, failure, late

    cdef int finish(self) except -1:
        """Does what may come after all requests: wakes pulls that wait, counts, and wakes dispatch."""
        cdef list stored = self.stored, counted
        cdef bint has_sent = self.sent_count > 0
        self.count_topic()
        counted = self.counted
        self.stored = self.counted = None
        try:
            if stored is not None:
                for topic, queue in stored:
                    self.on_stored(topic, queue)
            self.count_pulls()
            if counted is not None:
                for topic, messages, size in counted:
                    self.count_sent(topic, messages, size)
        finally:
            if has_sent or counted is not None:
                self.appender.notify()
        return 0

    cdef bint take(
        self, const uint8_t* head, int64_t head_size, const uint8_t* body, int64_t body_size, bint is_binary
    ) except -1:
        """Serves one request; returns False if it is left untouched."""
        cdef RequestHeader header
        header.seen = 0
        header.opaque = 0
        header.is_one_way = header.is_binary = False
        self.has_begun = True
        if is_binary:
            if not parse_binary(&header, head, head + head_size):
                return False
        elif not parse_json(&header, head, head + head_size):
            return False
        self.make_room(0)
        if header.code != COMMIT_CODE and header.code != QUERY_CODE and header.code != 11 and header.code != 361:
            return self.takes_sends and self.send(&header, body, body_size)
        self.has_begun = False
        self.end_run()
        self.has_begun = True
        if header.code == 11 or header.code == 361:
            return body_size == 0 and self.pull(&header)
        if header.code == COMMIT_CODE:
            return body_size == 0 and self.commit(&header)
        return body_size == 0 and self.query(&header)

    # -- sends -----------------------------------------------------------------------------------------------

    cdef bint send(self, RequestHeader* header, const uint8_t* body, int64_t body_size) except -1:
        cdef Ordinary ordinary
        cdef Piece piece
        cdef Placed placed
        cdef PyObject* queues
        cdef int64_t size, queue_id = header.numbers[SENT_QUEUE], physical, end = 0, count = 1, started = 0
        cdef bint is_batch = header.seen >> IS_BATCH & 1 and header.numbers[IS_BATCH]
        if self.room == 0:
            return False
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
        if self.room > 0 and not self.run_messages:
            started = monotonic_ns()
            self.finish_replies()
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
        if self.room > 0:
            if not self.run_messages:
                self.run_started = started
            self.run_messages += count
            self.run_end = end
            if not header.is_one_way:
                self.run_count += 1
                self.room = max(
                    0, self.room - 1 - count * (PyBytes_GET_SIZE(self.message_host) + 17) // WAITING_BYTES
                )
        if not header.is_one_way:
            self.reply_sent(header, physical, count, queue_id, placed.queue_offset)
        if PyDict_Size(self.held) and (topic, queue) in self.held:
            if self.stored is None:
                self.stored = []
            self.stored.append((topic, queue))
        return True

    cdef int end_run(self) except -1:
        """Has the replies to the last sends wait until these are safe, if they have to.

        Comes before any Python code that may let another thread run: so all messages of a run were stored in the same
        role of this broker.
        """
        cdef int64_t messages = self.run_messages, count = self.run_count
        if messages:
            replies = PyBytes_FromStringAndSize(<char*>self.replies, self.replies_size)
            self.replies_size = self.run_messages = self.run_count = 0
            self.when_safe(
                self.client, self.run_end, messages, (monotonic_ns() - self.run_started) / 1e9, count, replies
            )
        return 0

    cdef str topic_of(self, const uint8_t* text, int64_t size):
        """Returns the topic of a send, and counts what was sent to the one before it."""
        cdef Py_ssize_t known_size = 0
        cdef const char* known
        if self.topic is not None:
            known = PyUnicode_AsUTF8AndSize(self.topic, &known_size)
            if known_size == size and not memcmp(known, text, size):
                return self.topic
            self.count_topic()
        self.topic = PyUnicode_DecodeUTF8(<const char*>text, size, NULL)
        return self.topic

    cdef int count_topic(self) except -1:
        """Notes what was sent to the current topic, to be counted at the end."""
        if self.sent_count:
            if self.counted is None:
                self.counted = []
            self.counted.append((self.topic, self.sent_count, self.sent_bytes))
            self.sent_count = self.sent_bytes = 0
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
        key = self.key_of(header)
        if key is not None and self.pull_known(header, key):
            return True
        page = self.find_page(
            self.client, key, text_at(header, GROUP), text_at(header, TOPIC), header.numbers[QUEUE],
            header.numbers[PULL_OFFSET], header.numbers[MAX_COUNT], flags, header.numbers[PULL_COMMIT],
            header.numbers[SUB_VERSION],
        )
        if page is None:
            return False
        data = page.data
        self.reply_found(
            header, PyBytes_GET_SIZE(data), page.next_begin_offset, page.min_offset, page.max_offset
        )
        self.finish_replies()
        self.done.append(data)
        self.done_size += PyBytes_GET_SIZE(data)
        return True

    cdef bytes key_of(self, const RequestHeader* header):
        """Returns the key of a pull in `pulled`: all that decides which messages it may see, but for the offset."""
        cdef int64_t group = header.sizes[GROUP], topic = header.sizes[TOPIC]
        cdef bint is_own = header.numbers[PULL_SYS_FLAG] & OWN_SUBSCRIPTION
        if group + topic > MAX_CONSTANT:
            return None
        self.scratch[0] = is_own
        store64(self.scratch + 1, 0 if is_own else header.numbers[SUB_VERSION])
        store32(self.scratch + 9, <int32_t>header.numbers[QUEUE])
        store32(self.scratch + 13, <int32_t>group)
        memcpy(self.scratch + 17, header.texts[GROUP], group)
        memcpy(self.scratch + 17 + group, header.texts[TOPIC], topic)
        return PyBytes_FromStringAndSize(<char*>self.scratch, 17 + group + topic)

    cdef bint pull_known(self, const RequestHeader* header, bytes key) except -1:
        """Serves a pull whose key is known; returns False, and nothing has changed, if it cannot."""
        cdef PyObject* found = PyDict_GetItem(self.pulled, key)
        cdef QueuePages pages
        cdef list counts
        cdef UsualPage usual
        cdef const FoundRecords* records = &usual.records
        cdef int64_t started, took, head, lowest = 0
        if found is NULL or PyList_GET_SIZE(self.consume_hooks):
            return False
        started = monotonic_ns()
        pages, counts = <tuple>found
        self.finish_replies()
        if not pages.find(header.numbers[PULL_OFFSET], max(header.numbers[MAX_COUNT], 1), &usual, &lowest):
            return False
        self.reply_found(header, records.size, usual.state.queue_offset, lowest, usual.highest)
        head = self.replies_size
        self.replies_size = 0
        reply = PyBytes_FromStringAndSize(NULL, head + records.size)
        memcpy(PyBytes_AS_STRING(reply), self.replies, head)
        copy_records(PyBytes_AS_STRING(reply) + head, records)
        took = monotonic_ns() - started
        if took > SLOW_NS:
            self.count_pulls()
        self.got_pages += 1
        self.got_messages += records.count
        self.got_bytes += records.size
        self.got_ns += took
        if took > SLOW_NS:
            self.count_pulls()
        counts[0] += records.count
        counts[1] += records.size
        self.done.append(reply)
        self.done_size += head + records.size
        if header.numbers[PULL_SYS_FLAG] & COMMITS_OFFSET:
            self.commit_pulled(
                self.client, text_at(header, GROUP), text_at(header, TOPIC), header.numbers[QUEUE],
                header.numbers[PULL_COMMIT],
            )
        return True

    cdef int count_pulls(self) except -1:
        cdef int64_t pages = self.got_pages, messages = self.got_messages, size = self.got_bytes, took = self.got_ns
        if pages:
            self.got_pages = self.got_messages = self.got_bytes = self.got_ns = 0
            self.count_got(pages, messages, size, took / 1e9)
        return 0

    cdef void reply_found(
        self, const RequestHeader* header, int64_t size, int64_t next_offset, int64_t lowest, int64_t highest
    ) noexcept:
        """Lays out the head of a reply to a pull, which `size` bytes of records follow."""
        cdef uint8_t* start = self.replies + self.replies_size
        cdef uint8_t* p
        cdef uint8_t* fields
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

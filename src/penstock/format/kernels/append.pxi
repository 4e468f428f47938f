# The appender: one ordinary message from the caller's object into the log in one step; and prefault, client batches.
# The plain twin is plain/append.py. It declines every message; the reference for the bytes is the store's general path,
# which also takes every message that this one declines.

# -- property strings ----------------------------------------------------------------------------------------

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    extern void *memmem(const void *, size_t, const void *, size_t);
    #endif
    """
    void* memmem(const void* text, size_t size, const void* wanted, size_t wanted_size) noexcept nogil

cdef enum:
    MAX_PIECES = 64
    MAX_ZEROS = 511


cdef struct Piece:
    const char* text
    Py_ssize_t size


cdef int collect_pieces(properties, keys, tags, whole, Piece* pieces, int64_t* total) except? -1:
    """Collects the property string as pieces, alternately names and values, and its length in *total.

    Returns the number of pieces, or -1 if the message is not ordinary. `whole` is a property string in stored form; if
    it is not empty it is the only piece, and the other arguments must be empty.
    """
    cdef int count = 0
    cdef int64_t size = 0
    cdef Py_ssize_t position = 0
    cdef PyObject* name
    cdef PyObject* value
    if not PyUnicode_CheckExact(whole) or (properties is not None and not PyDict_CheckExact(properties)):
        return -1
    if PyUnicode_GET_LENGTH(whole):
        pieces[0].text = PyUnicode_AsUTF8AndSize(whole, &pieces[0].size)
        if pieces[0].text == NULL:  # a lone surrogate, as in add_piece
            PyErr_Clear()
            return -1
        total[0] = pieces[0].size
        if memmem(pieces[0].text, pieces[0].size, b"__CRC32#", 8) != NULL:  # the general path removes it
            return -1
        return -1 if keys or tags or properties or has_zeros(pieces[0].text, pieces[0].size) else 1
    if properties is not None and PyDict_Size(properties):
        if 2 * PyDict_Size(properties) > MAX_PIECES - 8:
            return -1
        while PyDict_Next(properties, &position, &name, &value):
            if (
                add_piece(<object>name, pieces, &count, &size, True) < 0
                or pieces[count - 1].size == 0 or is_special(&pieces[count - 1])
                or add_piece(<object>value, pieces, &count, &size, False) < 0
            ):
                return -1
            if pieces[count - 1].size == 0:
                count -= 2
                size -= pieces[count].size
    if keys:
        pieces[count].text = "KEYS"
        pieces[count].size = 4
        count += 1
        size += 4
        if add_piece(keys, pieces, &count, &size, False) < 0:
            return -1
    if tags:
        pieces[count].text = "TAGS"
        pieces[count].size = 4
        count += 1
        size += 4
        if add_piece(tags, pieces, &count, &size, False) < 0:
            return -1
    total[0] = size + count - (1 if count else 0)  # a separator after each piece except the last
    return count


cdef int add_piece(object text, Piece* pieces, int* count, int64_t* size, bint is_name) except? -1:
    """Adds a text; returns -1 if it is not a str without separators."""
    cdef Piece* piece = &pieces[count[0]]
    if not PyUnicode_CheckExact(text):
        return -1
    piece.text = PyUnicode_AsUTF8AndSize(text, &piece.size)
    if piece.text == NULL:  # a lone surrogate: the general path reports it
        PyErr_Clear()
        return -1
    if memchr(piece.text, 2, piece.size) or (is_name and memchr(piece.text, 1, piece.size)):
        return -1
    if has_zeros(piece.text, piece.size):  # the general path says whether that matters
        return -1
    count[0] += 1
    size[0] += piece.size
    return 0


cdef inline bint has_zeros(const char* text, int64_t size) noexcept nogil:
    """Whether a text ends with NUL or has MAX_ZEROS of them in a row; see `properties.check_no_zeros`."""
    cdef int64_t at = MAX_ZEROS - 1, first
    if size and text[size - 1] == 0:
        return True
    while at < size:  # is there a run that ends at `at`?
        first = at
        while first > at - MAX_ZEROS and text[first] == 0:
            first -= 1
        if first == at - MAX_ZEROS:
            return True
        at = first + MAX_ZEROS
    return False


cdef bint is_special(Piece* name) noexcept nogil:
    """Whether the store interprets this property; only the general path does."""
    return (
        (name.size == 4 and (not memcmp(name.text, "KEYS", 4) or not memcmp(name.text, "TAGS", 4)
                             or not memcmp(name.text, "WAIT", 4)))
        or (name.size == 5 and not memcmp(name.text, "DELAY", 5))
        or (name.size == 8 and not memcmp(name.text, "__CRC32#", 8))
    )


cdef void write_pieces(uint8_t* p, const Piece* pieces, int count) noexcept nogil:
    """Writes the property string: byte 1 after a name, byte 2 after a value."""
    cdef int i
    for i in range(count):
        memcpy(p, pieces[i].text, pieces[i].size)
        p += pieces[i].size
        if i + 1 < count:
            p[0] = 1 if i % 2 == 0 else 2
            p += 1


# -- latencies -----------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <time.h>
    static inline int64_t clock_ns(clockid_t id) {
        struct timespec t; clock_gettime(id, &t); return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    /* The time of day, which may be set at any moment: for timestamps. It is `now`, a monotonic_ns(), plus what the two
       clocks differ by at the last tick of the kernel, because coarse clocks cost a fifth of the exact ones. */
    static inline int64_t wall_clock_ms(int64_t now) {
        static int64_t tick = 0, difference = 0; /* the GIL is held */
        int64_t at = clock_ns(CLOCK_MONOTONIC_COARSE);
        if (at != tick) {
            difference = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
            tick = at;
        }
        return (now + difference) / 1000000;
    }
    /* For durations. */
    static inline int64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
    """
    int64_t wall_clock_ms(int64_t now) noexcept nogil
    int64_t monotonic_ns() noexcept nogil

cdef enum:
    LATENCIES = 16

cdef int64_t[15] LATENCY_BOUNDS_NS = [
    1000000, 2000000, 5000000, 10000000, 20000000, 50000000, 100000000, 200000000, 500000000, 1000000000, 2000000000,
    3000000000, 4000000000, 5000000000, 10000000000
]


cdef int latency_class(int64_t nanoseconds) noexcept nogil:
    """Returns the number of the first bound that is not exceeded; LATENCIES - 1 if all are."""
    cdef int number = 0
    while number < LATENCIES - 1 and nanoseconds > LATENCY_BOUNDS_NS[number]:
        number += 1
    return number


# -- the appender --------------------------------------------------------------------------------------------

cdef extern from *:
    """
    /* The next record is probably as large as this one: fetches the memory that it will be written to. */
    static inline void prefetch_next(const uint8_t *p, int64_t size) {
        if (size > 2048) size = 2048;
        for (int64_t at = 64; at < size + 64; at += 64) __builtin_prefetch(p + at, 1, 2);
    }
    """
    void prefetch_next(const uint8_t* p, int64_t size) noexcept nogil


cdef struct Ordinary:  # an ordinary message to write
    const char* topic
    Py_ssize_t topic_size
    const char* body
    Py_ssize_t body_size
    const char* born_host
    Py_ssize_t born_host_size
    const char* store_host
    Py_ssize_t store_host_size
    int64_t queue_id
    int64_t flag
    int64_t sys_flag
    int64_t born
    int64_t reconsume_times
    int64_t prepared_offset
    const Piece* pieces
    int count
    int64_t properties_size


cdef struct Placed:  # a record that was written
    int64_t size
    int64_t queue_offset
    PyObject* queue_id    # borrowed from the message
    PyObject* store_host  # borrowed from the message or the appender


cdef extern from *:
    """
    #include <structmember.h>

    /* Returns the offset of a slot's object within its instances, -1 if this is not the descriptor of a slot. */
    static Py_ssize_t member_offset(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX || member->type == T_OBJECT ? member->offset : -1;
    }
    /* Returns the object of a slot, borrowed; None if the slot is not set. */
    static inline PyObject *member_at(PyObject *instance, Py_ssize_t offset) {
        PyObject *value = *(PyObject **)((char *)instance + offset);
        return value ? value : Py_None;
    }
    """
    Py_ssize_t member_offset(object descriptor)
    PyObject* member_at(object instance, Py_ssize_t offset)


def _noop():
    """Does nothing."""


def _decline(message, result):
    """Returns the result of the append."""
    return result


cdef class Appender:
    """Appends ordinary messages to the log file it is attached to. The GIL is the lock, and is never released here.

    A message is ordinary if its topic and hosts were seen before, it fits into the file, its body is bytes, its
    properties are texts without separators, and it is not delayed, prepared or rolled back. Any other message is
    declined: the result is None and nothing changes.

    message_type      the class of messages; its fields must be slots, which are read by their offset in the object
    result_type       called with (ok, physical offset, size, queue id, queue offset, store timestamp, store host)
    ok                the status for the result
    clock             returns milliseconds; None reads the system's clock, which is faster
    store_host_text   the store host of messages that have none, as text
    store_host        the same in its 8 or 20 bytes
    max_body_bytes    the largest body; may be set
    max_record_bytes  the largest record; may be set
    has_record_crc    whether each record gets RECORD_CRC, with its CRC, as its last property

    Raises BadSettings if a field of `message_type` is not a slot.
    """

    cdef public bint is_open
    """False while another thread appends, or while appends are not allowed: everything is declined."""
    cdef public bint is_follower_asleep
    """True to have `wake` called after the next append."""
    cdef public object wake
    """Called after an append if the follower is asleep."""
    cdef public bint needs_ack
    """Whether a put waits for the disk or a slave after the append: `resume` does it."""
    cdef public object resume
    """`put` calls it with a message and the result of its append, None if that was declined, and returns its result."""
    cdef public object page_need
    """Called after every 8 MiB: it is time to prefault the next pages."""
    cdef int64_t page_need_at  # position in the file
    cdef public dict queues
    """Legal topics, each with the next queue offset of each of its queues."""
    cdef public dict hosts
    """Known hosts as text, each with its bytes."""
    cdef public int64_t newest_timestamp
    cdef readonly int64_t count
    cdef readonly int64_t bytes_appended
    cdef readonly int64_t slowest_ns
    cdef readonly int64_t total_ns
    """The sum of the latencies of all messages."""
    cdef int64_t[LATENCIES] latencies
    cdef object message_type
    cdef object result_type
    cdef int64_t result_time
    cdef object result_timestamp  # result_time as an int
    cdef object ok
    cdef object clock
    cdef str store_host_text
    cdef bytes store_host
    cdef public int64_t max_body_bytes, max_record_bytes
    cdef bint has_record_crc
    cdef Py_buffer target
    cdef Py_buffer marks
    cdef bint attached
    cdef int64_t from_offset, position
    cdef Py_ssize_t topic_at, body_at, keys_at, tags_at, properties_at, queue_id_at, delay_level_at, flag_at
    cdef Py_ssize_t sys_flag_at, born_timestamp_at, born_host_at, store_host_at, reconsume_times_at, prepared_at
    cdef Py_ssize_t wait_at, property_text_at

    def __cinit__(self):
        self.attached = False

    def __init__(
        self, message_type, result_type, ok, clock, str store_host_text, bytes store_host, max_body_bytes,
        max_record_bytes, bint has_record_crc,
    ):
        self.message_type = message_type
        self.result_type = result_type
        self.ok = ok
        self.clock = clock
        self.store_host_text = store_host_text
        self.store_host = store_host
        self.max_body_bytes = max_body_bytes
        self.max_record_bytes = max_record_bytes
        self.has_record_crc = has_record_crc
        self.queues = {}
        self.hosts = {}
        self.wake = self.page_need = _noop
        self.resume = _decline
        self.from_offset = -1
        self.result_time = -1
        self.result_timestamp = -1
        self.topic_at = self.slot("topic")
        self.body_at = self.slot("body")
        self.keys_at = self.slot("keys")
        self.tags_at = self.slot("tags")
        self.properties_at = self.slot("properties")
        self.queue_id_at = self.slot("queue_id")
        self.delay_level_at = self.slot("delay_level")
        self.flag_at = self.slot("flag")
        self.sys_flag_at = self.slot("sys_flag")
        self.born_timestamp_at = self.slot("born_timestamp")
        self.born_host_at = self.slot("born_host")
        self.store_host_at = self.slot("store_host")
        self.reconsume_times_at = self.slot("reconsume_times")
        self.prepared_at = self.slot("prepared_transaction_offset")
        self.wait_at = self.slot("wait")
        self.property_text_at = self.slot("property_text")

    cdef Py_ssize_t slot(self, str name) except -1:
        """Returns the offset of a field in a message."""
        cdef Py_ssize_t offset = member_offset(getattr(self.message_type, name, None))
        if offset < 0:
            raise _BadSettings(
                f"the compiled kernels cannot read {self.message_type.__name__}.{name} on this Python, "
                "because it is not a slot; choose PENSTOCK_KERNELS=plain"
            )
        return offset

    def __dealloc__(self):
        self.release()

    def attach(self, target, marks, int64_t from_offset):
        """From now on appends go to the file `target`, which starts at the physical offset `from_offset`.

        `marks` are two int64: the end of the records in the file, and the newest store timestamp. Appends update both.
        """
        cdef Py_buffer new_target, new_marks
        PyObject_GetBuffer(target, &new_target, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(marks, &new_marks, PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&new_target)
            raise
        if new_marks.len != 16:
            PyBuffer_Release(&new_target)
            PyBuffer_Release(&new_marks)
            raise ValueError("the marks of a file take 16 bytes")
        self.release()
        self.target = new_target
        self.marks = new_marks
        self.attached = True
        self.position = (<int64_t*>self.marks.buf)[0]
        if from_offset != self.from_offset:
            self.page_need_at = self.position
        self.from_offset = from_offset

    def detach(self):
        """Releases the file's memory; everything is declined until the next `attach`."""
        self.release()

    cdef void release(self) noexcept:
        if self.attached:
            self.attached = False
            PyBuffer_Release(&self.target)
            PyBuffer_Release(&self.marks)

    @property
    def latency_counts(self):
        """How many messages took up to 1, 2, 5, 10, 20, 50, 100, 200, 500 ms, 1, 2, 3, 4, 5, 10 s, and longer."""
        return [self.latencies[i] for i in range(LATENCIES)]

    cdef int64_t place(
        self, message, int64_t now, int64_t at, bint publish, bint in_batch, Placed* placed
    ) except? -2:
        """Writes a message's record at the position `at` of the file; returns its size, or -1 to decline."""
        cdef int64_t delay_level
        cdef Piece[MAX_PIECES] pieces
        cdef Ordinary ordinary
        cdef PyObject* found
        cdef PyObject* topic
        cdef PyObject* body
        cdef PyObject* queue_id_object
        cdef PyObject* store_host_text
        cdef dict offsets
        if type(message) is not self.message_type:
            return -1
        if not read_long(<object>member_at(message, self.delay_level_at), &delay_level) or delay_level != 0:
            return -1
        if <object>member_at(message, self.wait_at) is not True:
            return -1
        topic = member_at(message, self.topic_at)
        found = PyDict_GetItem(self.queues, <object>topic)
        if found is NULL:
            return -1
        offsets = <dict>found
        ordinary.topic = PyUnicode_AsUTF8AndSize(<object>topic, &ordinary.topic_size)
        found = PyDict_GetItem(self.hosts, <object>member_at(message, self.born_host_at))
        if found is NULL:
            return -1
        ordinary.born_host = PyBytes_AS_STRING(<object>found)
        ordinary.born_host_size = PyBytes_GET_SIZE(<object>found)
        ordinary.store_host = PyBytes_AS_STRING(self.store_host)
        ordinary.store_host_size = PyBytes_GET_SIZE(self.store_host)
        store_host_text = member_at(message, self.store_host_at)
        if not PyUnicode_CheckExact(<object>store_host_text):
            return -1
        if PyUnicode_GET_LENGTH(<object>store_host_text):
            found = PyDict_GetItem(self.hosts, <object>store_host_text)
            if found is NULL:
                return -1
            ordinary.store_host = PyBytes_AS_STRING(<object>found)
            ordinary.store_host_size = PyBytes_GET_SIZE(<object>found)
        else:
            store_host_text = <PyObject*>self.store_host_text
        body = member_at(message, self.body_at)
        if not PyBytes_CheckExact(<object>body):
            return -1
        ordinary.body = PyBytes_AS_STRING(<object>body)
        ordinary.body_size = PyBytes_GET_SIZE(<object>body)
        queue_id_object = member_at(message, self.queue_id_at)
        if not (
            read_long(<object>member_at(message, self.sys_flag_at), &ordinary.sys_flag)
            and read_long(<object>queue_id_object, &ordinary.queue_id)
            and read_long(<object>member_at(message, self.flag_at), &ordinary.flag)
            and read_long(<object>member_at(message, self.reconsume_times_at), &ordinary.reconsume_times)
            and read_long(<object>member_at(message, self.prepared_at), &ordinary.prepared_offset)
            and read_long(<object>member_at(message, self.born_timestamp_at), &ordinary.born)
        ):
            return -1
        keys = <object>member_at(message, self.keys_at)
        if PyTuple_CheckExact(keys) or PyList_CheckExact(keys):
            try:
                keys = keys[0] if len(keys) == 1 else " ".join(keys)
            except TypeError:
                return -1
        ordinary.pieces = pieces
        ordinary.count = collect_pieces(
            <object>member_at(message, self.properties_at), keys, <object>member_at(message, self.tags_at),
            <object>member_at(message, self.property_text_at), pieces, &ordinary.properties_size,
        )
        if ordinary.count < 0:
            return -1
        placed.queue_id = queue_id_object
        placed.store_host = store_host_text
        return self.write(&ordinary, offsets, <object>queue_id_object, now, at, publish, in_batch, placed)

    cdef int64_t write(
        self, const Ordinary* ordinary, dict offsets, queue_id, int64_t now, int64_t at, bint publish, bint in_batch,
        Placed* placed,
    ) except? -2:
        """Writes a record at the position `at` of the file; returns its size, or -1 to decline.

        `offsets` are the next queue offsets of its topic, and `queue_id` the key of its queue there.
        """
        cdef int64_t size, queue_offset = 0, properties_size = ordinary.properties_size
        cdef int32_t sys_flag
        cdef bint needs_separator = False
        cdef const Piece* last
        cdef PyObject* found
        cdef uint8_t* p
        if (
            ordinary.queue_id < 0 or ordinary.queue_id > MAX_INT or ordinary.born < 0
            or ordinary.sys_flag != <int32_t>ordinary.sys_flag or ordinary.flag != <int32_t>ordinary.flag
            or ordinary.reconsume_times != <int32_t>ordinary.reconsume_times
        ):
            return -1
        sys_flag = <int32_t>ordinary.sys_flag
        if (
            (sys_flag & TRANSACTION_MASK) == PREPARED or (sys_flag & TRANSACTION_MASK) == ROLLBACK
            or (in_batch and sys_flag & TRANSACTION_MASK)
        ):
            return -1
        if self.has_record_crc:
            last = ordinary.pieces + (ordinary.count - 1 if ordinary.count else 0)
            needs_separator = properties_size > 0 and (last.size == 0 or last.text[last.size - 1] != 2)
            properties_size += needs_separator + RECORD_CRC_SIZE
        size = (
            75 + ordinary.born_host_size + ordinary.store_host_size + ordinary.body_size + ordinary.topic_size
            + properties_size
        )
        if (
            ordinary.body_size > self.max_body_bytes or size > self.max_record_bytes or properties_size > 32767
            or size + 8 > self.target.len - at
        ):
            return -1
        sys_flag &= ~0x30
        if ordinary.born_host_size == 20:
            sys_flag |= 0x10
        if ordinary.store_host_size == 20:
            sys_flag |= 0x20
        found = PyDict_GetItem(offsets, queue_id)
        if found is not NULL:
            queue_offset = PyLong_AsLongLong(<object>found)
        offsets[queue_id] = queue_offset + 1  # before a byte is written, because it may fail
        p = <uint8_t*>self.target.buf + at
        store32(p + 8, <int32_t>crc_of(<const uint8_t*>ordinary.body, ordinary.body_size))
        store32(p + 12, <int32_t>ordinary.queue_id)
        store32(p + 16, <int32_t>ordinary.flag)
        store64(p + 20, queue_offset)
        store64(p + 28, self.from_offset + at)
        store32(p + 36, sys_flag)
        store64(p + 40, ordinary.born if ordinary.born else now)
        memcpy(p + 48, ordinary.born_host, ordinary.born_host_size)
        p += 48 + ordinary.born_host_size
        store64(p, now)
        memcpy(p + 8, ordinary.store_host, ordinary.store_host_size)
        p += 8 + ordinary.store_host_size
        store32(p, <int32_t>ordinary.reconsume_times)
        store64(p + 4, ordinary.prepared_offset)
        store32(p + 12, <int32_t>ordinary.body_size)
        memcpy(p + 16, ordinary.body, ordinary.body_size)
        p += 16 + ordinary.body_size
        p[0] = <uint8_t>ordinary.topic_size
        memcpy(p + 1, ordinary.topic, ordinary.topic_size)
        p += 1 + ordinary.topic_size
        store16(p, <int16_t>properties_size)
        write_pieces(p + 2, ordinary.pieces, ordinary.count)
        if self.has_record_crc:
            if needs_separator:
                p[2 + properties_size - RECORD_CRC_SIZE - 1] = 2
            seal_record(<uint8_t*>self.target.buf + at, <int32_t>size, MESSAGE_MAGIC)
        if publish:
            store_head(<uint8_t*>self.target.buf + at, <int32_t>size, MESSAGE_MAGIC)
        placed.size = size
        placed.queue_offset = queue_offset
        return size

    cdef void advance(self, int64_t end, int64_t now, int64_t started, int64_t count) noexcept:
        """Moves the file's end behind `count` records that were written, and counts them."""
        cdef int64_t took = monotonic_ns() - started
        self.count += count
        self.bytes_appended += end - self.position
        self.latencies[latency_class(took)] += count
        self.total_ns += took * count
        if took > self.slowest_ns:
            self.slowest_ns = took
        self.position = end
        self.newest_timestamp = now
        (<int64_t*>self.marks.buf)[1] = now
        (<int64_t*>self.marks.buf)[0] = end

    cdef result(self, int64_t at, int64_t now, const Placed* placed):
        cdef object physical_offset = self.from_offset + at, size = placed.size, queue_offset = placed.queue_offset
        cdef PyObject* fields[7]
        if now != self.result_time:  # many messages share a millisecond
            self.result_time = now
            self.result_timestamp = now
        fields[0] = <PyObject*>self.ok
        fields[1] = <PyObject*>physical_offset
        fields[2] = <PyObject*>size
        fields[3] = placed.queue_id
        fields[4] = <PyObject*>queue_offset
        fields[5] = <PyObject*>self.result_timestamp
        fields[6] = placed.store_host
        return PyObject_Vectorcall(self.result_type, fields, 7, NULL)

    cdef notify(self):
        """Calls the callbacks. Comes last, because they are Python code: another thread may attach another file."""
        if self.position >= self.page_need_at:
            self.page_need_at += 8 << 20
            self.page_need()
        if self.is_follower_asleep:
            self.is_follower_asleep = False
            self.wake()

    def put(self, message):
        """Appends a message and returns its result. `resume` puts what `append` declines, and waits for acks."""
        result = self.append_message(message)
        if result is None or self.needs_ack:
            return self.resume(message, result)
        return result

    def append(self, message):
        """Appends a message and returns its result, or None to decline."""
        return self.append_message(message)

    cdef append_message(self, message):
        cdef int64_t started = monotonic_ns(), now, at
        cdef Placed placed
        if self.clock is None:
            now = wall_clock_ms(started)
        else:
            now = PyLong_AsLongLong(self.clock())  # first, because it is Python code: other threads may run meanwhile
        if not self.is_open or not self.attached:
            return None
        at = self.position
        if self.place(message, now, at, True, False, &placed) < 0:
            return None
        self.advance(at + placed.size, now, started, 1)
        prefetch_next(<uint8_t*>self.target.buf + self.position, min(placed.size, self.target.len - self.position))
        result = self.result(at, now, &placed)
        self.notify()
        return result

    cdef int64_t append_one(self, Ordinary* ordinary, str topic, queue_id, Placed* placed) except? -2:
        """Appends a message of `topic`, without its callbacks. Returns its physical offset, or -1 to decline.

        The caller fills `ordinary` but for the topic and the store host, and calls `notify` when it is done.
        """
        cdef int64_t started = monotonic_ns(), now, at
        cdef PyObject* found
        now = wall_clock_ms(started) if self.clock is None else PyLong_AsLongLong(self.clock())  # first, as in append
        if not self.is_open or not self.attached:
            return -1
        found = PyDict_GetItem(self.queues, topic)
        if found is NULL:
            return -1
        ordinary.topic = PyUnicode_AsUTF8AndSize(topic, &ordinary.topic_size)
        ordinary.store_host = PyBytes_AS_STRING(self.store_host)
        ordinary.store_host_size = PyBytes_GET_SIZE(self.store_host)
        at = self.position
        if self.write(ordinary, <dict>found, queue_id, now, at, True, False, placed) < 0:
            return -1
        self.advance(at + placed.size, now, started, 1)
        return self.from_offset + at

    cdef int64_t append_batch(
        self, Ordinary* ordinary, const uint8_t* item, int64_t count, bytes suffix, uint8_t* scratch, str topic,
        queue_id, Placed* first, int64_t* end,
    ) except? -2:
        """Appends the messages of a client's batch, which become visible at once, without callbacks.

        `check_batch` has checked the `count` items. Each gets the properties `suffix`; `scratch` has room for both.
        Returns the first physical offset, and in *end that behind the last; or -1 to decline all.
        """
        cdef int64_t started = monotonic_ns(), now, start, at, i, size, done = 0, before = -1
        cdef Piece piece
        cdef Placed placed
        cdef PyObject* found
        cdef dict offsets
        now = wall_clock_ms(started) if self.clock is None else PyLong_AsLongLong(self.clock())  # first, as in append
        if not self.is_open or not self.attached:
            return -1
        found = PyDict_GetItem(self.queues, topic)
        if found is NULL:
            return -1
        offsets = <dict>found
        found = PyDict_GetItem(offsets, queue_id)
        if found is not NULL:
            before = PyLong_AsLongLong(<object>found)
        ordinary.topic = PyUnicode_AsUTF8AndSize(topic, &ordinary.topic_size)
        ordinary.store_host = PyBytes_AS_STRING(self.store_host)
        ordinary.store_host_size = PyBytes_GET_SIZE(self.store_host)
        piece.text = <const char*>scratch
        ordinary.pieces = &piece
        ordinary.count = 1
        start = at = self.position
        first.size = 0
        try:
            for i in range(count):
                ordinary.flag = load32(item + 12)
                ordinary.body = <const char*>item + 20
                ordinary.body_size = load32(item + 16)
                size = load16(item + 20 + ordinary.body_size)
                memcpy(scratch, item + 22 + ordinary.body_size, size)
                if size and scratch[size - 1] != 2:
                    scratch[size] = 2
                    size += 1
                memcpy(scratch + size, PyBytes_AS_STRING(suffix), PyBytes_GET_SIZE(suffix))
                piece.size = ordinary.properties_size = size + PyBytes_GET_SIZE(suffix)
                if (
                    memmem(scratch, piece.size, b"__CRC32#", 8) != NULL or has_zeros(<const char*>scratch, piece.size)
                    or self.write(ordinary, offsets, queue_id, now, at, i > 0, True, &placed) < 0
                ):
                    break
                if i == 0:
                    first[0] = placed
                at += placed.size
                item += load32(item)
                done += 1
        except BaseException:  # no memory
            self.undo_batch(offsets, queue_id, before, start, at, first.size)
            raise
        if done < count:
            self.undo_batch(offsets, queue_id, before, start, at, first.size)
            return -1
        store_head(<uint8_t*>self.target.buf + start, <int32_t>first.size, MESSAGE_MAGIC)
        self.advance(at, now, started, count)
        end[0] = self.from_offset + at
        return self.from_offset + start

    cdef int undo_batch(
        self, dict offsets, queue_id, int64_t before, int64_t start, int64_t end, int64_t first_size
    ) except -1:
        """Zeroes the records of a client's batch; the next offset of its queue is `before` again, -1 for none."""
        erase_batch(<uint8_t*>self.target.buf, start, end, first_size)
        if before >= 0:
            offsets[queue_id] = before
        else:
            offsets.pop(queue_id, None)
        return 0

    def append_many(self, messages):
        """Appends a list of messages, which become visible at once; returns their results, or None to decline all."""
        cdef int64_t started = monotonic_ns(), now, start, at
        cdef Py_ssize_t i, count = len(messages), done = 0
        cdef Placed* placed
        now = wall_clock_ms(started) if self.clock is None else PyLong_AsLongLong(self.clock())
        if not PyList_CheckExact(messages) or not count or not self.is_open or not self.attached:
            return None
        placed = <Placed*>malloc(count * sizeof(Placed))
        if placed == NULL:
            raise MemoryError
        try:
            start = at = self.position
            try:
                for i in range(count):
                    if self.place(<object>PyList_GET_ITEM(messages, i), now, at, i > 0, True, &placed[i]) < 0:
                        break
                    at += placed[i].size
                    done += 1
            except BaseException:  # a field that is no text has raised it when it was asked whether it is empty
                self.undo(messages, placed, start, at, done)
                raise
            if done < count:
                self.undo(messages, placed, start, at, done)
                return None
            store_head(<uint8_t*>self.target.buf + start, <int32_t>placed[0].size, MESSAGE_MAGIC)
            self.advance(at, now, started, count)
            results = []
            at = start
            for i in range(count):
                results.append(self.result(at, now, &placed[i]))
                at += placed[i].size
        finally:
            free(placed)
        self.notify()
        return results

    cdef int undo(self, list messages, const Placed* placed, int64_t start, int64_t end, Py_ssize_t count) except -1:
        """Zeroes the `count` records of a batch that were written, and takes their queue offsets back."""
        cdef Py_ssize_t i
        cdef dict offsets
        erase_batch(<uint8_t*>self.target.buf, start, end, placed[0].size if count else 0)
        for i in range(count):
            message = <object>PyList_GET_ITEM(messages, i)
            offsets = self.queues[<object>member_at(message, self.topic_at)]
            offsets[<object>member_at(message, self.queue_id_at)] -= 1
        return 0


cdef extern from *:
    """
    #if PY_VERSION_HEX < 0x030C0000
    #define is_compact(number) (Py_SIZE(number) >= -1 && Py_SIZE(number) <= 1)
    #define compact_value(number) (Py_SIZE(number) * (int64_t)((PyLongObject *)(number))->ob_digit[0])
    #else
    #define is_compact(number) PyUnstable_Long_IsCompact((PyLongObject *)(number))
    #define compact_value(number) PyUnstable_Long_CompactValue((PyLongObject *)(number))
    #endif
    """
    bint is_compact(object number) noexcept
    int64_t compact_value(object number) noexcept


cdef inline bint read_long(object number, int64_t* value) noexcept:
    """Reads an int; returns False if it is not an int of at most 64 bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    if is_compact(number):  # one digit of Python's; no call
        value[0] = compact_value(number)
    else:
        value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return overflow == 0


# -- prefault ------------------------------------------------------------------------------------------------

cdef extern from *:
    """
    #include <sys/mman.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif

    /* Takes the write faults of the pages of [from, to) without changing a byte. */
    static void write_fault(uint8_t *from, uint8_t *to) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uint8_t *first = (uint8_t *)((uintptr_t)from & ~(page - 1));
    #ifdef __linux__
        if (madvise(first, to - first, MADV_POPULATE_WRITE) == 0) return;
    #endif
        for (uint8_t *p = from; p < to; p += page) __atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
    }
    """
    void write_fault(uint8_t* start, uint8_t* stop) noexcept nogil


def prefault(out, int64_t start, int64_t stop):
    """Takes the page faults of out[start:stop], so that later stores meet none. Changes no byte."""
    cdef Py_buffer target
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        if start < 0 or stop < start or stop > target.len:
            raise ValueError(f"{start} to {stop} is outside {target.len} bytes")
        with nogil:
            write_fault(<uint8_t*>target.buf + start, <uint8_t*>target.buf + stop)
    finally:
        PyBuffer_Release(&target)


# -- client batches ------------------------------------------------------------------------------------------

def split_batch(bytes data, bytes common):
    """Splits the body of a client's batch into (flag, body, property text) of each message.

    Appends the properties `common` to those of each message. Returns None if lengths do not fit or properties are not
    UTF-8: `decode_batch_body` then says what is wrong.
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const char* tail = PyBytes_AS_STRING(common)
    cdef int64_t left = PyBytes_GET_SIZE(data), tail_size = PyBytes_GET_SIZE(common)
    cdef int64_t size, body_size, properties_size, text_size
    cdef const uint8_t* properties
    cdef char* text = <char*>malloc(32768 + tail_size)
    cdef list items = []
    if text == NULL:
        raise MemoryError
    try:
        while left > 0:
            if left < 22:
                return None
            size, body_size = load32(start), load32(start + 16)
            if body_size < 0 or size > left or size < 22 + body_size:
                return None
            properties = start + 22 + body_size
            properties_size = load16(properties - 2)
            if properties_size < 0 or 22 + body_size + properties_size != size:
                return None
            memcpy(text, properties, properties_size)
            text_size = properties_size
            if text_size and tail_size and text[text_size - 1] != 2:
                text[text_size] = 2
                text_size += 1
            memcpy(text + text_size, tail, tail_size)
            try:
                joined = PyUnicode_DecodeUTF8(text, text_size + tail_size, NULL)
            except UnicodeDecodeError:
                return None
            items.append((load32(start + 12), PyBytes_FromStringAndSize(<char*>start + 20, body_size), joined))
            start += size
            left -= size
    finally:
        free(text)
    return items

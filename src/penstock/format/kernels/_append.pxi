# The appender: an ordinary message from the caller's object into the log in one step. The reference is the store's
# general path, which also takes everything that this declines.

from cpython.dict cimport PyDict_CheckExact, PyDict_GetItem, PyDict_Next, PyDict_Size
from cpython.object cimport PyObject
from cpython.list cimport PyList_CheckExact
from cpython.tuple cimport PyTuple_CheckExact

cdef extern from *:
    """
    #include <time.h>
    static inline int64_t wall_clock_ns(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    """
    int64_t wall_clock_ns() noexcept nogil

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    bint PyUnicode_CheckExact(object thing)
    bint PyBytes_CheckExact(object thing)
    bint PyLong_CheckExact(object thing)
    long long PyLong_AsLongLong(object number) except? -1
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow)

cdef enum:
    MAX_PIECES = 64
    LATENCIES = 12

cdef int64_t[11] LATENCY_BOUNDS_NS = [
    1000000, 2000000, 5000000, 10000000, 20000000, 50000000, 100000000, 200000000, 500000000, 1000000000, 5000000000
]


cdef struct Piece:
    const char* text
    Py_ssize_t size


cdef class Appender:
    """Appends ordinary messages to the file it is attached to. The GIL is the lock: nothing here lets go of it.

    A message is ordinary if its topic and hosts were seen before, it fits the file, carries a body of bytes and
    properties of text without separators, and is neither delayed, nor prepared, nor rolled back. All else is
    declined with None and nothing is changed.
    """

    cdef public bint is_open
    """False while somebody else is appending, or nobody may."""
    cdef public bint is_follower_asleep
    """True if `wake` is to be called after the next append."""
    cdef public object wake
    cdef public dict next_offsets
    cdef public dict topics
    cdef public dict hosts
    cdef public int64_t newest_timestamp
    cdef readonly int64_t count
    cdef readonly int64_t bytes_appended
    cdef readonly int64_t slowest_ns
    cdef int64_t[LATENCIES] latencies
    cdef object message_type
    cdef object result_type
    cdef object ok
    cdef object clock
    cdef str store_host_text
    cdef bytes store_host
    cdef int64_t max_body, max_record
    cdef object file
    cdef Py_buffer target
    cdef bint attached
    cdef int64_t from_offset, position

    def __cinit__(self):
        self.attached = False

    def __init__(
        self, message_type, result_type, ok, clock, str store_host_text, bytes store_host, max_body, max_record
    ):
        self.message_type = message_type
        self.result_type = result_type
        self.ok = ok
        self.clock = clock
        self.store_host_text = store_host_text
        self.store_host = store_host
        self.max_body = max_body
        self.max_record = max_record
        self.next_offsets = {}
        self.topics = {}
        self.hosts = {}

    def __dealloc__(self):
        if self.attached:
            PyBuffer_Release(&self.target)

    def attach(self, file, target, int64_t from_offset, int64_t position):
        """From now on appends go to `target`; `file.wrote` and `file.store_timestamp` are kept up to date."""
        self.detach()
        PyObject_GetBuffer(target, &self.target, PyBUF_WRITABLE)
        self.attached = True
        self.file = file
        self.from_offset = from_offset
        self.position = position

    def detach(self):
        """Lets go of the file's memory; everything is declined until the next `attach`."""
        if self.attached:
            PyBuffer_Release(&self.target)
            self.attached = False
            self.file = None

    @property
    def latency_counts(self):
        return [self.latencies[i] for i in range(LATENCIES)]

    def append(self, message):
        """The result of an append, or None if the message is not for this path."""
        cdef int64_t started, now, size, at, queue_offset = 0, properties_size, born, ended
        cdef int64_t queue_id, flag, sys_flag, reconsume_times, prepared_offset
        cdef Piece[MAX_PIECES] pieces
        cdef int count
        cdef PyObject* found
        cdef bytes topic_bytes, born_host, store_host, body
        cdef uint8_t* p
        if not self.is_open or not self.attached or type(message) is not self.message_type:
            return None
        if message.delay_level != 0 or message.wait is not True:
            return None
        topic = message.topic
        found = PyDict_GetItem(self.topics, topic)
        if found is NULL:
            return None
        topic_bytes = <bytes>found
        found = PyDict_GetItem(self.hosts, message.born_host)
        if found is NULL:
            return None
        born_host = <bytes>found
        store_host = self.store_host
        store_host_text = message.store_host
        if store_host_text:
            found = PyDict_GetItem(self.hosts, store_host_text)
            if found is NULL:
                return None
            store_host = <bytes>found
        else:
            store_host_text = self.store_host_text
        thing = message.body
        if not PyBytes_CheckExact(thing):
            return None
        body = <bytes>thing
        queue_id_object = message.queue_id
        if not (
            read_long(message.sys_flag, &sys_flag)
            and read_long(queue_id_object, &queue_id)
            and read_long(message.flag, &flag)
            and read_long(message.reconsume_times, &reconsume_times)
            and read_long(message.prepared_transaction_offset, &prepared_offset)
            and read_long(message.born_timestamp, &born)
        ):
            return None
        if (
            queue_id < 0 or queue_id > MAX_INT or born < 0
            or sys_flag != <int32_t>sys_flag or flag != <int32_t>flag or reconsume_times != <int32_t>reconsume_times
            or (sys_flag & TRANSACTION_MASK) == PREPARED or (sys_flag & TRANSACTION_MASK) == ROLLBACK
        ):
            return None
        keys = message.keys
        if PyTuple_CheckExact(keys) or PyList_CheckExact(keys):
            keys = keys[0] if len(keys) == 1 else " ".join(keys)
        properties = message.properties
        tags = message.tags
        count = collect_pieces(properties, keys, tags, pieces, &properties_size)
        if count < 0:
            return None
        size = (
            75 + PyBytes_GET_SIZE(born_host) + PyBytes_GET_SIZE(store_host) + PyBytes_GET_SIZE(body)
            + PyBytes_GET_SIZE(topic_bytes) + properties_size
        )
        at = self.position
        if (
            PyBytes_GET_SIZE(body) > self.max_body or size > self.max_record or properties_size > 32767
            or size + 8 > self.target.len - at
        ):
            return None
        sys_flag &= ~0x30
        if PyBytes_GET_SIZE(born_host) == 20:
            sys_flag |= 0x10
        if PyBytes_GET_SIZE(store_host) == 20:
            sys_flag |= 0x20
        key = (topic, queue_id_object)
        found = PyDict_GetItem(self.next_offsets, key)
        if found is not NULL:
            queue_offset = PyLong_AsLongLong(<object>found)
        started = wall_clock_ns()
        now = started // 1000000 if self.clock is None else PyLong_AsLongLong(self.clock())
        if not self.is_open or self.position != at:
            return None  # the clock was Python code and let somebody else in
        p = <uint8_t*>self.target.buf + at
        store32(p + 8, <int32_t>crc_of(<const uint8_t*>PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body)))
        store32(p + 12, <int32_t>queue_id)
        store32(p + 16, <int32_t>flag)
        store64(p + 20, queue_offset)
        store64(p + 28, self.from_offset + at)
        store32(p + 36, <int32_t>sys_flag)
        store64(p + 40, born if born else now)
        memcpy(p + 48, PyBytes_AS_STRING(born_host), PyBytes_GET_SIZE(born_host))
        p += 48 + PyBytes_GET_SIZE(born_host)
        store64(p, now)
        memcpy(p + 8, PyBytes_AS_STRING(store_host), PyBytes_GET_SIZE(store_host))
        p += 8 + PyBytes_GET_SIZE(store_host)
        store32(p, <int32_t>reconsume_times)
        store64(p + 4, prepared_offset)
        store32(p + 12, <int32_t>PyBytes_GET_SIZE(body))
        memcpy(p + 16, PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body))
        p += 16 + PyBytes_GET_SIZE(body)
        p[0] = <uint8_t>PyBytes_GET_SIZE(topic_bytes)
        memcpy(p + 1, PyBytes_AS_STRING(topic_bytes), PyBytes_GET_SIZE(topic_bytes))
        p += 1 + PyBytes_GET_SIZE(topic_bytes)
        store16(p, <int16_t>properties_size)
        write_pieces(p + 2, pieces, count)
        store_head(<uint8_t*>self.target.buf + at, <int32_t>size, MESSAGE_MAGIC)
        self.position = at + size
        self.newest_timestamp = now
        self.next_offsets[key] = queue_offset + 1
        self.file.store_timestamp = now
        self.file.wrote = at + size
        ended = wall_clock_ns() - started
        self.count += 1
        self.bytes_appended += size
        self.latencies[latency_place(ended)] += 1
        if ended > self.slowest_ns:
            self.slowest_ns = ended
        if self.is_follower_asleep:
            self.is_follower_asleep = False
            self.wake()
        return self.result_type(
            self.ok, self.from_offset + at, size, queue_id_object, queue_offset, now, store_host_text
        )


cdef inline bint read_long(object number, int64_t* value) noexcept:
    """False if it is no int of 64 bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return overflow == 0


cdef int latency_place(int64_t nanoseconds) noexcept nogil:
    cdef int place = 0
    while place < LATENCIES - 1 and nanoseconds > LATENCY_BOUNDS_NS[place]:
        place += 1
    return place


cdef int collect_pieces(properties, keys, tags, Piece* pieces, int64_t* total) except? -1:
    """The property string as pieces of text, names and values by turns, and its length; -1 if it is not ordinary."""
    cdef int count = 0
    cdef int64_t size = 0
    cdef Py_ssize_t position = 0
    cdef PyObject* name
    cdef PyObject* value
    if not PyDict_CheckExact(properties):
        return -1
    if PyDict_Size(properties):
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
    total[0] = size + count - (1 if count else 0)  # one separator after each piece but the last
    return count


cdef int add_piece(object text, Piece* pieces, int* count, int64_t* size, bint is_name) except? -1:
    cdef Piece* piece = &pieces[count[0]]
    if not PyUnicode_CheckExact(text):
        return -1
    piece.text = PyUnicode_AsUTF8AndSize(text, &piece.size)
    if memchr(piece.text, 2, piece.size) or (is_name and memchr(piece.text, 1, piece.size)):
        return -1
    count[0] += 1
    size[0] += piece.size
    return 0


cdef bint is_special(Piece* name) noexcept nogil:
    """Names that mean something to the store; the general path knows what."""
    return (
        (name.size == 4 and (not memcmp(name.text, "KEYS", 4) or not memcmp(name.text, "TAGS", 4)
                             or not memcmp(name.text, "WAIT", 4)))
        or (name.size == 5 and not memcmp(name.text, "DELAY", 5))
    )


cdef void write_pieces(uint8_t* p, Piece* pieces, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        memcpy(p, pieces[i].text, pieces[i].size)
        p += pieces[i].size
        if i + 1 < count:
            p[0] = 1 if i % 2 == 0 else 2
            p += 1

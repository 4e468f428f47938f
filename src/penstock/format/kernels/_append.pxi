# The appender: an ordinary message from the caller's object into the log in one step. The reference is the store's
# general path, which also takes everything that this declines.

from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM
from cpython.tuple cimport PyTuple_CheckExact

cdef extern from "Python.h":
    bint PyBytes_CheckExact(object thing)
    bint PyLong_CheckExact(object thing)
    long long PyLong_AsLongLong(object number) except? -1


cdef struct Placed:
    int64_t size
    int64_t queue_offset
    PyObject* queue_id  # these two are the message's own
    PyObject* store_host


cdef extern from *:
    """
    #include <structmember.h>

    /* Where a member descriptor's object lies in its instances, -1 if the thing is no such descriptor. */
    static Py_ssize_t member_offset(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type) return -1;
        PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX || member->type == T_OBJECT ? member->offset : -1;
    }
    static inline PyObject *member_at(PyObject *thing, Py_ssize_t offset) {
        return *(PyObject **)((char *)thing + offset);
    }
    """
    Py_ssize_t member_offset(object descriptor)
    PyObject* member_at(object thing, Py_ssize_t offset)


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
    cdef public object page_need
    """Called after every 8 MiB: the pages that follow should be made ready."""
    cdef int64_t half_used
    cdef public dict queues
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
    cdef Py_buffer target
    cdef Py_buffer marks
    cdef bint attached, readable
    cdef int64_t from_offset, position
    cdef Py_ssize_t topic_at, body_at, keys_at, tags_at, properties_at, queue_id_at, delay_level_at, flag_at
    cdef Py_ssize_t sys_flag_at, born_timestamp_at, born_host_at, store_host_at, reconsume_times_at, prepared_at, wait_at
    cdef Py_ssize_t property_text_at

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
        self.queues = {}
        self.hosts = {}
        self.wake = self.page_need = bool
        self.from_offset = -1
        self.readable = True
        self.topic_at = self.find("topic")
        self.body_at = self.find("body")
        self.keys_at = self.find("keys")
        self.tags_at = self.find("tags")
        self.properties_at = self.find("properties")
        self.queue_id_at = self.find("queue_id")
        self.delay_level_at = self.find("delay_level")
        self.flag_at = self.find("flag")
        self.sys_flag_at = self.find("sys_flag")
        self.born_timestamp_at = self.find("born_timestamp")
        self.born_host_at = self.find("born_host")
        self.store_host_at = self.find("store_host")
        self.reconsume_times_at = self.find("reconsume_times")
        self.prepared_at = self.find("prepared_transaction_offset")
        self.wait_at = self.find("wait")
        self.property_text_at = self.find("property_text")

    cdef Py_ssize_t find(self, str name):
        """Where messages keep a field; if that cannot be told, every message is declined."""
        cdef Py_ssize_t offset = member_offset(getattr(self.message_type, name))
        if offset < 0:
            self.readable = False
        return offset

    def __dealloc__(self):
        self.let_go()

    def attach(self, target, marks, int64_t from_offset):
        """From now on appends go to `target`, whose end so far and newest store time stand in `marks`."""
        cdef Py_buffer taken, taken_marks
        PyObject_GetBuffer(target, &taken, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(marks, &taken_marks, PyBUF_WRITABLE)
        except BaseException:
            PyBuffer_Release(&taken)
            raise
        self.let_go()
        self.target = taken
        self.marks = taken_marks
        self.attached = taken_marks.len == 16
        self.position = (<int64_t*>self.marks.buf)[0]
        if from_offset != self.from_offset:
            self.half_used = self.position
        self.from_offset = from_offset

    def detach(self):
        """Lets go of the file's memory; everything is declined until the next `attach`."""
        self.let_go()

    cdef void let_go(self) noexcept:
        if self.attached:
            self.attached = False
            PyBuffer_Release(&self.target)
            PyBuffer_Release(&self.marks)

    @property
    def latency_counts(self):
        return [self.latencies[i] for i in range(LATENCIES)]

    cdef int64_t place(
        self, message, int64_t now, int64_t at, bint publish, bint in_batch, Placed* placed
    ) except? -2:
        """Writes a message's record at a position; its size, or -1 if the message is not for this path."""
        cdef int64_t size, queue_offset = 0, properties_size = 0, born
        cdef int64_t queue_id, flag, sys_flag, reconsume_times, prepared_offset, delay_level
        cdef Py_ssize_t topic_size, body_size, born_size, store_size
        cdef Piece[MAX_PIECES] pieces
        cdef int count
        cdef PyObject* found
        cdef PyObject* topic
        cdef PyObject* body
        cdef PyObject* queue_id_object
        cdef PyObject* store_host_text
        cdef dict offsets
        cdef const char* topic_text
        cdef const char* born_host
        cdef const char* store_host = PyBytes_AS_STRING(self.store_host)
        cdef uint8_t* p
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
        topic_text = PyUnicode_AsUTF8AndSize(<object>topic, &topic_size)
        found = PyDict_GetItem(self.hosts, <object>member_at(message, self.born_host_at))
        if found is NULL:
            return -1
        born_host = PyBytes_AS_STRING(<object>found)
        born_size = PyBytes_GET_SIZE(<object>found)
        store_size = PyBytes_GET_SIZE(self.store_host)
        store_host_text = member_at(message, self.store_host_at)
        if not PyUnicode_CheckExact(<object>store_host_text):
            return -1
        if PyUnicode_GET_LENGTH(<object>store_host_text):
            found = PyDict_GetItem(self.hosts, <object>store_host_text)
            if found is NULL:
                return -1
            store_host = PyBytes_AS_STRING(<object>found)
            store_size = PyBytes_GET_SIZE(<object>found)
        else:
            store_host_text = <PyObject*>self.store_host_text
        body = member_at(message, self.body_at)
        if not PyBytes_CheckExact(<object>body):
            return -1
        body_size = PyBytes_GET_SIZE(<object>body)
        queue_id_object = member_at(message, self.queue_id_at)
        if not (
            read_long(<object>member_at(message, self.sys_flag_at), &sys_flag)
            and read_long(<object>queue_id_object, &queue_id)
            and read_long(<object>member_at(message, self.flag_at), &flag)
            and read_long(<object>member_at(message, self.reconsume_times_at), &reconsume_times)
            and read_long(<object>member_at(message, self.prepared_at), &prepared_offset)
            and read_long(<object>member_at(message, self.born_timestamp_at), &born)
        ):
            return -1
        if (
            queue_id < 0 or queue_id > MAX_INT or born < 0
            or sys_flag != <int32_t>sys_flag or flag != <int32_t>flag or reconsume_times != <int32_t>reconsume_times
            or (sys_flag & TRANSACTION_MASK) == PREPARED or (sys_flag & TRANSACTION_MASK) == ROLLBACK
            or (in_batch and sys_flag & TRANSACTION_MASK)
        ):
            return -1
        keys = <object>member_at(message, self.keys_at)
        if PyTuple_CheckExact(keys) or PyList_CheckExact(keys):
            try:
                keys = keys[0] if len(keys) == 1 else " ".join(keys)
            except TypeError:
                return -1
        count = collect_pieces(
            <object>member_at(message, self.properties_at), keys, <object>member_at(message, self.tags_at),
            <object>member_at(message, self.property_text_at), pieces, &properties_size,
        )
        if count < 0:
            return -1
        size = 75 + born_size + store_size + body_size + topic_size + properties_size
        if (
            body_size > self.max_body or size > self.max_record or properties_size > 32767
            or size + 8 > self.target.len - at
        ):
            return -1
        sys_flag &= ~0x30
        if born_size == 20:
            sys_flag |= 0x10
        if store_size == 20:
            sys_flag |= 0x20
        found = PyDict_GetItem(offsets, <object>queue_id_object)
        if found is not NULL:
            queue_offset = PyLong_AsLongLong(<object>found)
        p = <uint8_t*>self.target.buf + at
        store32(p + 8, <int32_t>crc_of(<const uint8_t*>PyBytes_AS_STRING(<object>body), body_size))
        store32(p + 12, <int32_t>queue_id)
        store32(p + 16, <int32_t>flag)
        store64(p + 20, queue_offset)
        store64(p + 28, self.from_offset + at)
        store32(p + 36, <int32_t>sys_flag)
        store64(p + 40, born if born else now)
        memcpy(p + 48, born_host, born_size)
        p += 48 + born_size
        store64(p, now)
        memcpy(p + 8, store_host, store_size)
        p += 8 + store_size
        store32(p, <int32_t>reconsume_times)
        store64(p + 4, prepared_offset)
        store32(p + 12, <int32_t>body_size)
        memcpy(p + 16, PyBytes_AS_STRING(<object>body), body_size)
        p += 16 + body_size
        p[0] = <uint8_t>topic_size
        memcpy(p + 1, topic_text, topic_size)
        p += 1 + topic_size
        store16(p, <int16_t>properties_size)
        write_pieces(p + 2, pieces, count)
        if publish:
            store_head(<uint8_t*>self.target.buf + at, <int32_t>size, MESSAGE_MAGIC)
        offsets[<object>queue_id_object] = queue_offset + 1
        placed.size = size
        placed.queue_offset = queue_offset
        placed.queue_id = queue_id_object
        placed.store_host = store_host_text
        return size

    cdef void advance(self, int64_t end, int64_t now, int64_t started, int64_t count) noexcept:
        """The records up to `end` are there: moves the file's end, and counts them."""
        cdef int64_t took = wall_clock_ns() - started
        self.count += count
        self.bytes_appended += end - self.position
        self.latencies[latency_place(took)] += count
        if took > self.slowest_ns:
            self.slowest_ns = took
        self.position = end
        self.newest_timestamp = now
        (<int64_t*>self.marks.buf)[1] = now
        (<int64_t*>self.marks.buf)[0] = end

    cdef result(self, int64_t at, int64_t now, const Placed* placed):
        return self.result_type(
            self.ok, self.from_offset + at, placed.size, <object>placed.queue_id, placed.queue_offset, now,
            <object>placed.store_host,
        )

    cdef tell_others(self):
        """To be called last: this is Python code, during which somebody may attach another file."""
        if self.position >= self.half_used:
            self.half_used += 8 << 20
            self.page_need()
        if self.is_follower_asleep:
            self.is_follower_asleep = False
            self.wake()

    def append(self, message):
        """The result of an append, or None if the message is not for this path."""
        cdef int64_t started = wall_clock_ns(), now = started // 1000000, at
        cdef Placed placed
        if self.clock is not None:
            now = PyLong_AsLongLong(self.clock())  # Python code: others may run meanwhile, so it comes first
        if not self.is_open or not self.attached or not self.readable:
            return None
        at = self.position
        if self.place(message, now, at, True, False, &placed) < 0:
            return None
        self.advance(at + placed.size, now, started, 1)
        result = self.result(at, now, &placed)
        self.tell_others()
        return result

    def append_many(self, messages):
        """The results of an append of all, visible at once; None, and nothing changed, if one is not for this path."""
        cdef int64_t started = wall_clock_ns(), now = started // 1000000, start, at
        cdef Py_ssize_t i, count = len(messages), done = 0
        cdef Placed* placed
        if self.clock is not None:
            now = PyLong_AsLongLong(self.clock())
        if not PyList_CheckExact(messages) or not count or not self.is_open or not self.attached or not self.readable:
            return None
        placed = <Placed*>malloc(count * sizeof(Placed))
        if placed == NULL:
            raise MemoryError
        try:
            start = at = self.position
            for i in range(count):
                if self.place(<object>PyList_GET_ITEM(messages, i), now, at, i > 0, True, &placed[i]) < 0:
                    break
                at += placed[i].size
                done += 1
            if done < count:
                self.take_back(messages, start, at, done)
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
        self.tell_others()
        return results

    cdef int take_back(self, list messages, int64_t start, int64_t end, Py_ssize_t count) except -1:
        """Undoes what was placed of a batch: no byte of it may stay, and the queues go back."""
        cdef Py_ssize_t i
        cdef dict offsets
        memset(<uint8_t*>self.target.buf + start, 0, end - start)
        for i in range(count):
            message = <object>PyList_GET_ITEM(messages, i)
            offsets = self.queues[<object>member_at(message, self.topic_at)]
            offsets[<object>member_at(message, self.queue_id_at)] -= 1
        return 0


cdef inline bint read_long(object number, int64_t* value) noexcept:
    """False if it is no int of 64 bits."""
    cdef int overflow = 0
    if not PyLong_CheckExact(number):
        return False
    value[0] = PyLong_AsLongLongAndOverflow(number, &overflow)
    return overflow == 0

# A page of a queue: units to records, checked and copied in one step. The plain twin is plain/read.py.
# Keeps the GIL: a page takes microseconds if its records are in memory, and no other thread can unmap the files
# meanwhile. Residency tells whether they are; the caller loads what is not, without the GIL.

cdef extern from *:
    """
    #include <sys/mman.h>
    #include <time.h>
    #include <unistd.h>
    static inline int64_t coarse_ms(void) {
        struct timespec t; clock_gettime(CLOCK_MONOTONIC_COARSE, &t); return t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    """
    int64_t coarse_ms() noexcept nogil
    int mincore(void* address, size_t length, unsigned char* pages) noexcept nogil
    long sysconf(int name) noexcept nogil
    int _SC_PAGESIZE

cdef enum:
    PAGES_AT_ONCE = 64  # the bits of one PageBits
    BITS_AT_ONCE = 4
    KEPT_MS = 1000

ctypedef struct PageBits:
    int64_t asked_at
    uint64_t resident


cdef class Residency:
    """Which pages of a file map are in memory, so that reading them does not wait for the disk.

    The operating system is asked about 256 pages at a time (`mincore`). That a page is in memory is believed for a
    second; that it is not is asked again each time. The map may be closed; then the answers mean nothing.
    """

    cdef char* address
    cdef int64_t size, page_size
    cdef PageBits* bits

    def __init__(self, data):
        cdef Py_buffer source
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        self.address = <char*>source.buf
        self.size = source.len
        PyBuffer_Release(&source)
        self.page_size = sysconf(_SC_PAGESIZE)
        free(self.bits)
        self.bits = <PageBits*>calloc(self.size // (PAGES_AT_ONCE * self.page_size) + 1, sizeof(PageBits))
        if self.bits == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.bits)

    def check(self, int64_t start, int64_t stop):
        """Whether data[start:stop] is in memory; False for a range outside of `data`."""
        return self.has(start, stop)

    cdef bint has(self, int64_t start, int64_t stop) noexcept nogil:
        cdef int64_t now = coarse_ms(), chunk, first, last
        cdef uint64_t wanted
        if start < 0 or stop > self.size:
            return False
        if start >= stop:
            return True
        first = start // self.page_size
        last = (stop - 1) // self.page_size
        for chunk in range(first // PAGES_AT_ONCE, last // PAGES_AT_ONCE + 1):
            wanted = <uint64_t>-1
            if chunk == first // PAGES_AT_ONCE:
                wanted &= <uint64_t>-1 << (first % PAGES_AT_ONCE)
            if chunk == last // PAGES_AT_ONCE:
                wanted &= <uint64_t>-1 >> (PAGES_AT_ONCE - 1 - last % PAGES_AT_ONCE)
            if now - self.bits[chunk].asked_at >= KEPT_MS or wanted & ~self.bits[chunk].resident:
                self.ask(chunk - chunk % BITS_AT_ONCE, now)
                if wanted & ~self.bits[chunk].resident:
                    return False
        return True

    cdef void ask(self, int64_t chunk, int64_t now) noexcept nogil:
        cdef unsigned char[BITS_AT_ONCE * PAGES_AT_ONCE] pages
        cdef int64_t start = chunk * PAGES_AT_ONCE * self.page_size, i, count
        cdef int64_t size = min(BITS_AT_ONCE * PAGES_AT_ONCE * self.page_size, self.size - start)
        count = (size + self.page_size - 1) // self.page_size
        if mincore(self.address + start, size, pages):
            memset(pages, 0, count)
        for i in range(count):
            if i % PAGES_AT_ONCE == 0:
                self.bits[chunk + i // PAGES_AT_ONCE].asked_at = now
                self.bits[chunk + i // PAGES_AT_ONCE].resident = 0
            self.bits[chunk + i // PAGES_AT_ONCE].resident |= <uint64_t>(pages[i] & 1) << (i % PAGES_AT_ONCE)


# -- readers -------------------------------------------------------------------------------------------------

cdef class ReaderCount:
    """Counts the readers of a file, so that it is unmapped only after the last one. The GIL is the lock.

    Starts at one: the owner counts as a reader until `retire`.
    """

    cdef readonly int64_t count
    cdef readonly bint is_retired

    def __init__(self):
        self.count = 1

    def acquire(self):
        """Adds a reader and returns True; False once the file is retired. Each acquire needs one `release`."""
        if self.is_retired or self.count <= 0:
            return False
        self.count += 1
        return True

    def release(self):
        """Removes a reader; returns True if it was the last one."""
        self.count -= 1
        return self.count == 0

    def retire(self):
        """Refuses new readers from now on and removes the owner; returns True if no reader is left.

        A second call changes nothing and returns False.
        """
        if self.is_retired:
            return False
        self.is_retired = True
        self.count -= 1
        return self.count == 0


cdef class FileWindow:
    """What readers see of a mapped file: its bytes, how many of them may be read, and whether it is being deleted.

    data         the file's bytes
    from_offset  the offset of its first byte
    marks        int64 numbers that the file's writer keeps; the first is the number of bytes that may be read
    readers      refuses readers once the file is being deleted
    residency    tells what of `data` is in memory; None: all of it is
    """

    cdef object data
    cdef int64_t from_offset
    cdef Py_buffer marks
    cdef bint has_marks
    cdef ReaderCount readers
    cdef Residency residency

    def __init__(
        self, data, int64_t from_offset, marks, ReaderCount readers not None, Residency residency
    ):
        if self.has_marks:
            raise TypeError("a window is set up once")
        PyObject_GetBuffer(marks, &self.marks, PyBUF_SIMPLE)
        self.has_marks = True
        if self.marks.len < 8:
            raise ValueError("the marks of a file take 8 bytes or more")
        self.data = data
        self.from_offset = from_offset
        self.readers = readers
        self.residency = residency

    def __dealloc__(self):
        if self.has_marks:
            PyBuffer_Release(&self.marks)

    cdef inline bint is_open(self) noexcept:
        return not self.readers.is_retired and self.readers.count > 0

    cdef inline int64_t readable(self) noexcept:
        return (<const int64_t*>self.marks.buf)[0]


# -- pages of a queue ----------------------------------------------------------------------------------------

cdef enum:
    MAX_PAGE = 1024
    MIN_EXAMINED = 800  # units that a page looks at, at least, for messages with the wanted tags
    RECENT_BYTES = 67108864
    MAX_GAP = 262144
    MAX_PLAN = 8388608
    FOUND = 0
    NO_MATCH = 1
    REMOVING = 2
    UNITS_AHEAD = 6


cdef inline void prefetch_record(
    const uint8_t* units, int64_t at, int64_t stop, const Py_buffer* source, int64_t base
) noexcept nogil:
    """Prefetches the record of the unit at `at`: the records of a queue are scattered over the log.

    The last byte, which the check of a record looks at first, may lie in one cache line more than the steps reach.
    """
    cdef int64_t position, size, i
    if at + 20 > stop:
        return
    position = load64(units + at) - base
    size = load32(units + at + 8)
    if 0 <= position < source.len and 0 < size <= source.len - position:
        for i in range(0, min(size, 1536), 64):
            prefetch_once(<const uint8_t*>source.buf + position + i)
        prefetch_once(<const uint8_t*>source.buf + position + size - 1)


cdef bint is_among(const uint8_t* text, int64_t size, tuple texts) noexcept:
    cdef Py_ssize_t i
    for i in range(len(texts)):
        if PyBytes_GET_SIZE(<object>texts[i]) == size and not memcmp(PyBytes_AS_STRING(<object>texts[i]), text, size):
            return True
    return False


ctypedef struct Plan:
    int64_t count
    int64_t stop
    int64_t[MAX_PAGE] starts
    int64_t[MAX_PAGE] stops
    int64_t[MAX_PAGE] places


ctypedef struct PageState:
    int64_t at            # place of the first unit not examined
    int64_t queue_offset  # its queue offset
    int64_t count         # the page's records and bytes
    int64_t total
    int64_t last          # physical offset of the last unit examined
    int64_t needed        # physical offset at which to continue, or -1
    int status            # -1 if no unit was examined
    bint is_cold          # the plan says what is not in memory


ctypedef struct FoundRecords:
    int64_t count
    int64_t size  # in all
    const uint8_t* places[MAX_PAGE]
    int64_t[MAX_PAGE] sizes


ctypedef struct UsualPage:
    PageState state
    FoundRecords records
    int64_t highest  # queue offset


cdef bytes join_records(const FoundRecords* found):
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, found.size)
    copy_records(PyBytes_AS_STRING(joined), found)
    return joined


cdef void copy_records(char* p, const FoundRecords* found) noexcept nogil:
    cdef int64_t i
    for i in range(found.count):
        memcpy(p, found.places[i], found.sizes[i])
        p += found.sizes[i]


cdef class PageReader:
    """Reads pages of queues within fixed limits; has no other state.

    memory_bytes         a record is in memory if it starts at most this many bytes before the log's end, else on disk
    max_count_in_memory  a page ends at a record in memory once it has this many records
    max_bytes_in_memory  a page ends at a record in memory that would bring it past this many bytes
    max_count_on_disk    the same count for records on disk
    max_bytes_on_disk    the same size for records on disk
    check_crc            whether to check the CRC of each body
    page_type            `try_page` calls it with (status, next queue offset, lowest and highest queue offset, records,
                         count, damaged queue offsets, whether the last record is on disk)
    statuses             the values of FOUND, NO_MATCH and REMOVING for it
    """

    cdef int64_t memory_bytes, max_count_in_memory, max_bytes_in_memory, max_count_on_disk, max_bytes_on_disk
    cdef bint check_crc
    cdef object page_type
    cdef tuple statuses

    def __init__(
        self, int64_t memory_bytes, int64_t max_count_in_memory, int64_t max_bytes_in_memory, int64_t max_count_on_disk,
        int64_t max_bytes_on_disk, bint check_crc, page_type=None, tuple statuses=(None, None, None),
    ):
        if statuses is None or len(statuses) != 3:
            raise ValueError("a page has one of three statuses")
        self.page_type = page_type
        self.statuses = statuses
        self.memory_bytes = memory_bytes
        self.max_count_in_memory = max_count_in_memory
        self.max_bytes_in_memory = max_bytes_in_memory
        self.max_count_on_disk = max_count_on_disk
        self.max_bytes_on_disk = max_bytes_on_disk
        self.check_crc = check_crc

    def read(
        self,
        units,
        int64_t at,
        int64_t stop,
        int64_t queue_offset,
        bytes topic not None,
        int32_t queue_id,
        data,
        int64_t base,
        int64_t readable,
        int64_t file_size,
        int64_t log_start,
        int64_t log_end,
        int64_t max_records,
        int64_t count,
        int64_t total,
        hashes,
        tuple texts,
        Residency residency = None,
        int64_t written_from = 0,
        int64_t loaded = 0,
    ):
        """Reads the records of units[at:stop] from one log file until the page is full.

        units, at, stop       a file of the queue, and the bytes of it to read
        queue_offset          the queue offset of the first unit
        topic, queue_id       what each record must say
        data, base            a log file, and its physical offset
        readable, file_size   how many bytes of the log file may be read, and how many it has in all
        log_start, log_end    the physical offsets between which the log has records
        max_records           how many records the caller wants at most
        count, total          how many records and bytes the page has already
        hashes, texts         wanted tags as int32 hashes and as texts; None for hashes wants every record
        residency             tells what of `data` is in memory; None: all of it is
        written_from          physical offset from which this process wrote the log: its last 64 MiB are in memory
        loaded                the caller has loaded the records of units[at:loaded]

        Returns (records, place and queue offset of the first unit not examined, the page's count and total now, status,
        damaged queue offsets or None, physical offset of the last unit examined, physical offset at which to continue
        or -1, cold ranges or None). The status is FOUND, NO_MATCH or REMOVING, or -1 if no unit was examined. The page
        continues in another log file, or in the same one, if not all of its records are in memory. If those of the next
        units are not, no unit is examined, and the cold ranges are (end of these units, [(start and stop in `data`,
        place of the first unit), ...]).
        """
        cdef Py_buffer unit_source, source
        cdef PageState page
        cdef Plan plan
        cdef FoundRecords records
        cdef int64_t i
        cdef list damaged = []
        PyObject_GetBuffer(units, &unit_source, PyBUF_SIMPLE)
        try:
            if at < 0 or stop > unit_source.len:
                raise ValueError(f"units {at} to {stop} do not lie in {unit_source.len} bytes")
            PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
            try:
                page.at = at
                page.queue_offset = queue_offset
                page.count = count
                page.total = total
                self.find(
                    &page, <const uint8_t*>unit_source.buf, stop, topic, queue_id, &source, base, readable, file_size,
                    log_start, log_end, max_records, hashes, texts, residency, written_from, loaded, damaged, &plan,
                    &records,
                )
                found = join_records(&records)
            finally:
                PyBuffer_Release(&source)
        finally:
            PyBuffer_Release(&unit_source)
        if page.is_cold:
            return b"", at, queue_offset, count, total, -1, None, -1, page.needed, (
                plan.stop, [(plan.starts[i], plan.stops[i], plan.places[i]) for i in range(plan.count)],
            )
        return (
            found, page.at, page.queue_offset, page.count, page.total, page.status, damaged or None, page.last,
            page.needed, None,
        )

    def try_page(
        self,
        tuple unit_files not None,
        int64_t lowest,
        offset,
        bytes topic not None,
        int32_t queue_id,
        tuple log_files not None,
        int64_t file_size,
        int64_t log_end,
        max_records,
        hashes,
        tuple texts,
        int64_t written_from,
    ):
        """Reads the usual page in one step: its units lie in one file, its records in one file, all in memory.

        unit_files    the files of the queue, in order; each has a FileWindow as `window`
        lowest        the lowest queue offset of the queue
        offset        the queue offset of the first message wanted
        log_files     the files of the log, in order, each of `file_size` bytes

        The other arguments are those of `read`. Returns a page; None, after which nothing has changed, for every other
        get, and wherever a status other than those three is due.
        """
        cdef UsualPage usual
        cdef int64_t first, most
        cdef list damaged = []
        if not read_long(offset, &first) or not read_long(max_records, &most):
            return None
        if not self.find_usual(
            unit_files, lowest, first, topic, queue_id, log_files, file_size, log_end, most, hashes, texts,
            written_from, damaged, &usual,
        ):
            return None
        return self.page_type(
            self.statuses[usual.state.status], usual.state.queue_offset, lowest, usual.highest,
            join_records(&usual.records), usual.state.count, tuple(damaged) if damaged else (),
            log_end - max(usual.state.last, 0) > self.memory_bytes,
        )

    cdef bint find_usual(
        self, tuple unit_files, int64_t lowest, int64_t first, bytes topic, int32_t queue_id, tuple log_files,
        int64_t file_size, int64_t log_end, int64_t most, hashes, tuple texts, int64_t written_from, list damaged,
        UsualPage* usual,
    ) except -1:
        """Finds the records of the usual page; see `try_page`. Returns False for any other page.

        The places of the records are valid until Python code runs, which may unmap the files.
        """
        cdef Py_buffer unit_source, source
        cdef Plan plan
        cdef FileWindow units, log
        cdef PageState* page = &usual.state
        cdef int64_t at, stop, readable, log_start = -1, physical, place
        cdef Py_ssize_t i, log_count = len(log_files)
        if most <= 0 or file_size <= 0 or not len(unit_files) or not log_count:
            return False
        units = unit_files[len(unit_files) - 1].window
        usual.highest = (units.from_offset + units.readable()) // 20
        if not lowest <= first < usual.highest:
            return False
        i = len(unit_files) - 1
        while units.from_offset > first * 20 and i > 0:
            i -= 1
            units = unit_files[i].window
        at = first * 20 - units.from_offset
        readable = units.readable()
        if at < 0 or readable - at < 20 or not units.is_open():
            return False
        stop = min(readable, at + 20 * max(min(most, MAX_INT), MIN_EXAMINED))
        if units.residency is not None and not units.residency.has(at, stop):
            return False
        for i in range(log_count):
            log = log_files[i].window
            if log.is_open():
                log_start = log.from_offset
                break
        if log_start < 0:
            return False
        PyObject_GetBuffer(units.data, &unit_source, PyBUF_SIMPLE)
        try:
            if stop > unit_source.len:
                return False
            physical = load64(<const uint8_t*>unit_source.buf + at)
            log = log_files[0].window
            if physical < log.from_offset:
                return False
            place = (physical - log.from_offset) // file_size
            if place >= log_count:
                return False
            log = log_files[place].window
            if not log.is_open() or not log.from_offset <= physical < log.from_offset + file_size:
                return False
            PyObject_GetBuffer(log.data, &source, PyBUF_SIMPLE)
            try:
                page.at = at
                page.queue_offset = first
                page.count = page.total = 0
                self.find(
                    page, <const uint8_t*>unit_source.buf, stop, topic, queue_id, &source, log.from_offset,
                    log.readable(), file_size, log_start, log_end, most, hashes, texts, log.residency,
                    written_from, 0, damaged, &plan, &usual.records,
                )
            finally:
                PyBuffer_Release(&source)
        finally:
            PyBuffer_Release(&unit_source)
        return not (page.is_cold or page.needed >= 0 or page.status < 0)

    cdef int find(
        self, PageState* page, const uint8_t* units, int64_t stop, bytes topic, int32_t queue_id,
        const Py_buffer* source, int64_t base, int64_t readable, int64_t file_size, int64_t log_start, int64_t log_end,
        int64_t max_records, hashes, tuple texts, Residency residency, int64_t written_from, int64_t loaded,
        list damaged, Plan* plan, FoundRecords* found,
    ) except -1:
        """Finds records from the unit at page.at on. See `read`. units[page.at:stop] must exist.

        The places of the records are valid until Python code runs, which may unmap the files.
        """
        cdef Py_buffer hash_source
        cdef const int32_t* wanted = NULL
        cdef int64_t wanted_count = 0
        cdef const uint8_t* unit
        cdef const uint8_t* value = NULL
        cdef int64_t physical = -1, code, i, taken = 0, taken_bytes = 0, value_size = 0
        cdef int64_t at = page.at, queue_offset = page.queue_offset, count = page.count, total = page.total
        cdef int32_t unit_size
        cdef int reason
        cdef Row row
        found.count = found.size = 0
        if hashes is not None:
            PyObject_GetBuffer(hashes, &hash_source, PyBUF_SIMPLE)
            wanted = <const int32_t*>hash_source.buf
            wanted_count = hash_source.len // 4
        try:
            page.last = page.needed = -1
            page.status = -1
            page.is_cold = False
            readable = min(readable, source.len)
            plan.stop = stop
            if loaded > at:
                plan.stop = min(loaded, stop)
            elif residency is not None and at + 20 <= stop and load64(units + at) < max(
                written_from, log_end - RECENT_BYTES
            ):
                plan.stop = min(stop, at + 20 * (max_records - count))
                if wanted != NULL or not self.is_span_resident(units, at, plan.stop, base, readable, residency):
                    self.plan_page(
                        units, at, stop, wanted, wanted_count, base, readable, file_size, log_start, log_end, max_records,
                        count, total, plan,
                    )
                    for i in range(plan.count):
                        if not residency.has(plan.starts[i], plan.stops[i]):
                            page.needed = load64(units + at)
                            page.is_cold = True
                            return 0
            for i in range(UNITS_AHEAD):
                prefetch_record(units, at + 20 * i, stop, source, base)
            while at + 20 <= stop and taken < MAX_PAGE:
                prefetch_record(units, at + 20 * UNITS_AHEAD, stop, source, base)
                unit = units + at
                physical = load64(unit)
                unit_size = load32(unit + 8)
                code = load64(unit + 12)
                if count and self.is_full(log_end - physical, count, total + unit_size, max_records):
                    break
                if at >= plan.stop:
                    page.needed = physical
                    break
                if unit_size == MAX_INT or unit_size <= 0 or physical < log_start:
                    if not count:
                        page.status = REMOVING
                elif wanted != NULL and code >= MIN_INT and not has_hash(wanted, wanted_count, <int32_t>code):
                    if not count:
                        page.status = NO_MATCH
                elif physical < base or physical - base >= file_size:
                    page.needed = physical
                    break
                else:
                    i = physical - base
                    if i > readable or unit_size > readable - i:
                        reason = UNWRITTEN
                    else:
                        reason = examine(<const uint8_t*>source.buf, readable, i, base, self.check_crc, &row)
                        if reason == STOP and (
                            row.size != unit_size or row.queue_id != queue_id or row.queue_offset != queue_offset
                            or row.topic_length != PyBytes_GET_SIZE(topic)
                            or memcmp(
                                <const uint8_t*>source.buf + i + row.topic_at, PyBytes_AS_STRING(topic),
                                row.topic_length,
                            )
                        ):
                            reason = BAD_POSITION
                    if reason != STOP:
                        if not count:
                            page.status = REMOVING
                        if reason != UNWRITTEN:
                            damaged.append(queue_offset)
                    elif wanted != NULL and not (
                        last_value(
                            <const uint8_t*>source.buf + i + row.properties_at, row.properties_length, b"TAGS", 4,
                            &value, &value_size,
                        )
                        and is_among(value, value_size, texts)
                    ):
                        if not count:
                            page.status = NO_MATCH
                    else:
                        found.places[taken] = <const uint8_t*>source.buf + i
                        found.sizes[taken] = unit_size
                        taken += 1
                        count += 1
                        total += unit_size
                        taken_bytes += unit_size
                        page.status = FOUND
                page.last = physical
                queue_offset += 1
                at += 20
        finally:
            if hashes is not None:
                PyBuffer_Release(&hash_source)
        found.count = taken
        found.size = taken_bytes
        page.at = at
        page.queue_offset = queue_offset
        page.count = count
        page.total = total
        return 0

    cdef inline bint is_full(self, int64_t distance, int64_t count, int64_t total, int64_t max_records) noexcept nogil:
        """Whether a page of `count` records ends before a record that would bring it to `total` bytes."""
        if distance > self.memory_bytes:
            return count >= max_records or count >= self.max_count_on_disk or total > self.max_bytes_on_disk
        return count >= max_records or count >= self.max_count_in_memory or total > self.max_bytes_in_memory

    cdef bint is_span_resident(
        self, const uint8_t* units, int64_t at, int64_t stop, int64_t base, int64_t readable, Residency residency
    ) noexcept nogil:
        """Whether everything from the first to the last record of the units is in memory: the usual case, and cheap."""
        cdef int64_t start, end
        if at + 20 > stop:
            return False
        start = load64(units + at) - base
        stop -= (stop - at) % 20 + 20
        end = load64(units + stop) - base + load32(units + stop + 8)
        return 0 <= start < end <= min(readable, start + MAX_PLAN) and residency.has(start, end)

    cdef void plan_page(
        self, const uint8_t* units, int64_t at, int64_t stop, const int32_t* wanted, int64_t wanted_count, int64_t base,
        int64_t readable, int64_t file_size, int64_t log_start, int64_t log_end, int64_t max_records, int64_t count,
        int64_t total, Plan* plan,
    ) noexcept nogil:
        """Finds the ranges of the log file that a page reads if each record fits its unit; joins ranges that are close.

        The plan ends early, before `stop`, at 8 MiB.
        """
        cdef int64_t physical, size, code, start, end, bytes_planned = 0
        plan.count = 0
        while at + 20 <= stop:
            physical = load64(units + at)
            size = load32(units + at + 8)
            code = load64(units + at + 12)
            if count and self.is_full(log_end - physical, count, total + size, max_records):
                break
            if size == MAX_INT or size <= 0 or physical < log_start:
                at += 20
                continue
            if wanted != NULL and code >= MIN_INT and not has_hash(wanted, wanted_count, <int32_t>code):
                at += 20
                continue
            if physical < base or physical - base >= file_size or plan.count == MAX_PAGE or bytes_planned > MAX_PLAN:
                break
            start = physical - base
            end = min(start + size, readable)
            if start < end:
                if plan.count and 0 <= start - plan.stops[plan.count - 1] <= MAX_GAP:
                    bytes_planned += end - plan.stops[plan.count - 1]
                    plan.stops[plan.count - 1] = end
                else:
                    bytes_planned += end - start
                    plan.starts[plan.count] = start
                    plan.stops[plan.count] = end
                    plan.places[plan.count] = at
                    plan.count += 1
            count += 1
            total += size
            at += 20
        plan.stop = at


cdef inline bint has_hash(const int32_t* hashes, int64_t count, int32_t code) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        if hashes[i] == code:
            return True
    return False


cdef class QueuePages:
    """Pages of one queue with all of its messages, as pulls want them again and again.

    reader        reads the pages
    queues        all queues by (topic, queue id); a queue that is no longer there has no pages
    queue         the queue, with topic, topic_bytes, queue_id, min_offset, and its files in files.files
    log           the log, with its files in `files`, file_size, written_from and flushed_where
    only_flushed  whether only records on disk may be read
    """

    cdef PageReader reader
    cdef dict queues
    cdef tuple key
    cdef object queue, log
    cdef bytes topic
    cdef int32_t queue_id
    cdef int64_t file_size
    cdef bint only_flushed

    def __init__(self, PageReader reader not None, dict queues not None, queue, log, bint only_flushed):
        self.reader = reader
        self.queues = queues
        self.key = (queue.topic, queue.queue_id)
        self.queue = queue
        self.log = log
        self.topic = queue.topic_bytes
        self.queue_id = queue.queue_id
        self.file_size = log.file_size
        self.only_flushed = only_flushed
        if self.topic is None:
            raise TypeError("a queue has a topic")

    def read(self, int64_t offset, int64_t max_records):
        """Returns (records, next, lowest and highest queue offset, count) of a page; None where `try_page` does, where
        no message is found, or one is damaged."""
        cdef UsualPage usual
        cdef int64_t lowest = 0
        if not self.find(offset, max_records, &usual, &lowest):
            return None
        return join_records(&usual.records), usual.state.queue_offset, lowest, usual.highest, usual.records.count

    cdef bint find(self, int64_t offset, int64_t most, UsualPage* usual, int64_t* lowest) except -1:
        """Like `read`; the places of the records are valid until Python code runs."""
        cdef PyObject* found = PyDict_GetItem(self.queues, self.key)
        cdef tuple files = self.log.files
        cdef FileWindow last
        cdef int64_t log_end
        cdef list damaged
        if found is not <PyObject*>self.queue or not len(files):
            return False
        if self.only_flushed:
            log_end = self.log.flushed_where
        else:
            last = files[len(files) - 1].window
            log_end = last.from_offset + last.readable()
        lowest[0] = self.queue.min_offset
        damaged = []
        return self.reader.find_usual(
            self.queue.files.files, lowest[0], offset, self.topic, self.queue_id, files, self.file_size, log_end, most,
            None, (), self.log.written_from, damaged, usual,
        ) and usual.state.status == FOUND and not damaged

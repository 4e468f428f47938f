# Arrays, bytes and columns, held while a kernel works on them. What contradicts itself is a ValueError.

from penstock.format.rows import PUT_ROW as _PUT_ROW

_INT32, _INT64, _BOOL = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.bool_)

cdef extern from *:
    """
    /* Short texts are the rule, and for them a call costs more than the copy. */
    static inline void copy_short(uint8_t *to, const uint8_t *from, int64_t size) {
        if (size > 16) { memcpy(to, from, size); return; }
        if (size >= 8) { memcpy(to, from, 8); memcpy(to + size - 8, from + size - 8, 8); return; }
        if (size >= 4) { memcpy(to, from, 4); memcpy(to + size - 4, from + size - 4, 4); return; }
        for (int64_t i = 0; i < size; i++) to[i] = from[i];
    }

    /* The same where `slack` bytes may be read and written, whatever lies behind the text. */
    static inline void copy_text(uint8_t *to, const uint8_t *from, int64_t size, int64_t slack) {
        if (size <= 32 && slack >= 32) { memcpy(to, from, 32); return; }
        memcpy(to, from, size);
    }

    /* Eight bytes as they lie there. */
    static inline uint64_t first_bytes(const uint8_t *p) { uint64_t word; memcpy(&word, p, 8); return word; }

    /* The first such byte in [p, end), or end; up to `limit` may be read. */
    static inline const uint8_t *find_byte(
        const uint8_t *p, const uint8_t *end, uint8_t byte, const uint8_t *limit
    ) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        const uint64_t ones = 0x0101010101010101ull, tops = 0x8080808080808080ull;
        uint64_t word;
        for (int i = 0; i < 6; i++, p += 8) {
            if (p >= end) return end;
            if (limit - p < 8) break;
            memcpy(&word, p, 8);
            word ^= ones * byte;
            word = (word - ones) & ~word & tops;
            if (word) {
                p += __builtin_ctzll(word) / 8;
                return p < end ? p : end;
            }
        }
        if (p >= end) return end;
    #endif
        const uint8_t *found = (const uint8_t *)memchr(p, byte, end - p);
        return found ? found : end;
    }
    """
    void copy_short(uint8_t* to, const uint8_t* source, int64_t size) noexcept nogil
    uint64_t first_bytes(const uint8_t* p) noexcept nogil
    void copy_text(uint8_t* to, const uint8_t* source, int64_t size, int64_t slack) noexcept nogil
    const uint8_t* find_byte(
        const uint8_t* p, const uint8_t* end, uint8_t byte, const uint8_t* limit
    ) noexcept nogil


cdef class _Array:
    """The items of an array, held for as long as this object lives."""

    cdef Py_buffer held
    cdef void* items
    cdef int64_t count
    cdef bint taken

    def __cinit__(self, array, dtype, bint writable=False):
        if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
            raise ValueError("an array has another type or shape than is needed")
        PyObject_GetBuffer(array, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.taken = True
        self.items = self.held.buf
        self.count = array.shape[0]

    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.held)


cdef class _Bytes:
    """The bytes of a buffer, held for as long as this object lives."""

    cdef Py_buffer held
    cdef uint8_t* p
    cdef int64_t size
    cdef bint taken

    def __cinit__(self, data, bint writable=False):
        PyObject_GetBuffer(data, &self.held, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.taken = True
        self.p = <uint8_t*>self.held.buf
        self.size = self.held.len

    def __dealloc__(self):
        if self.taken:
            PyBuffer_Release(&self.held)


ctypedef struct Column:
    const int32_t* offsets  # one more than rows; they lie in the data, or among the items, and never fall
    const uint8_t* data     # NULL for lists and maps
    const uint8_t* limit    # where the data ends
    const uint8_t* valid    # NULL: every row is there
    int64_t count


cdef class _Column:
    """A checked column of texts, or the ranges of a column of lists, held for as long as this object lives."""

    cdef Column c
    cdef _Array offsets_held
    cdef _Array valid_held
    cdef _Bytes data_held

    def __cinit__(self, offsets, valid, data, int64_t length=0):
        cdef int64_t i
        cdef bint sound = True
        self.offsets_held = _Array(offsets, _INT32)
        self.c.offsets = <const int32_t*>self.offsets_held.items
        self.c.count = self.offsets_held.count - 1
        if self.c.count < 0:
            raise ValueError("a column needs one offset more than rows")
        if valid is not None:
            self.valid_held = _Array(valid, _BOOL)
            self.demand(self.valid_held.count)
            self.c.valid = <const uint8_t*>self.valid_held.items
        if data is not None:
            self.data_held = _Bytes(data)
            self.c.data = self.data_held.p
            length = self.data_held.size
            self.c.limit = self.c.data + length
        for i in range(self.c.count):
            sound &= self.c.offsets[i] <= self.c.offsets[i + 1]
        if not sound or self.c.offsets[0] < 0 or self.c.offsets[self.c.count] > length:
            raise ValueError("a column's offsets do not lie in its data")

    cdef int demand(self, int64_t count) except -1:
        if self.c.count != count:
            raise ValueError(f"a column has {self.c.count} rows; {count} are needed")
        return 0


cdef _Column text_column(column):
    offsets, data, valid = column
    return _Column(offsets, valid, data)


cdef inline bint has(const Column* column, int64_t i) noexcept nogil:
    return column.valid == NULL or column.valid[i]


cdef inline int64_t length_of(const Column* column, int64_t i) noexcept nogil:
    return column.offsets[i + 1] - column.offsets[i]


cdef inline const uint8_t* text_of(const Column* column, int64_t i) noexcept nogil:
    return column.data + column.offsets[i]


cdef inline int64_t span_of(const Column* column) noexcept nogil:
    return column.offsets[column.count] - column.offsets[0]

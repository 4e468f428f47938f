# Makes memory ready to be written. The plain twin does nothing.

cdef extern from *:
    """
    #include <sys/mman.h>
    #include <unistd.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif

    /* Takes the write faults of whole pages without changing a byte. */
    static void take_faults(uint8_t *from, uint8_t *to) {
        uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
        uint8_t *first = (uint8_t *)((uintptr_t)from & ~(page - 1));
    #ifdef __linux__
        if (madvise(first, to - first, MADV_POPULATE_WRITE) == 0) return;
    #endif
        for (uint8_t *p = from; p < to; p += page) __atomic_fetch_or(p, 0, __ATOMIC_RELAXED);
    }
    """
    void take_faults(uint8_t* start, uint8_t* stop) noexcept nogil


def populate(out, int64_t start, int64_t stop):
    """Makes the memory of out[start:stop] ready to be written, so that a later store meets no page fault."""
    cdef Py_buffer target
    PyObject_GetBuffer(out, &target, PyBUF_WRITABLE)
    try:
        check_room(target.len, start, stop - start)
        with nogil:
            take_faults(<uint8_t*>target.buf + start, <uint8_t*>target.buf + stop)
    finally:
        PyBuffer_Release(&target)

# How long appends take: a clock, and the class that each one counts in.

cdef extern from *:
    """
    #include <time.h>
    static inline int64_t wall_clock_ns(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    """
    int64_t wall_clock_ns() noexcept nogil

cdef enum:
    LATENCIES = 12

cdef int64_t[11] LATENCY_BOUNDS_NS = [
    1000000, 2000000, 5000000, 10000000, 20000000, 50000000, 100000000, 200000000, 500000000, 1000000000, 5000000000
]


cdef int latency_place(int64_t nanoseconds) noexcept nogil:
    cdef int place = 0
    while place < LATENCIES - 1 and nanoseconds > LATENCY_BOUNDS_NS[place]:
        place += 1
    return place

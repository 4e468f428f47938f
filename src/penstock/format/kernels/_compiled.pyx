# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, freethreading_compatible=False
"""The compiled twin of the kernels: what `_plain` does, on C pointers and mostly without the GIL.

Buffers are taken through the buffer protocol, so maps, memoryviews, bytes and arrays all serve. Every
position and length that comes from the data or from a caller is checked against the buffer before it is used,
and read from memory once only, so that a writer that changes it meanwhile cannot slip past the check.

    _topics.pxi   the table of topics
    _encode.pxi   CRC, hash, encode, publish
    _log.pxi      check, walk, find
    _past.pxi     a walk that keeps no rows; records that lost a sector
    _texts.pxi    Java's hash, and where a property ends
    _columns.pxi  properties, tag codes, keys
    _queues.pxi   rows grouped by queue, queue units
    _range.pxi    units and keys of a range, made while it is walked
    _index.pxi    the index file
    _append.pxi   an ordinary message into the log in one step
    _property_pieces.pxi, _latencies.pxi   parts of that: its properties, and how long it took
    _populate.pxi memory made ready to be written
    _buffers.pxi  arrays and columns, held while a kernel works on them
    _arrow_properties.pxi, _arrow_in.pxi   columns of messages into the log
    _arrow_out.pxi, _arrow_split.pxi       records into columns
    _pages.pxi    a page of a queue out of the log in one step
    _holds.pxi    who is reading a file
    _query.pxi    records by key
    _fields.pxi   one record as Python values
    _batch.pxi    a client's batch taken apart
    _audit.pxi    units, items and chains compared in bulk
    _tally.pxi    rows that are alike, counted
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memset

import numpy as np

from penstock.format.rows import ROW as _ROW
from penstock.format.rows import Reason as _Reason

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define PENSTOCK_BE16(x) __builtin_bswap16(x)
    #define PENSTOCK_BE32(x) __builtin_bswap32(x)
    #define PENSTOCK_BE64(x) __builtin_bswap64(x)
    #else
    #define PENSTOCK_BE16(x) (x)
    #define PENSTOCK_BE32(x) (x)
    #define PENSTOCK_BE64(x) (x)
    #endif

    /* The empty asm keeps the compiler from reading the memory a second time. */
    static inline int16_t load16(const uint8_t *p) {
        uint16_t v; memcpy(&v, p, 2); __asm__ volatile("" : "+r"(v)); return (int16_t)PENSTOCK_BE16(v);
    }
    static inline int32_t load32(const uint8_t *p) {
        uint32_t v; memcpy(&v, p, 4); __asm__ volatile("" : "+r"(v)); return (int32_t)PENSTOCK_BE32(v);
    }
    static inline int64_t load64(const uint8_t *p) {
        uint64_t v; memcpy(&v, p, 8); __asm__ volatile("" : "+r"(v)); return (int64_t)PENSTOCK_BE64(v);
    }
    static inline void store16(uint8_t *p, int16_t x) {
        uint16_t v = PENSTOCK_BE16((uint16_t)x); memcpy(p, &v, 2);
    }
    static inline void store32(uint8_t *p, int32_t x) {
        uint32_t v = PENSTOCK_BE32((uint32_t)x); memcpy(p, &v, 4);
    }
    static inline void store64(uint8_t *p, int64_t x) {
        uint64_t v = PENSTOCK_BE64((uint64_t)x); memcpy(p, &v, 8);
    }

    static inline void acquire_fence(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }
    static inline void release_fence(void) { __atomic_thread_fence(__ATOMIC_RELEASE); }

    /* CRC-32 by slicing: 16 bytes at a time through 16 tables. */
    static uint32_t crc_tables[16][256];

    static void crc_prepare(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t c = n;
            for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
            crc_tables[0][n] = c;
        }
        for (int t = 1; t < 16; t++)
            for (uint32_t n = 0; n < 256; n++)
                crc_tables[t][n] = (crc_tables[t - 1][n] >> 8) ^ crc_tables[0][crc_tables[t - 1][n] & 0xFF];
    }

    static uint32_t crc_by_tables(uint32_t c, const uint8_t *p, int64_t size) {
    #if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
        for (; size >= 16; size -= 16, p += 16) {
            uint32_t v, w, x, y;
            memcpy(&v, p, 4);
            memcpy(&w, p + 4, 4);
            memcpy(&x, p + 8, 4);
            memcpy(&y, p + 12, 4);
            v ^= c;  /* only these four look-ups wait for the round before */
            c = (crc_tables[11][w & 0xFF] ^ crc_tables[10][(w >> 8) & 0xFF]
               ^ crc_tables[9][(w >> 16) & 0xFF] ^ crc_tables[8][w >> 24]
               ^ crc_tables[7][x & 0xFF] ^ crc_tables[6][(x >> 8) & 0xFF]
               ^ crc_tables[5][(x >> 16) & 0xFF] ^ crc_tables[4][x >> 24]
               ^ crc_tables[3][y & 0xFF] ^ crc_tables[2][(y >> 8) & 0xFF]
               ^ crc_tables[1][(y >> 16) & 0xFF] ^ crc_tables[0][y >> 24])
              ^ ((crc_tables[15][v & 0xFF] ^ crc_tables[14][(v >> 8) & 0xFF])
               ^ (crc_tables[13][(v >> 16) & 0xFF] ^ crc_tables[12][v >> 24]));
        }
    #endif
        for (; size > 0; size--, p++) c = (c >> 8) ^ crc_tables[0][(c ^ *p) & 0xFF];
        return c;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    #define PENSTOCK_FOLDS 1
    #include <immintrin.h>

    /* Where the processor multiplies without carries: 64 bytes at a time are folded onto the next 64, then 16 onto
       16; of the last, less than 16, as many are moved out of the 128 bits that are left as come in; those are then
       reduced. The constants are powers of x modulo the reversed polynomial. */
    #define FOLD(x, by, next) _mm_xor_si128( \
        _mm_xor_si128(_mm_clmulepi64_si128(x, by, 0x00), _mm_clmulepi64_si128(x, by, 0x11)), next)
    #define LOAD(p) _mm_loadu_si128((const __m128i *)(p))

    /* As a shuffle, 16 bytes from `16 - n` on move the others up by n places, and those from `16 + n` on down. */
    static const uint8_t crc_moves[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128};

    __attribute__((target("pclmul,sse4.1")))
    static uint32_t crc_by_folding(uint32_t c, const uint8_t *p, int64_t size) {  /* size >= 16 */
        const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i reduce = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low_32 = _mm_setr_epi32(-1, 0, -1, 0);
        __m128i a = _mm_xor_si128(LOAD(p), _mm_cvtsi32_si128((int)c)), t;
        if (size >= 64) {
            __m128i b = LOAD(p + 16), d = LOAD(p + 32), e = LOAD(p + 48);
            for (p += 64, size -= 64; size >= 64; p += 64, size -= 64) {
                a = FOLD(a, by_64, LOAD(p));
                b = FOLD(b, by_64, LOAD(p + 16));
                d = FOLD(d, by_64, LOAD(p + 32));
                e = FOLD(e, by_64, LOAD(p + 48));
            }
            a = FOLD(a, by_16, b);
            a = FOLD(a, by_16, d);
            a = FOLD(a, by_16, e);
        } else {
            p += 16;
            size -= 16;
        }
        for (; size >= 16; p += 16, size -= 16) a = FOLD(a, by_16, LOAD(p));
        if (size) {
            const __m128i down = LOAD(crc_moves + 16 + size), up = LOAD(crc_moves + size);
            t = _mm_blendv_epi8(_mm_shuffle_epi8(a, down), LOAD(p + size - 16), down);
            a = FOLD(_mm_shuffle_epi8(a, up), by_16, t);
        }
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
        a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low_32), by_8, 0x00));
        t = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low_32), reduce, 0x10), low_32);
        a = _mm_xor_si128(a, _mm_clmulepi64_si128(t, reduce, 0x00));
        return (uint32_t)_mm_extract_epi32(a, 1);
    }
    #endif

    static int crc_folds = 0;

    static void find_out_what_the_processor_can(void) {
    #ifdef PENSTOCK_FOLDS
        crc_folds = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    #endif
    }

    static uint32_t crc_of(const uint8_t *p, int64_t size) {
        uint32_t c = 0xFFFFFFFFu;
    #ifdef PENSTOCK_FOLDS
        if (crc_folds && size >= 16) c = crc_by_folding(c, p, size);
        else
    #endif
        c = crc_by_tables(c, p, size);
        return (c ^ 0xFFFFFFFFu) & 0x7FFFFFFFu;
    }
    """
    int16_t load16(const uint8_t* p) noexcept nogil
    int32_t load32(const uint8_t* p) noexcept nogil
    int64_t load64(const uint8_t* p) noexcept nogil
    void store16(uint8_t* p, int16_t x) noexcept nogil
    void store32(uint8_t* p, int32_t x) noexcept nogil
    void store64(uint8_t* p, int64_t x) noexcept nogil
    void acquire_fence() noexcept nogil
    void release_fence() noexcept nogil
    void crc_prepare() noexcept nogil
    void find_out_what_the_processor_can() noexcept nogil
    uint32_t crc_of(const uint8_t* p, int64_t size) noexcept nogil


ctypedef packed struct Row:  # the dtype ROW
    int64_t physical_offset
    int64_t queue_offset
    int64_t store_timestamp
    int64_t born_timestamp
    int64_t prepared_transaction_offset
    int64_t tags_code
    int32_t size
    int32_t body_crc
    int32_t queue_id
    int32_t flag
    int32_t sys_flag
    int32_t reconsume_times
    int32_t topic_id
    int32_t body_at
    int32_t body_length
    int32_t topic_at
    int32_t topic_length
    int32_t properties_at
    int32_t properties_length
    int32_t reserved


cdef enum:
    STOP = 0
    FULL = 1
    BLANK = 2
    UNWRITTEN = 3
    BAD_MAGIC = 4
    BAD_SIZE = 5
    BEYOND_END = 6
    BAD_POSITION = 7
    BAD_LENGTHS = 8
    BAD_CRC = 9
    NO_MEMORY = 100

cdef int32_t MESSAGE_MAGIC = <int32_t>0xDAA320A7
cdef int32_t MESSAGE_MAGIC_V2 = <int32_t>0xDAA320AB
cdef int32_t BLANK_MAGIC = <int32_t>0xCBD43194
cdef int64_t MAX_INT = 2147483647
cdef int64_t MAX_LONG = 9223372036854775807
cdef int32_t TRANSACTION_MASK = 0xC
cdef int32_t PREPARED = 0x4
cdef int32_t ROLLBACK = 0xC

crc_prepare()
find_out_what_the_processor_can()
if sizeof(Row) != _ROW.itemsize:
    raise ImportError("the compiled kernels were built for another version of ROW")


cdef object longs_from(const int64_t* values, int64_t count):
    """An int64 array with a copy of the values."""
    cdef Py_buffer target
    made = np.empty(count, dtype=np.int64)
    if count:
        PyObject_GetBuffer(made, &target, PyBUF_WRITABLE)
        memcpy(target.buf, values, count * 8)
        PyBuffer_Release(&target)
    return made


include "_topics.pxi"
include "_encode.pxi"
include "_log.pxi"
include "_texts.pxi"
include "_columns.pxi"
include "_past.pxi"
include "_queues.pxi"
include "_range.pxi"
include "_index.pxi"
include "_latencies.pxi"
include "_property_pieces.pxi"
include "_append.pxi"
include "_populate.pxi"
include "_pages.pxi"
include "_holds.pxi"
include "_query.pxi"
include "_fields.pxi"
include "_batch.pxi"
include "_buffers.pxi"
include "_arrow_properties.pxi"
include "_arrow_in.pxi"
include "_arrow_out.pxi"
include "_arrow_split.pxi"
include "_audit.pxi"
include "_tally.pxi"

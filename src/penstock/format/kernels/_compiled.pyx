# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# cython: embedsignature=True, freethreading_compatible=False
"""The compiled twin of the kernels: the same functions as `plain`, on C pointers and mostly without the GIL.

Arguments are read through the buffer protocol, so mmaps, memoryviews, bytes and arrays all work. Every position and
length that comes from the data or from a caller is checked against the buffer before use. It is read from memory only
once, so another process that changes the file cannot defeat the check.

One extension module, made of one include per file of `plain`; change both twins together:

    record.pxi     topics, CRC, hash; encode, publish, check, walk and find records
    decode.pxi     records into values
    dispatch.pxi   tag codes and queues of rows; RangeBuilder: units and keys of a range
    index.pxi      the index file, and queries by key
    append.pxi     the Appender (one message into the log in one step), prefault, client batches
    read.pxi       a page of a queue, and the count of a file's readers
    arrow_in.pxi   Arrow columns into records
    arrow_out.pxi  records into Arrow columns
    audit.pxi      the chains of an index file, and counts by group
    requests.pxi   the RequestPath: what one read of a socket brought, served in one step

request_headers.pxi has the C functions of requests.pxi that scan headers, and no twin.

The includes share one namespace, and the order of the `include` lines matters: types come before their users. C that
several includes need is in byte_order.h and crc32.h.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_FillInfo,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_GetItem, PyDict_Next, PyDict_Size
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.pythread cimport (
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memchr, memcmp, memcpy, memmove, memset

import numpy as np

from penstock.errors import BadSettings as _BadSettings
from penstock.errors import CorruptData as _CorruptData
from penstock.format.hosts import decode_host as _decode_host
from penstock.format.kernels.plain import __all__
from penstock.format.kernel_row_types import PUT_ROW as _PUT_ROW
from penstock.format.kernel_row_types import ROW as _ROW
from penstock.format.kernel_row_types import Reason as _Reason

cdef extern from "Python.h":
    bint PyBytes_CheckExact(object value)
    object PyBytes_FromStringAndSize(char* text, Py_ssize_t size)
    void PyErr_Clear()
    long long PyLong_AsLongLong(object number) except? -1
    long long PyLong_AsLongLongAndOverflow(object number, int* overflow) except? -1
    bint PyLong_CheckExact(object value)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)
    bint PyUnicode_CheckExact(object value)
    void* PyUnicode_DATA(object text) nogil
    Py_ssize_t PyUnicode_GET_LENGTH(object text) nogil
    int PyUnicode_KIND(object text) nogil

cdef extern from "byte_order.h":
    int16_t load16(const uint8_t* p) noexcept nogil
    int32_t load32(const uint8_t* p) noexcept nogil
    int64_t load64(const uint8_t* p) noexcept nogil
    void store16(uint8_t* p, int16_t x) noexcept nogil
    void store32(uint8_t* p, int32_t x) noexcept nogil
    void store64(uint8_t* p, int64_t x) noexcept nogil
    void acquire_fence() noexcept nogil
    void release_fence() noexcept nogil

cdef extern from "crc32.h":
    void crc_init() noexcept nogil
    uint32_t crc_of(const uint8_t* p, int64_t size) noexcept nogil
    int RECORD_CRC_SIZE
    bint ends_with_record_crc(const uint8_t* properties, int64_t length) noexcept nogil
    void seal_record(uint8_t* record, int32_t size, int32_t magic) noexcept nogil
    bint is_sealed(const uint8_t* record, int32_t size, int32_t magic) noexcept nogil

cdef extern from *:
    """
    #ifndef PENSTOCK_SOURCES
    #error "PENSTOCK_SOURCES is not defined: build with setup.py"
    #endif
    static inline void prefetch(const void *p) { __builtin_prefetch(p); }
    static inline void prefetch_once(const void *p) { __builtin_prefetch(p, 0, 1); }  /* read soon, and only once */
    """
    const char* PENSTOCK_SOURCES
    void prefetch(const void* p) noexcept nogil
    void prefetch_once(const void* p) noexcept nogil


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


cdef enum:  # penstock.format.kernel_row_types.Reason
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
    NO_MEMORY = 100  # raised as MemoryError, never returned

cdef int32_t MESSAGE_MAGIC = <int32_t>0xDAA320A7
cdef int32_t MESSAGE_MAGIC_V2 = <int32_t>0xDAA320AB
cdef int32_t BLANK_MAGIC = <int32_t>0xCBD43194
cdef int64_t MAX_INT = 2147483647
cdef int64_t MIN_INT = -MAX_INT - 1
cdef int64_t MAX_LONG = 9223372036854775807
cdef int32_t TRANSACTION_MASK = 0xC
cdef int32_t PREPARED = 0x4
cdef int32_t ROLLBACK = 0xC

_sources = PENSTOCK_SOURCES.decode()  # which sources it was built from; see sources.py

crc_init()
if sizeof(Row) != _ROW.itemsize:
    raise ImportError("the compiled kernels were built for another version of ROW")


cdef object longs_from(const int64_t* values, int64_t count):
    """Returns an int64 array with a copy of the values."""
    cdef Py_buffer target
    copy = np.empty(count, dtype=np.int64)
    if count:
        PyObject_GetBuffer(copy, &target, PyBUF_WRITABLE)
        memcpy(target.buf, values, count * 8)
        PyBuffer_Release(&target)
    return copy


include "record.pxi"
include "decode.pxi"
include "dispatch.pxi"
include "read.pxi"
include "index.pxi"
include "append.pxi"
include "arrow_in.pxi"
include "arrow_out.pxi"
include "audit.pxi"
include "split_records.pxi"
include "request_headers.pxi"
include "requests.pxi"

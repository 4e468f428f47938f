# A message's properties, keys and tags as the pieces of its property string. Part of the appender's short way: what is
# not ordinary is declined.

from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.object cimport PyObject

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)
    void PyErr_Clear()
    bint PyUnicode_CheckExact(object thing)

cdef enum:
    MAX_PIECES = 64


cdef struct Piece:
    const char* text
    Py_ssize_t size


cdef int collect_pieces(properties, keys, tags, whole, Piece* pieces, int64_t* total) except? -1:
    """The property string as pieces of text, names and values by turns, and its length; -1 if it is not ordinary.

    It may also be there already, as one `whole` piece.
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
        if pieces[0].text == NULL:  # as in add_piece
            PyErr_Clear()
            return -1
        total[0] = pieces[0].size
        return -1 if keys or tags or properties else 1
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
    total[0] = size + count - (1 if count else 0)  # one separator after each piece but the last
    return count


cdef int add_piece(object text, Piece* pieces, int* count, int64_t* size, bint is_name) except? -1:
    cdef Piece* piece = &pieces[count[0]]
    if not PyUnicode_CheckExact(text):
        return -1
    piece.text = PyUnicode_AsUTF8AndSize(text, &piece.size)
    if piece.text == NULL:  # half a character: the general path says so
        PyErr_Clear()
        return -1
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

# Texts in records: Java's hash of them, and where a property ends. The reference is in `_plain_columns.py`.

cdef extern from *:
    """
    /* Carries Java's hash on over ASCII text; 0, with the code spoilt, if some of it is not ASCII. Eight bytes at a
       time, each times its power of 31, so that only one product of them waits for the one before. */
    static inline int hash_ascii(const uint8_t *text, int64_t size, uint32_t *code) {
        uint32_t h = *code;
        uint64_t seen = 0;
        for (; size >= 8; size -= 8, text += 8) {
            uint64_t word;
            memcpy(&word, text, 8);
            seen |= word;
            h = h * 2487512833u
              + ((text[0] * 1742810335u + text[1] * 887503681u) + (text[2] * 28629151u + text[3] * 923521u))
              + ((text[4] * 29791u + text[5] * 961u) + (text[6] * 31u + text[7]));
        }
        for (; size > 0; size--, text++) {
            seen |= *text;
            h = 31 * h + *text;
        }
        *code = h;
        return !(seen & 0x8080808080808080ull);
    }

    /* Where the piece of some properties that begins at `piece` ends. They lie in a record, which begins at `record`
       and has bytes enough before them: so nothing is read that is not the record's. */
    static inline const uint8_t *end_of_piece(const uint8_t *record, const uint8_t *piece, const uint8_t *end) {
    #ifdef PENSTOCK_FOLDS
        const __m128i separator = _mm_set1_epi8(2);
        uint32_t found;
        for (; end - piece >= 16; piece += 16) {
            found = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)piece), separator));
            if (found) return piece + __builtin_ctz(found);
        }
        if (end - record >= 16) {
            found = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(end - 16)), separator));
            found >>= 16 - (end - piece);
            return found ? piece + __builtin_ctz(found) : end;
        }
    #endif
        const void *there = piece < end ? memchr(piece, 2, end - piece) : NULL;
        return there ? (const uint8_t *)there : end;
    }
    """
    bint hash_ascii(const uint8_t* text, int64_t size, uint32_t* code) noexcept nogil
    const uint8_t* end_of_piece(const uint8_t* record, const uint8_t* piece, const uint8_t* end) noexcept nogil


cdef uint32_t hash_utf8(const uint8_t* text, int64_t size, uint32_t code) except? 7 with gil:
    """Carries Java's hash on over any text; bytes that are not UTF-8 count as U+FFFD, as in Java."""
    decoded = PyUnicode_DecodeUTF8(<char*>text, size, "replace")
    encoded = decoded.encode("utf-16-le")
    cdef const uint8_t* units = <const uint8_t*>PyBytes_AS_STRING(encoded)
    cdef Py_ssize_t i
    for i in range(PyBytes_GET_SIZE(encoded) // 2):
        code = 31 * code + (units[2 * i] | (<uint32_t>units[2 * i + 1] << 8))
    return code


cdef inline uint32_t hash_on(const uint8_t* text, int64_t size, uint32_t code) except? 7 nogil:
    cdef uint32_t carried = code
    if hash_ascii(text, size, &carried):
        return carried
    return hash_utf8(text, size, code)

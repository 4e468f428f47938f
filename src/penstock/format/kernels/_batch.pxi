# A client's batch taken apart in one step. The reference is `_plain_batch.py`.

def split_batch(bytes data, bytes common):
    """(flag, body, property text) of each message, `common` behind its properties; None if it must be read with care.

    That is where lengths do not fit, or properties are not UTF-8.
    """
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const char* tail = PyBytes_AS_STRING(common)
    cdef int64_t left = PyBytes_GET_SIZE(data), tail_size = PyBytes_GET_SIZE(common)
    cdef int64_t size, body_size, properties_size, text_size
    cdef const uint8_t* properties
    cdef char* text = <char*>malloc(32768 + tail_size)
    cdef list items = []
    if text == NULL:
        raise MemoryError
    try:
        while left > 0:
            if left < 22:
                return None
            size, body_size = load32(start), load32(start + 16)
            if body_size < 0 or size > left or size < 22 + body_size:
                return None
            properties = start + 22 + body_size
            properties_size = load16(properties - 2)
            if properties_size < 0 or 22 + body_size + properties_size != size:
                return None
            memcpy(text, properties, properties_size)
            text_size = properties_size
            if text_size and tail_size and text[text_size - 1] != 2:
                text[text_size] = 2
                text_size += 1
            memcpy(text + text_size, tail, tail_size)
            try:
                joined = PyUnicode_DecodeUTF8(text, text_size + tail_size, NULL)
            except UnicodeDecodeError:
                return None
            items.append((load32(start + 12), PyBytes_FromStringAndSize(<char*>start + 20, body_size), joined))
            start += size
            left -= size
    finally:
        free(text)
    return items

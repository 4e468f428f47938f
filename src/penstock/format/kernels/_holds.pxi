# Who is reading a file. The GIL is the lock. The reference is `_plain_holds.py`.

cdef class Holds:
    """A count of readers that begins at one, the owner's own."""

    cdef readonly int64_t count
    cdef readonly bint is_retired

    def __init__(self):
        self.count = 1

    def hold(self):
        """True if one more may read; `release` ends it."""
        if self.is_retired or self.count <= 0:
            return False
        self.count += 1
        return True

    def release(self):
        """True if that was the last one."""
        self.count -= 1
        return self.count == 0

    def retire(self):
        """No new readers from now on; the first time, the owner's own hold ends. True if nobody is left then."""
        if self.is_retired:
            return False
        self.is_retired = True
        self.count -= 1
        return self.count == 0

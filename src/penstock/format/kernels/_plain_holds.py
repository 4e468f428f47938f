"""Who is reading a file. The plain twin of `_holds.pxi`, with a lock of its own."""

from __future__ import annotations

import threading


class Holds:
    """A count of readers that begins at one, the owner's own."""

    def __init__(self) -> None:
        self.count = 1
        self.is_retired = False
        self._gate = threading.Lock()

    def hold(self) -> bool:
        """True if one more may read; `release` ends it."""
        with self._gate:
            if self.is_retired or self.count <= 0:
                return False
            self.count += 1
            return True

    def release(self) -> bool:
        """True if that was the last one."""
        with self._gate:
            self.count -= 1
            return self.count == 0

    def retire(self) -> bool:
        """No new readers from now on; the first time, the owner's own hold ends. True if nobody is left then."""
        with self._gate:
            if self.is_retired:
                return False
            self.is_retired = True
            self.count -= 1
            return self.count == 0

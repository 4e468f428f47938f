"""The transient pool: buffers outside the page cache into which the log is written first (off by default).

Appends go to a locked buffer of one file's size; a thread commits them to the file; only what is committed can be
read, dispatched or flushed. What is not committed is lost when the process dies: that is the price of the pool.
"""

from __future__ import annotations

import logging
import mmap
import threading

from penstock.store.memory_calls import lock_memory

log = logging.getLogger("penstock.store")


class PoolBuffer:
    """One buffer, lent to one file at a time."""

    def __init__(self, pool: TransientPool, size: int) -> None:
        self._pool = pool
        self.memory = mmap.mmap(-1, size)
        self.view = memoryview(self.memory)

    def give_back(self) -> None:
        self._pool.take_back(self)

    def close(self) -> None:
        self.view.release()
        self.memory.close()


class TransientPool:
    """`count` buffers of `size` bytes, allocated and locked at start."""

    def __init__(self, count: int, size: int) -> None:
        self._gate = threading.Lock()
        self._free = [PoolBuffer(self, size) for _ in range(count)]
        self._closed = False
        refused = sum(not lock_memory(buffer.memory) for buffer in self._free)
        if refused:
            log.warning(
                "%d of %d transient buffers could not be locked in memory (see `ulimit -l`); they may be swapped",
                refused,
                count,
            )

    @property
    def available(self) -> int:
        return len(self._free)

    def borrow(self) -> PoolBuffer | None:
        with self._gate:
            return self._free.pop() if self._free else None

    def take_back(self, buffer: PoolBuffer) -> None:
        with self._gate:
            if not self._closed:
                self._free.append(buffer)
                return
        buffer.close()

    def close(self) -> None:
        with self._gate:
            self._closed = True
            free, self._free = self._free, []
        for buffer in free:
            buffer.close()

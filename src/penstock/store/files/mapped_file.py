"""MappedFile: one memory-mapped file of fixed size, with its positions and its readers. TransientPool: write buffers.

A file has three positions, in bytes from its start. `wrote` is the end of the appended bytes. `committed` is the end of
the bytes in the file; it differs from `wrote` only while a pool buffer is attached. `flushed` is the end of the bytes
on disk. One thread writes each position (appender, committer, flusher); any thread reads it. Readers `acquire()` the
file and `release()` it, so that a deletion does not unmap the file while they read.

With the transient pool (off by default) appends go to a locked buffer as large as the file, and a thread commits them:
it copies them into the file. Only committed bytes can be read, dispatched or flushed. A crash of the process loses
uncommitted bytes.
"""

from __future__ import annotations

import logging
import mmap
import threading
from array import array
from pathlib import Path

from penstock.format import kernels
from penstock.store.files.file_io import FileMap, lock_memory, zero_from

log = logging.getLogger("penstock.store")
PAGE = 4096


class MappedFile:
    """One mapped file; its name is the offset of its first byte."""

    def __init__(self, file_map: FileMap, from_offset: int, *, wrote: int = 0, created_first: bool = False) -> None:
        self.map = file_map
        self.path: Path = file_map.path
        self.from_offset = from_offset
        self.size = len(file_map)
        self.marks = array("q", [wrote, 0])
        """`wrote` and `store_timestamp`, in an array that the compiled appender writes too."""
        self.committed = self.flushed = wrote
        self.created_first = created_first
        """Whether the MappedFileQueue had no files when this file was created."""
        self.buffer: PoolBuffer | None = None
        self._readers = kernels.ReaderCount()
        self.acquire = self._readers.acquire
        """Registers a reader, who must call `release()`. Returns False if the file is shut down: do not read it."""
        self.window = self._new_window()
        """The same file for the kernels. Without a pool buffer only, whose bytes it does not know."""

    def _new_window(self) -> kernels.FileWindow:
        return kernels.FileWindow(self.map.view, self.from_offset, self.marks, self._readers, self.map.residency)

    def exchange_map(self, file_map: FileMap) -> FileMap:
        """Replaces the map by one of the same size, and returns the former. No thread may read the file meanwhile."""
        former, self.map = self.map, file_map
        self.window = self._new_window()
        return former

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def wrote(self) -> int:
        """Position at which the appended bytes end."""
        return self.marks[0]

    @wrote.setter
    def wrote(self, position: int) -> None:
        self.marks[0] = position

    @property
    def store_timestamp(self) -> int:
        """Store time in ms of the file's newest record; 0 if this process does not know it."""
        return self.marks[1]

    @store_timestamp.setter
    def store_timestamp(self, timestamp: int) -> None:
        self.marks[1] = timestamp

    @property
    def target(self) -> memoryview:
        """The memory to append to: the pool buffer if there is one, else the file's map."""
        return self.map.view if self.buffer is None else self.buffer.view

    @property
    def readable(self) -> int:
        """Position at which the bytes that readers may see end."""
        return self.marks[0] if self.buffer is None else self.committed

    @property
    def end_offset(self) -> int:
        return self.from_offset + self.readable

    @property
    def full(self) -> bool:
        return self.wrote == self.size

    def can_flush(self, least_pages: int) -> bool:
        return self._due(self.flushed, self.readable, least_pages)

    def can_commit(self, least_pages: int) -> bool:
        return self._due(self.committed, self.wrote, least_pages)

    def _due(self, done: int, reached: int, least_pages: int) -> bool:
        if self.full:
            return reached > done
        if least_pages > 0:
            return reached // PAGE - done // PAGE >= least_pages
        return reached > done

    def flush(self, least_pages: int = 0) -> int:
        """Syncs if at least `least_pages` pages are dirty or the file is full. Returns `flushed`. Raises OSError."""
        if self.can_flush(least_pages):
            reached = self.readable
            if self.acquire():  # else it is being deleted and need not reach the disk
                try:
                    self.map.sync(self.flushed, reached)
                finally:
                    self.release()
            self.flushed = reached
        return self.flushed

    def commit(self, least_pages: int = 0) -> int:
        """Copies the pool buffer into the file if at least `least_pages` pages are uncommitted. Returns `committed`."""
        if self.buffer is None:
            self.committed = self.wrote
        elif self.can_commit(least_pages):
            reached = self.wrote
            piece = self.buffer.view[self.committed : reached]
            kernels.copy_published(self.map.view, self.committed, piece)
            piece.release()
            self.committed = reached
            if reached == self.size:
                full, self.buffer = self.buffer, None
                full.release()
        return self.committed

    # -- bytes -----------------------------------------------------------------------------------------------

    def read(self, position: int, size: int, *, at_once: bool = False) -> bytes | None:
        """Returns a copy of `size` bytes at `position`; None if not all of them are readable.

        Raises StoreFailed if the disk cannot read them. With `at_once` raises NotResident instead of waiting for it.
        """
        if position < 0 or position + size > self.readable or not self.acquire():
            return None
        try:
            self.map.ensure_resident(position, position + size, at_once=at_once)
            return bytes(self.map.view[position : position + size])
        finally:
            self.release()

    def zero(self, position: int) -> int:
        """Zeroes the file from `position` on. Returns the number of bytes that were not zero. See `zero_from`."""
        return zero_from(self.map, position)

    # -- readers ---------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        return not self._readers.is_retired

    def release(self) -> None:
        if self._readers.release():
            self._unmap()

    def shut_down(self) -> bool:
        """Refuses new readers. Returns True if no reader is left: then the file is unmapped."""
        if self._readers.retire():
            self._unmap()
        return self._readers.count <= 0

    def _unmap(self) -> None:
        if self.buffer is not None:
            buffer, self.buffer = self.buffer, None
            buffer.release()
        self.map.close()


class PoolBuffer:
    """One buffer of the transient pool, attached to at most one file."""

    def __init__(self, pool: TransientPool, size: int) -> None:
        self._pool = pool
        self.memory = mmap.mmap(-1, size)
        self.view = memoryview(self.memory)

    def release(self) -> None:
        self._pool.give_back(self)

    def close(self) -> None:
        self.view.release()
        self.memory.close()


class TransientPool:
    """`count` buffers of `size` bytes, allocated and locked in memory. Thread-safe."""

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

    def give_back(self, buffer: PoolBuffer) -> None:
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

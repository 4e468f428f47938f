"""The transient pool: buffers outside the page cache into which the log is written first (off by default).

Appends go to a locked buffer of one file's size; a thread commits them to the file; only what is committed can be
read, dispatched or flushed. What is not committed is lost when the process dies: that is the price of the pool.


One file of fixed size in memory, with its three positions and its readers.

`wrote` is how far bytes were appended, `committed` how far they are in the file (they differ only while a buffer of
the transient pool is attached), `flushed` how far they are on disk. Readers `hold()` the file while they look at its
bytes, so that deletion never pulls it away under them.

Positions are plain ints written by one thread each (appender, committer, flusher) and read by any.
"""

from __future__ import annotations

import logging
import mmap
import threading
from array import array
from pathlib import Path

import numpy as np

from penstock.format import kernels
from penstock.store.io import FileMap, lock_memory, written_pieces, zero_from

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


PAGE = 4096


class MappedFile:
    """A file whose name is the offset of its first byte."""

    def __init__(self, file_map: FileMap, from_offset: int, *, wrote: int = 0, created_first: bool = False) -> None:
        self.map = file_map
        self.path: Path = file_map.path
        self.from_offset = from_offset
        self.size = len(file_map)
        self.marks = array("q", [wrote, 0])
        """`wrote` and `store_timestamp`, where the compiled appender can set them too."""
        self.committed = self.flushed = wrote
        self.created_first = created_first
        """True if this was the first file of an empty queue when it was made."""
        self.buffer: PoolBuffer | None = None
        self._readers = kernels.ReaderCount()
        self.hold = self._readers.acquire
        """True if the bytes may be used until `release()`."""

    # -- positions -------------------------------------------------------------------------------------------

    @property
    def wrote(self) -> int:
        """How far bytes were appended."""
        return self.marks[0]

    @wrote.setter
    def wrote(self, position: int) -> None:
        self.marks[0] = position

    @property
    def store_timestamp(self) -> int:
        """Store time of the newest record in this file, as far as this process knows it."""
        return self.marks[1]

    @store_timestamp.setter
    def store_timestamp(self, timestamp: int) -> None:
        self.marks[1] = timestamp

    @property
    def target(self) -> memoryview:
        """Where appends go: the attached buffer, or the file's own map."""
        return self.map.view if self.buffer is None else self.buffer.view

    @property
    def readable(self) -> int:
        """How far readers may look."""
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
        """Syncs if enough is waiting; returns the flushed position. Raises OSError when the disk refuses."""
        if self.can_flush(least_pages):
            reached = self.readable
            if self.hold():  # else it is being deleted, and nothing of it needs to reach the disk
                try:
                    self.map.sync(self.flushed, reached)
                finally:
                    self.release()
            self.flushed = reached
        return self.flushed

    def commit(self, least_pages: int = 0) -> int:
        """Copies what the buffer holds into the file; returns the committed position."""
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
                full.give_back()
        return self.committed

    # -- bytes -----------------------------------------------------------------------------------------------

    def read(self, position: int, size: int) -> bytes | None:
        """A copy of `size` readable bytes, or None if they are not all there."""
        if position < 0 or position + size > self.readable or not self.hold():
            return None
        try:
            return bytes(self.map.view[position : position + size])
        finally:
            self.release()

    def zero(self, position: int) -> int:
        """Zeroes from `position` to the end, touching only what is not zero; returns how many bytes were not."""
        return zero_from(self.map, position)

    def used(self, position: int) -> int:
        """The position after the last byte at or behind `position` that is not zero; `position` if there is none."""
        end = position
        for start, stop in written_pieces(self.map, position):
            if not np.count_nonzero(np.frombuffer(self.map.view, np.uint8, stop - start, start)):
                continue
            # A copy: another process may be writing here, and numpy does not bear that while it counts.
            found = np.flatnonzero(np.frombuffer(bytes(self.map.view[start:stop]), np.uint8))
            if len(found):
                end = start + int(found[-1]) + 1
        return end

    # -- readers ---------------------------------------------------------------------------------------------

    @property
    def available(self) -> bool:
        return not self._readers.is_retired

    def release(self) -> None:
        if self._readers.release():
            self._unmap()

    def shut_down(self) -> bool:
        """Takes the file from new readers; True once nobody holds it any more and it is unmapped."""
        if self._readers.retire():
            self._unmap()
        return self._readers.count <= 0

    def _unmap(self) -> None:
        if self.buffer is not None:
            buffer, self.buffer = self.buffer, None
            buffer.give_back()
        self.map.close()

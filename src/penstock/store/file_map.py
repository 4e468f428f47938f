"""A whole file mapped into memory.

A `FileMap` belongs to whoever asked a `Files` for it and is closed by them; its `view` must not be used afterwards,
and any slice of it must be released first. Any thread may read and store; what was stored is on disk when `sync`
returns, and survives the end of the process before that.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from penstock.store.disk_errors import disk_refused
from penstock.store.holes import written_ranges
from penstock.store.memory_calls import sync_memory


class FileMap:
    """A whole file mapped into memory, shared with every other process that maps it."""

    def __init__(self, path: Path, memory: mmap.mmap, descriptor: int) -> None:
        """`descriptor` is closed with the map; -1 if no open file lies behind the memory."""
        self.path = path
        self.memory = memory
        self.view = memoryview(memory)
        self._descriptor = descriptor

    def __len__(self) -> int:
        return len(self.memory)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Returns when what was stored in a range, or anywhere, is on disk; other threads run meanwhile.

        A range leaves the pages behind it alone, which the writer may be about to use.
        """
        if stop is None:
            os.fdatasync(self._descriptor)
        else:
            sync_memory(self.memory, start, stop)

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Ranges behind `start` that may hold something; what was only allocated is left out where that can be told.

        All at once: what the kernel reads ahead counts as written, so who asks while it reads is led to the file's end.
        """
        yield from list(written_ranges(self._descriptor, start, len(self)))

    def allocate(self, start: int, stop: int) -> None:
        """Makes sure that a range has its blocks before it is stored into. Raises OSError."""
        os.posix_fallocate(self._descriptor, start, stop - start)

    def write(self, position: int, data: bytearray | memoryview) -> None:
        """Stores much at once, without a page fault for each page of it. Raises StoreFailed."""
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._descriptor, left, position)
                left, position = left[written:], position + written
        except OSError as error:
            raise disk_refused("cannot write", self.path, len(data), error) from error

    def will_need(self, start: int = 0, size: int = 0) -> None:
        """Has the system read a range, or from `start` to the end, before it is looked at; returns at once."""
        os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Unmaps; if somebody still looks at the memory, it goes when they do."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self.memory.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)

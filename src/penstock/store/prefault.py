"""Makes the log's next pages ready before they are written to.

The first store into a page of a mapped file costs a page fault, several times what a small put costs otherwise. A
thread takes these faults ahead of the writer, a few megabytes at a time. The pages count as changed, so a sync
writes them once more than it must: with SYNC_FLUSH, where each put waits for a sync, nothing is done ahead.
"""

from __future__ import annotations

from penstock.format import kernels
from penstock.store.file_queue import FileQueue
from penstock.store.worker import Worker

AHEAD = 16 << 20
"""How far ahead of the writer pages are made ready; files smaller than four times this are left alone."""


class Prefaulter(Worker):
    """Follows the log's end, woken whenever half of what is ready has been used up."""

    def __init__(self, queue: FileQueue) -> None:
        super().__init__("penstock-prefault", None)
        self._queue = queue
        self._ready = 0

    @staticmethod
    def suits(file_size: int) -> bool:
        return file_size >= 4 * AHEAD

    def work(self) -> None:
        file = self._queue.last
        if file is None or not file.hold():
            return
        try:
            start = max(file.wrote, self._ready - file.from_offset)
            stop = min(file.wrote + AHEAD, file.size)
            if start < stop:
                kernels.prefault(file.target, start, stop)
                self._ready = file.from_offset + stop
        finally:
            file.release()

    def finish(self) -> None:
        """Nothing is left to do at the end."""

"""Cold reads: reads whose bytes are not in memory, run by a few threads so that an event loop never waits for the disk.

Bytes of mapped files are read in one of two ways. If their pages are in memory (`FileMap.residency`), the caller reads
them through the map at once. Otherwise `FileMap.load` first reads them from the disk, without the GIL, and raises
StoreFailed if the disk cannot; touching the map would stop every thread of the process meanwhile, and an unreadable
sector would kill it. A caller that may block loads in its own thread. One that must not gets a `ColdRead` from
`MessageStore.try_get`, `try_look_up` or `try_read`, and passes it to `MessageStore.read_cold`. A file kept elsewhere
needs only a FileMap whose `load` fetches it.

`ColdReads` runs them. For each key (a consumer) one read is under way; further ones of the key wait for it, so that one
consumer cannot occupy all threads. A page loads at most 8 MiB at a time, so all threads together hold at most 32 MiB.
Any thread may submit. The threads start when they are needed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from penstock.errors import StoreFailed
from penstock.store.files.file_io import NotResident

T = TypeVar("T")
_THREADS: Final = 4


class ColdRead(Generic[T]):
    """A read that has to wait for the disk. Nothing has been read yet. A call blocks, and returns what was read."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read

    def __call__(self) -> T:
        return self._read()


def try_read(read: Callable[..., T], *arguments: Any) -> T | ColdRead[T]:
    """Calls `read(*arguments, at_once=True)`. Returns a ColdRead if that raises NotResident."""
    try:
        return read(*arguments, at_once=True)
    except NotResident:
        return ColdRead(partial(read, *arguments))


class ColdReads:
    """The threads that run cold reads, and the reads that wait."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(_THREADS, "penstock-read")
        self._gate = threading.Lock()
        self._waiting: dict[Hashable, deque[tuple[Callable[[], Any], Future[Any]]]] = {}
        """The reads that wait for another one of their key, by each key with a read under way."""
        self._closed = False

    def submit(self, read: Callable[[], T], key: Hashable) -> Future[T]:
        """Runs `read` after all earlier reads of `key`. Raises StoreFailed after `close`."""
        answer: Future[T] = Future()
        with self._gate:
            if self._closed:
                raise StoreFailed("the store is closed; open it again", path=self._root)
            if key in self._waiting:
                self._waiting[key].append((read, answer))
            else:
                self._waiting[key] = deque()
                self._pool.submit(self._run, key, read, answer)
        return answer

    def _run(self, key: Hashable, read: Callable[[], T], answer: Future[T]) -> None:
        if self._closed:
            answer.cancel()
        if answer.set_running_or_notify_cancel():
            try:
                result = read()
            except BaseException as error:
                answer.set_exception(error)
            else:
                answer.set_result(result)
        with self._gate:
            if self._waiting[key]:
                following, its_answer = self._waiting[key].popleft()
                self._pool.submit(self._run, key, following, its_answer)
            else:
                del self._waiting[key]

    def close(self) -> None:
        """Cancels the reads that wait. Returns when no read is under way."""
        with self._gate:
            self._closed = True
            for waiting in self._waiting.values():
                for _, answer in waiting:
                    answer.cancel()
                waiting.clear()
        self._pool.shutdown(wait=True)

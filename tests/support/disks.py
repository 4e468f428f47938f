"""Disks that misbehave: classes in place of `Files`, the store's one way to the disk.

`UnsyncedFiles` never syncs, for tests that open hundreds of stores and lose no power. `WatchedFiles` counts syncs and
lets a test hold or refuse them. `CountedFiles` ends the process before its N-th call, `FailingFiles` fails that call.
`FaultyFiles` calls a hook before each sync and allocation. `MeasuredFiles` is as full as a test says.
`ColdFiles` has nothing in memory that was not read before, and lets a test refuse reads. `SlowDisk` holds them.
`power_loss.py` has the disk that forgets what was not synced.
"""

from __future__ import annotations

import mmap
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.format import kernels
from penstock.store.files.file_io import FileMap, Files


class UnsyncedMap(FileMap):
    """A map that is left to the kernel."""

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass


class UnsyncedFiles(Files):
    """Does everything but sync, and is half full, whatever else lies on the real disk."""

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        return 50, 50

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        return UnsyncedMap(path, super()._map(path, descriptor, size).memory, descriptor)

    def sync_folder(self, folder: Path) -> None:
        pass

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        descriptor = self._open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


WAIT_SECONDS = 60
"""How long a test waits for an event that must come; only a failing test waits so long."""


class WatchedMap(FileMap):
    """A map whose syncs are reported."""

    watcher: WatchedFiles

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.watcher.on_sync(self.path)
        super().sync(start, stop)
        self.watcher.synced(self.path)


class WatchedFiles(Files):
    """`on_sync` is called with the path before each sync of a map, and may wait or raise."""

    def __init__(self, on_sync: Callable[[Path], None] = lambda path: None) -> None:
        self.on_sync = on_sync
        self.syncs: Counter[str] = Counter()
        """How many syncs were completed, by the name of the file's folder."""
        self._changed = threading.Condition()

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        plain = super()._map(path, descriptor, size)
        watched = WatchedMap(path, plain.memory, descriptor)
        watched.watcher = self
        return watched

    def synced(self, path: Path) -> None:
        with self._changed:
            self.syncs[path.parent.name] += 1
            self._changed.notify_all()

    def wait_for_syncs(self, folder: str, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.syncs[folder] >= count, WAIT_SECONDS), f"{folder}: no sync"


class Gate:
    """An `on_sync` that lets everything pass until it is shut; then syncs of one folder wait in it."""

    def __init__(self, folder: str = "commitlog") -> None:
        self._folder = folder
        self._shut = threading.Event()
        self._open = threading.Event()
        self.reached = threading.Event()
        """Set once a sync waits here."""

    def __call__(self, path: Path) -> None:
        if self._shut.is_set() and path.parent.name == self._folder:
            self.reached.set()
            assert self._open.wait(WAIT_SECONDS), "the gate was never opened"

    def shut(self) -> None:
        self._shut.set()

    def open(self) -> None:
        self._shut.clear()
        self._open.set()

    def wait_until_reached(self) -> None:
        assert self.reached.wait(WAIT_SECONDS), "no sync came to the gate"


class ColdMap(FileMap):
    """A map of which nothing is in memory before it was loaded, as far as `residency` tells."""

    def __init__(self, path: Path, memory: mmap.mmap, descriptor: int, files: ColdFiles) -> None:
        super().__init__(path, memory, descriptor)
        self._files = files
        self._shadow = mmap.mmap(-1, len(self))
        self.residency = kernels.Residency(self._shadow)

    def evict(self) -> None:
        self._shadow = mmap.mmap(-1, len(self))
        self.residency.__init__(self._shadow)  # readers keep the object

    def read_into(self, buffer: memoryview, start: int) -> int:
        self._files.on_read(self.path, start, start + len(buffer))
        count = super().read_into(buffer, start)
        for at in range(start - start % mmap.PAGESIZE, start + count, mmap.PAGESIZE):
            self._shadow[at] = 1
        return count


class ColdFiles(Files):
    """A disk whose files are not in memory. `on_read` is called before each read, and may wait or raise OSError."""

    def __init__(self) -> None:
        self.on_read: Callable[[Path, int, int], object] = lambda path, start, stop: None
        self._maps: list[ColdMap] = []

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        self._maps.append(ColdMap(path, super()._map(path, descriptor, size).memory, descriptor, self))
        return self._maps[-1]

    def evict(self) -> None:
        """Puts everything out of memory again."""
        for each in self._maps:
            each.evict()


class SlowDisk(ColdFiles):
    """A disk on which reads wait while it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.on_read = self._wait
        self._go = threading.Event()
        self._go.set()
        self.waiting: list[str] = []
        """The names of the threads that wait for a read, one for each read."""

    def _wait(self, path: Path, start: int, stop: int) -> None:
        if not self._go.is_set():
            self.waiting.append(threading.current_thread().name)
            assert self._go.wait(WAIT_SECONDS), "the disk was never started again"

    def stop(self) -> None:
        self._go.clear()

    def start(self) -> None:
        self._go.set()


_KILLED = 137


class _CountedMap(UnsyncedMap):
    files: CountedFiles

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.files.call(f"sync {self.path.name}")


class CountedFiles(UnsyncedFiles):
    """The real disk; the process ends before call number `last`. What it stored into maps stays, as after a kill."""

    def __init__(self, last: int | None = None) -> None:
        self._last = last
        self.calls: list[str] = []

    def call(self, what: str) -> None:
        if len(self.calls) == self._last:
            os._exit(_KILLED)
        self.calls.append(what)

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        made = _CountedMap(path, super()._map(path, descriptor, size).memory, descriptor)
        made.files = self
        return made

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        self.call(f"create {path.name}")
        return super().create_map(path, size, allocated=allocated)

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        self.call(f"create {path.name}")
        super().create_sparse(path, size, synced=synced)

    def write_unsynced(self, path: Path, data: bytes | memoryview) -> None:
        self.call(f"write {path.name}")
        super().write_unsynced(path, data)

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self.call(f"write {path.name}")
        super()._write_synced(path, data)

    def rename(self, source: Path, target: Path) -> None:
        self.call(f"rename {source.name} to {target}")
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.call(f"unlink {path.name}")
        super().unlink(path)

    def _make_one_folder(self, folder: Path) -> None:
        self.call(f"make folder {folder.name}")
        super()._make_one_folder(folder)

    def remove_folder(self, folder: Path) -> None:
        self.call(f"remove folder {folder.name}")
        super().remove_folder(folder)

    def set_modified_ms(self, path: Path, moment: int) -> None:
        self.call(f"set time of {path.name}")
        super().set_modified_ms(path, moment)


def run_killed(act: Callable[[CountedFiles], object], last: int) -> None:
    """Does something in a process of its own, which ends before its call number `last` to the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads, of which none of ours is left
        child = os.fork()
    if child == 0:
        try:
            act(CountedFiles(last))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == _KILLED, "it ended before it was killed"


class FailingMap(UnsyncedMap):
    """A map whose syncs and allocations may fail."""

    files: FailingFiles

    def allocate(self, start: int, stop: int) -> None:
        self.files.call("allocate", self.path)
        super().allocate(start, stop)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        self.files.call("sync", self.path)
        super().sync(start, stop)


class FailingFiles(UnsyncedFiles):
    """Counts what the store asks of the disk; call number `fails_at` fails, and all later ones if `stays_broken`.

    Stores into a map are no calls: they cannot fail, because their blocks are allocated before.
    """

    def __init__(self, fails_at: int, kind: int, *, stays_broken: bool = False) -> None:
        self._fails_at = fails_at
        self._errno = kind
        self._stays_broken = stays_broken
        self._gate = threading.Lock()
        self.calls: list[tuple[str, Path]] = []

    def call(self, what: str, path: Path) -> None:
        with self._gate:
            number = len(self.calls)
            self.calls.append((what, path))
        if number == self._fails_at or (self._stays_broken and number > self._fails_at):
            raise OSError(self._errno, os.strerror(self._errno), str(path))

    @property
    def failed(self) -> tuple[str, Path] | None:
        """The first call that failed."""
        return self.calls[self._fails_at] if len(self.calls) > self._fails_at else None

    @property
    def later(self) -> list[tuple[str, Path]]:
        """What was called after it."""
        return self.calls[self._fails_at + 1 :]

    def names(self, folder: Path) -> list[str]:
        self.call("list", folder)
        return super().names(folder)

    def size(self, path: Path) -> int:
        self.call("size", path)
        return super().size(path)

    def read_bytes(self, path: Path) -> bytes:
        self.call("read", path)
        return super().read_bytes(path)

    def read_part(self, path: Path, start: int, size: int) -> bytes:
        self.call("read", path)
        return super().read_part(path, start, size)

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        self.call("usage", folder)
        return super().disk_usage(folder)

    def _open(self, path: Path, flags: int) -> int:
        self.call("open", path)
        return super()._open(path, flags)

    def _allocate(self, descriptor: int, size: int, allocated: int) -> None:
        self.call("allocate", Path(f"/proc/self/fd/{descriptor}").readlink())
        super()._allocate(descriptor, size, allocated)

    def _name(self, descriptor: int, path: Path) -> None:
        self.call("name", path)
        super()._name(descriptor, path)

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        try:
            self.call("map", path)
        except OSError:
            os.close(descriptor)
            raise
        plain = super()._map(path, descriptor, size)
        made = FailingMap(path, plain.memory, descriptor)
        made.files = self
        return made

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self.call("write", path)
        super()._write_synced(path, data)

    def _link(self, source: Path, target: Path) -> None:
        self.call("link", target)
        super()._link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        self.call("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self.call("unlink", path)
        super().unlink(path)

    def _make_one_folder(self, folder: Path) -> None:
        self.call("make folder", folder)
        super()._make_one_folder(folder)

    def sync_folder(self, folder: Path) -> None:
        self.call("sync folder", folder)
        super().sync_folder(folder)


class FaultyFiles(Files):
    """The real disk, with a hook before each sync of a map, each allocation of blocks and each sync of a folder.

    A hook gets the path; it may block, count, or raise OSError as the disk would.
    """

    def __init__(self) -> None:
        self.before_sync: Callable[[Path], None] = lambda path: None
        self.before_allocate: Callable[[Path], None] = lambda path: None
        self.before_sync_folder: Callable[[Path], None] = lambda path: None

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        return self._hooked(super().create_map(path, size, allocated=allocated))

    def open_map(self, path: Path) -> FileMap:
        return self._hooked(super().open_map(path))

    def sync_folder(self, folder: Path) -> None:
        self.before_sync_folder(folder)
        super().sync_folder(folder)

    def _create_whole(self, path: Path, size: int, allocated: int) -> int:
        self.before_allocate(path)
        return super()._create_whole(path, size, allocated)

    def _hooked(self, made: FileMap) -> FileMap:
        really_sync = made.sync

        def sync(start: int = 0, stop: int | None = None) -> None:
            self.before_sync(made.path)
            really_sync(start, stop)

        really_allocate = made.allocate

        def allocate(start: int, stop: int) -> None:
            self.before_allocate(made.path)
            really_allocate(start, stop)

        made.sync = sync  # type: ignore[method-assign]
        made.allocate = allocate  # type: ignore[method-assign]
        return made


def refuse(kind: int) -> None:
    """What the disk does when it refuses."""
    raise OSError(kind, os.strerror(kind))


def make_sparse(path: Path) -> None:
    """Replaces a file by a copy whose pages of zeros are holes, as `cp --sparse=always` does."""
    data = path.read_bytes()
    path.unlink()
    with path.open("wb") as copy:
        copy.truncate(len(data))
        for at in range(0, len(data), mmap.PAGESIZE):
            if any(piece := data[at : at + mmap.PAGESIZE]):
                os.pwrite(copy.fileno(), piece, at)


GIB = 1 << 30


class MeasuredFiles(Files):
    """The real disk, with partitions of 100 GiB that are as full as a test says.

    A log file that is deleted counts for `percent_of_a_file` percents, so that deletion makes room.
    """

    def __init__(self) -> None:
        self.percent = 50.0
        self.queues_percent: float | None = None
        """Fullness of the queues' partition, if they have one of their own."""
        self.percent_of_a_file = 0.0
        self.broken: OSError | None = None

    def partition(self, folder: Path) -> int:
        return int("commitlog" not in folder.parts and self.queues_percent is not None)

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        if self.broken is not None:
            raise self.broken
        percent = self.percent
        if self.queues_percent is not None and "commitlog" not in folder.parts:
            percent = self.queues_percent
        used = round(percent * GIB)
        return used, 100 * GIB - used

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.parent.name == "commitlog":
            self.percent -= self.percent_of_a_file

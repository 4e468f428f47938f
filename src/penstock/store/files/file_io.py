"""The I/O seam: every open, allocate, map, sync, rename and unlink of the store goes through `Files`.

`Files` works on the real disk and has no state; any thread may use it. `OverlayFiles`
(`in_memory_copy_on_write_files.py`) shows the same folders and keeps every change in memory. Tests inject faults with
subclasses, which fail the N-th call or forget unsynced writes. Each method that creates or replaces a file says what a
crash leaves.

`FileMap` is a whole file mapped into memory. The caller who got it from `Files` must close it, and must release all
slices of its `view` before. Any thread may read and store. Stored bytes survive the end of the process. They survive a
power cut once `sync` has returned.

All of this is promised on Linux. Elsewhere (macOS) calls that the system lacks are replaced by weaker ones: blocks are
not allocated in advance, so a full disk can end the process in the middle of a store; a power cut can undo a sync.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import errno
import mmap
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import BadStore, StoreFailed, StoreInUse, disk_refused
from penstock.format import kernels
from penstock.format.scan import nonzero_end
from penstock.store.files.lock import StoreLock, held_by_this_process, lock_owner, locks_change

# -- memory calls that Python's mmap lacks, or makes with the GIL held ----------------------------------------

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
_msync = _libc.msync
_msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_MS_SYNC = 4  # Linux's; elsewhere another number, and 4 may mean to drop pages
_IS_LINUX = sys.platform == "linux"
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_RANGE_WRITE = 2  # SYNC_FILE_RANGE_WRITE


def lock_memory(memory: mmap.mmap) -> bool:
    """Locks the map in RAM. Returns False if the system's limit forbids it."""
    return _on_all(_libc.mlock, memory) == 0


def unlock_memory(memory: mmap.mmap) -> bool:
    return _on_all(_libc.munlock, memory) == 0


def sync_memory(memory: mmap.mmap, start: int, stop: int) -> None:
    """Syncs a range of the map to disk, without the GIL. Raises OSError.

    That a sync failed is never lost: if another exception interrupts the thread (KeyboardInterrupt), OSError wins.
    """
    start -= start % mmap.PAGESIZE
    if not _IS_LINUX:
        memory.flush(start, stop - start)
    elif start < stop:
        held = ctypes.c_char.from_buffer(memory, start)  # so that it is not unmapped meanwhile
        ctypes.set_errno(0)
        try:
            _msync(ctypes.addressof(held), stop - start, _MS_SYNC)
        finally:
            del held
            if error := ctypes.get_errno():
                raise OSError(error, os.strerror(error))


def _on_all(function: Callable[..., int], memory: mmap.mmap) -> int:
    held = ctypes.c_char.from_buffer(memory)
    try:
        return function(ctypes.c_void_p(ctypes.addressof(held)), ctypes.c_size_t(len(memory)))
    finally:
        del held


def allocate_blocks(descriptor: int, start: int, stop: int) -> None:
    """Allocates the disk blocks of a range. Raises OSError. Where the system cannot: only sets the size."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, stop - start)
    elif os.fstat(descriptor).st_size < stop:
        os.ftruncate(descriptor, stop)


def written_ranges(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges within [start, stop) that are not holes. Yields all if the file system cannot tell."""
    while start < stop:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: only a hole follows
                yield start, stop
            return
        if begin < stop:
            yield begin, min(end, stop)
        start = end


_LOADED_AT_ONCE: Final = 256 << 10


class NotResident(Exception):
    """Bytes are not in memory, or messages not dispatched, and the caller must not wait."""


class FileMap:
    """A whole file mapped into memory, shared with every other process that maps it."""

    def __init__(self, path: Path, memory: mmap.mmap, descriptor: int) -> None:
        """`descriptor` is that of the file, or -1 if there is none; `close` closes it."""
        self.path = path
        self.memory = memory
        self.view = memoryview(memory)
        self._descriptor = descriptor
        self.residency = kernels.Residency(self.view) if descriptor >= 0 else None
        """Tells which bytes are in memory. None: no byte is on a disk."""
        self.reserved = 0
        """Position up to which the disk blocks that the writer needs are known to be allocated; see `reserve`."""

    def __len__(self) -> int:
        return len(self.memory)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        """Syncs the range [start, stop), or without `stop` the whole file. Releases the GIL. Raises OSError.

        The sync of a range leaves the pages after the range alone, which the writer uses next.
        """
        if stop is not None:
            sync_memory(self.memory, start, stop)
        elif hasattr(os, "fdatasync"):
            os.fdatasync(self._descriptor)
        else:
            self.memory.flush()
            os.fsync(self._descriptor)

    def start_writing(self) -> None:
        """Has the system write what has changed to the disk, and does not wait: a `sync` later finds less to do."""
        if _sync_file_range is not None and self._descriptor >= 0:
            _sync_file_range(self._descriptor, 0, 0, _RANGE_WRITE)

    def let_go(self, start: int, stop: int) -> None:
        """Hints that the bytes of [start, stop) were read and are not needed soon. They must be unchanged."""

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        """Yields the ranges from `start` on that may hold data. Omits allocated but unwritten ranges if possible.

        All ranges are determined before the first is yielded. The kernel counts pages that it has read ahead as
        written, so a caller that reads between two ranges would otherwise get everything up to the end of the file.
        """
        yield from list(written_ranges(self._descriptor, start, len(self)))

    def nonzero_end(self, start: int, stop: int | None = None) -> int:
        """Returns the position after the last nonzero byte in [start, stop); `start` if all are zero. Skips holes."""
        return nonzero_end(self.view[: len(self) if stop is None else stop], self.written_ranges(start), start)

    def allocate(self, start: int, stop: int) -> None:
        """Allocates the disk blocks of a range. Needed before stores into a sparse file. Raises OSError."""
        allocate_blocks(self._descriptor, start, stop)

    def reserve(self, start: int, stop: int, step: int) -> None:
        """Makes sure that [start, stop) has disk blocks, so that stores into it cannot fail. Raises StoreFailed.

        On a full disk, a store into a mapped page without a block kills the process with SIGBUS. The file may be
        sparse because it grows in steps, RocketMQ created it, or a copy left its zeros out. Allocates up to a multiple
        of `step`. Only the file's writer may call it, with ranges that follow each other.
        """
        if stop <= self.reserved:
            return
        start, stop = max(start, self.reserved), min(-(-stop // step) * step, len(self))
        if start < stop:  # else the file is full
            self.reserve_apart(start, stop)
        self.reserved = stop

    def reserve_apart(self, start: int, stop: int) -> None:
        """Like `reserve`, for a range that does not follow the others. The caller remembers which it has reserved."""
        stop = min(stop, len(self))
        try:
            self.allocate(start, stop)
        except OSError as error:
            raise disk_refused("cannot allocate", self.path, stop - start, error) from error

    def write(self, position: int, data: bytearray | memoryview) -> None:
        """Writes bulk data at `position` with `pwrite`, which avoids a page fault per page. Raises StoreFailed."""
        left = memoryview(data)
        try:
            while left:
                written = os.pwrite(self._descriptor, left, position)
                left, position = left[written:], position + written
        except OSError as error:
            raise disk_refused("cannot write", self.path, len(data), error) from error

    def ensure_resident(self, start: int, stop: int, *, at_once: bool = False) -> None:
        """Returns when the range can be read through the map without waiting for the disk; see `load`.

        With `at_once` raises NotResident instead of waiting.
        """
        if self.residency is None or self.residency.check(start, stop):
            return
        if at_once:
            raise NotResident
        self.load(start, stop)

    def load(self, start: int, stop: int) -> None:
        """Reads a range from the disk into memory, without the GIL.

        Raises StoreFailed if the disk cannot read it, or if the file has become shorter than its map: reading the map
        there would kill the process with SIGBUS.
        """
        scratch = memoryview(bytearray(min(stop - start, _LOADED_AT_ONCE)))
        try:
            while start < stop:
                count = self.read_into(scratch[: stop - start], start)
                if not count:
                    raise StoreFailed(
                        "the file was cut while the store was open; stop what changes it, restore it from a copy, and "
                        "start again",
                        path=self.path,
                        expected=f"{len(self)} bytes",
                        found=f"{os.fstat(self._descriptor).st_size} bytes",
                    )
                start += count
        except OSError as error:
            raise disk_refused(f"cannot read {stop - start} bytes at {start}", self.path, 0, error) from error

    def read_into(self, buffer: memoryview, start: int) -> int:
        """Reads bytes at `start` with `preadv`, without the GIL. Returns their number. Raises OSError."""
        return os.preadv(self._descriptor, [buffer], start)

    def will_need(self, start: int = 0, size: int = 0) -> None:
        """Asks the system to read `size` bytes ahead; 0 means up to the end of the file. Returns at once."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Unmaps the file. Memory that still has views is freed with the last view."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self.memory.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)


_PIECE: Final = 1 << 20


def zero_from(file: FileMap, position: int) -> int:
    """Zeroes the file from `position` on. Skips pieces of 1 MiB that are zero. Returns the number of nonzero bytes."""
    zeroed = 0
    for begin, end in file.written_ranges(position):
        for start in range(begin, end, _PIECE):
            piece = np.frombuffer(file.view, np.uint8, min(_PIECE, end - start), start)
            used = np.flatnonzero(piece)
            if len(used):  # a byte that is not zero has a disk block; the others may lie in holes
                piece[used] = 0
                zeroed += len(used)
            del piece
    return zeroed


_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
"""Error numbers of file systems without O_TMPFILE."""


class Files:
    """The real disk."""

    read_only = False

    # -- inspecting ------------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_zero(self, path: Path) -> bool:
        """Whether a file is empty or holds only zeros."""
        if not self.size(path):
            return True
        with contextlib.closing(self.open_map(path)) as data:
            return not data.nonzero_end(0)

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; empty if the folder does not exist."""
        try:
            return sorted(entry.name for entry in folder.iterdir())
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise BadStore("this must be a folder, and it is a file; move it elsewhere", path=folder) from None

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def identity(self, path: Path) -> tuple[int, int] | None:
        """Returns (device, inode) of the file on disk at `path`, or None. The inode of a mapped file is not reused."""
        try:
            facts = path.stat()
        except FileNotFoundError:
            return None
        return facts.st_dev, facts.st_ino

    def folder_state(self, folder: Path) -> tuple[int, int] | None:
        """Returns a value that changes when a name in the folder on disk is added or removed; None if it is missing."""
        try:
            facts = folder.stat()
        except FileNotFoundError:
            return None
        return facts.st_mtime_ns, facts.st_nlink

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, moment: int) -> None:
        """Sets the modification time in ms. RocketMQ uses it to delete log files and to search queues by time."""
        os.utime(path, ns=(moment * 1_000_000, moment * 1_000_000))

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        """Returns (used, free) bytes of the partition of `folder`. Blocks reserved for root count as neither."""
        usage = shutil.disk_usage(folder)
        return usage.used, usage.free

    def files_below(self, path: Path) -> Iterator[tuple[Path, os.stat_result]]:
        """Yields each file below a folder, or the file `path` itself, with its stat. Omits files deleted meanwhile."""
        for each in (path, *path.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                facts = each.lstat()
                if stat.S_ISREG(facts.st_mode):
                    yield each, facts

    def allocated(self, path: Path) -> int:
        """Returns the bytes of disk blocks that a file, or all files below a folder, occupy."""
        return sum(facts.st_blocks * 512 for _, facts in self.files_below(path))

    def partition(self, folder: Path) -> int:
        """Returns the device number. Two folders on the same partition have the same number."""
        return folder.stat().st_dev

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    def read_part(self, path: Path, start: int, size: int) -> bytes:
        """Reads `size` bytes of a file from `start` on; fewer if the file ends before."""
        with path.open("rb") as file:
            file.seek(start)
            return file.read(size)

    # -- mapping ---------------------------------------------------------------------------------------------

    def create_map(self, path: Path, size: int, *, allocated: int | None = None) -> FileMap:
        """Creates and maps a file of `size` zero bytes. Syncs its name. Raises StoreFailed.

        The disk blocks of the first `allocated` bytes, by default of all, are allocated before mapping; the writer gets
        the others with `FileMap.reserve`. The name appears once the file has its full size, so a crash leaves no file
        of a wrong size (except on file systems without O_TMPFILE).
        """
        allocated = size if allocated is None else min(allocated, size)
        try:
            self.make_folder(path.parent)
            descriptor = self._create_whole(path, size, allocated)
        except OSError as error:
            raise disk_refused("cannot allocate a file", path, allocated, error) from error
        created: FileMap | None = None
        try:
            created = self._map(path, descriptor, size)
            created.reserved = allocated
            self.sync_folder(path.parent)
        except OSError as error:
            if created is not None:
                created.close()
            with contextlib.suppress(OSError):  # a file of full size and all zero is harmless
                self.unlink(path)
            raise disk_refused("cannot create a file", path, size, error) from error
        return created

    def _create_whole(self, path: Path, size: int, allocated: int) -> int:
        try:
            descriptor = self._open_unnamed(path.parent)
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
            return self._create_in_place(path, size, allocated)
        try:
            self._allocate(descriptor, size, allocated)
            self._name(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _create_in_place(self, path: Path, size: int, allocated: int) -> int:
        """Creates a file without O_TMPFILE. A crash may leave a file that is short and all zero; loading removes it."""
        descriptor = self._open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            self._allocate(descriptor, size, allocated)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self.unlink(path)
            raise
        return descriptor

    def _open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o600)

    def _open_unnamed(self, folder: Path) -> int:
        if not hasattr(os, "O_TMPFILE"):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return self._open(folder, os.O_TMPFILE | os.O_RDWR)

    def _allocate(self, descriptor: int, size: int, allocated: int) -> None:
        allocate_blocks(descriptor, 0, allocated)
        if allocated < size:
            os.ftruncate(descriptor, size)

    def _name(self, descriptor: int, path: Path) -> None:
        """Links an unnamed file to a path."""
        # src_dir_fd is unused for an absolute path, but makes Python follow the link to the file.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        """Creates a sparse file of `size` zero bytes. Syncs the file and its name if `synced`. Raises StoreFailed.

        A sparse file may replace a lost file; then nothing may be stored into it. Or the caller builds the content with
        `FileMap.write`, and must sync the file when it is complete.
        """
        try:
            unnamed = True
            try:
                descriptor = self._open_unnamed(path.parent)
            except OSError as error:
                if error.errno not in _NO_UNNAMED_FILES:
                    raise
                unnamed, descriptor = False, self._open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
            try:
                os.ftruncate(descriptor, size)
                if synced:
                    os.fsync(descriptor)
                if unnamed:
                    self._name(descriptor, path)
            finally:
                os.close(descriptor)
            if synced:
                self.sync_folder(path.parent)
        except OSError as error:
            raise disk_refused("cannot create a file", path, 0, error) from error

    def open_map(self, path: Path) -> FileMap:
        """Maps a whole existing file for reading and writing."""
        descriptor = self._open(path, os.O_RDWR)
        return self._map(path, descriptor, os.fstat(descriptor).st_size)

    def _map(self, path: Path, descriptor: int, size: int) -> FileMap:
        try:
            memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException:
            os.close(descriptor)
            raise
        return FileMap(path, memory, descriptor)

    # -- changing --------------------------------------------------------------------------------------------

    def replace_bytes(self, path: Path, data: bytes | memoryview, keep_backup: bool = False) -> None:
        """Replaces a file's content atomically: a crash leaves the old content or the new content. Raises StoreFailed.

        With `keep_backup` the old content stays in the file `<name>.bak`. At any moment one of the two files is intact.
        """
        temporary = path.with_name(path.name + ".tmp")
        try:
            self.make_folder(path.parent)
            self._write_synced(temporary, data)
            if keep_backup and path.exists():
                backup = path.with_name(path.name + ".bak")
                spare = path.with_name(path.name + ".bak.tmp")
                self.unlink(spare)
                self._link(path, spare)
                self.rename(spare, backup)
            self.rename(temporary, path)
            self.sync_folder(path.parent)
        except OSError as error:
            raise disk_refused("cannot write", path, len(data), error) from error

    def _write_synced(self, path: Path, data: bytes | memoryview) -> None:
        self._write(path, data, synced=True)

    def _write(self, path: Path, data: bytes | memoryview, *, synced: bool) -> None:
        descriptor = self._open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if synced:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def write_unsynced(self, path: Path, data: bytes | memoryview) -> None:
        """Replaces a file without syncing it. The folder must exist. Raises StoreFailed.

        If the process is killed, the file has the old content or the new content. After a power cut it may have any.
        """
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            self._write(temporary, data, synced=False)
            self.rename(temporary, path)
        except OSError as error:
            raise disk_refused("cannot write", path, len(data), error) from error

    def _link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, folder: Path) -> None:
        """Creates a folder and its missing parents. Syncs the names of new folders."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            self._make_one_folder(folder)
            self.sync_folder(folder.parent)

    def _make_one_folder(self, folder: Path) -> None:
        folder.mkdir(0o700, exist_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """Removes a folder if it is empty. Ignores errors."""
        with contextlib.suppress(OSError):
            folder.rmdir()

    def sync_folder(self, folder: Path) -> None:
        """Makes names created, renamed or removed in `folder` survive a power cut."""
        descriptor = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # -- locking ---------------------------------------------------------------------------------------------

    def lock(self, path: Path) -> StoreLock:
        """Locks the store. Raises StoreInUse if this or another process owns it."""
        try:
            self.make_folder(path.parent)
            with locks_change:
                if held_by_this_process(path):
                    raise StoreInUse(
                        "the store is already open in this process; use that one, or close it first", path=path.parent
                    )
                return StoreLock.acquire(path, self._open(path, os.O_CREAT | os.O_RDWR))
        except OSError as error:
            raise disk_refused("cannot take the store's lock", path, 4, error) from error

    def lock_owner(self, path: Path) -> int:
        """Returns the owner's process id; 0 if there is no owner, -1 if the owner runs in another container or host."""
        return lock_owner(path)

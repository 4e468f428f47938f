"""mlock, munlock and msync of a range, which Python's mmap does not offer or does not offer without the GIL.

Which parts of a file were ever written, as far as the file system can tell.

A whole file mapped into memory.

A `FileMap` belongs to whoever asked a `Files` for it and is closed by them; its `view` must not be used afterwards,
and any slice of it must be released first. Any thread may read and store; what was stored is on disk when `sync`
returns, and survives the end of the process before that.


Zeroing the rest of a file without touching what is zero already.

The I/O seam: every open, allocate, map, sync, rename and unlink of the store goes through a `Files`.

`Files` works on the real disk. `OverlayFiles`, in its own module, shows the same folders but keeps every change in
memory. Tests plug in their own subclasses to make the N-th call fail or to forget what was not synced.

It has no state of its own: any thread may use it. What a crash leaves of each change is said where it is made.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import BadStore, StoreInUse, disk_refused
from penstock.store.lock import StoreLock, held_by_this_process, lock_owner

_libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
_MS_SYNC = 4


def lock_memory(memory: mmap.mmap) -> bool:
    """Keeps the map in RAM; False where the system's limit forbids it."""
    return _on_range(_libc.mlock, memory, 0, len(memory)) == 0


def unlock_memory(memory: mmap.mmap) -> bool:
    return _on_range(_libc.munlock, memory, 0, len(memory)) == 0


def sync_memory(memory: mmap.mmap, start: int, stop: int) -> None:
    """Returns when this part of the file is on disk; other threads run meanwhile. Raises OSError."""
    start -= start % mmap.PAGESIZE
    if _on_range(_libc.msync, memory, start, stop - start, _MS_SYNC):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _on_range(function: Callable[..., int], memory: mmap.mmap, start: int, size: int, *more: int) -> int:
    held = (ctypes.c_char * len(memory)).from_buffer(memory)
    try:
        address = ctypes.c_void_p(ctypes.addressof(held) + start)
        return function(address, ctypes.c_size_t(size), *map(ctypes.c_int, more))
    finally:
        del held


def written_ranges(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a file between `start` and `stop` that are not holes, as the file system knows them."""
    while start < stop:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole follows
                yield start, stop
            return
        if begin < stop:
            yield begin, min(end, stop)
        start = end


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


_PIECE: Final = 1 << 20


def written_pieces(file: FileMap, position: int) -> Iterator[tuple[int, int]]:
    """What may hold something from `position` on, in pieces that fit a cache."""
    for begin, end in file.written_ranges(position):
        for start in range(begin, end, _PIECE):
            yield start, min(start + _PIECE, end)


def zero_from(file: FileMap, position: int) -> int:
    """Zeroes from `position` to the end, touching only what is not zero; returns how many bytes were not."""
    cut = 0
    for start, stop in written_pieces(file, position):
        piece = np.frombuffer(file.view, np.uint8, stop - start, start)
        count = int(np.count_nonzero(piece))
        if count:
            piece[:] = 0
            cut += count
        del piece
    return cut


_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
"""What file systems answer that can make no file without a name."""


class Files:
    """The real disk."""

    read_only = False

    # -- looking ---------------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        return path.exists()

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def names(self, folder: Path) -> list[str]:
        """What is in a folder, sorted by name; nothing if there is no such folder."""
        try:
            return sorted(entry.name for entry in folder.iterdir())
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise BadStore("this must be a folder, and it is a file; move it elsewhere", path=folder) from None

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, moment: int) -> None:
        """RocketMQ deletes log files, and picks queue files by time, by when they were modified."""
        os.utime(path, ns=(moment * 1_000_000, moment * 1_000_000))

    def disk_usage(self, folder: Path) -> tuple[int, int]:
        """(used, usable) bytes of the partition that holds `folder`; blocks kept for root are neither."""
        usage = shutil.disk_usage(folder)
        return usage.used, usage.free

    def under(self, path: Path) -> Iterator[tuple[Path, os.stat_result]]:
        """Each file below a folder, or the file itself, with its facts; what goes away meanwhile is left out."""
        for each in (path, *path.rglob("*")):
            with contextlib.suppress(FileNotFoundError):
                facts = each.lstat()
                if stat.S_ISREG(facts.st_mode):
                    yield each, facts

    def allocated(self, path: Path) -> int:
        """The bytes that the blocks of a file, or of all files below a folder, take on disk."""
        return sum(facts.st_blocks * 512 for _, facts in self.under(path))

    def partition(self, folder: Path) -> int:
        """A number that two folders have in common if they lie on one partition."""
        return folder.stat().st_dev

    def read_bytes(self, path: Path) -> bytes:
        return path.read_bytes()

    # -- mapping ---------------------------------------------------------------------------------------------

    def create_map(self, path: Path, size: int) -> FileMap:
        """A new file of exactly `size` zero bytes, really allocated, with its name on disk.

        Allocated before it is mapped: storing into a map whose block cannot be had would kill the process. The
        name appears only when the file has its full size, so that a crash leaves no file of a wrong one.
        """
        try:
            self.make_folder(path.parent)
            descriptor = self._create_whole(path, size)
        except OSError as error:
            raise disk_refused("cannot allocate a file", path, size, error) from error
        made: FileMap | None = None
        try:
            made = self._map(path, descriptor, size)
            self.sync_folder(path.parent)
        except OSError as error:
            if made is not None:
                made.close()
            with contextlib.suppress(OSError):  # a file of full size and all zero is no harm
                self.unlink(path)
            raise disk_refused("cannot make a file", path, size, error) from error
        return made

    def _create_whole(self, path: Path, size: int) -> int:
        try:
            descriptor = self._open(path.parent, os.O_TMPFILE | os.O_RDWR)
        except OSError as error:
            if error.errno not in _NO_UNNAMED_FILES:
                raise
            return self._create_in_place(path, size)
        try:
            self._allocate(descriptor, size)
            self._name(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _create_in_place(self, path: Path, size: int) -> int:
        """For file systems without unnamed files; a load takes an all-zero last file of a wrong size for this."""
        descriptor = self._open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            self._allocate(descriptor, size)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                self.unlink(path)
            raise
        return descriptor

    def _open(self, path: Path, flags: int) -> int:
        return os.open(path, flags, 0o644)

    def _allocate(self, descriptor: int, size: int) -> None:
        os.posix_fallocate(descriptor, 0, size)

    def _name(self, descriptor: int, path: Path) -> None:
        """Gives an unnamed file its name."""
        # A folder descriptor, though unused for an absolute path, makes Python follow the link to the file.
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=descriptor, follow_symlinks=True)

    def create_sparse(self, path: Path, size: int, *, synced: bool = True) -> None:
        """A new file of exactly `size` zero bytes that takes no room, with its name on disk if it is `synced`.

        It stands in for a file that was lost, and nothing may be stored into it; or it is one that is being built,
        which somebody allocates and syncs when it is whole.
        """
        try:
            unnamed = True
            try:
                descriptor = self._open(path.parent, os.O_TMPFILE | os.O_RDWR)
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
            raise disk_refused("cannot make a file", path, 0, error) from error

    def open_map(self, path: Path) -> FileMap:
        """An existing file, whole, for reading and writing."""
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
        """Puts `data` in place of a file so that a crash leaves the old content or the new, never a mixture.

        With `keep_backup` the old content stays under `.bak`; at every moment one of the two names is good.
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
        """A file that is of use only while this host runs: a kill leaves it whole or not there, a power cut anything.

        Its folder must be there. Raises StoreFailed.
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
        """Makes a folder and those above it that are missing, each with its name on disk."""
        if not folder.is_dir():
            self.make_folder(folder.parent)
            self._make_one_folder(folder)
            self.sync_folder(folder.parent)

    def _make_one_folder(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)

    def remove_folder(self, folder: Path) -> None:
        """Removes a folder if it is empty."""
        with contextlib.suppress(OSError):
            folder.rmdir()

    def sync_folder(self, folder: Path) -> None:
        """Makes names created, renamed or removed in `folder` survive a power loss."""
        descriptor = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # -- owning ----------------------------------------------------------------------------------------------

    def lock(self, path: Path) -> StoreLock:
        """Takes the store's lock, or raises StoreInUse and changes nothing."""
        try:
            self.make_folder(path.parent)
            if held_by_this_process(path):
                raise StoreInUse(
                    "the store is already open in this process; use that one, or close it first", path=path.parent
                )
            descriptor = self._open(path, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            raise disk_refused("cannot take the store's lock", path, 4, error) from error
        return StoreLock.take(path, descriptor)

    def lock_owner(self, path: Path) -> int:
        """The process that owns the store, 0 if none does, -1 if it runs in another container or on another host."""
        return lock_owner(path)

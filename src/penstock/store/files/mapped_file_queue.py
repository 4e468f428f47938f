"""MappedFileQueue: an append-only byte sequence in files of one size, each named by the offset of its first byte.

The commit log is one such sequence, and every consume queue is another. Offsets count bytes from the start of the
sequence. The tuple of files is replaced, never changed in place, so readers need no lock. One thread may append while
another deletes the first file; a lock protects the tuple from lost updates. No other thread may use the queue during
`cut` and `truncate`.

`list_data_files` inspects a folder by file names and sizes. If a log file is missing between two others, `missing_file`
stands for it: a map of zeros that takes no space. The whole range of that file counts as damage until a repair writes
placeholders over it.
"""

from __future__ import annotations

import mmap
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadStore
from penstock.store.files.file_io import FileMap, Files
from penstock.store.files.mapped_file import MappedFile

_NAME = re.compile(r"[0-9]{20}")
STEP: Final = 64 << 10
"""Disk blocks of a consume queue's file are allocated in steps of this many bytes; see `FileMap.reserve`. A new file of
a log that grows has as many."""
MAX_MISSING_IN_A_ROW = 8
"""A start fails if more files in a row are missing: an operator should decide."""
Allocate = Callable[[Path, int], MappedFile]
"""Creates the file with this path and this offset of its first byte."""


def file_name(offset: int) -> str:
    return f"{offset:020d}"


class MappedFileQueue:
    """The files of one folder, in order of their offsets."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self.folder = folder
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
        self._gate = threading.Lock()
        """Held while `files` is replaced: by a tuple with one more file, or by a tuple without the first file."""
        self.flushed_where = 0
        self.committed_where = 0
        self.written_from = 0
        """Offset from which this process wrote the bytes; the bytes before it were loaded from disk."""
        self._buffered = False
        """Whether any file was created with a pool buffer."""
        self.store_timestamp = 0
        """Store time in ms of the newest record known to be on disk."""

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps all files. Each file counts as full until recovery finds the end of its data.

        Raises BadStore if a file is missing, or has a wrong size or an illegal name. Removes an unfinished last file:
        one that a crash left empty, or too short and all zero.
        """
        listing = self.listing()
        self.map_files(listing.offsets)
        self.remove_unfinished(listing)

    def listing(self, *, max_missing: int = 0) -> FolderListing:
        """Lists the files on disk. Changes nothing. Accepts up to `max_missing` files missing in a row between others.

        Raises BadStore for longer gaps, wrong sizes and wrong names.
        """
        listing = list_data_files(self._io, self.folder, self.file_size)
        for offset, size in listing.wrong_sizes.items():
            raise BadStore(
                "the file has another size than the settings say; set the size that all files have, restore the file "
                "from a copy, or run `penstock store repair`",
                path=self.folder / file_name(offset),
                expected=f"{self.file_size} bytes",
                found=f"{size} bytes",
            )
        for offset in listing.misplaced:
            raise BadStore(
                "the file's name is not a multiple of the file size; set the size that the files have",
                path=self.folder / file_name(offset),
                expected=f"a multiple of {self.file_size}",
                found=offset,
            )
        for offset, count in listing.holes:
            if count > max_missing:
                missing = "a file is" if count == 1 else f"{count} files are"
                raise BadStore(
                    f"{missing} missing before this one; restore them from a copy, or move the older files elsewhere "
                    "to serve what follows",
                    path=self.folder / file_name(offset + count * self.file_size),
                    expected=file_name(offset),
                    found=file_name(offset + count * self.file_size),
                )
        return listing

    def map_files(self, offsets: Sequence[int]) -> None:
        """Maps the files with these offsets, which are sorted. Files missing between them read as zeros."""
        loaded: list[MappedFile] = []
        try:
            for offset in range(offsets[0], offsets[-1] + 1, self.file_size) if offsets else ():
                path = self.folder / file_name(offset)
                if offset in offsets:
                    loaded.append(MappedFile(self._io.open_map(path), offset, wrote=self.file_size))
                else:
                    loaded.append(missing_file(path, offset, self.file_size))
        except BaseException:
            for file in loaded:
                file.shut_down()
            raise
        self.files = tuple(loaded)
        self.written_from = self.max_offset

    def remove_unfinished(self, listing: FolderListing) -> None:
        """Removes the unfinished last file, if there is one: a crash interrupted its creation, so it holds no data."""
        if listing.unfinished is not None:
            self._io.unlink(self.folder / file_name(listing.unfinished))

    # -- finding ---------------------------------------------------------------------------------------------

    @property
    def first(self) -> MappedFile | None:
        return self.files[0] if self.files else None

    @property
    def last(self) -> MappedFile | None:
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Offset at which the first file that is not being deleted begins; -1 if there is none."""
        for file in self.files:
            if file.available:
                return file.from_offset
        return -1

    @property
    def max_offset(self) -> int:
        """Offset at which the readable bytes end; 0 if the queue is empty."""
        files = self.files
        if not files:
            return 0
        last = files[-1]
        if self._buffered:
            return (self.find(self.committed_where) or last).end_offset
        return last.from_offset + last.marks[0]

    @property
    def wrote_offset(self) -> int:
        files = self.files
        return files[-1].from_offset + files[-1].wrote if files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Returns the file whose range contains `offset`; None if no file does."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def read(self, offset: int, size: int, *, at_once: bool = False) -> bytes | None:
        """Like `MappedFile.read`, by the offset in the queue."""
        file = self.find(offset)
        return None if file is None else file.read(offset - file.from_offset, size, at_once=at_once)

    # -- growing ---------------------------------------------------------------------------------------------

    def writable(self, start: int, allocate: Allocate | None = None) -> MappedFile:
        """Returns the file to append to. Creates a file if the last is full or the queue is empty. Raises StoreFailed.

        The first file of an empty queue is the one that contains offset `start`. `allocate` creates the file; by
        default it is sparse, and the caller must `FileMap.reserve` what it stores.
        """
        last = self.last
        if last is not None and not last.full:
            return last
        offset = start - start % self.file_size if last is None else last.from_offset + self.file_size
        path = self.folder / file_name(offset)
        if allocate is not None:
            created = allocate(path, offset)
        else:
            created = MappedFile(self._io.create_map(path, self.file_size, allocated=STEP), offset)
        created.created_first = last is None
        self._buffered = self._buffered or created.buffer is not None
        with self._gate:
            self.files = (*self.files, created)
        return created

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> bool:
        """Syncs the file that contains `flushed_where`. Returns whether `flushed_where` moved. Raises OSError."""
        file = self.find(self.flushed_where) or self.first
        if file is None:
            return False
        timestamp = file.store_timestamp
        where = file.from_offset + file.flush(least_pages)
        moved = where > self.flushed_where
        self.flushed_where = max(where, self.flushed_where)
        if least_pages == 0 and timestamp:
            self.store_timestamp = timestamp
        return moved

    def flush_all(self, least_pages: int = 0) -> None:
        """Flushes file by file until `flushed_where` no longer moves."""
        while self.flush(least_pages):
            pass

    def commit(self, least_pages: int = 0) -> bool:
        """Commits the file that contains `committed_where`. Returns whether `committed_where` moved."""
        file = self.find(self.committed_where) or self.first
        if file is None:
            return False
        where = file.from_offset + file.commit(least_pages)
        moved = where > self.committed_where
        self.committed_where = max(where, self.committed_where)
        return moved

    def commit_all(self) -> None:
        while self.commit(0):
            pass

    # -- shrinking -------------------------------------------------------------------------------------------

    def cut(self, offset: int) -> list[MappedFile]:
        """Hides everything from `offset` on without changing a byte.

        Returns the files that are hidden as a whole, last first. The caller must remove them or shut them down.
        """
        kept: list[MappedFile] = []
        hidden: list[MappedFile] = []
        for file in self.files:
            if file.from_offset >= offset and (kept or file.from_offset > offset):
                hidden.insert(0, file)
                continue
            kept.append(file)
            file.wrote = file.committed = file.flushed = min(max(offset - file.from_offset, 0), file.size)
        self.files = tuple(kept)
        self.flushed_where = self.committed_where = offset
        self.written_from = min(self.written_from, offset)
        return hidden

    def truncate(self, offset: int, *, zero: bool = True) -> int:
        """Removes everything from `offset` on. Returns the number of bytes removed, without the zeros of the last file.

        Deletes later files, last first, so that a crash leaves no hole. Zeroes the tail of the last file kept, so that
        old records cannot reappear. `zero=False` skips the zeroing, for a log end that a clean close wrote.
        """
        count = 0
        for file in self.cut(offset):
            count += file.size
            self._remove(file)
        for file in self.files if zero else ():
            count += file.zero(file.wrote)
        return count

    def drop_first(self, *, forced: bool = False) -> bool:
        """Deletes the first file unless it has readers. Returns whether the file is deleted from disk.

        Even a call that returns False makes the file refuse new readers. `forced` deletes a file despite its readers:
        they may continue, and the disk blocks are freed when they release the file. The folder is synced after each
        deletion, so a power cut can bring back only the last deleted file and leaves no hole. If it raises OSError, the
        caller may call it again.
        """
        file = self.files[0]
        if not file.shut_down() and not forced:
            return False
        self._io.unlink(file.path)
        with self._gate:
            self.files = self.files[1:]
        self._io.sync_folder(self.folder)
        return True

    def forget_first(self) -> None:
        """Stops serving the first file, and leaves the disk alone. Its readers may continue."""
        self._forget(self.files[0])

    def forget_last(self) -> None:
        """Stops serving the last file, and leaves the disk alone. Its readers may continue."""
        self._forget(self.files[-1])

    def _forget(self, file: MappedFile) -> None:
        with self._gate:
            self.files = tuple(each for each in self.files if each is not file)
        file.shut_down()

    def _remove(self, file: MappedFile) -> None:
        file.shut_down()
        self._io.unlink(file.path)

    def close(self) -> None:
        for file in self.files:
            file.shut_down()
        self.files = ()

    def destroy(self) -> None:
        """Removes all files and the folder. Current readers may continue. A power cut may bring files back.

        Raises OSError.
        """
        for file in self.files:
            self._remove(file)
        self.files = ()
        self._io.remove_folder(self.folder)


# -- inspecting a folder -------------------------------------------------------------------------------------------


class FolderListing(msgspec.Struct, frozen=True):
    """The data files of one folder, each named by its offset, and their irregularities."""

    offsets: tuple[int, ...]
    """Files of the expected size whose offset is a multiple of that size."""
    wrong_sizes: dict[int, int]
    """Files of another size: the size in bytes by offset."""
    misplaced: tuple[int, ...]
    """Files of the expected size whose offset is not a multiple of that size."""
    unfinished: int | None
    """Offset of the last file if a crash left it empty, or too short and all zero; else None."""
    holes: tuple[tuple[int, int], ...]
    """(offset of the first missing file, number of missing files) of each gap between others."""

    @property
    def valid_start(self) -> tuple[int, ...]:
        """The offsets of the files before the first irregularity."""
        wrong = [*self.wrong_sizes, *self.misplaced, *(offset for offset, _ in self.holes)]
        return tuple(offset for offset in self.offsets if offset < min(wrong, default=offset + 1))


def list_data_files(files: Files, folder: Path, file_size: int) -> FolderListing:
    """Inspects a folder by names and sizes. Reads only a last file that is too short. Raises BadStore for bad names."""
    names = files.names(folder)
    for name in names:
        if not _NAME.fullmatch(name) or files.is_folder(folder / name):
            raise BadStore(
                "a foreign file or folder lies among the data files; move it elsewhere",
                path=folder / name,
                expected="files with names of 20 digits",
                found=repr(name),
            )
    right: list[int] = []
    wrong: dict[int, int] = {}
    misplaced: list[int] = []
    unfinished: int | None = None
    for name in names:
        offset, size = int(name), files.size(folder / name)
        if size != file_size:
            if name == names[-1] and size < file_size and files.is_zero(folder / name):
                unfinished = offset
            else:
                wrong[offset] = size
        elif offset % file_size:
            misplaced.append(offset)
        else:
            right.append(offset)
    present = sorted([*right, *(offset for offset in wrong if offset % file_size == 0)])
    gaps = ((before + file_size, (after - before) // file_size - 1) for before, after in pairwise(present))
    holes = tuple((offset, count) for offset, count in gaps if count)
    return FolderListing(tuple(right), wrong, tuple(misplaced), unfinished, holes)


# -- missing files -------------------------------------------------------------------------------------------------


class ZeroMap(FileMap):
    """A read-only map of zeros without a file. It takes no memory."""

    def __init__(self, path: Path, size: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        super().__init__(path, mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ), -1)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        return iter(())


def missing_file(path: Path, offset: int, size: int) -> MappedFile:
    """Returns a file of zeros that stands for a file missing on disk."""
    return MappedFile(ZeroMap(path, size), offset, wrote=size)


def is_missing_file(file: MappedFile) -> bool:
    return isinstance(file.map, ZeroMap)


def create_missing_file(files: Files, file: MappedFile) -> None:
    """Creates a missing file on disk as a sparse file of zeros. Does nothing if read-only. Raises StoreFailed."""
    if files.read_only:
        return
    files.create_sparse(file.path, file.size)
    file.exchange_map(files.open_map(file.path)).close()

"""What lies in a folder of data files, by names and sizes alone: nothing is opened but an unfinished last file.

The folder of the log and that of each queue hold files of one size, named by the offset of their first byte in 20
digits, one after the other. Whoever loads them decides what to make of what does not fit.


Zeros in place of a log file that was lost.

A log is found by position: every file from its first to its last must be there. Where one is missing in between, a file
of zeros that takes no room on disk stands in for it, and its whole range counts as damage, until a repair covers it.


An endless byte sequence kept in files of one size, each named by the offset of its first byte.

The commit log is one such sequence, every consume queue is another. The list of files is replaced, never changed in
place, so readers walk it without a lock. One thread appends, and another may delete from the front meanwhile; a lock
keeps the two from losing each other's change of the list. Truncating is left to whoever is alone.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.store.io import FileMap, Files
from penstock.store.mapped_file import MappedFile

_NAME = re.compile(r"[0-9]{20}")
_CHUNK = 1 << 22


class FolderShape(msgspec.Struct, frozen=True):
    """The files of one folder, by their offsets, and what is wrong with them."""

    offsets: tuple[int, ...]
    """Those of the right size, and with a name that is a multiple of it."""
    wrong_sizes: dict[int, int]
    """Those of another size, with that size."""
    misplaced: tuple[int, ...]
    """Those whose name is no multiple of the file size."""
    unfinished: int | None
    """The last one, if it is empty, or shorter than it should be and all zero: a crash can leave one."""
    holes: tuple[tuple[int, int], ...]
    """(offset, how many) of files that are missing between others."""

    @property
    def sound_start(self) -> tuple[int, ...]:
        """The offsets of the files before the first thing that is wrong."""
        wrong = [*self.wrong_sizes, *self.misplaced, *(offset for offset, _ in self.holes)]
        return tuple(offset for offset in self.offsets if offset < min(wrong, default=offset + 1))


def look_at(files: Files, folder: Path, file_size: int) -> FolderShape:
    """Raises BadStore if something lies there that is no data file."""
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
            if name == names[-1] and size < file_size and _is_zero(files, folder / name, size):
                unfinished = offset
            else:
                wrong[offset] = size
        elif offset % file_size:
            misplaced.append(offset)
        else:
            right.append(offset)
    found = sorted([*right, *(offset for offset in wrong if offset % file_size == 0)])
    gaps = ((before + file_size, (after - before) // file_size - 1) for before, after in pairwise(found))
    holes = tuple((offset, count) for offset, count in gaps if count)
    return FolderShape(tuple(right), wrong, tuple(misplaced), unfinished, holes)


def _is_zero(files: Files, path: Path, size: int) -> bool:
    if not size:
        return True
    with contextlib.closing(files.open_map(path)) as data:
        return not any(data.view[at : at + _CHUNK].tobytes().strip(b"\0") for at in range(0, size, _CHUNK))


MAX_IN_A_ROW = 8
"""If more files than this are missing one after the other, somebody should look before anything is made."""


class ZeroMap(FileMap):
    """Zeros that are not on disk (yet), and take no memory."""

    def __init__(self, path: Path, size: int) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        super().__init__(path, mmap.mmap(-1, size, flags=private, prot=mmap.PROT_READ), -1)

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        pass

    def written_ranges(self, start: int) -> Iterator[tuple[int, int]]:
        return iter(())


def stand_in(path: Path, offset: int, size: int) -> MappedFile:
    """What a file reads like that is not there."""
    return MappedFile(ZeroMap(path, size), offset, wrote=size)


def is_stand_in(file: MappedFile) -> bool:
    return isinstance(file.map, ZeroMap)


def put_on_disk(files: Files, file: MappedFile) -> None:
    """Makes the file of zeros. A view, which makes none, goes on with what it has. Raises StoreFailed."""
    if files.read_only:
        return
    files.create_sparse(file.path, file.size)
    before, file.map = file.map, files.open_map(file.path)
    before.close()


Allocate = Callable[[Path, int], MappedFile]


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
        """Held while the list is replaced by a longer one, or by one without its first file."""
        self.flushed_where = 0
        self.committed_where = 0
        self._buffered = False
        """Whether a file was made that holds bytes back until they are committed."""
        self.store_timestamp = 0
        """Store time of the newest record known to be on disk."""

    # -- loading ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Maps what is there, each file taken as full until recovery says otherwise.

        A file of the wrong size or a foreign name is an error that names it: guessing here loses data. Only an
        unfinished last file, empty or too short and all zero, is completed, because a crash can leave one.
        """
        shape = self.look()
        self.map_files(shape.offsets)
        self.remove_unfinished(shape)

    def look(self, *, may_lack: int = 0) -> FolderShape:
        """What is there, without touching it. At most `may_lack` files in a row may be missing between others.

        Raises BadStore for anything else that is not as it must be.
        """
        shape = look_at(self._io, self.folder, self.file_size)
        for offset, size in shape.wrong_sizes.items():
            raise BadStore(
                "the file has another size than the settings say; set the size that all files have, restore the file "
                "from a copy, or run `penstock store repair`",
                path=self.folder / file_name(offset),
                expected=f"{self.file_size} bytes",
                found=f"{size} bytes",
            )
        for offset in shape.misplaced:
            raise BadStore(
                "the file's name is not a multiple of the file size; set the size that the files have",
                path=self.folder / file_name(offset),
                expected=f"a multiple of {self.file_size}",
                found=offset,
            )
        for offset, count in shape.holes:
            if count > may_lack:
                missing = "a file is" if count == 1 else f"{count} files are"
                raise BadStore(
                    f"{missing} missing before this one; restore them from a copy, or move the older files elsewhere "
                    "to serve what follows",
                    path=self.folder / file_name(offset + count * self.file_size),
                    expected=file_name(offset),
                    found=file_name(offset + count * self.file_size),
                )
        return shape

    def map_files(self, offsets: Sequence[int]) -> None:
        """Maps the files with these offsets; zeros stand in for those that are missing in between."""
        loaded: list[MappedFile] = []
        try:
            for offset in range(offsets[0], offsets[-1] + 1, self.file_size) if offsets else ():
                path = self.folder / file_name(offset)
                if offset in offsets:
                    loaded.append(MappedFile(self._io.open_map(path), offset, wrote=self.file_size))
                else:
                    loaded.append(stand_in(path, offset, self.file_size))
        except BaseException:
            for file in loaded:
                file.shut_down()
            raise
        self.files = tuple(loaded)

    def remove_unfinished(self, shape: FolderShape) -> None:
        """Removes a last file whose making a crash cut short; it holds nothing."""
        if shape.unfinished is not None:
            self._io.unlink(self.folder / file_name(shape.unfinished))

    # -- finding ---------------------------------------------------------------------------------------------

    @property
    def first(self) -> MappedFile | None:
        return self.files[0] if self.files else None

    @property
    def last(self) -> MappedFile | None:
        return self.files[-1] if self.files else None

    @property
    def min_offset(self) -> int:
        """Where the first file that is not being deleted begins, -1 if there is none."""
        for file in self.files:
            if file.available:
                return file.from_offset
        return -1

    @property
    def max_offset(self) -> int:
        """How far readers may look, 0 if there is nothing."""
        files = self.files
        if self._buffered and (uncommitted := self.find(self.committed_where)) is not None:
            return uncommitted.end_offset
        if not files:
            return 0
        last = files[-1]
        return last.from_offset + last.readable

    @property
    def wrote_offset(self) -> int:
        files = self.files
        return files[-1].from_offset + files[-1].wrote if files else 0

    def find(self, offset: int) -> MappedFile | None:
        """The file that really covers `offset`, else None."""
        files = self.files
        if not files:
            return None
        index = (offset - files[0].from_offset) // self.file_size
        return files[index] if 0 <= index < len(files) else None

    def read(self, offset: int, size: int) -> bytes | None:
        file = self.find(offset)
        return None if file is None else file.read(offset - file.from_offset, size)

    # -- growing ---------------------------------------------------------------------------------------------

    def writable(self, start: int, allocate: Allocate | None = None) -> MappedFile:
        """The file to append to, made if there is none or the last is full. Raises StoreFailed."""
        last = self.last
        if last is not None and not last.full:
            return last
        offset = start - start % self.file_size if last is None else last.from_offset + self.file_size
        path = self.folder / file_name(offset)
        made = allocate(path, offset) if allocate else MappedFile(self._create(path), offset)
        made.created_first = last is None
        self._buffered = self._buffered or made.buffer is not None
        with self._gate:
            self.files = (*self.files, made)
        return made

    def _create(self, path: Path) -> FileMap:
        return self._io.create_map(path, self.file_size)

    # -- flushing --------------------------------------------------------------------------------------------

    def flush(self, least_pages: int = 0) -> bool:
        """Syncs the file that holds the flushed position; True if that moved. Raises OSError."""
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
        """As `flush`, one file after the other, until nothing moves."""
        while self.flush(least_pages):
            pass

    def commit(self, least_pages: int = 0) -> bool:
        """Moves buffered bytes into the file that holds the committed position; True if that moved."""
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
        """Takes all at and behind `offset` out of sight, and changes no byte.

        Returns the files that are out of sight as a whole, the last one first: whoever calls sees to them.
        """
        kept: list[MappedFile] = []
        gone: list[MappedFile] = []
        for file in self.files:
            if file.from_offset >= offset and (kept or file.from_offset > offset):
                gone.insert(0, file)
                continue
            kept.append(file)
            file.wrote = file.committed = file.flushed = min(max(offset - file.from_offset, 0), file.size)
        self.files = tuple(kept)
        self.flushed_where = self.committed_where = offset
        return gone

    def truncate(self, offset: int, *, zero: bool = True) -> int:
        """Cuts everything at and behind `offset`: later files go; returns how many non-zero bytes were cut.

        What is cut inside a file is zeroed, so that it cannot come back; `zero=False` is for ends that a clean
        close wrote. The last file goes first, so that a crash leaves no hole.
        """
        count = 0
        for file in self.cut(offset):
            count += file.size
            self._remove(file)
        for file in self.files if zero else ():
            count += file.zero(file.wrote)
        return count

    def drop_first(self, *, forced: bool = False) -> bool:
        """Deletes the first file unless somebody reads it; True if it is gone, by its name on disk too.

        From the first try on nobody new gets it. `forced` deletes it although it is read: whoever reads it may go on,
        and its blocks are free when they let go. The removal is synced before this returns, so a power cut can bring
        back the last file that was deleted, never one in front of a hole. Raises OSError, and can be called again.
        """
        file = self.files[0]
        if not file.shut_down() and not forced:
            return False
        self._io.unlink(file.path)
        with self._gate:
            self.files = self.files[1:]
        self._io.sync_folder(self.folder)
        return True

    def _remove(self, file: MappedFile) -> None:
        file.shut_down()
        self._io.unlink(file.path)

    def close(self) -> None:
        for file in self.files:
            file.shut_down()
        self.files = ()

    def destroy(self) -> None:
        """Removes all files and the folder; whoever reads one may go on. A power cut may bring any of them back.

        Raises OSError.
        """
        for file in self.files:
            self._remove(file)
        self.files = ()
        self._io.remove_folder(self.folder)

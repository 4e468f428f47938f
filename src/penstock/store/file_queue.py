"""An endless byte sequence kept in files of one size, each named by the offset of its first byte.

The commit log is one such sequence, every consume queue is another. The list of files is replaced, never changed in
place, so readers walk it without a lock; appending, truncating and deleting are left to one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.files import FileMap, Files
from penstock.store.mapped_file import MappedFile

_NAME = re.compile(r"[0-9]{20}")

Allocate = Callable[[Path, int], MappedFile]


def file_name(offset: int) -> str:
    return f"{offset:020d}"


class FileQueue:
    """The files of one folder, in order of their offsets."""

    def __init__(self, files: Files, folder: Path, file_size: int) -> None:
        self._io = files
        self.folder = folder
        self.file_size = file_size
        self.files: tuple[MappedFile, ...] = ()
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
        names = self._io.names(self.folder)
        for name in names:
            if not _NAME.fullmatch(name) or self._io.is_folder(self.folder / name):
                raise BadStore(
                    "a foreign file or folder lies among the data files; move it elsewhere",
                    path=self.folder / name,
                    expected="files with names of 20 digits",
                    found=repr(name),
                )
        loaded: list[MappedFile] = []
        try:
            for name in names:
                path = self.folder / name
                size = self._io.size(path)
                last = name == names[-1]
                if size != self.file_size and last and size < self.file_size and self._all_zero(path, size):
                    self._io.unlink(path)
                    continue
                self._check_shape(path, int(name), size, loaded[-1] if loaded else None)
                loaded.append(MappedFile(self._io.open_map(path), int(name), wrote=self.file_size))
        except BaseException:
            for file in loaded:
                file.shut_down()
            raise
        self.files = tuple(loaded)

    def _all_zero(self, path: Path, size: int) -> bool:
        return not any(self._io.read_bytes(path)) if size else True

    def _check_shape(self, path: Path, offset: int, size: int, before: MappedFile | None) -> None:
        if size != self.file_size:
            raise BadStore(
                "the file has another size than the settings say; set the size that all files have, "
                "or restore the file from a copy",
                path=path,
                expected=f"{self.file_size} bytes",
                found=f"{size} bytes",
            )
        if offset % self.file_size:
            raise BadStore(
                "the file's name is not a multiple of the file size; set the size that the files have",
                path=path,
                expected=f"a multiple of {self.file_size}",
                found=offset,
            )
        if before is not None and offset != before.from_offset + self.file_size:
            raise BadStore(
                "a file is missing before this one; restore it from a copy",
                path=path,
                expected=file_name(before.from_offset + self.file_size),
                found=path.name,
            )

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

    def flush_all(self) -> None:
        while self.flush(0):
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

    def truncate(self, offset: int, *, zero: bool = True) -> int:
        """Cuts everything at and behind `offset`: later files go; returns how many non-zero bytes were cut.

        What is cut inside a file is zeroed, so that it cannot come back; `zero=False` is for ends that a clean
        close wrote.
        """
        cut = 0
        kept: list[MappedFile] = []
        for file in self.files:
            if file.from_offset >= offset and (kept or file.from_offset > offset):
                cut += file.size
                self._remove(file)
                continue
            kept.append(file)
            position = min(max(offset - file.from_offset, 0), file.size)
            cut += file.zero(position) if zero else 0
            file.wrote = file.committed = file.flushed = position
        self.files = tuple(kept)
        self.flushed_where = self.committed_where = offset
        return cut

    def drop_first(self) -> bool:
        """Deletes the first file unless somebody reads it; True if it is gone."""
        file = self.files[0]
        if not file.shut_down():
            return False
        self._io.unlink(file.path)
        self.files = self.files[1:]
        return True

    def _remove(self, file: MappedFile) -> None:
        file.shut_down()
        self._io.unlink(file.path)

    def close(self) -> None:
        for file in self.files:
            file.shut_down()
        self.files = ()

    def destroy(self) -> None:
        """Removes all files and the folder."""
        for file in self.files:
            self._remove(file)
        self.files = ()
        self._io.remove_folder(self.folder)

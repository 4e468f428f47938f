"""What lies in a folder of data files, by names and sizes alone: nothing is opened but an unfinished last file.

The folder of the log and that of each queue hold files of one size, named by the offset of their first byte in 20
digits, one after the other. Whoever loads them decides what to make of what does not fit.
"""

from __future__ import annotations

import contextlib
import re
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.errors import BadStore
from penstock.store.files import Files

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

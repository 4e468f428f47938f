"""Log files of the right shape: one after the other, each of the full size.

A file that is too short is replaced by a longer copy of itself: what is missing reads as zeros, and the walk judges
them. Of one that is too long the rest is kept aside. A file that is missing between two others is made, all zero. Each
step leaves, after a crash, the file as it was or as it should be.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from penstock.errors import BadStore
from penstock.store.damage import MISSING, DamagedRange
from penstock.store.file_queue import file_name
from penstock.store.files import Files
from penstock.store.folder_shape import FolderShape, look_at
from penstock.store.layout import Layout
from penstock.store.quarantine import Quarantine
from penstock.store.repair.report import Change, within


class Shapes:
    """The files of one store's log, as they were when this was made. Raises BadStore if nothing can be done."""

    def __init__(self, files: Files, layout: Layout, file_size: int, quarantine: Quarantine) -> None:
        self._io = files
        self._root = layout.root
        self._folder = layout.commit_log
        self._file_size = file_size
        self._quarantine = quarantine
        inside = layout.commit_log.is_relative_to(layout.root)
        self._spare = layout.staging if inside else layout.commit_log.with_name(f"{layout.commit_log.name}.mending")
        """A folder on the same disk, where a copy is made before it takes the place of the file."""
        self._shape = look_at(files, layout.commit_log, file_size)
        self._refuse(self._shape)

    @property
    def are_right(self) -> bool:
        return not self._shape.wrong_sizes and not self._shape.holes

    @property
    def missing(self) -> list[DamagedRange]:
        """The ranges of the log that there is no file for, or not enough of one."""
        cut = [(offset, size) for offset, size in self._shape.wrong_sizes.items() if size < self._file_size]
        return [
            *(DamagedRange(offset, count * self._file_size, MISSING) for offset, count in self._shape.holes),
            *(DamagedRange(offset + size, self._file_size - size, MISSING) for offset, size in cut),
        ]

    def mend(self) -> list[Change]:
        """Raises StoreFailed; what is done then stays done."""
        changes = [self._mend_size(offset, size) for offset, size in self._shape.wrong_sizes.items()]
        for hole, count in self._shape.holes:
            for offset in range(hole, hole + count * self._file_size, self._file_size):
                path = self._folder / file_name(offset)
                self._io.create_sparse(path, self._file_size)
                changes.append(Change(within(self._root, path), "was missing, and made"))
        self._io.remove_folder(self._spare)
        return changes

    def _refuse(self, shape: FolderShape) -> None:
        for offset in (*shape.misplaced, *(each for each in shape.wrong_sizes if each % self._file_size)):
            raise BadStore(
                "the file's name is not a multiple of the file size; move it elsewhere, or say the size that the files "
                "have with --set mappedFileSizeCommitLog=...",
                path=self._folder / file_name(offset),
                expected=f"a multiple of {self._file_size}",
                found=offset,
            )
        for offset, count in shape.holes:
            if count > max(len(shape.offsets), 8):  # more than there are: it is likelier that a name is wrong
                raise BadStore(
                    f"{count} files are missing before this one; if its name is wrong, move it elsewhere, and if they "
                    "were there, restore them from a copy",
                    path=self._folder / file_name(offset + count * self._file_size),
                )

    def _mend_size(self, offset: int, size: int) -> Change:
        path, saved = self._folder / file_name(offset), ""
        modified = self._io.modified_ms(path)
        if size > self._file_size:
            with contextlib.closing(self._io.open_map(path)) as whole, whole.view[self._file_size :] as rest:
                saved = within(self._root, self._quarantine.keep(f"commitlog-{path.name}-rest", rest))
        self._replace(path, size)
        self._io.set_modified_ms(path, modified)
        now = "lengthened with zeros" if size < self._file_size else "cut"
        return Change(within(self._root, path), f"had {size} bytes, and was {now} to {self._file_size}", saved)

    def _replace(self, path: Path, size: int) -> None:
        copy = self._spare / path.name
        self._io.unlink(copy)
        with contextlib.closing(self._io.create_map(copy, self._file_size)) as target:
            if size:
                length = min(size, self._file_size)
                with contextlib.closing(self._io.open_map(path)) as source:
                    target.view[:length] = source.view[:length]
            target.sync()
        self._io.rename(copy, path)
        self._io.sync_folder(path.parent)

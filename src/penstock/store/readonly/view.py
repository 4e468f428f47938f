"""Light read-only views of a store's files, without ownership or recovery: for workers that read given ranges.

The caller must take the ends of log and queues from an opened store; a view never reads past them. A view maps files on
demand, as private maps that cannot change the disk. It unmaps the least recently used files. A view does not check
records; the readers that use it do.

Not thread-safe. A mapped file stays readable after the store's owner deletes it. A file deleted before it was mapped
counts as missing.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path

import numpy as np

from penstock.errors import BadStore
from penstock.format.queue_unit import UNIT, UNIT_SIZE, Units, copy_units
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import file_name

_MAX_MAPPED = 8
_NAME = re.compile(r"\d{20}")


class FilesView:
    """The data files of one folder, each named by the offset of its first byte."""

    def __init__(self, folder: Path, file_size: int) -> None:
        self._io = OverlayFiles()
        self._folder = folder
        self.file_size = file_size
        self._mapped: OrderedDict[int, MappedFile] = OrderedDict()
        self._identities: dict[int, tuple[int, int] | None] = {}

    def offsets(self) -> list[int]:
        """Returns the offsets of the existing files, in order."""
        return [int(name) for name in self._io.names(self._folder) if _NAME.fullmatch(name)]

    def find(self, offset: int) -> MappedFile | None:
        """Returns the file that contains `offset`; None if it does not exist. Raises BadStore if its size is wrong."""
        first = offset - offset % self.file_size
        file = self._mapped.get(first)
        if file is not None:
            self._mapped.move_to_end(first)
            return file
        path = self._folder / file_name(first)
        identity = self._io.identity(path)  # read before mapping, so that a replacement is detected
        try:
            mapped = self._io.open_map(path)
        except FileNotFoundError:
            return None
        if len(mapped) != self.file_size:
            size = len(mapped)
            mapped.close()
            raise BadStore(
                "the file has another size than the others; restore it from a copy, or run `penstock store repair`",
                path=path,
                expected=self.file_size,
                found=f"{size} bytes",
            )
        self._identities[first] = identity
        file = self._mapped[first] = MappedFile(mapped, first, wrote=self.file_size)
        if len(self._mapped) > _MAX_MAPPED:
            self._mapped.popitem(last=False)[1].shut_down()
        return file

    def unmap_changed(self) -> None:
        """Unmaps files that were deleted, replaced, or changed in size since they were mapped."""
        for first in list(self._mapped):
            if not self._is_as_mapped(first):
                self._mapped.pop(first).shut_down()

    def _is_as_mapped(self, first: int) -> bool:
        path = self._folder / file_name(first)
        try:
            return self._io.identity(path) == self._identities[first] and self._io.size(path) == self.file_size
        except FileNotFoundError:
            return False

    def close(self) -> None:
        while self._mapped:
            self._mapped.popitem()[1].shut_down()


class LogView:
    """The commit log from the physical offset `min_offset` up to `confirmed_offset`."""

    def __init__(
        self, folder: Path, file_size: int, min_offset: int, confirmed_offset: int, files: FilesView | None = None
    ) -> None:
        """`files` is an existing view of `folder`, which this view then closes; default: a new one."""
        self.queue = FilesView(folder, file_size) if files is None else files
        self.min_offset = min_offset
        self.confirmed_offset = confirmed_offset

    def roll_next(self, offset: int) -> int:
        """Returns the physical offset at which the file after that of `offset` begins."""
        return offset + self.queue.file_size - offset % self.queue.file_size

    def close(self) -> None:
        self.queue.close()


class QueueView:
    """The units of a consume queue, read from its files, from queue offset `min_offset` up to `max_offset`."""

    def __init__(
        self, folder: Path, topic: str, queue_id: int, file_size: int, min_offset: int, max_offset: int
    ) -> None:
        self._files = FilesView(folder, file_size)
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.units_in_file = file_size // UNIT_SIZE

    def page(self, queue_offset: int, most: int) -> Units | None:
        """Returns a copy of at most `most` units of one file, from `queue_offset` on; None if there are none."""
        at = queue_offset * UNIT_SIZE
        file = self._files.find(at)
        if file is None:
            return None
        position = at - file.from_offset
        size = min(most, self.max_offset - queue_offset) * UNIT_SIZE
        size = min(size, file.size - position)
        return copy_units(file.map.view, position, size) if size > 0 else None

    def close(self) -> None:
        self._files.close()


class ShippedUnits:
    """Units from queue offset `start` on, sent by the process that opened the store, because the files lack them."""

    def __init__(self, topic: str, queue_id: int, start: int, units: bytes) -> None:
        self._units = np.frombuffer(units, UNIT)
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = start
        self.max_offset = start + len(self._units)
        self.units_in_file = 1

    def page(self, queue_offset: int, most: int) -> Units | None:
        first = queue_offset - self.min_offset
        return self._units[first : first + most]

    def close(self) -> None:
        pass

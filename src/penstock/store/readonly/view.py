"""Light read-only views of a store's files, without ownership or recovery: for workers that read ranges, and audits.

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
from types import TracebackType
from typing import Self

import numpy as np

from penstock.errors import BadStore
from penstock.format.queue_unit import UNIT, UNIT_SIZE, Units, copy_units
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.mapped_file import MappedFile
from penstock.store.files.mapped_file_queue import file_name

_MAX_MAPPED = 8
_NAME = re.compile(r"\d{20}")


class MapCache:
    """Maps each file once, and keeps the `max_open` most recently used files open. Several views may share it."""

    def __init__(self, files: Files, max_open: int = 2**31) -> None:
        self.io = files
        self._max_open = max_open
        self._open: OrderedDict[Path, tuple[MappedFile, tuple[int, int] | None]] = OrderedDict()
        """The open files, each with the identity that it had on disk before it was mapped."""

    def get(self, path: Path) -> MappedFile | None:
        """Returns a file whose name is its offset; None if it does not exist or is empty."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found[0]
        identity = self.io.identity(path)
        try:
            mapped = self.io.open_map(path)
        except (FileNotFoundError, BadStore, ValueError):  # ValueError: an empty file cannot be mapped
            return None
        file = MappedFile(mapped, int(path.name), wrote=len(mapped))
        self._open[path] = file, identity
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)[1][0].shut_down()
        return file

    def unmap_changed(self) -> None:
        """Unmaps files that were deleted, replaced, or changed in size since they were mapped."""
        for path, (file, identity) in list(self._open.items()):
            if self.io.identity(path) != identity or self.io.size(path) != file.size:
                self._open.pop(path)[0].shut_down()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][0].shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class FilesView:
    """The data files of one folder, each named by the offset of its first byte."""

    def __init__(self, folder: Path, file_size: int, maps: MapCache | None = None) -> None:
        """`maps`: a cache, which other views may share; default: a new one. `close` closes it."""
        self._maps = MapCache(OverlayFiles(), _MAX_MAPPED) if maps is None else maps
        self._folder = folder
        self._paths: dict[int, Path] = {}
        self.file_size = file_size

    def offsets(self) -> list[int]:
        """Returns the offsets of the existing files, in order."""
        return [int(name) for name in self._maps.io.names(self._folder) if _NAME.fullmatch(name)]

    def find(self, offset: int) -> MappedFile | None:
        """Returns the file that contains `offset`; None if it does not exist. Raises BadStore if its size is wrong."""
        path = self._path(offset)
        file = self._maps.get(path)
        if file is None and not self._maps.io.exists(path):
            return None
        if file is None or file.size != self.file_size:
            raise BadStore(
                "the file has another size than the others; restore it from a copy, or run `penstock store repair`",
                path=path,
                expected=self.file_size,
                found=f"{0 if file is None else file.size} bytes",
            )
        return file

    def find_any_size(self, offset: int) -> MappedFile | None:
        """Returns the file for `offset`, whatever size it has; None if it does not exist or is empty."""
        return self._maps.get(self._path(offset))

    def _path(self, offset: int) -> Path:
        first = offset - offset % self.file_size
        path = self._paths.get(first)
        if path is None:
            path = self._paths[first] = self._folder / file_name(first)
        return path

    def unmap_changed(self) -> None:
        """Unmaps files that were deleted, replaced, or changed in size since they were mapped."""
        self._maps.unmap_changed()

    def close(self) -> None:
        self._maps.close()


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

    def __init__(self, files: FilesView, topic: str, queue_id: int, min_offset: int, max_offset: int) -> None:
        """The view closes `files`."""
        self._files = files
        self.topic = topic
        self.queue_id = queue_id
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.units_in_file = files.file_size // UNIT_SIZE

    def page(self, queue_offset: int, most: int) -> Units | None:
        """Returns a copy of at most `most` units of one file, from `queue_offset` on; None if there are none.

        Raises BadStore if the file has a wrong size.
        """
        file = self._files.find(queue_offset * UNIT_SIZE)
        if file is None:
            return None
        position = queue_offset * UNIT_SIZE - file.from_offset
        size = min(min(most, self.max_offset - queue_offset) * UNIT_SIZE, file.size - position)
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

"""Files opened for looking, each once, and what of them was written.

A `Maps` belongs to one thread. It never changes a byte if its `Files` are an `OverlayFiles`, which maps privately.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.errors import BadStore
from penstock.store.file_map import FileMap
from penstock.store.files import Files

_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


class Maps:
    """Maps by path; of more than `most`, those that were asked for longest ago are closed."""

    def __init__(self, files: Files, most: int = 2**31) -> None:
        self._io = files
        self._most = most
        self._open: OrderedDict[Path, FileMap] = OrderedDict()

    def get(self, path: Path) -> FileMap | None:
        """The map of a file; None if the file is gone or empty."""
        found = self._open.get(path)
        if found is not None:
            self._open.move_to_end(path)
            return found
        try:
            found = self._io.open_map(path)
        except (FileNotFoundError, BadStore, ValueError):  # ValueError: an empty file cannot be mapped
            return None
        self._open[path] = found
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()
        return found

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def last_written(file: FileMap, start: int, stop: int | None = None) -> int:
    """The position behind the last byte from `start` on, and before `stop`, that is not zero; `start` if all are."""
    stop = len(file) if stop is None else min(stop, len(file))
    ranges = [(begin, min(end, stop)) for begin, end in file.written_ranges(start) if begin < stop]
    for begin, end in reversed(ranges):
        while end > begin:
            chunk = max(begin, end - _CHUNK)
            piece = bytes(file.view[chunk:end])
            if piece != _ZEROS[: len(piece)]:
                return chunk + len(piece.rstrip(b"\0"))
            end = chunk
    return start


def is_zero(file: FileMap, start: int, stop: int) -> bool:
    """Whether nothing was written between two positions."""
    return last_written(file, start, stop) == start

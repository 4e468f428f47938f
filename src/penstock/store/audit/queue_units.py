"""The units of one queue by their number, as they lie in its files, whatever those look like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.format.queue_unit import UNIT, UNIT_SIZE, Units
from penstock.store.audit.listing import DataFile, Shape
from penstock.store.audit.maps import Maps, last_written


class QueueUnits:
    """Looks units up. Files that are missing or too short have no units; what a file has too much is left alone."""

    def __init__(self, maps: Maps, shape: Shape, file_size: int) -> None:
        self._maps = maps
        self._per_file = file_size // UNIT_SIZE
        self._files = {file.base // UNIT_SIZE: file for file in shape.files}

    @property
    def first(self) -> int:
        """The number of the first unit that there is a file for, 0 if there are no files."""
        return min(self._files, default=0)

    def data_at(self, number: int) -> tuple[memoryview, int] | None:
        """The bytes of the file that has this unit, and the number of its first; None if no file has it."""
        first = number - number % self._per_file
        file = self._files.get(first)
        if file is None or number - first >= self._count(file):
            return None
        found = self._maps.get(file.path)
        return None if found is None else (found.view[: self._per_file * UNIT_SIZE], first)

    def next_known(self, number: int) -> int | None:
        """The number of the first unit behind `number` that begins a file."""
        return min((first for first in self._files if first > number), default=None)

    def read(self, start: int, stop: int) -> Units:
        """A copy of units that lie in one file, fewer if the file has fewer."""
        found = self.data_at(start)
        if found is None:
            return np.empty(0, UNIT)
        data, first = found
        part = bytes(data[(start - first) * UNIT_SIZE : (stop - first) * UNIT_SIZE])
        return np.frombuffer(part[: len(part) - len(part) % UNIT_SIZE], UNIT)

    def spans(self) -> Iterator[tuple[int, int]]:
        """The unit numbers that there are bytes for, file by file."""
        for first in sorted(self._files):
            count = self._count(self._files[first])
            if count:
                yield first, first + count

    def end(self, known: int = 0) -> int:
        """The number behind the last unit that is not zero; all before `known` are taken for such."""
        for first in sorted(self._files, reverse=True):
            file = self._files[first]
            start = min(max(known - first, 0), self._count(file)) * UNIT_SIZE
            found = self._maps.get(file.path)
            if found is not None:
                used = last_written(found, start, self._count(file) * UNIT_SIZE)
                if used > start or first < known:
                    return max(known, first + -(-used // UNIT_SIZE))
        return known

    def _count(self, file: DataFile) -> int:
        return min(file.size // UNIT_SIZE, self._per_file)

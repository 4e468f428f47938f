"""Zeroing the rest of a file without touching what is zero already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from penstock.store.file_map import FileMap

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

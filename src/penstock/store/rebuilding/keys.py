"""The keys of a range, in log order: 20 bytes each, in a file of the staging folder.

    OFFSET  SIZE  DESCRIPTION
    0       4     hash of the key
    4       8     physical offset of its record
    12      8     store time of its record

Little-endian, and gone when the rebuild is. Not checksummed: whoever reads checks that the offsets lie in the range, in
order, which zeros that a crash left in place of bytes do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from penstock.format import kernels
from penstock.store.files import Files

KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
_AT_ONCE: Final = 1 << 15


class Keys(NamedTuple):
    """Some keys, by column."""

    hashes: kernels.Ints
    offsets: kernels.Longs
    times: kernels.Longs


def write_keys(files: Files, path: Path, table: memoryview) -> None:
    """No file is made for none. Raises StoreFailed."""
    if table:
        files.write_unsynced(path, table)


def read_keys(files: Files, path: Path, first: int, stop: int) -> Iterator[Keys]:
    """The keys with the numbers `first` to `stop`, as copies."""
    with contextlib.closing(files.open_map(path)) as file:
        for start in range(first, stop, _AT_ONCE):
            table = np.frombuffer(file.view, KEY, min(stop - start, _AT_ONCE), start * KEY.itemsize)
            hashes, offsets, times = (np.ascontiguousarray(table[name]) for name in ("hash", "offset", "time"))
            yield Keys(hashes, offsets, times)

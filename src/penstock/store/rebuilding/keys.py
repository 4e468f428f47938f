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
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.store.files import Files
from penstock.store.rebuilding.units import open_sparse

KEY: Final = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("time", "<i8")])
_AT_ONCE: Final = 1 << 16

Keys = npt.NDArray[np.void]


def keys_of(hashes: kernels.Ints, rows: kernels.Rows, numbers: kernels.Longs) -> Keys:
    """The keys of some rows; `numbers` says of which row each is."""
    made = np.empty(len(hashes), KEY)
    made["hash"] = hashes
    made["offset"] = rows["physical_offset"][numbers]
    made["time"] = rows["store_timestamp"][numbers]
    return made


def write_keys(files: Files, path: Path, keys: list[Keys]) -> int:
    """Returns how many there are; no file is made for none. Raises StoreFailed."""
    count = sum(len(each) for each in keys)
    if count:
        with contextlib.closing(open_sparse(files, path, count * KEY.itemsize)) as file:
            position = 0
            for each in keys:
                file.write(position, kernels.view_of(each))
                position += each.nbytes
    return count


def read_keys(files: Files, path: Path, first: int, stop: int) -> Iterator[Keys]:
    """The keys with the numbers `first` to `stop`, as copies."""
    with contextlib.closing(files.open_map(path)) as file:
        for start in range(first, stop, _AT_ONCE):
            count = min(stop - start, _AT_ONCE)
            yield np.frombuffer(file.view, KEY, count, start * KEY.itemsize).copy()

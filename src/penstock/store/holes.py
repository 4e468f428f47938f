"""Which parts of a file were ever written, as far as the file system can tell."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def written_ranges(descriptor: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a file between `start` and `stop` that are not holes, as the file system knows them."""
    while start < stop:
        try:
            begin = os.lseek(descriptor, start, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole follows
                yield start, stop
            return
        if begin < stop:
            yield begin, min(end, stop)
        start = end

"""So many rows in a second, and no more: what waits before the next rows are let through. Pure but for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

_PIECES_A_SECOND: Final = 10


def paced(
    batches: Iterable[pa.RecordBatch],
    rate: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """The same rows in pieces of a tenth of a second each. Time that was lost is not made up for.

    Returns only when the last piece's time is over, so that what follows need not wait.
    """
    size = max(1, rate // _PIECES_A_SECOND)
    due = clock()
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            if (wait := due - clock()) > 0:
                sleep(wait)
            piece = batch.slice(first, size)
            due = max(due, clock()) + piece.num_rows / rate
            yield piece
    if (wait := due - clock()) > 0:
        sleep(wait)

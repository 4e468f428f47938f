"""Runs the pieces of a rebuild in this process, on a thread for each core.

Kernels, writes and syncs let go of the interpreter's lock, so that two threads take little more than half the time of
one. A piece that fails ends the run when those that were begun are done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.store.rebuilding.index_build import IndexPart
from penstock.store.rebuilding.plan import Range
from penstock.store.rebuilding.queue_finish import QueueGroup
from penstock.store.repair.report import Progress, silent

_MOST_THREADS: Final = 4
_WORTH_HANDING_OUT: Final = 12_000_000
_WALK: Final = "walk the log"


class InThreads:
    """A `Run`; tells how far it is in the log."""

    def __init__(self, progress: Progress = silent) -> None:
        self._progress = progress

    def __call__(self, work: Callable[[Any], bytes], pieces: Sequence[Any]) -> list[bytes]:
        total = sum(piece.stop - piece.start for piece in pieces if isinstance(piece, Range))
        results: list[bytes] = []
        done = 0
        with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), "penstock-rebuild") as pool:
            for piece, result in zip(pieces, pool.map(work, pieces), strict=True):
                results.append(result)
                if isinstance(piece, Range):
                    done += piece.stop - piece.start
                    self._progress(_WALK, done, total)
        return results


def is_soon_done(pieces: Sequence[Any]) -> bool:
    """Whether to finish these takes less time here than to hand them to others."""
    return all(isinstance(piece, IndexPart | QueueGroup) for piece in pieces) and (
        sum(piece.items if isinstance(piece, IndexPart) else piece.units for piece in pieces) < _WORTH_HANDING_OUT
    )

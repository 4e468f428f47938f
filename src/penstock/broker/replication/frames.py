"""A part of a master's log as frames, in place: nothing is copied before it goes out.

The bytes lie in the map of a log file, which stays as long as somebody holds it. Whoever reads pages that are not in
memory any more waits for the disk: the loop only does so close to the log's end. Any thread may call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from penstock.broker.replication.wire import FRAME
from penstock.errors import PenstockError
from penstock.store.file_queue import FileQueue

AT_ONCE: Final = 1 << 20
"""So many bytes of the log are sent in one go, so that others have their turn in between."""

_MOST_FRAMES: Final = 256
"""Each is two buffers, and the system takes 1024 in one call."""

_AHEAD: Final = 8 << 20

Buffer = bytes | memoryview


class LogIsGone(PenstockError):
    """What a slave needs next was deleted."""


@contextlib.contextmanager
def frames(queue: FileQueue, start: int, end: int, batch: int) -> Iterator[tuple[list[Buffer], int]]:
    """Headers and bytes in turn, from `start` on and not beyond `end` or one file; and where they end.

    The buffers may be used inside only. No frame has more than `batch` bytes. Raises LogIsGone.
    """
    file = queue.find(start)
    if file is None or not file.hold():
        raise LogIsGone(f"the log at {start}, which it needs next, was deleted")
    parts: list[Buffer] = []
    try:
        at = start - file.from_offset
        stop = min(at + AT_ONCE, at + batch * _MOST_FRAMES, end - file.from_offset, file.readable)
        while at < stop:
            count = min(batch, stop - at)
            parts += (FRAME.pack(file.from_offset + at, count), file.map.view[at : at + count])
            at += count
        yield parts, file.from_offset + at
    finally:
        for part in parts:
            if isinstance(part, memoryview):
                part.release()
        file.release()


def read_ahead(queue: FileQueue, start: int) -> None:
    """Has the system read what is sent soon, where it is not in memory."""
    file = queue.find(start)
    if file is not None and file.hold():
        try:
            file.map.will_need(start - file.from_offset, _AHEAD)
        finally:
            file.release()

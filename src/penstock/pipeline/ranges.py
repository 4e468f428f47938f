"""What is to be read: ranges of queue offsets, or of the log's bytes; and how they are cut into tasks.

Pure: the same ranges and options always give the same tasks, because a replayed micro-batch must read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

_SMALLEST_PIECE: Final = 16 << 20
_LARGEST_PIECE: Final = 512 << 20
_PIECES_EACH: Final = 4


class Queue(NamedTuple):
    """A queue wherever it is. `broker` is the broker's name in a cluster, and a store's label among files."""

    topic: str
    broker: str
    queue_id: int


class Span(msgspec.Struct, frozen=True):
    """Queue offsets `start` to `stop` (exclusive) of one queue, or bytes of one log if `queue` has no topic."""

    queue: Queue
    start: int
    stop: int
    size: int = 0
    """About how many bytes its records take."""

    @property
    def count(self) -> int:
        return self.stop - self.start


class Limits(msgspec.Struct, frozen=True):
    """How large a task may be."""

    max_bytes: int
    max_records: int | None = None
    min_tasks: int | None = None


def size_of_pieces(log_bytes: int, workers: int) -> int:
    """Bytes of a log in one task: so many that its own cost does not show, so few that all workers have the same to do.

    A task costs about 20 ms, in which a worker reads 40 MB.
    """
    return min(max(log_bytes // (_PIECES_EACH * workers), _SMALLEST_PIECE), _LARGEST_PIECE)


def cut(spans: Iterable[Span], limits: Limits) -> list[Span]:
    """The spans in pieces no larger than the limits say, in order; nothing is left out, nothing is there twice."""
    spans = [span for span in spans if span.count > 0]
    pieces = [_pieces(span, limits) for span in spans]
    total = sum(span.size for span in spans) or 1
    while limits.min_tasks is not None and sum(pieces) < limits.min_tasks:
        # The span whose pieces are largest is cut once more, until there are enough or nothing can be cut.
        open_ = [number for number, span in enumerate(spans) if pieces[number] < span.count]
        if not open_:
            break
        largest = max(open_, key=lambda number: ((spans[number].size or total) / pieces[number], -number))
        pieces[largest] += 1
    return [piece for span, count in zip(spans, pieces, strict=True) for piece in _evenly(span, count)]


def _pieces(span: Span, limits: Limits) -> int:
    wanted = -(-span.size // limits.max_bytes)
    if limits.max_records is not None:
        wanted = max(wanted, -(-span.count // limits.max_records))
    return min(max(wanted, 1), span.count)


def _evenly(span: Span, pieces: int) -> list[Span]:
    borders = [span.start + span.count * number // pieces for number in range(pieces + 1)]
    return [
        Span(span.queue, start, stop, span.size * (stop - start) // span.count) for start, stop in pairwise(borders)
    ]


def packed(spans: Sequence[Span], max_bytes: int, max_tasks: int) -> list[list[Span]]:
    """Small spans together in one task, so that a thousand quiet queues do not cost a thousand tasks.

    Neighbours stay neighbours. A task takes spans until it holds `max_bytes` or its share of them all.
    """
    total = sum(span.size for span in spans)
    share = min(max_bytes, max(total // max(max_tasks, 1), 1))
    tasks: list[list[Span]] = []
    held = 0
    for span in spans:
        if not tasks or held + span.size > share:
            tasks.append([])
            held = 0
        tasks[-1].append(span)
        held += span.size
    return tasks

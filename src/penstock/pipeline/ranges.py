"""What is to be read: ranges of queue offsets, or of the log's bytes; and how they are cut into tasks.

Pure: the same ranges and options always give the same tasks, because a replayed micro-batch must read the same rows.


What the driver asks of wherever messages are, and what a worker is given to read them.

Two kinds of place: the files of stores (`store_place`), and a cluster (`cluster_place`). A place lives on the driver;
the tasks that it makes are pickled and read on workers, which know nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_SMALLEST_PIECE: Final = 16 << 20
_LARGEST_PIECE: Final = 512 << 20
_PIECES_EACH: Final = 4


class Queue(NamedTuple):
    """A queue wherever it is. `broker` is the broker's name in a cluster, and a store's label among files."""

    topic: str
    broker: str
    queue_id: int


class OffsetRange(msgspec.Struct, frozen=True):
    """Queue offsets `start` to `stop` (exclusive) of one queue, or bytes of one log if `queue` has no topic."""

    queue: Queue
    start: int
    stop: int
    size: int = 0
    """About how many bytes its records take."""

    @property
    def count(self) -> int:
        return self.stop - self.start


class TaskLimits(msgspec.Struct, frozen=True):
    """How large a task may be."""

    max_bytes: int
    max_records: int | None = None
    min_tasks: int | None = None


def piece_size_for(log_bytes: int, workers: int) -> int:
    """Bytes of a log in one task: so many that its own cost does not show, so few that all workers have the same to do.

    A task costs about 20 ms, in which a worker reads 40 MB.
    """
    return min(max(log_bytes // (_PIECES_EACH * workers), _SMALLEST_PIECE), _LARGEST_PIECE)


def split_ranges(spans: Iterable[OffsetRange], limits: TaskLimits) -> list[OffsetRange]:
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


def _pieces(span: OffsetRange, limits: TaskLimits) -> int:
    wanted = -(-span.size // limits.max_bytes)
    if limits.max_records is not None:
        wanted = max(wanted, -(-span.count // limits.max_records))
    return min(max(wanted, 1), span.count)


def _evenly(span: OffsetRange, pieces: int) -> list[OffsetRange]:
    borders = [span.start + span.count * number // pieces for number in range(pieces + 1)]
    return [
        OffsetRange(span.queue, start, stop, span.size * (stop - start) // span.count)
        for start, stop in pairwise(borders)
    ]


def pack_ranges(spans: Sequence[OffsetRange], max_bytes: int, max_tasks: int) -> list[list[OffsetRange]]:
    """Small spans together in one task, so that a thousand quiet queues do not cost a thousand tasks.

    Neighbours stay neighbours. A task takes spans until it holds `max_bytes` or its share of them all.
    """
    total = sum(span.size for span in spans)
    share = min(max_bytes, max(total // max(max_tasks, 1), 1))
    tasks: list[list[OffsetRange]] = []
    held = 0
    for span in spans:
        if not tasks or held + span.size > share:
            tasks.append([])
            held = 0
        tasks[-1].append(span)
        held += span.size
    return tasks


class Flaw(NamedTuple):
    """A message, or some bytes of a log, that cannot be read."""

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int | None
    what: str
    """One clause for people: what is wrong, and where."""


class RowPage(NamedTuple):
    """Some messages as a task reads them."""

    broker: str
    batch: pa.RecordBatch
    """The columns of `penstock.format.arrow_schema.MESSAGE_SCHEMA` that were asked for, in that order."""
    flaws: tuple[Flaw, ...] = ()


class ReadTask(Protocol):
    """What one worker reads. Pickled on the driver."""

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        """The messages of the task's spans, span after span, in pages of about 8 MB or 20,000 rows.

        Raises DataLost where messages are gone that the spans include, unless data loss was allowed.
        """
        ...


class MessageSource(Protocol):
    """Where messages are, as the driver sees it. One thread."""

    name: str
    """For sentences: a path, or the address of a cluster."""

    def refresh(self) -> None:
        """Looks again: everything below is as of the last refresh, or of the making. Must be cheap: a stream polls."""
        ...

    def topics(self) -> list[str]:
        """All topics, sorted."""
        ...

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        """The queues of some topics, sorted. A topic without any has none."""
        ...

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """The offset of the oldest message that is still there, and the one that the next message will get."""
        ...

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        """The first message stored at or after a time in epoch milliseconds; the queue's end if there is none."""
        ...

    def group_offset(self, group: str, queue: Queue) -> int | None:
        """Where a consumer group goes on, None if it has not consumed from the queue."""
        ...

    def size(self, queue: Queue, start: int, stop: int) -> int:
        """About how many bytes the records of a range take. The same for the same range."""
        ...

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        """One task for each group of spans, which lie within the bounds."""
        ...

    def close(self) -> None: ...

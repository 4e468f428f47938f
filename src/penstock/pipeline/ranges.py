"""What a read consists of: queues, offset ranges and tasks, and the interface of a message source.

Two sources implement `MessageSource`: `store_source` over the files of stores, and `cluster_source` over brokers. A
source lives on the driver. The tasks that it creates are pickled and run on workers, which need nothing else.

Splitting is pure: the same ranges and options always give the same tasks, because a replayed micro-batch must read the
same rows.
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


# -- ranges ----------------------------------------------------------------------------------------------------------


class Queue(NamedTuple):
    """A queue of a cluster or a store. `broker` is the broker's name in a cluster, or the store's label."""

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
    """Limits on the size and number of tasks."""

    max_bytes: int
    max_records: int | None = None
    min_tasks: int | None = None


def piece_size_for(log_bytes: int, workers: int) -> int:
    """Bytes of a log per task: large enough to hide a task's overhead, small enough to balance the workers.

    A task costs about 20 ms, in which a worker reads 40 MB.
    """
    return min(max(log_bytes // (_PIECES_EACH * workers), _SMALLEST_PIECE), _LARGEST_PIECE)


def split_ranges(spans: Iterable[OffsetRange], limits: TaskLimits) -> list[OffsetRange]:
    """Splits spans into pieces within the limits, in order, without gaps or overlaps."""
    spans = [span for span in spans if span.count > 0]
    pieces = [_pieces(span, limits) for span in spans]
    total = sum(span.size for span in spans) or 1
    while limits.min_tasks is not None and sum(pieces) < limits.min_tasks:
        # Split the span with the largest pieces once more, until there are enough or no span can be split.
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
    """Groups small spans into tasks, so that a thousand quiet queues do not cost a thousand tasks.

    Keeps the order. A task takes spans until it has `max_bytes` or an equal share of all bytes.
    """
    total = sum(span.size for span in spans)
    share = min(max_bytes, max(total // max(max_tasks, 1), 1))
    tasks: list[list[OffsetRange]] = []
    size = 0
    for span in spans:
        if not tasks or size + span.size > share:
            tasks.append([])
            size = 0
        tasks[-1].append(span)
        size += span.size
    return tasks


# -- sources and tasks -----------------------------------------------------------------------------------------------


class Flaw(NamedTuple):
    """A message, or bytes of a log, that cannot be read."""

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int | None
    what: str
    """What is wrong and where, as one clause."""


class RowPage(NamedTuple):
    """A batch of messages from one broker, as a task reads them."""

    broker: str
    batch: pa.RecordBatch
    """The columns of `penstock.format.arrow_schema.MESSAGE_SCHEMA` that the caller asked for, in that order."""
    flaws: tuple[Flaw, ...] = ()


class ReadTask(Protocol):
    """What one worker reads. Pickled on the driver."""

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        """The messages of the task's spans, span by span, in pages of about 8 MB or 20,000 rows.

        Raises DataLost if messages of the spans are gone, unless data loss is allowed.
        """
        ...


class MessageSource(Protocol):
    """A set of stores or a cluster, as the driver sees it. Not thread-safe."""

    name: str
    """For error messages: a path, or a cluster's address."""

    def refresh(self) -> None:
        """Updates the state that the other methods return. Must be cheap: a stream polls."""
        ...

    def topics(self) -> list[str]:
        """All topics, sorted."""
        ...

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        """The queues of some topics, sorted; nothing for a topic without queues."""
        ...

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """The offset of the oldest message, and the offset that the next message will get."""
        ...

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        """The first message stored at or after a time in epoch milliseconds; otherwise the queue's end."""
        ...

    def group_offset(self, group: str, queue: Queue) -> int | None:
        """A consumer group's committed offset, None if it has not consumed from the queue."""
        ...

    def size(self, queue: Queue, start: int, stop: int) -> int:
        """The estimated bytes of a range's records; deterministic."""
        ...

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        """One task for each group of spans. Spans must lie within the bounds."""
        ...

    def close(self) -> None: ...

"""The parts of a read: queues, offset ranges (spans) and tasks; and the interface of a message source.

Two modules implement `MessageSource`: `store_source` reads the files of stores, `cluster_source` asks brokers. A source
lives on the driver. Spark pickles the source's tasks and runs them on workers; a task needs no other state.

A replayed micro-batch must read the same rows. Splitting is therefore pure: the same ranges and options always give the
same tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa

_SMALLEST_PIECE: Final = 16 << 20
_LARGEST_PIECE: Final = 512 << 20
_PIECES_EACH: Final = 4
DEFAULT_TASK: Final = 128 << 20
"""The most bytes that a task reads if no option says how many."""
_SMALLEST_TASK: Final = 8 << 20
_SMALLEST_TASK_WITHOUT_BODIES: Final = 256 << 20
_LARGEST_TASK_WITHOUT_BODIES: Final = 512 << 20
_MANY_TASKS: Final = 16


# -- ranges ----------------------------------------------------------------------------------------------------------


class Queue(NamedTuple):
    """A queue of a cluster or a store. `broker` is the broker's name in a cluster, or the store's label."""

    topic: str
    broker: str
    queue_id: int


class OffsetRange(msgspec.Struct, frozen=True):
    """Queue offsets `start` to `stop` (exclusive) of one queue.

    If `queue` has no topic, the range is over a store's log: `start` and `stop` are then physical offsets in bytes.
    """

    queue: Queue
    start: int
    stop: int
    size: int = 0
    """The estimated bytes of the range's records."""

    @property
    def count(self) -> int:
        return self.stop - self.start


class Witness(NamedTuple):
    """Identifies a message that was read: its physical offset, and its store time (epoch ms; -1 if unreadable)."""

    physical_offset: int
    store_timestamp: int

    def agrees_with(self, found: Witness) -> bool:
        """Returns whether `found` may be the same message. A time that cannot be read proves nothing."""
        times = {self.store_timestamp, found.store_timestamp} - {-1}
        return self.physical_offset == found.physical_offset and len(times) < 2


class TaskLimits(msgspec.Struct, frozen=True):
    """Limits on one task's bytes (`max_bytes`) and messages (`max_records`), and on the number of tasks."""

    max_bytes: int
    max_records: int | None = None
    min_tasks: int | None = None


def piece_size_for(log_bytes: int, workers: int) -> int:
    """Returns the bytes of a log that one task should read, for a log of `log_bytes` and `workers` parallel workers.

    A large piece hides a task's overhead of about 20 ms, in which a worker could read 40 MB. A small piece balances the
    workers. The result gives each worker about four pieces, of 16 to 512 MiB each.
    """
    return min(max(log_bytes // (_PIECES_EACH * workers), _SMALLEST_PIECE), _LARGEST_PIECE)


def split_ranges(spans: Iterable[OffsetRange], limits: TaskLimits) -> list[OffsetRange]:
    """Splits spans into smaller ranges (pieces) within the limits. Keeps the order; leaves no gaps or overlaps."""
    spans = [span for span in spans if span.count > 0]
    pieces = [_pieces(span, limits) for span in spans]
    total = sum(span.size for span in spans) or 1
    while limits.min_tasks is not None and sum(pieces) < limits.min_tasks:
        # Split the span with the largest pieces once more, until there are enough pieces or no span can be split.
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


def task_size_for(total: int, max_bytes: int | None = None, *, has_bodies: bool = True) -> int:
    """Returns the bytes that one task should read of `total` bytes; at most `max_bytes`, if it is given.

    A task costs Spark up to 50 ms of CPU time before its first row, so it reads at least 8 MB: a small micro-batch is
    one task. Without bodies the same time is enough for 256 MB of a log. Larger reads get about 16 tasks, to keep the
    cores of a machine busy, and very large ones as many as are needed. The result depends on the arguments only,
    because a replayed micro-batch must have the same tasks.
    """
    smallest = _SMALLEST_TASK if has_bodies else _SMALLEST_TASK_WITHOUT_BODIES
    largest = DEFAULT_TASK if has_bodies else _LARGEST_TASK_WITHOUT_BODIES
    return min(max_bytes or largest, max(total // _MANY_TASKS, smallest))


def pack_ranges(spans: Sequence[OffsetRange], max_bytes: int) -> list[list[OffsetRange]]:
    """Groups spans into tasks, so that a thousand quiet queues do not cost a thousand tasks. Returns a list per task.

    Keeps the order. A task takes spans until the next span would exceed `max_bytes`.
    """
    tasks: list[list[OffsetRange]] = []
    size = 0
    for span in spans:
        if not tasks or size + span.size > max_bytes:
            tasks.append([])
            size = 0
        tasks[-1].append(span)
        size += span.size
    return tasks


# -- sources and tasks -----------------------------------------------------------------------------------------------


class Flaw(NamedTuple):
    """A message or a byte range of the log that cannot be read, and the reason. Positions are None if unknown."""

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int | None
    what: str
    """One clause that says what is wrong and where."""


class RowPage(NamedTuple):
    """A batch of messages from one broker, and the flaws that a task found among them."""

    broker: str
    batch: pa.RecordBatch
    """The columns of `penstock.format.arrow_rows.MESSAGE_SCHEMA` that the caller asked for, in the caller's order."""
    flaws: tuple[Flaw, ...] = ()


class ReadTask(Protocol):
    """The work of one Spark task: some spans to read. The driver pickles it; a worker runs it."""

    def pages(self, columns: Sequence[str]) -> Iterator[RowPage]:
        """Yields the messages of the task's spans, span by span, in pages of about 8 MB or 20,000 rows.

        Raises DataLost if messages of the spans no longer exist, unless failOnDataLoss is false.
        """
        ...


class MessageSource(Protocol):
    """The driver's interface to a set of stores or to a cluster. Not thread-safe."""

    name: str
    """The stores' paths or the cluster's address, for error messages."""

    def refresh(self) -> None:
        """Updates the state that the other methods return. Must be cheap, because a stream calls it often."""
        ...

    def topics(self) -> list[str]:
        """Returns all topics, sorted."""
        ...

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        """Returns the queues of `topics`, sorted. A topic without queues adds none."""
        ...

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """Returns the offset of the queue's oldest message, and the offset that its next message will get."""
        ...

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        """Returns the offset of the first message stored at or after `timestamp` (epoch ms).

        Returns the queue's end if there is no such message.
        """
        ...

    def group_offset(self, group: str, queue: Queue) -> int | None:
        """Returns a consumer group's committed offset, or None if the group has committed no offset for the queue."""
        ...

    def size(self, queue: Queue, start: int, stop: int) -> int:
        """Returns the estimated bytes of the records from `start` to `stop`. Must be deterministic."""
        ...

    def witnesses(self, offsets: Mapping[Queue, int]) -> dict[Queue, Witness]:
        """Returns the witness of the last message before each offset. Leaves out queues that have none to show.

        The witness of a log is the first record of the file that holds the byte before the offset.
        """
        ...

    def first_records(self) -> dict[str, Witness]:
        """Returns the oldest record of each store's log by broker. Leaves out stores that cannot show it."""
        ...

    def why_replaced(self, queue: Queue, offset: int, witness: Witness, first_record: Witness | None) -> str:
        """Returns in one clause why the message before `offset` is no longer the one that `witness` describes.

        `first_record` is what `first_records` returned for the queue's store when the witness was taken.
        """
        ...

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        """Returns tasks that read the groups of `spans`. Each span must lie within its queue's bounds."""
        ...

    def close(self) -> None: ...

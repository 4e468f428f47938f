"""What the driver asks of wherever messages are, and what a worker is given to read them.

Two kinds of place: the files of stores (`store_place`), and a cluster (`cluster_place`). A place lives on the driver;
the tasks that it makes are pickled and read on workers, which know nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.pipeline.ranges import Queue, Span

if TYPE_CHECKING:
    import pyarrow as pa


class Flaw(NamedTuple):
    """A message, or some bytes of a log, that cannot be read."""

    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int | None
    what: str
    """One clause for people: what is wrong, and where."""


class Page(NamedTuple):
    """Some messages as a task reads them."""

    broker: str
    batch: pa.RecordBatch
    """The columns of `penstock.format.arrow_schema.MESSAGE_SCHEMA` that were asked for, in that order."""
    flaws: tuple[Flaw, ...] = ()


class Task(Protocol):
    """What one worker reads. Pickled on the driver."""

    def pages(self, columns: Sequence[str]) -> Iterator[Page]:
        """The messages of the task's spans, span after span, in pages of about 8 MB or 20,000 rows.

        Raises DataLost where messages are gone that the spans include, unless data loss was allowed.
        """
        ...


class Place(Protocol):
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

    def tasks(self, spans: Sequence[Sequence[Span]]) -> list[Task]:
        """One task for each group of spans, which lie within the bounds."""
        ...

    def close(self) -> None: ...

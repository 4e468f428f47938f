"""Who fills the disk: messages and bytes by topic, queue, tag, producer, day and hour; growth, and how long it lasts.

Goes over the log itself, so prepared and rolled-back records and topics without queues count too. Each worker counts
its piece of the log; only counts travel.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.pipeline.jobs.counting import Counting
from penstock.pipeline.jobs.tally import Key, Tally, merge
from penstock.pipeline.jobs.where import Where
from penstock.pipeline.ranges import Limits, Span, cut, size_of_pieces
from penstock.pipeline.store_place import StorePlace
from penstock.pipeline.store_task import LogTask
from penstock.pipeline.workers import gather, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DAYS_LOOKED_AT: Final = 7


class Disk(msgspec.Struct, frozen=True):
    """The disk that a store lies on."""

    store: str
    path: str
    total: int
    free: int
    log: int
    """Bytes of the store's log, from its first record to its end."""
    per_day: int
    """Bytes that came a day, on the average of the last week that there is."""

    @property
    def days_left(self) -> float | None:
        """Days until the disk is full if nothing is deleted; None if nothing comes."""
        return self.free / self.per_day if self.per_day else None


class Usage(msgspec.Struct, frozen=True):
    """What the stores hold."""

    tally: Tally
    disks: list[Disk]

    def rows(self, by: str) -> list[tuple[Key, int, int]]:
        """(key, messages, bytes) of one kind of count, the largest first."""
        chosen = [(key, count.messages, count.size) for key, count in self.tally.counts if key.by == by]
        return sorted(chosen, key=lambda row: (-row[2], row[0]))

    @property
    def messages(self) -> int:
        return sum(count.messages for key, count in self.tally.counts if key.by == "topic")

    @property
    def size(self) -> int:
        return sum(count.size for key, count in self.tally.counts if key.by == "topic")


def usage(spark: SparkSession, where: Where) -> Usage:
    """Counts on Spark. Raises BadStore, BadSettings."""
    with _Plan(where, parallelism(spark)) as planned:
        told = gather(spark, planned.tasks, _count_piece)
        return planned.usage([msgspec.msgpack.decode(each, type=Tally) for each in told])


def usage_here(where: Where) -> Usage:
    """Counts in this process: the same, without Spark."""
    with _Plan(where) as planned:
        return planned.usage([count_task(task) for task in planned.tasks])


def count_task(task: LogTask) -> Tally:
    """The tally of one piece of a log."""
    counting = Counting(task.files.broker)
    flaws = sum(len(flaws) for _, flaws in task.use(counting.add))
    return merge([counting.tally(), Tally(flaws=flaws)])


def _count_piece(task: LogTask) -> bytes:
    return msgspec.msgpack.encode(count_task(task))


class _Plan:
    """The logs of some stores, cut into pieces for so many workers."""

    def __init__(self, where: Where, workers: int = 1) -> None:
        where.check(only_stores=True)
        options = where.options(order="log")
        self._paths = {name: folder.layout.root for name, folder in where.folders().items()}
        self._place = StorePlace(options)
        try:
            queues = self._place.queues(())
            self._bounds = {queue.broker: self._place.bounds(queue) for queue in queues}
            spans = [
                Span(queue, *self._bounds[queue.broker], self._place.size(queue, *self._bounds[queue.broker]))
                for queue in queues
            ]
            pieces = cut(spans, Limits(size_of_pieces(sum(span.size for span in spans), workers)))
            tasks = self._place.tasks([[piece] for piece in pieces])
            self.tasks = [task for task in tasks if isinstance(task, LogTask)]
        except BaseException:
            self._place.close()
            raise

    def __enter__(self) -> _Plan:
        return self

    def __exit__(self, *error: object) -> None:
        self._place.close()

    def usage(self, tallies: Sequence[Tally]) -> Usage:
        tally = merge(tallies)
        return Usage(tally, [self._disk(store, path, tally) for store, path in self._paths.items()])

    def _disk(self, store: str, path: Path, tally: Tally) -> Disk:
        figures = shutil.disk_usage(path)
        low, high = self._bounds[store]
        return Disk(store, str(path), figures.total, figures.free, high - low, _per_day(store, tally))


def _per_day(store: str, tally: Tally) -> int:
    """Bytes a day over the last days that have any; the last one is not over, so it counts by its hours."""
    hours: dict[int, int] = {}
    for key, count in tally.counts:
        if key.by == "hour" and key.store == store:
            hours[key.hour] = hours.get(key.hour, 0) + count.size
    if not hours:
        return 0
    newest = max(hours)
    oldest = max(min(hours), newest - 24 * _DAYS_LOOKED_AT + 1)
    return sum(size for hour, size in hours.items() if hour >= oldest) * 24 // (newest - oldest + 1)

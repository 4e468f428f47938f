"""Disk usage: messages and bytes by topic, queue, tag, producer, day and hour; growth, and days until the disk is full.

The job scans the log itself. It therefore also counts prepared and rolled-back records, and topics without queues. Each
worker counts a range of the log and returns a tally (counts by key), which is small whatever the log's size. Record
sizes are counted in size classes that are nine per cent wide. Percentiles have the same precision.

`LogCounter` groups a few thousand records at once, so that their bytes stay in the CPU cache, and sums many thousands
at once. Its memory grows only with the number of distinct keys. Not thread-safe. `page` renders the result as one
self-contained HTML page.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.constants import TAGS
from penstock.format.hosts import decode_host
from penstock.format.kernels import Buffer, Ints, Longs, Rows
from penstock.format.msgspec_warm_up import prepared
from penstock.format.record_layout import BORN_HOST_AT
from penstock.format.sys_flag import BORN_HOST_V6
from penstock.human_units import format_size
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.offset_ranges import OffsetRange, TaskLimits, piece_size_for, split_ranges
from penstock.pipeline.session import gather, parallelism
from penstock.pipeline.store_read_tasks import LogTask
from penstock.pipeline.store_source import StoreSource
from penstock.pipeline.svg_charts import BARS, bars, document, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- counts ----------------------------------------------------------------------------------------------------------

_PER_OCTAVE: Final = 8
CLASSES: Final = 32 * _PER_OCTAVE
"""The number of size classes."""


class Key(msgspec.Struct, frozen=True, order=True):
    """The key of a count. `by` is the kind of count, such as `tag`. Fields that this kind ignores are empty or -1."""

    by: str
    store: str
    topic: str = ""
    queue_id: int = -1
    tag: str = ""
    host: str = ""
    hour: int = -1
    """The hour as hours since 1970 in UTC. For a day, this is its first hour."""


class Count(msgspec.Struct):
    """The number of messages, their bytes in the log, first and last store time, and messages by size class."""

    messages: int = 0
    size: int = 0
    first_ms: int = 2**63 - 1
    last_ms: int = -(2**63)
    classes: dict[int, int] = {}

    def add(self, other: Count) -> None:
        self.messages += other.messages
        self.size += other.size
        self.first_ms = min(self.first_ms, other.first_ms)
        self.last_ms = max(self.last_ms, other.last_ms)
        for number, count in other.classes.items():
            self.classes[number] = self.classes.get(number, 0) + count

    def percentile(self, share: float) -> int:
        """Returns the record size in bytes that `share` (0 to 1) of the messages do not exceed.

        The result is up to nine per cent too large.
        """
        wanted, seen = share * self.messages, 0
        for number in sorted(self.classes):
            seen += self.classes[number]
            if seen >= wanted:
                return class_end(number)
        return 0


class KeyCounts(msgspec.Struct):
    """A tally: counts by key. Tallies may be merged in any order."""

    counts: list[tuple[Key, Count]] = []
    flaws: int = 0
    """The number of places in the log at which no record could be read."""


def _class_of(sizes: Ints) -> Longs:
    exponents = np.ceil(np.log2(np.maximum(sizes, 1)) * _PER_OCTAVE - 1e-9)
    return np.clip(exponents, 0, CLASSES - 1).astype(np.int64)


_CLASS_OF_SMALL: Final = _class_of(np.arange(1 << 16, dtype=np.int32))


def size_class(sizes: Ints) -> Longs:
    """Returns the size class of each size: the first class whose largest size is not below it."""
    if len(sizes) and sizes.min() >= 0 and sizes.max() < len(_CLASS_OF_SMALL):
        return np.asarray(_CLASS_OF_SMALL[sizes])
    return _class_of(sizes)


def class_end(number: int) -> int:
    """Returns the largest size in bytes of a size class."""
    return int(2 ** (number / _PER_OCTAVE) + 1e-6)


def merge(tallies: Iterable[KeyCounts]) -> KeyCounts:
    """Returns the sum of the tallies, sorted by key."""
    sums: dict[Key, Count] = {}
    flaws = 0
    for tally in tallies:
        flaws += tally.flaws
        for key, count in tally.counts:
            sums.setdefault(key, Count(classes={})).add(count)
    return KeyCounts(sorted(sums.items(), key=lambda each: each[0]), flaws)


# -- counting --------------------------------------------------------------------------------------------------------

_SUM_ROWS: Final = 1 << 16
_MAX_TABLE_CODES: Final = 1 << 20
_HOUR_MS: Final = 3_600_000
_MAX_MS: Final = (2**63 - 1) // 1000
_FIELDS: Final = (
    "topic_at",
    "topic_length",
    "queue_id",
    "properties_at",
    "properties_length",
    "sys_flag",
    "store_timestamp",
    "size",
)
Texts = tuple[Longs, Ints]
"""The positions and lengths of one text per record, in the bytes of the log."""


class LogCounter:
    """Counts the records of one store. Call `add` with records in any order, then `tally`."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._topics: dict[bytes, int] = {}
        self._queues, self._tags, self._hosts, self._hours = (_Groups() for _ in range(4))
        self._times: list[Longs] = []
        self._sizes: list[Ints] = []
        self._pending = 0

    def add(self, data: Buffer, starts: Longs, rows: Rows) -> None:
        """Counts records. `data` are bytes of a log, `starts` the records' positions in them, `rows` their ROWs."""
        if not len(rows):
            return
        field: dict[str, Any] = dict(zip(_FIELDS, kernels.row_fields(rows, _FIELDS), strict=True))
        view, nothing = kernels.view_of(data), np.zeros(len(rows), np.int64)
        none: Texts = nothing, np.zeros(len(rows), np.int32)
        times = _valid_times(field["store_timestamp"])

        names: Texts = starts + field["topic_at"], field["topic_length"]
        numbers, firsts = kernels.number_groups(data, *names, nothing)
        known = [self._topics.setdefault(_bytes(view, names, row), len(self._topics)) for row in firsts.tolist()]
        topics = np.array(known, np.int64)[numbers]
        shifted = topics << 32

        queues = field["queue_id"]
        self._queues.add(b"", none, shifted | queues.view(np.uint32), topics, lambda row: int(queues[row]))
        properties = starts + field["properties_at"], field["properties_length"]
        tags = kernels.find_values(data, *properties, (TAGS.encode(),))[0]
        self._tags.add(data, tags, topics, topics, lambda row: _bytes(view, tags, row))
        wide = field["sys_flag"] & BORN_HOST_V6
        hosts: Texts = starts + BORN_HOST_AT, np.where(wide, np.int32(16), np.int32(4))
        self._hosts.add(data, hosts, topics, topics, lambda row: _bytes(view, hosts, row))
        hours = times // _HOUR_MS
        self._hours.add(b"", none, shifted | _hour_numbers(hours, none), topics, lambda row: int(hours[row]))

        self._times.append(times)
        self._sizes.append(field["size"])
        self._pending += len(rows)
        if self._pending >= _SUM_ROWS:
            self._sum_pending()

    def tally(self) -> KeyCounts:
        """Returns the counts so far."""
        self._sum_pending()
        store, names = self._store, [name.decode("utf-8", "replace") for name in self._topics]
        counts = [(Key("queue", store, names[topic], queue), each) for topic, queue, each in self._queues.counts()]
        counts += [
            (Key("tag", store, names[topic], tag=tag.decode("utf-8", "replace")), each)
            for topic, tag, each in self._tags.counts()
        ]
        counts += [
            (Key("producer", store, names[topic], host=_address(host)), each)
            for topic, host, each in self._hosts.counts()
        ]
        for topic, hour, each in self._hours.counts():
            counts += [
                (Key("topic", store, names[topic]), each),
                (Key("hour", store, names[topic], hour=hour), each),
                (Key("day", store, names[topic], hour=hour - hour % 24), each),
            ]
        return merge([KeyCounts(counts)])

    def _sum_pending(self) -> None:
        if not self._pending:
            return
        times, sizes = np.concatenate(self._times), np.concatenate(self._sizes)
        classes = size_class(sizes)
        for groups in (self._queues, self._tags, self._hosts, self._hours):
            groups.sum_pending(times, sizes, classes)
        self._times, self._sizes, self._pending = [], [], 0


class _Groups:
    """Groups of records that are counted together: same topic, and same queue, tag, host or hour."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Any], int] = {}
        self._numbers: list[Ints] = []
        self._sums: list[Count] = []

    def add(self, data: Buffer, texts: Texts, values: Longs, topics: Longs, key: Callable[[int], Any]) -> None:
        """Groups records with equal text and equal value. `key` returns the queue, tag, host or hour of a row."""
        numbers, firsts = kernels.number_groups(data, *texts, values)
        known = [
            self._known.setdefault((topic, key(row)), len(self._known))
            for topic, row in zip(topics[firsts].tolist(), firsts.tolist(), strict=True)
        ]
        self._numbers.append(np.array(known, np.int32)[numbers])

    def sum_pending(self, times: Longs, sizes: Ints, classes: Longs) -> None:
        """Adds the records since the last call to the sums. The arguments have the data of these records, in order."""
        numbers, count = np.concatenate(self._numbers), len(self._known)
        self._numbers = []
        self._sums += [Count(classes={}) for _ in range(count - len(self._sums))]
        columns = (each.tolist() for each in kernels.sum_groups(numbers, count, times, sizes))
        for known, messages, size, first_ms, last_ms in zip(self._sums, *columns, strict=True):
            if messages:
                known.add(Count(messages, size, first_ms, last_ms, {}))
        for number, size_number, messages in _class_counts(numbers, count, classes):
            of_sizes = self._sums[number].classes
            of_sizes[size_number] = of_sizes.get(size_number, 0) + messages

    def counts(self) -> Iterator[tuple[int, Any, Count]]:
        """Yields the topic's number, the key and the count of each group."""
        for (topic, key), each in zip(self._known, self._sums, strict=True):
            yield topic, key, each


def _class_counts(numbers: Ints, count: int, classes: Longs) -> Iterator[tuple[int, int, int]]:
    """Yields (group, size class, number of records) for each combination that occurs."""
    codes = numbers * np.int64(CLASSES) + classes
    if count * CLASSES <= _MAX_TABLE_CODES:
        table = np.bincount(codes)
        result = np.flatnonzero(table)
        often = table[result]
    else:
        result, often = np.unique(codes, return_counts=True)
    for code, messages in zip(result.tolist(), often.tolist(), strict=True):
        yield code // CLASSES, code % CLASSES, messages


def _valid_times(times: Longs) -> Longs:
    """Returns the times in ms. A time that does not fit into 64-bit microseconds becomes 0."""
    if times.min() >= -_MAX_MS and times.max() <= _MAX_MS:
        return times
    return np.where((times >= -_MAX_MS) & (times <= _MAX_MS), times, np.int64(0))


def _hour_numbers(hours: Longs, none: Texts) -> Longs:
    """Returns a number for each row's hour; equal hours get equal numbers. Usually there is only one hour."""
    if hours.min() == hours.max():
        return none[0]
    return kernels.number_groups(b"", *none, hours)[0].astype(np.int64)


def _bytes(view: memoryview, texts: Texts, row: int) -> bytes:
    start, length = int(texts[0][row]), int(texts[1][row])
    return bytes(view[start : start + length]) if length > 0 else b""


def _address(host: bytes) -> str:
    """Returns the IP address of a born host, without its port."""
    return decode_host(host + bytes(4)).rpartition(":")[0]


# -- the job ---------------------------------------------------------------------------------------------------------

_GROWTH_DAYS: Final = 7


class Disk(msgspec.Struct, frozen=True):
    """The state of a store's disk. Sizes are in bytes."""

    store: str
    path: str
    total: int
    free: int
    log: int
    """The bytes of the store's log, from its minimum offset to its end."""
    per_day: int
    """The bytes that the log grows per day, averaged over the seven days before the newest message."""

    @property
    def days_left(self) -> float | None:
        """The days until the disk is full if no file is deleted; None if the log does not grow."""
        return self.free / self.per_day if self.per_day else None


class Usage(msgspec.Struct, frozen=True):
    """The usage of one or more stores."""

    tally: KeyCounts
    disks: list[Disk]

    def rows(self, by: str) -> list[tuple[Key, int, int]]:
        """Returns (key, messages, bytes) for the counts of kind `by`, largest first."""
        chosen = [(key, count.messages, count.size) for key, count in self.tally.counts if key.by == by]
        return sorted(chosen, key=lambda row: (-row[2], row[0]))

    @property
    def messages(self) -> int:
        return sum(count.messages for key, count in self.tally.counts if key.by == "topic")

    @property
    def size(self) -> int:
        return sum(count.size for key, count in self.tally.counts if key.by == "topic")


def usage(spark: SparkSession, job_input: JobInput) -> Usage:
    """Counts the usage of stores on Spark. Raises BadStore or BadSettings."""
    with _UsagePlan(job_input, parallelism(spark)) as plan:
        results = gather(spark, plan.tasks, _count_piece)
        return plan.usage([msgspec.msgpack.decode(each, type=prepared(KeyCounts)) for each in results])


def usage_here(job_input: JobInput) -> Usage:
    """Counts the usage of stores in this process, without Spark. Raises BadStore or BadSettings."""
    with _UsagePlan(job_input) as plan:
        return plan.usage([count_task(task) for task in plan.tasks])


def count_task(task: LogTask) -> KeyCounts:
    """Returns the counts of one range of a log."""
    counting = LogCounter(task.files.broker)
    flaws = sum(len(flaws) for _, flaws in task.map_records(counting.add))
    return merge([counting.tally(), KeyCounts(flaws=flaws)])


def _count_piece(task: LogTask) -> bytes:
    return msgspec.msgpack.encode(count_task(task))


class _UsagePlan:
    """The logs of some stores, split into tasks for a number of workers."""

    def __init__(self, job_input: JobInput, workers: int = 1) -> None:
        job_input.check(only_stores=True)
        options = job_input.options(order="log")
        self._paths = {name: folder.layout.root for name, folder in job_input.folders().items()}
        self._source = StoreSource(options)
        try:
            queues = self._source.queues(())
            self._bounds = {queue.broker: self._source.bounds(queue) for queue in queues}
            spans = [
                OffsetRange(queue, *self._bounds[queue.broker], self._source.size(queue, *self._bounds[queue.broker]))
                for queue in queues
            ]
            pieces = split_ranges(spans, TaskLimits(piece_size_for(sum(span.size for span in spans), workers)))
            tasks = self._source.tasks([[piece] for piece in pieces])
            self.tasks = [task for task in tasks if isinstance(task, LogTask)]
        except BaseException:
            self._source.close()
            raise

    def __enter__(self) -> _UsagePlan:
        return self

    def __exit__(self, *error: object) -> None:
        self._source.close()

    def usage(self, tallies: Sequence[KeyCounts]) -> Usage:
        tally = merge(tallies)
        return Usage(tally, [self._disk(store, path, tally) for store, path in self._paths.items()])

    def _disk(self, store: str, path: Path, tally: KeyCounts) -> Disk:
        figures = shutil.disk_usage(path)
        low, high = self._bounds[store]
        return Disk(store, str(path), figures.total, figures.free, high - low, _per_day(store, tally))


def _per_day(store: str, tally: KeyCounts) -> int:
    """Returns the bytes per day of a store, averaged over the hours of the seven days before its newest message."""
    hours: dict[int, int] = {}
    for key, count in tally.counts:
        if key.by == "hour" and key.store == store:
            hours[key.hour] = hours.get(key.hour, 0) + count.size
    if not hours:
        return 0
    newest = max(hours)
    oldest = max(min(hours), newest - 24 * _GROWTH_DAYS + 1)
    return sum(size for hour, size in hours.items() if hour >= oldest) * 24 // (newest - oldest + 1)


# -- the page --------------------------------------------------------------------------------------------------------


def page(result: Usage) -> str:
    """Returns the usage as an HTML page."""
    stores = f"{len(result.disks)} store{'' if len(result.disks) == 1 else 's'}"
    heading = f"<h1>{result.messages:,} messages, {format_size(result.size)}</h1>"
    return document(f"Usage of {stores}", [heading, disks(result), *charts(result)])


def disks(result: Usage) -> str:
    """Returns the stores and their disks as an HTML table."""
    rows = [
        (
            disk.store,
            format_size(disk.log),
            format_size(disk.per_day),
            format_size(disk.free),
            "–" if disk.days_left is None else f"{disk.days_left:.0f}",
        )
        for disk in result.disks
    ]
    figures = ("log", "a day", "free", "days left")
    return table(("store", *figures), rows, right=figures)


def charts(result: Usage) -> list[str]:
    """Returns HTML charts by topic, day, tag, producer and queue."""
    return [
        bars("Topics", [(key.topic or "?", size) for key, _, size in result.rows("topic")]),
        _days(result),
        bars("Tags", [(f"{key.topic} : {key.tag or '(none)'}", size) for key, _, size in result.rows("tag")]),
        bars("Producers", [(f"{key.host} → {key.topic}", size) for key, _, size in result.rows("producer")]),
        bars("Queues", [(f"{key.topic} / {key.queue_id}", size) for key, _, size in result.rows("queue")]),
    ]


def _days(result: Usage) -> str:
    days: dict[int, int] = {}
    for key, _, size in result.rows("day"):
        days[key.hour] = days.get(key.hour, 0) + size
    names = [(datetime.fromtimestamp(hour * 3600, UTC).strftime("%Y-%m-%d"), days[hour]) for hour in sorted(days)]
    return bars("Days", names[-BARS:])

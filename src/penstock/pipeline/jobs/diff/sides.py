"""Opens the two sides of a diff and splits their queues into tasks. Runs on the driver. Not thread-safe."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.broker.topics import is_system_topic
from penstock.errors import BadSettings
from penstock.pipeline.cluster_source import ClusterSource
from penstock.pipeline.jobs.diff.compare import ComparisonTask, QueueRange
from penstock.pipeline.jobs.diff.report import QueueKey
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.offset_ranges import (
    MessageSource,
    OffsetRange,
    Queue,
    ReadTask,
    TaskLimits,
    pack_ranges,
    split_ranges,
    task_size_for,
)
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import open_source

WAYS: Final = ("place", "key", "bytes")

Bounds = tuple[int, int]


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """The two sides of a diff, and the way to compare them. A side is one store or one cluster."""

    a: JobInput
    b: JobInput
    by: str = "place"
    topics: tuple[str, ...] = ()
    """The topics to compare. If empty, all topics. Must be empty for `bytes`, which compares whole logs."""
    broker: str = ""
    """The name of the broker to compare, if a cluster has several."""
    up_to_common_end: bool = False
    """Whether the sides count as equal even if one side ends sooner."""

    def check(self) -> None:
        """Raises BadSettings for an invalid or contradictory comparison."""
        if self.by not in WAYS:
            raise BadSettings(f"--by '{self.by}': it must be one of {', '.join(WAYS)}")
        for side in (self.a, self.b):
            side.check()
            if len(side.stores) > 1:
                raise BadSettings("--store names one store here; compare several one after the other")
        if self.by == "bytes" and (self.a.namesrv or self.b.namesrv):
            raise BadSettings("--by bytes compares the files of two logs, and a cluster shows none; leave it out")
        if self.by == "bytes" and self.topics:
            raise BadSettings("--by bytes compares whole logs, with every topic in them; leave --topic out")


class OpenSide:
    """One open side, with its queues by topic and queue id."""

    def __init__(self, job_input: JobInput, sides: Sides) -> None:
        options: Options = job_input.options(subscribe_pattern=re.compile(".*"))
        self.source: MessageSource = open_source(options)
        try:
            self.name = self.source.name
            self.queues = {QueueKey(queue.topic, queue.queue_id): queue for queue in self._find_queues(sides)}
        except BaseException:
            self.source.close()
            raise

    def _find_queues(self, sides: Sides) -> list[Queue]:
        topics = self.source.topics()
        if sides.a.namesrv or sides.b.namesrv:
            topics = [topic for topic in topics if not is_system_topic(topic)]  # which a cluster does not list
        queues = self.source.queues([topic for topic in topics if topic in sides.topics or not sides.topics])
        if isinstance(self.source, ClusterSource):
            brokers = sorted({queue.broker for queue in queues})
            if sides.broker:
                return [queue for queue in queues if queue.broker == sides.broker]
            if len(brokers) > 1:
                raise BadSettings(
                    f"{self.name} has several brokers ({', '.join(brokers)}), whose queues have the same numbers; "
                    "choose one with --broker"
                )
        return queues

    def bounds(self, key: QueueKey) -> Bounds | None:
        queue = self.queues.get(key)
        return None if queue is None else self.source.bounds(queue)

    def size(self, key: QueueKey, start: int, stop: int) -> int:
        return self.source.size(self.queues[key], start, stop)

    def task(self, ranges: Iterable[QueueRange]) -> ReadTask | None:
        """Returns the task that reads the parts of `ranges` that exist on this side, or None if no part exists."""
        spans = []
        for span in ranges:
            low, high = self.bounds(span.key) or (0, 0)
            start, stop = max(span.start, low), min(span.stop, high)
            if start < stop:
                spans.append(OffsetRange(self.queues[span.key], start, stop))
        return self.source.tasks([spans])[0] if spans else None


class Comparison:
    """Both sides of a diff, open until `close`. The constructor raises BadSettings, BadStore or Unreachable."""

    def __init__(self, sides: Sides) -> None:
        sides.check()
        self.sides = sides
        self.a = OpenSide(sides.a, sides)
        try:
            self.b = OpenSide(sides.b, sides)
        except BaseException:
            self.a.source.close()
            raise
        topics = {key.topic for key in (*self.a.queues, *self.b.queues)}
        missing = [topic for topic in sides.topics if topic not in topics]
        if missing:
            self.close()
            raise BadSettings(
                f"there is no topic '{missing[0]}', neither in {self.a.name} nor in {self.b.name}; check --topic"
            )
        self.bounds = {
            key: (self.a.bounds(key), self.b.bounds(key)) for key in sorted({*self.a.queues, *self.b.queues})
        }

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.a.source.close()
        self.b.source.close()

    def tasks(self) -> list[ComparisonTask]:
        """Returns the tasks of the diff. By place, they cover the offsets that both sides have. By key, all offsets."""
        return self._tasks(self._ranges())

    def _ranges(self) -> list[QueueRange]:
        ranges = []
        for key, (a, b) in self.bounds.items():
            if self.sides.by == "key":
                each = [side for side in (a, b) if side is not None]
                ranges.append(QueueRange(key, min(low for low, _ in each), max(high for _, high in each)))
            elif a is not None and b is not None:
                ranges.append(QueueRange(key, max(a[0], b[0]), min(a[1], b[1])))
        return ranges

    def recheck_tasks(self, differing: Sequence[QueueRange]) -> list[ComparisonTask]:
        """Returns tasks for the ranges that differ.

        By place, adds tasks for those offsets of the same topics that only one side has, because messages may have
        moved there.
        """
        tasks = self._tasks(differing)
        if self.sides.by == "key":
            return tasks
        edges = []
        common = {span.key: span for span in self._ranges()}
        topics = {span.key.topic for span in differing}
        for key, sides in self.bounds.items():
            for low, high in (side for side in sides if side is not None and key.topic in topics):
                both = common.get(key, QueueRange(key, high, high))
                edges += [QueueRange(key, low, min(high, both.start)), QueueRange(key, max(low, both.stop), high)]
        return tasks + self._tasks(edges, edge=True)

    def _tasks(self, ranges: Iterable[QueueRange], *, edge: bool = False) -> list[ComparisonTask]:
        spans = [
            OffsetRange(Queue(each.key.topic, "", each.key.queue_id), each.start, each.stop, self._size(each))
            for each in ranges
            if each.start < each.stop
        ]
        size = task_size_for(sum(span.size for span in spans))
        tasks = []
        for group in pack_ranges(split_ranges(spans, TaskLimits(size)), size):
            for chosen in _without_repeats(group):
                tasks.append(
                    ComparisonTask(chosen, self.a.task(chosen), self.b.task(chosen), self.sides.by != "key", edge)
                )
        return tasks

    def _size(self, span: QueueRange) -> int:
        return max(
            (
                side.size(span.key, max(span.start, bounds[0]), min(span.stop, bounds[1]))
                for side in (self.a, self.b)
                if (bounds := side.bounds(span.key)) is not None
            ),
            default=0,
        )


def _without_repeats(spans: Sequence[OffsetRange]) -> list[tuple[QueueRange, ...]]:
    """Splits the ranges of a task into groups, so that no queue occurs twice in a group."""
    groups: list[dict[QueueKey, QueueRange]] = [{}]
    for span in spans:
        key = QueueKey(span.queue.topic, span.queue.queue_id)
        if key in groups[-1]:
            groups.append({})
        groups[-1][key] = QueueRange(key, span.start, span.stop)
    return [tuple(group.values()) for group in groups]

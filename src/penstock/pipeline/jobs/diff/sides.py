"""What is compared, and how it is cut: two stores, or a store and a cluster. Lives on the driver; one thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from penstock.broker.topics import is_system_topic
from penstock.errors import BadSettings
from penstock.pipeline.cluster_source import ClusterSource
from penstock.pipeline.jobs.common import JobInput
from penstock.pipeline.jobs.diff.compare import ComparisonTask, QueueRange
from penstock.pipeline.jobs.diff.report import QueueKey
from penstock.pipeline.options import Options
from penstock.pipeline.plan import open_source
from penstock.pipeline.ranges import MessageSource, OffsetRange, Queue, ReadTask, TaskLimits, pack_ranges, split_ranges

_TASKS_AT_LEAST: Final = 16
WAYS: Final = ("place", "key", "bytes")

Bounds = tuple[int, int]


class Sides(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be compared with what. A side is one store, or a cluster."""

    a: JobInput
    b: JobInput
    by: str = "place"
    topics: tuple[str, ...] = ()
    """Only these; all of them if there are none. The logs' bytes have every topic."""
    broker: str = ""
    """Which broker of a cluster, where it has several."""
    up_to_common_end: bool = False
    """Whether it is the same if one side ends sooner."""

    def check(self) -> None:
        """Raises BadSettings."""
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
    """One side: its queues by topic and id."""

    def __init__(self, job_input: JobInput, sides: Sides) -> None:
        options: Options = job_input.options(subscribe_pattern=re.compile(".*"))
        self.source: MessageSource = open_source(options)
        try:
            self.name = self.source.name
            self.queues = {QueueKey(queue.topic, queue.queue_id): queue for queue in self._find(sides)}
        except BaseException:
            self.source.close()
            raise

    def _find(self, sides: Sides) -> list[Queue]:
        there = self.source.topics()
        if sides.a.namesrv or sides.b.namesrv:
            there = [topic for topic in there if not is_system_topic(topic)]  # a cluster does not list its own
        queues = self.source.queues([topic for topic in there if topic in sides.topics or not sides.topics])
        if isinstance(self.source, ClusterSource):
            brokers = sorted({queue.broker for queue in queues})
            if sides.broker:
                return [queue for queue in queues if queue.broker == sides.broker]
            if len(brokers) > 1:
                raise BadSettings(
                    f"{self.name} has several brokers ({', '.join(brokers)}), whose queues have the same numbers; say "
                    "with --broker which of them is compared"
                )
        return queues

    def bounds(self, key: QueueKey) -> Bounds | None:
        queue = self.queues.get(key)
        return None if queue is None else self.source.bounds(queue)

    def size(self, key: QueueKey, start: int, stop: int) -> int:
        return self.source.size(self.queues[key], start, stop)

    def task(self, stretches: Iterable[QueueRange]) -> ReadTask | None:
        """What reads these ranges as far as they are there."""
        spans = []
        for stretch in stretches:
            low, high = self.bounds(stretch.key) or (0, 0)
            start, stop = max(stretch.start, low), min(stretch.stop, high)
            if start < stop:
                spans.append(OffsetRange(self.queues[stretch.key], start, stop))
        return self.source.tasks([spans])[0] if spans else None


class Comparison:
    """Both sides while they are compared."""

    def __init__(self, sides: Sides) -> None:
        sides.check()
        self.sides = sides
        self.a = OpenSide(sides.a, sides)
        try:
            self.b = OpenSide(sides.b, sides)
        except BaseException:
            self.a.source.close()
            raise
        there = {key.topic for key in (*self.a.queues, *self.b.queues)}
        missing = [topic for topic in sides.topics if topic not in there]
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

    def pieces(self) -> list[ComparisonTask]:
        """What is compared: by place, where both sides have messages; by key, everything."""
        return self._pieces(self._ranges())

    def _ranges(self) -> list[QueueRange]:
        found = []
        for key, (a, b) in self.bounds.items():
            if self.sides.by == "key":
                each = [side for side in (a, b) if side is not None]
                found.append(QueueRange(key, min(low for low, _ in each), max(high for _, high in each)))
            elif a is not None and b is not None:
                found.append(QueueRange(key, max(a[0], b[0]), min(a[1], b[1])))
        return found

    def recheck_tasks(self, differing: Sequence[QueueRange]) -> list[ComparisonTask]:
        """Pieces of what differs, and of what their queues have beyond, where messages may have moved to."""
        pieces = self._pieces(differing)
        if self.sides.by == "key":
            return pieces
        edges = []
        common = {stretch.key: stretch for stretch in self._ranges()}
        topics = {stretch.key.topic for stretch in differing}
        for key, sides in self.bounds.items():
            for low, high in (side for side in sides if side is not None and key.topic in topics):
                both = common.get(key, QueueRange(key, high, high))
                edges += [QueueRange(key, low, min(high, both.start)), QueueRange(key, max(low, both.stop), high)]
        return pieces + self._pieces(edges, edge=True)

    def _pieces(self, stretches: Iterable[QueueRange], *, edge: bool = False) -> list[ComparisonTask]:
        spans = [
            OffsetRange(Queue(each.key.topic, "", each.key.queue_id), each.start, each.stop, self._size(each))
            for each in stretches
            if each.start < each.stop
        ]
        limits = TaskLimits(self.sides.a.options().max_bytes_per_partition)
        made = []
        for group in pack_ranges(split_ranges(spans, limits), limits.max_bytes, _TASKS_AT_LEAST):
            for together in _one_each(group):
                made.append(
                    ComparisonTask(together, self.a.task(together), self.b.task(together), self.sides.by != "key", edge)
                )
        return made

    def _size(self, stretch: QueueRange) -> int:
        return max(
            (
                side.size(stretch.key, max(stretch.start, bounds[0]), min(stretch.stop, bounds[1]))
                for side in (self.a, self.b)
                if (bounds := side.bounds(stretch.key)) is not None
            ),
            default=0,
        )


def _one_each(spans: Sequence[OffsetRange]) -> list[tuple[QueueRange, ...]]:
    """The ranges of a task, in groups in which no queue is there twice."""
    groups: list[dict[QueueKey, QueueRange]] = [{}]
    for span in spans:
        key = QueueKey(span.queue.topic, span.queue.queue_id)
        if key in groups[-1]:
            groups.append({})
        groups[-1][key] = QueueRange(key, span.start, span.stop)
    return [tuple(group.values()) for group in groups]

"""Compares two logs byte by byte. The logs of a master and its slave must be equal where both exist.

Each worker compares a range of both logs in memory and returns the ranges that differ. The report shows the messages at
the first differing ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from penstock.format.msgspec_warm_up import prepared
from penstock.pipeline.jobs.diff.sides import Sides
from penstock.pipeline.jobs.job_input import JobInput
from penstock.pipeline.offset_ranges import DEFAULT_TASK, OffsetRange, TaskLimits, split_ranges
from penstock.pipeline.session import gather
from penstock.pipeline.store_read_tasks import LogTask
from penstock.pipeline.store_source import StoreSource
from penstock.store.files.mapped_file import MappedFile
from penstock.store.readonly.view import LogView

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES: Final = 20
_BLOCK: Final = 1 << 20
_MERGE_DISTANCE: Final = 4096
"""Differences closer than this are merged into one range."""
_MAX_RANGES: Final = 1000
"""The maximum ranges per task. If there are more, the last range extends to the task's last difference."""
_POSITION: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_size")


class DifferingRange(msgspec.Struct, frozen=True):
    """Physical offsets `start` to `stop` (exclusive), in which `count` bytes differ."""

    start: int
    stop: int
    count: int
    missing: str = ""
    """`a` or `b` if that side has no file for the range; otherwise empty."""


class LogMessage(msgspec.Struct, frozen=True):
    """The message of one side whose record covers the first byte of a differing range."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int


class Example(msgspec.Struct, frozen=True):
    """A range that differs, and each side's message at its start, or None if that side has no valid record there."""

    where: DifferingRange
    a: LogMessage | None
    b: LogMessage | None


class LogDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a diff by bytes. `a_range` and `b_range` are each log's minimum offset and end."""

    a: str
    b: str
    a_range: tuple[int, int]
    b_range: tuple[int, int]
    up_to_common_end: bool
    compared: int
    differing: int
    """The number of bytes that differ."""
    first: int | None
    """The first physical offset that differs, or None if the compared bytes are equal."""
    examples: list[Example]

    @property
    def behind(self) -> int:
        """The bytes by which log b ends before log a; negative if log a ends first."""
        return self.a_range[1] - self.b_range[1]

    @property
    def same(self) -> bool:
        return self.first is None and (self.up_to_common_end or not self.behind)


def diff_bytes(spark: SparkSession, sides: Sides, examples: int = EXAMPLES) -> LogDiff:
    """Compares the logs on Spark. Reports up to `examples` differing ranges. Raises BadSettings or BadStore."""
    with _Logs(sides) as logs:
        decode = msgspec.msgpack.Decoder(prepared(list[DifferingRange])).decode
        found = [each for answer in gather(spark, logs.pieces, _differing_ranges_packed) for each in decode(answer)]
        return logs.report(found, examples)


def diff_bytes_here(sides: Sides, examples: int = EXAMPLES) -> LogDiff:
    """Compares the logs in this process, without Spark. Otherwise like `diff_bytes`."""
    with _Logs(sides) as logs:
        return logs.report([each for piece in logs.pieces for each in differing_ranges(*piece)], examples)


def differing_ranges(a: LogTask, b: LogTask) -> list[DifferingRange]:
    """Returns the differing ranges of two logs. The tasks must have the same range."""
    found: list[DifferingRange] = []
    with closing(a.files.log()) as log_a, closing(b.files.log()) as log_b:
        at = a.start
        while at < a.stop:
            end = min(at + _BLOCK, log_a.roll_next(at), log_b.roll_next(at), a.stop)
            _add(found, _block(log_a, log_b, at, end))
            at = end
    return found


def _block(a: LogView, b: LogView, start: int, stop: int) -> list[DifferingRange]:
    file_a, file_b = a.queue.find(start), b.queue.find(start)
    if file_a is None or file_b is None:
        if file_a is None and file_b is None:
            return []
        return [DifferingRange(start, stop, stop - start, "a" if file_a is None else "b")]
    changed = np.flatnonzero(_bytes(file_a, start, stop) != _bytes(file_b, start, stop))
    if not len(changed):
        return []
    borders = np.flatnonzero(np.diff(changed) > _MERGE_DISTANCE) + 1
    return [
        DifferingRange(start + int(group[0]), start + int(group[-1]) + 1, len(group))
        for group in np.split(changed, borders)
    ]


def _bytes(file: MappedFile, start: int, stop: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(file.map.view[start - file.from_offset : stop - file.from_offset], np.uint8)


def _add(found: list[DifferingRange], more: Sequence[DifferingRange]) -> None:
    """Appends the ranges of `more` to `found`. Merges ranges that are close, or exceed `_MAX_RANGES`."""
    for each in more:
        last = found[-1] if found else None
        near = last is not None and last.missing == each.missing and each.start - last.stop <= _MERGE_DISTANCE
        if last is not None and (near or len(found) >= _MAX_RANGES):
            found[-1] = DifferingRange(last.start, each.stop, last.count + each.count, last.missing)
        else:
            found.append(each)


def _differing_ranges_packed(piece: tuple[LogTask, LogTask]) -> bytes:
    return msgspec.msgpack.encode(differing_ranges(*piece))


class _Logs:
    """Two open logs. `pieces` are pairs of tasks that read the same range of both logs."""

    def __init__(self, sides: Sides) -> None:
        sides.check()
        self._sides = sides
        self._sources: list[StoreSource] = []
        try:
            (self._name_a, self._range_a), (self._name_b, self._range_b) = self._open(sides.a), self._open(sides.b)
            start = max(self._range_a[0], self._range_b[0])
            stop = max(min(self._range_a[1], self._range_b[1]), start)
            self.compared = stop - start
            self.pieces = list(zip(*(self._cut(source, start, stop) for source in self._sources), strict=True))
        except BaseException:
            self.__exit__()
            raise

    def _open(self, job_input: JobInput) -> tuple[str, tuple[int, int]]:
        source = StoreSource(job_input.options(order="log"))
        self._sources.append(source)
        return source.name, source.bounds(source.queues(())[0])

    def _cut(self, source: StoreSource, start: int, stop: int) -> list[LogTask]:
        span = OffsetRange(source.queues(())[0], start, stop, stop - start)
        spans = split_ranges([span], TaskLimits(DEFAULT_TASK))
        return [task for task in source.tasks([[each] for each in spans]) if isinstance(task, LogTask)]

    def __enter__(self) -> _Logs:
        return self

    def __exit__(self, *error: object) -> None:
        for source in self._sources:
            source.close()

    def report(self, found: Sequence[DifferingRange], examples: int) -> LogDiff:
        merged: list[DifferingRange] = []
        for each in sorted(found, key=lambda one: one.start):
            last = merged[-1] if merged else None
            if last is not None and last.stop == each.start and last.missing == each.missing:
                merged[-1] = DifferingRange(last.start, each.stop, last.count + each.count, last.missing)
            else:
                merged.append(each)
        return LogDiff(
            a=self._name_a,
            b=self._name_b,
            a_range=self._range_a,
            b_range=self._range_b,
            up_to_common_end=self._sides.up_to_common_end,
            compared=self.compared,
            differing=sum(each.count for each in merged),
            first=merged[0].start if merged else None,
            examples=[self._example(each) for each in merged[:examples]],
        )

    def _example(self, differing: DifferingRange) -> Example:
        a, b = next(piece for piece in self.pieces if piece[0].stop > differing.start)
        return Example(
            differing, *(None if differing.missing == s else _at(t, differing.start) for s, t in (("a", a), ("b", b)))
        )


def _at(task: LogTask, position: int) -> LogMessage | None:
    """Returns the message whose record covers a position, or None. Scans the log file from its start."""
    files = task.files
    first = max(position - position % files.log_file_size, files.log_min)
    for page in LogTask(files, first, position + 1, False).pages(_POSITION):
        if not page.batch.num_rows:
            continue
        row = page.batch.slice(page.batch.num_rows - 1).to_pylist()[0]
        if row["physical_offset"] <= position < row["physical_offset"] + row["store_size"]:
            return LogMessage(row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"])
    return None

"""What a walk does not check of valid records: topic, queue id, store time. Notes what a repair put into the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import numpy as np

from penstock.format.kernels import Bools, Rows, Topics
from penstock.format.placeholder import find_placeholders
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.format.topics import is_readable_topic
from penstock.store.audit import kinds
from penstock.store.audit.finding import Kind

Describe = Callable[[np.void], str]

EARLIEST_MS = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
MINUTE_MS = 60_000


class Run(msgspec.Struct):
    """Records next to each other with the same fault."""

    first: int
    """Physical offset of the first."""
    end: int
    count: int
    detail: str


class RecordChecks:
    """Goes over the rows of a range, batch after batch; afterwards `runs` has what was odd, by kind."""

    def __init__(self, topics: Topics, now_ms: int) -> None:
        self._topics = topics
        self._latest_ms = now_ms + DAY_MS
        self._illegal: list[int] = []
        self._topics_seen = 0
        self._previous: int | None = None
        self.runs: dict[str, list[Run]] = {}
        self.placeholders: list[tuple[int, int]] = []
        self.records = self.messages = self.bytes = 0
        self.first_time: int | None = None
        self.newest_time = 0

    @property
    def last_time(self) -> int | None:
        return self._previous

    def check(self, rows: Rows) -> None:
        """Takes the next rows of the range."""
        types = rows["sys_flag"] & TRANSACTION_MASK
        has_unit = (types != TRANSACTION_PREPARED) & (types != TRANSACTION_ROLLBACK)
        self.records += len(rows)
        self.messages += int(np.count_nonzero(has_unit))
        self.bytes += int(rows["size"].sum())
        self._check_times(rows)
        self._check_topics(rows)
        negative = has_unit & ((rows["queue_id"] < 0) | (rows["queue_offset"] < 0))
        if negative.any():
            self._add(
                kinds.RECORD_QUEUE,
                rows,
                negative,
                lambda row: f"queue id {row['queue_id']}, offset {row['queue_offset']}",
            )
        if not has_unit.all():
            self.placeholders += find_placeholders(rows, self._topics.name)

    def _check_times(self, rows: Rows) -> None:
        times = rows["store_timestamp"].copy()
        lowest, highest = int(times.min()), int(times.max())
        self.newest_time = max(self.newest_time, highest)
        if lowest < EARLIEST_MS or highest > self._latest_ms:
            wrong = (times < EARLIEST_MS) | (times > self._latest_ms)
            self._add(kinds.RECORD_TIME, rows, wrong, lambda row: f"stored at {row['store_timestamp']} ms")
        if self._previous is None:
            self.first_time = self._previous = int(times[0])
        before = np.concatenate(([self._previous], times[:-1]))
        back = times < before - MINUTE_MS
        if back.any():
            self._add(kinds.TIME_STEP_BACK, rows, back, lambda row: f"stored at {row['store_timestamp']} ms")
        self._previous = int(times[-1])

    def _check_topics(self, rows: Rows) -> None:
        if len(self._topics) > self._topics_seen:
            count = len(self._topics)
            new = range(self._topics_seen, count)
            self._illegal += [number for number in new if not is_readable_topic(self._topics.name(number))]
            self._topics_seen = count
        if self._illegal:
            illegal = np.isin(rows["topic_id"], self._illegal)
            if illegal.any():
                self._add(
                    kinds.RECORD_TOPIC, rows, illegal, lambda row: f"topic {self._topics.name(row['topic_id'])!r}"
                )

    def _add(self, kind: Kind, rows: Rows, odd: Bools, detail: Describe) -> None:
        runs = self.runs.setdefault(kind.name, [])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], odd, [False])).astype(np.int8)))
        for first, stop in edges.reshape(-1, 2).tolist():
            last = rows[stop - 1]
            begin = int(rows["physical_offset"][first])
            end = int(last["physical_offset"]) + int(last["size"])
            join_run(runs, Run(begin, end, stop - first, detail(rows[first])))


def join_run(runs: list[Run], new: Run) -> None:
    """Adds a run behind those that are there, to the last one if it goes on where that ended."""
    if runs and runs[-1].end == new.first:
        runs[-1].end, runs[-1].count = new.end, runs[-1].count + new.count
    else:
        runs.append(new)

"""Counters, sizes, latencies and rates of an open store, and the figures of disk and retention.

Counting takes a few integer additions and no lock, so a reader may see one counter slightly behind another. Rates are
averages over the last 10, 60 and 600 seconds; the derived-files flusher takes a sample about once a second. Totals
and latencies count since the store was opened, and only ever grow. Latencies come from a monotonic clock.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable

import msgspec

from penstock.format import kernels
from penstock.store.dispatch import DispatchLag
from penstock.store.message import ArrowPage, GetStatus, Page, PutResult


class DiskFigures(msgspec.Struct, frozen=True):
    """The usage of one disk partition that the store uses."""

    path: str
    used_bytes: int
    free_bytes: int
    used_ratio: float
    """Share of the partition that is used, 0 to 1, rounded up to whole percents."""
    level: str
    """ROOMY, OLD_FILES_GO, YOUNG_FILES_GO or FULL."""


class RetentionFigures(msgspec.Struct, frozen=True):
    """The state of retention at one moment."""

    disk: list[DiskFigures]
    """The log's partition, then the queues' partition if it is another one."""
    next_expiry_ms: int
    """Time in ms at which the oldest log file expires; -1 if the log has only one file."""
    log_files_deleted: int
    derived_files_deleted: int
    """Number of queue, extension and index files deleted because their log files were."""
    bytes_freed: int
    problem: str
    """Why the last cleaning pass was incomplete; empty if it was complete."""


LATENCY_BOUNDS_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
RATE_WINDOWS_S = (10, 60, 600)
"""The spans of time of the rates: RocketMQ's."""
_SAMPLES = 601
_QUICK_S = LATENCY_BOUNDS_MS[0] / 1000
_FOUND = GetStatus.FOUND


class StoreRates(msgspec.Struct, frozen=True):
    """What the store did in one second, as an average over a span of time."""

    puts: float
    gets_found: float
    gets_missed: float
    got_messages: float

    @property
    def gets(self) -> float:
        return self.gets_found + self.gets_missed


class Snapshot(msgspec.Struct, frozen=True):
    """The store's figures at one moment."""

    started_ms: int
    put_total: int
    put_failed: int
    put_bytes: int
    put_average_size: float
    put_latency_ms: dict[str, int]
    """Number of puts by the upper bound of their latency in ms; `more` is above all bounds."""
    put_seconds: float
    """The sum of the latencies of all puts in `put_latency_ms`."""
    put_slowest_ms: float
    get_total: int
    get_found: int
    get_missed: int
    get_latency_ms: dict[str, int]
    """Number of gets, like `put_latency_ms`."""
    get_seconds: float
    get_slowest_ms: float
    got_messages: int
    got_bytes: int
    put_per_second: float
    """Puts a second over the last minute."""
    get_per_second: float
    got_messages_per_second: float
    rates: list[StoreRates]
    """The rates over each of RATE_WINDOWS_S."""
    dispatch_behind_bytes: int
    dispatch_behind_ms: int
    """The age of the oldest message that external dispatch has not made visible yet."""
    dispatch_problem: str
    """Why messages do not reach their queues; empty if they do."""
    dispatch_skipped_bytes: int
    """Bytes of the log that dispatch skipped because they hold no valid record."""
    flush_behind_bytes: int
    put_lock_held_ms: float
    transient_buffers_free: int
    """Free buffers of the transient pool; INT_MAX without a pool."""
    puts_refused: str
    """Why puts are refused; empty if they are accepted."""
    retention: RetentionFigures | None
    """Disk usage and deletions; None if the store was opened read-only."""


class _Latencies:
    """A histogram of latencies with their sum. Every latency is in a class: the last one has no upper bound."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_MS) + 1)
        self.seconds = self.slowest = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.seconds += seconds * count
        self.counts[bisect_left(LATENCY_BOUNDS_MS, seconds * 1000)] += count
        if seconds > self.slowest:
            self.slowest = seconds


def _by_bound(counts: list[int]) -> dict[str, int]:
    return dict(zip([*map(str, LATENCY_BOUNDS_MS), "more"], counts, strict=True))


class Statistics:
    """The counters of one open store."""

    def __init__(
        self, started_ms: int, appender: kernels.Appender, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` returns seconds, for the rates."""
        self.started_ms = started_ms
        self._clock = clock
        self._appender = appender
        self._appender_answers = True
        """Whether a put ends with its append on the fast path, so that the appender's latencies are those of puts."""
        self._general_puts = self._general_bytes = self.put_failed = 0
        self.get_found = self.get_missed = self.got_messages = self.got_bytes = 0
        self._puts, self._slow_gets = _Latencies(), _Latencies()
        self._quick_seconds = 0.0
        """The sum of the latencies of all gets in the lowest class, which most are in: they are not counted one by
        one."""
        self._samples: deque[tuple[float, int, int, int, int]] = deque(maxlen=_SAMPLES)
        """The counters at earlier moments, and those moments in seconds of the monotonic clock."""
        self.sample()

    def count_every_put(self) -> None:
        """From now on `count_put` is called after every put, because puts wait for acks. Idempotent."""
        self._puts.counts, self._puts.seconds = self._put_latencies()
        self._appender_answers = False

    def _put_latencies(self) -> tuple[list[int], float]:
        """Returns the number of puts by latency class, and the sum of all latencies in seconds."""
        if not self._appender_answers:
            return self._puts.counts, self._puts.seconds
        counts = [sum(pair) for pair in zip(self._puts.counts, self._appender.latency_counts, strict=True)]
        return counts, self._puts.seconds + self._appender.total_ns / 1e9

    def count_put(self, result: PutResult, seconds: float, *, appended: bool = False) -> None:
        """Counts a put that took the general path. `appended`: it took the fast path, then waited for acks."""
        if not result.stored:
            self.put_failed += 1
        elif not appended:
            self._general_puts += 1
            self._general_bytes += result.size
        self._puts.add(seconds)

    def count_appended(self, count: int, seconds: float) -> None:
        """Counts puts that took the fast path, `seconds` in all, and whose acks come later."""
        self._puts.add(seconds / count, count)

    def count_rows(self, count: int, size: int, seconds: float) -> None:
        """Counts a stored Arrow batch of `count` rows and `size` bytes."""
        self._general_puts += count
        self._general_bytes += size
        self._puts.add(seconds, count)

    @property
    def put_total(self) -> int:
        """Number of messages stored, by the fast path and the general path."""
        return self._general_puts + self._appender.count

    @property
    def get_total(self) -> int:
        return self.get_found + self.get_missed

    def count_get(self, page: Page, seconds: float) -> None:
        if seconds <= _QUICK_S:
            self._quick_seconds += seconds
        else:
            self._slow_gets.add(seconds)
        if page.status is _FOUND:
            self.get_found += 1
            self.got_messages += page.count
            self.got_bytes += len(page.data)
        else:
            self.get_missed += 1

    def count_pages(self, pages: int, messages: int, size: int, seconds: float) -> None:
        """Counts gets that found messages, and took `seconds` in all."""
        if seconds <= pages * _QUICK_S:
            self._quick_seconds += seconds
        else:
            self._slow_gets.add(seconds / pages, pages)
        self.get_found += pages
        self.got_messages += messages
        self.got_bytes += size

    def count_arrow_page(self, page: ArrowPage, seconds: float) -> None:
        if seconds <= _QUICK_S:
            self._quick_seconds += seconds
        else:
            self._slow_gets.add(seconds)
        if page.status is _FOUND:
            self.get_found += 1
            self.got_messages += page.batch.num_rows
            self.got_bytes += page.record_bytes
        else:
            self.get_missed += 1

    def sample(self) -> None:
        self._samples.append(self._counters())

    def _counters(self) -> tuple[float, int, int, int, int]:
        return self._clock(), self.put_total, self.get_found, self.get_missed, self.got_messages

    def _rates(self, window_s: int) -> StoreRates:
        """Returns the rates since the newest sample that is at least `window_s` old, or since the oldest one."""
        now = self._counters()
        samples = list(self._samples)  # another thread may take a sample meanwhile
        first = bisect_right(samples, now[0] - window_s, key=lambda sample: sample[0])
        then = samples[max(first - 1, 0)]
        seconds = max(now[0] - then[0], 1e-3)
        return StoreRates(*((count - before) / seconds for count, before in zip(now[1:], then[1:], strict=True)))

    def snapshot(
        self,
        *,
        dispatch: DispatchLag,
        dispatch_skipped: int,
        flush_behind: int,
        put_lock_held: float,
        transient_buffers_free: int,
        puts_refused: str,
        retention: RetentionFigures | None,
    ) -> Snapshot:
        rates = [self._rates(window) for window in RATE_WINDOWS_S]
        minute = rates[1]
        put_bytes = self._general_bytes + self._appender.bytes_appended
        slow = self._slow_gets.counts[1:]
        put_latencies, put_seconds = self._put_latencies()
        return Snapshot(
            started_ms=self.started_ms,
            put_total=self.put_total,
            put_failed=self.put_failed,
            put_bytes=put_bytes,
            put_average_size=put_bytes / self.put_total if self.put_total else 0.0,
            put_latency_ms=_by_bound(put_latencies),
            put_seconds=put_seconds,
            put_slowest_ms=max(self._puts.slowest * 1e3, self._appender.slowest_ns / 1e6),
            get_total=self.get_total,
            get_found=self.get_found,
            get_missed=self.get_missed,
            get_latency_ms=_by_bound([self.get_total - sum(slow), *slow]),
            get_seconds=self._slow_gets.seconds + self._quick_seconds,
            get_slowest_ms=self._slow_gets.slowest * 1e3,
            got_messages=self.got_messages,
            got_bytes=self.got_bytes,
            put_per_second=minute.puts,
            get_per_second=minute.gets,
            got_messages_per_second=minute.got_messages,
            rates=rates,
            dispatch_behind_bytes=dispatch.behind_bytes,
            dispatch_behind_ms=dispatch.behind_ms,
            dispatch_problem=dispatch.problem,
            dispatch_skipped_bytes=dispatch_skipped,
            flush_behind_bytes=flush_behind,
            put_lock_held_ms=put_lock_held * 1000,
            transient_buffers_free=transient_buffers_free,
            puts_refused=puts_refused,
            retention=retention,
        )

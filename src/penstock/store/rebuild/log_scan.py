"""Scans the log, or a range of it, with every CRC: finds where it ends, and which ranges hold no valid record.

A start applies the same rules (`log_end_and_damage.py`) to fewer files. Invalid bytes are damage if a valid record or
filler follows, in the same file or in a later one. Otherwise they are the log's tail; a start truncates it.
`scan_log_range` doubts no record: a rebuild of a store that crashed ends with a start, which does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.damage_placeholder import find_placeholders
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels import Rows
from penstock.format.scan import Blank, Damage, FedRecords, RecordConsumer, ScanBatch, hidden_record, scan
from penstock.store.audit.records import DAY_MS, EARLIEST_MS
from penstock.store.files.mapped_file import MappedFile
from penstock.store.log_end_and_damage import NO_DOUBT, Doubt
from penstock.store.rebuild.report import Progress, no_progress

_ROWS = 4096  # few enough that their bytes are still in the CPU cache when they are read again


class DamagedFileRange(msgspec.Struct, frozen=True):
    """A damaged range of one log file, and the store time for the record that covers it."""

    file: int
    """Physical offset where the file begins."""
    physical_offset: int
    size: int
    reason: str
    timestamp: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class HiddenRecords(NamedTuple):
    """The bytes from the first valid record inside a filler to the end of its file; a walk never reaches them."""

    file: int
    physical_offset: int
    size: int


class SuspectBytes(NamedTuple):
    """Bytes that are not a record: damage if a valid record or filler follows, otherwise the log's tail."""

    file: int
    begin: int
    end: int
    reason: str


class LogScan(msgspec.Struct):
    """The result of a scan of the log, or of a range of it.

    A rebuild writes it to disk in its range notes; `name=` keeps the names in that JSON.
    """

    begin: int
    end: int
    """Physical offset after the last valid record or filler."""
    newest: int = 0
    """Store time of the last record with a possible time, in ms, or 0."""
    damage: list[DamagedFileRange] = msgspec.field(default_factory=list, name="found")
    hidden: list[HiddenRecords] = []
    suspects: list[SuspectBytes] = msgspec.field(default_factory=list, name="unsure")
    """Bytes after `end`: damage if a valid record or filler follows in a later range."""
    started: int = -1
    """Physical offset of the range's first record, filler or damage, after the search for its beginning; -1 if none."""
    has_valid: bool = False
    reached: int = 0
    """Physical offset up to which the range was scanned."""
    has_filler: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether there is no damage and no torn tail. Then a walk without CRC checks finds the same end."""
        return not self.damage and is_unwritten(self.suspects)


def is_unwritten(rest: Iterable[SuspectBytes]) -> bool:
    """Whether the bytes after the log's end look unwritten. Only the first bytes of each range were checked."""
    return all(each.reason == Reason.UNWRITTEN.name for each in rest)


OnRows = Callable[[memoryview, Rows], None]
"""Called with the bytes of a file and rows of its records, in log order."""
HasUnits = Callable[[int, int], bool]
"""Returns whether any queue has units that point between two positions of the log."""


def scan_log(
    files: Sequence[MappedFile],
    *,
    topics: kernels.Topics | None = None,
    on_rows: OnRows = lambda data, rows: None,
    has_units: HasUnits = lambda begin, end: False,
    cuts: Sequence[int] = (),
    doubt: Doubt = NO_DOUBT,
    now: int = 2**62,
    progress: Progress = no_progress,
) -> LogScan:
    """Scans all files once. `topics`: the table of the topic ids in the rows that `on_rows` gets.

    `has_units`: decides whether records inside a filler are messages. `cuts`: sorted positions where missing bytes
    begin; a record across such a position is not valid. `doubt`: which records may have lost a sector. `now`: in ms;
    store times more than a day later are impossible.
    """
    begin = files[0].from_offset if files else 0
    total = sum(file.size for file in files)

    def report_rows(data: memoryview, rows: Rows) -> None:
        on_rows(data, rows)
        progress("walk the log", int(rows["physical_offset"][-1]) - begin, total)

    known = kernels.TopicTable() if topics is None else topics
    walk = _Walk(LogScan(begin, begin), known, report_rows, has_units, cuts, doubt, now + DAY_MS)
    for file in files:
        walk.walk(file.map.view, file.from_offset, 0, file.size)
    walk.result.damage = merged(walk.result.damage)
    return walk.result


def scan_log_range(
    view: memoryview,
    base: int,
    start: int,
    stop: int,
    *,
    resync: bool,
    overrun: bool,
    take: RecordConsumer,
) -> LogScan:
    """Scans a range of one file; the range owns the records that begin in it.

    `take` gets the records; store times are not collected. `resync`: whether the file has an earlier range; `overrun`:
    whether it has a later one (see `format/scan.py`).
    """
    result = LogScan(base + start, base + start)
    topics, no_rows, no_units = kernels.TopicTable(), lambda data, rows: None, lambda begin, end: False
    walk = _Walk(result, topics, no_rows, no_units, (), NO_DOUBT, 2**62, take)
    walk.walk(view, base, start, stop, resync=resync, overrun=overrun)
    result.damage = merged(result.damage)
    return result


class _Walk:
    def __init__(
        self,
        result: LogScan,
        topics: kernels.Topics,
        on_rows: OnRows,
        has_units: HasUnits,
        cuts: Sequence[int],
        doubt: Doubt,
        latest: int,
        take: RecordConsumer | None = None,
    ) -> None:
        self.result = result
        self._topics = topics
        self._on_rows = on_rows
        self._has_units = has_units
        self._cuts = np.array(cuts, np.int64)
        self._doubt = doubt
        self._latest = latest
        self._take_records = take

    def walk(
        self, view: memoryview, base: int, start: int, stop: int, *, resync: bool = False, overrun: bool = False
    ) -> None:
        position: int | None = start
        while position is not None:
            position = self._walk_from(view, base, position, stop, resync, overrun)
            resync = False

    def _walk_from(self, view: memoryview, base: int, start: int, stop: int, resync: bool, overrun: bool) -> int | None:
        """Walks to the end of the range, and returns None; or stops at a torn record or a wrong filler.

        If it stops, it returns the position in the file where to continue.
        """
        items = scan(
            view,
            base,
            start,
            stop,
            check_crc=True,
            topics=self._topics,
            resync=resync,
            overrun=overrun,
            rows_per_batch=_ROWS,
        )
        is_empty = resync
        for item in items if self._take_records is None else items.feed(self._take_records):
            is_empty = False
            if self.result.started < 0:
                at = int(item.rows["physical_offset"][0]) if isinstance(item, ScanBatch) else item.position
                self.result.started = at
            if isinstance(item, Damage):
                self._suspect(base, item.position, item.position + item.size, item.reason)
            elif isinstance(item, ScanBatch):
                torn = self._first_torn(view, base, item.rows)
                self._add_rows(view, item.rows if torn < 0 else item.rows[:torn])
                if torn >= 0:
                    begin = int(item.rows["physical_offset"][torn])
                    end = begin + int(item.rows["size"][torn])
                    self._suspect(base, begin, end, Reason.UNWRITTEN)
                    return end - base
            elif isinstance(item, FedRecords):
                self._confirm_damage(0)
                self.result.end = item.position + item.size
            else:
                resume = self._records_after_filler(view, base, item)
                if resume is not None:
                    self._suspect(base, item.position, base + resume, Reason.BLANK)
                    return resume
                self._confirm_damage(0)
                self.result.end = base + len(view)
                self.result.has_filler = True
        self.result.reached = items.end
        if not is_empty and self._nothing_follows(view, base, items.end - base, stop, overrun):
            self._suspect(base, items.end, base + (len(view) if overrun else stop), Reason.UNWRITTEN)
        return None

    def _nothing_follows(self, view: memoryview, base: int, at: int, stop: int, overrun: bool) -> bool:
        """Whether the scan ended because the file has no more records, not because it reached `stop`."""
        if at < stop or not overrun:
            return at < stop
        return at < len(view) and kernels.check_record(view, at, base, True) not in (Reason.STOP, Reason.BLANK)

    def _suspect(self, file: int, begin: int, end: int, reason: Reason) -> None:
        self.result.suspects.append(SuspectBytes(file, begin, end, reason.name))

    def _first_torn(self, view: memoryview, base: int, rows: Rows) -> int:
        """Returns the number of the first row that is not a whole record, or -1."""
        torn = kernels.first_torn(view, base, rows, self._doubt.offset, self._doubt.since)
        starts, ends = rows["physical_offset"], rows["physical_offset"] + rows["size"]
        for cut in self._cuts[(self._cuts > starts[0]) & (self._cuts < ends[-1])].tolist():
            number = int(np.searchsorted(ends, cut, side="right"))
            whole = cut <= starts[number] or find_placeholders(rows[number : number + 1], self._topics.name)
            if not whole and not 0 <= torn < number:
                torn = number
        return torn

    def _add_rows(self, view: memoryview, rows: Rows) -> None:
        if not len(rows):
            return
        times = rows["store_timestamp"]
        times = times[(times >= EARLIEST_MS) & (times <= self._latest)]
        self._confirm_damage(int(times[0]) if len(times) else 0)
        last = rows[-1]
        self.result.end = int(last["physical_offset"]) + int(last["size"])
        self.result.newest = int(times[-1]) if len(times) else self.result.newest
        self._on_rows(view, rows)

    def _records_after_filler(self, view: memoryview, base: int, filler: Blank) -> int | None:
        """Returns the position of the first record inside a filler if queues have units for such records, else None.

        Such a filler is damage. Records in a filler without units are hidden: RocketMQ truncated them, so they must not
        come back.
        """
        size, hidden = len(view), hidden_record(view, base, filler)
        if hidden < 0:
            return None
        if self._has_units(base + hidden, base + size):
            return hidden
        self.result.hidden.append(HiddenRecords(base, base + hidden, size - hidden))
        return None

    def _confirm_damage(self, timestamp: int) -> None:
        """Turns suspects into damage, because a valid record or filler follows.

        `timestamp`: the store time for the covering record if no earlier record has a possible time.
        """
        self.result.has_valid = True
        for file, begin, end, reason in self.result.suspects:
            self.result.damage.append(
                DamagedFileRange(file, begin, end - begin, reason, self.result.newest or timestamp)
            )
        self.result.suspects.clear()


def merged(damage: Iterable[DamagedFileRange]) -> list[DamagedFileRange]:
    """Returns the ranges sorted. Ranges that touch or overlap within a file become one, with the first one's reason."""
    result: list[DamagedFileRange] = []
    for each in sorted(damage, key=lambda one: one.physical_offset):
        last = result[-1] if result else None
        if last is not None and each.physical_offset <= last.end and last.file == each.file:
            result[-1] = msgspec.structs.replace(last, size=max(each.end, last.end) - last.physical_offset)
        else:
            result.append(each)
    return result

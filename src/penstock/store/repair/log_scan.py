"""Scans the whole log and checks every CRC: finds where the log ends, and which ranges in it hold no valid record.

A start applies the same rules (`log_walk.py`) to fewer files. Invalid bytes are damage if a valid record or filler
follows, in the same file or in a later one. Otherwise they are the log's tail; a start truncates it.

Two faults pass every check of a single record. The scan finds them by comparing records with each other:

- An impossible store time: before 2010, or more than a day in the future. If a single record has one between records
  with possible times, a bit was flipped: the record stays and gets the time of the record before it. If several records
  in a row have one, the clock was wrong, and nothing is changed.
- A damaged header. Headers have no checksum, so a flipped bit in a topic, a queue id, a queue offset or a transaction
  type makes the record belong to another queue or offset. The record counts as damaged if all three hold: a unit of
  some queue points exactly to it, no record in the log has the queue offset of that unit, and the record does not fit
  the queue that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.damage_placeholder import find_placeholders
from penstock.format.kernels import Rows
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.record_layout import LONG, store_timestamp_at
from penstock.format.scan import Blank, Damage, FedRecords, RecordConsumer, ScanBatch, hidden_record, row_at, scan
from penstock.format.scan_rows import Reason
from penstock.format.sys_flag import enters_queue
from penstock.format.topics import is_readable_topic
from penstock.store.audit.queue_coverage import QueueCover, union, without
from penstock.store.audit.records import DAY_MS, EARLIEST_MS
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage import DamagedRange
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.repair.compare import OldQueues, QueueName, units_between
from penstock.store.repair.report import Progress, no_progress


class WrongTime(NamedTuple):
    """A record with an impossible store time, and the time that replaces it."""

    physical_offset: int
    size: int
    time_at: int
    """Position of the store time in the record, in bytes."""
    stored: int
    corrected: int


class WrongTimes:
    """Collects impossible store times during a scan. `isolated` returns those that can be corrected."""

    def __init__(self, now: int) -> None:
        self._latest = now + DAY_MS
        self._run: list[WrongTime] = []
        self._before = 0
        self._isolated: list[WrongTime] = []

    def on_rows(self, data: memoryview, rows: Rows) -> None:
        times = rows["store_timestamp"]
        wrong = (times < EARLIEST_MS) | (times > self._latest)
        if not self._run and not wrong.any():
            self._before = int(times[-1])
            return
        for row, is_wrong in zip(rows, wrong.tolist(), strict=True):
            time = int(row["store_timestamp"])
            if is_wrong:
                at = store_timestamp_at(int(row["sys_flag"]))
                self._run.append(WrongTime(int(row["physical_offset"]), int(row["size"]), at, time, self._before))
                continue
            self._end_run(time)
            self._before = time

    def isolated(self) -> list[WrongTime]:
        """Returns the wrong times of single records. Callers must finish the scan first."""
        self._end_run(0)
        return self._isolated

    def _end_run(self, after: int) -> None:
        if len(self._run) == 1 and (self._before or after):
            (alone,) = self._run
            self._isolated.append(alone._replace(corrected=alone.corrected or after))
        self._run.clear()


def set_time(file: MappedFile, wrong: WrongTime) -> None:
    """Writes the corrected time into the record."""
    LONG.pack_into(file.map.view, wrong.physical_offset - file.from_offset + wrong.time_at, wrong.corrected)


# -- the scan -----------------------------------------------------------------------------------------------------

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
    now: int = 2**62,
    progress: Progress = no_progress,
) -> LogScan:
    """Scans all files once. `topics`: the table of the topic ids in the rows that `on_rows` gets.

    `has_units`: decides whether records inside a filler are messages. `cuts`: sorted positions where missing bytes
    begin; a record across such a position is not valid. `now`: in ms; store times more than a day later are
    impossible.
    """
    begin = files[0].from_offset if files else 0
    total = sum(file.size for file in files)

    def report_rows(data: memoryview, rows: Rows) -> None:
        on_rows(data, rows)
        progress("walk the log", int(rows["physical_offset"][-1]) - begin, total)

    known = kernels.TopicTable() if topics is None else topics
    walk = _Walk(LogScan(begin, begin), known, report_rows, has_units, cuts, now + DAY_MS)
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
    walk = _Walk(result, kernels.TopicTable(), lambda data, rows: None, lambda begin, end: False, (), 2**62, take)
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
        latest: int,
        take: RecordConsumer | None = None,
    ) -> None:
        self.result = result
        self._topics = topics
        self._on_rows = on_rows
        self._has_units = has_units
        self._cuts = np.array(cuts, np.int64)
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
                end = item.position + item.size
                if item.size:
                    self._confirm_damage(0)
                    self.result.end = end
                if item.torn:
                    self._suspect(base, end, end + item.torn, Reason.UNWRITTEN)
                    return end + item.torn - base
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
        torn = kernels.first_torn(view, base, rows)
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


def with_reasons(damage: list[DamagedFileRange], known: list[DamagedRange]) -> list[DamagedFileRange]:
    """Returns the same ranges, with the reasons of the `known` ranges that contain them, if any."""
    named: list[DamagedFileRange] = []
    for each in damage:
        reason = next((k.reason for k in known if k.physical_offset <= each.physical_offset < k.end), each.reason)
        named.append(msgspec.structs.replace(each, reason=reason))
    return named


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


# -- damaged headers ----------------------------------------------------------------------------------------------

BAD_HEADER = "BAD_HEADER"
_UNITS_AT_ONCE = 1 << 16


class QueueSequences:
    """Collects, during a scan, the queue offsets in the log, by queue, as runs."""

    def __init__(self) -> None:
        self.topics: kernels.Topics = kernels.TopicTable()
        self.queues: dict[QueueName, QueueCover] = {}

    def on_rows(self, data: memoryview, rows: kernels.Rows) -> None:
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            cover = self.queues.setdefault((self.topics.name(topic_id), queue_id), QueueCover())
            offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
            ends = positions + rows["size"][picks]
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(picks)], strict=True):
                first = int(offsets[start])
                cover.add(first, stop - start, int(positions[start]), int(ends[stop - 1]), matched=True)

    def missing(self, name: QueueName, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns the queue offsets in [begin, end) that no record of the queue has, as ranges."""
        return without(begin, end, union(self.queues.get(name, QueueCover()).records))

    def fits(self, name: QueueName, queue_offset: int) -> bool:
        """Whether exactly one record of the queue has this queue offset, within a run of at least two records."""
        if name[1] < 0 or not is_readable_topic(name[0]) or name not in self.queues:
            return False
        around = [each for each in self.queues[name].records if each.first <= queue_offset < each.end]
        return len(around) == 1 and around[0].end - around[0].first > 1


def find_restarts(sequences: QueueSequences, queues: OldQueues) -> dict[QueueName, int]:
    """Returns the queues that restart at offset 0 within the log, each with the physical offset of the restart.

    A queue restarts if its topic was deleted and created again. The record that the queue's first unit points to is the
    restart. If the queue does not exist, the last record with queue offset 0 is the restart if a record with queue
    offset 1 follows it, and queue offsets do not go back after it.
    """
    restarts: dict[QueueName, int] = {}
    for name, cover in sequences.queues.items():
        zeros = [later for _, later in pairwise(cover.records) if later.first == 0]
        if not zeros:
            continue
        with queues.open(*name) as queue:
            first = None if queue is None else queue.unit(0)[0]
        confirmed = [each.physical_first for each in zeros if each.physical_first == first]
        newest = cover.records[cover.records.index(zeros[-1]) :]
        in_order = all(before.end <= after.first for before, after in pairwise(newest))
        if confirmed:
            restarts[name] = confirmed[-1]
        elif first is None and zeros[-1].end > 1 and in_order:
            restarts[name] = zeros[-1].physical_first
    return restarts


def find_misplaced(
    sequences: QueueSequences, queues: Iterable[ConsumeQueue], log: MappedFileQueue, log_begin: int
) -> list[DamagedFileRange]:
    """Returns the ranges of records with damaged headers, in log order."""
    misplaced: dict[int, DamagedFileRange] = {}
    for queue in queues:
        name = (queue.topic, queue.queue_id)
        for begin, end in sequences.missing(name, max(queue.files.min_offset, 0) // UNIT_SIZE, queue.max_offset):
            for start in range(begin, end, _UNITS_AT_ONCE):
                units = units_between(queue, start, min(start + _UNITS_AT_ONCE, end))
                real = units[(units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)]
                for offset, size, _ in real.tolist():
                    record = _misplaced_at(sequences, log, offset, size)
                    if record is not None:
                        misplaced[offset] = record
    return [misplaced[offset] for offset in sorted(misplaced)]


def _misplaced_at(sequences: QueueSequences, log: MappedFileQueue, offset: int, size: int) -> DamagedFileRange | None:
    file = log.find(offset)
    if file is None:
        return None
    at = offset - file.from_offset
    rows = row_at(file.map.view, file.from_offset, at, check_crc=True, topics=sequences.topics)
    if not len(rows) or int(rows["size"][0]) != size or find_placeholders(rows, sequences.topics.name):
        return None
    row = rows[0]
    name = (sequences.topics.name(int(row["topic_id"])), int(row["queue_id"]))
    if enters_queue(int(row["sys_flag"])) and sequences.fits(name, int(row["queue_offset"])):
        return None
    return DamagedFileRange(file.from_offset, offset, size, BAD_HEADER, int(row["store_timestamp"]))

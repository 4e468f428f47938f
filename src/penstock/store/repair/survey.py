"""Store times that cannot be: of a single record among others whose times are right, a flipped bit.

The message is whole, only nobody finds it by time; so the record stays, and gets the time of the record before it.
Where several records in a row have such times the clock was wrong, and nothing is changed.


Walks the whole log, every CRC checked: where it ends, and which ranges in it hold no valid record.

A start judges the same way (`log_walk.py`), and looks at less. What is not valid is damage if something valid
follows, in the same file or in a later one; else it is the log's tail, which the start cuts off by itself.


Records that pass every check and still cannot be what was put: their headers have no checksum.

A flipped bit in a topic, a queue id, a queue offset or a transaction type makes a record of another place. It is told
by three things together: a unit of some queue points exactly to it, that queue's place is empty in the log, and in the
queue that the record names it fits nowhere. Nobody is served such a record, by Penstock at least; it counts as damaged.
A record of which only some of this is true is left alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.kernels import Rows
from penstock.format.placeholder import find_placeholders
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE
from penstock.format.rows import Reason
from penstock.format.scan import Blank, Damage, FedRecords, RecordConsumer, ScanBatch, scan
from penstock.format.sys_flag import enters_queue, host_sizes
from penstock.format.topics import is_readable_topic
from penstock.store.audit.cover import QueueCover, union, without
from penstock.store.audit.records import DAY_MS, EARLIEST_MS
from penstock.store.consume_queue import ConsumeQueue
from penstock.store.damage import DamagedRange
from penstock.store.mapped_file import MappedFile
from penstock.store.mapped_file_queue import MappedFileQueue
from penstock.store.repair.compare import OldQueues, QueueName, units_between
from penstock.store.repair.report import Progress, silent

_LONG = struct.Struct(">q")
_BORN_HOST_AT = 48


class OddTime(NamedTuple):
    """A record whose store time cannot be, and the time that it gets."""

    physical_offset: int
    size: int
    time_at: int
    """Where in the record its time is."""
    said: int
    right: int


class OddTimes:
    """Fed by the walk, in log order; afterwards `found` has those that stand alone."""

    def __init__(self, now: int) -> None:
        self._latest = now + DAY_MS
        self._run: list[OddTime] = []
        self._before = 0
        self._found: list[OddTime] = []

    def watch(self, data: memoryview, rows: Rows) -> None:
        times = rows["store_timestamp"]
        odd = (times < EARLIEST_MS) | (times > self._latest)
        if not self._run and not odd.any():
            self._before = int(times[-1])
            return
        for row, is_odd in zip(rows, odd.tolist(), strict=True):
            time = int(row["store_timestamp"])
            if is_odd:
                at = _BORN_HOST_AT + host_sizes(int(row["sys_flag"]))[0]
                self._run.append(OddTime(int(row["physical_offset"]), int(row["size"]), at, time, self._before))
                continue
            self._end_run(time)
            self._before = time

    def found(self) -> list[OddTime]:
        """After the walk."""
        self._end_run(0)
        return self._found

    def _end_run(self, after: int) -> None:
        if len(self._run) == 1 and (self._before or after):
            (alone,) = self._run
            self._found.append(alone._replace(right=alone.right or after))
        self._run.clear()


def set_time(file: MappedFile, odd: OddTime) -> None:
    """Stores the right time in the record's place."""
    _LONG.pack_into(file.map.view, odd.physical_offset - file.from_offset + odd.time_at, odd.right)


_ROWS = 4096  # so few that their bytes are still in the cache when they are looked at again


class DamagedPlace(msgspec.Struct, frozen=True):
    """A damaged range of one file, and the store time that fits its place."""

    file: int
    """Where the file begins."""
    physical_offset: int
    size: int
    reason: str
    timestamp: int

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Hidden(NamedTuple):
    """What lies in a filler, from its first valid record on to the end of the file: nobody who walks comes there."""

    file: int
    physical_offset: int
    size: int


class Unsure(NamedTuple):
    """Bytes that are no record: damage if something valid follows, the log's tail if nothing does."""

    file: int
    begin: int
    end: int
    reason: str


class Survey(msgspec.Struct):
    """What a walk over the log found."""

    begin: int
    end: int
    """Behind the last valid record."""
    newest: int = 0
    """Store time of the last one whose time can be, 0 if there is none."""
    found: list[DamagedPlace] = []
    hidden: list[Hidden] = []
    unsure: list[Unsure] = []
    """What lies behind that: damage only if something valid follows after all."""
    started: int = -1
    """Where the first thing that was not skipped begins, whether it is valid or not; -1 if there is none."""
    has_valid: bool = False
    reached: int = 0
    """Up to where everything was accounted for."""
    has_filler: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether a walk that does not look at bodies finds the same: nothing is damaged, and the end is not torn."""
        return not self.found and is_unwritten(self.unsure)


def is_unwritten(rest: Iterable[Unsure]) -> bool:
    """Whether what lies behind a log's end was never written, as far as its first bytes tell."""
    return all(each.reason == Reason.UNWRITTEN.name for each in rest)


Watch = Callable[[memoryview, Rows], None]
"""Gets each file's bytes and the rows of its records, in log order."""
IsServed = Callable[[int, int], bool]
"""Whether a queue has units that point between two positions of the log."""


def survey(
    files: Sequence[MappedFile],
    *,
    topics: kernels.Topics | None = None,
    watch: Watch = lambda data, rows: None,
    is_served: IsServed = lambda begin, end: False,
    cuts: Sequence[int] = (),
    now: int = 2**62,
    progress: Progress = silent,
) -> Survey:
    """One pass over all files. `topics` numbers the topics of the rows that `watch` gets.

    No record lies across one of the `cuts`, in order: that is where bytes are known to be missing.
    """
    begin = files[0].from_offset if files else 0
    total = sum(file.size for file in files)

    def seen(data: memoryview, rows: Rows) -> None:
        watch(data, rows)
        progress("walk the log", int(rows["physical_offset"][-1]) - begin, total)

    known = kernels.TopicTable() if topics is None else topics
    walk = _Walk(Survey(begin, begin), known, seen, is_served, cuts, now + DAY_MS)
    for file in files:
        walk.walk(file.map.view, file.from_offset, 0, file.size)
    walk.result.found = joined(walk.result.found)
    return walk.result


def survey_range(
    view: memoryview,
    base: int,
    start: int,
    stop: int,
    *,
    resync: bool,
    overrun: bool,
    take: RecordConsumer,
) -> Survey:
    """What of a walk over all files falls into a range of one, which owns the records that begin in it.

    Records go to `take`, and no times are told, for which nobody who joins ranges has a use. `resync` and `overrun` as
    in `format/scan.py`: whether a range lies before this one in the file, and behind it.
    """
    result = Survey(base + start, base + start)
    walk = _Walk(result, kernels.TopicTable(), lambda data, rows: None, lambda begin, end: False, (), 2**62, take)
    walk.walk(view, base, start, stop, resync=resync, overrun=overrun)
    result.found = joined(result.found)
    return result


class _Walk:
    def __init__(
        self,
        result: Survey,
        topics: kernels.Topics,
        watch: Watch,
        is_served: IsServed,
        cuts: Sequence[int],
        latest: int,
        take: RecordConsumer | None = None,
    ) -> None:
        self.result = result
        self._topics = topics
        self._watch = watch
        self._is_served = is_served
        self._cuts = np.array(cuts, np.int64)
        self._latest = latest
        self._take_records = take

    def walk(
        self, view: memoryview, base: int, start: int, stop: int, *, resync: bool = False, overrun: bool = False
    ) -> None:
        going_on: int | None = start
        while going_on is not None:
            going_on = self._walk_from(view, base, going_on, stop, resync, overrun)
            resync = False

    def _walk_from(self, view: memoryview, base: int, start: int, stop: int, resync: bool, overrun: bool) -> int | None:
        """Walks to the end of the range; where a record or a filler turns out to be none, returns where to go on."""
        found = scan(
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
        for item in found if self._take_records is None else found.feed(self._take_records):
            is_empty = False
            if self.result.started < 0:
                at = int(item.rows["physical_offset"][0]) if isinstance(item, ScanBatch) else item.position
                self.result.started = at
            if isinstance(item, Damage):
                self._doubt(base, item.position, item.position + item.size, item.reason)
            elif isinstance(item, ScanBatch):
                torn = self._first_torn(view, base, item.rows)
                self._take(view, item.rows if torn < 0 else item.rows[:torn])
                if torn >= 0:
                    begin = int(item.rows["physical_offset"][torn])
                    end = begin + int(item.rows["size"][torn])
                    self._doubt(base, begin, end, Reason.UNWRITTEN)
                    return end - base
            elif isinstance(item, FedRecords):
                end = item.position + item.size
                if item.size:
                    self._settle(0)
                    self.result.end = end
                if item.torn:
                    self._doubt(base, end, end + item.torn, Reason.UNWRITTEN)
                    return end + item.torn - base
            else:
                behind = self._behind_filler(view, base, item)
                if behind is not None:
                    self._doubt(base, item.position, base + behind, Reason.BLANK)
                    return behind
                self._settle(0)
                self.result.end = base + len(view)
                self.result.has_filler = True
        self.result.reached = found.end
        if not is_empty and self._nothing_follows(view, base, found.end - base, stop, overrun):
            self._doubt(base, found.end, base + (len(view) if overrun else stop), Reason.UNWRITTEN)
        return None

    def _nothing_follows(self, view: memoryview, base: int, at: int, stop: int, overrun: bool) -> bool:
        """Whether a scan ended because no record is left in the file, and not because it came to its stop."""
        if at < stop or not overrun:
            return at < stop
        return at < len(view) and kernels.check_record(view, at, base, True) not in (Reason.STOP, Reason.BLANK)

    def _doubt(self, file: int, begin: int, end: int, reason: Reason) -> None:
        self.result.unsure.append(Unsure(file, begin, end, reason.name))

    def _first_torn(self, view: memoryview, base: int, rows: Rows) -> int:
        """The number of the first record that passes for one and is none, -1 if there is none."""
        torn = kernels.first_torn(view, base, rows)
        starts, ends = rows["physical_offset"], rows["physical_offset"] + rows["size"]
        for cut in self._cuts[(self._cuts > starts[0]) & (self._cuts < ends[-1])].tolist():
            number = int(np.searchsorted(ends, cut, side="right"))
            whole = cut <= starts[number] or find_placeholders(rows[number : number + 1], self._topics.name)
            if not whole and not 0 <= torn < number:
                torn = number
        return torn

    def _take(self, view: memoryview, rows: Rows) -> None:
        if not len(rows):
            return
        times = rows["store_timestamp"]
        times = times[(times >= EARLIEST_MS) & (times <= self._latest)]
        self._settle(int(times[0]) if len(times) else 0)
        last = rows[-1]
        self.result.end = int(last["physical_offset"]) + int(last["size"])
        self.result.newest = int(times[-1]) if len(times) else self.result.newest
        self._watch(view, rows)

    def _behind_filler(self, view: memoryview, base: int, filler: Blank) -> int | None:
        """Where the log goes on in a filler that was written over records which a queue still serves; else None.

        RocketMQ leaves records in its fillers that it once cut off: nobody should find those again.
        """
        at, size = filler.position - base + BLANK_HEADER_SIZE, len(view)
        hidden = kernels.find_record(view, base, at, size, True)
        if hidden < 0:
            return None
        if self._is_served(base + hidden, base + size):
            return hidden
        self.result.hidden.append(Hidden(base, base + hidden, size - hidden))
        return None

    def _settle(self, timestamp: int) -> None:
        """Something valid follows: what was not sure is damage."""
        self.result.has_valid = True
        for file, begin, end, reason in self.result.unsure:
            self.result.found.append(DamagedPlace(file, begin, end - begin, reason, self.result.newest or timestamp))
        self.result.unsure.clear()


def with_reasons(found: list[DamagedPlace], known: list[DamagedRange]) -> list[DamagedPlace]:
    """The same ranges, with the reason that was noted for them before, where there is one."""
    named: list[DamagedPlace] = []
    for each in found:
        reason = next((k.reason for k in known if k.physical_offset <= each.physical_offset < k.end), each.reason)
        named.append(msgspec.structs.replace(each, reason=reason))
    return named


def joined(found: Iterable[DamagedPlace]) -> list[DamagedPlace]:
    """The same bytes in order, each once: what touches or overlaps within a file is one, with the first's reason."""
    result: list[DamagedPlace] = []
    for each in sorted(found, key=lambda one: one.physical_offset):
        last = result[-1] if result else None
        if last is not None and each.physical_offset <= last.end and last.file == each.file:
            result[-1] = msgspec.structs.replace(last, size=max(each.end, last.end) - last.physical_offset)
        else:
            result.append(each)
    return result


BAD_HEADER = "BAD_HEADER"
_UNITS_AT_ONCE = 1 << 16


class Sequences:
    """The queue offsets of a log, by queue, as stretches that follow each other. Fed by the walk."""

    def __init__(self) -> None:
        self.topics: kernels.Topics = kernels.TopicTable()
        self.queues: dict[QueueName, QueueCover] = {}

    def watch(self, data: memoryview, rows: kernels.Rows) -> None:
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            cover = self.queues.setdefault((self.topics.name(topic_id), queue_id), QueueCover())
            offsets, positions = rows["queue_offset"][picks], rows["physical_offset"][picks]
            ends = positions + rows["size"][picks]
            breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
            for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(picks)], strict=True):
                first = int(offsets[start])
                cover.add(first, stop - start, int(positions[start]), int(ends[stop - 1]), matched=True)

    def missing(self, name: QueueName, begin: int, end: int) -> list[tuple[int, int]]:
        """What of the queue offsets from `begin` to `end` no record of the log has."""
        return without(begin, end, union(self.queues.get(name, QueueCover()).records))

    def fits(self, name: QueueName, queue_offset: int) -> bool:
        """Whether one record has this place, and a neighbour of it in the log has the place before or behind it."""
        if name[1] < 0 or not is_readable_topic(name[0]) or name not in self.queues:
            return False
        around = [each for each in self.queues[name].records if each.first <= queue_offset < each.end]
        return len(around) == 1 and around[0].end - around[0].first > 1


def restarts(sequences: Sequences, queues: OldQueues) -> dict[QueueName, int]:
    """Queues that begin anew at 0 within the log, and where: their topic was deleted, and made again.

    The queue's own first unit tells, if there is one. Where there is no queue, a record with offset 0 must be followed
    by one with offset 1, and no older offset may come after it.
    """
    found: dict[QueueName, int] = {}
    for name, cover in sequences.queues.items():
        anew = [later for _, later in pairwise(cover.records) if later.first == 0]
        if not anew:
            continue
        with queues.open(*name) as queue:
            first = None if queue is None else queue.unit(0)[0]
        told = [each.physical_first for each in anew if each.physical_first == first]
        behind = cover.records[cover.records.index(anew[-1]) :]
        in_order = all(before.end <= after.first for before, after in pairwise(behind))
        if told:
            found[name] = told[-1]
        elif first is None and anew[-1].end > 1 and in_order:
            found[name] = anew[-1].physical_first
    return found


def misplaced(
    sequences: Sequences, queues: Iterable[ConsumeQueue], log: MappedFileQueue, log_begin: int
) -> list[DamagedPlace]:
    """The records whose headers are damaged, in log order, as ranges."""
    found: dict[int, DamagedPlace] = {}
    for queue in queues:
        name = (queue.topic, queue.queue_id)
        for begin, end in sequences.missing(name, max(queue.files.min_offset, 0) // UNIT_SIZE, queue.max_offset):
            for start in range(begin, end, _UNITS_AT_ONCE):
                units = units_between(queue, start, min(start + _UNITS_AT_ONCE, end))
                real = units[(units["size"] != NO_RECORD_SIZE) & (units["offset"] >= log_begin)]
                for offset, size, _ in real.tolist():
                    record = _misplaced_at(sequences, log, offset, size)
                    if record is not None:
                        found[offset] = record
    return [found[offset] for offset in sorted(found)]


def _misplaced_at(sequences: Sequences, log: MappedFileQueue, offset: int, size: int) -> DamagedPlace | None:
    file = log.find(offset)
    if file is None:
        return None
    at = offset - file.from_offset
    rows, _, _ = kernels.walk(file.map.view, file.from_offset, at, at + 1, True, sequences.topics, 1)
    if not len(rows) or int(rows["size"][0]) != size or find_placeholders(rows, sequences.topics.name):
        return None
    row = rows[0]
    name = (sequences.topics.name(int(row["topic_id"])), int(row["queue_id"]))
    if enters_queue(int(row["sys_flag"])) and sequences.fits(name, int(row["queue_offset"])):
        return None
    return DamagedPlace(file.from_offset, offset, size, BAD_HEADER, int(row["store_timestamp"]))

"""Walks the whole log, every CRC checked: where it ends, and which ranges in it hold no valid record.

A start judges the same way (`log_walk.py`), and looks at less. What is not valid is damage if something valid
follows, in the same file or in a later one; else it is the log's tail, which the start cuts off by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.constants import BLANK_HEADER_SIZE
from penstock.format.kernels import Rows
from penstock.format.placeholder import find_placeholders
from penstock.format.rows import Reason
from penstock.format.scan import Batch, Blank, Damage, Take, Taken, scan
from penstock.store.audit.record_checks import DAY_MS, EARLIEST_MS
from penstock.store.damage import DamagedRange
from penstock.store.mapped_file import MappedFile
from penstock.store.repair.report import Progress, silent

_ROWS = 4096  # so few that their bytes are still in the cache when they are looked at again


class Found(msgspec.Struct, frozen=True):
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
    found: list[Found] = []
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
    take: Take,
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
        take: Take | None = None,
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
        for item in found if self._take_records is None else found.giving(self._take_records):
            is_empty = False
            if self.result.started < 0:
                at = int(item.rows["physical_offset"][0]) if isinstance(item, Batch) else item.position
                self.result.started = at
            if isinstance(item, Damage):
                self._doubt(base, item.position, item.position + item.size, item.reason)
            elif isinstance(item, Batch):
                torn = self._first_torn(view, base, item.rows)
                self._take(view, item.rows if torn < 0 else item.rows[:torn])
                if torn >= 0:
                    begin = int(item.rows["physical_offset"][torn])
                    end = begin + int(item.rows["size"][torn])
                    self._doubt(base, begin, end, Reason.UNWRITTEN)
                    return end - base
            elif isinstance(item, Taken):
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
            self.result.found.append(Found(file, begin, end - begin, reason, self.result.newest or timestamp))
        self.result.unsure.clear()


def with_reasons(found: list[Found], known: list[DamagedRange]) -> list[Found]:
    """The same ranges, with the reason that was noted for them before, where there is one."""
    named: list[Found] = []
    for each in found:
        reason = next((k.reason for k in known if k.physical_offset <= each.physical_offset < k.end), each.reason)
        named.append(msgspec.structs.replace(each, reason=reason))
    return named


def joined(found: Iterable[Found]) -> list[Found]:
    """The same bytes in order, each once: what touches or overlaps within a file is one, with the first's reason."""
    result: list[Found] = []
    for each in sorted(found, key=lambda one: one.physical_offset):
        last = result[-1] if result else None
        if last is not None and each.physical_offset <= last.end and last.file == each.file:
            result[-1] = msgspec.structs.replace(last, size=max(each.end, last.end) - last.physical_offset)
        else:
            result.append(each)
    return result

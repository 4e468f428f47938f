"""Audits one queue against the log. The whole log must have been walked first.

Units that matched a record during the walk are not checked again, so a sound queue costs next to nothing. Each other
unit gets a verdict, and neighbours with the same verdict become a run. Most of these units are harmless: they point
below the log's minimum, or keep the place of a lost message. Only the records of the remaining units are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT_SIZE, Units, is_ext_address
from penstock.store.audit import finding_kinds
from penstock.store.audit.files import AuditLogReader
from penstock.store.audit.findings import Finding, FindingKind
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import FOREVER, NO_FILES, AuditPlan
from penstock.store.audit.queue_coverage import CoveredRun, Longs, QueueCover, QueueName, RangeTable, union, without
from penstock.store.files.file_io import Files
from penstock.store.files.layout import path_below
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.readonly.view import MapCache


class UnitVerdict(IntEnum):
    FINE = 0
    ZERO = 1
    BLANK = 2  # pre-blank: keeps a place, points to no record
    GARBAGE = 3
    BELOW = 4
    PAST_LOG = 5
    LOST = 6  # points into damage
    REPAIRED = 7
    NO_RECORD = 8
    OTHER_TOPIC = 9
    OTHER_QUEUE = 10
    OTHER_OFFSET = 11
    WITHOUT_UNIT = 12  # points to a prepared or rolled-back record
    SIZE = 13
    TAGS = 14


class UnitRun(msgspec.Struct):
    """Consecutive units with the same verdict."""

    verdict: UnitVerdict
    has_record: bool
    """Whether the log has records with these queue offsets."""
    first: int
    end: int
    detail: str = ""

    @property
    def count(self) -> int:
        return self.end - self.first


class UnitJudge:
    def __init__(
        self, name: QueueName, log: LogState, reader: AuditLogReader, dispatched_to: int, missed: list[tuple[int, int]]
    ) -> None:
        self._name = name
        self._log = log
        self._reader = reader
        self._dispatched_to = dispatched_to
        self._missed = RangeTable(missed)
        self.runs: list[UnitRun] = []
        self.lost: dict[int, int] = {}
        """How many units point into each damaged range of the log, by the range's number."""
        self.repaired: dict[int, int] = {}

    def judge(self, first: int, units: Units) -> None:
        """Gives a verdict to units that no record matched. `first`: the number of the first unit."""
        offsets, sizes, codes = (units[name].astype(np.int64) for name in ("offset", "size", "tags_code"))
        numbers = np.arange(first, first + len(units), dtype=np.int64)
        expected = self._missed.find(numbers) >= 0
        verdicts = self._bulk_verdicts(offsets, sizes, codes)
        details: dict[int, str] = {}
        for at in np.flatnonzero(verdicts < 0).tolist():
            unit = (int(offsets[at]), int(sizes[at]), int(codes[at]))
            verdicts[at], details[at] = self._look_up(first + at, *unit)
        self._count(self.lost, self._log.damaged, offsets[(verdicts == UnitVerdict.LOST) & ~expected])
        self._count(self.repaired, self._log.repaired, offsets[(verdicts == UnitVerdict.REPAIRED) & ~expected])
        combined = verdicts * 2 + expected
        edges = np.concatenate(([0], np.flatnonzero(np.diff(combined)) + 1, [len(combined)]))
        for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            run = UnitRun(UnitVerdict(int(verdicts[begin])), bool(expected[begin]), first + begin, first + stop)
            run.detail = details.get(begin, f"points to {offsets[begin]} with size {sizes[begin]}")
            self._add(run)

    def _bulk_verdicts(self, offsets: Longs, sizes: Longs, codes: Longs) -> Longs:
        """Returns the verdicts that do not need the record; -1 for units whose record must be read."""
        log = self._log
        ends = offsets + np.clip(sizes, 0, None)
        placeholder_sizes = np.zeros(len(offsets), np.int64)
        in_repair = log.repaired.find(offsets) >= 0
        for at in np.flatnonzero(in_repair).tolist():
            placeholder_sizes[at] = log.placeholders.get(int(offsets[at]), 0)
        conditions = [
            (offsets == 0) & (sizes == 0) & (codes == 0),
            (offsets == 0) & (sizes == NO_RECORD_SIZE),
            (offsets < 0) | (sizes <= 0),
            in_repair & (placeholder_sizes == sizes) & (codes == 0),
            log.damaged.find(offsets) >= 0,
            offsets < log.begin,
            (ends > log.end) | (ends < offsets),
        ]
        known = [
            UnitVerdict.ZERO,
            UnitVerdict.BLANK,
            UnitVerdict.GARBAGE,
            UnitVerdict.REPAIRED,
            UnitVerdict.LOST,
            UnitVerdict.BELOW,
            UnitVerdict.PAST_LOG,
        ]
        verdicts = np.select(conditions, [int(each) for each in known], -1)
        return np.asarray(
            np.where((offsets >= self._dispatched_to) & (verdicts != UnitVerdict.ZERO), UnitVerdict.FINE, verdicts)
        )

    def _look_up(self, number: int, offset: int, size: int, code: int) -> tuple[UnitVerdict, str]:
        record = self._reader.record_at(offset)
        if record is None or offset in self._log.placeholders:
            return UnitVerdict.NO_RECORD, f"points to {offset}, where no message begins"
        if not record.has_unit:
            return UnitVerdict.WITHOUT_UNIT, f"points to a prepared or rolled-back record, at {offset}"
        if record.topic != self._name[0]:
            return UnitVerdict.OTHER_TOPIC, f"points to a record of topic {record.topic}, at {offset}"
        if record.queue_id != self._name[1]:
            return UnitVerdict.OTHER_QUEUE, f"points to a record of queue {record.queue_id}, at {offset}"
        if record.queue_offset != number:
            return UnitVerdict.OTHER_OFFSET, f"points to the record of unit {record.queue_offset}, at {offset}"
        if record.size != size:
            return UnitVerdict.SIZE, f"has size {size}, but its record at {offset} has {record.size} bytes"
        if record.tags_code != code and not is_ext_address(code):
            return UnitVerdict.TAGS, f"has tags code {code}, but its record at {offset} has {record.tags_code}"
        return UnitVerdict.FINE, ""

    def _count(self, into: dict[int, int], ranges: RangeTable, offsets: Longs) -> None:
        for number, count in zip(*np.unique(ranges.find(offsets), return_counts=True), strict=True):
            into[int(number)] = into.get(int(number), 0) + int(count)

    def _add(self, run: UnitRun) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.verdict, last.has_record, last.end) == (run.verdict, run.has_record, run.first):
            last.end = run.end
        else:
            self.runs.append(run)


# -- the queue ----------------------------------------------------------------------------------------------------

_UNITS_AT_ONCE = 1 << 16
_QUEUE_FILES_OPEN = 64
_ALWAYS = {
    UnitVerdict.ZERO: finding_kinds.UNIT_GAP,
    UnitVerdict.GARBAGE: finding_kinds.UNIT_GARBAGE,
    UnitVerdict.PAST_LOG: finding_kinds.UNIT_PAST_LOG,
    UnitVerdict.NO_RECORD: finding_kinds.UNIT_OFFSET,
    UnitVerdict.OTHER_TOPIC: finding_kinds.UNIT_TOPIC,
    UnitVerdict.OTHER_QUEUE: finding_kinds.UNIT_QUEUE,
    UnitVerdict.OTHER_OFFSET: finding_kinds.UNIT_REPEATED,
    UnitVerdict.WITHOUT_UNIT: finding_kinds.UNIT_TRANSACTION,
    UnitVerdict.SIZE: finding_kinds.UNIT_SIZE,
    UnitVerdict.TAGS: finding_kinds.UNIT_TAGS,
}
"""Verdicts that are always a finding, with its kind."""
_IF_EXPECTED = {
    UnitVerdict.LOST: finding_kinds.UNIT_OFFSET,
    UnitVerdict.BELOW: finding_kinds.UNIT_OFFSET,
    UnitVerdict.REPAIRED: finding_kinds.UNIT_OFFSET,
}
"""Verdicts that are a finding only if the log has a record for the unit, with its kind."""
_DETAILS = {UnitVerdict.ZERO: "holds zeros", UnitVerdict.BLANK: "is pre-blank, without a record"}


class QueueFacts(msgspec.Struct, frozen=True):
    """The result of auditing one queue."""

    name: QueueName
    minimum: int
    maximum: int
    findings: list[Finding]
    lost: dict[int, int]
    """How many messages of the queue were lost in each damaged range of the log, by the range's number."""
    repaired: dict[int, int]
    undispatched: int
    """Number of records without a unit that the owner of a store in use may not have dispatched yet."""


def audit_queue(
    plan: AuditPlan, files: Files, name: QueueName, cover: QueueCover, log: LogState, *, is_configured: bool = True
) -> QueueFacts:
    """Audits one queue. `is_configured`: topics.json has the queue's topic, or does not exist."""
    with MapCache(files) as maps, MapCache(files, _QUEUE_FILES_OPEN) as queue_maps:
        return _QueueAudit(plan, name, cover, log, plan.open_log(maps), queue_maps, is_configured).facts()


class _QueueAudit:
    def __init__(
        self,
        plan: AuditPlan,
        name: QueueName,
        cover: QueueCover,
        log: LogState,
        reader: AuditLogReader,
        maps: MapCache,
        is_configured: bool,
    ) -> None:
        self._plan = plan
        self._name = name
        self._cover = cover
        self._log = log
        self._is_configured = is_configured
        self._shape = plan.queues.get(name, NO_FILES)
        self._folder = path_below(plan.layout.consume_queue, *name)
        self._units = plan.open_queue(maps, name)
        self._findings: list[Finding] = []
        self._records, missed = self._current_records(cover)
        self._missed = [each for each in missed if each.physical_first < plan.dispatched_to and self._is_in_log(each)]
        self._undispatched = sum(each.end - each.first for each in missed if each.physical_first >= plan.dispatched_to)
        self._matched = union(cover.matched)
        self._end = self._units.end(max((end for _, end in self._matched), default=0))
        self._judge = UnitJudge(name, log, reader, plan.dispatched_to, union(self._missed))

    def _is_in_log(self, missed: CoveredRun) -> bool:
        """Whether the records are still in the log: retention may delete them during the audit of a store in use."""
        return missed.physical_first >= self._log.begin

    def _current_records(self, cover: QueueCover) -> tuple[list[CoveredRun], list[CoveredRun]]:
        """Returns all records, and those without their unit.

        Leaves out records from before their topic was deleted and created again.
        """
        restarts = [
            later
            for before, later in pairwise(cover.records)
            if later.first == 0 and later.physical_first > before.physical_first
        ]
        if not restarts:
            return cover.records, cover.missed
        since = restarts[-1].physical_first
        older = [each for each in cover.missed if each.physical_first < since]
        if older:
            count = sum(each.end - each.first for each in older)
            what = f"{self._label} restarts at 0 with the record at {since}; {count} older records have no units"
            self._findings.append(finding_kinds.QUEUE_RESTARTED.at(self._folder, what, messages=count))
        return (
            [each for each in cover.records if each.physical_first >= since],
            [each for each in cover.missed if each.physical_first >= since],
        )

    @property
    def _label(self) -> str:
        return f"queue {self._name[1]} of {self._name[0]}"

    def facts(self) -> QueueFacts:
        for start, stop in self._uncovered():
            for first in range(start, stop, _UNITS_AT_ONCE):
                units = self._units.read(first, min(first + _UNITS_AT_ONCE, stop))
                if len(units):
                    self._judge.judge(first, units)
        lowest = min((each.first for each in self._records), default=self._end)
        explained = list(self._explained_gaps())
        for run in self._judge.runs:
            self._findings += self._run_findings(run, lowest, explained)
        self._findings += self._missing_findings()
        self._findings += self._shape_findings()
        self._findings += self._notes()
        return QueueFacts(
            self._name,
            min(lowest, self._end),
            self._end,
            self._findings,
            self._judge.lost,
            self._judge.repaired,
            self._undispatched,
        )

    def _uncovered(self) -> Iterator[tuple[int, int]]:
        """Yields the ranges of units that no record matched, each within one file."""
        for start, stop in self._units.spans:
            yield from without(start, min(stop, self._end), self._matched)

    # -- records without units -------------------------------------------------------------------------------

    def _explained_gaps(self) -> Iterator[tuple[int, int, int]]:
        """Yields gaps in the queue offsets that damage explains: (first, end, number of the damaged range).

        Other gaps become findings.
        """
        records = sorted(self._records, key=lambda each: each.first)
        gaps = [(a.end, b.first, a.physical_end, b.physical_first) for a, b in pairwise(records)]
        if records and self._log.begin == 0:
            gaps.insert(0, (0, records[0].first, 0, records[0].physical_first))
        if records:
            gaps.append((records[-1].end, max(self._end, records[-1].end), records[-1].physical_end, FOREVER))
        for first, end, begin, until in gaps:
            if first >= end:
                continue
            damaged = self._log.damaged.first_overlap(begin, until)
            if damaged is not None:
                yield first, end, damaged
            elif until != FOREVER and self._log.repaired.first_overlap(begin, until) is None:
                what = f"{self._label} has no record with {_numbers('queue offset', first, end)}"
                self._findings.append(self._at(finding_kinds.QUEUE_OFFSET_GAP, first, what, end - first))

    def _missing_findings(self) -> Iterator[Finding]:
        """Yields findings for records without a unit.

        Such a record lies past the queue's end or before its beginning, or another record has its queue offset.
        """
        spans = [(start, min(stop, self._end)) for start, stop in self._units.spans]
        remedy = "a start adds them: `penstock store recover`" if self._plan.crashed else ""
        for missed in self._missed:
            repeated = _overlap(missed, self._matched)
            if repeated:
                what = f"{repeated} records of {self._label} from {missed.physical_first} on have others' queue offsets"
                yield self._at(finding_kinds.QUEUE_OFFSET_REPEATED, missed.first, what, repeated)
            for first, end in without(missed.first, missed.end, _merged(self._matched, spans)):
                if self._file_is_faulty(first):
                    continue
                what = (
                    f"{self._label} has no {_numbers('unit', first, end)} for records from {missed.physical_first} on"
                )
                if not self._shape.files and not self._is_configured:
                    yield self._at(finding_kinds.TOPIC_DELETED, first, what, end - first)
                elif self._shape.files and first < self._units.first:
                    yield self._at(finding_kinds.QUEUE_MINIMUM, first, what, end - first)
                else:
                    yield self._at(finding_kinds.UNIT_MISSING, first, what, end - first, remedy)

    def _file_is_faulty(self, number: int) -> bool:
        """Whether the file for this unit is missing or too short, and so has a finding of its own."""
        at = number * UNIT_SIZE
        size = self._plan.queue_file_size
        odd = [(file.base, file.base + size) for file in self._shape.files if file.size < size]
        return any(begin <= at < end for begin, end in (*odd, *self._shape.missing))

    def _shape_findings(self) -> Iterator[Finding]:
        """Yields the findings about the queue's files. If there is only one, it gets the count of lost messages."""
        lost = sum(
            end - first
            for missed in self._missed
            for first, end in [(missed.first, missed.end)]
            if self._file_is_faulty(first)
        )
        for finding in self._shape.findings:
            sole = len(self._shape.findings) == 1 and finding.kind != finding_kinds.FOREIGN_FILE.name
            yield msgspec.structs.replace(finding, messages=lost) if sole else finding

    # -- units without records -------------------------------------------------------------------------------

    def _run_findings(self, run: UnitRun, lowest: int, explained: list[tuple[int, int, int]]) -> Iterator[Finding]:
        kind = _ALWAYS.get(run.verdict)
        if run.has_record:
            kind = _IF_EXPECTED.get(run.verdict, kind)
        if run.verdict is UnitVerdict.BLANK:
            kind = self._judge_blank(run, lowest, explained)
        if kind is not None:
            detail = _DETAILS.get(run.verdict, run.detail)
            several = "" if run.count == 1 else ": each" if run.verdict in _DETAILS else ": the first"
            what = f"{_numbers('unit', run.first, run.end)} of {self._label}{several} {detail}"
            yield self._at(kind, run.first, what, run.count)

    def _judge_blank(self, run: UnitRun, lowest: int, explained: list[tuple[int, int, int]]) -> FindingKind | None:
        """Returns the kind of finding for pre-blank units, or None if they are correct.

        They are correct below the queue's minimum, and in place of lost messages.
        """
        if run.has_record:
            below = all(end <= run.first or first >= run.end for first, end in self._matched)
            starts = not self._matched or run.end <= self._matched[0][0]
            return finding_kinds.QUEUE_MINIMUM if below and starts else finding_kinds.UNIT_MISSING
        for first, end, damaged in explained:
            common = min(end, run.end) - max(first, run.first)
            if common > 0:
                self._judge.lost[damaged] = self._judge.lost.get(damaged, 0) + common
                return None
        highest = max((each.end for each in self._records), default=FOREVER)
        return finding_kinds.UNIT_BLANK if run.first >= highest else None

    def _notes(self) -> Iterator[Finding]:
        below = sum(run.count for run in self._judge.runs if run.verdict is UnitVerdict.BELOW and not run.has_record)
        if self._end and not self._records and not self._plan.is_live:
            what = f"{self._label} has {self._end - self._units.first} units but no record in the log"
            yield finding_kinds.QUEUE_GONE.at(self._folder, what)
        elif below:
            what = f"{below} units of {self._label} point to deleted records"
            yield finding_kinds.UNITS_BELOW_MINIMUM.at(self._folder, what)
        if self._cover.unresolved:
            what = f"{self._cover.unresolved} units of {self._label} point to a missing extension file"
            yield finding_kinds.UNIT_EXTENSION.at(self._folder, what, messages=self._cover.unresolved)

    def _at(self, kind: FindingKind, number: int, what: str, messages: int, remedy: str = "") -> Finding:
        """Returns a finding at the position of unit `number`, whether or not its file exists."""
        at = number * UNIT_SIZE
        size = self._plan.queue_file_size
        path: Path = self._folder / file_name(at - at % size)
        return kind.at(path, what, offset=at % size, messages=messages, remedy=remedy)


def _numbers(noun: str, first: int, end: int) -> str:
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first} to {end - 1}"


def _overlap(run: CoveredRun, ranges: list[tuple[int, int]]) -> int:
    """Returns how many queue offsets of a run are in the ranges."""
    return sum(max(0, min(end, run.end) - max(first, run.first)) for first, end in ranges)


def _merged(*several: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return union(CoveredRun(first, end, 0, 0) for ranges in several for first, end in ranges)

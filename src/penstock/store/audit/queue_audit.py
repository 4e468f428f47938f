"""The audit of one queue: what its units say and the log does not, and the other way round.

Runs when the whole log has been walked, for each queue by itself. Units that a record matched are not looked at again;
in a sound store nothing else is left, and this costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from penstock.format.queue_unit import UNIT_SIZE
from penstock.store.audit import kinds
from penstock.store.audit.cover import QueueCover, QueueName, Stretch, union, without
from penstock.store.audit.finding import Finding, Kind
from penstock.store.audit.log_audit import LogState
from penstock.store.audit.log_reader import LogReader
from penstock.store.audit.maps import Maps
from penstock.store.audit.plan import FOREVER, NO_FILES, Plan
from penstock.store.audit.queue_units import QueueUnits
from penstock.store.audit.unit_judge import Answer, UnitJudge, UnitRun
from penstock.store.file_queue import file_name
from penstock.store.files import Files

_UNITS_AT_ONCE = 1 << 16
_QUEUE_FILES_OPEN = 64

_ALWAYS = {
    Answer.ZERO: kinds.UNIT_GAP,
    Answer.GARBAGE: kinds.UNIT_GARBAGE,
    Answer.PAST_LOG: kinds.UNIT_PAST_LOG,
    Answer.NO_RECORD: kinds.UNIT_OFFSET,
    Answer.OTHER_TOPIC: kinds.UNIT_TOPIC,
    Answer.OTHER_QUEUE: kinds.UNIT_QUEUE,
    Answer.OTHER_OFFSET: kinds.UNIT_REPEATED,
    Answer.WITHOUT_UNIT: kinds.UNIT_TRANSACTION,
    Answer.SIZE: kinds.UNIT_SIZE,
    Answer.TAGS: kinds.UNIT_TAGS,
}
"""What is wrong wherever it stands."""

_IF_EXPECTED = {Answer.LOST: kinds.UNIT_OFFSET, Answer.BELOW: kinds.UNIT_OFFSET, Answer.REPAIRED: kinds.UNIT_OFFSET}
"""What is wrong where the log has a record for the unit."""


_DETAILS = {Answer.ZERO: "holds zeros", Answer.BLANK: "keeps a place and points to nothing"}


class QueueFacts(msgspec.Struct, frozen=True):
    """What is known of a queue once it was looked at."""

    name: QueueName
    minimum: int
    maximum: int
    findings: list[Finding]
    lost: dict[int, int]
    """How many messages of it lay in each place of the log without records, by the place's number."""
    repaired: dict[int, int]
    unsettled: int
    """Records that its owner may not have got to yet."""


def audit_queue(
    plan: Plan, files: Files, name: QueueName, cover: QueueCover, log: LogState, *, is_configured: bool = True
) -> QueueFacts:
    """Looks at one queue. `is_configured`: whether topics.json, where there is one, has its topic."""
    with Maps(files) as maps, Maps(files, _QUEUE_FILES_OPEN) as queue_maps:
        reader = LogReader(maps, plan.log.files, plan.log_file_size, plan.settings.delay_levels)
        return _QueueAudit(plan, name, cover, log, reader, queue_maps, is_configured).facts()


class _QueueAudit:
    def __init__(
        self,
        plan: Plan,
        name: QueueName,
        cover: QueueCover,
        log: LogState,
        reader: LogReader,
        maps: Maps,
        is_configured: bool,
    ) -> None:
        self._plan = plan
        self._name = name
        self._cover = cover
        self._log = log
        self._is_configured = is_configured
        self._shape = plan.queues.get(name, NO_FILES)
        self._folder = plan.layout.consume_queue / name[0] / str(name[1])
        self._units = QueueUnits(maps, self._shape, plan.queue_file_size)
        self._findings: list[Finding] = []
        self._records, missed = self._current(cover)
        self._missed = [each for each in missed if each.physical_first < plan.settled and self._is_in_log(each)]
        self._unsettled = sum(each.end - each.first for each in missed if each.physical_first >= plan.settled)
        self._matched = union(cover.matched)
        self._end = self._units.end(max((end for _, end in self._matched), default=0))
        self._judge = UnitJudge(name, log, reader, plan.settled, union(self._missed))

    def _is_in_log(self, missed: Stretch) -> bool:
        """Retention may have taken the records, and their units, while this store in use was looked at."""
        return missed.physical_first >= self._log.begin

    def _current(self, cover: QueueCover) -> tuple[list[Stretch], list[Stretch]]:
        """The records and the missed ones, without those of a topic that was deleted and made again."""
        anew = [
            later
            for before, later in pairwise(cover.records)
            if later.first == 0 and later.physical_first > before.physical_first
        ]
        if not anew:
            return cover.records, cover.missed
        since = anew[-1].physical_first
        older = [each for each in cover.missed if each.physical_first < since]
        if older:
            count = sum(each.end - each.first for each in older)
            what = f"{self._title} begins anew at 0 with the record at {since}; {count} older records have no units"
            self._findings.append(kinds.QUEUE_RESTARTED.at(self._folder, what, messages=count))
        return (
            [each for each in cover.records if each.physical_first >= since],
            [each for each in cover.missed if each.physical_first >= since],
        )

    @property
    def _title(self) -> str:
        return f"queue {self._name[1]} of {self._name[0]}"

    # -- all of it -------------------------------------------------------------------------------------------

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
            self._unsettled,
        )

    def _uncovered(self) -> Iterator[tuple[int, int]]:
        """The units that no record matched, each range within one file."""
        for start, stop in self._units.spans():
            yield from without(start, min(stop, self._end), self._matched)

    # -- the log's side --------------------------------------------------------------------------------------

    def _explained_gaps(self) -> Iterator[tuple[int, int, int]]:
        """Queue offsets that no record has, with the place in the log where they were; what has none is a finding."""
        records = sorted(self._records, key=lambda each: each.first)
        gaps = [(a.end, b.first, a.physical_end, b.physical_first) for a, b in pairwise(records)]
        if records and self._log.begin == 0:
            gaps.insert(0, (0, records[0].first, 0, records[0].physical_first))
        if records:
            gaps.append((records[-1].end, max(self._end, records[-1].end), records[-1].physical_end, FOREVER))
        for first, end, begin, until in gaps:
            if first >= end:
                continue
            place = self._log.places.between(begin, until)
            if place is not None:
                yield first, end, place
            elif until != FOREVER and self._log.repaired.between(begin, until) is None:
                what = f"{self._title} has no record with {_numbers('queue offset', first, end)}"
                self._findings.append(self._at(kinds.QUEUE_OFFSET_GAP, first, what, end - first))

    def _missing_findings(self) -> Iterator[Finding]:
        """Records whose unit is nowhere: behind the queue's end, before its beginning, or taken by another record."""
        spans = [(start, min(stop, self._end)) for start, stop in self._units.spans()]
        remedy = "a start adds them: `penstock store recover`" if self._plan.crashed else ""
        for missed in self._missed:
            repeated = _length(missed, self._matched)
            if repeated:
                what = (
                    f"{repeated} records of {self._title}, from {missed.physical_first} on: others have their offsets"
                )
                yield self._at(kinds.QUEUE_OFFSET_REPEATED, missed.first, what, repeated)
            for first, end in without(missed.first, missed.end, _merged(self._matched, spans)):
                if self._has_odd_file(first):
                    continue
                what = (
                    f"{self._title} has no {_numbers('unit', first, end)} for records from {missed.physical_first} on"
                )
                if not self._shape.files and not self._is_configured:
                    yield self._at(kinds.TOPIC_DELETED, first, what, end - first)
                elif self._shape.files and first < self._units.first:
                    yield self._at(kinds.QUEUE_MINIMUM, first, what, end - first)
                else:
                    yield self._at(kinds.UNIT_MISSING, first, what, end - first, remedy)

    def _has_odd_file(self, number: int) -> bool:
        """Whether the file that should have this unit has a finding of its own."""
        at = number * UNIT_SIZE
        size = self._plan.queue_file_size
        odd = [(file.base, file.base + size) for file in self._shape.files if file.size < size]
        return any(begin <= at < end for begin, end in (*odd, *self._shape.missing))

    def _shape_findings(self) -> Iterator[Finding]:
        """The findings about the files themselves, with what they cost where one says it all."""
        lost = sum(
            end - first
            for missed in self._missed
            for first, end in [(missed.first, missed.end)]
            if self._has_odd_file(first)
        )
        for finding in self._shape.findings:
            sole = len(self._shape.findings) == 1 and finding.kind != kinds.FOREIGN_FILE.name
            yield msgspec.structs.replace(finding, messages=lost) if sole else finding

    # -- the queue's side ------------------------------------------------------------------------------------

    def _run_findings(self, run: UnitRun, lowest: int, explained: list[tuple[int, int, int]]) -> Iterator[Finding]:
        kind = _ALWAYS.get(run.answer)
        if run.has_record:
            kind = _IF_EXPECTED.get(run.answer, kind)
        if run.answer is Answer.BLANK:
            kind = self._judge_blank(run, lowest, explained)
        if kind is not None:
            detail = _DETAILS.get(run.answer, run.detail)
            several = "" if run.count == 1 else ": each" if run.answer in _DETAILS else ": the first"
            what = f"{_numbers('unit', run.first, run.end)} of {self._title}{several} {detail}"
            yield self._at(kind, run.first, what, run.count)

    def _judge_blank(self, run: UnitRun, lowest: int, explained: list[tuple[int, int, int]]) -> Kind | None:
        """A unit that keeps a place is right below the minimum and where the message was lost."""
        if run.has_record:
            below = all(end <= run.first or first >= run.end for first, end in self._matched)
            starts = not self._matched or run.end <= self._matched[0][0]
            return kinds.QUEUE_MINIMUM if below and starts else kinds.UNIT_MISSING
        for first, end, place in explained:
            common = min(end, run.end) - max(first, run.first)
            if common > 0:
                self._judge.lost[place] = self._judge.lost.get(place, 0) + common
                return None
        highest = max((each.end for each in self._records), default=FOREVER)
        return kinds.UNIT_BLANK if run.first >= highest else None

    def _notes(self) -> Iterator[Finding]:
        below = sum(run.count for run in self._judge.runs if run.answer is Answer.BELOW and not run.has_record)
        if self._end and not self._records and not self._plan.is_live:
            what = f"{self._title} has {self._end - self._units.first} units and no record in the log"
            yield kinds.QUEUE_GONE.at(self._folder, what)
        elif below:
            what = f"{below} units of {self._title} point to records that were deleted"
            yield kinds.UNITS_BELOW_MINIMUM.at(self._folder, what)
        if self._cover.unresolved:
            what = f"{self._cover.unresolved} units of {self._title} point to an extension file that is not there"
            yield kinds.UNIT_EXTENSION.at(self._folder, what, messages=self._cover.unresolved)

    def _at(self, kind: Kind, number: int, what: str, messages: int, remedy: str = "") -> Finding:
        """A finding at the place of a unit, whether its file is there or not."""
        at = number * UNIT_SIZE
        size = self._plan.queue_file_size
        path: Path = self._folder / file_name(at - at % size)
        return kind.at(path, what, offset=at % size, messages=messages, remedy=remedy)


def _numbers(noun: str, first: int, end: int) -> str:
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first} to {end - 1}"


def _length(stretch: Stretch, ranges: list[tuple[int, int]]) -> int:
    """How many numbers of a stretch the ranges have."""
    return sum(max(0, min(end, stretch.end) - max(first, stretch.first)) for first, end in ranges)


def _merged(*several: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return union(Stretch(first, end, 0, 0) for ranges in several for first, end in ranges)

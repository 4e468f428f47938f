"""What the notes of all ranges add up to: where the log ends, what is damaged, each queue from its first to its last.

Pure. In a sound log the runs of a queue follow each other from range to range; gaps are told by the places left between
them. A queue whose offsets ever go back (its topic was deleted and made again, a header is damaged) is decided by the
order of the log, and is left to who builds in that order. So is everything, should ranges not fit together.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.format.queue_unit import PRE_BLANK, UNIT_SIZE
from penstock.store.audit.cover import QueueCover, QueueName, Stretch
from penstock.store.damage import DamagedRange
from penstock.store.placeholders import Placeholders
from penstock.store.rebuilding.plan import Plan
from penstock.store.rebuilding.range_build import RangeNote
from penstock.store.repair.survey import Found, Unsure, is_unwritten, joined


class Fill(msgspec.Struct, frozen=True):
    """Places of a queue, from `first` to `end`, whose messages are not in the log, and the unit that keeps them."""

    first: int
    end: int
    unit: str
    """In hexadecimal."""


class WholeQueue(msgspec.Struct):
    """A queue as it is to come out."""

    topic: str
    queue_id: int
    begin: int
    """The queue offset that its first file begins with."""
    records: list[Stretch]
    fills: list[Fill]

    @property
    def end(self) -> int:
        return self.records[-1].end

    @property
    def units(self) -> int:
        return self.end - self.begin


class Sums(msgspec.Struct):
    """See the module."""

    begin: int
    end: int
    """Behind the last valid record."""
    records: int = 0
    damage: list[DamagedRange] = []
    placeholders: list[tuple[int, int]] = []
    queues: dict[QueueName, QueueCover] = {}
    in_log_order: set[QueueName] = set()
    """The queues that must be built in the order of the log."""
    keys: list[tuple[int, int]] = []
    """Numbers of ranges, and how many keys each has."""
    fits: bool = True
    """Whether each range began where the one before it ended."""
    is_sound: bool = False
    """As of a survey."""

    def whole_queues(self, queue_file_size: int) -> list[WholeQueue]:
        """Those that the ranges have built."""
        known = Placeholders()
        known.log_is_whole = self.begin == 0
        known.add(self.placeholders)
        return [
            _whole(name, cover.records, queue_file_size // UNIT_SIZE, known)
            for name, cover in sorted(self.queues.items())
            if name not in self.in_log_order
        ]


def add_up(plan: Plan, notes: Iterable[RangeNote]) -> Sums:
    """`notes` are those of all ranges, in order."""
    log = plan.task.log
    sums = Sums(log.begin, log.begin)
    found: list[Found] = []
    unsure: list[Unsure] = []
    file, reached, has_filler = -1, -1, False
    for piece, note in zip(plan.ranges, notes, strict=True):
        if piece.base != file:
            file, reached, has_filler = piece.base, -1, False
        survey = note.survey
        if has_filler:  # what lies in a filler was cut off once: nobody who walks comes there
            sums.in_log_order.update((each.topic, each.queue_id) for each in note.queues)
            continue
        if survey.started >= 0:
            sums.fits = sums.fits and reached in (-1, survey.started)
        if survey.has_valid:
            found += [Found(each.file, each.begin, each.end - each.begin, each.reason, 0) for each in unsure]
            found += survey.found
            unsure = list(survey.unsure)
            sums.end = survey.end
        else:
            unsure += survey.unsure
        if survey.started >= 0 or not piece.resync:
            reached = survey.reached
        has_filler = survey.has_filler
        _add_records(sums, note)
    sums.damage = [DamagedRange(each.physical_offset, each.size, each.reason) for each in joined(found)]
    sums.is_sound = not found and is_unwritten(unsure)
    return sums


def _add_records(sums: Sums, note: RangeNote) -> None:
    sums.records += note.records
    sums.placeholders += note.placeholders
    if note.keys:
        sums.keys.append((note.number, note.keys))
    for queue in note.queues:
        name = queue.topic, queue.queue_id
        if queue.too_many:
            sums.in_log_order.add(name)
        cover = sums.queues.setdefault(name, QueueCover())
        for run in queue.runs:
            if cover.records and run.first < cover.records[-1].end:
                sums.in_log_order.add(name)
            cover.add(run.first, run.end - run.first, run.physical_first, run.physical_end, matched=True)


def _whole(name: QueueName, records: list[Stretch], units_in_file: int, placeholders: Placeholders) -> WholeQueue:
    first = records[0].first
    begin, fills, end, physical_end = 0, [], 0, -1
    if first and placeholders.unit_for_gap(-1, records[0].physical_first) == PRE_BLANK:
        begin = end = first - first % units_in_file  # retention took what was before
    for each in records:
        if each.first > end:
            unit = placeholders.unit_for_gap(physical_end, each.physical_first)
            fills.append(Fill(end, each.first, unit.hex()))
        end, physical_end = each.end, each.physical_end
    return WholeQueue(*name, begin, records, fills)

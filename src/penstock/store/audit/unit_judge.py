"""What units hold that no record matched: each is judged by itself, and neighbours with the same answer become a run.

Most are harmless: they point below the log's minimum, or keep the place of a message that is lost. Only what is left
then is looked up in the log.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np

from penstock.format.queue_unit import NO_RECORD_SIZE, Units, is_ext_address
from penstock.store.audit.cover import QueueName
from penstock.store.audit.log_audit import LogState
from penstock.store.audit.log_reader import LogReader
from penstock.store.audit.places import Longs, Places


class Answer(IntEnum):
    """What a unit is."""

    FINE = 0
    ZERO = 1
    BLANK = 2  # keeps a place, and points to nothing
    GARBAGE = 3
    BELOW = 4
    PAST_LOG = 5
    LOST = 6  # points into damage
    REPAIRED = 7
    NO_RECORD = 8
    OTHER_TOPIC = 9
    OTHER_QUEUE = 10
    OTHER_OFFSET = 11
    WITHOUT_UNIT = 12  # a prepared or rolled back record
    SIZE = 13
    TAGS = 14


class UnitRun(msgspec.Struct):
    """Units with the same answer."""

    answer: Answer
    has_record: bool
    """Whether records with these queue offsets are in the log."""
    first: int
    end: int
    detail: str = ""

    @property
    def count(self) -> int:
        return self.end - self.first


class UnitJudge:
    """Judges the units of one queue."""

    def __init__(
        self, name: QueueName, log: LogState, reader: LogReader, settled: int, missed: list[tuple[int, int]]
    ) -> None:
        self._name = name
        self._log = log
        self._reader = reader
        self._settled = settled
        self._missed = Places(missed)
        self.runs: list[UnitRun] = []
        self.lost: dict[int, int] = {}
        """How many units point into each place of the log without records."""
        self.repaired: dict[int, int] = {}

    def judge(self, first: int, units: Units) -> None:
        """Takes units that no record matched, from number `first` on."""
        offsets, sizes, codes = (units[name].astype(np.int64) for name in ("offset", "size", "tags_code"))
        numbers = np.arange(first, first + len(units), dtype=np.int64)
        expected = self._missed.find(numbers) >= 0
        answers = self._answers(offsets, sizes, codes)
        details: dict[int, str] = {}
        for place in np.flatnonzero(answers < 0).tolist():
            unit = (int(offsets[place]), int(sizes[place]), int(codes[place]))
            answers[place], details[place] = self._look_up(first + place, *unit)
        self._count(self.lost, self._log.places, offsets[(answers == Answer.LOST) & ~expected])
        self._count(self.repaired, self._log.repaired, offsets[(answers == Answer.REPAIRED) & ~expected])
        combined = answers * 2 + expected
        edges = np.concatenate(([0], np.flatnonzero(np.diff(combined)) + 1, [len(combined)]))
        for begin, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            run = UnitRun(Answer(int(answers[begin])), bool(expected[begin]), first + begin, first + stop)
            run.detail = details.get(begin, f"points to {offsets[begin]} with size {sizes[begin]}")
            self._add(run)

    def _answers(self, offsets: Longs, sizes: Longs, codes: Longs) -> Longs:
        """The answers that need no look at the log; -1 where one is needed."""
        log = self._log
        ends = offsets + np.clip(sizes, 0, None)
        placeholder_sizes = np.zeros(len(offsets), np.int64)
        in_repair = log.repaired.find(offsets) >= 0
        for place in np.flatnonzero(in_repair).tolist():
            placeholder_sizes[place] = log.placeholders.get(int(offsets[place]), 0)
        conditions = [
            (offsets == 0) & (sizes == 0) & (codes == 0),
            (offsets == 0) & (sizes == NO_RECORD_SIZE),
            (offsets < 0) | (sizes <= 0),
            in_repair & (placeholder_sizes == sizes) & (codes == 0),
            log.places.find(offsets) >= 0,
            offsets < log.begin,
            (ends > log.end) | (ends < offsets),
        ]
        known = [
            Answer.ZERO,
            Answer.BLANK,
            Answer.GARBAGE,
            Answer.REPAIRED,
            Answer.LOST,
            Answer.BELOW,
            Answer.PAST_LOG,
        ]
        answers = np.select(conditions, [int(each) for each in known], -1)
        return np.asarray(np.where((offsets >= self._settled) & (answers != Answer.ZERO), Answer.FINE, answers))

    def _look_up(self, number: int, offset: int, size: int, code: int) -> tuple[Answer, str]:
        found = self._reader.record_at(offset)
        if found is None or offset in self._log.placeholders:
            return Answer.NO_RECORD, f"points to {offset}, where no message begins"
        if not found.has_unit:
            return Answer.WITHOUT_UNIT, f"points to a prepared or rolled back record, at {offset}"
        if found.topic != self._name[0]:
            return Answer.OTHER_TOPIC, f"points to a record of topic {found.topic}, at {offset}"
        if found.queue_id != self._name[1]:
            return Answer.OTHER_QUEUE, f"points to a record of queue {found.queue_id}, at {offset}"
        if found.queue_offset != number:
            return Answer.OTHER_OFFSET, f"points to the record of unit {found.queue_offset}, at {offset}"
        if found.size != size:
            return Answer.SIZE, f"gives {size} bytes, and its record at {offset} has {found.size}"
        if found.tags_code != code and not is_ext_address(code):
            return Answer.TAGS, f"has tags code {code}, and its record at {offset} has {found.tags_code}"
        return Answer.FINE, ""

    def _count(self, into: dict[int, int], places: Places, offsets: Longs) -> None:
        for place, count in zip(*np.unique(places.find(offsets), return_counts=True), strict=True):
            into[int(place)] = into.get(int(place), 0) + int(count)

    def _add(self, run: UnitRun) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.answer, last.has_record, last.end) == (run.answer, run.has_record, run.first):
            last.end = run.end
        else:
            self.runs.append(run)

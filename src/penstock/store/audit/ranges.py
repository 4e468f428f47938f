"""Audits one range of the log: its records, their units in the queues, and their keys in the index.

`audit_range` is a pure function of the files: any process may audit any range in any order, and `RangeResult.join`
joins the results of adjacent ranges. Memory: the rows of one batch, the units and keys of a few, and one run per queue.

A walk finds and checks the records. Their units and keys are those that dispatch would write: they are derived from the
same bytes with the kernel of `store/queue_units_and_keys.py`, and compared in bulk with the files. Records without a
correct unit are kept as runs; `queues.py` audits the wrong units.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from penstock.errors import CorruptData
from penstock.format import kernels
from penstock.format.index_layout import tag_hash
from penstock.format.kernel_row_types import Reason
from penstock.format.queue_unit import MAX_EXT_ADDRESS, UNIT, Units
from penstock.format.record import decode_record
from penstock.format.scan import Blank, Damage, ScanBatch, hidden_record, scan
from penstock.format.topics import is_readable_queue
from penstock.store.audit import finding_kinds
from penstock.store.audit.files import QueueUnits
from penstock.store.audit.index_keys import IndexFacts, KeyCheck, KeyCover, open_tables
from penstock.store.audit.plan import AuditPlan, AuditRange
from penstock.store.audit.queue_coverage import QueueCover, QueueName
from penstock.store.audit.records import (
    MAX_QUEUE_OFFSET,
    MINUTE_MS,
    Diagnosis,
    FaultRun,
    RecordChecks,
    count_record_crcs,
    diagnose,
    join_run,
)
from penstock.store.consume_queue import QueueExtensions
from penstock.store.files.file_io import FileMap, Files
from penstock.store.queue_units_and_keys import MAX_RECORDS, NO_LIMIT, key_columns
from penstock.store.readonly.view import MapCache


class QueueCheck:
    """Compares the units that the log gives a queue with those in the queue's files; `cover` holds the result."""

    def __init__(
        self, name: QueueName, units: QueueUnits, extensions: QueueExtensions, deleted_before: int = 0
    ) -> None:
        """`deleted_before`: records before this physical offset were deleted with their topic, and have no units."""
        self._name = name
        self._units = units
        self._extensions = extensions
        self._deleted_before = deleted_before
        self.deleted_messages = 0
        self.cover = QueueCover()

    def check(self, runs: Iterable[kernels.UnitRun], derived: memoryview) -> None:
        """Compares the next units in log order: `derived` holds those of all runs of consecutive queue offsets."""
        units = np.frombuffer(derived, UNIT)
        deleted = int(np.searchsorted(units["offset"], self._deleted_before)) if self._deleted_before else 0
        self.deleted_messages += deleted
        stop = 0
        for first, end, _, _ in runs:
            begin, stop = max(stop, deleted), stop + end - first
            if begin < stop:
                self._check_run(end - (stop - begin), units[begin:stop])

    def _check_run(self, number: int, expected: Units) -> None:
        while len(expected):
            found = self._units.read(number, number + len(expected))
            count = len(found)
            if not count:
                next_file = self._units.next_file_start(number)
                count = len(expected) if next_file is None else min(len(expected), next_file - number)
                self._add(number, expected[:count], matched=False)
            elif np.array_equal(found.view(np.uint8), expected[:count].view(np.uint8)):
                self._add(number, expected[:count], matched=True)
            else:
                right = self._compare(expected[:count], found)
                edges = [0, *(np.flatnonzero(np.diff(right)) + 1).tolist(), count]
                for begin, stop in pairwise(edges):
                    self._add(number + begin, expected[begin:stop], matched=bool(right[begin]))
            number, expected = number + count, expected[count:]

    def _compare(self, expected: Units, found: Units) -> kernels.Bools:
        """Returns which units are right.

        An extension address is first replaced by the tags code in the extension file. If that file is missing, the tags
        code is not compared.
        """
        codes = found["tags_code"].astype(np.int64)
        if (codes <= MAX_EXT_ADDRESS).any():
            codes = self._extensions.resolve(*self._name, codes)
        unknown = codes <= MAX_EXT_ADDRESS
        self.cover.unresolved += int(np.count_nonzero(unknown))
        right = (found["offset"] == expected["offset"]) & (found["size"] == expected["size"])
        return np.asarray(right & ((codes == expected["tags_code"]) | unknown), np.bool_)

    def _add(self, number: int, units: Units, *, matched: bool) -> None:
        begin, end = int(units["offset"][0]), int(units["offset"][-1]) + int(units["size"][-1])
        self.cover.add(number, len(units), begin, end, matched=matched)


# -- the range ----------------------------------------------------------------------------------------------------

_ROWS: Final = 4096
"""Records in a batch: few enough that their bytes are still in the CPU cache when they are derived."""
_RECORDS_TO_COMPARE: Final = 1 << 18
"""Records whose units and keys are compared at once: enough that each of many queues has several."""
QUEUE_FILES_OPEN = 512


class RangeResult(msgspec.Struct):
    """The result of one range of the log, or of several adjacent ones."""

    base: int = -1
    """Physical offset where the log file of the range begins; of several ranges, that of the last one."""
    records: int = 0
    messages: int = 0
    record_crcs: int = 0
    """Records that end with their own CRC."""
    bytes: int = 0
    first_offset: int = -1
    first_time: int | None = None
    last_time: int | None = None
    newest_time: int = 0
    ends: dict[int, int] = {}
    """For each log file, by its base: the physical offset after its last valid record or filler."""
    closed: set[int] = set()
    """The log files that end with a filler."""
    diagnoses: list[Diagnosis] = []
    record_faults: dict[str, list[FaultRun]] = {}
    """Runs of valid records with a wrong field, by kind of finding."""
    placeholders: list[tuple[int, int]] = []
    """Physical offset and size of each placeholder that a repair wrote."""
    queues: dict[QueueName, QueueCover] = {}
    deleted_messages: dict[QueueName, int] = {}
    keys: KeyCover = msgspec.field(default_factory=KeyCover)

    def join(self, later: RangeResult) -> None:
        """Adds the result of the next range in log order."""
        if later.base in self.closed:
            return  # the range is inside a filler, so it is not part of the log
        if (
            self.last_time is not None
            and later.first_time is not None
            and later.first_time < self.last_time - MINUTE_MS
        ):
            step = FaultRun(later.first_offset, later.first_offset, 1, f"stored at {later.first_time} ms")
            self.record_faults.setdefault(finding_kinds.TIME_STEP_BACK.name, []).append(step)
        if self.first_offset < 0:
            self.first_offset, self.first_time = later.first_offset, later.first_time
        self.last_time = self.last_time if later.last_time is None else later.last_time
        self.newest_time = max(self.newest_time, later.newest_time)
        self.base = later.base
        self.closed |= later.closed
        self.records += later.records
        self.messages += later.messages
        self.record_crcs += later.record_crcs
        self.bytes += later.bytes
        for base, end in later.ends.items():
            self.ends[base] = max(end, self.ends.get(base, -1))
        self.diagnoses += later.diagnoses
        self.placeholders += later.placeholders
        for kind, runs in later.record_faults.items():
            for run in runs:
                join_run(self.record_faults.setdefault(kind, []), run)
        for name, cover in later.queues.items():
            self.queues.setdefault(name, QueueCover()).extend(cover)
        for name, count in later.deleted_messages.items():
            self.deleted_messages[name] = self.deleted_messages.get(name, 0) + count
        self.keys.extend(later.keys)


def audit_range(
    plan: AuditPlan,
    files: Files,
    piece: AuditRange,
    index: tuple[IndexFacts, ...],
    topics: kernels.TopicTable | None = None,
    queue_maps: MapCache | None = None,
) -> RangeResult:
    """Audits the range `piece` of the log.

    `topics` may be shared by all ranges of a process, `queue_maps` by all ranges of a thread: mapping the files of many
    queues takes as long as reading them.
    """
    if queue_maps is None:
        with MapCache(files, QUEUE_FILES_OPEN) as own:
            return audit_range(plan, files, piece, index, topics, own)
    with MapCache(files) as maps:
        file = maps.get(piece.file.path)
        if file is None:  # retention deleted it
            return RangeResult()
        return _RangeAudit(plan, files, piece, file.map, maps, queue_maps, index, topics or kernels.TopicTable()).run()


class _RangeAudit:
    def __init__(
        self,
        plan: AuditPlan,
        files: Files,
        piece: AuditRange,
        file: FileMap,
        maps: MapCache,
        queue_maps: MapCache,
        index: tuple[IndexFacts, ...],
        topics: kernels.TopicTable,
    ) -> None:
        self._plan = plan
        self._piece = piece
        self._file = file
        self._base = piece.file.base
        self._data = file.view[: plan.log_file_size]
        self._topics = topics
        self._records = RecordChecks(topics, plan.now_ms)
        self._queue_maps = queue_maps
        self._extensions = QueueExtensions(
            files, plan.layout.consume_queue_ext, plan.settings.mapped_file_size_consume_queue_ext
        )
        self._queues: dict[QueueName, QueueCheck] = {}
        self._keys: KeyCheck | None = None
        if plan.settings.message_index_enable:
            tables = open_tables(plan, maps, index)
            self._keys = KeyCheck(tables, self._base + piece.start, plan.index_limit, self._tag_at)
        self._derived = self._new_builder()
        self._derived_to = self._base + piece.start
        self._result = RangeResult(self._base)

    def _new_builder(self) -> kernels.RangeBuilder:
        with_keys, levels = self._keys is not None, self._plan.settings.delay_levels
        return kernels.RangeBuilder(self._topics, levels, with_keys, None, MAX_QUEUE_OFFSET, NO_LIMIT)

    def _tag_at(self, offset: int) -> int:
        """Returns the hash of the tags of the record at `offset`, as an item of RocketMQ 5.5 has it; -1 if none."""
        at = offset - self._base
        if not 0 <= at < len(self._data):
            return -1
        try:
            record = decode_record(self._data, at)
        except CorruptData:
            return -1
        is_here = record.physical_offset == offset and record.tags
        return tag_hash(record.topic, record.tags) if is_here else -1

    def _new_check(self, name: QueueName) -> QueueCheck:
        units = self._plan.open_queue(self._queue_maps, name)
        return QueueCheck(name, units, self._extensions, self._plan.deleted_topics.get(name[0], 0))

    def run(self) -> RangeResult:
        piece, result = self._piece, self._result
        start: int | None = piece.start
        while start is not None:
            start = self._scan_from(start)
        self._compare_derived()
        if self._keys is not None:
            self._keys.check_rest(self._base + piece.stop)
            result.keys = self._keys.cover
        return self._with_records()

    def _scan_from(self, start: int) -> int | None:
        """Scans to the end of the range, and returns None.

        Stops at a filler that hides records, and returns the position of the first hidden record.
        """
        piece, plan = self._piece, self._plan
        items = scan(
            self._data,
            self._base,
            start,
            piece.stop,
            check_crc=plan.check_crc,
            topics=self._topics,
            resync=start == piece.start > 0,
            overrun=not piece.is_last,
            rows_per_batch=_ROWS,
            written=self._file.written_ranges,
        )
        for item in items:
            if isinstance(item, ScanBatch):
                self._add_rows(item.rows)
            elif isinstance(item, Damage):
                self._result.diagnoses.append(diagnose(self._file, self._base, item))
            elif (hidden := self._hidden_in(item)) is not None:
                return hidden
            else:
                self._result.ends[self._base] = self._base + len(self._data)
                self._result.closed.add(self._base)
        return None

    def _add_rows(self, rows: kernels.Rows) -> None:
        begin, end = int(rows["physical_offset"][0]), int(rows["physical_offset"][-1]) + int(rows["size"][-1])
        if self._result.first_offset < 0:
            self._result.first_offset = begin
        self._result.ends[self._base] = self._derived_to = end
        self._records.check(rows)
        self._result.record_crcs += count_record_crcs(self._data, self._base, rows)
        self._derived.take(self._data, self._base, begin - self._base, end - self._base, False)
        if self._derived.records >= _RECORDS_TO_COMPARE:
            self._compare_derived()

    def _compare_derived(self) -> None:
        """Compares the units and keys that were derived since the last call with queues and index."""
        derived, self._derived = self._derived, self._new_builder()
        for topic, queue_id, runs, units in derived.queues():
            name = topic, queue_id
            if name not in self._queues:
                if not is_readable_queue(topic, queue_id):
                    continue
                self._queues[name] = self._new_check(name)
            self._queues[name].check(runs, units)
        if self._keys is not None:
            self._keys.check(*key_columns(derived.key_table()), self._derived_to)

    def _hidden_in(self, filler: Blank) -> int | None:
        """Returns the position of the first record inside a filler if queues still point to records there; else None.

        Records in a filler that have no units are not messages: RocketMQ truncated them and never overwrote them.
        """
        hidden = hidden_record(self._data, self._base, filler)
        if hidden < 0 or not self._has_units(hidden):
            return None
        size = self._base + hidden - filler.position
        what = f"a filler of {filler.size} bytes hides valid records from {self._base + hidden} on"
        diagnosis = Diagnosis(filler.position, size, Reason.BLANK.name, finding_kinds.FILLER_IN_MIDDLE.name, what)
        self._result.diagnoses.append(diagnosis)
        return hidden

    def _has_units(self, position: int) -> bool:
        """Whether any of the first records from `position` on has its unit."""
        derived = self._new_builder()
        derived.take(self._data, self._base, position, len(self._data), False, MAX_RECORDS)
        for topic, queue_id, runs, units in derived.queues():
            if is_readable_queue(topic, queue_id):
                check = self._new_check((topic, queue_id))
                check.check(runs, units)
                if check.cover.matched:
                    return True
        return False

    def _with_records(self) -> RangeResult:
        result, records = self._result, self._records
        result.records, result.messages, result.bytes = records.records, records.messages, records.bytes
        result.first_time, result.last_time = records.first_time, records.last_time
        result.newest_time = records.newest_time
        result.record_faults, result.placeholders = records.runs, records.placeholders
        result.queues = {name: check.cover for name, check in self._queues.items()}
        result.deleted_messages = {name: check.deleted_messages for name, check in self._queues.items()}
        return result

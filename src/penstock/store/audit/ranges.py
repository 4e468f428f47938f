"""Audits one range of the log: its records, their units in the queues, and their keys in the index.

`audit_range` is a pure function of the files: any process may audit any range in any order, and `RangeResult.join`
joins the results of adjacent ranges. Memory: the rows of one batch, and one run per queue.

Units are compared in bulk: each record with the unit at its own queue offset, so nothing is sorted or searched. Records
without a correct unit are kept as runs; `queues.py` audits the wrong units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.kernels import Longs, Rows, Topics
from penstock.format.queue_unit import MAX_EXT_ADDRESS, UNIT, UNIT_SIZE
from penstock.format.scan import Blank, Damage, ScanBatch, hidden_record, scan, valid_rows
from penstock.format.scan_rows import ROW, Reason
from penstock.format.topics import is_readable_topic
from penstock.store.audit import finding_kinds
from penstock.store.audit.files import QueueUnits
from penstock.store.audit.keys import IndexFacts, KeyCheck, KeyCover, open_tables
from penstock.store.audit.plan import AuditPlan, AuditRange
from penstock.store.audit.queue_coverage import QueueCover, QueueName
from penstock.store.audit.records import MINUTE_MS, Diagnosis, FaultRun, RecordChecks, diagnose, join_run
from penstock.store.consume_queue import QueueExtensions
from penstock.store.file_io import FileMap, Files
from penstock.store.readonly.view import MapCache


class UnitCheck:
    """Compares the records of a range with their units; `covers` holds the result by queue."""

    def __init__(
        self,
        topics: Topics,
        open_queue: Callable[[QueueName], QueueUnits],
        extensions: QueueExtensions,
        deleted: Mapping[str, int],
    ) -> None:
        self._topics = topics
        self._open_queue = open_queue
        self._extensions = extensions
        self._deleted = deleted
        self._known: dict[tuple[int, int], _QueueMatcher | None] = {}
        self.covers: dict[QueueName, QueueCover] = {}
        self.deleted_messages: dict[QueueName, int] = {}

    def check(self, rows: Rows) -> None:
        """Compares the next rows of the range with their units. Callers must fill in the rows' tags codes first."""
        for topic_id, queue_id, picks in kernels.group_rows(rows):
            if (topic_id, queue_id) not in self._known:
                self._known[topic_id, queue_id] = self._queue(self._topics.name(topic_id), queue_id)
            queue = self._known[topic_id, queue_id]
            if queue is None:
                continue
            deleted_before = self._deleted.get(queue.name[0], 0)
            if deleted_before:
                kept = rows["physical_offset"][picks] >= deleted_before
                gone = len(picks) - int(np.count_nonzero(kept))
                self.deleted_messages[queue.name] = self.deleted_messages.get(queue.name, 0) + gone
                picks = picks[kept]
            queue.match(rows, picks[rows["queue_offset"][picks] >= 0])

    def _queue(self, topic: str, queue_id: int) -> _QueueMatcher | None:
        """Returns the matcher of a queue; None if topic and id are not valid for a queue."""
        if queue_id < 0 or not is_readable_topic(topic):
            return None
        name = (topic, queue_id)
        return _QueueMatcher(name, self._open_queue(name), self._extensions, self.covers.setdefault(name, QueueCover()))


class _QueueMatcher:
    def __init__(self, name: QueueName, units: QueueUnits, extensions: QueueExtensions, cover: QueueCover) -> None:
        self.name = name
        self._units = units
        self._extensions = extensions
        self._cover = cover

    def match(self, rows: Rows, picks: Longs) -> None:
        done = 0
        while done < len(picks):
            queue_offset = int(rows["queue_offset"][picks[done]])
            data = self._units.data_at(queue_offset)
            stop = done if data is None else kernels.match_units(*data, rows, picks, done)
            if stop > done:
                self._add(rows, picks[done:stop], matched=True)
            else:
                stop = done + self._add_run(rows, picks[done:], data)
            done = stop

    def _add_run(self, rows: Rows, picks: Longs, located: tuple[memoryview, int] | None) -> int:
        """Adds the first record and the records after it with the same result; returns how many records it added."""
        offsets = rows["queue_offset"][picks]
        jumps = np.flatnonzero(np.diff(offsets) != 1)
        count = int(jumps[0]) + 1 if len(jumps) else len(picks)
        first = int(offsets[0])
        if located is None:
            next_file = self._units.next_file_start(first)
            if next_file is not None:
                count = min(count, next_file - first)
            self._add(rows, picks[:count], matched=False)
            return count
        data, base = located
        count = min(count, len(data) // UNIT_SIZE - (first - base))
        units = np.frombuffer(bytes(data[(first - base) * UNIT_SIZE :][: count * UNIT_SIZE]), UNIT)
        right = self._compare(rows[picks[:count]], units)
        changes = np.flatnonzero(right != right[0])
        count = int(changes[0]) if len(changes) else count
        self._add(rows, picks[:count], matched=bool(right[0]))
        return count

    def _compare(self, rows: Rows, units: np.ndarray) -> kernels.Bools:
        """Returns which units match their rows.

        An extension address is first replaced by the tags code in the extension file. If that file is missing, the tags
        code is not compared.
        """
        codes = units["tags_code"].astype(np.int64)
        if (codes <= MAX_EXT_ADDRESS).any():
            codes = self._extensions.resolve(*self.name, codes)
        unknown = codes <= MAX_EXT_ADDRESS
        self._cover.unresolved += int(np.count_nonzero(unknown))
        right = (units["offset"] == rows["physical_offset"]) & (units["size"] == rows["size"])
        return np.asarray(right & ((codes == rows["tags_code"]) | unknown), np.bool_)

    def _add(self, rows: Rows, picks: Longs, *, matched: bool) -> None:
        first, last = rows[picks[0]], rows[picks[-1]]
        self._cover.add(
            int(first["queue_offset"]),
            len(picks),
            int(first["physical_offset"]),
            int(last["physical_offset"]) + int(last["size"]),
            matched=matched,
        )


# -- the range ----------------------------------------------------------------------------------------------------

_ROWS = 4096
_ROWS_TO_MATCH = 1 << 16
QUEUE_FILES_OPEN = 512


class RangeResult(msgspec.Struct):
    """The result of one range of the log, or of several adjacent ones."""

    base: int = -1
    """Physical offset where the log file of the range begins; of several ranges, that of the last one."""
    records: int = 0
    messages: int = 0
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
    topics: kernels.Topics | None = None,
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
        topics: kernels.Topics,
    ) -> None:
        self._plan = plan
        self._piece = piece
        self._file = file
        self._base = piece.file.base
        self._data = file.view[: plan.log_file_size]
        self._topics = topics
        self._delay_levels = plan.settings.delay_levels
        self._records = RecordChecks(topics, plan.now_ms)
        self._queue_maps = queue_maps
        self._extensions = QueueExtensions(
            files, plan.layout.consume_queue_ext, plan.settings.mapped_file_size_consume_queue_ext
        )
        self._units = self._unit_check()
        self._pending: list[kernels.Rows] = []
        """Records not yet compared with their queues."""
        self._keys: KeyCheck | None = None
        if plan.settings.message_index_enable:
            tables = open_tables(plan, maps, index)
            self._keys = KeyCheck(tables, self._base + piece.start, plan.index_limit)
        self._result = RangeResult(self._base)

    def _unit_check(self) -> UnitCheck:
        plan, maps = self._plan, self._queue_maps  # not self: a cycle would keep the maps open

        def open_queue(name: QueueName) -> QueueUnits:
            return plan.open_queue(maps, name)

        return UnitCheck(self._topics, open_queue, self._extensions, plan.deleted_topics)

    def run(self) -> RangeResult:
        piece, result = self._piece, self._result
        start: int | None = piece.start
        while start is not None:
            start = self._scan_from(start)
        self._match_units()
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
        kernels.tag_codes(self._data, self._base, rows, self._delay_levels)
        if self._result.first_offset < 0:
            self._result.first_offset = int(rows["physical_offset"][0])
        end = int(rows["physical_offset"][-1]) + int(rows["size"][-1])
        self._result.ends[self._base] = end
        self._records.check(rows)
        self._pending.append(rows)
        if len(self._pending) * _ROWS >= _ROWS_TO_MATCH:
            self._match_units()
        if self._keys is not None:
            hashes, numbers = kernels.index_keys(self._data, self._base, rows)
            self._keys.check(hashes, rows["physical_offset"][numbers], rows["store_timestamp"][numbers], end)

    def _match_units(self) -> None:
        """Compares the pending records with their units: many at once, so that each of many queues has several."""
        if self._pending:
            self._units.check(self._pending[0] if len(self._pending) == 1 else np.concatenate(self._pending))
            self._pending.clear()

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
        """Whether any record of the first batch from `position` on has its unit."""
        rows = next(
            valid_rows(self._data, self._base, position, len(self._data), topics=self._topics), np.empty(0, ROW)
        )
        kernels.tag_codes(self._data, self._base, rows, self._delay_levels)
        check = self._unit_check()
        check.check(rows)
        return any(cover.matched for cover in check.covers.values())

    def _with_records(self) -> RangeResult:
        result, records = self._result, self._records
        result.records, result.messages, result.bytes = records.records, records.messages, records.bytes
        result.first_time, result.last_time = records.first_time, records.last_time
        result.newest_time = records.newest_time
        result.record_faults, result.placeholders = records.runs, records.placeholders
        result.queues, result.deleted_messages = self._units.covers, self._units.deleted_messages
        return result

"""The log as a whole, joined from its ranges: where it begins and ends, and which parts of it hold no records.

Each part without records is a finding. The number of messages lost there is known once the queues have been audited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from penstock.format.kernel_row_types import Reason
from penstock.store.audit import finding_kinds
from penstock.store.audit.finding_kinds import KINDS
from penstock.store.audit.findings import Finding
from penstock.store.audit.plan import AuditPlan
from penstock.store.audit.queue_coverage import RangeTable
from penstock.store.audit.ranges import RangeResult
from penstock.store.audit.records import Diagnosis
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.file_io import Files
from penstock.store.readonly.infer_file_sizes import NumberedFile
from penstock.store.readonly.view import MapCache

MISSING = "MISSING"
"""The reason of a damaged range whose file is missing or too short."""


class LogFault(msgspec.Struct, frozen=True):
    """A range of the log without records, and its finding."""

    begin: int
    end: int
    reason: str
    finding: Finding


class LogState:
    """The log's bounds and its ranges without records.

    `damaged` counts the messages lost in each of these ranges; `repaired` those lost in ranges that a repair covered.
    """

    def __init__(self, plan: AuditPlan, files: Files, result: RangeResult) -> None:
        self._plan = plan
        self._result = result
        self.files = _present_files(plan, files)
        self.begin = self.files[0].base if self.files else 0
        self.end = self.begin
        self.newest_time = result.newest_time
        used = [file for file in self.files if file.base in result.ends]
        if used:
            self.end = result.ends[used[-1].base]
        self._last = used[-1] if used else None
        if plan.is_live:
            self.end = max(self.end, min(plan.log_limit, self.files[-1].base + plan.log_file_size)) if self.files else 0
        with MapCache(files) as maps:
            faults = [*self._middle(), *self._missing(), *self._tail(maps)]
        self.faults = sorted(faults, key=lambda each: each.begin)
        self.damaged = RangeTable((each.begin, each.end) for each in self.faults)
        self.repaired = RangeTable(_joined(result.placeholders))
        self.placeholders = dict(result.placeholders)

    # -- ranges without records ------------------------------------------------------------------------------

    def _middle(self) -> Iterator[LogFault]:
        """Yields damage that has records after it in its file, and unwritten ends of files before the last one."""
        for file in self.files:
            reached = self._result.ends.get(file.base, file.base)
            in_file = range(file.base, file.base + file.size)
            diagnoses = [each for each in self._result.diagnoses if each.physical_offset in in_file]
            if self._plan.is_live:
                reached = max([reached, *(each.end for each in diagnoses)])
            yield from (self._fault(each, file) for each in diagnoses if each.physical_offset < reached)
            end = file.base + self._plan.log_file_size
            if self._has_later_records(file) and reached < end:
                diagnosis = next((each for each in diagnoses if each.physical_offset >= reached), None)
                what = "nothing was written from here to the end of the file, but records follow in the next file"
                hole = Diagnosis(reached, end - reached, Reason.UNWRITTEN.name, finding_kinds.LOG_HOLE.name, what)
                if diagnosis is not None:
                    hole = msgspec.structs.replace(diagnosis, physical_offset=reached, size=end - reached)
                yield self._fault(hole, file)

    def _has_later_records(self, file: NumberedFile) -> bool:
        return self._last is not None and file.base < self._last.base

    def _missing(self) -> Iterator[LogFault]:
        for begin, end in self._plan.log.missing:
            path = self._plan.log_path(begin)
            finding = self._shape_finding(str(path))
            if finding is not None and begin >= self.begin:
                yield LogFault(begin, end, MISSING, finding)

    def _tail(self, maps: MapCache) -> Iterator[LogFault]:
        """Yields the bytes after the last record, which a crash or damage left."""
        if self._plan.is_live:
            return
        end, path = self.end, self._plan.log_path(self.end)
        for file in self.files:
            data = maps.get(file.path)
            start = max(self.end - file.base, 0)
            if data is not None and start < data.size:
                used = file.base + data.map.nonzero_end(start)
                if used > file.base + start:
                    end = used
        cut = self._last is not None and self._last.size < self._plan.log_file_size
        if end > self.end and cut and self._last is not None:
            finding = self._shape_finding(str(self._last.path))
            if finding is not None:
                yield LogFault(self.end, self._last.base + self._plan.log_file_size, MISSING, finding)
                return
        if end > self.end:
            kind = finding_kinds.TORN_TAIL if self._plan.crashed else finding_kinds.STALE_BYTES
            what = f"{end - self.end} bytes after the last record, at {self.end}, are not a record"
            at = self.end % self._plan.log_file_size
            diagnosis = self._tail_diagnosis()
            reason = Reason.UNWRITTEN.name if diagnosis is None else diagnosis.reason
            yield LogFault(self.end, end, reason, kind.at(path, what, offset=at))

    def _tail_diagnosis(self) -> Diagnosis | None:
        return next((each for each in self._result.diagnoses if each.physical_offset >= self.end), None)

    def _fault(self, diagnosis: Diagnosis, file: NumberedFile) -> LogFault:
        if file.size < self._plan.log_file_size and diagnosis.end >= file.base + file.size:
            finding = self._shape_finding(str(file.path))
            if finding is not None:
                return LogFault(diagnosis.physical_offset, diagnosis.end, MISSING, finding)
        what = f"{diagnosis.what}: {diagnosis.size} bytes at {diagnosis.physical_offset} are lost"
        known = self._plan.known_damage
        if any(each.physical_offset < diagnosis.end and each.end > diagnosis.physical_offset for each in known):
            what += ", as already noted in penstock/damaged.json"
        finding = KINDS[diagnosis.kind].at(file.path, what, offset=diagnosis.physical_offset - file.base)
        return LogFault(diagnosis.physical_offset, diagnosis.end, diagnosis.reason, finding)

    def _shape_finding(self, path: str) -> Finding | None:
        return next((finding for finding in self._plan.log.findings if finding.path == path), None)

    # -- findings --------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """Yields all findings about the log. Callers must first add the lost messages of each queue to `damaged`."""
        counted: Counter[Finding] = Counter()
        for number, each in enumerate(self.faults):
            counted[each.finding] += self.damaged.messages[number]
        for fault in self.faults:
            yield self._with_messages(fault, counted[fault.finding])
        yield from (finding for finding in self._plan.log.findings if finding not in counted)
        for kind, runs in self._result.record_faults.items():
            for run in runs:
                path, at = self._plan.log_path(run.first), run.first % self._plan.log_file_size
                count = "1 record" if run.count == 1 else f"{run.count} records"
                what = f"{count} from {run.first} on: {run.detail}"
                yield KINDS[kind].at(path, what, offset=at, messages=run.count)
        for number, (begin, end) in enumerate(self.repaired.ranges):
            path, at = self._plan.log_path(begin), begin % self._plan.log_file_size
            what = f"{end - begin} bytes at {begin} were damaged and have been repaired"
            yield finding_kinds.REPAIRED.at(path, what, offset=at, messages=self.repaired.messages[number])

    def _with_messages(self, fault: LogFault, messages: int) -> Finding:
        finding = fault.finding
        diagnosis = self._tail_diagnosis()
        if finding.kind == finding_kinds.STALE_BYTES.name and diagnosis is not None and messages:
            # A queue points to these bytes, so they were a record once.
            kind = KINDS[diagnosis.kind]
            finding = kind.at(
                finding.path, f"{diagnosis.what}: {fault.end - fault.begin} bytes at {fault.begin} are lost"
            )
            finding = msgspec.structs.replace(finding, offset=fault.finding.offset)
        return msgspec.structs.replace(finding, messages=messages)

    def damage(self) -> list[DamagedRange]:
        """Returns the damaged ranges in the middle of the log, without its tail."""
        return [
            DamagedRange(each.begin, each.end - each.begin, each.reason)
            for each in self.faults
            if each.begin < self.end
        ]


def _present_files(plan: AuditPlan, files: Files) -> tuple[NumberedFile, ...]:
    """Returns the audited log files, without those that retention deleted since the plan was created."""
    if not plan.is_live:
        return plan.log.files
    return tuple(file for file in plan.log.files if file.base < plan.log_limit and files.exists(file.path))


def _joined(placeholders: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the ranges (begin, end) that placeholders cover; adjacent placeholders form one range."""
    ranges = [(offset, offset + size) for offset, size in sorted(placeholders)]
    begins = [begin for number, (begin, _) in enumerate(ranges) if not number or ranges[number - 1][1] < begin]
    ends = [end for (_, end), after in pairwise([*ranges, (2**63, 2**63)]) if end < after[0]]
    return list(zip(begins, ends, strict=True))

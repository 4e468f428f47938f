"""The log as a whole, put together from its ranges: where it begins and ends, and what in it is no record.

Every such place has a finding; how many messages it cost is known when the queues have been looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from penstock.format.rows import Reason
from penstock.store.audit import finding_kinds
from penstock.store.audit.cover import Places
from penstock.store.audit.files import Maps, NumberedFile, last_written
from penstock.store.audit.finding_kinds import KINDS
from penstock.store.audit.findings import Finding
from penstock.store.audit.plan import AuditPlan
from penstock.store.audit.ranges import RangeResult
from penstock.store.audit.records import Harm
from penstock.store.damage import DamagedRange
from penstock.store.io import Files

MISSING = "MISSING"
"""The reason of a damaged range for which there is no file, or not enough of one."""


class LogTrouble(msgspec.Struct, frozen=True):
    """A place in the log without records, and what is said about it."""

    begin: int
    end: int
    reason: str
    finding: Finding


class LogState:
    """The log's bounds and its places without records. `places` counts what they cost."""

    def __init__(self, plan: AuditPlan, files: Files, result: RangeResult) -> None:
        self._plan = plan
        self._result = result
        self.files = _present(plan, files)
        self.begin = self.files[0].base if self.files else 0
        self.end = self.begin
        self.newest_time = result.newest_time
        used = [file for file in self.files if file.base in result.ends]
        if used:
            self.end = result.ends[used[-1].base]
        self._last = used[-1] if used else None
        if plan.is_live:
            self.end = max(self.end, min(plan.log_limit, self.files[-1].base + plan.log_file_size)) if self.files else 0
        with Maps(files) as maps:
            troubles = [*self._middle(), *self._missing(), *self._tail(maps)]
        self.troubles = sorted(troubles, key=lambda each: each.begin)
        self.places = Places((each.begin, each.end) for each in self.troubles)
        self.repaired = Places(_joined(result.placeholders))
        self.placeholders = dict(result.placeholders)

    # -- places ----------------------------------------------------------------------------------------------

    def _middle(self) -> Iterator[LogTrouble]:
        """Damage with records behind it, and files that end before they should."""
        for file in self.files:
            reached = self._result.ends.get(file.base, file.base)
            harms = [harm for harm in self._result.harm if file.base <= harm.physical_offset < file.base + file.size]
            if self._plan.is_live:
                reached = max([reached, *(harm.end for harm in harms)])
            yield from (self._trouble(harm, file) for harm in harms if harm.physical_offset < reached)
            end = file.base + self._plan.log_file_size
            if self._goes_on_behind(file) and reached < end:
                harm = next((harm for harm in harms if harm.physical_offset >= reached), None)
                what = "nothing was written from here to the file's end, and records follow in the next file"
                hole = Harm(reached, end - reached, Reason.UNWRITTEN.name, finding_kinds.LOG_HOLE.name, what)
                if harm is not None:
                    hole = msgspec.structs.replace(harm, physical_offset=reached, size=end - reached)
                yield self._trouble(hole, file)

    def _goes_on_behind(self, file: NumberedFile) -> bool:
        return self._last is not None and file.base < self._last.base

    def _missing(self) -> Iterator[LogTrouble]:
        for begin, end in self._plan.log.missing:
            path = self._plan.log_path(begin)
            finding = self._shape_finding(str(path))
            if finding is not None and begin >= self.begin:
                yield LogTrouble(begin, end, MISSING, finding)

    def _tail(self, maps: Maps) -> Iterator[LogTrouble]:
        """What lies behind the last record: nothing, unless a crash or something worse left it there."""
        if self._plan.is_live:
            return
        end, path = self.end, self._plan.log_path(self.end)
        for file in self.files:
            data = maps.get(file.path)
            start = max(self.end - file.base, 0)
            if data is not None and start < len(data):
                used = file.base + last_written(data, start)
                if used > file.base + start:
                    end = used
        cut = self._last is not None and self._last.size < self._plan.log_file_size
        if end > self.end and cut and self._last is not None:
            finding = self._shape_finding(str(self._last.path))
            if finding is not None:
                yield LogTrouble(self.end, self._last.base + self._plan.log_file_size, MISSING, finding)
                return
        if end > self.end:
            kind = finding_kinds.TORN_TAIL if self._plan.crashed else finding_kinds.STALE_BYTES
            what = f"{end - self.end} bytes behind the last record, at {self.end}, are no record"
            at = self.end % self._plan.log_file_size
            yield LogTrouble(self.end, end, self._tail_reason(), kind.at(path, what, offset=at))

    def _tail_reason(self) -> str:
        harm = self._tail_harm()
        return Reason.UNWRITTEN.name if harm is None else harm.reason

    def _tail_harm(self) -> Harm | None:
        return next((harm for harm in self._result.harm if harm.physical_offset >= self.end), None)

    def _trouble(self, harm: Harm, file: NumberedFile) -> LogTrouble:
        if file.size < self._plan.log_file_size and harm.end >= file.base + file.size:
            finding = self._shape_finding(str(file.path))
            if finding is not None:
                return LogTrouble(harm.physical_offset, harm.end, MISSING, finding)
        what = f"{harm.what}: {harm.size} bytes at {harm.physical_offset} are lost"
        if any(each.physical_offset < harm.end and each.end > harm.physical_offset for each in self._plan.known_damage):
            what += ", as a start has already noted in penstock/damaged.json"
        finding = KINDS[harm.kind].at(file.path, what, offset=harm.physical_offset - file.base)
        return LogTrouble(harm.physical_offset, harm.end, harm.reason, finding)

    def _shape_finding(self, path: str) -> Finding | None:
        return next((finding for finding in self._plan.log.findings if finding.path == path), None)

    # -- saying ----------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        """Everything about the log itself, once the queues have counted what its places cost."""
        counted: Counter[Finding] = Counter()
        for number, each in enumerate(self.troubles):
            counted[each.finding] += self.places.messages[number]
        for trouble in self.troubles:
            yield self._with_messages(trouble, counted[trouble.finding])
        yield from (finding for finding in self._plan.log.findings if finding not in counted)
        for kind, runs in self._result.odd.items():
            for run in runs:
                path, at = self._plan.log_path(run.first), run.first % self._plan.log_file_size
                count = "1 record" if run.count == 1 else f"{run.count} records"
                what = f"{count} from {run.first} on: {run.detail}"
                yield KINDS[kind].at(path, what, offset=at, messages=run.count)
        for number, (begin, end) in enumerate(self.repaired.ranges):
            path, at = self._plan.log_path(begin), begin % self._plan.log_file_size
            what = f"{end - begin} bytes at {begin} were damaged and are repaired"
            yield finding_kinds.REPAIRED.at(path, what, offset=at, messages=self.repaired.messages[number])

    def _with_messages(self, trouble: LogTrouble, messages: int) -> Finding:
        finding = trouble.finding
        harm = self._tail_harm()
        if finding.kind == finding_kinds.STALE_BYTES.name and harm is not None and messages:
            # A queue knows these bytes: they were a record once.
            kind = KINDS[harm.kind]
            finding = kind.at(
                finding.path, f"{harm.what}: {trouble.end - trouble.begin} bytes at {trouble.begin} are lost"
            )
            finding = msgspec.structs.replace(finding, offset=trouble.finding.offset)
        return msgspec.structs.replace(finding, messages=messages)

    def damage(self) -> list[DamagedRange]:
        """The places in the middle of the log, for whoever repairs them; the tail is not among them."""
        return [
            DamagedRange(each.begin, each.end - each.begin, each.reason)
            for each in self.troubles
            if each.begin < self.end
        ]


def _present(plan: AuditPlan, files: Files) -> tuple[NumberedFile, ...]:
    """The log files; those that retention has taken since the plan was made do not count."""
    if not plan.is_live:
        return plan.log.files
    return tuple(file for file in plan.log.files if file.base < plan.log_limit and files.exists(file.path))


def _joined(placeholders: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Placeholders that follow each other were one range."""
    ranges = [(offset, offset + size) for offset, size in sorted(placeholders)]
    begins = [begin for number, (begin, _) in enumerate(ranges) if not number or ranges[number - 1][1] < begin]
    ends = [end for (_, end), after in pairwise([*ranges, (2**63, 2**63)]) if end < after[0]]
    return list(zip(begins, ends, strict=True))

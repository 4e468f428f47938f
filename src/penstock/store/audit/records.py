"""Checks single records of the log: the fields of valid records, and why other bytes are not a valid record.

`RecordChecks` checks the fields that a walk does not check (topic, queue id, queue offset, store time), and collects
the placeholders that a repair wrote. `diagnose` turns the reason for which a scan stopped into a kind of finding. A
wrong record size and wrong lengths of its parts fail the same check; the distance to the next valid record decides
between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec
import numpy as np

from penstock.format.constants import BLANK_MAGIC, RECORD_CRC
from penstock.format.damage_placeholder import find_placeholders
from penstock.format.kernel_row_types import Reason
from penstock.format.kernels import Bools, Rows, Topics
from penstock.format.record_layout import physical_offset_of, size_and_magic, size_of_parts
from penstock.format.scan import Damage
from penstock.format.sys_flag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.format.topics import is_readable_topic
from penstock.store.audit import finding_kinds
from penstock.store.audit.findings import FindingKind
from penstock.store.files.file_io import FileMap

Describe = Callable[[np.void], str]
EARLIEST_MS = int(datetime(2010, 1, 1, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
MINUTE_MS = 60_000
MAX_QUEUE_OFFSET: Final = 2**62
"""Larger queue offsets are impossible: their units would lie past the end of any file."""


class FaultRun(msgspec.Struct):
    """Adjacent records with the same fault.

    `end`: physical offset after the last record; in a `KeyCover`, that of the last record itself.
    """

    first: int
    """Physical offset of the first record."""
    end: int
    count: int
    detail: str


class RecordChecks:
    """Checks the rows of a range, batch by batch. `runs`: the faulty records by kind of finding."""

    def __init__(self, topics: Topics, now_ms: int) -> None:
        self._topics = topics
        self._latest_ms = now_ms + DAY_MS
        self._illegal: list[int] = []
        self._topics_seen = 0
        self._previous: int | None = None
        self.runs: dict[str, list[FaultRun]] = {}
        self.placeholders: list[tuple[int, int]] = []
        self.records = self.messages = self.bytes = 0
        self.first_time: int | None = None
        self.newest_time = 0

    @property
    def last_time(self) -> int | None:
        return self._previous

    def check(self, rows: Rows) -> None:
        types = rows["sys_flag"] & TRANSACTION_MASK
        has_unit = (types != TRANSACTION_PREPARED) & (types != TRANSACTION_ROLLBACK)
        self.records += len(rows)
        self.messages += int(np.count_nonzero(has_unit))
        self.bytes += int(rows["size"].sum())
        self._check_times(rows)
        self._check_topics(rows)
        offsets = rows["queue_offset"]
        wrong = has_unit & ((rows["queue_id"] < 0) | (offsets < 0) | (offsets > MAX_QUEUE_OFFSET))
        if wrong.any():
            self._add(
                finding_kinds.RECORD_QUEUE,
                rows,
                wrong,
                lambda row: f"queue id {row['queue_id']}, offset {row['queue_offset']}",
            )
        if not has_unit.all():
            self.placeholders += find_placeholders(rows, self._topics.name)

    def _check_times(self, rows: Rows) -> None:
        times = rows["store_timestamp"].copy()
        lowest, highest = int(times.min()), int(times.max())
        self.newest_time = max(self.newest_time, highest)
        if lowest < EARLIEST_MS or highest > self._latest_ms:
            wrong = (times < EARLIEST_MS) | (times > self._latest_ms)
            self._add(finding_kinds.RECORD_TIME, rows, wrong, lambda row: f"stored at {row['store_timestamp']} ms")
        if self._previous is None:
            self.first_time = self._previous = int(times[0])
        before = np.concatenate(([self._previous], times[:-1]))
        back = times < before - MINUTE_MS
        if back.any():
            self._add(finding_kinds.TIME_STEP_BACK, rows, back, lambda row: f"stored at {row['store_timestamp']} ms")
        self._previous = int(times[-1])

    def _check_topics(self, rows: Rows) -> None:
        if len(self._topics) > self._topics_seen:
            count = len(self._topics)
            new = range(self._topics_seen, count)
            self._illegal += [number for number in new if not is_readable_topic(self._topics.name(number))]
            self._topics_seen = count
        if self._illegal:
            illegal = np.isin(rows["topic_id"], self._illegal)
            if illegal.any():
                self._add(
                    finding_kinds.RECORD_TOPIC,
                    rows,
                    illegal,
                    lambda row: f"topic {self._topics.name(row['topic_id'])!r}",
                )

    def _add(self, kind: FindingKind, rows: Rows, faulty: Bools, detail: Describe) -> None:
        runs = self.runs.setdefault(kind.name, [])
        edges = np.flatnonzero(np.diff(np.concatenate(([False], faulty, [False])).astype(np.int8)))
        for first, stop in edges.reshape(-1, 2).tolist():
            last = rows[stop - 1]
            begin = int(rows["physical_offset"][first])
            end = int(last["physical_offset"]) + int(last["size"])
            join_run(runs, FaultRun(begin, end, stop - first, detail(rows[first])))


def join_run(runs: list[FaultRun], new: FaultRun) -> None:
    """Appends a run, or extends the last run if the new one follows it directly."""
    if runs and runs[-1].end == new.first:
        runs[-1].end, runs[-1].count = new.end, runs[-1].count + new.count
    else:
        runs.append(new)


# -- damaged bytes ------------------------------------------------------------------------------------------------

_BY_REASON = {
    Reason.BAD_MAGIC: finding_kinds.RECORD_MAGIC,
    Reason.BAD_SIZE: finding_kinds.RECORD_SIZE,
    Reason.BEYOND_END: finding_kinds.RECORD_SIZE,
    Reason.BAD_POSITION: finding_kinds.RECORD_POSITION,
    Reason.BAD_LENGTHS: finding_kinds.RECORD_LENGTHS,
    Reason.BAD_CRC: finding_kinds.RECORD_CRC,
    Reason.UNWRITTEN: finding_kinds.RECORD_MAGIC,
}


class Diagnosis(msgspec.Struct, frozen=True):
    """A range of the log without a valid record, and why its first bytes are not a valid record."""

    physical_offset: int
    size: int
    reason: str
    """The name of the check that failed: see `Reason`."""
    kind: str
    what: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


_CRC_NAME = np.frombuffer(RECORD_CRC[:9], np.uint8)


def count_record_crcs(data: memoryview, base: int, rows: Rows) -> int:
    """Returns how many records end with their own CRC. A walk with `check_crc` has checked that it fits."""
    octets = np.frombuffer(data, np.uint8)
    ends = (rows["physical_offset"] - base + rows["size"])[rows["properties_length"] >= len(RECORD_CRC)]
    for place, octet in ((1, RECORD_CRC[-1]), (len(RECORD_CRC), RECORD_CRC[0])):  # most records end here
        ends = ends[octets[ends - place] == octet]
    names = octets[ends[:, np.newaxis] - len(RECORD_CRC) + np.arange(len(_CRC_NAME))]
    return int(np.count_nonzero((names == _CRC_NAME).all(axis=1)))


def diagnose(file: FileMap, base: int, damage: Damage) -> Diagnosis:
    """Diagnoses damage in a log file. `base`: physical offset where the file begins."""
    at = damage.position - base
    kind, what = _classify(file, at, damage)
    return Diagnosis(damage.position, damage.size, damage.reason.name, kind.name, what)


def _classify(file: FileMap, at: int, damage: Damage) -> tuple[FindingKind, str]:
    data, reason = file.view, damage.reason
    stored, magic = size_and_magic(bytes(data[at : at + 8]).ljust(8, b"\0"))
    if reason is Reason.UNWRITTEN and file.nonzero_end(at, at + damage.size) == at:
        return finding_kinds.LOG_HOLE, "nothing was written here, but records follow"
    if magic == BLANK_MAGIC:
        return (
            finding_kinds.FILLER_IN_MIDDLE,
            f"a filler claims {stored} bytes, but {len(data) - at} are left in the file",
        )
    if reason in (Reason.BAD_SIZE, Reason.BEYOND_END):
        return finding_kinds.RECORD_SIZE, f"the record claims {stored} bytes, but {len(data) - at} are left in the file"
    if reason is Reason.BAD_POSITION:
        return finding_kinds.RECORD_POSITION, f"the record claims to be at {physical_offset_of(data, at)}"
    if reason is Reason.BAD_LENGTHS:
        parts = size_of_parts(data, at)
        if parts is not None and parts == damage.size != stored:
            return finding_kinds.RECORD_SIZE, f"the record claims {stored} bytes, but its parts add up to {parts}"
        return finding_kinds.RECORD_LENGTHS, f"the parts of the record do not add up to its {stored} bytes"
    if reason is Reason.BAD_CRC:
        if bytes(data[at + stored - len(RECORD_CRC) : at + stored]).startswith(RECORD_CRC[:9]):
            return finding_kinds.RECORD_CRC, "the record does not match its own CRC"
        return finding_kinds.RECORD_CRC, "the body does not match the CRC in its record"
    return _BY_REASON[reason], f"0x{magic:08x} is not a record's magic"

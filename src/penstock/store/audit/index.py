"""Audits the index as a whole. Every range of the log must have been compared with it first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.store.audit import finding_kinds
from penstock.store.audit.files import AuditLogReader, ItemTable
from penstock.store.audit.findings import Finding, FindingKind
from penstock.store.audit.index_keys import IndexFacts, KeyCover, open_tables
from penstock.store.audit.log import LogState
from penstock.store.audit.plan import AuditPlan
from penstock.store.audit.records import FaultRun
from penstock.store.files.file_io import Files
from penstock.store.readonly.view import MapCache

_ITEMS_AT_ONCE = 1 << 16


def audit_index(
    plan: AuditPlan, files: Files, index: Sequence[IndexFacts], cover: KeyCover, log: LogState
) -> Iterator[Finding]:
    """Yields the findings about the index. `cover`: the joined key covers of all ranges of the log."""
    yield from _unreadable(plan)
    if not plan.settings.message_index_enable:
        return
    for facts in index:
        yield from facts.findings
    with MapCache(files) as maps:
        reader = plan.open_log(maps)
        tables = open_tables(plan, maps, index)
        for facts in index:
            yield from _times(plan, facts, log, reader)
        for facts, table in zip(index, tables, strict=True):
            below = table.find(log.begin)
            if below > 1:
                what = f"{below - 1} items point to deleted records"
                yield finding_kinds.INDEX_BELOW_MINIMUM.at(facts.path, what)
            yield from _unwanted(finding_kinds.INDEX_PAST_LOG, facts, table, table.find(log.end), table.count, log)
        for run in cover.extra:
            table = tables[run.table]
            start, stop = max(run.start, table.find(log.begin)), min(run.stop, table.find(log.end))
            yield from _unwanted(finding_kinds.INDEX_DANGLING, index[run.table], table, start, stop, log)
    yield from _missing(plan, cover, log)
    for wrong in cover.wrong_seconds:
        what = f"the item time of a key of the record at {wrong.first} is not the record's store time"
        yield finding_kinds.INDEX_ITEM_TIME.at(plan.layout.index, what, messages=1)
    if cover.repeated:
        count, first = len(cover.repeated), cover.repeated[0].first
        what = f"keys of {count} records are indexed more than once; the first record is at {first}"
        yield finding_kinds.INDEX_REPEATED.at(plan.layout.index, what, messages=count)


def _unreadable(plan: AuditPlan) -> Iterator[Finding]:
    """Yields findings for files that cannot be read because of their size."""
    size = "" if plan.geometry is None else f" instead of {plan.geometry.file_size}"
    for file in plan.store_files.index.files if plan.settings.message_index_enable else ():
        if not file.size:
            yield finding_kinds.INDEX_FILE_EMPTY.at(file.path, "the file is empty")
        elif file not in plan.index_files:
            yield finding_kinds.INDEX_FILE_SIZE.at(file.path, f"the file has {file.size} bytes{size}")


def _times(plan: AuditPlan, facts: IndexFacts, log: LogState, reader: AuditLogReader) -> Iterator[Finding]:
    """Compares the two times in a header with the store times of its first and last record, if these still exist."""
    header = facts.header
    if facts.count <= 1 or (plan.is_live and facts.path == plan.index_files[-1].path):
        return
    for name, offset, stated, at in (
        ("first", header.begin_physical_offset, header.begin_timestamp, 0),
        ("last", header.end_physical_offset, header.end_timestamp, 8),
    ):
        record = reader.record_at(offset) if log.begin <= offset < log.end else None
        damaged = int(log.damaged.find(np.array([offset], np.int64))[0]) >= 0
        if record is not None and not damaged and offset not in log.placeholders and record.store_timestamp != stated:
            what = f"the header's {name} store time is {stated}, but its {name} record has {record.store_timestamp}"
            yield finding_kinds.INDEX_TIMES.at(facts.path, what, offset=at)


def _unwanted(
    kind: FindingKind, facts: IndexFacts, table: ItemTable, start: int, stop: int, log: LogState
) -> Iterator[Finding]:
    """Yields findings for the items at positions start … stop - 1, except items that point into damage."""
    for begin in range(start, stop, _ITEMS_AT_ONCE):
        items = table.items(begin, min(begin + _ITEMS_AT_ONCE, stop))
        real = (log.damaged.find(items.offsets) < 0) & (log.repaired.find(items.offsets) < 0)
        numbers, offsets = items.numbers[real], items.offsets[real]
        parts = np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers) != 1) + 1)
        for part in parts if len(numbers) else ():
            first, last = int(numbers[part[0]]), int(numbers[part[-1]])
            items_text = f"item {first} has" if first == last else f"items {first} to {last} have"
            what = f"{items_text} no record with such a key; the first points to {offsets[part[0]]}"
            yield kind.at(facts.path, what, offset=table.geometry.item_position(first), messages=len(part))


def _missing(plan: AuditPlan, cover: KeyCover, log: LogState) -> Iterator[Finding]:
    remedy = "a start adds them: `penstock store recover`" if plan.crashed else ""
    for run in (each for each in cover.missing if each.first >= log.begin):
        yield finding_kinds.INDEX_KEY_MISSING.at(
            plan.layout.index, _missing_keys(run), messages=run.count, remedy=remedy
        )


def _missing_keys(run: FaultRun) -> str:
    if run.count == 1:
        return f"a key of the record at {run.first} is missing"
    return f"keys of {run.count} records are missing, from the record at {run.first} to the one at {run.end}"

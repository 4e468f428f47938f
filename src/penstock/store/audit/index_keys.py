"""Audits index files: each file by itself, and its items against the keys of a range of the log.

`audit_index_file` follows a file's chains in the order in which they were written: each item must point to the
previous item of its slot. That takes one pass over the items and four bytes of memory per slot.

Keys are derived from the log, and both keys and items are in log order. So normally key n equals item n, and one
comparison checks a whole batch. If the two differ, `KeyCheck` compares them as sets. It keeps keys without an item and
items without a key as runs, and reports nothing itself: whether an item points into damage is known only after the
whole log has been walked. RocketMQ 5.5 also adds an item for the tags of a message: the items that are left over are
compared with those.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexGeometry, IndexHeader
from penstock.store.audit import finding_kinds
from penstock.store.audit.files import ITEM, Items, ItemTable, Longs
from penstock.store.audit.findings import Finding
from penstock.store.audit.plan import FOREVER, AuditPlan
from penstock.store.audit.records import FaultRun, join_run
from penstock.store.files.file_io import FileMap, Files
from penstock.store.readonly.view import MapCache

_AT_ONCE = 1 << 20


class IndexFacts(msgspec.Struct, frozen=True):
    """The result of auditing one index file."""

    path: Path
    count: int
    """The number of the file's last item plus one."""
    in_order: bool
    header: IndexHeader
    findings: tuple[Finding, ...]


def audit_index_file(plan: AuditPlan, files: Files, number: int) -> IndexFacts | None:
    """Audits the file `plan.index_files[number]`; returns None if it no longer exists."""
    path = plan.index_files[number].path
    with MapCache(files) as maps:
        file = maps.get(path)
        if file is None or plan.geometry is None:
            return None
        return _IndexFile(plan, path, file.map, plan.geometry, number).audit()


def open_tables(plan: AuditPlan, maps: MapCache, index: Sequence[IndexFacts]) -> list[ItemTable]:
    """Returns the items of these files that point before `plan.index_limit`. Raises FileNotFoundError."""
    tables: list[ItemTable] = []
    if plan.geometry is None:
        return []
    for facts in index:
        file = maps.get(facts.path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(facts.path))
        table = ItemTable(file.map, plan.geometry, facts.count, in_order=facts.in_order)
        if plan.index_limit < FOREVER:
            table.count = table.find(plan.index_limit)
        tables.append(table)
    return tables


class _IndexFile:
    def __init__(self, plan: AuditPlan, path: Path, file: FileMap, geometry: IndexGeometry, number: int) -> None:
        self._plan = plan
        self._path = path
        self._file = file
        self._geometry = geometry
        self._header = IndexHeader.unpack(file.view[:HEADER_SIZE])
        self._is_growing = plan.is_live and number == len(plan.index_files) - 1
        self._counted = None if plan.index_counts is None else plan.index_counts[number]
        self._findings: list[Finding] = []

    def audit(self) -> IndexFacts:
        count = self._count() if self._counted is None else self._counted
        newest = np.zeros(self._geometry.slots, np.int32)
        in_order = True
        for start in range(1, count, _AT_ONCE):
            stop = min(start + _AT_ONCE, count)
            wrong, back = kernels.check_chains(self._file.view, *self._geometry, start, stop, newest)
            in_order = in_order and not len(back)
            self._findings += self._chain_findings(wrong, count)
        self._findings += self._slot_findings(newest, count)
        if not self._is_growing and count > 1:
            self._findings += self._header_findings(newest, count)
        return IndexFacts(self._path, count, in_order, self._header, tuple(self._findings))

    def _count(self) -> int:
        """Returns the number after the last item. If the header has another count, adds a finding."""
        geometry, counted = self._geometry, max(self._header.index_count, 1)
        used = self._file.nonzero_end(geometry.item_position(1), geometry.item_position(geometry.items))
        there = 1 + -(-(used - geometry.item_position(1)) // ITEM_SIZE)
        # The first item may be all zeros: the key's hash, and the offset of the log's first record.
        if counted == there or (counted, there) == (2, 1):
            return counted
        what = f"the header counts {counted - 1} items, but there are {there - 1}"
        remedy = "a start fixes it: `penstock store recover`" if self._plan.crashed else ""
        self._findings.append(finding_kinds.INDEX_COUNT.at(self._path, what, offset=36, remedy=remedy))
        return there

    def _chain_findings(self, wrong: Longs, count: int) -> Iterator[Finding]:
        for number in wrong.tolist():
            at = self._geometry.item_position(number)
            previous = int(np.frombuffer(self._file.view, ITEM, 1, at)["previous"][0])
            if number <= previous:
                yield finding_kinds.INDEX_CYCLE.at(self._path, f"item {number} points to item {previous}", offset=at)
            else:
                what = f"item {number} points to item {previous}, which is not the previous one in its slot"
                yield finding_kinds.INDEX_CHAIN.at(self._path, what, offset=at)

    def _slot_findings(self, newest: kernels.Ints, count: int) -> Iterator[Finding]:
        slots = self._slots(count)
        for slot in np.flatnonzero(slots != newest).tolist():
            what = f"slot {slot} points to item {slots[slot]}, but its newest item is {newest[slot]}"
            yield finding_kinds.INDEX_SLOT.at(self._path, what, offset=self._geometry.slot_position(slot))

    def _slots(self, count: int) -> kernels.Ints:
        """Returns the slots. In a growing file, items from number `count` on are unlinked from the slots."""
        size = SLOT_SIZE * self._geometry.slots
        slots = np.frombuffer(bytes(self._file.view[HEADER_SIZE : HEADER_SIZE + size]), ">i4").astype(np.int32)
        for slot in np.flatnonzero(slots >= count).tolist() if self._is_growing else ():
            while slots[slot] >= count:
                number = int(slots[slot])
                at = self._geometry.item_position(number)
                previous = int(np.frombuffer(self._file.view, ITEM, 1, at)["previous"][0])
                slots[slot] = previous if previous < number else 0
        return slots

    def _header_findings(self, newest: kernels.Ints, count: int) -> Iterator[Finding]:
        header, used = self._header, int(np.count_nonzero(newest))
        if header.hash_slot_count != used:
            kind = (
                finding_kinds.INDEX_OLD_COUNT if header.hash_slot_count == count - 1 else finding_kinds.INDEX_SLOT_COUNT
            )
            what = f"the header counts {header.hash_slot_count} used slots, but there are {used}"
            yield kind.at(self._path, what, offset=32)
        table = ItemTable(self._file, self._geometry, count, in_order=True)
        for name, stated, number, at in (
            ("first", header.begin_physical_offset, 1, 16),
            ("last", header.end_physical_offset, count - 1, 24),
        ):
            offset = table.offset_at(number)
            if stated != offset:
                what = f"the header's {name} offset is {stated}, but its {name} item points to {offset}"
                yield finding_kinds.INDEX_OFFSETS.at(self._path, what, offset=at)


# -- keys of a range ----------------------------------------------------------------------------------------------


class ItemRun(msgspec.Struct, frozen=True):
    """Consecutive items of one index file."""

    table: int
    """The number of the file."""
    start: int
    stop: int


class KeyCover(msgspec.Struct):
    """How the index covers the keys of a range of the log."""

    keys: int = 0
    missing: list[FaultRun] = []
    """Runs of records whose keys have no item; `first` and `end` are the offsets of the first and the last record."""
    begins_missing: bool | None = None
    """Whether the first key of the range has no item; None if the range has no keys."""
    ends_missing: bool | None = None
    extra: list[ItemRun] = []
    """Items that belong to none of the range's keys."""
    repeated: list[FaultRun] = []
    """Records whose keys have more than one item each."""
    wrong_seconds: list[FaultRun] = []

    def extend(self, later: KeyCover) -> None:
        """Adds the cover of a later range."""
        self.keys += later.keys
        self.extra += later.extra
        if self.ends_missing and later.begins_missing:
            last, *more_missing = later.missing
            self.missing[-1].end, self.missing[-1].count = last.end, self.missing[-1].count + last.count
            self.missing += more_missing
        else:
            self.missing += later.missing
        if self.begins_missing is None:
            self.begins_missing = later.begins_missing
        if later.ends_missing is not None:
            self.ends_missing = later.ends_missing
        for runs, more in (
            (self.repeated, later.repeated),
            (self.wrong_seconds, later.wrong_seconds),
        ):
            for run in more:
                join_run(runs, run)


class KeyCheck:
    """Compares keys with items during a walk over a range of the log.

    `start`: physical offset where the range begins. `limit`: keys of records from here on are not compared. `tag_at`
    returns the hash of the tags of the record at a physical offset of the range; -1 if it has none.
    """

    def __init__(self, tables: Sequence[ItemTable], start: int, limit: int, tag_at: Callable[[int], int]) -> None:
        self._tables = tables
        self._limit = limit
        self._tag_at = tag_at
        self._cursors = [table.find(start) for table in tables]
        self._reached = start
        self.cover = KeyCover()

    def check(self, hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> None:
        """Compares the keys of the next records. `end`: the log position after the last of these records."""
        if end > self._limit:
            keep = int(np.searchsorted(offsets, self._limit))
            hashes, offsets, times = hashes[:keep], offsets[:keep], times[:keep]
        active = [number for number, table in enumerate(self._tables) if self._has_items(number, table, end)]
        if not (len(active) == 1 and self._match(active[0], hashes, offsets, times, end)) and (active or len(hashes)):
            self._compare(active, hashes, offsets, times, end)
        self._reached = end

    def check_rest(self, end: int) -> None:
        """Reports the index items that point between the last record and `end`: no record there has such a key."""
        for number, table in enumerate(self._tables):
            self._add_extra(number, self._cursors[number], table.find(end, self._cursors[number]))

    def _has_items(self, number: int, table: ItemTable, end: int) -> bool:
        position = self._cursors[number]
        return position < table.count and table.offset_at(position) < end

    def _match(self, number: int, hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> bool:
        table, position = self._tables[number], self._cursors[number]
        stop = position + len(hashes)
        if stop < table.count and table.offset_at(stop) < end:
            return False
        if not table.match(position, hashes, offsets, times):
            return False
        self._cursors[number] = stop
        self._add_missing(np.zeros(len(hashes), np.bool_), offsets)
        return True

    # -- as sets ---------------------------------------------------------------------------------------------

    def _compare(self, active: list[int], hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> None:
        due = _pairs(hashes.astype(np.int64), offsets, self._reached)
        matched: list[Longs] = []
        for number in active:
            table, position = self._tables[number], self._cursors[number]
            stop = table.find(end, position)
            items = table.items(position, stop)
            have = _pairs(items.hashes, items.offsets, self._reached)
            wanted = np.isin(have, due)
            self._add_extras(number, position, ~wanted & ~self._are_tags(items, ~wanted))
            self._check_seconds(table, items, have, wanted, due, times)
            matched.append(have[wanted])
            self._cursors[number] = stop
        having = np.concatenate(matched) if matched else np.empty(0, np.int64)
        self._add_missing(~np.isin(due, having), offsets)
        self._add_repeated(due, having)

    def _are_tags(self, items: Items, candidates: kernels.Bools) -> kernels.Bools:
        """Returns, for each item, whether it is a candidate and has the hash of its record's tags."""
        are_tags = np.zeros(len(candidates), np.bool_)
        for place in np.flatnonzero(candidates).tolist():
            are_tags[place] = self._tag_at(int(items.offsets[place])) == items.hashes[place]
        return are_tags

    def _add_missing(self, missing: kernels.Bools, offsets: Longs) -> None:
        """Adds keys to the cover. `missing`: for each key, whether it has no item. `offsets`: of the keys' records."""
        if not len(missing):
            return
        edges = np.flatnonzero(np.diff(np.concatenate(([False], missing, [False])).astype(np.int8)))
        runs = [
            FaultRun(int(offsets[first]), int(offsets[stop - 1]), len(np.unique(offsets[first:stop])), "")
            for first, stop in edges.reshape(-1, 2).tolist()
        ]
        self.cover.extend(KeyCover(len(missing), runs, bool(missing[0]), bool(missing[-1])))

    def _add_repeated(self, due: Longs, having: Longs) -> None:
        if len(having) <= len(np.unique(having)):
            return
        wanted, often = np.unique(due, return_counts=True)
        present, count = np.unique(having, return_counts=True)
        more = count - often[np.searchsorted(wanted, present)]
        for distance in np.unique(present[more > 0] >> 31).tolist():
            offset = self._reached + distance
            join_run(self.cover.repeated, FaultRun(offset, offset, 1, ""))

    def _check_seconds(
        self, table: ItemTable, items: Items, have: Longs, wanted: kernels.Bools, due: Longs, times: Longs
    ) -> None:
        order = np.argsort(due, kind="stable")
        positions = order[np.searchsorted(due, have[wanted], sorter=order)]
        wrong = (items.seconds[wanted] != table.seconds(times[positions])) & (items.numbers[wanted] > 1)
        for offset in items.offsets[wanted][wrong].tolist():
            join_run(self.cover.wrong_seconds, FaultRun(offset, offset, 1, ""))

    def _add_extras(self, number: int, position: int, extra: kernels.Bools) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate(([False], extra, [False])).astype(np.int8)))
        for first, stop in edges.reshape(-1, 2).tolist():
            self._add_extra(number, position + first, position + stop)

    def _add_extra(self, number: int, start: int, stop: int) -> None:
        if start >= stop:
            return
        last = self.cover.extra[-1] if self.cover.extra else None
        if last is not None and (last.table, last.stop) == (number, start):
            self.cover.extra[-1] = ItemRun(number, last.start, stop)
        else:
            self.cover.extra.append(ItemRun(number, start, stop))


def _pairs(hashes: Longs, offsets: Longs, origin: int) -> Longs:
    """Returns offset and hash as one number, -1 if they do not fit. A hash has 31 bits; a batch is within one file."""
    distance = offsets - origin
    pairs = (distance << 31) | hashes
    return np.where((distance >= 0) & (distance < 2**31) & (hashes >= 0), pairs, -1)

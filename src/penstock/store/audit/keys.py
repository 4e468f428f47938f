"""The audit of one index file by itself: header, slots and chains. What its items point to is the log's to say.

The chains are followed as they were put: each item must point to the item before it in its slot, which takes one pass
over the items and four bytes of memory for each slot.


Compares the keys of a range of the log with the index items of that range.

Both are in log order, so as a rule they are equal item by item, and one kernel call says so for a whole batch. Where
they are not, the two are compared as sets. What is left over, keys without an item and items without a key, is kept as
runs: whether an item points into damage is known only when the whole log has been walked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, ITEM_SIZE, SLOT_SIZE, IndexGeometry, IndexHeader
from penstock.store.audit import finding_kinds
from penstock.store.audit.files import ITEM, Items, ItemTable, Longs, Maps, last_written
from penstock.store.audit.findings import Finding
from penstock.store.audit.plan import AuditPlan
from penstock.store.audit.records import FaultRun, join_run
from penstock.store.io import FileMap, Files

_AT_ONCE = 1 << 20


class IndexFacts(msgspec.Struct, frozen=True):
    """What is known of an index file once it was looked at."""

    path: Path
    count: int
    """One more than the number of its last item."""
    in_order: bool
    header: IndexHeader
    findings: tuple[Finding, ...]


def audit_index_file(plan: AuditPlan, files: Files, number: int) -> IndexFacts | None:
    """Looks at one of `plan.index_files`; None if it is gone."""
    path = plan.index_files[number].path
    with Maps(files) as maps:
        file = maps.get(path)
        if file is None or plan.geometry is None:
            return None
        return _IndexFile(plan, path, file, plan.geometry, number).audit()


def open_tables(plan: AuditPlan, maps: Maps, index: Sequence[IndexFacts]) -> list[ItemTable]:
    """The items of these files, those of records that may not be indexed yet left out. Raises FileNotFoundError."""
    tables: list[ItemTable] = []
    if plan.geometry is None:
        return []
    for facts in index:
        file = maps.get(facts.path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(facts.path))
        table = ItemTable(file, plan.geometry, facts.count, in_order=facts.in_order)
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
        """The number behind the last item; where the header says another, what is there decides."""
        geometry, said = self._geometry, max(self._header.index_count, 1)
        used = last_written(self._file, geometry.item_position(1), geometry.item_position(geometry.items))
        there = 1 + -(-(used - geometry.item_position(1)) // ITEM_SIZE)
        # The first key may be nothing but zeros: its hash, and the offset of the log's first record.
        if said == there or (said, there) == (2, 1):
            return said
        what = f"the header counts {said - 1} items, and there are {there - 1}"
        remedy = "a start mends it: `penstock store recover`" if self._plan.crashed else ""
        self._findings.append(finding_kinds.INDEX_COUNT.at(self._path, what, offset=36, remedy=remedy))
        return there

    def _chain_findings(self, wrong: Longs, count: int) -> Iterator[Finding]:
        for number in wrong.tolist():
            at = self._geometry.item_position(number)
            previous = int(np.frombuffer(self._file.view, ITEM, 1, at)["previous"][0])
            if number <= previous:
                yield finding_kinds.INDEX_CYCLE.at(self._path, f"item {number} points to item {previous}", offset=at)
            else:
                what = f"item {number} points to item {previous}, which is not the one before it in its slot"
                yield finding_kinds.INDEX_CHAIN.at(self._path, what, offset=at)

    def _slot_findings(self, newest: kernels.Ints, count: int) -> Iterator[Finding]:
        slots = self._slots(count)
        for slot in np.flatnonzero(slots != newest).tolist():
            what = f"slot {slot} points to item {slots[slot]}, and its newest is {newest[slot]}"
            yield finding_kinds.INDEX_SLOT.at(self._path, what, offset=self._geometry.slot_position(slot))

    def _slots(self, count: int) -> kernels.Ints:
        """The slots; of a file that grows, as they were when it had `count` items."""
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
            what = f"the header counts {header.hash_slot_count} slots in use, and there are {used}"
            yield kind.at(self._path, what, offset=32)
        table = ItemTable(self._file, self._geometry, count, in_order=True)
        for name, said, number, at in (
            ("first", header.begin_physical_offset, 1, 16),
            ("last", header.end_physical_offset, count - 1, 24),
        ):
            offset = table.offset_at(number)
            if said != offset:
                what = f"the header says that its {name} record lies at {said}, and its {name} item says {offset}"
                yield finding_kinds.INDEX_OFFSETS.at(self._path, what, offset=at)


_MAX_INT = 2**31 - 1


class ItemRun(msgspec.Struct, frozen=True):
    """Items of one index file at places that follow each other."""

    table: int
    """The number of the file."""
    start: int
    stop: int


class KeyCover(msgspec.Struct):
    """What a range of the log says about the index."""

    keys: int = 0
    missing: list[FaultRun] = []
    """From the first to the last record whose keys have no item, with no other key in between; it counts records."""
    begins_missing: bool | None = None
    """Whether the first key of the range has no item; None if the range has no keys."""
    ends_missing: bool | None = None
    extra: list[ItemRun] = []
    """Items that belong to no key of the range."""
    repeated: list[FaultRun] = []
    """Where keys have more items than they should."""
    wrong_seconds: list[FaultRun] = []

    def extend(self, later: KeyCover) -> None:
        """Adds what a later range says."""
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
    """Follows the items while the log is walked from `start` on. Records from `limit` on may have no items yet."""

    def __init__(self, tables: Sequence[ItemTable], start: int, limit: int) -> None:
        self._tables = tables
        self._limit = limit
        self._places = [table.find(start) for table in tables]
        self._reached = start
        self.cover = KeyCover()

    def check(self, hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> None:
        """Takes the keys of the next records, up to the position `end`."""
        if end > self._limit:
            keep = int(np.searchsorted(offsets, self._limit))
            hashes, offsets, times = hashes[:keep], offsets[:keep], times[:keep]
        begun = [number for number, table in enumerate(self._tables) if self._has_items(number, table, end)]
        if not (len(begun) == 1 and self._match(begun[0], hashes, offsets, times, end)) and (begun or len(hashes)):
            self._compare(begun, hashes, offsets, times, end)
        self._reached = end

    def finish(self, end: int) -> None:
        """Takes the items up to the position `end`, behind the last record of the range."""
        for number, table in enumerate(self._tables):
            self._take_extra(number, self._places[number], table.find(end, self._places[number]))

    def _has_items(self, number: int, table: ItemTable, end: int) -> bool:
        place = self._places[number]
        return place < table.count and table.offset_at(place) < end

    def _match(self, number: int, hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> bool:
        table, place = self._tables[number], self._places[number]
        stop = place + len(hashes)
        if stop > table.count or (stop < table.count and table.offset_at(stop) < end):
            return False
        if table.match(place, hashes, offsets, times) < len(hashes):
            return False
        self._places[number] = stop
        self._take_missing(np.zeros(len(hashes), np.bool_), offsets)
        return True

    # -- as sets ---------------------------------------------------------------------------------------------

    def _compare(self, begun: list[int], hashes: kernels.Ints, offsets: Longs, times: Longs, end: int) -> None:
        due = _pairs(hashes.astype(np.int64), offsets, self._reached)
        found: list[Longs] = []
        for number in begun:
            table, place = self._tables[number], self._places[number]
            stop = table.find(end, place)
            items = table.items(place, stop)
            have = _pairs(items.hashes, items.offsets, self._reached)
            wanted = np.isin(have, due)
            self._take_extras(number, place, ~wanted)
            self._check_seconds(table, items, have, wanted, due, times)
            found.append(have[wanted])
            self._places[number] = stop
        having = np.concatenate(found) if found else np.empty(0, np.int64)
        self._take_missing(~np.isin(due, having), offsets)
        self._take_repeated(due, having)

    def _take_missing(self, missing: kernels.Bools, offsets: Longs) -> None:
        """Takes one answer for each key."""
        if not len(missing):
            return
        edges = np.flatnonzero(np.diff(np.concatenate(([False], missing, [False])).astype(np.int8)))
        runs = [
            FaultRun(int(offsets[first]), int(offsets[stop - 1]), len(np.unique(offsets[first:stop])), "")
            for first, stop in edges.reshape(-1, 2).tolist()
        ]
        self.cover.extend(KeyCover(len(missing), runs, bool(missing[0]), bool(missing[-1])))

    def _take_repeated(self, due: Longs, having: Longs) -> None:
        if len(having) <= len(np.unique(having)):
            return
        wanted, often = np.unique(due, return_counts=True)
        found, count = np.unique(having, return_counts=True)
        more = count - often[np.searchsorted(wanted, found)]
        for distance in np.unique(found[more > 0] >> 31).tolist():
            offset = self._reached + distance
            join_run(self.cover.repeated, FaultRun(offset, offset, 1, ""))

    def _check_seconds(
        self, table: ItemTable, items: Items, have: Longs, wanted: kernels.Bools, due: Longs, times: Longs
    ) -> None:
        begin = int.from_bytes(table.file.view[:8], "big", signed=True)
        order = np.argsort(due, kind="stable")
        places = order[np.searchsorted(due, have[wanted], sorter=order)]
        stored = times[places]
        seconds = np.clip((stored - begin) // 1000, 0, _MAX_INT) if begin > 0 else np.zeros(len(stored), np.int64)
        wrong = (items.seconds[wanted] != seconds) & (items.numbers[wanted] > 1)
        for offset in items.offsets[wanted][wrong].tolist():
            join_run(self.cover.wrong_seconds, FaultRun(offset, offset, 1, ""))

    def _take_extras(self, number: int, place: int, extra: kernels.Bools) -> None:
        edges = np.flatnonzero(np.diff(np.concatenate(([False], extra, [False])).astype(np.int8)))
        for first, stop in edges.reshape(-1, 2).tolist():
            self._take_extra(number, place + first, place + stop)

    def _take_extra(self, number: int, start: int, stop: int) -> None:
        if start >= stop:
            return
        last = self.cover.extra[-1] if self.cover.extra else None
        if last is not None and (last.table, last.stop) == (number, start):
            self.cover.extra[-1] = ItemRun(number, last.start, stop)
        else:
            self.cover.extra.append(ItemRun(number, start, stop))


def _pairs(hashes: Longs, offsets: Longs, origin: int) -> Longs:
    """Offset and hash as one number; a hash has 31 bits, and a batch lies in one file. What does not fit is -1."""
    distance = offsets - origin
    pairs = (distance << 31) | hashes
    return np.where((distance >= 0) & (distance < 2**31) & (hashes >= 0), pairs, -1)

"""The audit of one index file by itself: header, slots and chains. What its items point to is the log's to say.

The chains are followed as they were put: each item must point to the item before it in its slot, which takes one pass
over the items and four bytes of memory for each slot.
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
from penstock.store.audit import kinds
from penstock.store.audit.finding import Finding
from penstock.store.audit.index_items import ITEM, ItemTable, Longs
from penstock.store.audit.maps import Maps, last_written
from penstock.store.audit.plan import Plan
from penstock.store.file_map import FileMap
from penstock.store.files import Files

_AT_ONCE = 1 << 20


class IndexFacts(msgspec.Struct, frozen=True):
    """What is known of an index file once it was looked at."""

    path: Path
    count: int
    """One more than the number of its last item."""
    in_order: bool
    header: IndexHeader
    findings: tuple[Finding, ...]


def audit_index_file(plan: Plan, files: Files, number: int) -> IndexFacts | None:
    """Looks at one of `plan.index_files`; None if it is gone."""
    path = plan.index_files[number].path
    with Maps(files) as maps:
        file = maps.get(path)
        if file is None or plan.geometry is None:
            return None
        return _IndexFile(plan, path, file, plan.geometry, number).audit()


def open_tables(plan: Plan, maps: Maps, index: Sequence[IndexFacts]) -> list[ItemTable]:
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
    def __init__(self, plan: Plan, path: Path, file: FileMap, geometry: IndexGeometry, number: int) -> None:
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
        self._findings.append(kinds.INDEX_COUNT.at(self._path, what, offset=36, remedy=remedy))
        return there

    def _chain_findings(self, wrong: Longs, count: int) -> Iterator[Finding]:
        for number in wrong.tolist():
            at = self._geometry.item_position(number)
            previous = int(np.frombuffer(self._file.view, ITEM, 1, at)["previous"][0])
            if number <= previous:
                yield kinds.INDEX_CYCLE.at(self._path, f"item {number} points to item {previous}", offset=at)
            else:
                what = f"item {number} points to item {previous}, which is not the one before it in its slot"
                yield kinds.INDEX_CHAIN.at(self._path, what, offset=at)

    def _slot_findings(self, newest: kernels.Ints, count: int) -> Iterator[Finding]:
        slots = self._slots(count)
        for slot in np.flatnonzero(slots != newest).tolist():
            what = f"slot {slot} points to item {slots[slot]}, and its newest is {newest[slot]}"
            yield kinds.INDEX_SLOT.at(self._path, what, offset=self._geometry.slot_position(slot))

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
            kind = kinds.INDEX_OLD_COUNT if header.hash_slot_count == count - 1 else kinds.INDEX_SLOT_COUNT
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
                yield kinds.INDEX_OFFSETS.at(self._path, what, offset=at)

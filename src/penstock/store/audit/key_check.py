"""Compares the keys of a range of the log with the index items of that range.

Both are in log order, so as a rule they are equal item by item, and one kernel call says so for a whole batch. Where
they are not, the two are compared as sets. What is left over, keys without an item and items without a key, is kept as
runs: whether an item points into damage is known only when the whole log has been walked.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from penstock.format import kernels
from penstock.store.audit.index_items import Items, ItemTable, Longs
from penstock.store.audit.record_checks import Run, join_run

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
    missing: list[Run] = []
    """From the first to the last record whose keys have no item, with no other key in between; it counts records."""
    begins_missing: bool | None = None
    """Whether the first key of the range has no item; None if the range has no keys."""
    ends_missing: bool | None = None
    extra: list[ItemRun] = []
    """Items that belong to no key of the range."""
    repeated: list[Run] = []
    """Where keys have more items than they should."""
    wrong_seconds: list[Run] = []

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
            Run(int(offsets[first]), int(offsets[stop - 1]), len(np.unique(offsets[first:stop])), "")
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
            join_run(self.cover.repeated, Run(offset, offset, 1, ""))

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
            join_run(self.cover.wrong_seconds, Run(offset, offset, 1, ""))

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

"""The files of a store as an audit sees them, as they are on disk: names and sizes, and the records and items in them.

Files that a store would refuse to load do not stop an audit. `readonly/infer_file_sizes.py` infers the sizes; a file of
another size is a finding. If the caller passes `OverlayFiles`, which map privately, an audit cannot change a file.

Only one thread may use a `MapCache` and the readers on top of it (`AuditLogReader`, `QueueUnits`, `ItemTable`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.format import kernels
from penstock.format.index_layout import IndexGeometry
from penstock.format.queue_unit import UNIT, UNIT_SIZE, Units, copy_units
from penstock.format.scan import row_at
from penstock.format.sys_flag import enters_queue
from penstock.store.audit import finding_kinds
from penstock.store.audit.findings import Finding, FindingKind
from penstock.store.files.file_io import FileMap
from penstock.store.files.mapped_file_queue import file_name
from penstock.store.readonly.infer_file_sizes import DataFolder, NumberedFile, StoreFiles
from penstock.store.readonly.view import FilesView

_LONG = struct.Struct(">q")
_MAX_INT = 2**31 - 1

# -- names and sizes ----------------------------------------------------------------------------------------------


class FileRun(msgspec.Struct, frozen=True):
    """The files of a folder that have a valid name, and the missing ranges (begin, end) between them, in bytes."""

    files: tuple[NumberedFile, ...]
    missing: tuple[tuple[int, int], ...]
    findings: tuple[Finding, ...]


class ShapeKinds(msgspec.Struct, frozen=True):
    """The kinds of findings about names and sizes of a folder's files."""

    missing: FindingKind
    empty: FindingKind
    size: FindingKind
    name: FindingKind


LOG_KINDS = ShapeKinds(
    finding_kinds.LOG_FILE_MISSING,
    finding_kinds.LOG_FILE_EMPTY,
    finding_kinds.LOG_FILE_SIZE,
    finding_kinds.LOG_FILE_NAME,
)
QUEUE_KINDS = ShapeKinds(
    finding_kinds.QUEUE_FILE_MISSING,
    finding_kinds.QUEUE_FILE_EMPTY,
    finding_kinds.QUEUE_FILE_SIZE,
    finding_kinds.QUEUE_FILE_NAME,
)


def check_shape(folder: DataFolder, size: int, names: ShapeKinds, *, live: bool) -> FileRun:
    """Checks names and sizes. The last file of a store in use (`live`) may be shorter: its owner may be creating it."""
    placed = [file for file in folder.files if file.base % size == 0]
    findings = [
        names.name.at(file.path, f"the name is not a multiple of the file size, {size}")
        for file in folder.files
        if file.base % size
    ]
    findings += [finding_kinds.FOREIGN_FILE.at(path, "this is not a data file") for path in folder.foreign]
    missing: list[tuple[int, int]] = []
    for before, after in pairwise(placed):
        if after.base > before.base + size:
            missing.append((before.base + size, after.base))
            findings.append(_missing(folder.path, before.base + size, after.base, size, names.missing))
    for file in placed:
        if file.size != size and not (live and file is placed[-1] and file.size < size):
            findings.append(_wrong_size(file, size, names))
    return FileRun(tuple(placed), tuple(missing), tuple(findings))


def _missing(folder: Path, begin: int, end: int, size: int, kind: FindingKind) -> Finding:
    count = (end - begin) // size
    what = "the file is missing" if count == 1 else f"{count} files are missing, up to {file_name(end - size)}"
    return kind.at(folder / file_name(begin), what)


def _wrong_size(file: NumberedFile, size: int, names: ShapeKinds) -> Finding:
    if not file.size:
        return names.empty.at(file.path, f"the file is empty instead of {size} bytes long")
    return names.size.at(file.path, f"the file has {file.size} bytes instead of {size}")


def foreign_findings(store_files: StoreFiles) -> Iterator[Finding]:
    """Yields findings for foreign files among the topics' folders and in the index folder."""
    for path in (*store_files.foreign, *store_files.index.foreign):
        yield finding_kinds.FOREIGN_FILE.at(path, "this is not a data file")


# -- records, units, items ----------------------------------------------------------------------------------------


class RecordHeader(NamedTuple):
    """The fields of a record that a unit or an item depends on."""

    topic: str
    queue_id: int
    queue_offset: int
    size: int
    tags_code: int
    has_unit: bool
    store_timestamp: int


class AuditLogReader:
    """Reads single records by physical offset, with every check except the CRC."""

    def __init__(self, files: FilesView, delay_levels: tuple[int, ...]) -> None:
        self.files = files
        self._delay_levels = delay_levels

    def record_at(self, offset: int) -> RecordHeader | None:
        """Returns the record that begins at a physical offset; None if no valid one begins there."""
        file = self.files.find_any_size(offset) if offset >= 0 else None
        if file is None:
            return None
        data, base = file.map.view[: self.files.file_size], file.from_offset
        rows = row_at(data, base, offset - base)
        if not len(rows):
            return None
        kernels.tag_codes(data, base, rows, self._delay_levels)
        row = rows[0]
        topic_at = offset - base + int(row["topic_at"])
        topic = bytes(data[topic_at : topic_at + int(row["topic_length"])]).decode("utf-8", "surrogateescape")
        return RecordHeader(
            topic,
            int(row["queue_id"]),
            int(row["queue_offset"]),
            int(row["size"]),
            int(row["tags_code"]),
            enters_queue(int(row["sys_flag"])),
            int(row["store_timestamp"]),
        )


class QueueUnits:
    """The units of one queue by number. Missing or short files have no units; excess bytes are ignored."""

    def __init__(self, files: FilesView, shape: FileRun) -> None:
        self._files = files
        per_file = files.file_size // UNIT_SIZE
        self.spans = [
            (file.base // UNIT_SIZE, file.base // UNIT_SIZE + min(file.size // UNIT_SIZE, per_file))
            for file in shape.files
            if file.size >= UNIT_SIZE
        ]
        """The range of unit numbers of each file."""
        self.first = shape.files[0].base // UNIT_SIZE if shape.files else 0
        """The number of the first unit that has a file; 0 if there are no files."""

    def data_at(self, number: int) -> tuple[memoryview, int] | None:
        """Returns the bytes of the file with this unit, and the file's first unit number; None if there is no file."""
        file = self._files.find_any_size(number * UNIT_SIZE)
        if file is None or (number + 1) * UNIT_SIZE > file.from_offset + file.size:
            return None
        return file.map.view[: self._files.file_size], file.from_offset // UNIT_SIZE

    def next_file_start(self, number: int) -> int | None:
        """Returns the number of the first unit of the next file that begins after unit `number`, or None."""
        return next((first for first, _ in self.spans if first > number), None)

    def read(self, start: int, stop: int) -> Units:
        """Returns a copy of the units start … stop - 1, up to the end of the file that has the first one."""
        located = self.data_at(start)
        if located is None:
            return np.empty(0, UNIT)
        data, first = located
        position = (start - first) * UNIT_SIZE
        return copy_units(data, position, min((stop - start) * UNIT_SIZE, len(data) - position))

    def end(self, known: int = 0) -> int:
        """Returns the number after the last unit that is not zero. Units before `known` count as not zero."""
        for first, stop in reversed(self.spans):
            file = self._files.find_any_size(first * UNIT_SIZE)
            if file is not None:
                start = (min(max(known, first), stop) - first) * UNIT_SIZE
                used = file.map.nonzero_end(start, (stop - first) * UNIT_SIZE)
                if used > start or first < known:
                    return max(known, first + -(-used // UNIT_SIZE))
        return known


ITEM = np.dtype([("key_hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
Longs = npt.NDArray[np.int64]


class Items(NamedTuple):
    """Index items as columns."""

    numbers: Longs
    hashes: Longs
    offsets: Longs
    seconds: Longs


class ItemTable:
    """Items 1 … count - 1 of an index file, in log order, found by binary search.

    A position is an item's place in log order. Items are written in log order, so position p holds item p. If damage
    has put them out of order, they are sorted first. Sorting takes 20 bytes of memory per item.
    """

    def __init__(self, file: FileMap, geometry: IndexGeometry, count: int, *, in_order: bool) -> None:
        self.file = file
        self.geometry = geometry
        self.count = self._stored = count
        self._order: Longs | None = None
        if not in_order:
            offsets = self.raw(1, count)["offset"].astype(np.int64)
            self._order = np.argsort(offsets, kind="stable") + 1

    def raw(self, start: int, stop: int) -> npt.NDArray[np.void]:
        """Returns a copy of the items numbered start … stop - 1, as stored."""
        begin, end = self.geometry.item_position(start), self.geometry.item_position(max(start, stop))
        return np.frombuffer(bytearray(self.file.view[begin:end]), ITEM)  # numpy would copy them one by one

    def offset_at(self, position: int) -> int:
        number = position if self._order is None else int(self._order[position - 1])
        return int(_LONG.unpack_from(self.file.view, self.geometry.item_position(number) + 4)[0])

    def find(self, offset: int, start: int = 1) -> int:
        """Returns the first position from `start` on whose item points to physical offset `offset` or a later one."""
        low, high = start, self.count
        while low < high:
            middle = (low + high) // 2
            if self.offset_at(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def items(self, start: int, stop: int) -> Items:
        """Returns the items at the positions start … stop - 1 in log order."""
        if self._order is None:
            numbers = np.arange(start, max(start, stop), dtype=np.int64)
            items = self.raw(start, stop)
        else:
            numbers = self._order[start - 1 : max(start, stop) - 1]
            every = np.frombuffer(self.file.view, ITEM, self._stored, self.geometry.item_position(0))
            items = every[numbers]
        columns = (items[name].astype(np.int64) for name in ("key_hash", "offset", "seconds"))
        return Items(numbers, *columns)

    def seconds(self, times: Longs) -> Longs:
        """Returns the times that items of records with these store times have, from item 2 on.

        The time of item 1 counts from the end of the previous file.
        """
        begin = int(_LONG.unpack_from(self.file.view, 0)[0])
        if begin <= 0:
            return np.zeros(len(times), np.int64)
        return np.asarray(np.minimum((np.maximum(times, begin) - begin) // 1000, _MAX_INT), np.int64)

    def match(self, position: int, hashes: kernels.Ints, offsets: Longs, times: Longs) -> bool:
        """Returns whether the items from `position` on are those of these keys, in this order and in the file's."""
        if self._order is not None or position + len(hashes) > self.count:
            return False
        items = self.raw(position, position + len(hashes))
        wrong = items["seconds"] != self.seconds(times)
        if position == 1:
            wrong[:1] = False
        wrong |= (items["key_hash"] != hashes) | (items["offset"] != offsets)
        return not wrong.any()

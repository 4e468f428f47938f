"""Builds one index file from the keys of the ranges that hold its items: one task a file, any number of them at once.

Items are numbered by counting, so which keys go into which file is known before any is made, and so is what a file
begins with: the range of the one before it. A file gets its place when it is whole, so a second attempt at the same
task, as Spark may make one, takes nothing away from the first. A crash leaves a file that nobody looks into.
"""

from __future__ import annotations

import contextlib
import secrets
from datetime import datetime

import msgspec

from penstock.format.index_layout import IndexGeometry, IndexHeader
from penstock.store.disk_errors import disk_refused
from penstock.store.files import Files
from penstock.store.index_file import IndexFile, header_after
from penstock.store.rebuilding.keys import Keys, read_keys
from penstock.store.rebuilding.plan import Plan


class KeySpan(msgspec.Struct, frozen=True):
    """Keys of one range, by their numbers in its file."""

    number: int
    first: int
    stop: int


class IndexPart(msgspec.Struct, frozen=True):
    """One index file: its name, its keys, and the key before them, if there is one."""

    name: str
    spans: list[KeySpan]
    before: KeySpan | None

    @property
    def items(self) -> int:
        return sum(span.stop - span.first for span in self.spans)


def cut_keys(keys: list[tuple[int, int]], geometry: IndexGeometry, now_ms: int) -> list[IndexPart]:
    """The files of an index; `keys` are the numbers of ranges, and how many each has, in order.

    Files are named by local time to the millisecond, each behind the one before.
    """
    moment = datetime.fromtimestamp(now_ms / 1000)
    name = int(f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}")
    parts: list[IndexPart] = []
    room, last = 0, None
    for number, count in keys:
        first = 0
        while first < count:
            if not room:
                parts.append(IndexPart(f"{name + len(parts):017d}", [], last))
                room = geometry.items - 1  # item 0 is never used
            stop = min(first + room, count)
            parts[-1].spans.append(KeySpan(number, first, stop))
            room -= stop - first
            last, first = KeySpan(number, stop - 1, stop), stop
    return parts


def build_index_file(plan: Plan, files: Files, part: IndexPart) -> str:
    """Where something is not as it should be; empty if all is well. Raises BadStore, StoreFailed."""
    plan.check_seen(files)
    geometry, path = plan.task.geometry, plan.folder / f"{part.name}.{secrets.token_hex(4)}"
    items, end = bytearray(), -1
    with contextlib.closing(IndexFile(files.create_map(path, geometry.file_size), geometry)) as table:
        if part.before is not None:
            last = next(read_keys(files, plan.keys_of(part.before.number), part.before.first, part.before.stop))
            header = IndexHeader(end_physical_offset=int(last.offsets[0]), end_timestamp=int(last.times[0]))
            table.set_header(header_after(header))
            end = header.end_physical_offset
        for span in part.spans:
            for keys in read_keys(files, plan.keys_of(span.number), span.first, span.stop):
                if not _in_order(plan, span.number, keys, end):
                    return str(plan.keys_of(span.number))
                table.put(*keys, room=items)
                end = int(keys.offsets[-1])
        if table.count != part.items + 1:
            return str(path)
        try:
            table.sync()
            files.make_folder(plan.index)
            files.rename(path, plan.index / part.name)
            files.sync_folder(plan.index)
        except OSError as error:
            raise disk_refused("cannot finish an index file", path, 0, error) from error
    return ""


def _in_order(plan: Plan, number: int, keys: Keys, end: int) -> bool:
    """Whether keys are what their range wrote: a crash may have left zeros in their place."""
    piece, offsets = plan.ranges[number], keys.offsets
    begin = piece.base + piece.start
    if begin == 0 and not (offsets[0] or keys.hashes[0] or keys.times[0]):
        return False  # where a log begins at 0, zeros are in order
    return bool(
        int(offsets[0]) >= max(end, begin)
        and int(offsets[-1]) < piece.base + plan.task.log.file_size
        and (offsets[1:] >= offsets[:-1]).all()
        and int(keys.hashes.min()) >= 0
    )

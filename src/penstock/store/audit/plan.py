"""What an audit will look at: the files as listed, the sizes they should have, and how far a store in use is settled.

Made once, then only read: it can be pickled and sent to other processes, each of which audits some ranges of the log.

A store in use is looked at as far as its owner had come when the plan was made. The log is read up to the end of the
newest record that a queue or the index knew: nothing before it changes any more. Queues are complete up to `settled`: a
dispatcher works in log order, in steps of at most `ROWS_IN_FLIGHT` records of one file, so what lies further back than
that has its units. The index is complete up to its own last item.


How far a store in use is settled: see `plan.py` for what that means and why it can be relied on.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.clock import now_ms
from penstock.format import kernels
from penstock.format.index_layout import HEADER_SIZE, IndexGeometry, IndexHeader
from penstock.store.audit.cover import QueueName
from penstock.store.audit.files import (
    LOG_KINDS,
    QUEUE_KINDS,
    AuditLogReader,
    FileRun,
    ItemTable,
    Maps,
    NumberedFile,
    QueueUnits,
    StoreFiles,
    fit_sizes,
    foreign_findings,
    list_store,
    shape_of,
)
from penstock.store.audit.findings import Finding
from penstock.store.damage import DamagedRange, read_damage
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch_state import read_state
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.settings import Settings

PIECE_SIZE = 64 << 20
ROWS_IN_FLIGHT = 32_768
"""As many records as a dispatcher takes in one step, or more."""
FOREVER = 2**63 - 1
NO_FILES = FileRun((), (), ())


class AuditRange(msgspec.Struct, frozen=True):
    """A range of one log file, by position: it owns the records that start in it."""

    file: NumberedFile
    start: int
    stop: int
    is_last: bool
    """Whether it reaches to the end of what is looked at in its file."""


class AuditPlan(msgspec.Struct, frozen=True):
    """A store, as an audit sees it."""

    layout: Layout
    settings: Settings
    geometry: IndexGeometry | None
    found: StoreFiles
    log: FileRun
    queues: dict[QueueName, FileRun]
    deleted_topics: dict[str, int]
    known_damage: tuple[DamagedRange, ...]
    now_ms: int
    check_crc: bool = True
    is_live: bool = False
    crashed: bool = False
    log_limit: int = FOREVER
    """How far the log is looked at."""
    settled: int = FOREVER
    """Up to where every record must be in its queue."""
    index_limit: int = FOREVER
    """Up to where every key must be in the index."""
    index_counts: tuple[int, ...] | None = None
    """How many items count in each index file; None: what the headers say."""

    @property
    def log_file_size(self) -> int:
        return self.settings.mapped_file_size_commit_log

    @property
    def queue_file_size(self) -> int:
        return self.settings.mapped_file_size_consume_queue

    @property
    def index_files(self) -> tuple[NumberedFile, ...]:
        """The index files that can be read."""
        if self.geometry is None or not self.settings.message_index_enable:
            return ()
        return tuple(file for file in self.found.index.files if file.size == self.geometry.file_size)

    @property
    def log_min(self) -> int:
        return self.log.files[0].base if self.log.files else 0

    def shape_findings(self) -> Iterator[Finding]:
        """What lies where no data belongs; what is wrong with data files is said where they are audited."""
        yield from foreign_findings(self.found)

    def log_path(self, offset: int) -> Path:
        """The file that covers a physical offset."""
        base = offset - offset % self.log_file_size
        return self.layout.commit_log / f"{base:020d}"


def survey(files: Files, layout: Layout, settings: Settings, *, is_live: bool, check_crc: bool = True) -> AuditPlan:
    """Lists a store's files and decides their sizes; a store in use is still to be bounded (see `live_bounds`)."""
    found = list_store(files, layout)
    noted = read_state(files, layout.dispatched)
    settings, geometry = fit_sizes(settings, found, None if noted is None else noted.sizes)
    queue_size = settings.mapped_file_size_consume_queue
    return AuditPlan(
        layout,
        settings,
        geometry,
        found,
        shape_of(found.log, settings.mapped_file_size_commit_log, LOG_KINDS, live=is_live),
        {name: shape_of(folder, queue_size, QUEUE_KINDS, live=is_live) for name, folder in found.queues.items()},
        read_deleted_topics(files, layout.deleted_topics),
        tuple(read_damage(files, layout.damaged)),
        now_ms(),
        check_crc,
        is_live,
        crashed=not is_live and files.exists(layout.abort),
    )


def pieces(plan: AuditPlan, files: Files, size: int = PIECE_SIZE) -> list[AuditRange]:
    """The log cut into ranges, in log order; what was never written at the end of a file is left out.

    Raises FileNotFoundError for a file that is gone, unless the store is in use: retention may have taken it.
    """
    made: list[AuditRange] = []
    with Maps(files) as maps:
        for file in plan.log.files:
            data = maps.get(file.path)
            if data is None and not plan.is_live and not files.exists(file.path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file.path))
            if data is None or file.base >= plan.log_limit:
                continue
            written = max((end for _, end in data.written_ranges(0)), default=0)
            end = min(written, file.size, plan.log_file_size, plan.log_limit - file.base)
            for start in range(0, end, size):
                made.append(AuditRange(file, start, min(start + size, end), start + size >= end))
    return made


_UNITS_TRIED = 4
"""How many of a queue's last units are asked; the very last may be half written."""
_ROWS = 16_384


def bounded(plan: AuditPlan, files: Files) -> AuditPlan:
    """The plan of a store in use with its bounds, as they are now."""
    with Maps(files) as maps:
        reader = AuditLogReader(maps, plan.log.files, plan.log_file_size, plan.settings.delay_levels)
        counts, index_limit = _index_bounds(plan, maps)
        ends = [_queue_end(plan, maps, reader, name) for name in plan.queues]
        last = reader.record_at(index_limit)
        limit = max([plan.log_min, *ends, 0 if last is None else index_limit + last.size])
        return msgspec.structs.replace(
            plan,
            log_limit=limit,
            settled=_settled(reader, limit, plan),
            index_limit=index_limit,
            index_counts=counts,
        )


def _index_bounds(plan: AuditPlan, maps: Maps) -> tuple[tuple[int, ...], int]:
    """How many items each file has, and the offset of the newest one's record: other keys of it may be on their way."""
    counts: list[int] = []
    limit = plan.log_min
    for each in plan.index_files:
        file, geometry = maps.get(each.path), plan.geometry or IndexGeometry()
        count = 1
        if file is not None:
            header = IndexHeader.unpack(bytes(file.view[:HEADER_SIZE]))
            count = min(max(header.index_count, 1), geometry.items)
            if count > 1:
                limit = ItemTable(file, geometry, count, in_order=True).offset_at(count - 1)
        counts.append(count)
    return tuple(counts), limit


def _queue_end(plan: AuditPlan, maps: Maps, reader: AuditLogReader, name: tuple[str, int]) -> int:
    """Where the newest record that a queue knows ends in the log, -1 if it knows none."""
    units = QueueUnits(maps, plan.queues[name], plan.queue_file_size)
    end = units.end()
    for number in range(end - 1, max(end - 1 - _UNITS_TRIED, units.first - 1), -1):
        for unit in units.read(number, number + 1):
            found = reader.record_at(int(unit["offset"]))
            if found is not None and found.size == unit["size"]:
                return int(unit["offset"]) + found.size
    return -1


def _settled(reader: AuditLogReader, limit: int, plan: AuditPlan) -> int:
    """The record so many records before `limit` that no dispatcher can be at work on it any more."""
    covering = reader.view(limit - 1) if limit > plan.log_min else None
    if covering is None:
        return limit
    data, base = covering
    recent: deque[kernels.Longs] = deque(maxlen=ROWS_IN_FLIGHT // _ROWS + 2)
    at = 0
    while at < limit - base:
        rows, at, _ = kernels.walk(data, base, at, limit - base, False, None, _ROWS)
        if len(rows):
            recent.append(rows["physical_offset"].copy())
        elif (at := kernels.find_record(data, base, at + 1, limit - base, True)) < 0:
            break
    offsets = [offset for part in recent for offset in part.tolist()]
    return int(offsets[-ROWS_IN_FLIGHT]) if len(offsets) > ROWS_IN_FLIGHT else base

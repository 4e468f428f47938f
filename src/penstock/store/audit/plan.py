"""The plan of an audit: the files, the sizes they should have, and the bounds of a store in use.

A plan is immutable and can be pickled, so other processes can audit ranges of the log with it.

A store in use is audited up to the position that its owner had reached when the plan was created:

- The log is read up to the end of the newest record that a queue or the index points to. Bytes before it do not change.
- Queues are complete up to `dispatched_to`. A dispatcher works in log order, in steps of at most `ROWS_IN_FLIGHT`
  records of one file, so all records before the newest `ROWS_IN_FLIGHT` have their units.
- The index is complete up to its last item.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from pathlib import Path

import msgspec

from penstock.clock import now_ms
from penstock.format.index_layout import HEADER_SIZE, IndexGeometry, IndexHeader
from penstock.format.scan import valid_rows
from penstock.store.audit.files import (
    LOG_KINDS,
    QUEUE_KINDS,
    AuditLogReader,
    FileRun,
    ItemTable,
    QueueUnits,
    check_shape,
)
from penstock.store.audit.queue_coverage import QueueName
from penstock.store.damage_and_quarantine import DamagedRange, read_damage
from penstock.store.deleted_topics_file import read_deleted_topics
from penstock.store.dispatch_checkpoint import read_state
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below
from penstock.store.readonly.infer_file_sizes import NumberedFile, StoreFiles, infer_sizes, list_store
from penstock.store.readonly.view import FilesView, MapCache
from penstock.store.settings import Settings

PIECE_SIZE = 64 << 20
ROWS_IN_FLIGHT = 32_768
"""At least as many records as a dispatcher takes in one step."""
FOREVER = 2**63 - 1
NO_FILES = FileRun((), (), ())


class AuditRange(msgspec.Struct, frozen=True):
    """The bytes `start` to `stop` of one log file. The range owns the records that begin in it."""

    file: NumberedFile
    start: int
    stop: int
    is_last: bool
    """Whether this is the last range of its file."""


class AuditPlan(msgspec.Struct, frozen=True):
    """A store's files, settings and bounds for one pass."""

    layout: Layout
    settings: Settings
    geometry: IndexGeometry | None
    store_files: StoreFiles
    log: FileRun
    queues: dict[QueueName, FileRun]
    deleted_topics: dict[str, int]
    known_damage: tuple[DamagedRange, ...]
    now_ms: int
    check_crc: bool = True
    is_live: bool = False
    crashed: bool = False
    log_limit: int = FOREVER
    """Physical offset up to which the log is audited."""
    dispatched_to: int = FOREVER
    """Physical offset up to which every record must have its unit."""
    index_limit: int = FOREVER
    """Physical offset up to which every key must be in the index."""
    index_counts: tuple[int, ...] | None = None
    """For each index file, the number of its last item plus one; None to take it from the file."""

    @property
    def log_file_size(self) -> int:
        return self.settings.mapped_file_size_commit_log

    @property
    def queue_file_size(self) -> int:
        return self.settings.mapped_file_size_consume_queue

    @property
    def index_files(self) -> tuple[NumberedFile, ...]:
        """The index files whose size fits the geometry."""
        if self.geometry is None or not self.settings.message_index_enable:
            return ()
        return tuple(file for file in self.store_files.index.files if file.size == self.geometry.file_size)

    @property
    def log_min(self) -> int:
        return self.log.files[0].base if self.log.files else 0

    def open_log(self, maps: MapCache) -> AuditLogReader:
        return AuditLogReader(FilesView(self.layout.commit_log, self.log_file_size, maps), self.settings.delay_levels)

    def open_queue(self, maps: MapCache, name: QueueName) -> QueueUnits:
        files = FilesView(path_below(self.layout.consume_queue, *name), self.queue_file_size, maps)
        return QueueUnits(files, self.queues.get(name, NO_FILES))

    def log_path(self, offset: int) -> Path:
        """Returns the path of the file that contains a physical offset."""
        base = offset - offset % self.log_file_size
        return self.layout.commit_log / f"{base:020d}"


def make_plan(files: Files, layout: Layout, settings: Settings, *, is_live: bool, check_crc: bool = True) -> AuditPlan:
    """Lists a store's files and infers their sizes. For a store in use, `with_live_bounds` adds the bounds."""
    store_files = list_store(files, layout)
    noted = read_state(files, layout.dispatched)
    settings, problem = infer_sizes(settings, store_files, None if noted is None else noted.sizes)
    queue_size = settings.mapped_file_size_consume_queue
    return AuditPlan(
        layout,
        settings,
        None if problem else settings.index_geometry,
        store_files,
        check_shape(store_files.log, settings.mapped_file_size_commit_log, LOG_KINDS, live=is_live),
        {
            name: check_shape(folder, queue_size, QUEUE_KINDS, live=is_live)
            for name, folder in store_files.queues.items()
        },
        read_deleted_topics(files, layout.deleted_topics),
        tuple(read_damage(files, layout.damaged)),
        now_ms(),
        check_crc,
        is_live,
        crashed=not is_live and files.exists(layout.abort),
    )


def split_log(plan: AuditPlan, files: Files, size: int = PIECE_SIZE) -> list[AuditRange]:
    """Splits the log into ranges, in log order, without the unwritten ends of files.

    Raises FileNotFoundError if a file is missing, unless the store is in use: retention may have deleted it.
    """
    ranges: list[AuditRange] = []
    with MapCache(files) as maps:
        for file in plan.log.files:
            data = maps.get(file.path)
            if data is None and not plan.is_live and not files.exists(file.path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(file.path))
            if data is None or file.base >= plan.log_limit:
                continue
            written = max((end for _, end in data.map.written_ranges(0)), default=0)
            end = min(written, file.size, plan.log_file_size, plan.log_limit - file.base)
            for start in range(0, end, size):
                ranges.append(AuditRange(file, start, min(start + size, end), start + size >= end))
    return ranges


# -- bounds of a store in use -------------------------------------------------------------------------------------

_UNITS_TRIED = 4
"""How many of a queue's last units are tried until one fits its record; the last may be half written."""


def with_live_bounds(plan: AuditPlan, files: Files) -> AuditPlan:
    """Returns the plan with the current bounds of a store in use."""
    with MapCache(files) as maps:
        reader = plan.open_log(maps)
        counts, index_limit = _index_bounds(plan, maps)
        ends = [_queue_end(plan, maps, reader, name) for name in plan.queues]
        last = reader.record_at(index_limit)
        limit = max([plan.log_min, *ends, 0 if last is None else index_limit + last.size])
        return msgspec.structs.replace(
            plan,
            log_limit=limit,
            dispatched_to=_dispatched_to(reader, limit, plan),
            index_limit=index_limit,
            index_counts=counts,
        )


def _index_bounds(plan: AuditPlan, maps: MapCache) -> tuple[tuple[int, ...], int]:
    """Returns the number after the last item of each file, and the offset of the newest indexed record.

    That record may have more keys that are not indexed yet.
    """
    counts: list[int] = []
    limit = plan.log_min
    for each in plan.index_files:
        file, geometry = maps.get(each.path), plan.geometry or IndexGeometry()
        count = 1
        if file is not None:
            header = IndexHeader.unpack(bytes(file.map.view[:HEADER_SIZE]))
            count = min(max(header.index_count, 1), geometry.items)
            if count > 1:
                limit = ItemTable(file.map, geometry, count, in_order=True).offset_at(count - 1)
        counts.append(count)
    return tuple(counts), limit


def _queue_end(plan: AuditPlan, maps: MapCache, reader: AuditLogReader, name: tuple[str, int]) -> int:
    """Returns the physical offset where the newest record of a queue ends; -1 if the queue has no record."""
    units = plan.open_queue(maps, name)
    end = units.end()
    for number in range(end - 1, max(end - 1 - _UNITS_TRIED, units.first - 1), -1):
        for unit in units.read(number, number + 1):
            record = reader.record_at(int(unit["offset"]))
            if record is not None and record.size == unit["size"]:
                return int(unit["offset"]) + record.size
    return -1


def _dispatched_to(reader: AuditLogReader, limit: int, plan: AuditPlan) -> int:
    """Returns the offset before which a dispatcher has finished all records.

    That is `ROWS_IN_FLIGHT` records before `limit`, or the beginning of the file that contains `limit`.
    """
    file = reader.files.find_any_size(limit - 1) if limit > plan.log_min else None
    if file is None:
        return limit
    data, base = file.map.view[: plan.log_file_size], file.from_offset
    recent: deque[int] = deque(maxlen=ROWS_IN_FLIGHT + 1)
    for rows in valid_rows(data, base, 0, limit - base):
        recent.extend(rows["physical_offset"].tolist())
    return recent[-ROWS_IN_FLIGHT] if len(recent) > ROWS_IN_FLIGHT else base

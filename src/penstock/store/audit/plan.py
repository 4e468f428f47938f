"""What an audit will look at: the files as listed, the sizes they should have, and how far a store in use is settled.

Made once, then only read: it can be pickled and sent to other processes, each of which audits some ranges of the log.

A store in use is looked at as far as its owner had come when the plan was made. The log is read up to the end of the
newest record that a queue or the index knew: nothing before it changes any more. Queues are complete up to `settled`: a
dispatcher works in log order, in steps of at most `ROWS_IN_FLIGHT` records of one file, so what lies further back than
that has its units. The index is complete up to its own last item.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from penstock.clock import now_ms
from penstock.format.index_layout import IndexGeometry
from penstock.store.audit.cover import QueueName
from penstock.store.audit.finding import Finding
from penstock.store.audit.listing import (
    LOG_KINDS,
    QUEUE_KINDS,
    DataFile,
    Shape,
    StoreFiles,
    foreign_findings,
    list_store,
    shape_of,
)
from penstock.store.audit.maps import Maps
from penstock.store.audit.sizes import fit_sizes
from penstock.store.damage import DamagedRange, read_damage
from penstock.store.deleted_topics import read_deleted_topics
from penstock.store.dispatch_state import read_state
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.settings import Settings

PIECE_SIZE = 64 << 20
ROWS_IN_FLIGHT = 32_768
"""As many records as a dispatcher takes in one step, or more."""
FOREVER = 2**63 - 1

NO_FILES = Shape((), (), ())


class Piece(msgspec.Struct, frozen=True):
    """A range of one log file, by position: it owns the records that start in it."""

    file: DataFile
    start: int
    stop: int
    is_last: bool
    """Whether it reaches to the end of what is looked at in its file."""


class Plan(msgspec.Struct, frozen=True):
    """A store, as an audit sees it."""

    layout: Layout
    settings: Settings
    geometry: IndexGeometry | None
    found: StoreFiles
    log: Shape
    queues: dict[QueueName, Shape]
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
    def index_files(self) -> tuple[DataFile, ...]:
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


def survey(files: Files, layout: Layout, settings: Settings, *, is_live: bool, check_crc: bool = True) -> Plan:
    """Lists a store's files and decides their sizes; a store in use is still to be bounded (see `live_bounds`)."""
    found = list_store(files, layout)
    noted = read_state(files, layout.dispatched)
    settings, geometry = fit_sizes(settings, found, None if noted is None else noted.sizes)
    queue_size = settings.mapped_file_size_consume_queue
    return Plan(
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


def pieces(plan: Plan, files: Files, size: int = PIECE_SIZE) -> list[Piece]:
    """The log cut into ranges, in log order; what was never written at the end of a file is left out.

    Raises FileNotFoundError for a file that is gone, unless the store is in use: retention may have taken it.
    """
    made: list[Piece] = []
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
                made.append(Piece(file, start, min(start + size, end), start + size >= end))
    return made

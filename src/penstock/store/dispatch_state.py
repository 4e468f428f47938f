"""The file `penstock/dispatched.json`: how complete queues and index are known to be.

The log does not say whether all its records are in queues and index, and finding out takes a full walk. So after each
thorough sync, and at a clean close, the store writes a snapshot: the log position up to which everything is dispatched,
the unit count of each queue, and the end of the index. If a start finds fewer units than the snapshot says, or a
queue's folder missing, it dispatches again from where that queue ends; otherwise nothing before the position is
missing. This detects a folder removed by hand, also after a crash.

The snapshot is taken before the sync and written after it, before the checkpoint, so neither promises more than is on
disk. It also records the file sizes, to tell a damaged file from a wrong setting. If the file is missing (RocketMQ
writes none), a start checks only what it walks; if it is garbage, the start dispatches the whole log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.io import Files
from penstock.store.settings import Settings
from penstock.store.store_parts import Engine


class QueueNote(msgspec.Struct, frozen=True, array_like=True):
    """One queue in a snapshot."""

    topic: str
    queue_id: int
    count: int
    """Queue offset of the next message."""
    end: int
    """Where the last unit's record ends in the log, -1 if the queue is empty."""


class FileSizes(msgspec.Struct, frozen=True):
    """The sizes with which the store's files were created."""

    commit_log: int
    consume_queue: int
    hash_slots: int
    index_items: int

    @classmethod
    def of(cls, settings: Settings) -> FileSizes:
        return cls(
            settings.mapped_file_size_commit_log,
            settings.mapped_file_size_consume_queue,
            settings.max_hash_slot_num,
            settings.max_index_num,
        )


class DispatchState(msgspec.Struct, frozen=True):
    """What is known to be on disk of queues and index."""

    position: int
    """Physical offset up to which everything was dispatched."""
    flushed: int
    """Physical offset up to which the log was on disk."""
    queues: list[QueueNote]
    index_end: int | None
    """Physical offset of the last indexed record, -1 if the index is empty; None without an index."""
    sizes: FileSizes


def read_state(files: Files, path: Path) -> DispatchState | None:
    return read_checksummed(files, path, DispatchState)


class DispatchNotes:
    """Takes and writes the snapshots of an open store; one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._io = engine.io
        self._path = engine.layout.dispatched
        self._log = engine.log
        self._queues = engine.queues
        self._index = engine.index
        self._dispatcher = engine.dispatcher
        self._sizes = FileSizes.of(engine.settings)
        self._last: DispatchState | None = None

    def snapshot(self) -> DispatchState:
        """The state to write after the next sync of queues and index; take it before that sync."""
        position, flushed = self._dispatcher.position, self._log.queue.flushed_where
        queues = [
            QueueNote(each.topic, each.queue_id, each.max_offset, each.max_physical_offset) for each in self._queues
        ]
        return DispatchState(
            position, flushed, queues, None if self._index is None else self._index.end_offset, self._sizes
        )

    def write(self, state: DispatchState) -> None:
        """Writes the state if it changed. Raises StoreFailed; then the previous file is intact."""
        if state != self._last:
            write_checksummed(self._io, self._path, state)
            self._last = state

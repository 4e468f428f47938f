"""The file `penstock/dispatched.json`: a snapshot of how far the log is dispatched to queues and index.

Without the file, only a walk over the whole log could show whether queues and index contain all its records. So after
each thorough sync (every minute) and at a clean close, the store writes a snapshot: the physical offset up to which
everything is dispatched, the unit count of each queue, and the end of the index. If a start finds a queue with fewer
units than in the snapshot, or its folder missing, it dispatches again from the end of that queue's units. Otherwise no
unit before the snapshot's physical offset is missing. This detects a folder removed by hand, also after a crash.

The snapshot is taken before the sync of queues and index, and written after it; then the checkpoint is written. So
neither promises more than is on disk. The snapshot also records the file sizes, to distinguish a damaged file from a
wrong setting. If the file is missing (RocketMQ writes none), a start checks only the records that recovery walks. If
the file is garbage, the start dispatches the whole log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store.engine_parts import Engine
from penstock.store.files.atomic_files import Natural, NaturalOrNone, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.settings import Settings
from penstock.store.single_record_reader import max_queue_offset


class QueueNote(msgspec.Struct, frozen=True, array_like=True):
    """The entry of one queue in a snapshot."""

    topic: str
    queue_id: Natural
    count: Natural
    """Queue offset that the next message will get."""
    end: NaturalOrNone
    """Physical offset at which the last unit's record ends; -1 if the queue is empty."""

    @property
    def is_possible(self) -> bool:
        """Whether so many records can lie before `end`. A start reserves queue offsets up to `count`."""
        return self.count <= max_queue_offset(max(self.end, 0))


class FileSizes(msgspec.Struct, frozen=True):
    """The sizes that the store's files were created with: bytes of log and queue files, index slots and items."""

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
    """A snapshot: how much of queues, index and log is known to be on disk."""

    position: Natural
    """Physical offset up to which everything was dispatched."""
    flushed: Natural
    """Physical offset up to which the log was on disk."""
    queues: list[QueueNote]
    index_end: NaturalOrNone | None
    """Physical offset of the last indexed record, -1 if the index is empty; None without an index."""
    sizes: FileSizes


def read_state(files: Files, path: Path) -> DispatchState | None:
    """Returns the snapshot without the queues that cannot be as it says; None if it is missing or garbage."""
    state = read_checksummed(files, path, DispatchState)
    if state is None or all(queue.is_possible for queue in state.queues):
        return state
    return msgspec.structs.replace(state, queues=[queue for queue in state.queues if queue.is_possible])


def forget_state(files: Files, path: Path) -> None:
    """Replaces the snapshot by one that says nothing, so that the next start dispatches the whole log.

    Idempotent. Raises StoreFailed; then the old file is intact.
    """
    write_checksummed(files, path, {})


class DispatchNotes:
    """Takes and writes the snapshots of an open store. Only one thread at a time may use it."""

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
        """Takes a snapshot. Callers must take it before a sync of queues and index, and `write` it after that sync."""
        position, flushed = self._dispatcher.position, self._log.queue.flushed_where
        queues = [
            QueueNote(each.topic, each.queue_id, each.max_offset, each.max_physical_offset) for each in self._queues
        ]
        return DispatchState(
            position, flushed, queues, None if self._index is None else self._index.end_offset, self._sizes
        )

    def write(self, state: DispatchState) -> None:
        """Writes the snapshot if it differs from the last one. If it raises StoreFailed, the old file is intact."""
        if state != self._last:
            write_checksummed(self._io, self._path, state)
            self._last = state

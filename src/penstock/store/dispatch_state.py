"""How complete queues and index are known to be: the note `penstock/dispatched.json`.

A log does not say whether all its records are in the queues and in the index, and finding out takes a walk over all of
it. So a note is written at each round in which queues and index were synced, and at a clean close: up to which position
of the log they are complete, how many units each queue has, and how far the index goes. Whatever happens later, a start
that finds a queue with fewer units than the note says, or without its folder, knows that it must dispatch again from
where that queue ends; one that finds as many knows that nothing before the note's position is missing. That is how a
folder removed by hand is noticed, also after a crash.

The counts are taken before the sync, and the note is written after it and before the checkpoint, so neither promises
more than the disk holds. The note also says with which file sizes the store was made, so that a damaged file can be
told from a wrong setting. A note that is missing (RocketMQ writes none) makes a start look at what it walks only; one
that is garbage makes it dispatch the whole log.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.store.atomic_files import read_sealed, write_sealed
from penstock.store.engine import Engine
from penstock.store.io import Files
from penstock.store.settings import Settings


class QueueNote(msgspec.Struct, frozen=True, array_like=True):
    """One queue at the time of a note."""

    topic: str
    queue_id: int
    count: int
    """The queue offset that the next message would get."""
    end: int
    """Where the record of the last unit ends in the log, -1 if there is none."""


class FileSizes(msgspec.Struct, frozen=True):
    """What the files were made with."""

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
    """Physical offset of the last indexed record, -1 if there is none; None if there was no index."""
    sizes: FileSizes


def read_state(files: Files, path: Path) -> DispatchState | None:
    return read_sealed(files, path, DispatchState)


class DispatchNotes:
    """Takes and writes the notes of an open store; one thread at a time."""

    def __init__(self, engine: Engine) -> None:
        self._io = engine.io
        self._path = engine.layout.dispatched
        self._log = engine.log
        self._queues = engine.queues
        self._index = engine.index
        self._dispatcher = engine.dispatcher
        self._sizes = FileSizes.of(engine.settings)
        self._last: DispatchState | None = None

    def take(self) -> DispatchState:
        """What a note may say once queues and index were synced: to be asked for before that."""
        position, flushed = self._dispatcher.position, self._log.queue.flushed_where
        noted = [
            QueueNote(each.topic, each.queue_id, each.max_offset, each.max_physical_offset) for each in self._queues
        ]
        return DispatchState(
            position, flushed, noted, None if self._index is None else self._index.end_offset, self._sizes
        )

    def write(self, state: DispatchState) -> None:
        """Raises StoreFailed, and then the note before it still holds."""
        if state != self._last:
            write_sealed(self._io, self._path, state)
            self._last = state

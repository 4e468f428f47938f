"""Topics that were deleted, and up to where, and queues that began anew: `penstock/deleted_topics.json`.

A topic's records stay in the log until the log's files go, so whoever builds queues from the log would bring a deleted
topic back. The file holds, for each such topic, the physical offset before which its records get no units; what was put
later under the same name is a new topic, whose queues begin at 0. A slave also notes single queues whose messages begin
at 0 again, as it sees them before it hears what was deleted. An entry is forgotten once the log begins behind it.

The file is replaced atomically before anything is removed, so a crash leaves a topic that is there, or one whose
removal the next start completes before it loads the queues. One owner of the store writes it, anyone reads it. If it
is lost, deleted topics can come back with whatever of them is still in the log; nothing else depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from penstock.format.queue_unit import UNIT_SIZE, unpack_unit
from penstock.store.atomic_files import read_sealed, write_sealed
from penstock.store.io import Files
from penstock.store.layout import Layout

log = logging.getLogger("penstock.store")
Queue = tuple[str, int]


class _Document(msgspec.Struct):
    topics: dict[str, int]
    queues: list[tuple[str, int, int]] = []
    """Topic, queue id, and the offset before which the queue's records do not count."""


def read_deleted_topics(files: Files, path: Path) -> dict[str, int]:
    """The physical offset before which a topic's records do not count, by topic; none if there is no usable file."""
    return _read(files, path).topics


def _read(files: Files, path: Path) -> _Document:
    found = read_sealed(files, path, _Document)
    if found is None and files.exists(path):
        log.warning("%s cannot be read; topics that were deleted may come back", path)
    return found or _Document({})


class DeletedTopics:
    """The entries of an open store. Safe to read from any thread; whoever changes them makes sure to be alone."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self.ends: Mapping[str, int] = {}
        """By topic, the offset before which its records get no units. Replaced, never changed in place."""
        self.restarts: Mapping[Queue, int] = {}
        """The same by queue, for those that began anew."""

    def load(self, layout: Layout | None) -> Mapping[str, int]:
        """Reads the entries and completes what a crash cut short; called before the queues are loaded.

        Without a layout the queues are another process's, which completes it.
        """
        found = _read(self._io, self._path)
        self.ends = found.topics
        self.restarts = {(topic, queue_id): begin for topic, queue_id, begin in found.queues}
        if layout is not None:
            self._complete(layout)
        return self.ends

    def add(self, topics: Iterable[str], log_end: int) -> None:
        """Remembers that all records so far of these topics are deleted. Raises StoreFailed and changes nothing."""
        self.add_ends(dict.fromkeys(topics, log_end))

    def add_ends(self, ends: Mapping[str, int]) -> None:
        """Remembers that the records before these offsets are deleted. Raises StoreFailed and changes nothing."""
        self._replace({**self.ends, **ends}, self.restarts)

    def add_restart(self, topic: str, queue_id: int, begin: int) -> None:
        """Remembers where a queue begins anew. Raises StoreFailed and changes nothing."""
        self._replace(self.ends, {**self.restarts, (topic, queue_id): begin})

    def forget_before(self, log_min_offset: int) -> None:
        """Drops the entries that have nothing to say any more. Raises StoreFailed and changes nothing."""
        kept = {topic: end for topic, end in self.ends.items() if end > log_min_offset}
        begun = {queue: begin for queue, begin in self.restarts.items() if begin > log_min_offset}
        if len(kept) < len(self.ends) or len(begun) < len(self.restarts):
            self._replace(kept, begun)

    def _replace(self, ends: Mapping[str, int], restarts: Mapping[Queue, int]) -> None:
        queues = [(*queue, begin) for queue, begin in sorted(restarts.items())]
        write_sealed(self._io, self._path, _Document(dict(sorted(ends.items())), queues))
        self.ends, self.restarts = ends, restarts

    def _complete(self, layout: Layout) -> None:
        """Removes queue files that a crash left of deleted topics.

        A file belongs to the old topic if its first unit does: the new one begins with a file of its own.
        """
        for topic, end in self.ends.items():
            for name in self._names(layout.consume_queue / topic):
                self._complete_queue(layout.consume_queue / topic / name, end)
        for (topic, queue_id), begin in self.restarts.items():
            self._complete_queue(layout.consume_queue / topic / str(queue_id), begin)

    def _complete_queue(self, folder: Path, end: int) -> None:
        old = [path for path in map(folder.joinpath, self._names(folder)) if self._first_offset(path) < end]
        for path in old:
            self._io.unlink(path)
        if old:
            self._io.remove_folder(folder)
            self._io.remove_folder(folder.parent)

    def _names(self, folder: Path) -> list[str]:
        return self._io.names(folder) if self._io.is_folder(folder) else []

    def _first_offset(self, path: Path) -> int:
        """Where the record of a queue file's first unit lies; the highest offset if it has none."""
        data = b"" if self._io.is_folder(path) else self._io.read_bytes(path)[:UNIT_SIZE]
        offset, size, _ = unpack_unit(data) if len(data) == UNIT_SIZE else (0, 0, 0)
        return offset if size > 0 else 2**63 - 1

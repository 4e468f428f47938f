"""The file `penstock/deleted_topics.json`: deleted topics, and queues that restarted at offset 0.

A deleted topic's records stay in the log until the log files expire, so a rebuild of the queues would bring the topic
back. The file holds, for each deleted topic, the physical offset before which the topic's records get no units.
Messages put later under the same name form a new topic, whose queues start at queue offset 0. A slave may receive such
messages before it learns of the deletion. It then notes each single queue that restarts at 0. So does the deletion of
queues without messages. An entry is dropped once the log starts at or after the entry's physical offset, and no
snapshot of dispatch has the deleted queue any more. An entry in a tail of the log that is cut is dropped with the tail.

The file is replaced atomically before any queue file is removed. So a crash leaves either the whole topic, or a removal
that the next start completes before it loads the queues. The store's owner writes the file; any process may read it. If
the file is lost, deleted topics reappear with those messages that are still in the log. Nothing else is affected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from penstock.errors import StoreFailed
from penstock.format.queue_unit import NO_RECORD_SIZE, UNIT, UNIT_SIZE
from penstock.format.topics import is_readable_topic
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below

log = logging.getLogger("penstock.store")
Queue = tuple[str, int]
_NO_RECORD, _NO_UNIT = 2**63 - 1, -1


class _Document(msgspec.Struct):
    topics: dict[str, Natural]
    queues: list[tuple[str, Natural, Natural]] = []
    """For each restarted queue: topic, queue id, and the physical offset before which its records get no units."""


def read_deleted_topics(files: Files, path: Path) -> dict[str, int]:
    """Returns, by topic, the offset before which its records get no units; empty if the file is missing or garbage."""
    return _read(files, path).topics


def restarted_topics(files: Files, path: Path) -> set[str]:
    """Returns the topics of which the log may hold records that are in no queue: deleted, or restarted at offset 0."""
    document = _read(files, path)
    return {*document.topics, *(topic for topic, _, _ in document.queues)}


def _read(files: Files, path: Path) -> _Document:
    document = read_checksummed(files, path, _Document)
    if document is None and files.exists(path):
        log.warning("%s cannot be read; deleted topics may reappear", path)
    if document is None:
        return _Document({})
    topics = {topic: end for topic, end in document.topics.items() if is_readable_topic(topic)}
    if len(topics) < len(document.topics):
        log.warning("%s holds names that are no topics; they are ignored", path)
    return _Document(topics, [queue for queue in document.queues if is_readable_topic(queue[0])])


class DeletedTopics:
    """The entries of an open store. Any thread may read them; one thread at a time may change them."""

    def __init__(self, files: Files, path: Path) -> None:
        self._io = files
        self._path = path
        self.ends: Mapping[str, int] = {}
        """By topic, the physical offset before which its records get no units. Replaced, never changed in place."""
        self.restarts: Mapping[Queue, int] = {}
        """Like `ends`, by (topic, queue id), for queues that restarted at queue offset 0."""

    def load(self, layout: Layout | None) -> Mapping[str, int]:
        """Reads the entries and completes interrupted removals. Returns `ends`. Must run before the queues are loaded.

        Pass None as `layout` if another process owns the queues: then that process completes the removals.
        """
        document = _read(self._io, self._path)
        self.ends = document.topics
        self.restarts = {(topic, queue_id): begin for topic, queue_id, begin in document.queues}
        if layout is not None:
            self._complete_removals(layout)
        return self.ends

    def add(self, topics: Iterable[str], log_end: int) -> None:
        """Marks these topics as deleted up to `log_end`. If it raises StoreFailed, nothing changed."""
        self.add_ends(dict.fromkeys(topics, log_end))

    def add_ends(self, ends: Mapping[str, int]) -> None:
        """Marks topics as deleted up to their physical offset in `ends`. If it raises StoreFailed, nothing changed.

        Raises it also if a name is not a topic: a slave gets the names from its master.
        """
        if bad := [topic for topic in ends if not is_readable_topic(topic)]:
            raise StoreFailed(
                f"{bad[0][:80]!r} is not a topic, so it cannot be deleted; check its master", path=self._path
            )
        self._replace({**self.ends, **ends}, self.restarts)

    def add_restarts(self, queues: Iterable[Queue], begin: int) -> None:
        """Notes the physical offset at which queues restart at 0. If it raises StoreFailed, nothing changed."""
        self._replace(self.ends, {**self.restarts, **dict.fromkeys(queues, begin)})

    def forget_before(self, log_min_offset: int, noted: Mapping[Queue, int], layout: Layout) -> None:
        """Drops entries at or before `log_min_offset`. If it raises StoreFailed or OSError, nothing changed.

        `noted` are the queues in the last snapshot of dispatch, each with the physical offset at which it ends. An
        entry stays while the snapshot has a queue that it deletes: a start after a crash would bring the queue back.
        Before an entry goes, the removal of its queue files is synced: a power loss would bring the files back.
        """
        needed = {topic for (topic, _), end in noted.items() if end <= self.ends.get(topic, -1)}
        kept = {topic: end for topic, end in self.ends.items() if end > log_min_offset or topic in needed}
        begun = {
            queue: begin
            for queue, begin in self.restarts.items()
            if begin > log_min_offset or noted.get(queue, begin + 1) <= begin
        }
        dropped = {*self.ends.keys() - kept.keys(), *(topic for topic, _ in self.restarts.keys() - begun.keys())}
        if dropped:
            self._sync_removals(dropped, layout)
            self._replace(kept, begun)

    def _sync_removals(self, topics: Iterable[str], layout: Layout) -> None:
        for topic in topics:
            folder = path_below(layout.consume_queue, topic)
            for each in (*map(folder.joinpath, self._names(folder)), folder):
                if self._io.is_folder(each):
                    self._io.sync_folder(each)
        if self._io.is_folder(layout.consume_queue):
            self._io.sync_folder(layout.consume_queue)

    def cut_to(self, log_end: int) -> None:
        """Makes no entry reach past `log_end`. If it raises StoreFailed, nothing changed."""
        if any(end > log_end for end in (*self.ends.values(), *self.restarts.values())):
            ends = {topic: min(end, log_end) for topic, end in self.ends.items()}
            self._replace(ends, {queue: min(begin, log_end) for queue, begin in self.restarts.items()})

    def has_from(self, offset: int) -> bool:
        """Whether an entry lies at or behind the physical offset."""
        return any(end >= offset for end in (*self.ends.values(), *self.restarts.values()))

    def drop_from(self, offset: int) -> None:
        """Drops the entries at or behind `offset`, where a replica's log was cut. If it raises StoreFailed, nothing
        changed.

        They belong to a history that is not the master's. One just at `offset` may belong to both; then the master
        names it again. The caller must have the log dispatched again from its beginning: the queues are gone.
        """
        ends = {topic: end for topic, end in self.ends.items() if end < offset}
        self._replace(ends, {queue: begin for queue, begin in self.restarts.items() if begin < offset})

    def _replace(self, ends: Mapping[str, int], restarts: Mapping[Queue, int]) -> None:
        queues = [(*queue, begin) for queue, begin in sorted(restarts.items())]
        write_checksummed(self._io, self._path, _Document(dict(sorted(ends.items())), queues))
        self.ends, self.restarts = ends, restarts

    def _complete_removals(self, layout: Layout) -> None:
        """Removes the queue files of deleted topics that a crash left.

        The new topic of the same name starts with new files. So a file belongs to the deleted topic if its first unit
        with a record points before the deletion's physical offset. A queue without any unit holds nothing, and goes as
        well: a power loss can bring back the name of a file, and not its content. A queue whose units all point to no
        record stays: they may be those of the new topic, whose messages were lost, and their offsets are taken.
        """
        for topic, end in self.ends.items():
            for name in self._names(path_below(layout.consume_queue, topic)):
                self._complete_queue(path_below(layout.consume_queue, topic, name), end)
        for (topic, queue_id), begin in self.restarts.items():
            self._complete_queue(path_below(layout.consume_queue, topic, queue_id), begin)

    def _complete_queue(self, folder: Path, end: int) -> None:
        first = {path: self._first_offset(path) for path in map(folder.joinpath, self._names(folder))}
        known = [offset for offset in first.values() if 0 <= offset < _NO_RECORD]
        if any(offset >= end for offset in known):
            old = [path for path, offset in first.items() if 0 <= offset < end]
        else:
            old = [*first] if known or _NO_RECORD not in first.values() else []
        for path in old:
            self._io.unlink(path)
        if old:
            self._io.remove_folder(folder)
            self._io.remove_folder(folder.parent)

    def _names(self, folder: Path) -> list[str]:
        return self._io.names(folder) if self._io.is_folder(folder) else []

    def _first_offset(self, path: Path) -> int:
        """Returns the physical offset in the first unit of a queue file that points to a record.

        Units without a record may precede it: those of messages that the log has lost. Returns `_NO_RECORD` if there
        are only such units, and `_NO_UNIT` if there are none.
        """
        data = b"" if self._io.is_folder(path) else self._io.read_bytes(path)
        units = np.frombuffer(data, UNIT, len(data) // UNIT_SIZE)
        units = units[units["size"] > 0]
        real = units[units["size"] != NO_RECORD_SIZE]
        if len(real):
            return int(real["offset"][0])
        return _NO_RECORD if len(units) else _NO_UNIT

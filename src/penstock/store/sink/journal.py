"""The files that make a batch atomic and idempotent: the journal, and a mark for each query or named write.

    penstock/sink/journal.json               the pending batch, and where the last batches lie in the log
    penstock/sink/marks/query-<hash>.json    the last stored batch of a query; all earlier ones are stored, too
    penstock/sink/marks/write-<hash>.json    a stored write that has a name

Only the owner of the store writes these files, atomically; any process may read them. A batch is pending from before
its first byte is in the log until after its mark is on disk. A reader of a store in use must not end inside a batch:
`whole_batches` returns where to end instead. The journal keeps the last MAX_SPANS batches, because a batch may begin
and end while a reader scans. A store without batches has no journal.

There are at most MAX_MARKS marks of each kind. The oldest is removed first. If a batch is repeated after the removal of
its mark, it is stored again.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadStore
from penstock.store.files.atomic_files import Natural, read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout, path_below

MAX_MARKS: Final = 10_000


class WriterKind(StrEnum):
    """The kind of writer that a batch belongs to."""

    QUERY = "query"
    """A streaming query, whose batches are numbered."""
    WRITE = "write"
    """A write that has a name."""
    ONCE = "once"
    """A write without a name, which cannot be repeated: its mark is removed at the end."""


class Identity(msgspec.Struct, frozen=True):
    """Identifies a batch. A batch with the same identity is stored at most once."""

    kind: WriterKind
    name: str
    batch_id: int = 0

    @property
    def key(self) -> str:
        """A file name for the query or the write; the same for all batches of a query."""
        return f"{self.kind}-{hashlib.sha256(self.name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    def __str__(self) -> str:
        if self.kind is WriterKind.QUERY:
            return f"batch {self.batch_id} of query {self.name}"
        return f"write '{self.name}'" if self.kind is WriterKind.WRITE else "the write"


class BatchMark(msgspec.Struct, frozen=True):
    """Proof that a batch is stored."""

    identity: Identity
    start: Natural
    end: Natural
    """Physical offsets: the batch lies in [start, end)."""
    rows: Natural

    def covers(self, identity: Identity) -> bool:
        mine = self.identity
        return (mine.kind, mine.name) == (identity.kind, identity.name) and mine.batch_id >= identity.batch_id


def find_mark(files: Files, layout: Layout, identity: Identity) -> BatchMark | None:
    """Returns the mark that shows that a batch is stored; None if the mark is missing or invalid."""
    mark = read_checksummed(files, _path(layout, identity), BatchMark)
    return mark if mark is not None and mark.covers(identity) else None


def check_mark_readable(files: Files, layout: Layout, identity: Identity) -> None:
    """Raises BadStore if the mark exists but is invalid: then it is unknown whether the batch is stored."""
    path = _path(layout, identity)
    if files.exists(path) and read_checksummed(files, path, BatchMark) is None:
        raise BadStore(
            f"the mark cannot be read, so it is unknown whether {identity} is stored already; remove the mark to store "
            "the batch (again)",
            path=path,
        )


def write_mark(files: Files, layout: Layout, mark: BatchMark) -> None:
    """Writes a mark. Raises StoreFailed; the batch then does not count as stored."""
    write_checksummed(files, _path(layout, mark.identity), mark)


def remove_mark(files: Files, layout: Layout, identity: Identity) -> None:
    """Removes the mark of a query or write. Raises OSError."""
    files.unlink(_path(layout, identity))


def remove_old_marks(files: Files, layout: Layout, most: int = MAX_MARKS) -> None:
    """Removes all but the newest `most` marks of each kind. Raises OSError."""
    names = files.names(layout.sink_marks)
    for kind in WriterKind:
        paths = [layout.sink_marks / name for name in names if name.startswith(f"{kind}-") and name.endswith(".json")]
        if len(paths) > most:
            paths.sort(key=files.modified_ms)
            for path in paths[:-most]:
                files.unlink(path)


def _path(layout: Layout, identity: Identity) -> Path:
    return path_below(layout.sink_marks, f"{identity.key}.json")


MAX_SPANS: Final = 256
_UNKNOWN: Final = 2**63 - 1


class Intent(msgspec.Struct, frozen=True):
    """A batch that is about to be appended."""

    identity: Identity
    start: Natural
    """Physical offset where the log ended before the batch."""
    born_timestamp: int
    """The born timestamp of all records of the batch; distinguishes them from other records after `start`."""
    rows: int


class BatchSpan(msgspec.Struct, frozen=True, array_like=True):
    """A complete batch lies in the log at the physical offsets [start, end)."""

    start: Natural
    end: Natural


class Journal(msgspec.Struct, frozen=True):
    """The pending batch, and the last complete ones, oldest first."""

    pending: Intent | None = None
    spans: tuple[BatchSpan, ...] = ()

    def committed(self, end: int) -> Journal:
        """Returns the journal for when the pending batch is stored. `end`: where the batch ends in the log."""
        assert self.pending is not None, "a batch is pending"
        spans = (*self.spans, BatchSpan(self.pending.start, end))
        return Journal(None, spans[-MAX_SPANS:])

    def rolled_back(self) -> Journal:
        """Returns the journal for when the pending batch is removed from the log."""
        return Journal(None, self.spans)


def read_journal(files: Files, layout: Layout) -> Journal | None:
    """Reads the journal; returns None if it is missing or invalid. `files.exists` distinguishes the two cases."""
    return read_checksummed(files, layout.sink_journal, Journal)


def write_journal(files: Files, layout: Layout, journal: Journal) -> None:
    """Writes the journal. Raises StoreFailed; the old journal then stays."""
    write_checksummed(files, layout.sink_journal, journal)


def pending_start(files: Files, layout: Layout) -> int | None:
    """Returns the physical offset of the incomplete batch, whether its writer runs or was killed; None without one.

    A reader that scans for the log's end needs `whole_batches` instead: a batch may begin and end during the scan.
    """
    journal = read_journal(files, layout)
    if journal is None or journal.pending is None or find_mark(files, layout, journal.pending.identity) is not None:
        return None
    return journal.pending.start


def whole_batches(files: Files, layout: Layout, end: int) -> int:
    """Returns the highest log position up to `end` that is not inside a batch.

    Callers must determine the log's end first.
    """
    journal = read_journal(files, layout)
    if journal is None:
        return end
    spans = journal.spans
    if journal.pending is not None:
        mark = find_mark(files, layout, journal.pending.identity)
        spans = (*spans, BatchSpan(journal.pending.start, _UNKNOWN if mark is None else mark.end))
    return next((span.start for span in spans if span.start < end < span.end), end)

"""Which batches are stored: a small file for each streaming query, and for each write that has a name.

    penstock/sink/marks/query-<hash>.json    the last batch of a query: those before it are stored, too
    penstock/sink/marks/write-<hash>.json    a write that was given a name

Written by the owner of the store, after the batch is on disk. There are at most MAX_MARKS of a kind: then the oldest
goes, and whoever comes back with its name after so many others is stored once more.


The batch that is being appended to the log, and where the last ones lie: `penstock/sink/journal.json`.

Written by the owner of the store only, atomically; read by anybody. A batch is pending from before its first byte is in
the log until after it was marked as stored. Readers of a store in use, which see the log grow, must not end within a
batch: `whole_batches` says where to end instead. A batch may have come and gone while they looked, which is why the
places of the last ones stay here. A store that no batch was ever written to has no journal.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadStore
from penstock.store.atomic_files import read_checksummed, write_checksummed
from penstock.store.io import Files
from penstock.store.layout import Layout

MAX_MARKS: Final = 10_000


class WriterKind(StrEnum):
    """What a batch belongs to."""

    QUERY = "query"
    """A streaming query, whose batches are numbered."""
    WRITE = "write"
    """A write that was given a name."""
    ONCE = "once"
    """A write without one, which nobody can bring again: its mark goes when it is done."""


class Identity(msgspec.Struct, frozen=True):
    """Names a batch: the same one is stored once."""

    kind: WriterKind
    name: str
    batch_id: int = 0

    @property
    def key(self) -> str:
        """The query or the write as a name for files."""
        return f"{self.kind}-{hashlib.sha256(self.name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    def __str__(self) -> str:
        if self.kind is WriterKind.QUERY:
            return f"batch {self.batch_id} of query {self.name}"
        return f"write '{self.name}'" if self.kind is WriterKind.WRITE else "the write"


class BatchMark(msgspec.Struct, frozen=True):
    """A batch that is stored."""

    identity: Identity
    start: int
    end: int
    """Where it lies in the log."""
    rows: int

    def covers(self, identity: Identity) -> bool:
        mine = self.identity
        return (mine.kind, mine.name) == (identity.kind, identity.name) and mine.batch_id >= identity.batch_id


def find_mark(files: Files, layout: Layout, identity: Identity) -> BatchMark | None:
    """The mark that says that a batch is stored; None if there is none, or none that can be read."""
    found = read_checksummed(files, _path(layout, identity), BatchMark)
    return found if found is not None and found.covers(identity) else None


def check_readable(files: Files, layout: Layout, identity: Identity) -> None:
    """Raises BadStore if there is a mark that cannot be read: nobody knows then what is stored."""
    path = _path(layout, identity)
    if files.exists(path) and read_checksummed(files, path, BatchMark) is None:
        raise BadStore(
            f"the mark cannot be read, so it cannot be told whether {identity} is stored already; remove it to have "
            "the batch stored (again)",
            path=path,
        )


def write_mark(files: Files, layout: Layout, mark: BatchMark) -> None:
    """Raises StoreFailed, and then the batch does not count as stored."""
    write_checksummed(files, _path(layout, mark.identity), mark)


def remove_mark(files: Files, layout: Layout, identity: Identity) -> None:
    """Raises OSError."""
    files.unlink(_path(layout, identity))


def remove_old_marks(files: Files, layout: Layout, most: int = MAX_MARKS) -> None:
    """Keeps the newest of each kind."""
    names = files.names(layout.sink_marks)
    for kind in WriterKind:
        paths = [layout.sink_marks / name for name in names if name.startswith(f"{kind}-") and name.endswith(".json")]
        if len(paths) > most:
            paths.sort(key=files.modified_ms)
            for path in paths[:-most]:
                files.unlink(path)


def _path(layout: Layout, identity: Identity) -> Path:
    return layout.sink_marks / f"{identity.key}.json"


MAX_SPANS: Final = 256
_UNKNOWN: Final = 2**63 - 1


class Intent(msgspec.Struct, frozen=True):
    """A batch that is about to be appended."""

    identity: Identity
    start: int
    """Where the log ended before."""
    born_timestamp: int
    """Every record of the batch has it, so that the batch's records can be told from others behind the start."""
    rows: int


class BatchSpan(msgspec.Struct, frozen=True, array_like=True):
    """Where a whole batch lies in the log."""

    start: int
    end: int


class Journal(msgspec.Struct, frozen=True):
    """What is known of the batches of a store."""

    pending: Intent | None = None
    spans: tuple[BatchSpan, ...] = ()

    def ended(self, end: int) -> Journal:
        """After the pending batch was stored up to `end`."""
        assert self.pending is not None, "a batch ends that was begun"
        spans = (*self.spans, BatchSpan(self.pending.start, end))
        return Journal(None, spans[-MAX_SPANS:])

    def given_up(self) -> Journal:
        """After nothing of the pending batch is in the log any more."""
        return Journal(None, self.spans)


def read_journal(files: Files, layout: Layout) -> Journal | None:
    """None if there is none, or if it cannot be read, which `files.exists` tells apart."""
    return read_checksummed(files, layout.sink_journal, Journal)


def write_journal(files: Files, layout: Layout, journal: Journal) -> None:
    """Raises StoreFailed, and then the old one is still there."""
    write_checksummed(files, layout.sink_journal, journal)


def pending_start(files: Files, layout: Layout) -> int | None:
    """Where the batch begins that is being appended, or was when its writer was killed; None if there is none.

    A reader that has found the log's end wants `whole_batches`: batches may have come and gone while it looked.
    """
    journal = read_journal(files, layout)
    if journal is None or journal.pending is None or find_mark(files, layout, journal.pending.identity) is not None:
        return None
    return journal.pending.start


def whole_batches(files: Files, layout: Layout, end: int) -> int:
    """The highest position up to `end` that lies within no batch. To be asked after the log's end was found."""
    journal = read_journal(files, layout)
    if journal is None:
        return end
    spans = journal.spans
    if journal.pending is not None:
        mark = find_mark(files, layout, journal.pending.identity)
        spans = (*spans, BatchSpan(journal.pending.start, _UNKNOWN if mark is None else mark.end))
    return next((span.start for span in spans if span.start < end < span.end), end)

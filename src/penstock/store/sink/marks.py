"""Which batches are stored: a small file for each streaming query, and for each write that has a name.

    penstock/sink/marks/query-<hash>.json    the last batch of a query: those before it are stored, too
    penstock/sink/marks/write-<hash>.json    a write that was given a name

Written by the owner of the store, after the batch is on disk. There are at most MOST_MARKS of a kind: then the oldest
goes, and whoever comes back with its name after so many others is stored once more.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import BadStore
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.sealed_json import read_sealed, write_sealed

MOST_MARKS: Final = 10_000


class Kind(StrEnum):
    """What a batch belongs to."""

    QUERY = "query"
    """A streaming query, whose batches are numbered."""
    WRITE = "write"
    """A write that was given a name."""
    ONCE = "once"
    """A write without one, which nobody can bring again: its mark goes when it is done."""


class Identity(msgspec.Struct, frozen=True):
    """Names a batch: the same one is stored once."""

    kind: Kind
    name: str
    batch_id: int = 0

    @property
    def key(self) -> str:
        """The query or the write as a name for files."""
        return f"{self.kind}-{hashlib.sha256(self.name.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"

    def __str__(self) -> str:
        if self.kind is Kind.QUERY:
            return f"batch {self.batch_id} of query {self.name}"
        return f"write '{self.name}'" if self.kind is Kind.WRITE else "the write"


class Mark(msgspec.Struct, frozen=True):
    """A batch that is stored."""

    identity: Identity
    start: int
    end: int
    """Where it lies in the log."""
    rows: int

    def covers(self, identity: Identity) -> bool:
        mine = self.identity
        return (mine.kind, mine.name) == (identity.kind, identity.name) and mine.batch_id >= identity.batch_id


def find_mark(files: Files, layout: Layout, identity: Identity) -> Mark | None:
    """The mark that says that a batch is stored; None if there is none, or none that can be read."""
    found = read_sealed(files, _path(layout, identity), Mark)
    return found if found is not None and found.covers(identity) else None


def check_readable(files: Files, layout: Layout, identity: Identity) -> None:
    """Raises BadStore if there is a mark that cannot be read: nobody knows then what is stored."""
    path = _path(layout, identity)
    if files.exists(path) and read_sealed(files, path, Mark) is None:
        raise BadStore(
            f"the mark cannot be read, so it cannot be told whether {identity} is stored already; remove it to have "
            "the batch stored (again)",
            path=path,
        )


def write_mark(files: Files, layout: Layout, mark: Mark) -> None:
    """Raises StoreFailed, and then the batch does not count as stored."""
    write_sealed(files, _path(layout, mark.identity), mark)


def remove_mark(files: Files, layout: Layout, identity: Identity) -> None:
    """Raises OSError."""
    files.unlink(_path(layout, identity))


def remove_old_marks(files: Files, layout: Layout, most: int = MOST_MARKS) -> None:
    """Keeps the newest of each kind."""
    names = files.names(layout.sink_marks)
    for kind in Kind:
        paths = [layout.sink_marks / name for name in names if name.startswith(f"{kind}-") and name.endswith(".json")]
        if len(paths) > most:
            paths.sort(key=files.modified_ms)
            for path in paths[:-most]:
                files.unlink(path)


def _path(layout: Layout, identity: Identity) -> Path:
    return layout.sink_marks / f"{identity.key}.json"

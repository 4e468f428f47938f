"""The batch that is being appended to the log, and where the last ones lie: `penstock/sink/journal.json`.

Written by the owner of the store only, atomically; read by anybody. A batch is pending from before its first byte is in
the log until after it was marked as stored. Readers of a store in use, which see the log grow, must not end within a
batch: `whole_batches` says where to end instead. A batch may have come and gone while they looked, which is why the
places of the last ones stay here. A store that no batch was ever written to has no journal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.sealed_json import read_sealed, write_sealed
from penstock.store.sink.marks import Identity, find_mark

MOST_SPANS: Final = 256
_UNKNOWN: Final = 2**63 - 1


class Intent(msgspec.Struct, frozen=True):
    """A batch that is about to be appended."""

    identity: Identity
    start: int
    """Where the log ended before."""
    born_timestamp: int
    """Every record of the batch has it, so that the batch's records can be told from others behind the start."""
    rows: int


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Where a whole batch lies in the log."""

    start: int
    end: int


class Journal(msgspec.Struct, frozen=True):
    """What is known of the batches of a store."""

    pending: Intent | None = None
    spans: tuple[Span, ...] = ()

    def ended(self, end: int) -> Journal:
        """After the pending batch was stored up to `end`."""
        assert self.pending is not None, "a batch ends that was begun"
        spans = (*self.spans, Span(self.pending.start, end))
        return Journal(None, spans[-MOST_SPANS:])

    def given_up(self) -> Journal:
        """After nothing of the pending batch is in the log any more."""
        return Journal(None, self.spans)


def read_journal(files: Files, layout: Layout) -> Journal | None:
    """None if there is none, or if it cannot be read, which `files.exists` tells apart."""
    return read_sealed(files, layout.sink_journal, Journal)


def write_journal(files: Files, layout: Layout, journal: Journal) -> None:
    """Raises StoreFailed, and then the old one is still there."""
    write_sealed(files, layout.sink_journal, journal)


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
        spans = (*spans, Span(journal.pending.start, _UNKNOWN if mark is None else mark.end))
    return next((span.start for span in spans if span.start < end < span.end), end)

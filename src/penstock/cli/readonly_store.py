"""`open_readonly`, which opens a store for the verbs that only read.

It prints notes to stderr, one sentence each: if the store is in use, if it was not closed cleanly, what recovery would
report at the next start, and if the index cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.output import write_note
from penstock.cli.progress import ProgressLine
from penstock.store import MessageStore
from penstock.store.readonly.store_folder import StoreFolder, quiet_log

_MAX_NOTES = 5


class ReadOnlyStore(NamedTuple):
    """A store opened for reading only."""

    store: MessageStore
    place: StoreFolder
    index_problem: str


@contextlib.contextmanager
def open_readonly(
    folder: Path, config: Path | None, pairs: Sequence[str] | None, *, needs_index: bool = False, **defaults: Any
) -> Iterator[ReadOnlyStore]:
    """Opens a store read-only, in the state that recovery would give it at the next start.

    `defaults` are values for settings that neither `config` nor `pairs` sets.
    """
    place = StoreFolder.find(folder, config, pairs)
    with ProgressLine() as line:
        store, problem = place.view(needs_index=needs_index, progress=line.report, **defaults)
    with quiet_log(), store:
        view = ReadOnlyStore(store, place, problem)
        _note_findings(view)
        yield view


def note_state(place: StoreFolder, shown: str) -> None:
    """Prints a note to stderr if a store is in use or was not closed cleanly. `shown` says which state the output
    shows.
    """
    root = place.layout.root
    if place.owner:
        write_note(f"{root} is in use by {owner_name(place.owner)}: {shown}, as of now.")
    elif not place.closed_cleanly:
        write_note(f"{root} was not closed cleanly: {shown}.")


def _note_findings(view: ReadOnlyStore) -> None:
    note_state(view.place, "showing the store as a start would serve it")
    if view.index_problem and view.place.settings.message_index_enable:
        write_note(f"{view.index_problem}.")
    findings = view.store.report.notes
    for finding in findings[:_MAX_NOTES]:
        write_note(f"a start would report: {finding}.")
    if len(findings) > _MAX_NOTES:
        write_note(f"and {len(findings) - _MAX_NOTES} more; `penstock store info {view.place.layout.root}` lists them.")


def owner_name(owner: int) -> str:
    """Returns a name for the process that owns a store. A process of another container or host has no pid here."""
    return f"process {owner}" if owner > 0 else "another process"

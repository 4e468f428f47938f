"""Opens a store for reading only, and says what a reader should know about it on stderr, one sentence each.

That the store is in use or was not closed, what a start would find, and that the index does not fit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.output import say
from penstock.cli.progress import ProgressLine
from penstock.store import MessageStore
from penstock.store.folder import StoreFolder, quiet_log

_NOTES_SAID = 5


class View(NamedTuple):
    """A store opened for reading only."""

    store: MessageStore
    place: StoreFolder
    index_problem: str


@contextlib.contextmanager
def open_view(
    folder: Path, config: Path | None, pairs: Sequence[str] | None, *, needs_index: bool = False, **defaults: Any
) -> Iterator[View]:
    """The store as a start would serve it. `defaults` change settings that were not given."""
    place = StoreFolder.find(folder, config, pairs)
    with ProgressLine() as line:
        store, problem = place.view(needs_index=needs_index, progress=line.tell, **defaults)
    with quiet_log(), store:
        view = View(store, place, problem)
        _say_all(view)
        yield view


def say_state(place: StoreFolder, shown: str) -> None:
    """Says what is not as after a clean exit, and what is `shown` instead."""
    root = place.layout.root
    if place.owner:
        say(f"{root} is in use by {owner_name(place.owner)}: {shown}, at this moment.")
    elif not place.closed_cleanly:
        say(f"{root} was not closed cleanly: {shown}.")


def _say_all(view: View) -> None:
    say_state(view.place, "what follows is the store as a start would serve it")
    if view.index_problem and view.place.settings.message_index_enable:
        say(f"{view.index_problem}.")
    findings = view.store.report.notes
    for finding in findings[:_NOTES_SAID]:
        say(f"a start would report: {finding}.")
    if len(findings) > _NOTES_SAID:
        say(f"and {len(findings) - _NOTES_SAID} more, which `penstock store info {view.place.layout.root}` shows.")


def owner_name(owner: int) -> str:
    """The owner for people; a process of another container or host has no number here."""
    return f"process {owner}" if owner > 0 else "another process"

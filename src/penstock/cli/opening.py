"""Opens a store for reading only: nothing on disk changes, and the owner's lock is not touched.

What is shown is what a start would serve: the store's own recovery runs on a view that keeps changes in memory. What a
reader should know about that goes to stderr, one sentence each: that the store is in use or was not closed, what a
start would find, and that the index does not fit.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.cli.geometry import fit_to_files
from penstock.cli.output import say
from penstock.cli.progress import ProgressLine
from penstock.errors import BadStore
from penstock.store import MessageStore, Settings
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.overlay_files import OverlayFiles

_SIGNS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "lock")
_NOTES_SAID = 5
_TRIES = 3

T = TypeVar("T")


class Place(NamedTuple):
    """A store's folder, before it is opened."""

    settings: Settings
    layout: Layout
    files: Files
    owner: int
    """The process that has the store open, 0 if none has."""

    @classmethod
    def find(cls, folder: Path, config: Path | None, pairs: Sequence[str] | None) -> Place:
        """Raises BadStore if no store is there, BadSettings if the settings are no good."""
        settings = Settings.load(config, pairs or ()).with_changes(store_path_root_dir=folder)
        layout, files = Layout.of(folder, settings), OverlayFiles()
        if not folder.is_dir():
            found = "a store is a folder, and this is a file" if folder.exists() else "no such folder"
            raise BadStore(f"there is no store here: {found}", path=folder)
        if not layout.commit_log.is_dir() and not any((folder / sign).exists() for sign in _SIGNS):
            raise BadStore(f"there is no store here: none of {', '.join(_SIGNS)} is in the folder", path=folder)
        return cls(settings, layout, files, files.lock_owner(layout.lock))

    @property
    def closed_cleanly(self) -> bool:
        return not self.files.exists(self.layout.abort)

    def settled(self, act: Callable[[], T]) -> T:
        """Does something with the files; once more if their owner added or removed some at the wrong moment."""
        for _ in range(_TRIES if self.owner else 0):
            with contextlib.suppress(BadStore, FileNotFoundError):
                return act()
        return act()

    def say_state(self, shown: str) -> None:
        """Says what is not as after a clean exit, and what is `shown` instead."""
        root = self.layout.root
        if self.owner:
            say(f"{root} is in use by {owner_name(self.owner)}: {shown}, at this moment.")
        elif not self.closed_cleanly:
            say(f"{root} was not closed cleanly: {shown}.")


class View(NamedTuple):
    """A store opened for reading only."""

    store: MessageStore
    place: Place
    index_problem: str


@contextlib.contextmanager
def open_view(
    folder: Path, config: Path | None, pairs: Sequence[str] | None, *, needs_index: bool = False, **defaults: Any
) -> Iterator[View]:
    """The store as a start would serve it. `defaults` change settings that were not given."""
    place = Place.find(folder, config, pairs)

    def open_fitted() -> tuple[MessageStore, str]:
        settings, problem = fit_to_files(place.settings, place.files, place.layout)
        if problem and needs_index:
            raise BadStore(problem)
        changes = {name: value for name, value in defaults.items() if name not in settings.given}
        if problem:
            changes["message_index_enable"] = False
        with ProgressLine() as line:
            fitted = settings.with_changes(**changes)
            return MessageStore.open(folder, fitted, read_only=True, progress=line.tell), problem

    with quiet_log():
        store, problem = place.settled(open_fitted)
        with store:
            view = View(store, place, problem)
            _say_all(view)
            yield view


def _say_all(view: View) -> None:
    view.place.say_state("what follows is the store as a start would serve it")
    if view.index_problem and view.place.settings.message_index_enable:
        say(f"{view.index_problem}.")
    findings = view.store.report.notes
    for finding in findings[:_NOTES_SAID]:
        say(f"a start would report: {finding}.")
    if len(findings) > _NOTES_SAID:
        say(f"and {len(findings) - _NOTES_SAID} more, which `penstock store info {view.place.layout.root}` shows.")


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """The store's own log speaks of repairs as done; here none is done, and the report's notes are said instead."""
    log = logging.getLogger("penstock.store")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def owner_name(owner: int) -> str:
    """The owner for people; a process of another container or host has no number here."""
    return f"process {owner}" if owner > 0 else "another process"

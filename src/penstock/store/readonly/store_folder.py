"""Opens read-only views of a store's folder: changes nothing on disk and takes no lock.

A view shows what a start would serve: it runs the store's own recovery on an overlay that keeps changes in memory.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.errors import BadStore
from penstock.store.copy_on_write_files import OverlayFiles
from penstock.store.io import Files
from penstock.store.layout import Layout
from penstock.store.message_store import MessageStore
from penstock.store.readonly.geometry import fit_to_files
from penstock.store.recovery import Progress
from penstock.store.settings import Settings

_SIGNS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "lock")
_TRIES = 3

T = TypeVar("T")


class StoreView(NamedTuple):
    """A store opened read-only, and why its index cannot be used, if so."""

    store: MessageStore
    index_problem: str


class StoreFolder(NamedTuple):
    """A store's folder that is not opened yet."""

    settings: Settings
    layout: Layout
    files: Files
    owner: int
    """The process that has the store open, 0 if none."""

    @classmethod
    def find(cls, folder: Path, config: Path | None = None, pairs: Sequence[str] | None = None) -> StoreFolder:
        """Raises BadStore if the folder is not a store, BadSettings if the settings are invalid."""
        settings = Settings.load(config, pairs or ()).with_changes(store_path_root_dir=folder)
        layout, files = Layout.of(folder, settings), OverlayFiles()
        if not files.is_folder(folder):
            why = "a store is a folder, and this is a file" if files.exists(folder) else "no such folder"
            raise BadStore(f"there is no store here: {why}; check the path", path=folder)
        if not files.is_folder(layout.commit_log) and not any(files.exists(folder / sign) for sign in _SIGNS):
            raise BadStore(
                f"there is no store here: none of {', '.join(_SIGNS)} is in the folder; check the path", path=folder
            )
        return cls(settings, layout, files, files.lock_owner(layout.lock))

    @property
    def closed_cleanly(self) -> bool:
        return not self.files.exists(self.layout.abort)

    def retrying(self, operation: Callable[[], T]) -> T:
        """Runs a read operation; retries it if the store's owner may have added or removed files meanwhile."""
        for _ in range(_TRIES if self.owner else 0):
            with contextlib.suppress(BadStore, FileNotFoundError):
                return operation()
        return operation()

    def view(
        self,
        *,
        needs_index: bool = False,
        progress: Callable[[Progress], object] = lambda progress: None,
        **defaults: Any,
    ) -> StoreView:
        """Opens the store as a start would serve it. `defaults` replace settings not given. Raises BadStore."""

        def open_fitted() -> StoreView:
            settings, problem = fit_to_files(self.settings, self.files, self.layout)
            if problem and needs_index:
                raise BadStore(problem)
            changes = {name: value for name, value in defaults.items() if name not in settings.given}
            if problem:
                changes["message_index_enable"] = False
            fitted = settings.with_changes(**changes)
            return StoreView(MessageStore.open(self.layout.root, fitted, read_only=True, progress=progress), problem)

        with quiet_log():
            return self.retrying(open_fitted)


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Silences the store's log, which would report repairs that a view does not make; its report has the notes."""
    log = logging.getLogger("penstock.store")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)

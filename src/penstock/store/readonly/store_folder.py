"""Opens read-only views of a store's folder, without changing anything on disk and without taking a lock.

A view shows the messages that an opened store would serve. It runs the store's own recovery on an overlay, which keeps
all changes in memory.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from penstock.errors import BadSettings, BadStore
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout
from penstock.store.message_store import MessageStore
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.recovery import Progress
from penstock.store.settings import Settings

_SIGNS = ("commitlog", "consumequeue", "index", "config", "checkpoint", "abort", "lock")
_TRIES = 3
_SHOWN_STORES: Final = 8
_FILE_URI: Final = re.compile(r"^file:(//)?(?=/(?!/))")
_OTHER_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

T = TypeVar("T")


class StoreView(NamedTuple):
    """A store opened read-only. `index_problem` says why the index cannot be used; empty if it can."""

    store: MessageStore
    index_problem: str


class StoreFolder(NamedTuple):
    """A store's folder, before the store is opened."""

    settings: Settings
    layout: Layout
    files: Files
    owner: int
    """Id of the process that owns the store; 0 if none does, -1 if it runs in another container or host."""

    @classmethod
    def find(cls, folder: Path, config: Path | None = None, pairs: Sequence[str] | None = None) -> StoreFolder:
        """Returns the store in `folder`, with settings from a broker.conf (`config`) and `name=value` texts (`pairs`).

        Raises BadStore if the folder is not a store, BadSettings if the settings are invalid.
        """
        settings = Settings.load(config, pairs or ()).with_changes(store_path_root_dir=folder)
        layout, files = Layout.of(folder, settings), OverlayFiles()
        if not files.is_folder(folder):
            why = "a store is a folder, and this is a file" if files.exists(folder) else "no such folder"
            raise no_store(folder, why)
        if not files.is_folder(layout.commit_log) and not is_store(folder):
            raise no_store(folder, f"none of {', '.join(_SIGNS)} is in the folder")
        return cls(settings, layout, files, files.lock_owner(layout.lock))

    @property
    def closed_cleanly(self) -> bool:
        return not self.files.exists(self.layout.abort)

    def retrying(self, operation: Callable[[], T]) -> T:
        """Runs a read operation. If the store has an owner, retries errors that new or deleted files can cause."""
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
        """Opens the store read-only. `defaults` replace settings that were not given. Raises BadStore."""

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
    """Silences the store's log messages: they report repairs that a view does not make on disk."""
    log = logging.getLogger("penstock.store")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def is_store(folder: Path) -> bool:
    """Whether a folder has a file or folder that every store has."""
    return any((folder / sign).exists() for sign in _SIGNS)


def stores_in(folder: Path) -> list[Path]:
    """Returns the stores directly inside a folder, sorted: those of `penstock serve --brokers`. A store has none."""
    if is_store(folder) or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_store(path))


def no_store(folder: Path, why: str = "") -> BadStore:
    """Returns the error that there is no store in `folder`, and `why`; or which stores are inside the folder."""
    if inside := stores_in(folder):
        names = ", ".join(path.name for path in inside[:_SHOWN_STORES])
        more = f" and {len(inside) - _SHOWN_STORES} more" if len(inside) > _SHOWN_STORES else ""
        return BadStore(
            f"there is no store here: the folder holds the stores of several brokers: {names}{more}; name one of them",
            path=folder,
        )
    return BadStore(f"there is no store here{': ' if why else ''}{why}; check the path", path=folder)


def local_path(text: str) -> str:
    """Returns a path that may be given as a `file:` URI, as Spark's users do. Raises BadSettings for other URIs."""
    plain = _FILE_URI.sub("", text)
    if _OTHER_URI.match(plain):
        raise BadSettings(
            f"path '{text}' is not in a local file system; give the path of a folder that all hosts have mounted"
        )
    return plain


def find_paths(given: Sequence[str]) -> list[Path]:
    """Returns the folders that paths and globs name, sorted and distinct. Raises BadSettings if a glob has no match.

    A folder that is no store, but has stores directly inside it, stands for these.
    """
    unique: dict[Path, Path] = {}
    for text in given:
        plain = local_path(text)
        folders = [Path(plain)]
        if glob.has_magic(plain) and not folders[0].is_dir():
            root = Path(folders[0].anchor or ".")
            folders = [match for match in root.glob(plain.removeprefix(folders[0].anchor)) if match.is_dir()]
        if not folders:
            raise BadSettings(f"path '{text}' matches no folder; check the path on this machine")
        for store in (store for folder in folders for store in stores_in(folder) or [folder]):
            unique.setdefault(store.resolve(), store.absolute())  # two paths may lead to the same store
    return sorted(unique.values())


def name_stores(paths: Sequence[Path]) -> dict[str, Path]:
    """Returns the folders by name. A name is the end of the path, with as many parts as make all names unique."""
    depth = 1
    while len(names := {"/".join(path.parts[-depth:]): path for path in paths}) < len(paths):
        depth += 1
    return names

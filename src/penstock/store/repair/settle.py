"""The small files: config and checkpoint that cannot be read are set aside, and their backups put in their place.

A config file that is garbage is replaced by its backup; if that is garbage too, both go to the quarantine and the table
starts empty, as after an installation. A checkpoint of the wrong size, or with times that no record has, goes, and the
start writes a new one. Each is a rename or an atomic replacement, after a copy was kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.errors import BadStore
from penstock.format.checkpoint import CHECKPOINT_SIZE, Checkpoint
from penstock.store.config_files import ConfigFile, ConfigFiles
from penstock.store.files import Files
from penstock.store.layout import Layout
from penstock.store.quarantine import Quarantine
from penstock.store.repair.report import Change, within


class Settler:
    """Works on one store, whose owner calls it. What it raises is StoreFailed; it can be called again then."""

    def __init__(self, files: Files, layout: Layout, quarantine: Quarantine) -> None:
        self._io = files
        self._layout = layout
        self._quarantine = quarantine
        self._config = ConfigFiles(files, layout.config)

    def settle_config(self) -> list[Change]:
        """A file that does not exist, with or without a backup, is no fault."""
        every: tuple[ConfigFile[Any], ...] = (
            self._config.topics,
            self._config.subscription_groups,
            self._config.consumer_offsets,
            self._config.delay_offsets,
            self._config.consumer_filters,
        )
        return [change for file in every for change in self._settle(file)]

    def _settle(self, file: ConfigFile[Any]) -> list[Change]:
        try:
            loaded = file.read()
        except BadStore:
            what = "neither it nor its backup could be read; it was set aside, and the table starts empty"
            return [self._set_aside(path, what) for path in (file.path, file.backup) if self._io.exists(path)]
        if not loaded.note or not self._io.exists(file.path):
            return []
        if not is_good(self._io, file.backup, type(loaded.table)):
            return [self._set_aside(file.path, "was empty, and was set aside")]
        return [
            self.replace(file.path, self._io.read_bytes(file.backup), "could not be read; its backup took its place")
        ]

    def settle_checkpoint(self, newest: int) -> list[Change]:
        """`newest` is the store time of the log's newest record. A missing checkpoint is no fault."""
        path = self._layout.checkpoint
        if not self._io.exists(path):
            return []
        size = self._io.size(path)
        if size != CHECKPOINT_SIZE:
            return [self._set_aside(path, f"had {size} bytes instead of {CHECKPOINT_SIZE}, and was written anew")]
        page = Checkpoint.unpack(self._io.read_bytes(path))
        if all(0 <= time <= newest for time in (page.physic, page.logics, page.index)):
            return []
        return [self._set_aside(path, "had times that no record has, and was written anew")]

    def replace(self, path: Path, data: bytes, what: str) -> Change:
        """Puts other content in place of a file, after a copy was kept."""
        kept = self._quarantine.keep(f"config-{path.name}", self._io.read_bytes(path))
        self._io.replace_bytes(path, data)
        return Change(self._name(path), what, self._name(kept))

    def _set_aside(self, path: Path, what: str) -> Change:
        return Change(self._name(path), what, self._name(self._quarantine.take(path)))

    def _name(self, path: Path) -> str:
        return within(self._layout.root, path)


def is_good(files: Files, path: Path, kind: type[Any]) -> bool:
    """Whether a file is there, and by itself a config file of this kind."""
    try:
        return files.exists(path) and not ConfigFile(files, path, kind).read().note
    except BadStore:
        return False

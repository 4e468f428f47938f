"""The JSON files under `config/`: topics, offsets of consumers and of delay levels, groups, filters.

A file X is read; if it is missing, empty or garbage, its backup X.bak is, and a note says so. If both are
garbage that is an error, never an empty table: consumers would start again from the beginning. A file is
replaced through X.tmp, and the previous X becomes X.bak, so a crash at any moment leaves X or X.bak good. An
X that is garbage never becomes the backup: it is kept in the store's quarantine, or, outside a store, as X.damaged.

Not safe for threads: one owner writes a file. Readers in other processes see the old content or the new.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from penstock.clock import now_ms
from penstock.errors import BadStore, CorruptData, disk_refused
from penstock.format import loose_json
from penstock.format.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    DelayOffsets,
    Json,
    SubscriptionGroups,
    TopicConfigs,
)
from penstock.store.damage import Quarantine
from penstock.store.io import Files


class ConfigTable(Protocol):
    """What a config file holds."""

    @classmethod
    def from_json(cls, document: Json) -> Self: ...

    def to_json(self) -> Json: ...


T = TypeVar("T", bound=ConfigTable)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A table, and a sentence if it is not simply what the file says."""

    table: T
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Unusable:
    """What was found instead of a table."""

    found: str
    data: bytes = b""

    @property
    def has_content(self) -> bool:
        return bool(self.data.strip())


class ConfigFile(Generic[T]):
    """One file and its backup."""

    def __init__(self, files: Files, path: Path, kind: type[T], quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._files = files
        self._kind = kind
        self._quarantine = quarantine
        self._may_become_backup = False
        """Whether the file is known to be good: as it was read, or as it was written here."""

    def read(self) -> Loaded[T]:
        """The table; an empty one if there is nothing to read.

        Raises BadStore if there is only garbage, and StoreFailed if the disk refuses.
        """
        current = self._look(self.path)
        if not isinstance(current, _Unusable):
            self._may_become_backup = True
            return Loaded(current)
        backup = self._look(self.backup)
        if not isinstance(backup, _Unusable):
            note = f"{self.path} is {current.found}; its backup {self.backup.name} was read instead."
            return Loaded(backup, note)
        if current.has_content or backup.has_content:
            raise BadStore(
                f"neither the file nor its backup can be read: the file is {current.found}, "
                f"{self.backup} is {backup.found}; put a good copy in place, or remove both to start empty",
                path=self.path,
            )
        empty = self._files.exists(self.path)
        note = f"{self.path} is empty; it was read as an empty table." if empty else ""
        return Loaded(self._kind.from_json({}), note)

    def write(self, table: T) -> None:
        """Puts the table in place of the file. Raises StoreFailed, and then the old file is still there."""
        data = loose_json.dumps(table.to_json()).encode()
        if not self._may_become_backup:
            self._may_become_backup = self._set_aside()
        self._files.replace_bytes(self.path, data, keep_backup=self._may_become_backup)
        self._may_become_backup = True

    def _set_aside(self) -> bool:
        """Keeps an unusable file under another name; says whether the file is usable."""
        current = self._look(self.path)
        if not isinstance(current, _Unusable):
            return True
        if current.has_content and self._quarantine is not None:
            self._quarantine.keep(f"config-{self.path.name}", current.data)
        elif current.has_content:
            aside = self.path.with_name(self.path.name + ".damaged")
            self._files.replace_bytes(aside, current.data, keep_backup=True)
        return False

    def _look(self, path: Path) -> T | _Unusable:
        if not self._files.exists(path):
            return _Unusable("missing")
        try:
            data = self._files.read_bytes(path)
        except OSError as error:
            raise disk_refused("cannot read", path, 0, error) from error
        if not data.strip():
            return _Unusable("empty")
        try:
            document = loose_json.loads(data.decode())
            if not isinstance(document, dict):
                return _Unusable("not a JSON object", data)
            return self._kind.from_json(document)
        except (ValueError, CorruptData, msgspec.ValidationError) as error:
            return _Unusable(f"not a config file ({error})", data)


class ConfigFiles:
    """All config files of a store: `folder` is its `config`."""

    def __init__(self, files: Files, folder: Path) -> None:
        # Small, and written whatever happens: no limit holds them up.
        aside = Quarantine(files, folder.parent / "penstock" / "quarantine", now_ms, may_exceed=lambda *_: True)
        self.topics = ConfigFile(files, folder / "topics.json", TopicConfigs, aside)
        self.consumer_offsets = ConfigFile(files, folder / "consumerOffset.json", ConsumerOffsets, aside)
        self.delay_offsets = ConfigFile(files, folder / "delayOffset.json", DelayOffsets, aside)
        self.subscription_groups = ConfigFile(files, folder / "subscriptionGroup.json", SubscriptionGroups, aside)
        self.consumer_filters = ConfigFile(files, folder / "consumerFilter.json", ConsumerFilters, aside)

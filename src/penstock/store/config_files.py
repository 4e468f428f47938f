"""The JSON files under `config/`: topics, consumer offsets, delay offsets, subscription groups, filters.

If file X is missing, empty or garbage, its backup X.bak is read instead, and the result has a note that says so. If
neither can be read and at least one has content, reading raises BadStore: with an empty table, consumers would start
from the beginning. A write creates X.tmp, makes the previous X the backup X.bak, and renames X.tmp to X. So a crash
leaves X or X.bak intact. A garbage X never becomes the backup: a copy goes to the store's quarantine, or, outside a
store, to X.damaged.

Not thread-safe: one owner writes a file. Readers in other processes see the old content or the new content.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from penstock.clock import now_ms
from penstock.errors import BadStore, CorruptData, disk_refused
from penstock.format import fastjson
from penstock.format.config_tables import (
    ConsumerFilters,
    ConsumerOffsets,
    DelayOffsets,
    Json,
    SubscriptionGroups,
    TopicConfigs,
)
from penstock.store.damage_and_quarantine import Quarantine
from penstock.store.files.file_io import Files


class ConfigTable(Protocol):
    """The content of a config file."""

    @classmethod
    def from_json(cls, document: Json) -> Self: ...

    def to_json(self) -> Json: ...


T = TypeVar("T", bound=ConfigTable)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A table, and a note if the table was not read from the file itself."""

    table: T
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Unusable:
    """Why no table could be read from a file, and the file's bytes."""

    problem: str
    data: bytes = b""

    @property
    def has_content(self) -> bool:
        return bool(self.data.strip())


class ConfigFile(Generic[T]):
    """One config file and its backup."""

    def __init__(self, files: Files, path: Path, kind: type[T], quarantine: Quarantine | None = None) -> None:
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self._files = files
        self._kind = kind
        self._quarantine = quarantine
        self._may_become_backup = False
        """Whether the file is known to be intact, because this object has read or written it."""

    def read(self) -> Loaded[T]:
        """Returns the table of the file, else of the backup; an empty table if neither has content.

        Raises StoreFailed if the disk refuses to read a file. Raises BadStore if neither file has a table and at least
        one has content.
        """
        current = self._load(self.path)
        if not isinstance(current, _Unusable):
            self._may_become_backup = True
            return Loaded(current)
        backup = self._load(self.backup)
        if not isinstance(backup, _Unusable):
            note = f"{self.path} is {current.problem}; its backup {self.backup.name} was read instead."
            return Loaded(backup, note)
        if current.has_content or backup.has_content:
            raise BadStore(
                f"neither the file nor its backup can be read: the file is {current.problem}, "
                f"{self.backup} is {backup.problem}; put a good copy in place, or remove both to start empty",
                path=self.path,
            )
        empty = self._files.exists(self.path)
        note = f"{self.path} is empty; it was read as an empty table." if empty else ""
        return Loaded(self._kind.from_json({}), note)

    def write(self, table: T) -> None:
        """Replaces the file atomically. An intact old file becomes the backup. Raises StoreFailed."""
        data = fastjson.dumps(table.to_json()).encode()
        if not self._may_become_backup:
            self._may_become_backup = self._quarantine_garbage()
        self._files.replace_bytes(self.path, data, keep_backup=self._may_become_backup)
        self._may_become_backup = True

    def _quarantine_garbage(self) -> bool:
        """Returns whether the file is intact. If it is garbage, first keeps a copy of it."""
        current = self._load(self.path)
        if not isinstance(current, _Unusable):
            return True
        if current.has_content and self._quarantine is not None:
            self._quarantine.keep(f"config-{self.path.name}", current.data)
        elif current.has_content:
            copy = self.path.with_name(self.path.name + ".damaged")
            self._files.replace_bytes(copy, current.data, keep_backup=True)
        return False

    def _load(self, path: Path) -> T | _Unusable:
        if not self._files.exists(path):
            return _Unusable("missing")
        try:
            data = self._files.read_bytes(path)
        except OSError as error:
            raise disk_refused("cannot read", path, 0, error) from error
        if not data.strip():
            return _Unusable("empty")
        try:
            document = fastjson.loads(data.decode())
            if not isinstance(document, dict):
                return _Unusable("not a JSON object", data)
            return self._kind.from_json(document)
        except (ValueError, CorruptData, msgspec.ValidationError) as error:
            return _Unusable(f"not a config file ({error})", data)


class ConfigFiles:
    """All config files of a store. `folder` is the store's folder `config`."""

    def __init__(self, files: Files, folder: Path) -> None:
        # Config files are small and must be written: quarantineMaxBytes does not apply.
        quarantine = Quarantine(files, folder.parent / "penstock" / "quarantine", now_ms, may_exceed=lambda *_: True)
        self.topics = ConfigFile(files, folder / "topics.json", TopicConfigs, quarantine)
        self.consumer_offsets = ConfigFile(files, folder / "consumerOffset.json", ConsumerOffsets, quarantine)
        self.delay_offsets = ConfigFile(files, folder / "delayOffset.json", DelayOffsets, quarantine)
        self.subscription_groups = ConfigFile(files, folder / "subscriptionGroup.json", SubscriptionGroups, quarantine)
        self.consumer_filters = ConfigFile(files, folder / "consumerFilter.json", ConsumerFilters, quarantine)

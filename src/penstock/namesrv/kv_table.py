"""What administrators write for clients to read: texts by namespace and key.

Kept in RocketMQ's kvConfig.json if there is a path for it: replaced whole, through a temporary file, the one before
kept as backup. The file is written in a thread, in the order of the changes; a change is answered when it is on disk.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec

from penstock.store.config_files import ConfigFile
from penstock.store.files import Files

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace of topics that are ordered across brokers: `broker-a:4;broker-b:4` by topic."""


class KvConfig(msgspec.Struct):
    """kvConfig.json."""

    table: dict[str, dict[str, str]] = {}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> KvConfig:
        return cls(msgspec.convert(document.get("configTable", {}), dict[str, dict[str, str]]))

    def to_json(self) -> dict[str, Any]:
        return {"configTable": self.table}


class KvTable:
    """Belongs to the loop's thread."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file, if there is one. Raises BadStore if it cannot be read."""
        self._file = None if path is None else ConfigFile(Files(), path, KvConfig)
        loaded = None if self._file is None else self._file.read()
        self._table = {} if loaded is None else loaded.table.table
        self.note = "" if loaded is None else loaded.note
        """A sentence if the file was not simply read."""
        self._writing = asyncio.Lock()

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        return dict(sorted(self._table.get(namespace, {}).items()))

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises StoreFailed if it cannot be written; then it counts until the next start only."""
        self._table.setdefault(namespace, {})[key] = value
        await self._save()

    async def delete(self, namespace: str, key: str) -> None:
        keys = self._table.get(namespace)
        if keys is None or keys.pop(key, None) is None:
            return
        if not keys:
            del self._table[namespace]
        await self._save()

    async def _save(self) -> None:
        if self._file is None:
            return
        async with self._writing:
            snapshot = KvConfig({namespace: dict(keys) for namespace, keys in self._table.items()})
            await asyncio.to_thread(self._file.write, snapshot)

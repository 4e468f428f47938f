"""Writes the broker's tables to their files, in a thread, so that the loop never waits for a disk.

Each file has one owner here and at most one write under way. A table counts as saved only when its file is synced and
renamed; what changes meanwhile is written next. A write that fails is said once and tried again: the old file is still
there. A crash loses what changed since the last write: seconds of offsets, or a topic that was just made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from penstock.errors import StoreFailed
from penstock.store.config_files import ConfigFile, Table
from penstock.store.listeners import noop

log = logging.getLogger("penstock.broker")

_RETRY_S = 2.0
_SOON_S = 0.05
"""Changes that come together, as when many topics are made, are written together."""

T = TypeVar("T", bound=Table)


class SavedTable(Generic[T]):
    """One table and its file. `version` changes whenever the table does; `snapshot` must not be shared with it.

    `first` is done, in the thread, after the snapshot and before the write.
    """

    def __init__(
        self,
        file: ConfigFile[T],
        snapshot: Callable[[], T],
        version: Callable[[], object],
        first: Callable[[], object] = noop,
    ) -> None:
        self._file = file
        self._snapshot = snapshot
        self._version = version
        self._first = first
        self._saved: object = None
        """Nothing counts as saved before the first write: what was read may have come from a backup."""
        self._writing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._file.path.name

    @property
    def is_saved(self) -> bool:
        return self._saved == self._version()

    async def save(self, threads: ThreadPoolExecutor) -> None:
        """Returns when the file says what the table said at the call. Raises StoreFailed."""
        async with self._writing:
            version = self._version()
            if version == self._saved:
                return
            table = self._snapshot()
            await asyncio.get_running_loop().run_in_executor(threads, self._write, table)
            self._saved = version

    def _write(self, table: T) -> None:
        self._first()
        self._file.write(table)


class Persister:
    """All tables that are saved, and when."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "penstock-config")
        self._tables: list[SavedTable[Any]] = []
        self._tasks: dict[SavedTable[Any], asyncio.Task[None]] = {}
        self._periodic: list[asyncio.Task[None]] = []
        self._failing: set[str] = set()
        self._closed = False

    def add(self, table: SavedTable[Any], every_s: float | None = None) -> None:
        """Saves a table every so many seconds, or only when it is `due`."""
        self._tables.append(table)
        if every_s is not None:
            self._periodic.append(asyncio.create_task(self._save_now_and_then(table, every_s)))

    def due(self, table: SavedTable[Any]) -> None:
        """The table has changed and is to be saved soon. Nothing is waited for."""
        if not self._closed and table not in self._tasks:
            self._tasks[table] = asyncio.create_task(self._save_until_saved(table))

    async def _save_until_saved(self, table: SavedTable[Any]) -> None:
        try:
            await asyncio.sleep(_SOON_S)
            while not table.is_saved:
                if not await self._try(table):
                    await asyncio.sleep(_RETRY_S)
        finally:
            del self._tasks[table]

    async def _save_now_and_then(self, table: SavedTable[Any], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._try(table)

    async def _try(self, table: SavedTable[Any]) -> bool:
        try:
            await table.save(self._threads)
        except StoreFailed as error:
            if table.name not in self._failing:
                self._failing.add(table.name)
                log.error("%s is not saved, and will be tried again: %s", table.name, error)
            return False
        if table.name in self._failing:
            self._failing.discard(table.name)
            log.info("%s is saved again", table.name)
        return True

    async def stop(self) -> bool:
        """Saves all that is not saved yet, once; says whether everything is."""
        self._closed = True
        for task in [*self._periodic, *self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*self._periodic, *self._tasks.values(), return_exceptions=True)
        saved = [await self._try(table) for table in self._tables]
        self._threads.shutdown(wait=False)
        return all(saved)

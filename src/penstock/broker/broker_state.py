"""The state of a broker: its tables, read from the store's `config` folder and written back there.

`Persister` writes the tables in a thread, so that the loop never waits for a disk. Each file belongs to one table and
has at most one write in progress. A table counts as saved once its file is synced and renamed; changes made during a
write go into the next one. A write that fails is logged once and retried; the previous file stays. A crash loses the
changes since the last write: a few seconds of offsets, or a topic that was just created. Use everything here from the
loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from penstock.broker.consumers import ClientTable, GroupTable
from penstock.broker.delay import DelayedMessages
from penstock.broker.message_hooks import Hooks
from penstock.broker.offsets import OffsetTable
from penstock.broker.queue_locks import QueueLocks
from penstock.broker.scheduler import Scheduler
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.stats import MessageCounters
from penstock.broker.topics import BrokerTopics
from penstock.errors import StoreFailed
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from penstock.store.config_files import ConfigFile, ConfigFiles, ConfigTable
from penstock.store.file_io import Files
from penstock.store.message_store import MessageStore
from penstock.store.worker import noop

log = logging.getLogger("penstock.broker")
_RETRY_S = 2.0
_SOON_S = 0.05
"""Seconds. Changes within this time are written together."""
T = TypeVar("T", bound=ConfigTable)


class SavedTable(Generic[T]):
    """One table and its file.

    `version` returns a value that changes whenever the table does. `snapshot` returns an independent copy of the table.
    `before_write` runs in the writing thread, after the snapshot and before the write.
    """

    def __init__(
        self,
        file: ConfigFile[T],
        snapshot: Callable[[], T],
        version: Callable[[], object],
        before_write: Callable[[], object] = noop,
    ) -> None:
        self._file = file
        self._snapshot = snapshot
        self._version = version
        self._before_write = before_write
        self._saved: object = None
        """The version that was last written. It is None at first, because the table may have been read from a
        backup."""
        self._writing = asyncio.Lock()

    @property
    def name(self) -> str:
        return self._file.path.name

    @property
    def is_saved(self) -> bool:
        return self._saved == self._version()

    async def save(self, threads: ThreadPoolExecutor) -> None:
        """Writes the table as it is now, unless this version is saved already. Raises StoreFailed."""
        async with self._writing:
            version = self._version()
            if version == self._saved:
                return
            table = self._snapshot()
            await asyncio.get_running_loop().run_in_executor(threads, self._write, table)
            self._saved = version

    def _write(self, table: T) -> None:
        self._before_write()
        self._file.write(table)


class Persister:
    """Saves each table periodically, or soon after it changes."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "penstock-config")
        self._tables: list[SavedTable[Any]] = []
        self._tasks: dict[SavedTable[Any], asyncio.Task[None]] = {}
        self._periodic: list[asyncio.Task[None]] = []
        self._failing: set[str] = set()
        self._closed = False

    def add(self, table: SavedTable[Any], every_s: float | None = None) -> None:
        """Takes over a table. Saves it every `every_s` seconds; without `every_s`, only after `due`."""
        self._tables.append(table)
        if every_s is not None:
            self._periodic.append(asyncio.create_task(self._save_periodically(table, every_s)))

    def due(self, table: SavedTable[Any]) -> None:
        """Saves a changed table soon, in the background."""
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

    async def _save_periodically(self, table: SavedTable[Any], every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            await self._try(table)

    async def _try(self, table: SavedTable[Any]) -> bool:
        try:
            await table.save(self._threads)
        except Exception as error:  # whatever it is, the next save is tried: offsets must not stay unsaved for ever
            if table.name not in self._failing:
                self._failing.add(table.name)
                unexpected = None if isinstance(error, StoreFailed) else error
                log.error("cannot save %s, retrying: %s", table.name, error, exc_info=unexpected)
            return False
        if table.name in self._failing:
            self._failing.discard(table.name)
            log.info("saved %s after a retry", table.name)
        return True

    async def stop(self) -> bool:
        """Stops saving in the background; tries once to save each unsaved table. Returns whether all are saved."""
        self._closed = True
        for task in [*self._periodic, *self._tasks.values()]:
            task.cancel()
        await asyncio.gather(*self._periodic, *self._tasks.values(), return_exceptions=True)
        saved = [await self._try(table) for table in self._tables]
        self._threads.shutdown(wait=False)
        return all(saved)


class BrokerState:
    """The store, the settings in force and the tables. All concerns share them.

    Create it within the running loop. Raises BadStore if a file and its backup are both unreadable, because a broker
    that has lost its consumers' offsets is worse than no broker.
    """

    def __init__(
        self, store: MessageStore, settings: BrokerSettings, clock: Callable[[], int], files: Files | None = None
    ) -> None:
        self.store = store
        self.settings = SettingsInForce(settings)
        self.clock = clock
        self.config_files = config = ConfigFiles(files or Files(), store.layout.config)
        levels = len(store.settings.delay_levels)
        self.topics = BrokerTopics(_read(config.topics), self.settings, clock, delay_levels=levels)
        self._adopt_topics()
        self.groups = GroupTable(_read(config.subscription_groups), self.settings, clock)
        self.offsets = OffsetTable(_read(config.consumer_offsets))
        self.scheduler = Scheduler(clock)
        self.delayed = DelayedMessages(store, _read(config.delay_offsets), self.scheduler, clock)
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.hooks = Hooks()
        self.counters = MessageCounters()
        self.persister = Persister()

    def _adopt_topics(self) -> None:
        """Creates the topics that have messages in the store but are missing in topics.json.

        This happens after a crash before topics.json was written, or if the store was used without a broker. The old
        number of queues is unknown. A topic gets at least as many queues as a new one would, so clients with an old
        route are still served.
        """
        queues: dict[str, int] = {}
        for queue in self.store.queues:
            if queue.max_offset > 0 and queue.topic != DAMAGED_TOPIC:
                queues[queue.topic] = max(queues.get(queue.topic, 0), queue.queue_id + 1)
        for topic in sorted(queues.keys() - self.topics.all().keys()):
            is_group_topic = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
            usual = 1 if is_group_topic else self.settings.now.default_topic_queue_nums
            self.topics.create_for_send_back(topic, max(usual, queues[topic]))

    def start_saving(self) -> None:
        """Starts saving: topics and groups after each change, consumer and delay offsets periodically."""
        files, topics, groups, offsets = self.config_files, self.topics, self.groups, self.offsets
        saved_topics = SavedTable(files.topics, topics.snapshot, lambda: topics.data_version)
        saved_groups = SavedTable(files.subscription_groups, groups.snapshot, lambda: groups.data_version)
        saved_offsets = SavedTable(
            files.consumer_offsets, offsets.snapshot, lambda: offsets.changes, before_write=self.store.flush
        )
        saved_delays = SavedTable(
            files.delay_offsets, self.delayed.snapshot, self.delayed.version, before_write=self.store.flush
        )
        self.persister.add(saved_topics)
        self.persister.add(saved_groups)
        self.persister.add(saved_offsets, self.settings.now.flush_consumer_offset_interval / 1000)
        self.persister.add(saved_delays, self.store.settings.flush_delay_offset_interval / 1000)
        topics.on_change.append(lambda: self.persister.due(saved_topics))
        groups.on_change.append(lambda: self.persister.due(saved_groups))
        self.persister.due(saved_topics)
        self.persister.due(saved_groups)


def _read(file: ConfigFile[T]) -> T:
    loaded = file.read()
    if loaded.note:
        log.warning("%s", loaded.note)
    return loaded.table

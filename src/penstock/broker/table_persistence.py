"""The state of a broker: its tables, read from the store's `config` folder and written back there.

`Persister` writes the tables in a thread, so that the loop never waits for a disk. Each file belongs to one table and
has at most one write in progress. A table counts as saved once its file is synced and renamed; changes made during a
write go into the next one. A write that fails is logged once and retried by the Supervisor; the previous file stays. A
crash loses the changes since the last write: a few seconds of offsets, or a topic that was just created. Use everything
here from the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.broker.consumers import ClientTable, GroupTable
from penstock.broker.delayed_delivery import DelayedMessages
from penstock.broker.offsets import OffsetTable, OwnOffsets
from penstock.broker.queue_locks import QueueLocks
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.broker.stats import MessageCounters
from penstock.broker.topics import BrokerTopics
from penstock.broker.user_hooks_for_send_and_pull import Hooks
from penstock.broker.wall_clock_timer import Scheduler
from penstock.format.constants import DAMAGED_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from penstock.protocol.bodies.admin import HaElections
from penstock.store.config_files import ConfigFile, ConfigFiles, ConfigTable
from penstock.store.files.file_io import Files
from penstock.store.message_store import MessageStore
from penstock.store.worker_thread import noop
from penstock.task_supervision import Supervisor

log = logging.getLogger("penstock.broker")
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

    def __init__(self, tasks: Supervisor) -> None:
        self._threads = ThreadPoolExecutor(1, "penstock-config")
        self._supervisor = tasks
        self._tables: list[SavedTable[Any]] = []

    def add(self, table: SavedTable[Any], every_s: float | None = None) -> None:
        """Takes over a table. Saves it every `every_s` seconds; without `every_s`, only after `due`."""
        self._tables.append(table)
        if every_s is not None:
            self._supervisor.every(every_s, f"saving {table.name}", lambda: table.save(self._threads))

    def due(self, table: SavedTable[Any]) -> None:
        """Saves a changed table soon, in the background."""

        async def save() -> None:
            await asyncio.sleep(_SOON_S)
            while not table.is_saved:
                await table.save(self._threads)

        self._supervisor.run(f"saving {table.name}", save)

    async def stop(self) -> bool:
        """Tries once to save each unsaved table; the supervisor has stopped. Returns whether all are saved."""
        saved = True
        for table in self._tables:
            try:
                await table.save(self._threads)
            except Exception as error:  # the other tables are saved all the same
                saved = False
                self._supervisor.failed(f"saving {table.name}", error)
        self._threads.shutdown(wait=False)
        return saved


class HealthReport(NamedTuple):
    """Whether a broker does all that it should, and if not, why: one sentence for each reason."""

    ok: bool
    reasons: tuple[str, ...]


class BrokerState:
    """The store, the settings in force, the tables and the supervised tasks. All concerns share them.

    Create it within the running loop. Raises BadStore if a file and its backup are both unreadable, because a broker
    that has lost its consumers' offsets is worse than no broker. Raises StoreFailed if the log lost a part that the
    broker's own progress rests on, and what is left of that cannot be saved.
    """

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        clock: Callable[[], int],
        files: Files | None = None,
        elections: Callable[[], HaElections] | None = None,
    ) -> None:
        self.store = store
        self.elections = elections
        """Says how the elections of this broker stand; None if it is not elected."""
        self.settings = SettingsInForce(settings)
        self.clock = clock
        self.tasks = Supervisor(log)
        self.config_files = config = ConfigFiles(files or Files(), store.layout.config)
        levels = len(store.settings.delay_levels)
        self.topics = BrokerTopics(_read(config.topics), self.settings, clock, delay_levels=levels)
        self._adopt_topics()
        self.groups = GroupTable(_read(config.subscription_groups), self.settings, clock)
        self.offsets = OffsetTable(_read(config.consumer_offsets))
        self.own_offsets = OwnOffsets(store, self.offsets)
        if self.own_offsets.is_rolled_back:
            self.own_offsets.write_roll_back(config.consumer_offsets)
        self.counters = MessageCounters()
        self.scheduler = Scheduler(clock)
        self.delayed = DelayedMessages(store, _read(config.delay_offsets), self.scheduler, clock, self.tasks)
        if self.delayed.is_rolled_back:
            self.delayed.write_roll_back(config.delay_offsets)
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.hooks = Hooks()
        self.persister = Persister(self.tasks)

    def health(self) -> HealthReport:
        """Returns why the store refuses messages, does not dispatch them or has failed, and which tasks fail."""
        store = self.store
        ended = (f"the thread {name} ended ({why})" for name, why in store.dead_threads.items())
        refusal = store.flags.reason
        causes = [each for each in (store.watermarks.failure, *ended) if each and each not in refusal]
        late = store.dispatcher.lag().problem
        elected = () if self.elections is None else election_problems(self.elections())
        reasons = tuple(each for each in (refusal, *causes, late, *elected, *self.tasks.problems.values()) if each)
        return HealthReport(not reasons, reasons)

    @property
    def puts_refused(self) -> str:
        """Why messages are refused, by the store or because another broker may be the master; empty if not."""
        return self.store.flags.reason or ("" if self.elections is None else self.elections().fenced)

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
            files.consumer_offsets,
            self.own_offsets.begin_save,
            lambda: offsets.changes,
            before_write=self.own_offsets.before_write,
        )
        saved_delays = SavedTable(
            files.delay_offsets, self.delayed.begin_save, self.delayed.version, before_write=self.delayed.before_write
        )
        self.persister.add(saved_topics)
        self.persister.add(saved_groups)
        self.persister.add(saved_offsets, self.settings.now.flush_consumer_offset_interval / 1000)
        self.persister.add(saved_delays, self.store.settings.flush_delay_offset_interval / 1000)
        topics.on_change.append(lambda: self.persister.due(saved_topics))
        groups.on_change.append(lambda: self.persister.due(saved_groups))
        self.persister.due(saved_topics)
        self.persister.due(saved_groups)


def election_problems(report: HaElections) -> tuple[str, ...]:
    """Returns what is wrong with the elections of a broker: one sentence each."""
    return tuple(each for each in (report.fenced, report.problem) if each)


def _read(file: ConfigFile[T]) -> T:
    loaded = file.read()
    if loaded.note:
        log.warning("%s", loaded.note)
    return loaded.table

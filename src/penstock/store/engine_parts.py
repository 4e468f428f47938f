"""Engine: the working parts of one store, as one frozen value.

`MessageStore`, a repair, or an external dispatch job assembles the parts once. It passes the engine to recovery,
retention, dispatch state and flush threads. The engine does not close its parts: its creator closes the log and the
derived files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.store.commit_log import CommitLog
from penstock.store.consume_queues import ConsumeQueues, DerivedFiles
from penstock.store.deleted_topics_file import DeletedTopics
from penstock.store.dispatch import Dispatcher
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.index import Index
from penstock.store.replication.epochs import EpochFile
from penstock.store.running_flags import RunningFlags
from penstock.store.settings import Dispatch, Settings


def only_appends(settings: Settings, io: Files) -> bool:
    """Whether another process builds queues and index (dispatch=external). False for a read-only view."""
    return settings.dispatch is Dispatch.EXTERNAL and not io.read_only


@dataclass(frozen=True, slots=True)
class Engine:
    """Log, queues, index and dispatcher of one store, with its settings, paths, I/O, clock and running flags."""

    io: Files
    layout: Layout
    settings: Settings
    clock: Callable[[], int]
    flags: RunningFlags
    log: CommitLog
    derived: DerivedFiles
    dispatcher: Dispatcher
    deleted_topics: DeletedTopics
    epochs: EpochFile

    @classmethod
    def inline(
        cls, io: Files, layout: Layout, settings: Settings, clock: Callable[[], int], *, log: CommitLog | None = None
    ) -> Engine:
        """Creates an engine that dispatches itself. `log` is used if given, else created. No file is mapped yet."""
        flags = RunningFlags()
        log = CommitLog(io, layout.commit_log, settings, clock) if log is None else log
        derived = DerivedFiles.of(io, layout, settings, clock)
        dispatcher = Dispatcher(log, derived, settings.delay_levels, flags)
        deleted_topics = DeletedTopics(io, layout.deleted_topics)
        epochs = EpochFile(io, layout.epochs)
        return cls(io, layout, settings, clock, flags, log, derived, dispatcher, deleted_topics, epochs)

    @property
    def queues(self) -> ConsumeQueues:
        return self.derived.queues

    @property
    def index(self) -> Index | None:
        """None if messageIndexEnable is false."""
        return self.derived.index

    @property
    def only_appends(self) -> bool:
        return only_appends(self.settings, self.io)

"""Writes rows to a store: workers check and stage the rows, the driver commits them. Needs pyarrow.

A worker stages its rows as Arrow streams of about 32 MB in the store's folder (`penstock.store.sink`). Driver and
workers must therefore see this folder under the same path. Staging refuses every row that the store would refuse,
before any row is appended. A crash before the commit leaves only staged files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.settings import BrokerSettings
from penstock.errors import BadMessage, BadSettings, BadStore, StoreInUse
from penstock.format.put_rows import RowRefused
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import RowOrigin, WrittenRows, check_may_send
from penstock.store.files.file_io import Files
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles
from penstock.store.files.layout import Layout
from penstock.store.put_arrow_batches import check_batch
from penstock.store.readonly.infer_file_sizes import fit_to_files
from penstock.store.readonly.store_folder import local_path
from penstock.store.settings import Settings
from penstock.store.sink.commit import (
    CommitResult,
    SinkBatch,
    StagedFile,
    TopicQueues,
    commit,
    is_owned_by_others,
    read_part,
    read_topic_queues,
    remove_staged,
    stage,
    staging_folder,
)
from penstock.store.sink.journal import Identity

_PART_BYTES: Final = 32 << 20
_STORE_ENTRIES: Final = ("commitlog", "consumequeue", "config", "penstock", "checkpoint", "lock")


@dataclass(frozen=True)
class StagedRows:
    """The rows that one task has staged."""

    identity: Identity
    run: str
    parts: tuple[StagedFile, ...]
    rows: int
    queues: dict[str, int]
    """The highest queue id that the rows use, by topic."""


@dataclass(frozen=True)
class StoreTarget:
    """The store to write to. Spark pickles it."""

    root: Path
    settings: Settings

    @classmethod
    def of(cls, options: Options) -> StoreTarget:
        """Returns the target that the options name. Raises BadSettings or BadStore.

        Raises StoreInUse if another process owns the store.
        """
        if len(options.path) != 1:
            raise BadSettings(f"path names {len(options.path)} stores; name one, rows are written to one")
        root = Path(local_path(options.path[0]))
        if any(char in options.path[0] for char in "*?[") and not root.exists():
            raise BadSettings(f"path '{root}' is a pattern; name one store, rows are written to one")
        if root.exists() and not root.is_dir():
            raise BadStore("a store is a folder, and this is a file; name a folder", path=root)
        settings = Settings.load(options.config or None).with_changes(store_path_root_dir=root)
        layout = Layout.of(root, settings)
        if root.is_dir() and any(root.iterdir()) and not any((root / name).exists() for name in _STORE_ENTRIES):
            raise BadStore("this folder holds something other than a store; write to a new one", path=root)
        fitted = fit_to_files(settings, OverlayFiles(), layout)
        if fitted.index_problem and settings.message_index_enable:
            raise BadStore(fitted.index_problem, path=root)
        target = cls(root, fitted.settings)
        if is_owned_by_others(Files(), layout):
            raise target.in_use()
        return target

    def in_use(self) -> StoreInUse:
        return StoreInUse(
            "the store is in use, for example by a broker; stop it, or write through it with namesrv instead of path",
            path=self.root,
        )

    @property
    def layout(self) -> Layout:
        return Layout.of(self.root, self.settings)

    @property
    def default_queue_count(self) -> int:
        return BrokerSettings.of(self.settings).default_topic_queue_nums

    # -- on a worker -----------------------------------------------------------------------------------------

    def stage(
        self, identity: Identity, run: str, rows: WrittenRows, partition: int, batches: Iterable[pa.RecordBatch]
    ) -> StagedRows:
        """Checks and stages the rows of one task. Raises BadMessage, BadStore or StoreFailed."""
        files, layout = Files(), self.layout
        check = RowCheck(self.settings, read_topic_queues(files, layout, self.default_queue_count), partition)
        parts: list[StagedFile] = []
        waiting: list[pa.RecordBatch] = []

        def write() -> None:
            if waiting:
                parts.append(stage(files, layout, staging_folder(identity, run), str(partition), _encoded(waiting)))
                waiting.clear()

        for batch in batches:
            waiting.append(check.checked(rows.messages(batch, check.origin)))
            if sum(each.nbytes for each in waiting) >= _PART_BYTES:
                write()
        write()
        return StagedRows(identity, run, tuple(parts), check.count, check.used)

    # -- on the driver ---------------------------------------------------------------------------------------

    def commit(self, staged: Sequence[StagedRows]) -> CommitResult | None:
        """Appends the staged rows of one write. Idempotent: stores nothing if the write is already committed.

        Raises StoreInUse, BadMessage, BadStore, CorruptData or StoreFailed. After an error, none of the rows is stored.
        """
        queues: dict[str, int] = {}
        for each in staged:
            for topic, highest in each.queues.items():
                queues[topic] = max(highest, queues.get(topic, 0))
        batch = SinkBatch(staged[0].identity, sum(each.rows for each in staged), queues, self.default_queue_count)
        try:
            return commit(self.root, self.settings, batch, lambda born: self._read(staged, born))
        except StoreInUse:
            raise self.in_use() from None

    def _read(self, staged: Sequence[StagedRows], born: int) -> Iterator[pa.RecordBatch]:
        files, layout = Files(), self.layout
        for each in staged:
            for part in each.parts:
                data = read_part(files, layout, staging_folder(each.identity, each.run), part)
                for batch in pa.ipc.open_stream(data):
                    times = pa.array(np.full(batch.num_rows, born, np.int64))
                    yield batch.append_column("born_timestamp", times)

    def discard(self, identity: Identity, run: str) -> None:
        """Removes the files that an aborted write has staged. Raises OSError."""
        remove_staged(Files(), self.layout, staging_folder(identity, run))


class RowCheck:
    """Checks the rows of one task, batch by batch. Assigns a queue, round-robin, to each row without a queue id."""

    def __init__(self, settings: Settings, queues: TopicQueues, partition: int) -> None:
        self._settings = settings
        self._queues = queues
        self._levels = len(settings.delay_levels)
        self._partition = partition
        self.count = 0
        """The number of rows checked so far."""
        self.used: dict[str, int] = {}

    @property
    def origin(self) -> RowOrigin:
        """The origin of the next batch's rows."""
        return RowOrigin(self._partition, self.count)

    def checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with their queue ids. Raises BadMessage for a row that the store would refuse."""
        if not batch.num_rows:
            return batch
        origin = self.origin
        batch = self._with_queues(batch, origin)
        if "delay_level" in batch.schema.names:
            levels = pc.fill_null(batch.column("delay_level"), 0).to_numpy(zero_copy_only=False)
            bad = (levels < 0) | (levels > self._levels)
            if bad.any():
                number = int(bad.argmax())
                raise origin.refused(number, f"there is no delay level {levels[number]}; there are 1 to {self._levels}")
        try:
            check_batch(batch, self._settings)
        except RowRefused as refused:
            raise origin.refused(refused.number, refused.reason) from None
        self.count += batch.num_rows
        return batch

    def _with_queues(self, batch: pa.RecordBatch, origin: RowOrigin) -> pa.RecordBatch:
        topics = batch.column("topic").dictionary_encode()
        names, which = topics.dictionary.to_pylist(), topics.indices.to_numpy(zero_copy_only=False)
        counts = np.array([self._count(name, which, number, origin) for number, name in enumerate(names)])[which]
        queues = (origin.first_row + self._partition + np.arange(batch.num_rows)) % counts
        if "queue_id" in batch.schema.names:
            given = batch.column("queue_id")
            wanted = pc.fill_null(given, 0).to_numpy(zero_copy_only=False)
            queues = np.where(given.is_valid().to_numpy(zero_copy_only=False), wanted, queues)
            bad = (queues < 0) | (queues >= counts)
            if bad.any():
                number = int(bad.argmax())
                try:
                    self._queues.check(names[which[number]], int(queues[number]))
                except BadMessage as error:
                    raise origin.refused(number, str(error)) from None
            batch = batch.drop_columns("queue_id")
        for number, name in enumerate(names):
            self.used[name] = max(self.used.get(name, 0), int(queues[which == number].max()))
        return batch.append_column("queue_id", pa.array(queues.astype(np.int32)))

    def _count(self, topic: str, which: np.ndarray, number: int, origin: RowOrigin) -> int:
        try:
            check_may_send(topic)
            return self._queues.count(topic)
        except BadMessage as error:
            raise origin.refused(int((which == number).argmax()), str(error)) from None


def _encoded(batches: Sequence[pa.RecordBatch]) -> memoryview:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return memoryview(out.getvalue())

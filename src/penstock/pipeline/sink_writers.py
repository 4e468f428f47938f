"""The writers behind `df.write.format("rocketmq")` and `writeStream`. Needs pyspark.

Spark creates a writer on the driver and pickles it to the workers. Workers call `write` once per attempt of a task.
Spark then calls `commit` in another process, with the commit messages that the successful attempts returned. `commit`
has no other state. Spark creates a new writer for each batch of a stream. Only tasks know the ids of query and batch,
so the commit messages carry these ids.

A store (`path`) gets a batch completely and exactly once: tasks stage the rows, and the driver appends them. A cluster
(`namesrv`) gets rows at least once: tasks send the rows, and `commit` does nothing.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from penstock.errors import BadSettings, PenstockError
from penstock.pipeline.cluster_sink import ClusterTarget
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.options import PLACE, Options
from penstock.pipeline.sink_rows import WrittenRows
from penstock.pipeline.spark_versions import DataSourceStreamArrowWriter
from penstock.pipeline.store_sink import StagedRows, StoreTarget
from penstock.store.readonly.store_folder import local_path
from penstock.store.sink.journal import Identity, WriterKind

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_URI: Final = re.compile(r"^file:/*(?=/)")
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


def make_writer(options: Options, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Returns the writer of a batch write. Raises BadSettings, BadStore or StoreInUse."""
    rows = _check_rows(options, schema, overwrite)
    identity = (
        Identity(WriterKind.WRITE, options.write_id) if options.write_id else Identity(WriterKind.ONCE, _random())
    )
    if options.namesrv:
        return ClusterWriter(ClusterTarget.of(options), rows, identity)
    return StoreWriter(StoreTarget.of(options), rows, identity)


def make_stream_writer(
    options: Options, schema: StructType, overwrite: bool, checkpoint: str = ""
) -> DataSourceStreamArrowWriter:
    """Returns the writer of one batch of a stream. Raises BadSettings, BadStore or StoreInUse.

    `checkpoint` is the query's checkpoint folder, or empty if Spark does not say it.
    """
    if options.write_id:
        raise BadSettings("writeId is for batch writes; Spark identifies a stream's batches itself: leave it out")
    if overwrite:
        raise BadSettings(
            "complete mode writes the whole result again, and messages can only be appended; use outputMode('update') "
            "with foreachBatch and a batch write with writeId=f'{name}-{batch_id}': see docs/how-to/from-kafka.md"
        )
    read = topics_read(Path(checkpoint), options) if checkpoint else frozenset[str]()
    rows = WrittenRows.of(schema, options.topic, options.default_topic, read)
    if options.namesrv:
        return ClusterStreamWriter(ClusterTarget.of(options), rows)
    return StoreStreamWriter(StoreTarget.of(options), rows)


def _check_rows(options: Options, schema: StructType, overwrite: bool) -> WrittenRows:
    if overwrite:
        raise BadSettings("messages can only be appended; use mode('append') instead of overwrite")
    return WrittenRows.of(schema, options.topic, options.default_topic)


def topics_read(checkpoint: Path, options: Options) -> frozenset[str]:
    """Returns the topics that a query reads from the place that `options` name, as the checkpoint's last offsets say.

    Returns none if the checkpoint is not in a file system of this host, or the query reads something else.
    """
    folder = Path(_FILE_URI.sub("", str(checkpoint))) / "offsets"
    try:
        newest = max((path for path in folder.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        lines = newest.read_text().splitlines()[2:]  # a version, metadata, then a line for each source
    except (OSError, ValueError):
        return frozenset()
    topics: set[str] = set()
    for line in lines:
        try:
            offsets = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError:
            continue  # of another source
        if _is_same_place(offsets.get(PLACE), options):
            topics.update(topic for topic in offsets if topic and not topic.startswith("@"))
    return frozenset(topics)


def _is_same_place(place: object, options: Options) -> bool:
    """Whether the place in a stream's offsets is the one that a sink's options name."""
    if not isinstance(place, str):
        return False
    if options.namesrv:
        servers = {each.strip() for each in options.namesrv.split(";")}
        return bool(servers & {each.strip() for each in place.split(";")})
    written = Path(local_path(options.path[0])).resolve()
    return any(Path(each).resolve() == written for each in place.split(", "))


def _random() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """A task's commit message: the rows that the task has staged."""

    staged: StagedRows


@dataclass(frozen=True)
class SentMessage(WriterCommitMessage):
    """A task's commit message: the number of rows that the cluster has stored."""

    rows: int


def _staged_rows(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [message.staged for message in messages if isinstance(message, StagedMessage)]


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by tasks"
    return task


def _stream_batch(task: TaskContext) -> Identity:
    """Returns the ids of the query and batch of a task. Raises PenstockError if Spark does not provide them."""
    query, batch = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
    if not query or not batch:
        raise PenstockError("Spark does not provide the ids of query and batch, so exactly once is not possible")
    return Identity(WriterKind.QUERY, query, int(batch))


# -- to a store ------------------------------------------------------------------------------------------------------


class StoreWriter(DataSourceArrowWriter):
    """Writes a DataFrame into a store, completely and exactly once."""

    def __init__(self, target: StoreTarget, rows: WrittenRows, identity: Identity) -> None:
        self._target = target
        self._rows = rows
        self._identity = identity
        self._run = _random()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with as_user_errors():
            partition = _task().partitionId()
            return StagedMessage(self._target.stage(self._identity, self._run, self._rows, partition, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with as_user_errors():
            self._target.commit(_staged_rows(messages) or [StagedRows(self._identity, self._run, (), 0, {})])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        with as_user_errors():
            self._target.discard(self._identity, self._run)


class StoreStreamWriter(DataSourceStreamArrowWriter):
    """Writes one batch of a stream into a store, completely and exactly once."""

    def __init__(self, target: StoreTarget, rows: WrittenRows) -> None:
        self._target = target
        self._rows = rows
        self._run = _random()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with as_user_errors():
            task = _task()
            staged = self._target.stage(_stream_batch(task), self._run, self._rows, task.partitionId(), iterator)
            return StagedMessage(staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with as_user_errors():
            staged = _staged_rows(messages)
            if any(each.rows for each in staged):
                self._target.commit(staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with as_user_errors():
            for each in _staged_rows(messages):
                self._target.discard(each.identity, each.run)


# -- to a cluster ----------------------------------------------------------------------------------------------------


class _ClusterWrites:
    """The common base of the two cluster writers."""

    _target: ClusterTarget
    _rows: WrittenRows

    def _send(self, identity: Identity, task: TaskContext, iterator: Iterator[pa.RecordBatch]) -> SentMessage:
        return SentMessage(self._target.send(identity, self._rows, task.partitionId(), iterator))

    def commit(self, messages: Any, batchId: int = 0) -> None:  # noqa: N803
        """Does nothing. The cluster has already stored the rows."""

    def abort(self, messages: Any, batchId: int = 0) -> None:  # noqa: N803
        """Does nothing. Rows that were sent stay in the cluster, because delivery is at least once."""


class ClusterWriter(_ClusterWrites, DataSourceArrowWriter):
    """Sends a DataFrame to a cluster."""

    def __init__(self, target: ClusterTarget, rows: WrittenRows, identity: Identity) -> None:
        self._target, self._rows, self._identity = target, rows, identity

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with as_user_errors():
            return self._send(self._identity, _task(), iterator)


class ClusterStreamWriter(_ClusterWrites, DataSourceStreamArrowWriter):
    """Sends one batch of a stream to a cluster."""

    def __init__(self, target: ClusterTarget, rows: WrittenRows) -> None:
        self._target, self._rows = target, rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with as_user_errors():
            task = _task()
            return self._send(_stream_batch(task), task, iterator)

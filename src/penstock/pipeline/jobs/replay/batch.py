"""Replays one micro-batch: selects rows, maps them to messages, stores or sends them, logs the batch. Needs pyspark.

A replay keeps its progress in a folder:

    <store>/penstock/replay/<name>/                  for a replay into a store
    ~/.local/state/penstock/replay/<name>/           for a replay into a cluster, unless the caller names a folder
        replay.json, lock, checkpoint/, batches/     its identity, its lock, and its progress
        aside/                                       rows that could not be sent, with the reason

If a user removes the folder, the replay starts again from the first message. Spark may pickle `ReplayBatch` and run it
in another process; results then come back only through the batch log. Every batch in the batch log is stored or sent.
If a run was killed, one more batch may be. A store recognises that batch by its write id; a cluster gets it again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.broker.topics import NOT_FOR_SENDING
from penstock.errors import BadMessage, BadSettings
from penstock.format.constants import (
    CLUSTER,
    DELAY,
    MAX_RECONSUME_TIMES,
    MAX_TOPIC_LENGTH,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RETRY_TOPIC,
    TRAN_MSG,
    UNIQ_KEY,
)
from penstock.pipeline.cluster_sink import ClusterTarget
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.jobs.job_input import CORRUPT, BatchLog, observed_counts
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import WrittenRows, check_may_send
from penstock.pipeline.store_sink import StoreTarget
from penstock.store.readonly.store_folder import local_path
from penstock.store.sink.journal import Identity, WriterKind

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame


# -- target ----------------------------------------------------------------------------------------------------------

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a replay: a store, or a cluster."""

    store: str = ""
    namesrv: str = ""
    config: str = ""
    """The path of the store's broker.conf."""
    access_key: str = ""
    secret_key: str = ""

    def check(self) -> None:
        """Checks that the target can be written to. Raises BadSettings, BadStore or StoreInUse."""
        if bool(self.store) == bool(self.namesrv):
            raise BadSettings("give either --to-store DIR or --to-namesrv HOST:PORT")
        if self.store:
            StoreTarget.of(self.options())
        else:
            ClusterTarget.of(self.options())

    def options(self) -> Options:
        """Returns the options for the sink."""
        return Options(
            path=(str(self._folder),) if self.store else (),
            namesrv=self.namesrv,
            config=self.config,
            access_key=self.access_key,
            secret_key=self.secret_key,
            producer_group="penstock-replay",
        )

    @property
    def _folder(self) -> Path:
        """The target store's folder. Raises BadSettings for a URI of another file system."""
        return Path(local_path(self.store)).absolute()

    @property
    def label(self) -> str:
        """The target's path or address, for messages and for the default name of a replay."""
        return str(self._folder) if self.store else self.namesrv

    def progress(self, name: str, folder: str = "") -> Path:
        """Returns the folder of the replay `name`, in `folder` if that is given. Raises BadSettings for a bad name."""
        if not _NAME.fullmatch(name) or name in (".", ".."):
            raise BadSettings(f"--name '{name}': letters, digits, '.', '_' and '-' are allowed")
        if folder:
            return Path(folder).absolute() / name
        if self.store:
            return self._folder / "penstock" / "replay" / name
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "penstock" / "replay" / name


# -- mapping ---------------------------------------------------------------------------------------------------------

REASON: Final = "_why"
"""The column that says why a row cannot be sent. It is null if the row can be sent."""
_MESSAGE_COLUMNS: Final = ("topic", "body", "tags", "keys", "properties", "queue_id", "delay_level")
_BROKER_PROPERTIES: Final = (
    CLUSTER, DELAY, MAX_RECONSUME_TIMES, PGROUP, REAL_QID, REAL_TOPIC, RECONSUME_TIME, RETRY_TOPIC, TRAN_MSG,
)  # fmt: skip
"""Properties that would make a broker treat the message as delayed, transactional or retried."""
_POSITION_COLUMNS: Final = ("broker", "topic", "queue_id", "queue_offset")


class Mapping(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to replay, and their mapping to messages.

    `since_ms` and `until_ms` (exclusive) limit the store time, in epoch milliseconds.
    """

    to_topic: str = ""
    """The topic of all messages. If empty, the row's topic, or the original topic of a dead letter."""
    where: str = ""
    """A Spark SQL condition over the columns of the source."""
    maps: tuple[str, ...] = ()
    """Texts `column=expression`. The expression is Spark SQL over the columns of the source."""
    keys: tuple[str, ...] = ()
    """A row is replayed if it has one of these as a key or as the unique key. If empty, every row is."""
    since_ms: int | None = None
    until_ms: int | None = None

    def check(self) -> None:
        """Raises BadSettings for an invalid map, topic or time range."""
        self.columns()
        if self.to_topic:
            try:
                check_may_send(self.to_topic)
            except BadMessage as error:
                raise BadSettings(f"--to-topic: {error}") from None
        if self.since_ms is not None and self.until_ms is not None and self.since_ms >= self.until_ms:
            raise BadSettings("the replay ends before it begins: --until must be later than --since")

    def columns(self) -> dict[str, str]:
        """Returns the expressions of `maps` by message column. Raises BadSettings."""
        mapped: dict[str, str] = {}
        for text in self.maps:
            name, equals, expression = (part.strip() for part in text.partition("="))
            if not equals or not expression:
                raise BadSettings(f"--map '{text}': it must be a column and an expression, as in body=upper(tags)")
            if name not in _MESSAGE_COLUMNS:
                raise BadSettings(
                    f"--map '{text}': '{name}' is not a message column; there are {', '.join(_MESSAGE_COLUMNS)}"
                )
            mapped[name] = expression
        return mapped


def is_selected(frame: DataFrame, mapping: Mapping) -> Column:
    """Returns a condition that is true for rows to replay. It is never null."""
    from pyspark.sql import functions as f

    conditions = [f.col(CORRUPT).isNull()] if CORRUPT in frame.columns else []
    if mapping.since_ms is not None:
        conditions.append(f.unix_millis("store_timestamp") >= mapping.since_ms)
    if mapping.until_ms is not None:
        conditions.append(f.unix_millis("store_timestamp") < mapping.until_ms)
    if mapping.keys:
        wanted = f.array(*(f.lit(key) for key in mapping.keys))
        unique = f.col("properties")[UNIQ_KEY]
        conditions.append(f.coalesce(f.arrays_overlap("keys", wanted), f.lit(False)) | unique.isin(*mapping.keys))
    if mapping.where:
        conditions.append(f.expr(f"({mapping.where})"))
    chosen = f.lit(True)
    for condition in conditions:
        chosen = chosen & f.coalesce(condition, f.lit(False))
    return chosen


def to_messages(frame: DataFrame, mapping: Mapping, name: str, *, to_origin: bool = False) -> DataFrame:
    """Returns the rows as messages with the sink's columns, and `_why`. `frame` must have selected rows only.

    `name` is the replay's name, from which unique keys are derived. `to_origin` sends dead letters to their original
    topics. Raises BadSettings if there is no body or topic column.
    """
    from pyspark.sql import functions as f

    given = mapping.columns()
    existing = set(frame.columns)
    columns: dict[str, Column] = {column: f.expr(text) for column, text in given.items()}
    if "body" not in columns:
        body = next((column for column in ("body", "value") if column in existing), None)
        if body is None:
            raise BadSettings("there is neither a column 'body' nor 'value'; add one with --map 'body=...'")
        columns["body"] = f.col(body)
    if "topic" not in columns:
        columns["topic"] = _topic(existing, mapping, to_origin=to_origin)
    columns["topic"] = columns["topic"].cast("string")
    for column in ("tags", "keys"):
        if column in existing:
            columns.setdefault(column, f.col(column))
    properties = columns.get("properties", f.col("properties") if "properties" in existing else None)
    mapped = _properties(properties, existing, name)
    if mapped is not None:
        columns["properties"] = mapped
    rows = frame.select(*(columns[column].alias(column) for column in _MESSAGE_COLUMNS if column in columns))
    return rows.withColumn(REASON, _reject_reason())


def _topic(existing: set[str], mapping: Mapping, *, to_origin: bool) -> Column:
    from pyspark.sql import functions as f

    if mapping.to_topic:
        return f.lit(mapping.to_topic)
    if to_origin:
        return f.col("properties")[RETRY_TOPIC]
    if "topic" not in existing:
        raise BadSettings("no topic is given: use --to-topic T, or --map 'topic=...'")
    return f.col("topic")


def _properties(properties: Column | None, existing: set[str], name: str) -> Column | None:
    """Returns the properties without the broker's own. Adds a unique key if there is none.

    The added key depends only on the replay's name and the row's position, so a second replay gives the same key. Adds
    none if the source has no position columns.
    """
    from pyspark.sql import functions as f

    kept = None
    if properties is not None:
        kept = f.map_filter(properties, lambda key, value: ~key.isin(*_BROKER_PROPERTIES) & value.isNotNull())
    if not existing.issuperset(_POSITION_COLUMNS):
        return kept
    position = f.concat_ws("/", f.lit(name), *(f.col(column).cast("string") for column in _POSITION_COLUMNS))
    unique = f.upper(f.substring(f.sha2(position, 256), 1, 32))
    fresh = f.create_map(f.lit(UNIQ_KEY), unique)
    if kept is None:
        return fresh
    return (
        f.when(kept.isNull(), fresh).when(f.map_contains_key(kept, UNIQ_KEY), kept).otherwise(f.map_concat(kept, fresh))
    )


def _reject_reason() -> Column:
    from pyspark.sql import functions as f

    topic = f.col("topic")
    return (
        f.when(f.col("body").isNull(), "it has no body")
        .when(topic.isNull(), "its topic is unknown")
        .when(topic.isin(*NOT_FOR_SENDING), "its topic is the broker's own")
        .when(~topic.rlike(rf"^[%|a-zA-Z0-9_-]{{1,{MAX_TOPIC_LENGTH}}}$"), "its topic's name is not valid")
    )


# -- batches ---------------------------------------------------------------------------------------------------------

_PREVIEW_ROWS: Final = 5
_PREVIEW_CHARS: Final = 80


class ReplayedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The batch log's entry for a micro-batch, with numbers of rows. Its fields are the format on disk."""

    read: int
    unread: int
    chosen: int
    aside: int
    by_topic: dict[str, int] = {}
    """The number of messages per topic. Only a dry run sets it and `first`."""
    first: tuple[dict[str, str], ...] = ()

    @property
    def sent(self) -> int:
        return self.chosen - self.aside


class ReplayBatch:
    """A function that replays one micro-batch per call."""

    def __init__(
        self,
        name: str,
        own: Path,
        target: Target,
        mapping: Mapping,
        *,
        to_origin: bool = False,
        rate: int | None = None,
        dry_run: bool = False,
        run: str = "",
    ) -> None:
        """`own` is the replay's folder. `rate` limits the messages per second. `run` is a random id of the replay.

        A replay that starts over has a new `run`, so that a store does not take its batches for repeated writes.
        """
        self._name, self._own, self._target, self._mapping = name, own, target, mapping
        self._to_origin, self._rate, self._dry_run, self._run = to_origin, rate, dry_run, run

    def __call__(self, frame: DataFrame, number: int) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        batch_log = BatchLog(self._own / "batches", ReplayedBatch)
        if batch_log.find(number) is not None:
            return
        read_counts, message_counts = Observation(f"replay {number}"), Observation(f"messages {number}")
        unread = f.count(CORRUPT) if CORRUPT in frame.columns else f.count(f.lit(None))
        observed = frame.observe(read_counts, f.count(f.lit(1)).alias("read"), unread.alias("unread"))
        rows = self.messages(observed).observe(
            message_counts, f.count(f.lit(1)).alias("chosen"), f.count(REASON).alias("aside")
        )
        preview: dict[str, Any] = {}
        good = rows.where(f"{REASON} is null").drop(REASON)
        if self._dry_run:
            preview = _dry_run_preview(good)
        elif self._target.store:
            self._store(good, number)
        else:
            self._send(good, number)
        counts: dict[str, Any] = {
            **observed_counts(read_counts, "read", "unread"),
            **observed_counts(message_counts, "chosen", "aside"),
        }
        if counts["read"]:
            if counts["aside"] and not self._dry_run:
                bad = rows.where(f"{REASON} is not null").withColumnRenamed(REASON, "reason")
                bad.write.mode("overwrite").parquet(str(self._own / "aside" / f"{number:08d}"))
            batch_log.write(number, ReplayedBatch(**counts, **preview))

    def messages(self, frame: DataFrame) -> DataFrame:
        """Returns the messages for the selected rows of `frame`. Raises BadSettings.

        Spark raises its own error for an invalid expression.
        """
        chosen = frame.where(is_selected(frame, self._mapping))
        return to_messages(chosen, self._mapping, self._name, to_origin=self._to_origin)

    def _store(self, rows: DataFrame, number: int) -> None:
        options = self._target.options()
        writer = rows.write.format("rocketmq").mode("append").option("writeId", self._write_id(number))
        if options.config:
            writer = writer.option("config", options.config)
        writer.save(options.path[0])

    def _write_id(self, number: int) -> str:
        return f"replay {self._name} {self._run} {number}"

    def _send(self, rows: DataFrame, number: int) -> None:
        target = ClusterTarget.of(self._target.options())
        written = WrittenRows.of(rows.schema, "")
        identity, rate = Identity(WriterKind.WRITE, self._write_id(number)), self._rate

        def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None, "rows are sent by tasks"
            with as_user_errors():
                sent = target.send(
                    identity, written, task.partitionId(), batches if rate is None else paced(batches, rate)
                )
            yield pa.RecordBatch.from_pydict({"sent": pa.array([sent], pa.int64())})

        (rows if rate is None else rows.coalesce(1)).mapInArrow(send, "sent bigint").collect()


def _dry_run_preview(rows: DataFrame) -> dict[str, Any]:
    """Returns the fields `by_topic` and `first` of a dry run's entry."""
    first = [
        {name: _text(value) for name, value in row.asDict().items() if value is not None}
        for row in rows.limit(_PREVIEW_ROWS).collect()
    ]
    by_topic = {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()}
    return {"by_topic": by_topic, "first": tuple(first)}


def _text(value: Any) -> str:
    text = bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, bytes | bytearray) else str(value)
    return text if len(text) <= _PREVIEW_CHARS else f"{text[:_PREVIEW_CHARS]}…"


# -- rate limit ------------------------------------------------------------------------------------------------------

_PIECES_PER_SECOND: Final = 10


def paced(
    batches: Iterable[pa.RecordBatch],
    rate: int,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yields `rate` rows per second, in pieces for a tenth of a second. Does not catch up after a delay.

    Waits after the last piece too, so that the caller can start the next batch at once.
    """
    size = max(1, rate // _PIECES_PER_SECOND)
    due = clock()
    for batch in batches:
        for first in range(0, batch.num_rows, size):
            if (wait := due - clock()) > 0:
                sleep(wait)
            piece = batch.slice(first, size)
            due = max(due, clock()) + piece.num_rows / rate
            yield piece
    if (wait := due - clock()) > 0:
        sleep(wait)

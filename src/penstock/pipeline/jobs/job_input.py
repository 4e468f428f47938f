"""The common parts of jobs: their input, the batch log, and reading messages once or as a stream. What reads needs
pyspark, the input does not.

`JobInput` names the stores or the cluster. `BatchLog` keeps one small checksummed file per micro-batch. One writer at a
time replaces a file, atomically:

    <folder>/00000012.json    the outcome of batch 12

If a job is killed before Spark's checkpoint has a batch, Spark replays the batch. The batch log then shows which steps
of the batch are already done. `read_once` and `read_stream` return all message columns and `_corrupt`, the reason why a
message could not be read. `run_batches` ends a stream at the messages that existed at its start (`availableNow`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa

from penstock.broker.topics import NOT_FOR_SENDING
from penstock.errors import BadSettings, BadStore, StoreInUse
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.offset_ranges import ReadTask
from penstock.pipeline.options import Options
from penstock.pipeline.scan_plan import check_input, plan_batch
from penstock.pipeline.session import map_in_workers
from penstock.pipeline.source_rows import ROW_SCHEMA, RowShape
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files
from penstock.store.readonly.store_folder import StoreFolder, find_paths, name_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


# -- input -----------------------------------------------------------------------------------------------------------


class JobInput(msgspec.Struct, frozen=True, kw_only=True):
    """A job's input: either stores, or a cluster by its name servers.

    `stores` are folders or globs. The broker.conf `config` and the `settings` apply to all of them.
    """

    stores: tuple[str, ...] = ()
    namesrv: str = ""
    config: str = ""
    settings: tuple[str, ...] = ()
    """Store settings as `name=value`, with RocketMQ's names. They override `config`."""

    def check(self, *, only_stores: bool = False) -> None:
        """Raises BadSettings unless exactly one of stores and name servers is given. `only_stores` requires stores."""
        if only_stores and not self.stores:
            raise BadSettings("no store is given; name it with --store DIR")
        if bool(self.stores) == bool(self.namesrv):
            raise BadSettings("give either --store DIR or --namesrv HOST:PORT")

    def options(self, **changes: Any) -> Options:
        """Returns the options for a source. The source skips deleted messages; the job reports them itself."""
        return Options(
            path=self.stores,
            namesrv=self.namesrv,
            config=self.config,
            settings=self.settings,
            fail_on_data_loss=False,
            **changes,
        )

    def folders(self) -> dict[str, StoreFolder]:
        """Returns the stores' folders by the store names that results use. Raises BadSettings or BadStore."""
        config = Path(self.config) if self.config else None
        return {
            name: StoreFolder.find(path, config, self.settings)
            for name, path in name_stores(find_paths(self.stores)).items()
        }


# -- batch log -------------------------------------------------------------------------------------------------------

Entry = TypeVar("Entry")


class BatchLog(Generic[Entry]):
    """The log of one job's micro-batches: a folder with one file per batch. `kind` is the type of an entry."""

    def __init__(self, folder: Path, kind: type[Entry]) -> None:
        self.folder = folder
        self._kind = kind
        self._files = Files()

    def find(self, number: int) -> Entry | None:
        """Returns the entry of batch `number`, or None. Raises BadStore if the entry exists but cannot be read."""
        path = self._path(number)
        entry = read_checksummed(self._files, path, self._kind)
        if entry is None and self._files.exists(path):
            raise BadStore("this entry of the batch log cannot be read; start again in another folder", path=path)
        return entry

    def write(self, number: int, entry: Entry) -> None:
        """Writes the entry of batch `number`. The entry is durable when this returns. Raises StoreFailed."""
        self._files.make_folder(self.folder)
        write_checksummed(self._files, self._path(number), entry)

    def all(self) -> Iterator[tuple[int, Entry]]:
        """Yields the number and entry of every batch. Raises BadStore if an entry cannot be read."""
        for name in self._files.names(self.folder):
            if name.endswith(".json"):
                entry = self.find(int(name.removesuffix(".json")))
                if entry is not None:
                    yield int(name.removesuffix(".json")), entry

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


def query_id_of(checkpoint: Path) -> str:
    """Returns the query id in a checkpoint. Spark writes the id before the first batch. Raises OSError."""
    return str(msgspec.json.decode((checkpoint / "metadata").read_bytes())["id"])


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Creates a folder and locks it during the block. Raises StoreFailed.

    Raises StoreInUse with the text `busy` if another run has the lock.
    """
    files = Files()
    files.make_folder(folder)
    try:
        lock = files.lock(folder / "lock")
    except StoreInUse:
        raise StoreInUse(busy, path=folder) from None
    try:
        yield
    finally:
        lock.release()


# -- reading ---------------------------------------------------------------------------------------------------------

CORRUPT: Final = "_corrupt"
USERS_TOPICS: Final = rf"(?!(?:{'|'.join(map(re.escape, sorted(NOT_FOR_SENDING)))})$).*"
"""Matches every topic except the topics that only a broker writes to."""
_START_ATTEMPTS: Final = 5
_CONNECT_TIMEOUT: Final = "Python worker failed to connect back"


def message_columns() -> list[str]:
    """Returns the names of all message columns, and `_corrupt`."""
    return [*ROW_SCHEMA.names, CORRUPT]


def read_once(
    spark: SparkSession,
    job_input: JobInput,
    topics: Sequence[str] = (),
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """Returns the current messages of `topics`, or of all user topics if it is empty.

    `since_ms` and `until_ms` (exclusive) limit the store time, in epoch ms. Raises BadSettings, BadStore or
    Unreachable.
    """
    from penstock.pipeline.source import spark_schema
    from penstock.pipeline.spark_versions import arrow_schema

    options = _options(job_input, topics, starting_timestamp=since_ms, ending_timestamp=until_ms)
    names = message_columns()
    schema = spark_schema(names, options)
    shape, arrow = RowShape.of(options, names), arrow_schema(schema)

    def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
        return shape.batches(task, arrow)

    return map_in_workers(spark, plan_batch(options), read, schema)


def read_here(
    job_input: JobInput, topics: Sequence[str] = (), *, since_ms: int | None = None, until_ms: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields the messages that `read_once` returns, in this process and without Spark."""
    options = _options(job_input, topics, starting_timestamp=since_ms, ending_timestamp=until_ms)
    schema = ROW_SCHEMA.append(pa.field(CORRUPT, pa.string()))
    shape = RowShape.of(options, schema.names)
    for task in plan_batch(options):
        yield from shape.batches(task, schema)


def read_stream(
    spark: SparkSession,
    job_input: JobInput,
    topics: Sequence[str] = (),
    *,
    folder: Path,
    since_ms: int | None = None,
    allow_loss: bool = False,
    more: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns a stream of the messages of `topics`, or of all user topics if it is empty.

    A new query starts at the oldest message, or at the store time `since_ms` (epoch ms). `allow_loss` sets
    failOnDataLoss to false. `more` are further source options. If the input has settings, they are written to a
    broker.conf in `folder`, because the source has no option for them. Raises BadSettings, BadStore or Unreachable.
    """
    from penstock.pipeline.spark_versions import HAS_READ_LIMITS

    check_input(_options(job_input, topics))
    options = {
        "columns": ",".join(message_columns()),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false" if allow_loss else "true",
        **({"maxBytesPerTrigger": "1g"} if HAS_READ_LIMITS else {}),  # without: see run_batches
        "mode": "PERMISSIVE",  # jobs count damaged messages, and go on
        **({"subscribe": ",".join(topics)} if topics else {"subscribePattern": USERS_TOPICS}),
        **({"namesrv": job_input.namesrv} if job_input.namesrv else {"paths": json.dumps(_absolute(job_input.stores))}),
        **(more or {}),
    }
    if since_ms is not None:
        options |= {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if job_input.config or job_input.settings:
        options["config"] = _conf_file(job_input, folder)
    with from_spark_errors():
        return spark.readStream.format("rocketmq").options(**options).load()


def _options(job_input: JobInput, topics: Sequence[str], **changes: Any) -> Options:
    if topics:
        return job_input.options(subscribe=tuple(topics), starting_offsets_by_timestamp_strategy="latest", **changes)
    pattern = re.compile(USERS_TOPICS)
    return job_input.options(subscribe_pattern=pattern, starting_offsets_by_timestamp_strategy="latest", **changes)


def _absolute(paths: Sequence[str]) -> list[str]:
    """Returns the paths as absolute paths, because Spark's processes may have another working directory."""
    return [path if path.startswith("file:") else str(Path(path).absolute()) for path in paths]


def _conf_file(job_input: JobInput, folder: Path) -> str:
    """Returns the path of a broker.conf with the input's `config` and `settings`. Writes it only if there are settings.

    Settings follow the content of `config`, so they override it.
    """
    if not job_input.settings:
        return job_input.config
    text = Path(job_input.config).read_text(encoding="utf-8") + "\n" if job_input.config else ""
    path = folder / "broker.conf"
    Files().make_folder(folder)
    Files().replace_bytes(path, (text + "\n".join(job_input.settings) + "\n").encode())
    return str(path)


def observed_counts(observation: Observation, *names: str) -> dict[str, int]:
    """Returns the observed counts by name. Counts are 0 if Spark skipped the action because there are no rows."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        counts: dict[str, int] = observation.get
    except Py4JJavaError:  # how Spark 4.3 reports a skipped action
        counts = {}
    return {name: counts.get(name, 0) for name in names}


def _start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Starts a query. Retries if a Python process of a Connect server does not connect in time.

    The server waits only ten seconds, which is too short on a busy machine. A retry is safe, because the query has not
    run yet. It is also faster, because the process's files are then in the page cache.
    """
    from pyspark.errors import PySparkException

    for _ in range(_START_ATTEMPTS - 1):
        try:
            return writer.start()
        except PySparkException as error:
            if _CONNECT_TIMEOUT not in str(error):
                raise
    return writer.start()


def run_batches(stream: DataFrame, each: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Calls `each` with every micro-batch of the current messages and its number, then returns.

    Spark before 4.2 runs one micro-batch, with all messages, or the unfinished one of a killed run: then a second run
    reads the others. Raises PenstockError if the query fails.
    """
    from penstock.pipeline.spark_versions import HAS_READ_LIMITS

    runs = 2 if not HAS_READ_LIMITS and _has_unfinished_batch(checkpoint) else 1
    with from_spark_errors():
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        for _ in range(runs):
            query = _start_query(writer.trigger(availableNow=True))
            try:
                query.awaitTermination()
            finally:
                query.stop()


def _has_unfinished_batch(checkpoint: Path) -> bool:
    """Whether a run that was killed has logged the offsets of a micro-batch and has not committed it."""
    begun, finished = (
        max((int(path.name) for path in (checkpoint / kind).glob("*") if path.name.isdecimal()), default=-1)
        for kind in ("offsets", "commits")
    )
    return begun > finished

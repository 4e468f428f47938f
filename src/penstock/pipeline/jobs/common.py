"""Where the messages are that a job goes over: the files of stores, or a cluster.

What a job notes of its micro-batches: a small file each, so that a batch that comes again is known.

    <folder>/00000012.json    what became of batch 12

Written by whoever runs the batch, one at a time; replaced as a whole, and with a checksum. A batch is replayed by Spark
if it was killed before the checkpoint had it, so its note may be there already: it says how far the batch came.


Messages as frames for jobs that go on where they were: as a stream with a checkpoint, or once. Needs pyspark.

The stream ends when it has read what there was at its start (`availableNow`). Both have all columns of messages and
`_corrupt`, which says why a row could not be read.
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
from penstock.pipeline.options import Options
from penstock.pipeline.plan import check_input, plan_batch
from penstock.pipeline.ranges import ReadTask
from penstock.pipeline.rows import RowShape
from penstock.pipeline.session import map_in_workers
from penstock.pipeline.source import known_columns, spark_schema
from penstock.pipeline.store_source import find_paths, name_stores
from penstock.store.atomic_files import read_sealed, write_sealed
from penstock.store.io import Files
from penstock.store.readonly.store_folder import StoreFolder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class JobInput(msgspec.Struct, frozen=True, kw_only=True):
    """Stores by their folders or globs, with a broker.conf and settings that hold for all of them; or name servers."""

    stores: tuple[str, ...] = ()
    namesrv: str = ""
    config: str = ""
    settings: tuple[str, ...] = ()
    """`name=value` by RocketMQ's names; they win over `config`."""

    def check(self, *, only_stores: bool = False) -> None:
        """Raises BadSettings unless exactly one kind of place is named."""
        if only_stores and not self.stores:
            raise BadSettings("which stores? Name them with --store DIR")
        if bool(self.stores) == bool(self.namesrv):
            raise BadSettings("where? Give either --store DIR or --namesrv HOST:PORT")

    def options(self, **changes: Any) -> Options:
        """The source's options for reading there; what is gone is passed over, and told by the job."""
        return Options(
            path=self.stores,
            namesrv=self.namesrv,
            config=self.config,
            settings=self.settings,
            fail_on_data_loss=False,
            **changes,
        )

    def folders(self) -> dict[str, StoreFolder]:
        """The stores' folders by the names that they have in results. Raises BadSettings, BadStore."""
        config = Path(self.config) if self.config else None
        return {
            name: StoreFolder.find(path, config, self.settings)
            for name, path in name_stores(find_paths(self.stores)).items()
        }


Note = TypeVar("Note")


class BatchLog(Generic[Note]):
    """The notes of one job in one folder."""

    def __init__(self, folder: Path, kind: type[Note]) -> None:
        self.folder = folder
        self._kind = kind
        self._files = Files()

    def find(self, number: int) -> Note | None:
        """Raises BadStore for a note that cannot be read: nobody knows then how far the batch came."""
        path = self._path(number)
        found = read_sealed(self._files, path, self._kind)
        if found is None and self._files.exists(path):
            raise BadStore("this note of a batch cannot be read; begin again in another folder", path=path)
        return found

    def write(self, number: int, note: Note) -> None:
        """On disk when this returns. Raises StoreFailed."""
        self._files.make_folder(self.folder)
        write_sealed(self._files, self._path(number), note)

    def all(self) -> Iterator[tuple[int, Note]]:
        """Raises BadStore as `find` does."""
        for name in self._files.names(self.folder):
            if name.endswith(".json"):
                note = self.find(int(name.removesuffix(".json")))
                if note is not None:
                    yield int(name.removesuffix(".json")), note

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.json"


def query_id_of(checkpoint: Path) -> str:
    """The id of the query that a checkpoint belongs to; Spark writes it before the first batch. Raises OSError."""
    return str(msgspec.json.decode((checkpoint / "metadata").read_bytes())["id"])


@contextmanager
def locked_folder(folder: Path, busy: str) -> Iterator[None]:
    """Makes a folder that is there for one run at a time. Raises StoreInUse with what `busy` says, StoreFailed."""
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


CORRUPT: Final = "_corrupt"
USERS_TOPICS: Final = rf"(?!(?:{'|'.join(map(re.escape, sorted(NOT_FOR_SENDING)))})$).*"
"""Every topic but those that only a broker writes to."""
_STARTS: Final = 5
_TOO_LATE: Final = "Python worker failed to connect back"


def message_columns() -> list[str]:
    """All columns of messages, and the one that says what is wrong."""
    return list(known_columns(Options()))


def read_once(
    spark: SparkSession,
    job_input: JobInput,
    topics: Sequence[str] = (),
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """What is there now, of some topics or of all users' topics. Raises BadSettings, BadStore, Unreachable."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = _options(job_input, topics, starting_timestamp=since_ms, ending_timestamp=until_ms)
    names = message_columns()
    schema = spark_schema(names, options)
    shape, arrow = RowShape.of(options, names), to_arrow_schema(schema, timezone="UTC")

    def read(task: ReadTask) -> Iterator[pa.RecordBatch]:
        return shape.batches(task, arrow)

    return map_in_workers(spark, plan_batch(options), read, schema)


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
    """The same as a stream, from the first message (or a time) on if its checkpoint is new.

    `folder` is where settings are put that the source must find in a file. Raises BadSettings, BadStore, Unreachable.
    """
    check_input(_options(job_input, topics))
    options = {
        "columns": ",".join(message_columns()),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false" if allow_loss else "true",
        "maxBytesPerTrigger": "1g",
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
    """Spark's processes may work in another folder than this one."""
    return [path if path.startswith("file:") else str(Path(path).absolute()) for path in paths]


def _conf_file(job_input: JobInput, folder: Path) -> str:
    """The settings as one file, those that win at its end."""
    if not job_input.settings:
        return job_input.config
    text = Path(job_input.config).read_text(encoding="utf-8") + "\n" if job_input.config else ""
    path = folder / "broker.conf"
    Files().make_folder(folder)
    Files().replace_bytes(path, (text + "\n".join(job_input.settings) + "\n").encode())
    return str(path)


def observed_counts(observation: Observation, *names: str) -> dict[str, int]:
    """What was counted by an action; noughts where Spark knew before it that there is no row, and counted none."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        found: dict[str, int] = observation.get
    except Py4JJavaError:  # which is how Spark 4.3 says so
        found = {}
    return {name: found.get(name, 0) for name in names}


def _started(writer: DataStreamWriter) -> StreamingQuery:
    """Under Connect a server starts a Python process for the batches, and gives it ten seconds to come up, which it
    may miss where much else is running. Nothing has begun then, and the next one finds its files in memory."""
    from pyspark.errors import PySparkException

    for _ in range(_STARTS - 1):
        try:
            return writer.start()
        except PySparkException as error:
            if _TOO_LATE not in str(error):
                raise
    return writer.start()


def run_batches(stream: DataFrame, each: Callable[[DataFrame, int], None], checkpoint: Path) -> None:
    """Runs a function for each micro-batch of what is there now. Raises PenstockError for what ended it."""
    with from_spark_errors():
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        query = _started(writer.trigger(availableNow=True))
        try:
            query.awaitTermination()
        finally:
            query.stop()

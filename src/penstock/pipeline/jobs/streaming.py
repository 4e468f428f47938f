"""Messages as frames for jobs that go on where they were: as a stream with a checkpoint, or once. Needs pyspark.

The stream ends when it has read what there was at its start (`availableNow`). Both have all columns of messages and
`_corrupt`, which says why a row could not be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock.broker.system_topics import NOT_FOR_SENDING
from penstock.pipeline.errors import heard
from penstock.pipeline.jobs.where import Where
from penstock.pipeline.options import Options
from penstock.pipeline.places import Task
from penstock.pipeline.planning import check_there, plan_batch
from penstock.pipeline.rows import Shape
from penstock.pipeline.schema import known_columns, spark_schema
from penstock.pipeline.workers import in_workers
from penstock.store.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

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
    where: Where,
    topics: Sequence[str] = (),
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """What is there now, of some topics or of all users' topics. Raises BadSettings, BadStore, Unreachable."""
    from pyspark.sql.pandas.types import to_arrow_schema

    options = _options(where, topics, starting_timestamp=since_ms, ending_timestamp=until_ms)
    names = message_columns()
    schema = spark_schema(names, options)
    shape, arrow = Shape.of(options, names), to_arrow_schema(schema, timezone="UTC")

    def read(task: Task) -> Iterator[pa.RecordBatch]:
        return shape.batches(task, arrow)

    return in_workers(spark, plan_batch(options), read, schema)


def read_stream(
    spark: SparkSession,
    where: Where,
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
    check_there(_options(where, topics))
    options = {
        "columns": ",".join(message_columns()),
        "startingOffsets": "earliest",
        "failOnDataLoss": "false" if allow_loss else "true",
        "maxBytesPerTrigger": "1g",
        **({"subscribe": ",".join(topics)} if topics else {"subscribePattern": USERS_TOPICS}),
        **({"namesrv": where.namesrv} if where.namesrv else {"paths": json.dumps(_absolute(where.stores))}),
        **(more or {}),
    }
    if since_ms is not None:
        options |= {"startingTimestamp": str(since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if where.config or where.settings:
        options["config"] = _conf_file(where, folder)
    with heard():
        return spark.readStream.format("rocketmq").options(**options).load()


def _options(where: Where, topics: Sequence[str], **changes: Any) -> Options:
    if topics:
        return where.options(subscribe=tuple(topics), starting_offsets_by_timestamp_strategy="latest", **changes)
    pattern = re.compile(USERS_TOPICS)
    return where.options(subscribe_pattern=pattern, starting_offsets_by_timestamp_strategy="latest", **changes)


def _absolute(paths: Sequence[str]) -> list[str]:
    """Spark's processes may work in another folder than this one."""
    return [path if path.startswith("file:") else str(Path(path).absolute()) for path in paths]


def _conf_file(where: Where, folder: Path) -> str:
    """The settings as one file, those that win at its end."""
    if not where.settings:
        return where.config
    text = Path(where.config).read_text(encoding="utf-8") + "\n" if where.config else ""
    path = folder / "broker.conf"
    Files().make_folder(folder)
    Files().replace_bytes(path, (text + "\n".join(where.settings) + "\n").encode())
    return str(path)


def counted(observation: Observation, *names: str) -> dict[str, int]:
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
    with heard():
        writer = stream.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        query = _started(writer.trigger(availableNow=True))
        try:
            query.awaitTermination()
        finally:
            query.stop()

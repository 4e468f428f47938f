"""The export job: runs the stream or the single batch, and sums up the batch log. Needs pyspark, except `export_here`.

`ExportBatch` decodes a micro-batch, stages its files with Spark, writes its entry in the batch log, moves the files and
commits them. Spark may pickle it and run it in another process; results then come back only through the batch log.
Workers decode bodies into the column `value`. The column `_reason` says why a body could not be decoded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import BadSettings, BadStore
from penstock.pipeline.decode import Decode, make_decoder
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.jobs.export.in_process import needs_spark, stage_here
from penstock.pipeline.jobs.export.spec import Export, ExportedBatch, ExportFolder, clear, move, staged_files
from penstock.pipeline.jobs.export.tables import check_delta, check_iceberg, commit_delta, commit_iceberg
from penstock.pipeline.jobs.job_input import (
    CORRUPT,
    BatchLog,
    JobInput,
    observed_counts,
    query_id_of,
    read_here,
    read_once,
    read_stream,
    run_batches,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# -- values ----------------------------------------------------------------------------------------------------------
REASON: Final = "_reason"
_MISFIT: Final = "_misfit"


def with_value(frame: DataFrame, decode: Decode | None, *, nested: bool = False) -> DataFrame:
    """Returns the rows with a column `_reason` and, unless `decode` is None, a column `value`.

    JSON without a schema becomes text or, if `nested` is true, a nested value. Raises BadSettings.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StringType, StructField, StructType

    if decode is None:
        return frame.withColumn(REASON, f.lit(None).cast("string"))
    kind = from_arrow_type(make_decoder(decode).type)
    fields = [*frame.schema.fields, StructField("value", kind), StructField(REASON, StringType())]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = make_decoder(decode)
        for batch in batches:
            values, reasons = decoder.column(batch.column("body"), batch.column(CORRUPT).is_valid())
            yield batch.append_column("value", values).append_column(REASON, reasons)

    rows = frame.mapInArrow(run, StructType(fields))
    if decode.kind != "json":
        return rows
    if not decode.schema:
        return rows.withColumn("value", f.parse_json("value")) if nested else rows
    columns = StructType([*json_columns(decode).fields, StructField(_MISFIT, StringType())])
    value = f.from_json("value", columns, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MISFIT})
    misfit = f.when(f.col(f"value.{_MISFIT}").isNotNull(), "it is JSON of another shape than the schema's")
    return (
        rows.withColumn("value", value)
        .withColumn(REASON, f.coalesce(f.col(REASON), misfit))
        .withColumn("value", f.col("value").dropFields(_MISFIT))
    )


def json_columns(decode: Decode) -> StructType:
    """Returns the columns of JSON values. The schema is DDL (`id bigint, name string`) or a Spark schema's JSON.

    Raises BadSettings.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    text = decode.schema.decode("utf-8", "replace").strip()
    try:
        if text.startswith("{"):
            return StructType.fromJson(json.loads(text))
        made = StructType.fromDDL(text)
        if not isinstance(made, StructType):
            raise ValueError(f"{text} is a type without names")
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise BadSettings(f"--schema must name columns, as in `id bigint, name string` ({first})") from None
    return made


# -- batches ---------------------------------------------------------------------------------------------------------
ONCE: Final = "once"
_MICROS: Final = "spark.sql.parquet.outputTimestampType"
_DAY: Final = "date_from_unix_date(cast(floor(unix_millis(store_timestamp) / 86400000) as int))"
"""The SQL expression of the store date in UTC, whatever the session's time zone."""


class ExportBatch:
    """A function that exports one micro-batch per call."""

    def __init__(self, spec: Export) -> None:
        self._spec = spec

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.run(number, lambda query, folder: self._stage(frame, number, query, folder))

    def run(self, number: int, stage: Callable[[str, ExportFolder], ExportedBatch]) -> None:
        """Exports batch `number`, unless it is done. `stage` stages its files, for the query and into the folder."""
        folder = ExportFolder(self._spec.to)
        query = ONCE if self._spec.once else query_id_of(folder.checkpoint)
        batch_log = BatchLog(folder.batches, ExportedBatch)
        batch = batch_log.find(number)
        if batch is None:
            batch = stage(query, folder)
            if not batch.files:
                clear(folder.staged / str(number))
                return
            batch_log.write(number, batch)
        elif batch.query != query:
            raise BadStore(
                "this export has a different checkpoint than at its start; export to a new folder", path=folder.root
            )
        if not batch.done:
            self.publish(folder, batch)
            batch_log.write(number, batch.as_done())

    def publish(self, folder: ExportFolder, batch: ExportedBatch) -> None:
        """Moves the staged files of a batch to their targets, and commits them to its table. Idempotent."""
        move(folder.root, batch.files)
        if self._spec.format == "delta":
            commit_delta(folder.root, batch)
        elif self._spec.format == "iceberg":
            commit_iceberg(self._spec, batch)
        clear(folder.staged / str(batch.number))

    def _stage(self, frame: DataFrame, number: int, query: str, folder: ExportFolder) -> ExportedBatch:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        staged = folder.staged / str(number)
        clear(staged)
        rows = self._rows(frame)
        observation = Observation(f"export {number}")
        observed = rows.observe(
            observation,
            f.count(f.lit(1)).alias("rows"),
            f.count(CORRUPT).alias("unread"),
            f.count(REASON).alias("undecoded"),
        )
        is_bad = f"{CORRUPT} is not null or {REASON} is not null"
        with _in_micros(frame.sparkSession):
            self._write(observed.where(f"not ({is_bad})").drop(CORRUPT, REASON), staged / "good", by_date=True)
            counts = observed_counts(observation, "rows", "unread", "undecoded")
            bad = counts["unread"] + counts["undecoded"]
            if bad:
                reason = f.expr(f"coalesce({CORRUPT}, {REASON})").alias("reason")
                kept = [name for name in rows.columns if name not in (CORRUPT, REASON, "value", "date")]
                self._write(rows.where(is_bad).select(*kept, reason), staged / "bad", by_date=False)
        files = (
            *staged_files(folder.root, staged / "good", number, self._spec.suffix, is_bad=False),
            *staged_files(folder.root, staged / "bad", number, self._spec.suffix, is_bad=True),
        )
        written = sum(file.rows for file in files)
        if written != counts["rows"]:
            raise BadStore(
                "what was read changed while it was exported; run the export again",
                path=folder.root,
                expected=f"{counts['rows']} rows",
                found=written,
            )
        return ExportedBatch(
            number=number,
            query=query,
            files=files,
            rows=counts["rows"] - bad,
            undecoded=counts["undecoded"],
            unread=counts["unread"],
        )

    def _rows(self, frame: DataFrame) -> DataFrame:
        """Returns the rows with the columns `date`, `_reason` and, if bodies are decoded, `value`."""
        decode: Decode | None = self._spec.decode
        return with_value(frame, decode, nested=self._spec.format == "json").selectExpr("*", f"{_DAY} as date")

    def _write(self, rows: DataFrame, folder: Path, *, by_date: bool) -> None:
        from pyspark.sql import functions as f

        names = ["topic", "date"] if by_date else ["topic"]
        if self._spec.format == "iceberg" and by_date:  # Iceberg files contain their partition columns
            rows = rows.withColumns({f"_of_{name}": f.col(name) for name in names}).drop("date")
            names = [f"_of_{name}" for name in names]
        writer = rows.write.partitionBy(*names).mode("overwrite")
        if self._spec.format == "json":
            writer.option("timeZone", "UTC").option("compression", "none").json(str(folder))
        else:
            writer.parquet(str(folder))


@contextmanager
def _in_micros(spark: SparkSession) -> Iterator[None]:
    """Makes Spark write Parquet timestamps in microseconds during the block. Not every reader supports its default."""
    before = spark.conf.get(_MICROS, None)
    spark.conf.set(_MICROS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_MICROS)
        else:
            spark.conf.set(_MICROS, before)


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """The rows and files that one run added to an export."""

    to: str
    rows: int
    undecoded: int
    """The number of messages in quarantine because their body could not be decoded."""
    unread: int
    """The number of messages in quarantine because they could not be read."""
    batches: int
    files: int
    by_topic: dict[str, int]
    all_rows: int
    """The number of rows of all runs so far."""


def export(spark: SparkSession, spec: Export, job_input: JobInput) -> Exported:
    """Exports the messages since the last run.

    Raises BadSettings, BadStore, StoreInUse, StoreFailed, Unreachable, MissingPackage, or PenstockError if Spark fails.
    """
    spec.check()
    job_input.check()
    if spec.decode is not None and spec.decode.kind == "json" and spec.decode.schema:
        json_columns(spec.decode)

    def run(folder: ExportFolder) -> None:
        each = ExportBatch(spec)
        if spec.once:
            with from_spark_errors():
                each(read_once(spark, job_input, spec.topics, since_ms=spec.since_ms, until_ms=spec.until_ms), 0)
            return
        stream = read_stream(
            spark,
            job_input,
            spec.topics,
            folder=folder.own,
            since_ms=spec.since_ms,
            allow_loss=spec.allow_loss,
        )
        run_batches(stream, each, folder.checkpoint)

    return _run_owned(spec, run)


def export_here(spec: Export, job_input: JobInput) -> Exported:
    """Exports the messages in this process, without Spark. Raises BadSettings if `needs_spark` has a reason.

    Otherwise like `export`; either of them finishes what the other one left when it was killed.
    """
    spec.check()
    job_input.check()
    if reason := needs_spark(spec):
        raise BadSettings(f"this export needs Spark, {reason}")

    def run(folder: ExportFolder) -> None:
        batches = read_here(job_input, spec.topics, since_ms=spec.since_ms, until_ms=spec.until_ms)
        ExportBatch(spec).run(0, lambda query, folder: stage_here(spec, batches, 0, query, folder))

    return _run_owned(spec, run)


def _run_owned(spec: Export, run: Callable[[ExportFolder], None]) -> Exported:
    """Runs an export while its folder is locked, and sums up what it added."""
    if spec.format == "delta":
        check_delta()
    elif spec.format == "iceberg":
        check_iceberg(spec)
    folder = ExportFolder(spec.to)
    batch_log = BatchLog(folder.batches, ExportedBatch)
    with folder.owned(spec):
        before = {number for number, batch in batch_log.all() if batch.done}
        if spec.once and before:
            raise BadSettings(
                f"--to {folder.root}: there is an export already; name a new folder, or leave --once out to resume it"
            )
        run(folder)
        return _summary(str(folder.root), dict(batch_log.all()), before)


def _summary(to: str, batches: dict[int, ExportedBatch], before: set[int]) -> Exported:
    new = [batch for number, batch in batches.items() if number not in before]
    by_topic: Counter[str] = Counter()
    for batch in new:
        for file in batch.good:
            by_topic[file.topic] += file.rows
    return Exported(
        to=to,
        rows=sum(batch.rows for batch in new),
        undecoded=sum(batch.undecoded for batch in new),
        unread=sum(batch.unread for batch in new),
        batches=len(new),
        files=sum(len(batch.files) for batch in new),
        by_topic=dict(sorted(by_topic.items())),
        all_rows=sum(batch.rows for batch in batches.values()),
    )

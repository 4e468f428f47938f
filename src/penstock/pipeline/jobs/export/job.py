"""The export job: runs the stream or the single batch, and sums up the batch log. Needs pyspark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import BadSettings
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.jobs.common import BatchLog, JobInput, read_once, read_stream, run_batches
from penstock.pipeline.jobs.export.batch import ExportBatch, json_columns
from penstock.pipeline.jobs.export.spec import Export, ExportedBatch, ExportFolder
from penstock.pipeline.jobs.export.tables import check_delta, check_iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What one run added to an export."""

    to: str
    rows: int
    undecoded: int
    """In quarantine: their body cannot be decoded."""
    unread: int
    """In quarantine: they could not be read."""
    batches: int
    files: int
    by_topic: dict[str, int]
    all_rows: int
    """Rows of all runs so far."""


def export(spark: SparkSession, spec: Export, job_input: JobInput) -> Exported:
    """Exports the new messages since the last run. Raises BadSettings, BadStore, Unreachable, DataLost and others."""
    spec.check()
    job_input.check()
    if spec.format == "delta":
        check_delta()
    elif spec.format == "iceberg":
        check_iceberg(spec)
    if spec.decode is not None and spec.decode.kind == "json" and spec.decode.schema:
        json_columns(spec.decode)
    folder = ExportFolder(spec.to)
    batch_log = BatchLog(folder.batches, ExportedBatch)
    with folder.owned(spec):
        before = {number for number, batch in batch_log.all() if batch.done}
        each = ExportBatch(spec)
        if spec.once:
            if before:
                raise BadSettings(
                    f"--to {folder.root}: there is an export already; "
                    "name a new folder, or leave --once out to resume it"
                )
            with from_spark_errors():
                each(read_once(spark, job_input, spec.topics, since_ms=spec.since_ms, until_ms=spec.until_ms), 0)
        else:
            stream = read_stream(
                spark,
                job_input,
                spec.topics,
                folder=folder.own,
                since_ms=spec.since_ms,
                allow_loss=spec.allow_loss,
            )
            run_batches(stream, each, folder.checkpoint)
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

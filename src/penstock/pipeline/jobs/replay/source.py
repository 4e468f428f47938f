"""The source of a replay: stores, a cluster, an export, or files; each as a stream. Needs pyspark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.topics import dead_letter_topic
from penstock.errors import BadSettings
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.jobs.common import CORRUPT, JobInput, message_columns, read_stream
from penstock.pipeline.jobs.export.spec import ExportFolder
from penstock.pipeline.options import Options
from penstock.pipeline.source import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILE_FORMATS: Final = ("parquet", "json")
_MAX_FILE_AGE: Final = "36500d"
"""By default Spark skips files that are a week older than the newest one."""


class ReplaySource(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a replay: either `job_input` with topics, or a folder."""

    job_input: JobInput = JobInput()
    topics: tuple[str, ...] = ()
    to_origin: bool = False
    """Dead letters: each returns to its original topic."""
    since_ms: int | None = None
    folder: str = ""
    format: str = ""
    """Of the files in the folder; empty for an export, whose spec has it."""
    allow_loss: bool = False

    def check(self) -> None:
        """Raises BadSettings."""
        if not self.folder:
            self.job_input.check()
            if not self.topics:
                raise BadSettings("no topic is given: use --topic T or --dead-letters GROUP")
        elif self.format and self.format not in _FILE_FORMATS:
            raise BadSettings(f"--format '{self.format}': it must be one of {', '.join(_FILE_FORMATS)}")
        elif not Path(self.folder).is_dir():
            raise BadSettings(f"{self.folder}: there is no such folder; check --from")
        elif not self.format:
            ExportFolder(self.folder).spec()

    @property
    def label(self) -> str:
        """The source's name, for derived names; deterministic."""
        if self.folder:
            return f"{Path(self.folder).absolute()} {self.format}"
        stores = [path if path.startswith("file:") else str(Path(path).absolute()) for path in self.job_input.stores]
        return " ".join((*stores, self.job_input.namesrv, *self.topics))

    def stream(self, spark: SparkSession, own: Path, rows_at_once: int) -> DataFrame:
        """The messages as a stream. `own` is the replay's folder. Raises BadSettings, BadStore, Unreachable."""
        if not self.folder:
            limit = {"maxOffsetsPerTrigger": str(rows_at_once)}
            return read_stream(
                spark,
                self.job_input,
                self.topics,
                folder=own,
                since_ms=self.since_ms,
                allow_loss=self.allow_loss,
                more=limit,
            )
        root, form, names = Path(self.folder).absolute(), self.format, "*"
        with from_spark_errors():
            if form:
                schema = spark.read.format(form).load(str(root)).schema
            else:
                spec = ExportFolder(self.folder).spec()
                form, names, schema = (
                    "json" if spec.format == "json" else "parquet",
                    f"batch-*{spec.suffix}",
                    _export_schema(),
                )
            reader = spark.readStream.format(form).schema(schema)
            reader = reader.option("pathGlobFilter", names).option("maxFileAge", _MAX_FILE_AGE)
            return reader.option("maxFilesPerTrigger", 100).load(str(root))


def _export_schema() -> StructType:
    """The message columns of an export."""
    return spark_schema([name for name in message_columns() if name != CORRUPT], Options())


def from_input(
    job_input: JobInput, *topics: str, since_ms: int | None = None, allow_loss: bool = False
) -> ReplaySource:
    """Messages of some topics of stores, or of a cluster."""
    return ReplaySource(job_input=job_input, topics=topics, since_ms=since_ms, allow_loss=allow_loss)


def dead_letters(
    job_input: JobInput, group: str, *, since_ms: int | None = None, allow_loss: bool = False
) -> ReplaySource:
    """A consumer group's dead letters, back to their original topics."""
    topics = (dead_letter_topic(group),)
    return ReplaySource(job_input=job_input, topics=topics, to_origin=True, since_ms=since_ms, allow_loss=allow_loss)


def from_export(folder: str) -> ReplaySource:
    """The messages that `penstock pipeline export` wrote."""
    return ReplaySource(folder=folder)


def from_files(folder: str, form: str = "parquet") -> ReplaySource:
    """Other files, with a column `body` or `value`, or with columns that a mapping turns into one."""
    return ReplaySource(folder=folder, format=form)

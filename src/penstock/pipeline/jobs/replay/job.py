"""The replay job: checks its arguments, runs its batches and sums up the batch log. Needs pyspark.

The source of a replay is a stream over stores, a cluster, an export or files, or a DataFrame.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.broker.topics import dead_letter_topic
from penstock.errors import BadSettings
from penstock.pipeline.errors import from_spark_errors
from penstock.pipeline.jobs.export.spec import ExportFolder
from penstock.pipeline.jobs.job_input import (
    CORRUPT,
    BatchLog,
    JobInput,
    locked_folder,
    message_columns,
    read_stream,
    run_batches,
)
from penstock.pipeline.jobs.replay.batch import REASON, Mapping, ReplayBatch, ReplayedBatch, Target
from penstock.pipeline.options import Options
from penstock.pipeline.sink_rows import WrittenRows
from penstock.pipeline.source import spark_schema
from penstock.store.files.atomic_files import read_checksummed, write_checksummed
from penstock.store.files.file_io import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FILE_FORMATS: Final = ("parquet", "json")
_MAX_FILE_AGE: Final = "36500d"
"""A hundred years. By default Spark skips files that are a week older than the newest file."""


class ReplaySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replay reads: `topics` of the store or cluster in `job_input`, or the exported files in `folder`."""

    job_input: JobInput = JobInput()
    topics: tuple[str, ...] = ()
    to_origin: bool = False
    """Whether messages are dead letters that return to their original topics."""
    since_ms: int | None = None
    folder: str = ""
    format: str = ""
    """The format of the files in the folder. Empty if the folder is an export, whose spec has the format."""
    allow_loss: bool = False

    def check(self) -> None:
        """Raises BadSettings for an invalid or incomplete source."""
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
        """A deterministic text that identifies the source. The default name of a replay is derived from it."""
        if self.folder:
            return f"{Path(self.folder).absolute()} {self.format}"
        stores = [path if path.startswith("file:") else str(Path(path).absolute()) for path in self.job_input.stores]
        return " ".join((*stores, self.job_input.namesrv, *self.topics))

    def stream(self, spark: SparkSession, own: Path, rows_at_once: int) -> DataFrame:
        """Returns the messages as a stream. Raises BadSettings, BadStore or Unreachable.

        `own` is the replay's folder. `rows_at_once` limits a micro-batch; it has no effect on files.
        """
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
    """Returns the schema of an export's message columns."""
    return spark_schema([name for name in message_columns() if name != CORRUPT], Options())


def from_input(
    job_input: JobInput, *topics: str, since_ms: int | None = None, allow_loss: bool = False
) -> ReplaySource:
    """Returns a source of the messages of `topics`, in stores or a cluster."""
    return ReplaySource(job_input=job_input, topics=topics, since_ms=since_ms, allow_loss=allow_loss)


def dead_letters(
    job_input: JobInput, group: str, *, since_ms: int | None = None, allow_loss: bool = False
) -> ReplaySource:
    """Returns a source of a consumer group's dead letters, which return to their original topics."""
    topics = (dead_letter_topic(group),)
    return ReplaySource(job_input=job_input, topics=topics, to_origin=True, since_ms=since_ms, allow_loss=allow_loss)


def from_export(folder: str) -> ReplaySource:
    """Returns a source of the messages that `penstock pipeline export` wrote into `folder`."""
    return ReplaySource(folder=folder)


def from_files(folder: str, form: str = "parquet") -> ReplaySource:
    """Returns a source of other files. They have a column `body` or `value`, or a mapping makes a `body`."""
    return ReplaySource(folder=folder, format=form)


_ROWS_STORED_AT_ONCE: Final = 200_000
_ROWS_SENT_AT_ONCE: Final = 10_000
"""The maximum rows of a micro-batch into a cluster. After a kill, the next run sends at most these rows again."""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run, with numbers of rows."""

    name: str
    progress: str
    """The folder with the progress. Rows that could not be sent are in its folder `aside`."""
    read: int
    filtered: int
    sent: int
    unread: int
    """Messages that were skipped because they could not be read."""
    aside: int
    """Rows in the folder `aside` because they could not be sent."""
    by_topic: dict[str, int]
    """The number of messages per topic; only in a dry run."""
    first: tuple[dict[str, str], ...]
    """The first messages; only in a dry run."""


class _ReplayIdentity(msgspec.Struct, frozen=True):
    """The source and target of a named replay, in `replay.json`. Its fields are the format on disk."""

    source: str
    target: str
    run: str


def replay(
    spark: SparkSession,
    source: ReplaySource | DataFrame,
    target: Target,
    mapping: Mapping | None = None,
    *,
    name: str = "",
    rate: int | None = None,
    dry_run: bool = False,
    progress: str = "",
) -> Replayed:
    """Replays the messages that were not replayed under `name` before. A DataFrame is replayed once per name.

    The default name is derived from source, target and mapping; a DataFrame needs a name. `rate` limits the messages
    per second into a cluster. `dry_run` stores and sends nothing. `progress` is the folder for the progress folders.
    Raises BadSettings, BadStore, StoreInUse, Unreachable, or PenstockError if Spark fails.
    """
    mapping = mapping or Mapping()
    check_replay(source, target, mapping, rate)
    label = source.label if isinstance(source, ReplaySource) else "a frame"
    if not isinstance(source, ReplaySource) and not name:
        raise BadSettings("a frame needs a `name`, so that a second run recognises it")
    name = name or _name(label, target, mapping)
    own = target.progress(name, progress)
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="penstock-replay-") as folder:
            copy = Path(folder) / name
            if own.exists():
                shutil.copytree(own, copy, ignore=shutil.ignore_patterns("lock"))
            return _run(spark, source, target, mapping, name, copy, label, rate, dry_run=True)
    return _run(spark, source, target, mapping, name, own, label, rate, dry_run=False)


def check_replay(source: ReplaySource | DataFrame, target: Target, mapping: Mapping, rate: int | None) -> None:
    """Checks the arguments of `replay` without reading messages. Raises BadSettings, BadStore or StoreInUse."""
    mapping.check()
    target.check()
    if rate is not None and target.store:
        raise BadSettings("--rate applies to a cluster only; leave it out for a store")
    if isinstance(source, ReplaySource):
        source.check()
        _refuse_circles(source, target, mapping)


def _run(
    spark: SparkSession,
    source: ReplaySource | DataFrame,
    target: Target,
    mapping: Mapping,
    name: str,
    own: Path,
    label: str,
    rate: int | None,
    *,
    dry_run: bool,
) -> Replayed:
    batch_log = BatchLog(own / "batches", ReplayedBatch)
    with locked_folder(own, f"another run of the replay '{name}' is still going; wait for it"):
        identity = _load_identity(own, name, label, target)
        before = dict(batch_log.all())
        to_origin = isinstance(source, ReplaySource) and source.to_origin
        each = ReplayBatch(
            name, own, target, mapping, to_origin=to_origin, rate=rate, dry_run=dry_run, run=identity.run
        )
        if isinstance(source, ReplaySource):
            rows = _ROWS_STORED_AT_ONCE if target.store else min(rate or _ROWS_SENT_AT_ONCE, _ROWS_SENT_AT_ONCE)
            frame = source.stream(spark, own, rows)
        else:
            frame = source
        with from_spark_errors():
            WrittenRows.of(each.messages(frame).drop(REASON).schema, "")  # checks the expressions now
        if frame.isStreaming:
            run_batches(frame, each, own / "checkpoint")
        else:
            with from_spark_errors():
                each(frame, 0)
        return _summary(name, own, [batch for number, batch in batch_log.all() if number not in before])


def _load_identity(own: Path, name: str, label: str, target: Target) -> _ReplayIdentity:
    """Loads or creates `replay.json`. Raises BadSettings if the name belongs to another replay."""
    path = own / "replay.json"
    identity = read_checksummed(Files(), path, _ReplayIdentity)
    if identity is None:
        identity = _ReplayIdentity(label, target.label, secrets.token_hex(8))
        write_checksummed(Files(), path, identity)
    elif (identity.source, identity.target) != (label, target.label):
        raise BadSettings(
            f"--name '{name}' belongs to a replay from {identity.source} to {identity.target}; choose another"
        )
    return identity


def _name(label: str, target: Target, mapping: Mapping) -> str:
    """Returns the default name of a replay. It is deterministic."""
    text = "\0".join((label, target.label, *map(repr, msgspec.structs.astuple(mapping))))
    return f"replay-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _refuse_circles(source: ReplaySource, target: Target, mapping: Mapping) -> None:
    """Raises BadSettings if a run would read the messages that the previous run wrote."""
    same_store = target.store and any(
        Path(path).absolute().resolve() == Path(target.store).absolute().resolve() for path in source.job_input.stores
    )
    same = same_store or (target.namesrv and target.namesrv == source.job_input.namesrv)
    if not same or source.to_origin or "topic" in mapping.columns():
        return
    if not mapping.to_topic or mapping.to_topic in source.topics:
        raise BadSettings("source and target are the same topic; name another one with --to-topic")


def _summary(name: str, own: Path, batches: list[ReplayedBatch]) -> Replayed:
    by_topic: Counter[str] = Counter()
    for batch in batches:
        by_topic.update(batch.by_topic)
    read, unread = sum(batch.read for batch in batches), sum(batch.unread for batch in batches)
    chosen, aside = sum(batch.chosen for batch in batches), sum(batch.aside for batch in batches)
    return Replayed(
        name=name,
        progress=str(own),
        read=read,
        filtered=read - unread - chosen,
        sent=chosen - aside,
        unread=unread,
        aside=aside,
        by_topic=dict(sorted(by_topic.items())),
        first=batches[0].first if batches else (),
    )

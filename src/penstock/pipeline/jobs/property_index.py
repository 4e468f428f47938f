"""An index of message properties in Parquet files: an example of derived data that follows the log. Needs pyspark.

A row is one property of one message: topic, queue, queue offset, physical offset, store time, name and value. Each
micro-batch is a range of the log, split into pieces. Each piece becomes one file, named by its range. The file is
written under a temporary name and then renamed. A replayed batch first removes the files of its killed run, so the
index has every property once. Spark's checkpoint, in the same folder, keeps the position.

Small files become larger ones: before a batch, 16 neighbours of about the same size are merged into one file, which has
the name of their range, and then removed. A crash in between leaves both; `index_files` ignores, and the next batch
removes, a file whose range another file contains. Files of the current batch are never merged, because the batch may be
replayed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from penstock.errors import BadStore
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.session import use_this_python
from penstock.pipeline.spark_versions import requires
from penstock.pipeline.store_read_tasks import LogTask, StorePaths
from penstock.pipeline.stream_source import FORMAT, PublishedLog
from penstock.store.external_dispatch.files_shared_with_job import DispatchAgreement, read_agreement, read_mark
from penstock.store.files.file_io import Files
from penstock.store.files.layout import Layout
from penstock.store.readonly.view import FilesView

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp")
SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("store_timestamp", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("value", pa.string()),
    ]
)
"""The columns of the index files."""

MERGED_AT_ONCE: Final = 16
_TIERS: Final = (1 << 20, 16 << 20)
"""Files below the same size are neighbours to merge; those above the last size stay."""
_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")


def property_index(
    spark: SparkSession, store: str | Path, target: str | Path, *, once: bool = False, trigger: float = 0.0
) -> StreamingQuery:
    """Starts the query that maintains the index in the folder `target`. With `once`, it ends at the published position.

    `trigger` is the minimum number of seconds between the starts of two batches. `read_index` reads the index at any
    time. Raises BadStore if the store does not have dispatch=external, and MissingPackage with `once` before Spark
    4.2.
    """
    if once:
        requires((4, 2), "a property index that ends by itself (once)", instead="run it without once")
    use_this_python(spark)
    root, folder = Path(store).absolute(), Path(target).absolute()
    layout = Layout(root, root / "commitlog")
    terms = read_agreement(Files(), layout)
    if terms is None:
        raise BadStore("this store dispatches for itself; start it with dispatch=external first", path=root)
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(FilesView(_log_folder(root, terms), terms.sizes.commit_log).offsets()), 0)
    spark.dataSource.register(PublishedLog)
    ranges = (
        spark.readStream.format(FORMAT)
        .option("path", str(root))
        .option("start", str(first))
        .option("pieces", str(os.cpu_count() or 2))
        .load()
    )
    write = _write_function(root, terms, folder)

    def build(batch: DataFrame, number: int) -> None:
        ranges = batch.collect()
        begin, end = min((row.start for row in ranges), default=0), max((row.stop for row in ranges), default=0)
        for path in _ranges(folder):
            if begin <= path.start < end:  # of an earlier run of the same batch, which may have split it differently
                path.path.unlink()
        merge_small_files(folder, begin)
        batch.mapInArrow(write, "rows long").collect()

    checkpoint = (folder / "_checkpoint").as_uri()
    writer = ranges.writeStream.foreachBatch(build).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger} seconds")).start()


def _log_folder(root: Path, terms: DispatchAgreement) -> Path:
    return Path(terms.commit_log) if terms.commit_log else root / "commitlog"


def read_index(spark: SparkSession, target: str | Path) -> DataFrame:
    """Returns the index in the folder `target`, as it is now. Raises BadStore if there is none yet."""
    paths = [str(path) for path in index_files(target)]
    if not paths:
        raise BadStore("there is no index here yet; start `property_index` first", path=Path(target))
    return spark.read.parquet(*paths)


# -- files -----------------------------------------------------------------------------------------------------------


class _IndexFile(NamedTuple):
    start: int
    stop: int
    path: Path


def index_files(target: str | Path) -> list[Path]:
    """Returns the files of the index in log order. Together they have every property once."""
    return [each.path for each in _whole(_ranges(Path(target)))]


def _ranges(folder: Path) -> list[_IndexFile]:
    """Returns all files in log order; of two with the same start, the longer range comes first."""
    names = ((_NAME.fullmatch(path.name), path) for path in folder.glob("*.parquet"))
    return sorted(
        (_IndexFile(int(name[1]), int(name[2]), path) for name, path in names if name),
        key=lambda each: (each.start, -each.stop),
    )


def _whole(files: list[_IndexFile]) -> list[_IndexFile]:
    """Returns the files without those whose range another one contains."""
    kept: list[_IndexFile] = []
    for each in files:
        if not kept or each.stop > kept[-1].stop:
            kept.append(each)
    return kept


def merge_small_files(folder: Path, end: int) -> None:
    """Merges neighbours of about the same size among the files before the log position `end`."""
    found = _ranges(folder)
    files = _whole(found)
    for each in found:
        if each not in files:
            each.path.unlink()
    files = [each for each in files if each.stop <= end]
    for limit in _TIERS:
        run: list[_IndexFile] = []
        for each in files:
            if each.path.stat().st_size >= limit:
                run = []
                continue
            run = [*run, each] if run and run[-1].stop == each.start else [each]
            if len(run) == MERGED_AT_ONCE:
                _merge(folder, run)
                run = []
        files = [each for each in _whole(_ranges(folder)) if each.stop <= end]


def _merge(folder: Path, files: list[_IndexFile]) -> None:
    path = _path(folder, files[0].start, files[-1].stop)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with parquet.ParquetWriter(temporary, SCHEMA) as writer:
        for each in files:
            writer.write_table(parquet.read_table(each.path, schema=SCHEMA))
    temporary.replace(path)
    for each in files:
        each.path.unlink()


def _path(folder: Path, start: int, stop: int) -> Path:
    return folder / f"{start:020d}-{stop:020d}.parquet"


def _write_function(
    root: Path, terms: DispatchAgreement, folder: Path
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that workers run. It writes one file per range and yields the file's number of rows."""

    def write(ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in ranges:
            for each in batch.to_pylist():
                with as_user_errors():
                    rows = write_range(root, terms, folder, each["start"], each["stop"])
                yield pa.RecordBatch.from_arrays([pa.array([rows])], ["rows"])

    return write


def write_range(root: Path, terms: DispatchAgreement, folder: Path, start: int, stop: int) -> int:
    """Writes the file for one range of the log and returns its number of rows. Deterministic."""
    tables = [SCHEMA.empty_table(), *properties_of(root, terms, start, stop)]
    table = pa.concat_tables(tables)
    path = _path(folder, start, stop)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    parquet.write_table(table, temporary)
    temporary.replace(path)
    return int(table.num_rows)


def properties_of(root: Path, terms: DispatchAgreement, start: int, stop: int) -> Iterator[pa.Table]:
    """Yields tables with one row per property, for the records that begin between `start` and `stop` of the log."""
    mark = read_mark(Files(), Layout(root, root / "commitlog").dispatch_end)
    end = stop if mark is None else max(mark.position, stop)
    log = _log_folder(root, terms)
    paths = StorePaths("", str(log), "", terms.sizes.commit_log, terms.sizes.consume_queue, start, end)
    for page in LogTask(paths, start, stop, False).pages([*COLUMNS, "properties"]):
        pairs = page.batch.column("properties").cast(_PAIRS)
        rows, flat = pc.list_parent_indices(pairs), pc.list_flatten(pairs)
        columns = [page.batch.column(name).take(rows) for name in COLUMNS]
        columns += [pc.struct_field(flat, "key"), pc.struct_field(flat, "value")]
        yield pa.Table.from_arrays(columns, schema=SCHEMA)

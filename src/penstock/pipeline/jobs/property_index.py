"""An index of message properties in Parquet files: an example of derived data that follows the log. Needs pyspark.

A row is one property of one message: topic, queue, queue offset, physical offset, store time, name and value. Each
micro-batch is a range of the log, split into pieces. Each piece becomes one file, named by its range. The file is
written under a temporary name and then renamed. A replayed batch first removes the files of its killed run, so the
index has every property once. Spark's checkpoint, in the same folder, keeps the position.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from penstock.errors import BadStore
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.store_tasks import LogTask, StorePaths
from penstock.pipeline.stream_source import FORMAT, PublishedLog
from penstock.store.external_dispatch.coordination import DispatchAgreement, read_agreement, read_mark
from penstock.store.file_io import Files
from penstock.store.layout import Layout
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

_PAIRS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.parquet")


def property_index(
    spark: SparkSession, store: str | Path, target: str | Path, *, once: bool = False, trigger: float = 0.0
) -> StreamingQuery:
    """Starts the query that maintains the index in the folder `target`. With `once`, it ends at the published position.

    `trigger` is the minimum number of seconds between the starts of two batches. `spark.read.parquet(target)` can read
    the index at any time. Raises BadStore if the store does not have dispatch=external.
    """
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
        _remove_leftovers(batch, folder)
        batch.mapInArrow(write, "rows long").collect()

    checkpoint = (folder / "_checkpoint").as_uri()
    writer = ranges.writeStream.foreachBatch(build).option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger} seconds")).start()


def _log_folder(root: Path, terms: DispatchAgreement) -> Path:
    return Path(terms.commit_log) if terms.commit_log else root / "commitlog"


def _remove_leftovers(batch: DataFrame, folder: Path) -> None:
    """Removes the files of an earlier run of the same batch, which may have split the batch differently."""
    ranges = batch.collect()
    begin, end = min((row.start for row in ranges), default=0), max((row.stop for row in ranges), default=0)
    for path in folder.glob("*.parquet"):
        name = _NAME.fullmatch(path.name)
        if name and begin <= int(name[1]) < end:
            path.unlink()


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
    path = folder / f"{start:020d}-{stop:020d}.parquet"
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

"""External dispatch: a streaming query that builds the queues and index of a store with dispatch=external.

Each micro-batch is a range of the published log (`pipeline.stream_source`), split into pieces. Workers scan a piece
with the kernels. They return the queue position and the key hashes of each record. Only the driver's process writes
queues and index. It holds the job's lock, so workers that outlive a killed driver cannot interfere. The store keeps the
progress as a physical offset, at which every start resumes. Spark's checkpoint is not needed for that and lies in
memory. Needs pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException

from penstock.errors import BadSettings, PenstockError, StoreFailed
from penstock.pipeline.errors import as_user_errors
from penstock.pipeline.session import is_connect
from penstock.pipeline.stream_source import FORMAT, PublishedLog
from penstock.store.derive import DerivedPiece, LogRange, scan
from penstock.store.external_dispatch.builder import Builder

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock.pipeline")

_MEMORY_FOLDER: Final = Path("/dev/shm")
_SCHEMA: Final = "stop long, piece binary"


class DispatchReport(msgspec.Struct, frozen=True):
    """The progress of a dispatch job."""

    store: str
    start: int
    """The physical offset at which the job began."""
    position: int
    """The physical offset up to which queues and index are complete."""
    published: int
    """The physical offset up to which the log may be dispatched."""
    batches: int

    @property
    def behind(self) -> int:
        return max(self.published - self.position, 0)


class DispatchJob:
    """A running dispatch job. `close`, or the end of a `with` block, ends the query and syncs queues and index."""

    def __init__(self, builder: Builder, query: StreamingQuery, batches: _BatchBuilder, checkpoint: Path) -> None:
        self._builder = builder
        self._query = query
        self._batches = batches
        self._checkpoint = checkpoint
        self._report: DispatchReport | None = None

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the job ends, but at most `seconds`. Returns whether it has ended.

        Raises PenstockError if the job failed.
        """
        try:
            if seconds is None:
                self._query.awaitTermination()
                return True
            return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]
        except (Py4JError, OSError) as error:
            raise StoreFailed(
                f"Spark is gone ({_sentence(str(error))}); start the job again; it resumes where it stopped",
                path=self._builder.layout.root,
            ) from None
        except StreamingQueryException as error:
            raise self._batches.failure or StoreFailed(_sentence(str(error))) from None

    def report(self) -> DispatchReport:
        builder = self._builder
        if self._report is not None:
            return self._report
        store = str(builder.layout.root)
        return DispatchReport(store, self._batches.start, builder.position, builder.published, self._batches.count)

    def close(self) -> None:
        """Ends the query after the batch that is being built."""
        self._batches.stopping.set()
        with self._batches.gate:  # waits for the current batch; no other starts
            pass
        try:
            self._query.stop()
        except (Py4JError, OSError):  # Spark ended first, such as by a signal to the process group
            log.warning("Spark ended before its query did; what was built is complete")
        self._report = self.report()
        self._builder.close()
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def __enter__(self) -> DispatchJob:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def dispatch(
    spark: SparkSession, store: str | Path, *, once: bool = False, trigger: float = 0.0, max_bytes: int = 256 << 20
) -> DispatchJob:
    """Starts the job. It runs until it is closed or, with `once`, up to the position that is published now.

    `trigger` is the minimum number of seconds between the starts of two batches. `max_bytes` is the maximum bytes of
    the log per batch. Raises StoreFailed, StoreInUse if another job is running, and BadStore if the store does not have
    dispatch=external. Raises BadSettings in a Connect session, because the process that builds would not be the process
    that holds the lock.
    """
    if is_connect(spark):
        raise BadSettings(
            "dispatch builds in the process that runs it, which is not this one under Connect; use a --master other "
            "than sc://"
        )
    root = Path(store).absolute()
    builder = Builder.open(root)
    checkpoint = _create_checkpoint(root)
    try:
        spark.dataSource.register(PublishedLog)
        batches = _BatchBuilder(builder)
        ranges = (
            spark.readStream.format(FORMAT)
            .option("path", str(root))
            .option("start", str(builder.position))
            .option("pieces", str(os.cpu_count() or 2))
            .option("maxBytes", str(max_bytes))
            .load()
        )
        writer = ranges.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint.as_uri())
        triggered = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{trigger} seconds")
        return DispatchJob(builder, triggered.start(), batches, checkpoint)
    except BaseException:
        builder.close()
        shutil.rmtree(checkpoint, ignore_errors=True)
        raise


def _create_checkpoint(root: Path) -> Path:
    """Creates an empty folder, and removes folders of killed jobs of this store. Callers must hold the job's lock."""
    parent = _MEMORY_FOLDER if _MEMORY_FOLDER.is_dir() else Path(tempfile.gettempdir())
    prefix = f"penstock-dispatch-{zlib.crc32(os.fsencode(root)):08x}-"
    for left in parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))


class _BatchBuilder:
    """Builds queues and index from the workers' results. Spark calls it for one batch at a time."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._scan_function = _scan_function(builder)
        self.start = builder.position
        self.count = 0
        self.failure: PenstockError | None = None
        self.stopping = threading.Event()
        self.gate = threading.Lock()

    def __call__(self, ranges: DataFrame, number: int) -> None:
        with self.gate:
            if self.stopping.is_set():
                return
            found = ranges.mapInArrow(self._scan_function, _SCHEMA).collect()
            if not found:
                return
            pieces = [DerivedPiece.decode(bytes(row.piece)) for row in found if row.piece]
            try:
                self._builder.build(max(row.stop for row in found), pieces)
                self.count += 1
            except PenstockError as error:
                self.failure = error
                raise
            except OSError as error:
                self.failure = StoreFailed(f"{error.strerror or error}", path=error.filename)
                raise


def _scan_function(builder: Builder) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Returns the function that workers run on ranges. Spark pickles it, so it refers to plain values only."""
    settings = builder.settings
    folder, size, levels = builder.layout.commit_log, settings.mapped_file_size_commit_log, settings.delay_levels

    def scan_ranges(ranges: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        def row(stop: int, piece: bytes) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([pa.array([stop]), pa.array([piece], pa.binary())], ["stop", "piece"])

        for batch in ranges:
            for each in batch.to_pylist():
                yield row(each["stop"], b"")  # reports a range in which no record begins
                with as_user_errors():
                    log_range = LogRange(folder, size, each["start"], each["stop"], each["exact"], levels)
                    for piece in scan(log_range):
                        yield row(each["stop"], piece.encode())

    return scan_ranges


def _sentence(text: str) -> str:
    """Returns the line of Spark's error text that has the cause."""
    lines: list[Any] = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line.partition("rocketmq: ")[2] for line in lines if "rocketmq: " in line), lines[0] if lines else text
    )


def end_session(spark: SparkSession) -> None:
    """Stops a session. Does nothing if Spark has already ended."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()

"""External dispatch: a streaming query that builds the queues and index of a store with dispatch=external.

Each micro-batch is a range of the published log (`pipeline.jobs.dispatch_source`), split into pieces. Workers scan a
piece with the kernels. They return the queue position and the key hashes of each record. Only the driver's process
writes queues and index. It holds the job's lock, so workers that outlive a killed driver cannot interfere. The store
keeps the progress as a physical offset, at which every start resumes. Spark's checkpoint is not needed for that and
lies in memory.

A start of Spark takes seconds, and so does its first micro-batch. Until that has arrived, a thread of the driver
(penstock-dispatch-lead) builds by itself, with the same builder. Another one (penstock-dispatch-query) starts the
query, again if one of Spark's processes dies. Needs pyspark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from penstock.errors import BadSettings, BadStore, PenstockError, StoreFailed
from penstock.pipeline.errors import one_sentence
from penstock.pipeline.jobs.dispatch_source import FORMAT, DerivedLog
from penstock.pipeline.session import is_connect, use_this_python
from penstock.pipeline.spark_versions import requires
from penstock.store.external_dispatch.packed_units_and_keys import unpack
from penstock.store.external_dispatch.queue_and_index_builder import Builder, why_not_yet
from penstock.store.files.file_io import Files
from penstock.store.queue_units_and_keys import DerivedPiece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("penstock.pipeline")

MAX_BYTES: Final = 256 << 20
"""The most bytes of the log in a micro-batch."""
MAX_RESTARTS: Final = 5
"""How often the query starts again without any progress in between."""
CONNECT_REFUSED: Final = (
    "dispatch builds in the process that runs it, which is not this one under Connect; use a --master other than sc://"
)
SPARK_BUILDS: Final = "Spark's first batch has arrived: it builds from now on"
_MEMORY_FOLDER: Final = Path("/dev/shm")
_STEP_BYTES: Final = 64 << 20
_POLL_S: Final = 0.005
_CHECK_EVERY_S: Final = 0.25
_RESTART_PAUSE_S: Final = 0.5
_WAIT_S: Final = 0.2


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
    """The micro-batches of Spark."""
    driver_bytes: int
    """The bytes of the log that the driver has built by itself, before Spark's first micro-batch."""
    restarts: int
    """How often the query was started again."""

    @property
    def behind(self) -> int:
        return max(self.published - self.position, 0)


class DispatchJob:
    """A dispatch job. It builds from `open` on. `close`, or the end of a `with` block, syncs queues and index.

    One thread at a time may call its methods.
    """

    def __init__(self, builder: Builder, *, once: bool, trigger: float, max_bytes: int, head_start: bool) -> None:
        self._builder = builder
        self._goal = builder.published if once else None
        self._trigger = trigger
        self._max_bytes = max_bytes
        self._batches = _BatchBuilder(builder)
        self._leads = head_start
        self._driver_bytes = 0
        self._query: StreamingQuery | None = None
        self._checkpoint: Path | None = None
        self._restarts = 0
        self._tries = 0
        self._tried_at = builder.position
        self._failure: PenstockError | None = None
        self._ended = threading.Event()
        self._report: DispatchReport | None = None
        self._threads: list[threading.Thread] = []
        self._start_thread("penstock-dispatch-lead", self._lead)

    def _start_thread(self, name: str, *work: object) -> None:
        thread = threading.Thread(target=self._watched, args=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    @classmethod
    def open(
        cls,
        store: str | Path,
        *,
        once: bool = False,
        trigger: float = 0.0,
        max_bytes: int = MAX_BYTES,
        head_start: bool = True,
        on_wait: Callable[[str], object] | None = None,
    ) -> Self:
        """Starts to build in this process, without Spark: with `head_start` at once, else with `run_on`.

        The other options are those of `dispatch`. With `on_wait`, waits until the store can be dispatched, and calls
        it once with the reason if that is not now; without it, raises BadStore.
        """
        root, files, said = Path(store).absolute(), Files(), False
        while True:
            reason = why_not_yet(files, root) if on_wait is not None else ""
            if reason and on_wait is not None:
                if not said:
                    on_wait(reason)
                said = True
                time.sleep(_WAIT_S)
                continue
            try:
                builder = Builder.open(root)
            except BadStore:
                if on_wait is None or not why_not_yet(files, root):
                    raise
            else:
                return cls(builder, once=once, trigger=trigger, max_bytes=max_bytes, head_start=head_start)

    @property
    def is_complete(self) -> bool:
        """Whether a job with `once` has built everything, so that it needs no Spark."""
        return self._goal is not None and self._builder.position >= self._goal

    def run_on(self, spark: SparkSession) -> None:
        """Goes on as a query of this session. To be called once. Raises BadSettings in a Connect session."""
        if is_connect(spark):
            raise BadSettings(CONNECT_REFUSED)
        if not self.is_complete:
            use_this_python(spark)
            spark.dataSource.register(DerivedLog)
            self._start_thread("penstock-dispatch-query", self._follow, spark)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the job ends, but at most `seconds`. Returns whether it has ended.

        Raises PenstockError if the job failed.
        """
        ended = self._ended.wait(seconds)
        if self._failure is not None:
            raise self._failure
        return ended

    def report(self) -> DispatchReport:
        if self._report is not None:
            return self._report
        builder, batches = self._builder, self._batches
        return DispatchReport(
            str(builder.layout.root),
            batches.start,
            builder.position,
            builder.published,
            batches.count,
            self._driver_bytes,
            self._restarts,
        )

    def close(self) -> None:
        """Ends the query after the batch that is being built."""
        if self._report is not None:
            return
        self._batches.stopping.set()
        with self._batches.running:  # waits for the current batch; no other starts
            pass
        for thread in self._threads:
            thread.join()
        try:
            self._end_query()
        except (Py4JError, OSError):  # Spark ended first, such as by a signal to the process group
            log.warning("Spark ended before its query did; what was built is complete")
        self._report = self.report()
        self._builder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- the driver's own building ---------------------------------------------------------------------------

    def _lead(self) -> None:
        """Builds without Spark while no batch has arrived."""
        batches = self._batches
        while not batches.stopping.is_set():
            if self.is_complete:
                self._ended.set()
                return
            leads = self._leads and not batches.arrived
            if not (leads and self._build_next()):
                batches.stopping.wait(_POLL_S if leads else _CHECK_EVERY_S)

    def _build_next(self) -> bool:
        """Builds the next bytes of the log. Returns False if there are none."""
        with self._batches.gate:
            builder, before = self._builder, self._builder.position
            end = builder.published if self._goal is None else self._goal
            if before >= end or self._batches.arrived:
                return False
            builder.build(min(end, before + _STEP_BYTES))
            self._driver_bytes += builder.position - before
            return True

    # -- the query -------------------------------------------------------------------------------------------

    def _follow(self, spark: SparkSession) -> None:
        """Starts the query, again if one of Spark's processes has ended it. Returns when it has done its work.

        Raises StoreFailed if Spark does not go on, and what a batch has raised.
        """
        stopping = self._batches.stopping
        while not stopping.is_set():
            try:
                if self._query is None:
                    self._query = self._start_query(spark)
                if self._query.isActive:
                    stopping.wait(_CHECK_EVERY_S)
                    continue
                error = self._query.exception()
                if error is None:
                    self._ended.set()
                    return
                self._end_query()
            except (Py4JError, OSError) as gone:
                raise self._spark_is_gone(one_sentence(str(gone))) from None
            if self._batches.failure is not None:
                raise self._batches.failure
            self._count_restart(str(error))
            self._batches.arrived = False
            stopping.wait(_RESTART_PAUSE_S)

    def _watched(self, work: Callable[..., None], *arguments: object) -> None:
        """Runs the work of one of the job's threads. What ends it ends the job."""
        try:
            work(*arguments)
        except PenstockError as error:
            self._fail(error)
        except OSError as error:
            self._fail(StoreFailed(f"{error.strerror or error}", path=error.filename))
        except Exception as error:
            log.exception("an unexpected error ends the dispatch job")
            self._fail(
                StoreFailed(
                    f"the dispatch job failed ({error!r}); start it again, it goes on where it was",
                    path=self._builder.layout.root,
                )
            )

    def _fail(self, error: PenstockError) -> None:
        if not self._batches.stopping.is_set():
            self._failure = self._failure or error
        self._ended.set()

    def _count_restart(self, error: str) -> None:
        """Raises StoreFailed if another start of the query would not help."""
        reason = one_sentence(error)
        if "rocketmq: " in error:
            raise StoreFailed(reason, path=self._builder.layout.root)
        if "No module named 'penstock'" in error:
            raise StoreFailed(
                "Spark's Python workers do not have Penstock; set PYSPARK_PYTHON to a Python that has it on every host",
                path=self._builder.layout.root,
            )
        if self._builder.position != self._tried_at:
            self._tries, self._tried_at = 0, self._builder.position
        self._tries += 1
        if self._tries > MAX_RESTARTS:
            raise self._spark_is_gone(reason)
        self._restarts += 1
        log.warning("Spark ended the query (%s); it starts again at %d", reason, self._builder.position)

    def _spark_is_gone(self, why: str) -> StoreFailed:
        return StoreFailed(
            f"Spark is gone ({why}); start the job again; it resumes where it stopped", path=self._builder.layout.root
        )

    def _start_query(self, spark: SparkSession) -> StreamingQuery:
        builder, settings = self._builder, self._builder.settings
        root = builder.layout.root
        self._checkpoint = _create_checkpoint(root)
        ranges = (
            spark.readStream.format(FORMAT)
            .option("path", str(root))
            .option("log", str(builder.layout.commit_log))
            .option("fileSize", str(settings.mapped_file_size_commit_log))
            .option("delayLevels", ",".join(map(str, settings.delay_levels)))
            .option("start", str(builder.position))
            .option("pieces", str(os.cpu_count() or 2))
            .option("maxBytes", str(self._max_bytes))
            .load()
        )
        writer = ranges.writeStream.foreachBatch(self._batches).queryName(f"penstock dispatch {root}")
        writer = writer.option("checkpointLocation", self._checkpoint.as_uri())
        if self._goal is not None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._trigger} seconds").start()

    def _end_query(self) -> None:
        query, self._query = self._query, None
        try:
            if query is not None:
                query.stop()
        finally:
            if self._checkpoint is not None:
                shutil.rmtree(self._checkpoint, ignore_errors=True)


def dispatch(
    spark: SparkSession,
    store: str | Path,
    *,
    once: bool = False,
    trigger: float = 0.0,
    max_bytes: int = MAX_BYTES,
    head_start: bool = True,
) -> DispatchJob:
    """Starts the job. It runs until it is closed or, with `once`, up to the position that is published now.

    `trigger` is the minimum number of seconds between the starts of two batches. `max_bytes` is the maximum bytes of
    the log per batch. With `head_start`, this process builds by itself until Spark's first batch arrives. Raises
    StoreFailed, StoreInUse if another job is running, and BadStore if the store does not have dispatch=external. Raises
    BadSettings in a Connect session, because the process that builds would not be the process that holds the lock.
    Raises MissingPackage with `once` before Spark 4.2.
    """
    if is_connect(spark):
        raise BadSettings(CONNECT_REFUSED)
    if once:
        requires((4, 2), "a dispatch job that ends by itself (once)", instead="run it without once")
    job = DispatchJob.open(store, once=once, trigger=trigger, max_bytes=max_bytes, head_start=head_start)
    try:
        job.run_on(spark)
    except BaseException:
        job.close()
        raise
    return job


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
        self.start = builder.position
        self.count = 0
        self.arrived = False
        """Whether a batch with rows has arrived since the query was started."""
        self.failure: PenstockError | None = None
        self.stopping = threading.Event()
        self.running = threading.Lock()
        """Held from the beginning to the end of a batch."""
        self.gate = threading.Lock()
        """Held by the thread that builds."""

    def __call__(self, ranges: DataFrame, number: int) -> None:
        with self.running:
            if self.stopping.is_set():
                return
            found = ranges.toArrow()
            if not found.num_rows:
                return
            pieces = [unpack(piece) for piece in found.column("piece").to_pylist() if piece]
            stop = max(found.column("stop").to_pylist())
            with self.gate:
                if not self.arrived:
                    log.info("%s", SPARK_BUILDS)
                self.arrived = True
                self._build(stop, pieces)

    def _build(self, stop: int, pieces: list[DerivedPiece]) -> None:
        try:
            self._builder.build(stop, pieces)
            self.count += 1
        except PenstockError as error:
            self.failure = error
            raise
        except OSError as error:
            self.failure = StoreFailed(f"{error.strerror or error}", path=error.filename)
            raise


def end_session(spark: SparkSession) -> None:
    """Stops a session. Does nothing if Spark has already ended."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()

"""Ctrl-C while Spark runs: the job ends, and neither Java nor py4j fills the terminal with how it ended.

pyspark's own handler asks Java to cancel all jobs over the connection that the interrupted call is still using, which
fails, and Java then tells of everything that it was doing. Here another thread first has Java be silent; the jobs end
with their session, which the caller stops. Use it in the main thread; elsewhere it does nothing. Needs pyspark.


How far Spark is with what a caller waits for: tasks done, of all tasks known so far. Needs pyspark.

Work on pieces in Spark's Python workers: only what the work yields crosses into the JVM. Needs pyspark.

This is how jobs run that go over a store's bytes: a plan of pieces, a function for one piece, a small result.


A Connect server inside this process, and a session with it. Needs the extra `lake`.

Spark starts such a server itself (`remote("local")`), on port 15002 of every network interface, so that a second one on
the machine fails and strangers can knock. Here it listens on a free port of loopback. What is called for that is not
public in Spark 4.3; where it is gone, that is said.


Spark sessions as Penstock's own commands start them. Needs pyspark.

Quiet, without a web page, with sockets of the local machine between Java and Python (which halves what a task costs),
and in UTC. What the caller sets wins, and a session that is already there is used as it is.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from penstock.errors import MissingPackage, Unreachable
from penstock.pipeline.errors import as_user_errors, from_spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SILENCE_TIMEOUT_S: Final = 3.0
"""How long a person waits for Java to be silent."""


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Within the block, SIGINT is a KeyboardInterrupt, and the last that Spark says."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second one does not wait
        thread = threading.Thread(target=silence_spark, name="penstock hush", daemon=True)
        thread.start()
        thread.join(_SILENCE_TIMEOUT_S)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def silence_spark() -> None:
    """Has Java and py4j say nothing any more. For a thread of its own: threads have connections of their own."""
    from pyspark import SparkContext

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with contextlib.suppress(Exception):  # there is no Java here if the session is of a Connect server elsewhere
        java = SparkContext._gateway.jvm  # type: ignore[union-attr]
        logging_of_java = java.org.apache.logging.log4j
        logging_of_java.core.config.Configurator.setRootLevel(logging_of_java.Level.OFF)
        java.java.lang.System.setErr(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))


ProgressCallback = Callable[[int, int], object]
"""Called with the tasks that are done, and all of them; by one thread at a time."""
_POLL_S: Final = 0.25


@contextmanager
def report_progress(spark: SparkSession, report: ProgressCallback) -> Iterator[None]:
    """Tells now and then how far the jobs are that run inside the block."""
    if hasattr(spark, "registerProgressHandler"):
        watch: Any = _ConnectProgress(report)
        try:
            spark.registerProgressHandler(watch)
        except Exception:  # a classic session has the method and refuses it
            watch = None
        if watch is not None:
            try:
                yield
            finally:
                spark.removeProgressHandler(watch)
            return
    stop = threading.Event()
    thread = threading.Thread(target=_follow, args=(spark, report, stop), name="penstock progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _ConnectProgress:
    """Takes what a Connect session tells."""

    def __init__(self, report: ProgressCallback) -> None:
        self._report = report

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str, done: bool) -> None:
        total = sum(stage.num_tasks for stage in stages or ())
        if total:
            self._report(sum(stage.num_completed_tasks for stage in stages), total)


def _follow(spark: SparkSession, report: ProgressCallback, stop: threading.Event) -> None:
    tracker = spark.sparkContext.statusTracker()
    seen: dict[int, tuple[int, int]] = {}
    while not stop.wait(_POLL_S):
        for stage in tracker.getActiveStageIds():
            info = tracker.getStageInfo(stage)
            if info is not None:
                seen[stage] = info.numCompletedTasks, info.numTasks
        if seen:
            report(sum(done for done, _ in seen.values()), sum(total for _, total in seen.values()))


Piece = TypeVar("Piece")
_CONNECT_TASKS: Final = 4


def map_in_workers(
    spark: SparkSession,
    pieces: Sequence[Piece],
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """The rows that `work` yields for each piece, one task each. `work` and the pieces are pickled.

    `schema` is Spark's; the batches of `work` must have the same columns, in order.
    """

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with as_user_errors():
                    yield from work(pieces[number])

    count = max(len(pieces), 1)
    return spark.range(0, len(pieces), 1, count).mapInArrow(run, schema)


def gather(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], bytes]) -> list[bytes]:
    """What `work` makes of each piece, one task each, in the order of the pieces. `work` and the pieces are pickled.

    For small results. Where there is a driver in this process it goes without columns and a query plan, which takes a
    third of the time that Spark adds to a short job.
    """
    if not pieces:
        return []
    with from_spark_errors():
        if is_connect(spark):
            rows = map_in_workers(
                spark, list(enumerate(pieces)), partial(_run_numbered, work), "number int, result binary"
            )
            return [bytes(row.result) for row in sorted(rows.collect(), key=lambda row: int(row.number))]
        return spark.sparkContext.parallelize(pieces, len(pieces)).map(partial(_run_piece, work)).collect()


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at once, as far as it is known."""
    return _CONNECT_TASKS if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    """Whether the driver is elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _run_piece(work: Callable[[Piece], bytes], piece: Piece) -> bytes:
    with as_user_errors():
        return work(piece)


def _run_numbered(work: Callable[[Piece], bytes], piece: tuple[int, Piece]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    number, what = piece
    columns = [pa.array([number], pa.int32()), pa.array([work(what)], pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, ["number", "result"])


LOOPBACK: Final = {"spark.connect.grpc.binding.address": "127.0.0.1"}


def start_connect_session(app: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """The server's Spark is on `master`. Stopping the session ends the server. Raises MissingPackage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        try:
            from pyspark.sql.connect.session import SparkSession as ConnectSession

            start: Any = ConnectSession._start_connect_server
        except (ImportError, AttributeError) as error:
            raise MissingPackage(f"Spark Connect is needed here: pip install 'penstock[lake]' ({error})") from None
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options: dict[str, Any] = {"spark.app.name": app, **conf, **LOOPBACK}
        options["spark.connect.grpc.binding.port"] = str(port)
        os.environ["SPARK_LOCAL_REMOTE"] = "1"  # has the session end the server with itself
        try:
            start(master, options)  # leaves in the options what counts for a session
        except BaseException:
            del os.environ["SPARK_LOCAL_REMOTE"]
            raise
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        options["spark.remote"] = f"sc://localhost:{port}"
        session: Any = ConnectSession.builder.config(map=options).getOrCreate()
        return session  # type: ignore[no-any-return]


NO_JAVA: Final = "Spark needs Java 17 or newer: install it, or set JAVA_HOME"
_CONF_FOLDER: Final = Path(__file__).parent / "spark_conf"
_DEFAULTS: Final = {
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_SUBMIT_PORT: Final = "PYSPARK_GATEWAY_PORT"
"""The variable by which `spark-submit` tells a script where its Java listens."""
_LIGHT_JAVA: Final = {
    f"spark.{process}.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    for process in ("driver", "executor")
}


def has_session() -> bool:
    """Whether a session is running in this process."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        return False
    return SparkSession.getActiveSession() is not None


def start_session(
    app: str, master: str | None = None, conf: Mapping[str, str] | None = None, *, light_java: bool = False
) -> SparkSession:
    """A session on `master`, on all cores of this machine if none is given; the one that is running, if one is.

    In a script that `spark-submit` runs, its master counts unless another is given; one that begins with `sc://` is a
    Connect server. `light_java` is for short jobs whose work is done in Python: Java then compiles little, which halves
    what a start and each job take, and is slow with rows of its own. Raises MissingPackage where there is no pyspark or
    no Java, and Unreachable where Spark does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MissingPackage("Spark needs the package pyspark: pip install 'penstock[spark]'") from None
    where = master or ("" if _SUBMIT_PORT in os.environ else "local[*]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if where.startswith("sc://"):
        return _start(builder.remote(where), where)
    settings = {**_DEFAULTS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
    if light_java:
        settings |= _LIGHT_JAVA
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_CONF_DIR", str(_CONF_FOLDER))
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        return _start(builder.master(where), where) if where else _start(builder, "the master of spark-submit")


def _start(builder: SparkSession.Builder, where: str) -> SparkSession:
    """The session, or in one sentence why there is none: what Java says fills pages."""
    before = _children()
    try:
        return builder.getOrCreate()
    except KeyboardInterrupt:
        for process in _children() - before:  # a Java that is interrupted while it starts would stay for ever
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise MissingPackage(NO_JAVA) from None
        raise Unreachable(f"Spark does not start on {where}; check --master and --conf, and that it runs") from error


def _children() -> set[int]:
    """The processes that this thread has started; none where the system does not tell."""
    listed = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(map(int, listed.read_text().split())) if listed.exists() else set()

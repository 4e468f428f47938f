"""Starts Spark sessions for Penstock's commands, and runs functions in Spark's Python workers. Needs pyspark.

Sessions log little, have no web UI, run in UTC and use Unix sockets between Java and Python, which halves the cost of a
task. The caller's settings override these. A session that already runs is used as it is.

`start_connect_session` (extra `lake`) runs a Connect server in this process, on a free port of the loopback interface.
Spark's own `remote("local")` listens on port 15002 of every interface: a second server fails, and other hosts can
connect. The function calls functions that are not public in Spark 4.3.

A job over a store's bytes splits its work into pieces (any pickled objects). `map_in_workers` and `gather` call a
function for each piece in a worker. Only its small results pass through the JVM.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import struct
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


# -- sessions --------------------------------------------------------------------------------------------------------

LOOPBACK: Final = {"spark.connect.grpc.binding.address": "127.0.0.1"}
_PORTS: Final = 3
_TAKEN: Final = ("BindException", "Address already in use", "Failed to bind")
"""Java's errors for a port that another process has."""


def start_connect_session(app: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    """Starts a Connect server on `master` and returns a session. Stopping the session ends the server.

    Raises MissingPackage if Spark Connect is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        try:
            from pyspark.sql.connect.session import SparkSession as ConnectSession

            start: Any = ConnectSession._start_connect_server
        except (ImportError, AttributeError) as error:
            raise MissingPackage(f"Spark Connect is needed here: pip install 'penstock[lake]' ({error})") from None
        os.environ["SPARK_LOCAL_REMOTE"] = "1"  # the session then ends the server with itself
        try:
            options = _start_at_free_port(start, master, {"spark.app.name": app, **conf, **LOOPBACK})
        except BaseException:
            del os.environ["SPARK_LOCAL_REMOTE"]
            raise
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
        session: Any = ConnectSession.builder.config(map=options).getOrCreate()
        return session  # type: ignore[no-any-return]


def _start_at_free_port(start: Callable[..., Any], master: str, conf: Mapping[str, str]) -> dict[str, Any]:
    """Starts a Connect server. Returns the settings of its sessions.

    Another process may take the free port before the server does: then another one is tried.
    """
    for left in reversed(range(_PORTS)):
        port = _free_port()
        options: dict[str, Any] = {**conf, "spark.connect.grpc.binding.port": str(port)}
        try:
            start(master, options)  # leaves the session's own settings in the options
        except Exception as error:
            if not left or not any(text in str(error) for text in _TAKEN):
                raise
        else:
            break
    return {**options, "spark.remote": f"sc://localhost:{port}"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


NO_JAVA: Final = "Spark needs Java 17 or newer: install it, or set JAVA_HOME"
JAVA_ENDED: Final = "Java ended while Spark started; Spark needs Java 17 or newer and enough memory; start again"
_CONF_FOLDER: Final = Path(__file__).parent / "spark_conf"
_DEFAULTS: Final = {
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_SUBMIT_PORT: Final = "PYSPARK_GATEWAY_PORT"
"""The environment variable in which `spark-submit` passes the port of its Java process."""
LIGHT_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""Java's options for sessions that should start soon. Without its second compiler Java would reserve 48 MB for what it
compiles, which a session of hundreds of queries fills; then Java fails. 240 MB are its default otherwise."""
_LIGHT_JAVA_SETTINGS: Final = {f"spark.{process}.defaultJavaOptions": LIGHT_JAVA for process in ("driver", "executor")}


def has_session() -> bool:
    """Whether a session is running in this process."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        return False
    return SparkSession.getActiveSession() is not None


def has_connect_session() -> bool:
    """Whether the session that is running in this process is of Connect."""
    if not has_session():
        return False
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return session is not None and is_connect(session)


def has_living_session() -> bool:
    """Whether a session is running in this process that a Java process of its own serves, and that process lives."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    process = getattr(SparkContext._gateway, "proc", None)
    if context is None or process is None or process.poll() is not None:
        return False
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # whatever py4j raises if Java does not answer
        return False


def start_session(
    app: str, master: str | None = None, conf: Mapping[str, str] | None = None, *, light_java: bool = False
) -> SparkSession:
    """Returns the running session, or starts a session on `master`.

    The default master is spark-submit's, or all cores of this machine. A master that begins with `sc://` is a Connect
    server. `light_java` limits Java's compiler. It halves the time to start Spark and to run a short job whose work is
    done in Python, but slows down work on rows in Java. Raises MissingPackage without pyspark or Java, and Unreachable
    if Spark does not start.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MissingPackage("Spark needs the package pyspark: pip install 'penstock[spark]'") from None
    where = master or ("" if _SUBMIT_PORT in os.environ else "local[*]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    check_master(where)
    builder = SparkSession.builder.appName(app)
    if where.startswith("sc://"):
        return _start(builder.remote(where), where)
    settings = {**_DEFAULTS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
    if light_java:
        settings |= _LIGHT_JAVA_SETTINGS
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_CONF_DIR", str(_CONF_FOLDER))
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        return _start(builder.master(where), where) if where else _start(builder, "the master of spark-submit")


_CONNECT_PORT: Final = 15002
_MASTER_TIMEOUT_S: Final = 5.0
_NO_FILE: Final = b"/files/penstock"
_PROBES: Final = {
    # a master: the request of a file that it does not have (length of all, type StreamRequest, name)
    "spark": struct.pack(">qBi", 13 + len(_NO_FILE), 6, len(_NO_FILE)) + _NO_FILE,
    # a Connect server: HTTP/2's preface and empty settings
    "sc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5),
}
"""What a server of each scheme answers at once."""


def check_master(where: str) -> None:
    """Raises Unreachable if nothing listens at the address of a master or Connect server, or says nothing.

    Spark itself would retry for minutes, or wait for ever. Does nothing for other kinds of masters.
    """
    scheme, _, rest = where.partition("://")
    if scheme not in _PROBES:
        return
    addresses, problem = rest.partition("/")[0].partition(";")[0].split(","), ""
    for address in addresses:
        host, _, port = address.rpartition(":") if ":" in address else (address, "", str(_CONNECT_PORT))
        if not port.isdecimal():
            return  # Spark says what is wrong with it
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _MASTER_TIMEOUT_S) as connection:
                connection.sendall(_PROBES[scheme])
                connection.recv(1)  # an answer, or the end of the connection: Spark says what is wrong with that
        except TimeoutError:
            problem = f"nothing came within {_MASTER_TIMEOUT_S:.0f} s"
        except OSError as error:
            problem = error.strerror or str(error)
        else:
            return
    raise Unreachable(f"no Spark answers at {where} ({problem}); check --master, and that it is running")


def _start(builder: SparkSession.Builder, where: str) -> SparkSession:
    """Starts the session. Raises MissingPackage or Unreachable with one sentence in place of Java's long output."""
    before = _children()
    try:
        return builder.getOrCreate()
    except KeyboardInterrupt:
        for process in _children() - before:  # a Java interrupted during its start would stay forever
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise (Unreachable(JAVA_ENDED) if _has_java() else MissingPackage(NO_JAVA)) from None
        raise Unreachable(f"Spark does not start on {where}; is it running? Check --master and --conf") from error


def _has_java() -> bool:
    """Returns whether Spark finds a Java of whatever version."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None) is not None


def _children() -> set[int]:
    """Returns the ids of this thread's child processes, or an empty set if the system does not list them."""
    listed = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    return set(map(int, listed.read_text().split())) if listed.exists() else set()


# -- workers ---------------------------------------------------------------------------------------------------------

Piece = TypeVar("Piece")
_CONNECT_TASKS: Final = 4


def map_in_workers(
    spark: SparkSession,
    pieces: Sequence[Piece],
    work: Callable[[Piece], Iterator[pa.RecordBatch]],
    schema: Any,
) -> DataFrame:
    """Returns a DataFrame of the rows that `work` yields for each piece. Each piece is a task.

    Spark pickles `work` and the pieces. `schema` is a Spark schema. The batches of `work` must have its columns, in the
    same order.
    """

    def run(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                with as_user_errors():
                    yield from work(pieces[number])

    count = max(len(pieces), 1)
    return spark.range(0, len(pieces), 1, count).mapInArrow(run, schema)


def gather(spark: SparkSession, pieces: Sequence[Piece], work: Callable[[Piece], bytes]) -> list[bytes]:
    """Returns the result of `work` for each piece, in order. Each piece is a task. Results should be small.

    Spark pickles `work` and the pieces. If the driver is in this process, an RDD runs the pieces. That saves two thirds
    of the time that Spark adds to a short job. Raises PenstockError if a piece fails.
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
    """Returns how many tasks run at once. Under Connect, this is only a guess."""
    return _CONNECT_TASKS if is_connect(spark) else spark.sparkContext.defaultParallelism


def is_connect(spark: SparkSession) -> bool:
    """Returns whether this is a Connect session, whose driver runs in a server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def use_this_python(spark: SparkSession) -> None:
    """Makes workers of a local session use this Python, unless PYSPARK_PYTHON names another one.

    Without it, Spark starts the first `python3` on the path, which may not have Penstock.
    """
    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable


def _run_piece(work: Callable[[Piece], bytes], piece: Piece) -> bytes:
    with as_user_errors():
        return work(piece)


def _run_numbered(work: Callable[[Piece], bytes], piece: tuple[int, Piece]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    number, content = piece
    columns = [pa.array([number], pa.int32()), pa.array([work(content)], pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, ["number", "result"])


# -- progress --------------------------------------------------------------------------------------------------------

ProgressCallback = Callable[[int, int], object]
"""A function of the number of finished tasks and the number of tasks known so far. One thread at a time calls it."""
_POLL_S: Final = 0.25


@contextmanager
def report_progress(spark: SparkSession, report: ProgressCallback) -> Iterator[None]:
    """Calls `report` a few times a second with the progress of the jobs that run in the block."""
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
    """A Connect session's progress handler."""

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


# -- interrupts ------------------------------------------------------------------------------------------------------

_SILENCE_TIMEOUT_S: Final = 3.0
"""The longest time that Ctrl-C waits for Java's logging to be turned off."""


@contextlib.contextmanager
def quiet_interrupts() -> Iterator[None]:
    """Makes SIGINT in the block raise KeyboardInterrupt without output from Java or py4j.

    pyspark's own handler asks Java to cancel all jobs, but over the connection that the interrupted call still uses.
    The request fails, and Java prints many errors. The handler here turns off Java's logging first, in another thread.
    The jobs end with their session. Has no effect outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupted(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait
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
    """Turns off the logging of Java and py4j. Call it in a new thread, because each thread has its own connection."""
    from pyspark import SparkContext

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    with contextlib.suppress(Exception):  # no local Java if the session belongs to a remote Connect server
        java = SparkContext._gateway.jvm  # type: ignore[union-attr]
        logging_of_java = java.org.apache.logging.log4j
        logging_of_java.core.config.Configurator.setRootLevel(logging_of_java.Level.OFF)
        java.java.lang.System.setErr(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))

"""Spark sessions as Penstock's own commands start them. Needs pyspark.

Quiet, without a web page, with sockets of the local machine between Java and Python (which halves what a task costs),
and in UTC. What the caller sets wins, and a session that is already there is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.errors import MissingPackage, Unreachable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_JAVA: Final = "Spark needs Java 17 or newer: install it, or set JAVA_HOME"
_QUIET: Final = Path(__file__).parent / "spark_conf"
_DEFAULTS: Final = {
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_BY_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
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
    where = master or ("" if _BY_SPARK_SUBMIT in os.environ else "local[*]")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if where.startswith("sc://"):
        return _started(builder.remote(where), where)
    settings = {**_DEFAULTS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
    if light_java:
        settings |= _LIGHT_JAVA
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_CONF_DIR", str(_QUIET))
    for name, value in {**settings, **(conf or {})}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        return _started(builder.master(where), where) if where else _started(builder, "the master of spark-submit")


def _started(builder: SparkSession.Builder, where: str) -> SparkSession:
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

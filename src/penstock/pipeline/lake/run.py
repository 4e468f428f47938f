"""Brings the tables of a lake up to date. Needs pyspark.

A run is like Spark's command `spark-pipelines run`, but also sets the catalog's location, reports an error as one
sentence, and counts rows. The module calls functions that are not public in Spark. If Spark lacks them, a run raises
MissingPackage.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.errors import BadSettings, MissingPackage, PenstockError, StoreInUse
from penstock.pipeline.lake.lake_folder import SPEC_FILE, Lake, check_initialised
from penstock.pipeline.session import has_session, quiet_interrupts, start_connect_session, start_session
from penstock.pipeline.spark_versions import requires
from penstock.store.files.in_memory_copy_on_write_files import OverlayFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CATALOG_ERRORS: Final = ("XSDB6", "Another instance of Derby", "SessionHiveMetaStoreClient")
_JAVA: Final = "spark.driver.extraJavaOptions"
_SOURCE_SENTENCE: Final = re.compile(r"rocketmq: (.*?)\s*(?:SQLSTATE: \w+)?$")


class LakeFailed(PenstockError):
    """Spark ended a run before all tables were up to date."""


class Summary(msgspec.Struct, frozen=True):
    """The state of the tables after a run."""

    tables: dict[str, int]
    """The number of rows by table. Views are left out."""
    without_table: list[str]
    """The topics that have no table of their own; their messages are only in the table `messages`."""


def run_project(
    folder: Path,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    full_refresh: bool = False,
    report: Callable[[str], object] = lambda line: None,
) -> Summary:
    """Adds the messages since the last run to the tables, and recomputes the views.

    `full_refresh` rebuilds the tables from the messages that still exist; older rows are lost. `report` gets Spark's
    progress lines. No other Spark session may run in this process. Raises BadSettings, BadStore, LakeFailed,
    MissingPackage, or StoreInUse if another run is active.
    """
    requires((4, 2), "a lake")
    folder = folder.absolute()
    lake = check_initialised(folder)
    _check_free(folder)
    topics = lake.user_topics()
    failures: list[str] = []
    with _session(lake, master, conf or {}) as spark, _as_lake_errors(folder, failures):
        spark.sql("SHOW TABLES").collect()  # opens the catalog now, not in the middle of a run
        for event in _run_events(spark, folder, full_refresh):
            failures += [event] if " FAILED" in event else []
            report(event.splitlines()[0])
        tables = ["messages", *(topic.table for topic in lake.topics), "bad_messages"]
        rows = {table: spark.read.table(table).count() for table in tables}
    named = {topic.topic for topic in lake.topics}
    return Summary(rows, [topic for topic in topics if topic not in named])


def _check_free(folder: Path) -> None:
    """Raises StoreInUse if the lock file of the catalog's database shows that another process has it open."""
    owner = OverlayFiles().lock_owner(folder / "catalog" / "metastore" / "dbex.lck")
    if owner and owner != _own_java():
        raise StoreInUse(
            f"another run, or another Spark, has this lake's catalog open (process {owner}); wait until it ends",
            path=folder,
        )


def _own_java() -> int:
    """Returns the process id of this process's Java, or 0 without Java. It keeps the catalog open after a run."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return 0 if process is None else int(process.pid)


@contextlib.contextmanager
def _session(lake: Lake, master: str | None, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    if has_session():
        raise BadSettings(
            "a Spark session runs in this process, and a lake needs one of its own; call `spark.stop()` first"
        )
    with _as_lake_errors(Path(lake.folder), []):
        spark = _start(lake, master or "local[*]", conf)
    try:
        with quiet_interrupts():
            yield spark
    finally:
        spark.stop()


def _start(lake: Lake, master: str, conf: Mapping[str, str]) -> SparkSession:
    if master.startswith("sc://"):
        return start_session("penstock lake", master, conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["SPARK_CONF_DIR"] = str(Path(lake.folder) / "conf")
    own = {**lake.spark_settings, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2)}
    added = {_JAVA: f"{own[_JAVA]} {conf[_JAVA]}"} if _JAVA in conf else {}  # ours sets the catalog's log folder
    quiet = {"spark.sql.connect.serverStacktrace.enabled": "false"}
    return start_connect_session("penstock lake", master, {**own, **quiet, **conf, **added})


def _run_events(spark: SparkSession, folder: Path, full_refresh: bool) -> Iterator[str]:
    """Runs the pipeline in the session `spark`. Yields Spark's progress lines."""
    try:
        from pyspark.pipelines import cli
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run
    except ImportError as error:
        raise MissingPackage(
            f"this Spark has no declarative pipelines as Penstock knows them ({error}); run `spark-pipelines run` in "
            f"{folder} with SPARK_CONF_DIR={folder / 'conf'}"
        ) from None
    path = folder / SPEC_FILE
    spec = cli.load_pipeline_spec(path)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
    with contextlib.redirect_stdout(sys.stderr):
        cli.register_definitions(path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    results: Any = start_run(spark, graph, [], full_refresh, [], False, spec.storage)
    for result in results:
        if "pipeline_event_result" in result:
            yield str(result["pipeline_event_result"].event.message)


@contextlib.contextmanager
def _as_lake_errors(folder: Path, failures: Sequence[str]) -> Iterator[None]:
    """Turns Spark's errors into StoreInUse or LakeFailed with one sentence, if possible the data source's own.

    `failures` are texts of errors that Spark reported during the run, before the exception.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        texts = [*failures, str(error)]
        if any(sign in text for sign in _CATALOG_ERRORS for text in texts):
            raise StoreInUse(
                "its catalog cannot be opened: another Spark has it open, or it is damaged; see catalog/derby.log "
                "in it",
                path=folder,
            ) from None
        raise LakeFailed(_sentence(texts) or type(error).__name__, path=folder) from error


def _sentence(texts: Sequence[str]) -> str:
    """Returns one sentence for the first error in Spark's texts, or "" if they are empty."""
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    for line in lines:
        if (found := _SOURCE_SENTENCE.search(line)) is not None:
            return found[1]
    named = [line for line in lines if line.startswith(("[", "Error: ["))]
    return "Spark could not run it: " + (named or lines)[0].removeprefix("Error: ") if lines else ""

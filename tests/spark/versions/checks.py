"""What Penstock does with one version of Spark: a script for an environment of its own, run by tools/spark_matrix.py.

    python checks.py RESULT.json [--jars A.jar,B.jar] [--delta] [--iceberg]

Each check is a sentence about one ability. Its result is "yes", "no: " and the sentence with which Penstock says which
version has it, "not run: " and why, or "failed: " and what went wrong. A check without its package is left out. The
result is written after each check, so that a run that is killed shows how far it came. Needs penstock[spark] and
nothing of the other tests.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
import pyarrow.dataset
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock.cli.main import main as command
from penstock.client.message import Message as ClientMessage
from penstock.client.sync import Admin, Producer
from penstock.errors import MissingPackage
from penstock.pipeline.errors import one_sentence
from penstock.pipeline.jobs.dispatch import dispatch
from penstock.store import Dispatch, Message, MessageStore, Settings
from penstock.testing import LocalBroker, broker

COUNT = 60
PATIENCE_S = 120.0
ATTEMPTS = 4
TOO_BUSY = "Python worker failed to connect back"
"""What Spark says if one of its Python processes takes more than ten seconds to start."""


class NotHere(Exception):
    """This version of Spark cannot do it; the text is Penstock's sentence."""


class Bench(NamedTuple):
    """What the checks work with."""

    spark: SparkSession
    folder: Path
    broker: LocalBroker

    def fresh(self, name: str) -> Path:
        """A new folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))

    def store(self, name: str, count: int = COUNT) -> Path:
        """A new store with messages 0 to count - 1 of the topic `orders`."""
        path = self.fresh(name) / "store"
        put(path, range(count))
        return path

    def topic(self, name: str, count: int = COUNT) -> str:
        """A new topic of the broker with messages 0 to count - 1."""
        topic = self.fresh(name).name  # a check that is tried again has another one
        self.fill(topic, count)
        return topic

    def fill(self, topic: str, count: int) -> None:
        with self.broker.admin() as admin:
            admin.topics.create(topic, queues=2)
        self.send(topic, range(count))

    def send(self, topic: str, numbers: range) -> None:
        with Producer("PID", self.broker.namesrv) as producer:
            for number in numbers:
                producer.send(ClientMessage(topic, body(number), keys=f"k{number}"))
        self.broker.settle()

    def read(self, path: Path | None = None, **options: str) -> DataFrame:
        reader = self.spark.read.format("rocketmq").options(**options)
        return reader.load(str(path)) if path else reader.option("namesrv", self.broker.namesrv).load()

    def stream(self, path: Path | None = None, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("rocketmq").options(**options)
        return reader.load(str(path)) if path else reader.option("namesrv", self.broker.namesrv).load()


def body(number: int) -> bytes:
    return b'{"id": %d}' % number


def put(path: Path, numbers: range, **settings: Any) -> None:
    with MessageStore.open(path, Settings.dev(**settings)) as store:
        for number in numbers:
            message = Message("orders", body(number), keys=(f"k{number}",), tags="paid", queue_id=number % 4)
            assert store.put(message).ok


def numbers_of(frame: DataFrame, column: str = "body") -> list[int]:
    """The numbers of the messages in a frame, sorted; each as often as it is there."""
    return sorted(json.loads(bytes(row[0]))["id"] for row in frame.select(column).collect())


def error_of(act: Callable[[], object]) -> str:
    """The text of Spark's error; empty if there is none."""
    try:
        act()
    except PySparkException as error:
        return str(error)
    return ""


def until(what: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def run(*arguments: str) -> Any:
    """What a verb of the command line prints as JSON; it uses the session that runs."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = command(["pipeline", *arguments, "--json"])
    assert status == 0, (arguments, status, printed.getvalue())
    return json.loads(printed.getvalue().splitlines()[-1])


# -- batches ---------------------------------------------------------------------------------------------------------


def reads_files(bench: Bench) -> None:
    path = bench.store("files")
    frame = bench.read(path, subscribe="orders")
    assert numbers_of(frame) == list(range(COUNT))
    row = frame.where("keys[0] = 'k7'").collect()[0]
    assert (row.topic, row.tags, row.queue_id, row.properties["KEYS"]) == ("orders", "paid", 3, "k7")
    assert row.store_timestamp is not None
    assert bench.read(path, order="log", columns="queue_id").count() == COUNT
    assert numbers_of(bench.read(path, subscribe="orders", schema="kafka"), "value") == list(range(COUNT))
    bench.read(path, subscribe="orders").createOrReplaceTempView("orders_view")
    assert bench.spark.sql("SELECT count(*) FROM orders_view WHERE tags = 'paid'").collect()[0][0] == COUNT


def reads_by_key(bench: Bench) -> None:
    assert numbers_of(bench.read(bench.store("keys"), subscribe="orders", keys="k3,k41")) == [3, 41]


def reads_brokers(bench: Bench) -> None:
    assert numbers_of(bench.read(subscribe=bench.topic("batch"))) == list(range(COUNT))


def says_what_is_wrong(bench: Bench) -> None:
    said = error_of(lambda: bench.read(bench.store("wrong"), subscribe="order").count())
    assert one_sentence(said).startswith("there is no topic 'order'"), said
    assert "Traceback" not in said.split("JVM stacktrace")[0], said


def writes_files(bench: Bench) -> None:
    source, target = bench.store("from"), bench.store("to", 0)
    frame = bench.read(source, subscribe="orders").select("body", "keys", "tags")
    for _ in range(2):  # the same id: stored once
        frame.write.format("rocketmq").mode("append").options(topic="copy", writeId="w1").save(str(target))
    assert numbers_of(bench.read(target, subscribe="copy", keys="k5")) == [5]
    assert numbers_of(bench.read(target, subscribe="copy")) == list(range(COUNT))


def writes_to_brokers(bench: Bench) -> None:
    topic = bench.topic("written", 0)
    frame = bench.read(bench.store("from"), subscribe="orders").select("body", "keys")
    frame.write.format("rocketmq").mode("append").options(topic=topic, namesrv=bench.broker.namesrv).save()
    assert numbers_of(bench.read(subscribe=topic)) == list(range(COUNT))


# -- streams ---------------------------------------------------------------------------------------------------------


def available_now(frame: DataFrame, folder: Path) -> None:
    writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint")).format("parquet")
    writer.trigger(availableNow=True).start(str(folder / "table")).awaitTermination()


def table(bench: Bench, folder: Path) -> list[int]:
    return numbers_of(bench.spark.read.parquet(str(folder / "table")))


def streams_from_the_first_message(bench: Bench) -> None:
    path, folder = bench.store("stream"), bench.fresh("table")
    for end in (COUNT, 2 * COUNT):
        put(path, range(COUNT, end))
        available_now(bench.stream(path, subscribe="orders", startingOffsets="earliest"), folder)
        assert table(bench, folder) == list(range(end))


def streams_from_brokers(bench: Bench) -> None:
    topic, folder = bench.topic("streamed"), bench.fresh("table")
    for start in (0, COUNT):
        if start:
            bench.send(topic, range(COUNT, 2 * COUNT))
        available_now(bench.stream(subscribe=topic, startingOffsets="earliest"), folder)
        assert table(bench, folder) == list(range(start + COUNT))


def streams_from_offsets_and_times(bench: Bench) -> None:
    path, folder, timed = bench.store("offsets"), bench.fresh("table"), bench.fresh("timed")
    offsets = json.dumps({"orders": {str(queue_id): 3 for queue_id in range(4)}})
    available_now(bench.stream(path, subscribe="orders", startingOffsets=offsets), folder)
    assert table(bench, folder) == list(range(12, COUNT))
    available_now(bench.stream(path, subscribe="orders", startingTimestamp="now-1h"), timed)
    assert table(bench, timed) == list(range(COUNT))


def streams_new_messages(bench: Bench) -> None:
    """From the end, and from where it was when its first micro-batch was killed."""
    topic, folder = bench.topic("followed"), bench.fresh("table")
    batches: dict[int, list[int]] = {}

    def collect(batch: DataFrame, number: int) -> None:
        found = numbers_of(batch)
        assert batches.setdefault(number, found) == found, "a micro-batch that is run again has the same messages"

    def seen() -> list[int]:
        return sorted(number for batch in batches.values() for number in batch)

    def start() -> StreamingQuery:
        frame = bench.stream(subscribe=topic, maxOffsetsPerTrigger="7")
        return frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(folder / "checkpoint")).start()

    query = start()
    try:
        until(lambda: (folder / "checkpoint" / "commits" / "0").exists(), query)
        bench.send(topic, range(COUNT, COUNT + 20))
        until(lambda: len(seen()) >= 20, query)
    finally:
        query.stop()
    bench.send(topic, range(COUNT + 20, COUNT + 40))
    query = start()
    try:
        until(lambda: len(seen()) >= 40, query)
    finally:
        query.stop()
    assert seen() == list(range(COUNT, COUNT + 40))
    assert len(list((folder / "checkpoint" / "commits").glob("[0-9]*"))) >= 6, "at most 7 in a micro-batch"


def runs_a_failed_batch_again(bench: Bench) -> None:
    path, folder = bench.store("again"), bench.fresh("again")
    seen: list[list[int]] = []

    def collect(batch: DataFrame, number: int) -> None:
        found = numbers_of(batch)
        if found:
            seen.append(found)
            assert len(seen) > 1, "killed"

    def run_once() -> None:
        frame = bench.stream(path, subscribe="orders", startingOffsets="earliest")
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    assert "killed" in error_of(run_once)
    assert seen == [list(range(COUNT))]
    put(path, range(COUNT, COUNT + 10))
    run_once()
    assert seen[1] == list(range(COUNT)), "the same batch"
    run_once()
    assert sorted(seen[1] + (seen[2] if len(seen) > 2 else [])) == list(range(COUNT + 10))


def refuses_a_topic_made_again(bench: Bench) -> None:
    topic, folder = bench.topic("remade"), bench.fresh("remade")
    available_now(bench.stream(subscribe=topic, startingOffsets="earliest"), folder)
    with Admin(bench.broker.namesrv) as admin:
        admin.topics.delete(topic)
    bench.fill(topic, 2 * COUNT)
    said = error_of(lambda: available_now(bench.stream(subscribe=topic, startingOffsets="earliest"), folder))
    assert "what was read is gone" in one_sentence(said), said


def streams_from_a_groups_offsets(bench: Bench) -> None:
    path, folder = bench.store("group"), bench.fresh("table")
    (path / "config").mkdir(exist_ok=True)
    (path / "config" / "consumerOffset.json").write_text('{"offsetTable": {"orders@shop": {"0": 5, "1": 5}}}')
    said = error_of(lambda: available_now(bench.stream(path, subscribe="orders", startingOffsets="group:shop"), folder))
    if "needs Spark" in said:
        raise NotHere(one_sentence(said))
    assert not said, said
    assert len(table(bench, folder)) == COUNT - 10


def limits_available_now(bench: Bench) -> None:
    path, folder = bench.store("limit"), bench.fresh("table")
    available_now(bench.stream(path, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="25"), folder)
    if len(table(bench, folder)) == 25:
        raise NotHere("availableNow ends after one micro-batch, whose size maxOffsetsPerTrigger limits")
    assert table(bench, folder) == list(range(COUNT))


def reports_lag(bench: Bench) -> None:
    from penstock.spark import lag

    path, folder = bench.store("lag"), bench.fresh("lag")
    frame = bench.stream(path, subscribe="orders", startingOffsets="earliest")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = lag(query.lastProgress)
    if not found:
        raise NotHere("a query's progress does not have the ends of the queues")
    assert [(each.topic, each.messages) for each in found] == [("orders", 0)]


def streams_into_files(bench: Bench) -> None:
    source, target, folder = bench.store("from"), bench.store("to", 0), bench.fresh("copy")
    for end in (COUNT, COUNT + 10):
        put(source, range(COUNT, end))
        frame = bench.stream(source, subscribe="orders", startingOffsets="earliest").select("body", "keys")
        writer = frame.writeStream.format("rocketmq").options(topic="copy", path=str(target))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert numbers_of(bench.read(target, subscribe="copy")) == list(range(end))


def streams_to_brokers(bench: Bench) -> None:
    source, topic, folder = bench.store("from"), bench.topic("fed", 0), bench.fresh("feed")
    frame = bench.stream(source, subscribe="orders", startingOffsets="earliest").select("body", "keys")
    writer = frame.writeStream.format("rocketmq").options(topic=topic, namesrv=bench.broker.namesrv)
    writer.option("checkpointLocation", str(folder / "c")).trigger(availableNow=True).start().awaitTermination()
    assert numbers_of(bench.read(subscribe=topic)) == list(range(COUNT))


# -- jobs ------------------------------------------------------------------------------------------------------------


def runs_jobs(bench: Bench) -> None:
    path, folder = str(bench.store("jobs")), bench.fresh("jobs")
    master = ("--master", "local[2]")  # otherwise a small store is worked on without Spark
    assert run("usage", "--store", path, *master)["messages"] == COUNT
    assert run("verify", "--store", path, *master)["stores"][0]["errors"] == 0
    assert run("search", "--store", path, "--topic", "orders", "--key", "k9", *master)["keys"] == ["k9"]
    run("lag", "--store", path, *master)
    shutil.copytree(path, folder / "other")
    run("diff", path, str(folder / "other"), *master)
    run("rebuild", "--store", str(folder / "other"), *master)
    for _ in range(2):
        run("export", "--store", path, "--to", str(folder / "export"), *master)
    assert bench.spark.read.parquet(str(folder / "export")).count() == COUNT
    target = str(bench.store("replayed", 0))
    replay = ("replay", "--store", path, "--topic", "orders", "--to-store", target, "--to-topic", "again")
    assert [run(*replay, *master)["sent"] for _ in range(2)] == [COUNT, 0]


def answers_sql(bench: Bench) -> None:
    from penstock.pipeline.arrow_scan import ScanOptions
    from penstock.sql.spark_engine import SparkSqlSession

    session = SparkSqlSession(bench.spark, ScanOptions(paths=(str(bench.store("sql")),)))
    (found,) = session.run("SELECT tags, count(*) AS n FROM orders WHERE body_json IS NOT NULL GROUP BY tags")
    assert found.read_all().to_pylist() == [{"tags": "paid", "n": COUNT}]


def dispatches(bench: Bench) -> None:
    path = bench.fresh("dispatch") / "store"
    with MessageStore.open(path, Settings.dev(dispatch=Dispatch.EXTERNAL)) as store:
        for number in range(COUNT):
            assert store.put(Message("orders", body(number))).ok
        deadline = time.monotonic() + PATIENCE_S
        with dispatch(bench.spark, path) as job:
            while store.dispatcher.behind > 0 and not job.wait(0.1):
                assert time.monotonic() < deadline, "it took too long"
    assert numbers_of(bench.read(path, subscribe="orders")) == list(range(COUNT))


def dispatches_once(bench: Bench) -> None:
    path = bench.fresh("dispatch") / "store"
    put(path, range(COUNT), dispatch=Dispatch.EXTERNAL)
    try:
        with dispatch(bench.spark, path, once=True) as job:
            job.wait()
    except MissingPackage as error:
        raise NotHere(str(error)) from None
    assert job.report().behind == 0


def keeps_a_lake(bench: Bench) -> None:
    """In a process of its own: a lake needs a session of its own."""
    path, lake = bench.store("lake"), bench.fresh("lake") / "lake"
    program = [sys.executable, "-m", "penstock.cli.main", "pipeline", "lake"]
    settings = ["--master", "local[2]", "--conf", "spark.driver.memory=1g"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    for arguments in (["init", str(lake), "--store", str(path)], ["run", str(lake), *settings]):
        ran = subprocess.run([*program, *arguments], env=environment, capture_output=True, text=True, check=False)
        if "needs Spark" in ran.stderr:
            raise NotHere(ran.stderr.strip().splitlines()[-1].removeprefix("penstock: "))
        assert ran.returncode == 0, ran.stdout + ran.stderr[-2000:]
    assert pyarrow.dataset.dataset(lake / "tables" / "topic_orders", format="parquet").count_rows() == COUNT


# -- tables of others ------------------------------------------------------------------------------------------------


def fills_delta(bench: Bench) -> None:
    path, folder = bench.store("delta"), bench.fresh("delta")
    bench.read(path, subscribe="orders").write.format("delta").save(str(folder / "batch"))
    assert numbers_of(bench.spark.read.format("delta").load(str(folder / "batch"))) == list(range(COUNT))
    for end in (COUNT, COUNT + 10):
        put(path, range(COUNT, end))
        frame = bench.stream(path, subscribe="orders", startingOffsets="earliest")
        writer = frame.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(str(folder / "stream")).awaitTermination()
        assert numbers_of(bench.spark.read.format("delta").load(str(folder / "stream"))) == list(range(end))


def merges_into_delta(bench: Bench) -> None:
    """With the Python package `delta-spark`: the newest message of a key wins."""
    from delta.tables import DeltaTable

    path, folder = bench.store("merge"), bench.fresh("merge")
    wanted = "keys[0] AS key", "body"
    bench.read(path, subscribe="orders").selectExpr(*wanted).limit(0).write.format("delta").save(str(folder / "table"))

    def merge(batch: DataFrame, number: int) -> None:
        news = batch.selectExpr(*wanted).alias("n")
        target = DeltaTable.forPath(batch.sparkSession, str(folder / "table")).alias("t")
        merged = target.merge(news, "t.key = n.key").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        merged.execute()

    for _ in range(2):
        frame = bench.stream(path, subscribe="orders", startingOffsets="earliest")
        writer = frame.writeStream.foreachBatch(merge).option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        put(path, range(COUNT))
    assert numbers_of(bench.spark.read.format("delta").load(str(folder / "table"))) == list(range(COUNT))


def fills_iceberg(bench: Bench) -> None:
    path, folder = bench.store("iceberg"), bench.fresh("iceberg")
    batch, table = (f"ice.shop.`{folder.name}-{kind}`" for kind in ("batch", "stream"))
    bench.read(path, subscribe="orders").writeTo(batch).using("iceberg").create()
    assert numbers_of(bench.spark.read.table(batch)) == list(range(COUNT))
    bench.read(path, subscribe="orders").limit(0).writeTo(table).using("iceberg").create()
    for end in (COUNT, COUNT + 10):
        put(path, range(COUNT, end))
        frame = bench.stream(path, subscribe="orders", startingOffsets="earliest")
        writer = frame.writeStream.format("iceberg").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).toTable(table).awaitTermination()
        assert numbers_of(bench.spark.read.table(table)) == list(range(end))


class Check(NamedTuple):
    """One ability: the column of the table, its name there if it is the exception, and what proves it."""

    column: str
    name: str
    prove: Callable[[Bench], None]


CHECKS = (
    Check("batch read", "files", reads_files),
    Check("batch read", "keys", reads_by_key),
    Check("batch read", "brokers", reads_brokers),
    Check("batch read", "errors of one sentence", says_what_is_wrong),
    Check("batch write", "files", writes_files),
    Check("batch write", "brokers", writes_to_brokers),
    Check("streams", "from the first message", streams_from_the_first_message),
    Check("streams", "from brokers", streams_from_brokers),
    Check("streams", "from offsets and times", streams_from_offsets_and_times),
    Check("streams", "from the end", streams_new_messages),
    Check("streams", "again after a failed micro-batch", runs_a_failed_batch_again),
    Check("streams", "errors for a topic made again", refuses_a_topic_made_again),
    Check("streams", "a start at a group's offsets", streams_from_a_groups_offsets),
    Check("streams", "several micro-batches with `availableNow`", limits_available_now),
    Check("streams", "lag", reports_lag),
    Check("stream write", "files", streams_into_files),
    Check("stream write", "brokers", streams_to_brokers),
    Check("jobs", "usage, verify, search, lag, diff, rebuild, export, replay", runs_jobs),
    Check("jobs", "sql", answers_sql),
    Check("jobs", "dispatch", dispatches),
    Check("jobs", "`dispatch --once`", dispatches_once),
    Check("jobs", "lake", keeps_a_lake),
    Check("Delta", "batch and stream", fills_delta),
    Check("Delta", "merge", merges_into_delta),
    Check("Iceberg", "batch and stream", fills_iceberg),
)

SHORT = (
    reads_files,
    reads_by_key,
    reads_brokers,
    writes_files,
    streams_from_the_first_message,
    runs_a_failed_batch_again,
    streams_into_files,
    answers_sql,
)
"""One check at least of every part that differs between versions of Spark, and none that starts another Spark."""


def start(jars: str, folder: Path, *, delta: bool, iceberg: bool) -> SparkSession:
    """A session as `penstock pipeline` starts it, with the extensions of the table formats."""
    os.environ.update(
        SPARK_LOCAL_IP="127.0.0.1",
        PYSPARK_PYTHON=sys.executable,
        SPARK_CONF_DIR=str(Path(penstock.__file__).parent / "pipeline" / "spark_conf"),
    )
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(folder / "local"),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    extensions = []
    if jars:
        settings["spark.jars"] = jars
    if delta:
        extensions.append("io.delta.sql.DeltaSparkSessionExtension")
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    if iceberg:
        extensions.append("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        settings["spark.sql.catalog.ice"] = "org.apache.iceberg.spark.SparkCatalog"
        settings["spark.sql.catalog.ice.type"] = "hadoop"
        settings["spark.sql.catalog.ice.warehouse"] = str(folder / "iceberg")
    if extensions:
        settings["spark.sql.extensions"] = ",".join(extensions)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SparkSession.builder.master("local[2]").appName("versions").config(map=settings).getOrCreate()


def result_of(check: Check, bench: Bench) -> str:
    """Tries a check; again if the machine was too busy for Spark."""
    for _ in range(ATTEMPTS):
        result = _try(check, bench)
        if TOO_BUSY not in result:
            return result
    return f"not run: the machine was too busy ({TOO_BUSY})"


def _try(check: Check, bench: Bench) -> str:
    try:
        check.prove(bench)
    except NotHere as sentence:
        return f"no: {sentence}"
    except Exception as error:
        traceback.print_exc()
        return f"failed: {type(error).__name__}: {one_sentence(str(error))[:300]}"
    return "yes"


def applicable(*, delta: bool, iceberg: bool) -> Iterator[Check]:
    has_merge = delta and find_spec("delta") is not None
    for check in CHECKS:
        if check.prove is merges_into_delta and not has_merge:
            continue
        if (check.column != "Delta" or delta) and (check.column != "Iceberg" or iceberg):
            yield check


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--jars", default="")
    parser.add_argument("--delta", action="store_true")
    parser.add_argument("--iceberg", action="store_true")
    parser.add_argument("--only", default="", help="checks of functions whose name contains this")
    parser.add_argument("--short", action="store_true", help="only the checks of SHORT")
    given = parser.parse_args()
    found: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-versions-") as name, broker() as running:
        spark = start(given.jars, Path(name), delta=given.delta, iceberg=given.iceberg)
        java = spark.sparkContext._jvm.System.getProperty("java.version")
        versions = {"spark": pyspark.__version__, "python": platform.python_version(), "java": str(java)}
        versions["pyarrow"] = pyarrow.__version__
        bench = Bench(spark, Path(name), running)
        for check in applicable(delta=given.delta, iceberg=given.iceberg):
            if given.only not in check.prove.__name__ or (given.short and check.prove not in SHORT):
                continue
            begun = time.monotonic()
            result = result_of(check, bench)
            print(f"{time.monotonic() - begun:6.1f} s  {check.column}, {check.name}: {result}", flush=True)
            found.setdefault(check.column, {})[check.name] = result
            given.result.write_text(json.dumps({**versions, "checks": found}, indent=1), encoding="utf-8")
        spark.stop()
    return int(any(result.startswith("failed") for each in found.values() for result in each.values()))


if __name__ == "__main__":
    sys.exit(main())

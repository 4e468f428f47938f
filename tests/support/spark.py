"""Spark: a standalone cluster, reads and their rows, exports and their content, runs of lakes, written rows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.client.sync import PullConsumer
from penstock.pipeline.jobs.export import Export
from penstock.pipeline.jobs.export.tables import open_catalog
from penstock.pipeline.session import LIGHT_JAVA
from penstock.store import Message, MessageStore
from penstock.testing import LocalBroker
from support.arrow import expected_row
from support.stores import StoreHome


@contextmanager
def standalone_cluster(folder: Path, *, hidden: Sequence[Path] = (), hidden_from: int = 1) -> Iterator[str]:
    """The master's address; on free ports of loopback, ended afterwards.

    Of its two workers 0 and 1, those from `hidden_from` on see empty folders instead of `hidden`, as hosts do that have
    not mounted them. They see Spark under another path, so that its environment can be hidden.
    """
    spark_home = Path(pyspark.__file__).parent
    log = (folder / "cluster.log").open("wb")
    environment = {**os.environ, "SPARK_HOME": str(spark_home)}
    environment["SPARK_DAEMON_JAVA_OPTS"] = LIGHT_JAVA
    del environment["SPARK_CONF_DIR"]  # the master is not to be quiet: it says where it listens
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, hide: Sequence[Path] = ()) -> None:
        order, given = [str(spark_home / "bin" / "spark-class")], environment
        if hide:
            elsewhere = folder / "spark"
            elsewhere.mkdir(exist_ok=True)
            mounts = [f'mount --bind "{spark_home}" "{elsewhere}"', *(f'mount -t tmpfs none "{each}"' for each in hide)]
            order = ["unshare", "-m", "sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "sh"]
            order.append(str(elsewhere / "bin" / "spark-class"))
            given = {**environment, "SPARK_HOME": str(elsewhere)}
        started.append(subprocess.Popen([*order, *arguments], stdout=log, stderr=log, env=given))

    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        start("org.apache.spark.deploy.master.Master", *here, "--port", "0")
        master = _wait_for_master(folder / "cluster.log", started[0])
        for number in range(2):
            work = str(folder / f"work{number}")
            worker = ("org.apache.spark.deploy.worker.Worker", *here, "-c", "1", "-m", "768m", "-d", work, master)
            start(*worker, hide=hidden if number >= hidden_from else ())
        yield master
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)
        log.close()


def may_mount() -> bool:
    """Whether a folder can be hidden from a process, by a mount in a namespace of its own."""
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def _wait_for_master(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The address that the master chose."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("spark://127.0.0.1:"):
                return word.rstrip(".,")
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))


_SENTENCE = re.compile(r"rocketmq: (.*?)\s*(SQLSTATE: \w+)?$")


def read(spark: SparkSession, home: StoreHome | str, **options: Any) -> DataFrame:
    """A batch read of a store."""
    path = str(home.path) if isinstance(home, StoreHome) else home
    return spark.read.format("rocketmq").options(**options).load(path)


def rows(frame: DataFrame, *by: str) -> list[dict[str, Any]]:
    """The rows of a frame, in the order of some columns."""
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return sorted(found, key=lambda row: tuple(row[name] for name in by))


def stored(home: StoreHome, store: MessageStore, *topics: str) -> list[dict[str, Any]]:
    """What the store itself returns of some topics, as rows, queue by queue."""
    store.catch_up()
    return [
        {**expected_row(record), "broker": home.path.name}
        for queue in store.queues
        if queue.topic in topics
        for record in home.read_queue(store, queue.topic, queue.queue_id)
    ]


QUEUE_ORDER = "topic", "queue_id", "queue_offset"


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The one sentence that a user sees; fails if a traceback comes with it."""
    text = str(error.value).split("\n\nJVM stacktrace")[0].split("JVM stacktrace:")[0].strip()
    assert "Traceback" not in text, text
    found = [match[1] for line in text.splitlines() if (match := _SENTENCE.search(line.strip()))]
    assert len(found) == 1, text
    return found[0]


DAY_MS = 86_400_000


def fill_days(home: StoreHome, start: int, count: int, *, close: bool = True) -> list[tuple[str, str, bytes]]:
    """Messages of two topics over some days; (topic, day, body) of each."""
    put = []
    with home.open() as store:
        for number in range(start, start + count):
            home.clock.now += DAY_MS // 7
            message = Message(
                ("orders", "%RETRY%g")[number % 2],
                b'{"id": %d, "name": "n%d"}' % (number, number),
                tags="red",
                keys=(f"k{number}",),
                properties={"color": f"c{number}"},
                queue_id=number % 4 // 2,
            )
            assert store.put(message).ok
            day = datetime.fromtimestamp(home.clock.now / 1000, UTC).date().isoformat()
            put.append((message.topic, day, bytes(message.body)))
    return put


def held(spark: SparkSession, spec: Export) -> list[tuple[str, str, bytes]]:
    """(topic, day, body) of each row of an export, as a reader of its format sees them."""
    if spec.format == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(spec.to).to_pyarrow_table().to_pylist()
    elif spec.format == "iceberg":
        rows = open_catalog(spec).load_table(spec.table).scan().to_arrow().to_pylist()
        rows = [{**row, "date": row["store_timestamp"].astimezone(UTC).date()} for row in rows]
    elif spec.format == "parquet":
        rows = ds.dataset(spec.to, format="parquet", partitioning="hive", exclude_invalid_files=False).to_table()
        rows = rows.to_pylist()
    else:
        schema = "topic string, date date, body binary"
        rows = [row.asDict() for row in spark.read.schema(schema).json(spec.to).collect()]
    return sorted((row["topic"], str(row["date"]), bytes(row["body"])) for row in rows)


def files_of(root: str | Path) -> list[str]:
    """The data files of an export."""
    root = Path(root)
    return sorted(str(path.relative_to(root)) for path in root.rglob("batch-*") if "_penstock" not in path.parts)


def bad_rows(spark: SparkSession, spec: Export) -> list[dict[str, Any]]:
    reader = spark.read.json if spec.format == "json" else spark.read.parquet
    return [row.asDict() for row in reader(f"{spec.to}/_bad").orderBy("queue_offset").collect()]


LAKE_SETTINGS = [
    *("--master", "local[2]"),
    *("--conf", "spark.driver.memory=1g"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", f"spark.driver.extraJavaOptions={LIGHT_JAVA}"),
]


def start_lake(lake: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    environment.pop("SPARK_CONF_DIR", None)
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=lake.parent
    )


def finish_lake(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        written, said = process.communicate(timeout=1200)
    finally:
        process.kill()
    return process.returncode, written, said


def lake_command(lake: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.main", "pipeline", "lake", "run", str(lake), *LAKE_SETTINGS, *more]


def table_rows(lake: Path, table: str) -> list[dict[str, Any]]:
    return ds.dataset(lake / "tables" / table, format="parquet").to_table().to_pylist()


def numbered_bodies(count: int) -> list[bytes]:
    return [b"row %d" % number for number in range(count)]


def bodies(home: StoreHome, topic: str = "t") -> list[bytes]:
    """Of all queues of a topic, in the order of the log."""
    with home.open(read_only=True) as store:
        store.catch_up()
        queues = [queue.queue_id for queue in store.queues if queue.topic == topic]
        found = [record for queue in queues for record in home.read_queue(store, topic, queue)]
    return [record.body for record in sorted(found, key=lambda record: record.physical_offset)]


def in_cluster(b: LocalBroker, topic: str = "t") -> dict[str, list[bytes]]:
    """The bodies of a topic by their unique key."""
    b.settle()
    found: dict[str, list[bytes]] = {}
    with PullConsumer("looking", b.namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset, end = 0, consumer.offsets.max_offset(queue)
            while offset < end:
                page = consumer.pull(queue, offset)
                for message in page.messages:
                    found.setdefault(message.msg_id, []).append(message.body)
                offset = page.next_offset
    return found

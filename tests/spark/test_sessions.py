"""The source in SQL, in a Connect session, and on a cluster of separate executors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_rows import sentence
from store_home import StoreHome

import penstock


def test_a_temporary_view_can_be_queried_in_sql(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 4)
    store.close()
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING rocketmq "
        f"OPTIONS (path '{home.path}', subscribe 'T', minPartitions 2)"
    )
    found = spark.sql("SELECT cast(body AS string) b FROM messages WHERE queue_offset > 1 ORDER BY b").collect()
    assert [row.b for row in found] == ["0002", "0003"]


def test_a_table_that_lost_its_options_says_what_to_do(spark: SparkSession, home: StoreHome) -> None:
    with pytest.raises(Exception) as error:
        spark.read.format("rocketmq").option("subscribe", "T").load().count()
    assert sentence(error).startswith("neither path nor namesrv is given; a table made with CREATE TABLE loses")


QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

SCRIPT = """
import sys
from pyspark.sql import SparkSession
spark = {session}.config("spark.sql.shuffle.partitions", "2").getOrCreate()
frame = spark.read.format("rocketmq").option("subscribe", "T").option("minPartitions", "4").load(sys.argv[1])
print("rows", frame.count())
try:
    spark.read.format("rocketmq").option("subscribe", "none").load(sys.argv[1]).count()
except Exception as error:
    print("said", str(error).splitlines()[0])
stream = spark.readStream.format("rocketmq").option("subscribe", "T").option("startingOffsets", "earliest")
rows = stream.load(sys.argv[1]).select("body", "tags", "keys")
copy = rows.writeStream.format("rocketmq").option("topic", "copy").option("path", sys.argv[2])
query = copy.option("checkpointLocation", sys.argv[3]).trigger(availableNow=True).start()
query.awaitTermination()
copied = spark.read.format("rocketmq").option("subscribe", "copy").load(sys.argv[2])
print("copied", copied.count())
spark.stop()
"""


def run(session: str, home: StoreHome, folder: Path) -> str:
    """Runs the script in a process of its own; what it printed."""
    store = home.open()
    for queue_id in range(3):
        home.put_numbered(store, 50, queue_id=queue_id)
    store.close()
    script = folder / "script.py"
    script.write_text(SCRIPT.format(session=session))
    command = [sys.executable, str(script), str(home.path), str(folder / "target"), str(folder / "checkpoint")]
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def expect(printed: str) -> None:
    lines = printed.splitlines()
    assert "rows 150" in lines
    assert any(line.startswith("said ") and "there is no topic 'none'" in line for line in lines), printed
    assert "copied 150" in lines


def test_it_works_in_a_connect_session(home: StoreHome, tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="Spark Connect needs grpcio")
    session = (
        'SparkSession.builder.remote("local[2]").config("spark.python.unix.domain.socket.enabled", "true")'
        f'.config("spark.driver.extraJavaOptions", "{QUICK}")'
    )
    expect(run(session, home, tmp_path))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone master and two workers of one core each, on free ports of loopback."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    log = (tmp_path / "cluster.log").open("wb")
    environment = {**os.environ, "SPARK_HOME": str(Path(pyspark.__file__).parent)}
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK
    del environment["SPARK_CONF_DIR"]  # the master is not to be quiet: it says where it listens
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        started.append(subprocess.Popen([launcher, *arguments], stdout=log, stderr=log, env=environment))

    here = ["--host", "127.0.0.1", "--webui-port", "0"]
    try:
        start("org.apache.spark.deploy.master.Master", *here, "--port", "0")
        master = wait_for_master(tmp_path / "cluster.log", started[0])
        for number in range(2):
            folder = str(tmp_path / f"work{number}")
            start("org.apache.spark.deploy.worker.Worker", *here, "-c", "1", "-m", "768m", "-d", folder, master)
        yield master
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(30)
        log.close()


def wait_for_master(log: Path, process: subprocess.Popen[bytes]) -> str:
    """The address that the master chose."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("spark://127.0.0.1:"):
                return word.rstrip(".,")
        time.sleep(0.1)
    raise AssertionError(log.read_text(errors="replace"))


def test_it_works_on_a_cluster_of_separate_executors(cluster: str, home: StoreHome, tmp_path: Path) -> None:
    session = (
        f'SparkSession.builder.master("{cluster}").config("spark.driver.host", "127.0.0.1")'
        '.config("spark.driver.bindAddress", "127.0.0.1").config("spark.executor.memory", "512m")'
        '.config("spark.driver.memory", "512m").config("spark.ui.enabled", "false")'
        f'.config("spark.driver.extraJavaOptions", "{QUICK}").config("spark.executor.extraJavaOptions", "{QUICK}")'
        '.config("spark.python.unix.domain.socket.enabled", "true")'
    )
    expect(run(session, home, tmp_path))

"""Runs commands one after the other in one Spark session: a script, for a process of its own.

    python run_commands.py MASTER COMMANDS

COMMANDS is a JSON list of argument lists for `penstock`; `source STORE TARGET CHECKPOINT` reads and writes with the
source itself. A master `connect` is a Connect server on this machine. Prints a JSON list of [exit status, output].
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

from pyspark.sql import SparkSession

from penstock.cli.main import main
from penstock.pipeline.session import LIGHT_JAVA, start_connect_session, start_session

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": LIGHT_JAVA,
    "spark.executor.extraJavaOptions": LIGHT_JAVA,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
}


def session(master: str) -> SparkSession:
    if master != "connect":
        return start_session("commands", master, SETTINGS)
    return start_connect_session("commands", "local[2]", SETTINGS)


def use_source(spark: SparkSession, store: str, target: str, checkpoint: str) -> int:
    """A batch, an error, and a stream into another store."""
    frame = spark.read.format("rocketmq").option("subscribe", "T").option("minPartitions", "4").load(store)
    print("rows", frame.count())
    try:
        spark.read.format("rocketmq").option("subscribe", "none").load(store).count()
    except Exception as error:
        print("said", str(error).splitlines()[0])
    stream = spark.readStream.format("rocketmq").option("subscribe", "T").option("startingOffsets", "earliest")
    rows = stream.load(store).select("body", "tags", "keys")
    copy = rows.writeStream.format("rocketmq").option("topic", "copy").option("path", target)
    query = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print("copied", spark.read.format("rocketmq").option("subscribe", "copy").load(target).count())
    return 0


def run(spark: SparkSession, arguments: list[str]) -> tuple[int, str]:
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        status = use_source(spark, *arguments[1:]) if arguments[0] == "source" else main(arguments)
    return status, written.getvalue()


if __name__ == "__main__":
    running = session(sys.argv[1])
    results = [run(running, arguments) for arguments in json.loads(sys.argv[2])]
    running.stop()
    print(json.dumps(results))

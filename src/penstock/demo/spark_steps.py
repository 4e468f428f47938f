"""The demo's steps that run on Spark: a streaming query over the files of a running broker, and two batch jobs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.demo.shop import TOPICS, Scene, check
from penstock.demo.steps import Step, audit_summary
from penstock.demo.steps import usage as usage_here
from penstock.format.constants import UNIQ_KEY
from penstock.pipeline.session import LIGHT_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_SMALL: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": LIGHT_JAVA,
}
"""Spark settings that make the session start sooner, and large queries slower."""
_TRIES: Final = 3
_WORKER_TIMEOUT: Final = "Python worker failed to connect back"
_MORE: Final = 50
"""The number of orders sent between the two runs of the streaming query."""


def stream(scene: Scene) -> str:
    from penstock.pipeline.session import start_session

    scene.progress("starting Spark", 0, 3)
    spark = scene.spark = start_session("penstock demo", "local[2]", _SMALL)
    scene.opened.callback(spark.stop)
    scene.progress("streaming the existing messages", 1, 3)
    first = _run_query(scene, spark)
    assert scene.shop is not None
    for sale in scene.shop.sell(scene.orders, _MORE):
        sale.result()
    scene.progress("streaming the new messages", 2, 3)
    second = _run_query(scene, spark)
    check(second >= 2 * _MORE, "the second run missed messages sent after the first")
    rows = spark.read.parquet(str(scene.folder / "table")).collect()
    positions = {(row.topic, row.queue_id, row.queue_offset) for row in rows}
    check(len(rows) == len(positions) == first + second, "a message is missing in the table, or duplicated")
    lost = {key for topic in scene.ledger.acked.values() for key in topic} - {row.unique_key for row in rows}
    check(not lost, f"{len(lost)} acknowledged messages are missing in the stream")
    counted = Counter((row.topic, row.tags) for row in rows)
    scene.streamed = sorted((topic, tag, count) for (topic, tag), count in counted.items())
    scene.figures.update(first=first, second=second)
    return f"{first:,} messages in the table, then {second:,} new ones; each exactly once"


def _run_query(scene: Scene, spark: SparkSession) -> int:
    """Runs the streaming query until it has read all existing messages. Returns the number of messages read.

    On a very busy machine Spark may time out while it waits for its Python worker. The query then resumes from its
    checkpoint.
    """
    from pyspark.errors import StreamingQueryException

    count = 0
    for tries_left in reversed(range(_TRIES)):
        query = _start(scene, spark)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _WORKER_TIMEOUT not in str(error) or not tries_left:
                raise
        count += sum(int(progress["numInputRows"]) for progress in query.recentProgress)
        if query.exception() is None:
            break
    return count


def _start(scene: Scene, spark: SparkSession) -> StreamingQuery:
    messages = (
        spark.readStream.format("rocketmq")
        .option("subscribe", ",".join(TOPICS))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "1000000")
        .option("columns", "topic,queue_id,queue_offset,tags,properties")
        .load(str(scene.store))
        .selectExpr("topic", "queue_id", "queue_offset", "tags", f"properties['{UNIQ_KEY}'] AS unique_key")
    )
    return (
        messages.writeStream.format("parquet")
        .option("path", str(scene.folder / "table"))
        .option("checkpointLocation", str(scene.folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def verify(scene: Scene) -> str:
    from penstock.pipeline.jobs.job_input import JobInput
    from penstock.pipeline.jobs.verify import verify as job

    (result,) = job(scene.spark, JobInput(stores=(str(scene.store),))).values()
    check(result.report is not None, result.problem)
    assert result.report is not None
    return audit_summary(scene, result.report)


def usage(scene: Scene) -> str:
    from penstock.pipeline.jobs.job_input import JobInput
    from penstock.pipeline.jobs.usage import usage as job

    counted = job(scene.spark, JobInput(stores=(str(scene.store),)))
    summary = usage_here(scene)
    assert scene.usage is not None
    check(counted.rows("topic") == scene.usage.rows("topic"), "Spark and the in-process count differ")
    return summary


STREAM: Final = Step("stream", "A streaming query on Spark over the live broker's files", stream)
LAST: Final = (
    Step("verify", "Check every record, unit and key of the store, on Spark", verify),
    Step("usage", "Measure disk usage, on Spark", usage),
)

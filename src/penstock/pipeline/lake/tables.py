"""The queries of a lake's tables. The files of a lake call these functions in the session of a run. Needs pyspark."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.jobs.lag import lag, lag_frame
from penstock.pipeline.lake.lake_folder import Lake, LakeTable
from penstock.pipeline.options import Options
from penstock.pipeline.source import known_columns

# Choose columns with `select`, never `drop`: under Connect `drop` resolves the table at once, before it may exist.
_RAW: Final = "messages"
_CORRUPT: Final = "_corrupt"
_COLUMNS: Final = tuple(name for name in known_columns(Options()) if name != _CORRUPT)
_USER_TOPICS: Final = "(?i)(?!SCHEDULE_TOPIC_XXXX$|RMQ_SYS_|TRANS_CHECK_MAX_TIME_TOPIC$|OFFSET_MOVED_EVENT$).*"
_MILLISECONDS: Final = "unix_millis(store_timestamp) - unix_millis(born_timestamp)"


def messages(lake: Lake) -> DataFrame:
    """Returns a stream of all messages of user topics, from the oldest on. Includes rows for unreadable messages."""
    options = {
        "subscribePattern": _USER_TOPICS,
        "startingOffsets": "earliest",
        "failOnDataLoss": str(lake.fail_on_data_loss).lower(),
        "maxBytesPerTrigger": "1g",
        "mode": "PERMISSIVE",
        "columns": ",".join((*_COLUMNS, _CORRUPT)),
    }
    options |= {"path": lake.store} if lake.store else {"namesrv": lake.namesrv}
    if lake.config:
        options["config"] = lake.config
    return SparkSession.active().readStream.format("rocketmq").options(**options).load()


def decoded(topic: LakeTable) -> DataFrame:
    """Returns a stream of one topic's readable messages. Unless `decode` is none, `value` replaces `body`.

    `value` is the decoded body. Messages that cannot be decoded are left out.
    """
    rows = SparkSession.active().readStream.table(_RAW).where(_of(topic))
    if topic.decode == "none":
        return rows.select(*_COLUMNS)
    rest = [name for name in _COLUMNS if name != "body"]
    return rows.where(_value(topic).isNotNull()).select(*rest, _value(topic).alias("value"))


def bad_messages(lake: Lake) -> DataFrame:
    """Returns a stream of the messages that cannot be read or decoded, with the `reason`. No topic's table has them."""
    reason = f.col(_CORRUPT)
    for topic in lake.topics:
        if topic.decode != "none":
            text = f.lit(f"the body is not {topic.decode}" + (f" with {topic.schema}" if topic.schema else ""))
            reason = f.coalesce(reason, f.when(_of(topic) & _value(topic).isNull(), text))
    rows = SparkSession.active().readStream.table(_RAW)
    return rows.where(reason.isNotNull()).select(*_COLUMNS, reason.alias("reason"))


def _of(topic: LakeTable) -> Column:
    return (f.col("topic") == topic.topic) & f.col(_CORRUPT).isNull()


def _value(topic: LakeTable) -> Column:
    """Returns the decoded body. Its value is null if the body cannot be decoded."""
    text = f.when(f.is_valid_utf8(f.col("body").cast("string")), f.col("body").cast("string"))
    if topic.decode == "text":
        return text
    if not topic.schema:
        return f.when(f.try_parse_json(text).isNotNull(), text)
    # Spark puts a body that does not fit into an extra column, which is dropped again.
    parsed = f.from_json(text, f"{topic.schema}, {_CORRUPT} STRING", {"columnNameOfCorruptRecord": _CORRUPT})
    return f.when(parsed[_CORRUPT].isNull() & parsed.isNotNull(), parsed.dropFields(_CORRUPT))


def usage() -> DataFrame:
    """Returns the number of messages and their bytes in the log, by topic, broker, queue and day (UTC)."""
    rows = SparkSession.active().read.table(_RAW).where(f"{_CORRUPT} IS NULL")
    return rows.groupBy("topic", "broker", "queue_id", f.to_date("store_timestamp").alias("day")).agg(
        f.count("*").alias("messages"),
        f.sum("store_size").alias("bytes"),
        f.min("store_timestamp").alias("first"),
        f.max("store_timestamp").alias("last"),
    )


def latency() -> DataFrame:
    """Returns percentiles of the time in ms from born timestamp to store timestamp, by topic and hour.

    The times include any difference between the clocks of producer and broker.
    """
    rows = SparkSession.active().read.table(_RAW).where(f"{_CORRUPT} IS NULL")
    shares = [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)]
    figures = [f.expr(f"percentile_approx({_MILLISECONDS}, {share})").alias(f"{name}_ms") for name, share in shares]
    hour = f.date_trunc("hour", f.col("store_timestamp")).alias("hour")
    return rows.groupBy("topic", hour).agg(
        f.count("*").alias("messages"), *figures, f.max(f.expr(_MILLISECONDS)).alias("max_ms")
    )


def consumer_lag(lake: Lake) -> DataFrame:
    """Returns the current lag of all consumer groups."""
    return lag_frame(SparkSession.active(), lag(lake.job_input))

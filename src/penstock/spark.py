"""For programs with Spark queries over `format("rocketmq")`: tables that read what a query needs, and lag of streams.

Needs pyspark.
"""

from penstock.pipeline.spark_table_with_pushdown import MessageGroups, MessageTable, table
from penstock.pipeline.stream_lag import StreamLag, TopicLag, lag

__all__ = ["MessageGroups", "MessageTable", "StreamLag", "TopicLag", "lag", "table"]

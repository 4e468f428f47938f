"""For programs that run Spark queries over `format("rocketmq")`: how far streams are behind. Needs pyspark."""

from penstock.pipeline.stream_lag import StreamLag, TopicLag, lag

__all__ = ["StreamLag", "TopicLag", "lag"]

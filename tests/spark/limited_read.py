"""A program that reads a few rows of a store with Spark, twice: `python limited_read.py STORE SOCKETS`.

A partition is one batch at first, so that Spark leaves when it has been read, and then many, so that Spark leaves in
the middle.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.unix.domain.socket.enabled", sys.argv[2])
        .getOrCreate()
    )
    reader = spark.read.format("rocketmq").option("subscribe", "T")
    for _ in range(2):
        print("rows:", len(reader.load(sys.argv[1]).limit(3).collect()), flush=True)
        reader = reader.option("minPartitions", "1")
    print("all:", reader.load(sys.argv[1]).count())
    print("END", file=sys.stderr, flush=True)  # what Spark's processes print as they are stopped is Spark's own
    spark.stop()

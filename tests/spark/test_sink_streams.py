"""`writeStream.format("rocketmq")`: each batch once, though it is replayed; and into a cluster with keys that stay."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from support.spark import bodies, in_cluster, numbered_bodies, sentence
from support.stores import StoreHome

from penstock.store import Message
from penstock.testing import broker


def add_rows(folder: Path, start: int, stop: int) -> None:
    """A file for the stream to read, in the order of their times: of two that were made in one tick it takes either."""
    import pyarrow.parquet as pq

    folder.mkdir(exist_ok=True)
    rows = pa.table({"body": [f"row {number}" for number in range(start, stop)]})
    file = folder / f"{start:06d}.parquet"
    pq.write_table(rows, file)
    os.utime(file, (1_700_000_000 + start, 1_700_000_000 + start))


def run(spark: SparkSession, source: Path, checkpoint: Path, **options: str) -> None:
    """Writes what is there, batch by batch of one file each, and ends."""
    rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(source))
    query = (
        rows.writeStream.format("rocketmq")
        .options(topic="t", **options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Makes Spark believe that it died before it knew that a batch was written: it is replayed."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.smoke
def test_a_replayed_batch_is_stored_once(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    with home.open() as made:
        assert made.put(Message("before", b"")).ok
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    add_rows(source, 0, 40)
    add_rows(source, 40, 50)
    run(spark, source, checkpoint, path=str(home.path))
    assert bodies(home) == numbered_bodies(50)
    forget_commit(checkpoint, 1)
    add_rows(source, 50, 60)
    run(spark, source, checkpoint, path=str(home.path))
    assert bodies(home) == numbered_bodies(60)


def test_a_batch_that_is_replayed_into_a_cluster_has_the_same_keys(spark: SparkSession, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    add_rows(source, 0, 40)
    with broker({"t": 4}) as b:
        run(spark, source, checkpoint, namesrv=b.namesrv)
        first = in_cluster(b)
        assert sorted(body for (body,) in first.values()) == sorted(numbered_bodies(40))
        forget_commit(checkpoint, 0)
        run(spark, source, checkpoint, namesrv=b.namesrv)
        assert in_cluster(b) == {key: [body, body] for key, (body,) in first.items()}


def test_a_named_write_into_a_cluster_has_the_same_keys_whenever_it_runs(spark: SparkSession) -> None:
    rows: DataFrame = spark.range(0, 20, 1, 2).selectExpr("concat('row ', id) value", "cast(id as string) key")
    with broker({"t": 4}) as b:
        for _ in range(2):
            rows.write.format("rocketmq").mode("append").options(topic="t", namesrv=b.namesrv, writeId="w").save()
        found = in_cluster(b)
        assert len(found) == 20
        assert all(len(set(each)) == 1 and len(each) == 2 for each in found.values())


def test_a_stream_that_would_feed_itself_is_refused(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    with home.open() as made:
        assert made.put(Message("t", b"first")).ok
    stream = spark.readStream.format("rocketmq").options(subscribe="t", startingOffsets="earliest", schema="kafka")
    rows = stream.load(str(home.path))
    for number, written in enumerate((rows.select("value"), rows.select("value", "topic"))):
        writer = written.writeStream.format("rocketmq").option("path", str(home.path))
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
        if number == 0:
            writer = writer.option("topic", "t")
        with pytest.raises(Exception) as error:
            writer.trigger(availableNow=True).start().awaitTermination()
        assert "topic 't' is one that this query reads" in sentence(error)
    assert bodies(home) == [b"first"]


def test_an_aggregate_is_written_in_update_mode_by_batches_with_a_name(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    """The recipe of the documents. A batch that is run again is stored once."""
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"
    with home.open() as made:
        assert made.put(Message("before", b"")).ok

    def write(batch: DataFrame, number: int) -> None:
        rows = batch.selectExpr("concat(parity, '=', count) AS value", "parity AS key")
        for _ in range(2):
            named = rows.write.format("rocketmq").mode("append").option("writeId", f"parities-{number}")
            named.option("topic", "t").save(str(home.path))

    for start in (0, 10):
        add_rows(source, start, start + 10)
        rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(source))
        counts = rows.selectExpr("substring(body, 5) % 2 = 0 AS even").selectExpr("cast(even AS string) AS parity")
        query = counts.groupBy("parity").count().writeStream.outputMode("update").foreachBatch(write)
        query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    assert sorted(bodies(home)) == [b"false=10", b"false=5", b"true=10", b"true=5"]


def test_rows_in_kafkas_form_are_copied_with_keys_headers_and_partitions(spark: SparkSession, home: StoreHome) -> None:
    with home.open() as made:
        for number in range(8):
            fields = {"keys": (f"k{number}",), "tags": "x", "properties": {"a": "b"}, "queue_id": number % 4}
            assert made.put(Message("from", b"%d" % number, **fields)).ok
    rows = spark.read.format("rocketmq").options(subscribe="from", schema="kafka").load(str(home.path))
    copied = rows.select("key", "value", "topic", "partition", "headers")
    copied.write.format("rocketmq").mode("append").option("topic", "to").save(str(home.path))
    columns = "queue_id,body,keys,tags,properties"
    both = [
        sorted(
            spark.read.format("rocketmq").options(subscribe=topic, columns=columns).load(str(home.path)).collect(),
            key=lambda row: bytes(row.body),
        )
        for topic in ("from", "to")
    ]
    assert len(both[0]) == 8
    for before, after in zip(*both, strict=True):
        names = ("queue_id", "body", "keys", "tags")
        assert [after[name] for name in names] == [before[name] for name in names]
    assert all(row.properties["a"] == "b" for row in both[1])

"""Spark reads from clusters: ours, and Java's. What tasks do one by one is tested below Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.loopback import free_port
from support.peers import JAVA, JavaServed, PeerError, build, make_orders, until_stored
from support.pipeline import cluster_source, send
from support.spark import sentence

from penstock.client.message import Message
from penstock.client.sync import Admin, Producer
from penstock.testing import LocalBroker, broker


@pytest.fixture
def b() -> Iterator[LocalBroker]:
    with broker({"orders": 4}) as running:
        yield running


def load(spark: SparkSession, namesrv: str, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(namesrv=namesrv, **options).load()


def orders(count: int) -> list[Message]:
    return [
        Message("orders", b"%d " % number * 1000, tags="even" if number % 2 == 0 else "odd", keys=f"k{number}")
        for number in range(count)
    ]


@pytest.mark.smoke
def test_a_batch_reads_a_cluster(spark: SparkSession, b: LocalBroker) -> None:
    send(b, orders(300))
    found = load(spark, b.namesrv, subscribe="orders").toArrow().to_pylist()
    assert sorted(row["body"] for row in found) == sorted(b"%d " % number * 1000 for number in range(300))
    assert {row["broker"] for row in found} == {"broker-a"}
    chosen = load(spark, b.namesrv, subscribePattern="ord.*", tags="odd", columns="keys,tags").toArrow().to_pylist()
    assert sorted(row["keys"][0] for row in chosen) == sorted(f"k{number}" for number in range(1, 300, 2))


def test_what_is_wrong_with_a_cluster_is_one_sentence(spark: SparkSession, b: LocalBroker) -> None:
    with pytest.raises(Exception, match="there is no topic 'order'") as caught:
        load(spark, b.namesrv, subscribe="order").count()
    assert "it has orders" in sentence(caught)
    unreachable = f"127.0.0.1:{free_port()}"
    with pytest.raises(Exception, match="Cannot reach name server") as caught:
        load(spark, unreachable, subscribe="orders").count()
    assert unreachable in sentence(caught)


def test_a_stream_follows_a_cluster_and_mirrors_its_progress(
    spark: SparkSession, b: LocalBroker, tmp_path: Path
) -> None:
    rows = 0
    for _ in range(3):
        send(b, orders(100))
        query = (
            spark.readStream.format("rocketmq")
            .options(namesrv=b.namesrv, subscribe="orders", startingOffsets="earliest", progressGroup="lake")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .format("parquet")
            .start(str(tmp_path / "table"))
        )
        query.awaitTermination()
        rows += 100
        table = spark.read.parquet(str(tmp_path / "table"))
        assert (table.count(), table.select("queue_id", "queue_offset").distinct().count()) == (rows, rows)
    place = cluster_source(b)
    try:
        mirrored = [place.group_offset("lake", queue) or 0 for queue in place.queues(["orders"])]
    finally:
        place.close()
    assert 200 <= sum(mirrored) <= 300  # Spark tells of a batch when the next one begins


@pytest.mark.java
@pytest.mark.timeout(240)
def test_a_batch_reads_from_javas_broker(spark: SparkSession, tmp_path: Path) -> None:
    try:
        jars = build(JAVA / "broker")
    except PeerError as reason:
        pytest.skip(str(reason))
    with (
        JavaServed(tmp_path / "home", tmp_path / "store", jars, {"mappedFileSizeCommitLog": 10 << 20}) as served,
        Admin(served.namesrv) as admin,
        Producer("PID", served.namesrv) as producer,
    ):
        make_orders(admin, producer)
        for message in orders(200):
            producer.send(message)
        until_stored(admin, 200)
        found = load(spark, served.namesrv, subscribe="orders").toArrow().to_pylist()
    assert sorted(row["body"] for row in found) == sorted(b"%d " % number * 1000 for number in range(200))

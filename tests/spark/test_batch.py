"""`spark.read.format("rocketmq")`: what Spark returns is what the store returns, to the field."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
from support import TESTS
from support.arrow import read_log
from support.effort import chosen_seed
from support.spark import QUEUE_ORDER, read, rows, sentence, stored
from support.stores import StoreHome

from penstock.store import Message, MessageStore

WIDE = "[1050::5:600:300c:326b]:10911"


def put_all_kinds(store: MessageStore) -> None:
    """Messages with everything that a message can have, in several topics and queues."""
    for message in (
        Message("orders", b"plain"),
        Message("orders", b"", keys=("k1", "ключ"), tags="中文", properties={"a": "b", "x": "y"}, queue_id=1),
        Message("orders", b"x" * 5000, keys="a b", flag=-5, born_timestamp=1, born_host=WIDE, queue_id=1),
        Message("orders", b"w", born_host=WIDE, store_host=WIDE, reconsume_times=3, queue_id=2),
        Message("payments", b"prepared", sys_flag=0x4),
        Message("payments", b"committed", sys_flag=0x8, prepared_transaction_offset=77),
        Message("payments", b"rolled back", sys_flag=0xC),
    ):
        assert store.put(message).ok


@pytest.mark.smoke
def test_every_column_of_every_kind_of_message_is_that_of_the_store(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    put_all_kinds(store)
    expected = stored(home, store, "orders", "payments")
    log = [{**row, "broker": "store"} for row in read_log(store)]
    store.close()
    assert rows(read(spark, home, subscribe="orders,payments"), *QUEUE_ORDER) == expected
    assert rows(read(spark, home, subscribePattern="o.*"), *QUEUE_ORDER) == expected[:4]
    assert rows(read(spark, home, order="log", minPartitions=3), "physical_offset") == log
    assert [row["body"] for row in log] != [row["body"] for row in expected], "the log holds what no queue does"


@pytest.mark.smoke
def test_any_split_into_partitions_gives_the_same_rows(spark: SparkSession, home: StoreHome) -> None:
    rng = random.Random(chosen_seed())
    store = home.open(mapped_file_size_commit_log=16_384, mapped_file_size_consume_queue=20 * 64)
    for number in range(600):
        body = rng.randbytes(rng.randrange(200))
        assert store.put(Message("T", body, queue_id=number % 3, keys=(f"k{number}",))).ok
    expected, log_rows = stored(home, store, "T"), read_log(store)
    store.close()
    for options in (
        {"minPartitions": rng.randrange(2, 9)},
        {"maxRecordsPerPartition": rng.randrange(60, 300)},
        {"maxBytesPerPartition": rng.randrange(9_000, 60_000)},
    ):
        frame = read(spark, home, subscribe="T", **options)
        assert rows(frame, *QUEUE_ORDER) == expected, options
        assert frame.rdd.getNumPartitions() >= min(options.get("minPartitions", 2), 9)
        if "maxRecordsPerPartition" not in options:
            by_log = read(spark, home, order="log", columns="physical_offset,body", **options)
            found = [(row["physical_offset"], row["body"]) for row in rows(by_log, "physical_offset")]
            assert found == [(row["physical_offset"], row["body"]) for row in log_rows], options


@pytest.mark.smoke
def test_offsets_times_tags_and_keys_choose_rows(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    for number in range(40):
        home.clock.now += 1000
        tags = "red" if number % 4 else "green"
        assert store.put(Message("T", b"%d" % number, tags=tags, keys=(f"k{number}",), queue_id=number % 2)).ok
    start = home.clock.now - 39_000
    store.close()

    def numbers(**options: Any) -> list[int]:
        chosen = {} if "assign" in options else {"subscribe": "T"}
        return sorted(int(row.body) for row in read(spark, home, columns="body", **chosen, **options).collect())

    assert numbers(startingOffsets='{"T": {"0": 15, "1": -1}}') == [30, 32, 34, 36, 38]
    assert numbers(endingOffsets='{"T": {"store": {"0": 2, "1": 0}}}') == [0, 2]
    assert numbers(startingTimestamp=start + 35_000) == [35, 36, 37, 38, 39]
    assert numbers(endingTimestamp=start + 2500) == [0, 1, 2]
    assert numbers(assign='{"T": [1]}') == list(range(1, 40, 2))
    assert numbers(tags="green") == list(range(0, 40, 4))
    assert numbers(tags="green || red", startingOffsets='{"T": {"0": 19, "1": 19}}') == [38, 39]
    assert numbers(keys="k7,k8,none") == [7, 8]
    assert numbers(keys="k7,k8", endingOffsets='{"T": {"0": 4, "1": 10}}') == [7]


def test_compressed_bodies_come_unpacked_or_as_they_are(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    packed = zlib.compress(b"a long text " * 50)
    store.put(Message("T", packed, sys_flag=0x1))
    store.put(Message("T", b"not zlib at all", sys_flag=0x1))
    store.close()
    names = "queue_offset,body,_corrupt"
    first, second = rows(read(spark, home, subscribe="T", columns=names), "queue_offset")
    assert (first["body"], first["_corrupt"]) == (b"a long text " * 50, None)
    assert second["body"] == b"not zlib at all"
    assert "cannot be unpacked" in second["_corrupt"]
    assert [row.body for row in read(spark, home, subscribe="T", decompress="false", columns="body").collect()] == [
        packed,
        b"not zlib at all",
    ]
    assert read(spark, home, subscribe="T", mode="DROPMALFORMED").count() == 1


@pytest.mark.smoke
def test_damage_is_a_row_an_error_or_left_out(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 10)
    place = store.queues.find("T", 0).unit(4)[0]  # type: ignore[union-attr]
    store.close()
    home.flip(home.log_files()[0], place + 90)
    damaged = read(spark, home, subscribe="T", columns="queue_offset,body,_corrupt")
    found = {row.queue_offset: (row.body, row._corrupt) for row in damaged.collect()}
    assert len(found) == 10
    assert found[4] == (None, "the record of queue offset 4 is damaged")
    assert all(found[number] == (b"%04d" % number, None) for number in range(10) if number != 4)
    assert read(spark, home, subscribe="T", mode="DROPMALFORMED").count() == 9
    with pytest.raises(Exception) as error:
        read(spark, home, subscribe="T", mode="FAILFAST").count()
    assert "queue offset 4 is damaged; mode=FAILFAST ends the read" in str(error.value)
    by_log = read(spark, home, order="log", columns="physical_offset,store_size,body,_corrupt").collect()
    size = next(row.store_size for row in by_log if row.body is not None)
    assert [(row.physical_offset, row._corrupt) for row in by_log if row.body is None] == [
        (place, f"{size} bytes at {place} of the log hold no valid record")
    ]


def test_kafkas_columns_have_kafkas_meaning(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"v", keys=("a", "b"), tags="t", queue_id=3))
    store.put(Message("T", b"w", queue_id=3))
    store.close()
    frame = read(spark, home, subscribe="T", schema="kafka")
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    first, second = rows(frame, "offset")
    assert (first["key"], first["value"], first["partition"], first["offset"]) == (b"a b", b"v", 3, 0)
    assert {header["key"]: header["value"] for header in first["headers"]} == {"KEYS": b"a b", "TAGS": b"t"}
    assert (second["key"], second["timestampType"], second["headers"]) == (None, 1, None)
    assert first["timestamp"].timestamp() * 1000 == home.clock.now
    without = read(spark, home, subscribe="T", schema="kafka", includeBody="false")
    assert "value" not in without.columns
    assert without.count() == 2


def test_only_the_columns_asked_for_are_read(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 3)
    store.close()
    assert read(spark, home, subscribe="T", columns="body,topic").columns == ["body", "topic"]
    assert "body" not in read(spark, home, subscribe="T", includeBody="false").columns
    reader = spark.read.format("rocketmq").option("subscribe", "T")
    chosen = reader.schema("queue_offset bigint, keys array<string>").load(str(home.path))
    assert rows(chosen, "queue_offset") == [{"queue_offset": n, "keys": [f"k{n}"]} for n in range(3)]
    for schema, expected in (
        ("bodi binary", "the schema has a column 'bodi'; there are topic, broker"),
        ("body string", "the schema has string for column 'body', which must be binary"),
    ):
        with pytest.raises(Exception) as error:
            reader.schema(schema).load(str(home.path)).count()
        assert sentence(error).startswith(expected)


def test_a_frame_is_a_snapshot_and_loading_again_shows_what_came(spark: SparkSession, home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 5)
    frame = read(spark, home, subscribe="T")
    assert frame.count() == 5
    home.put_numbered(store, 3)
    store.catch_up()
    assert frame.count() == 5
    assert read(spark, home, subscribe="T").count() == 8, "a store that is being written to can be read"


def test_several_stores_are_told_apart_by_the_column_broker(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        each = StoreHome(tmp_path / name)
        store = each.open()
        each.put_numbered(store, 3 if name == "broker-a" else 4)
        store.close()
    frame = read(spark, f"{tmp_path}/broker-*", subscribe="T")
    assert {row.broker: row["count"] for row in frame.groupBy("broker").count().collect()} == {
        "broker-a": 3,
        "broker-b": 4,
    }
    folder_of_stores = read(spark, str(tmp_path), subscribe="T")
    assert sorted(row.broker for row in folder_of_stores.collect()) == ["broker-a"] * 3 + ["broker-b"] * 4
    listed = spark.read.format("rocketmq").option("subscribe", "T").load([str(tmp_path / "broker-a")])
    assert listed.count() == 3
    offsets = '{"T": {"broker-a": {"0": 2}, "broker-b": {"0": 1}}}'
    assert read(spark, f"{tmp_path}/broker-*", subscribe="T", startingOffsets=offsets).count() == 4


def test_spark_s_own_filters_return_the_right_rows(spark: SparkSession, home: StoreHome) -> None:
    """Spark 4.3 mixes up pushed filters of one frame: as long as it does, nothing may be pushed."""
    store = home.open()
    home.put_numbered(store, 10)
    store.close()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, home, subscribe="T")
        both = frame.where("queue_offset = 1").union(frame.where("queue_offset = 2"))
        assert sorted(row.queue_offset for row in both.collect()) == [1, 2]
        assert frame.where(col("queue_offset") == 3).count() == 1
        assert frame.count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_store_that_is_written_at_full_speed_is_read_without_gaps(spark: SparkSession, tmp_path: Path) -> None:
    writer = TESTS / "support" / "full_speed_writer.py"
    folder = tmp_path / "store"
    with subprocess.Popen([sys.executable, str(writer), str(folder), "60000"]) as process:
        counts = []
        while process.poll() is None or not counts:
            if not (folder / "consumequeue" / "even").is_dir():
                continue
            offsets: dict[int, list[int]] = {}
            frame = read(spark, str(folder), subscribePattern="even", columns="queue_id,queue_offset", mode="FAILFAST")
            for row in frame.collect():
                offsets.setdefault(row.queue_id, []).append(row.queue_offset)
            assert all(sorted(found) == list(range(len(found))) for found in offsets.values())
            counts.append(sum(map(len, offsets.values())))
    assert process.returncode == 0
    assert counts == sorted(counts)
    assert read(spark, str(folder), subscribe="even,odd", columns="queue_id").count() >= 60_000

"""`spark.readStream.format("rocketmq")`: each message once in the output, whatever is stopped and restarted when."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.effort import chosen_seed
from support.spark import sentence
from support.stores import StoreHome, eventually

from penstock.store import Message, MessageStore


class Table:
    """A streaming query that appends to a table, and that can be stopped and started again."""

    def __init__(self, spark: SparkSession, home: StoreHome, folder: Path, **options: Any) -> None:
        self.spark = spark
        self.path = home.path
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"
        self.options = {"subscribe": "T", "startingOffsets": "earliest", "columns": "queue_id,queue_offset,body"}
        self.options |= {name: str(value) for name, value in options.items()}

    def start(self, **trigger: Any) -> Any:
        stream = self.spark.readStream.format("rocketmq").options(**self.options).load(str(self.path))
        writer = stream.writeStream.format("parquet").option("path", str(self.out))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start() if trigger else writer.start()

    def drain(self) -> list[int]:
        """Takes what is there; the rows of each micro-batch."""
        query = self.start(availableNow=True)
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    def frame(self) -> DataFrame:
        return self.spark.read.schema("queue_id int, queue_offset bigint, body binary").parquet(str(self.out))

    def rows(self) -> list[tuple[int, int, bytes]]:
        return sorted((row.queue_id, row.queue_offset, bytes(row.body)) for row in self.frame().collect())

    def batches(self) -> int:
        return len(list((self.checkpoint / "commits").glob("[0-9]*")))


def everything(home: StoreHome, store: MessageStore) -> list[tuple[int, int, bytes]]:
    store.catch_up()
    return sorted(
        (record.queue_id, record.queue_offset, record.body)
        for queue in store.queues
        for record in home.read_queue(store, queue.topic, queue.queue_id)
    )


@pytest.mark.smoke
def test_random_traffic_and_random_stops_leave_each_message_once(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    rng = random.Random(chosen_seed())
    store = home.open(mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=20 * 100)
    home.put_numbered(store, 5)
    store.catch_up()
    table = Table(spark, home, tmp_path, maxOffsetsPerTrigger=rng.randrange(20, 200))
    for _ in range(3):
        query = table.start()
        for number in range(rng.randrange(1, 200)):
            store.put(Message("T", b"%d" % number, queue_id=rng.randrange(4)))
        eventually(lambda q=query: q.lastProgress is not None or not q.isActive, "a batch begins")  # type: ignore[misc]
        query.stop()
    for number in range(50):
        store.put(Message("T", b"late %d" % number, queue_id=number % 4))
    store.catch_up()
    assert all(count <= int(table.options["maxOffsetsPerTrigger"]) for count in table.drain())
    assert table.rows() == everything(home, store)
    assert table.drain() in ([], [0]), "nothing is left"


def test_a_start_option_counts_for_a_new_query_only_and_is_logged_before_anything_is_read(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    store = home.open()
    home.put_numbered(store, 10)
    store.catch_up()
    table = Table(spark, home, tmp_path, startingOffsets="latest")
    assert sum(table.drain()) == 0
    logged = (table.checkpoint / "offsets" / "0").read_text().splitlines()[-1]
    offsets = json.loads(logged)
    assert offsets.pop("@read")["T"]["store"].keys() == {"0"}
    assert offsets.pop("@store").keys() == {"store"}
    assert offsets.pop("@from") == str(home.path)
    assert offsets == {"T": {"store": {"0": 10}}}
    home.put_numbered(store, 5)
    store.catch_up()
    table.options["startingOffsets"] = "earliest"
    assert sum(table.drain()) == 5
    assert [offset for _, offset, _ in table.rows()] == list(range(10, 15))


def test_limits_hold_and_progress_shows_the_lag(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    store = home.open()
    for queue_id, count in enumerate((90, 9, 1)):
        home.put_numbered(store, count, queue_id=queue_id)
    store.catch_up()
    size = store.log.max_offset // 100
    counted = Table(spark, home, tmp_path / "a", maxOffsetsPerTrigger=40)
    query = counted.start(availableNow=True)
    query.awaitTermination()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [0, 40, 40, 20]
    lag = json.loads(query.recentProgress[1]["sources"][0]["latestOffset"])
    assert lag.pop("@mean").keys() <= {"T"}
    assert lag == {"T": {"store": {"0": 90, "1": 9, "2": 1}}}
    by_bytes = Table(spark, home, tmp_path / "b", maxBytesPerTrigger=size * 30)
    counts = by_bytes.drain()
    assert max(counts) <= 30
    assert sum(counts) == 100


def test_a_stream_waits_for_enough_messages_but_not_for_ever(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    store = home.open()
    home.put_numbered(store, 5)
    store.catch_up()
    patient = Table(spark, home, tmp_path / "a", minOffsetsPerTrigger=20, maxTriggerDelay="1h")
    query = patient.start()
    eventually(lambda: patient.batches() == 1, "the start is logged")
    home.put_numbered(store, 10)
    eventually(lambda: query.status["message"].startswith("Waiting"), "it waits")
    assert patient.batches() == 1
    home.put_numbered(store, 10)
    eventually(lambda: patient.batches() == 2, "there are enough")
    query.stop()
    assert len(patient.rows()) >= 20
    hasty = Table(spark, home, tmp_path / "b", minOffsetsPerTrigger=1000, maxTriggerDelay="1s")
    query = hasty.start()
    eventually(lambda: hasty.batches() == 2, "the delay is over")
    query.stop()
    assert len(hasty.rows()) == 25


@pytest.mark.smoke
def test_a_batch_that_is_run_again_reads_the_same_rows(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    store = home.open()
    home.put_numbered(store, 30)
    home.put_numbered(store, 11, queue_id=1)
    store.catch_up()
    table = Table(spark, home, tmp_path, maxOffsetsPerTrigger=13)
    table.drain()
    before = table.rows()
    last = table.batches() - 1
    # As if the driver had been killed before the last batch was committed; its files are not in the table's log yet.
    for gone in (table.checkpoint / "commits" / str(last), table.out / "_spark_metadata" / str(last)):
        gone.unlink()
        gone.with_name(f".{gone.name}.crc").unlink(missing_ok=True)
    home.put_numbered(store, 20)
    store.catch_up()
    table.drain()
    assert table.rows() == everything(home, store)
    assert set(before) <= set(table.rows())


def test_new_queues_and_topics_are_read_from_their_beginning(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    store = home.open()
    home.put_numbered(store, 3, topic="T1")
    store.catch_up()
    table = Table(spark, home, tmp_path, subscribePattern="T.*", startingOffsets="latest")
    del table.options["subscribe"]
    table.drain()
    home.put_numbered(store, 2, topic="T1", queue_id=1)
    home.put_numbered(store, 4, topic="T2")
    home.put_numbered(store, 5, topic="other")
    store.catch_up()
    assert sum(table.drain()) == 6


def test_messages_that_retention_took_are_an_error_that_names_them_or_passed_over(
    spark: SparkSession, home: StoreHome, tmp_path: Path
) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    home.put_numbered(store, 20)
    store.catch_up()
    table = Table(spark, home, tmp_path)
    table.drain()
    home.put_numbered(store, 200)
    store.close()
    for path in home.log_files()[:3]:
        path.unlink()
    lowest = home.open(mapped_file_size_commit_log=4096).min_offset("T", 0)
    assert lowest > 20
    query = table.start(availableNow=True)
    with pytest.raises(Exception) as error:
        query.awaitTermination()
    assert sentence(error).startswith(f"topic T queue 0 (broker store): messages 20 to {lowest - 1} are gone")
    assert "failOnDataLoss=false" in sentence(error)
    table.options["failOnDataLoss"] = "false"
    table.drain()
    assert [offset for _, offset, _ in table.rows()] == [*range(20), *range(lowest, 220)]


@pytest.mark.rest
@pytest.mark.parametrize("change", ["the topic was deleted and created again", "this is another store than before"])
def test_a_restart_over_other_messages_is_an_error_that_says_why(
    spark: SparkSession, home: StoreHome, tmp_path: Path, change: str
) -> None:
    with home.open() as store:
        home.put_numbered(store, 20)
    table = Table(spark, home, tmp_path)
    table.drain()
    home.clock.now += 1000
    if "store" in change:
        home.path.rename(home.path.with_name("elsewhere"))
    with home.open() as store:
        store.delete_topic("T")
        home.put_numbered(store, 50)
    query = table.start(availableNow=True)
    with pytest.raises(Exception) as error:
        query.awaitTermination()
    assert f"topic T queue 0 (broker store) was read up to 20, and what was read is gone ({change}" in sentence(error)
    assert len(table.rows()) == 20
    table.options["failOnDataLoss"] = "false"
    assert sum(table.drain()) == 50


def test_the_log_can_be_followed_too(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    store = home.open(mapped_file_size_commit_log=8192)
    home.put_numbered(store, 100)
    store.put(Message("T", b"prepared", sys_flag=0x4))
    home.put_numbered(store, 10, topic="U")
    store.catch_up()
    table = Table(spark, home, tmp_path, order="log", maxBytesPerTrigger=3000)
    del table.options["subscribe"]
    counts = table.drain()
    assert len(counts) > 4
    assert sum(counts) == 111
    home.put_numbered(store, 7, topic="U")
    store.catch_up()
    table.drain()
    assert sorted(body for _, _, body in table.rows()) == sorted(
        [b"%04d" % n for n in range(100)] + [b"prepared"] + [b"%04d" % n for n in range(17)]
    )


def test_what_is_wrong_with_a_stream_is_one_sentence(spark: SparkSession, home: StoreHome, tmp_path: Path) -> None:
    store = home.open()
    home.put_numbered(store, 3)
    store.close()
    with pytest.raises(Exception) as error:
        Table(spark, home, tmp_path / "a", subscribe="none").start()
    assert sentence(error) == f"there is no topic 'none' in {home.path}; it has T"
    query = Table(spark, home, tmp_path / "b", startingOffsets="group:unknown").start(availableNow=True)
    with pytest.raises(Exception) as error:
        query.awaitTermination()
    assert (
        sentence(error)
        == "startingOffsets: group 'unknown' has no committed offsets here; give earliest, latest or a time"
    )
    table = Table(spark, home, tmp_path / "c")
    table.drain()
    shutil.rmtree(home.path)
    query_start = table.start
    with pytest.raises(Exception) as error:
        query_start(availableNow=True).awaitTermination()
    assert "there is no store here: no such folder" in sentence(error)

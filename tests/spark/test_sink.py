"""`df.write.format("rocketmq")` into a store: whole, once, with sentences for what cannot be written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from support.spark import bodies, numbered_bodies, sentence
from support.stores import StoreHome

from penstock.store import Message, MessageStore, Settings
from penstock.store.config_files import ConfigFiles
from penstock.store.files.file_io import Files

SCHEMA = (
    "body binary, topic string, tags string, keys array<string>, properties map<string,string>, delay_level int, "
    "queue_id int"
)


def frame(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr("concat('row ', id) body", "cast(id as string) keys")


def write(rows: DataFrame, path: Path, **options: Any) -> None:
    rows.write.format("rocketmq").mode("append").options(**{"defaultTopic": "t", **options}).save(str(path))


@pytest.fixture
def store(home: StoreHome) -> StoreHome:
    """A store of small files, with a message."""
    with home.open() as made:
        assert made.put(Message("before", b"")).ok
    return home


@pytest.mark.smoke
def test_a_data_frame_is_written_with_all_that_its_rows_have(spark: SparkSession, store: StoreHome) -> None:
    values = [
        (bytearray(b"1"), "orders", "paid", ["k1", "k2"], {"a": "b"}, None, 3),
        (bytearray(b"2"), None, None, None, None, 2, None),
        (bytearray(b""), "orders", None, [], {}, 0, None),
    ]
    write(spark.createDataFrame(values, SCHEMA).repartition(1), store.path)
    with store.open(read_only=True) as opened:
        opened.catch_up()
        (first,) = opened.get("orders", 3, 0).messages
        assert (first.body, first.tags, first.keys, first.properties["a"]) == (b"1", "paid", ("k1", "k2"), "b")
        (delayed,) = opened.get("SCHEDULE_TOPIC_XXXX", 1, 0).messages
        assert (delayed.body, delayed.properties["REAL_TOPIC"]) == (b"2", "t")
        assert [record.body for queue in range(8) for record in opened.get("orders", queue, 0).messages] == [b"", b"1"]
    topics = ConfigFiles(Files(), store.path / "config").topics.read().table.topics
    assert {name: topics[name].write_queue_nums for name in ("orders", "t")} == {"orders": 8, "t": 8}


def test_a_new_store_is_made_with_the_settings_of_the_config_option(spark: SparkSession, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    sizes = (
        "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\nmaxHashSlotNum=5000\nmaxIndexNum=20000\n"
    )
    conf.write_text(sizes + "defaultTopicQueueNums=2\n")
    write(frame(spark, 10), tmp_path / "new", config=conf)
    assert [path.stat().st_size for path in (tmp_path / "new" / "commitlog").iterdir()] == [1 << 20]
    assert bodies(StoreHome(tmp_path / "new")) == numbered_bodies(10)
    assert sorted(path.name for path in (tmp_path / "new" / "consumequeue" / "t").iterdir()) == ["0", "1"]


@pytest.mark.smoke
def test_a_named_write_that_runs_again_is_stored_once_and_an_unnamed_one_twice(
    spark: SparkSession, store: StoreHome
) -> None:
    for _ in range(2):
        write(frame(spark, 10), store.path, writeId="the results")
    assert bodies(store) == numbered_bodies(10)
    write(frame(spark, 3), store.path)
    write(frame(spark, 3), store.path)
    assert bodies(store) == numbered_bodies(10) + numbered_bodies(3) + numbered_bodies(3)
    write(frame(spark, 0), store.path)
    assert list((store.path / "penstock" / "sink" / "staged").iterdir()) == []


@pytest.mark.smoke
def test_a_task_that_fails_once_is_tried_again_and_its_rows_are_there_once(
    spark: SparkSession, store: StoreHome, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        failing = frame(spark, 90).mapInArrow(fail_once(tmp_path / "failed"), "body string, keys string")
        write(failing, store.path)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert (tmp_path / "failed").exists()
    assert bodies(store) == numbered_bodies(90)
    assert list((store.path / "penstock" / "sink" / "staged").iterdir()) == []


def fail_once(flag: Path) -> Any:
    def pass_on(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 2 and not flag.exists() and "row 50" in batch.column("body").to_pylist():
                flag.touch()
                raise RuntimeError("the first attempt fails behind its first rows")
            yield pa.RecordBatch.from_arrays(batch.columns, ["body", "keys"])

    return pass_on


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda rows: rows.withColumn("extra", lit(1)),
            "the column 'extra' cannot be written; there are body, value",
        ),
        (lambda rows: rows.withColumn("queue_id", lit(9)), "row 0 of partition 0: topic 't' has 8 queues"),
        (lambda rows: rows.withColumn("topic", lit("a b")), "row 0 of partition 0: the topic 'a b' holds characters"),
    ],
)
def test_what_cannot_be_written_is_said_in_one_sentence(
    spark: SparkSession, store: StoreHome, change: Any, said: str
) -> None:
    with pytest.raises(PySparkException) as error:
        write(change(frame(spark, 4, 1)), store.path)
    assert said in sentence(error)
    assert bodies(store) == []


def test_a_mode_an_option_and_a_folder_that_do_not_fit_are_said_in_one_sentence(
    spark: SparkSession, store: StoreHome, tmp_path: Path
) -> None:
    rows = frame(spark, 4, 1)
    with pytest.raises(PySparkException) as overwriting:
        rows.write.format("rocketmq").mode("overwrite").option("topic", "t").save(str(store.path))
    assert "instead of overwrite" in sentence(overwriting)
    with pytest.raises(PySparkException) as unknown:
        write(rows, store.path, wirteId="x")
    assert "there is no option 'wirteId'; did you mean writeId?" in sentence(unknown).replace("wirteid", "wirteId")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "part-0.parquet").touch()
    with pytest.raises(PySparkException) as other:
        write(rows, tmp_path / "other")
    assert "this folder holds something other than a store" in sentence(other)


def test_a_store_in_use_is_refused_with_a_sentence_that_names_namesrv(spark: SparkSession, store: StoreHome) -> None:
    with MessageStore.open(store.path, Settings.dev()), pytest.raises(PySparkException) as error:
        write(frame(spark, 4, 1), store.path)
    assert "the store is in use, for example by a broker; stop it, or write through it with namesrv" in sentence(error)

"""`penstock.spark.table`: a query reads what it needs, and its rows are those of a plain read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, length, lit
from support.spark import read
from support.stores import RANDOM_T0, StoreHome

from penstock.errors import BadSettings
from penstock.spark import MessageTable, table
from penstock.store import Message

COUNT = 120
HOUR = 3_600_000


@pytest.fixture
def messages(spark: SparkSession, home: StoreHome) -> MessageTable:
    """Orders and payments, one a minute, in two queues each."""
    with home.open() as store:
        for number in range(COUNT):
            home.clock.now = RANDOM_T0 + number * 60_000
            message = Message(
                "orders" if number % 3 else "payments",
                b"%04d" % number,
                tags=("red", "green", "||", "")[number % 4],
                keys=(f"k{number}", "all"),
                queue_id=number % 2,
                properties={"UNIQ_KEY": f"id{number % 100}"},
            )
            assert store.put(message).ok
    return table(spark, home.path)


def sorted_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def at(hours: float) -> str:
    return f"timestamp_millis({RANDOM_T0 + int(hours * HOUR)})"


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda frame: frame.groupBy("tags").count(), {"columns": "tags"}),
        (lambda frame: frame.agg(count(lit(1))), {"columns": "queue_id"}),
        (lambda frame: frame.select(col("topic").alias("t"), length("body")), {"columns": "topic,body"}),
        (
            lambda frame: frame.where("tags = 'red'").groupBy("queue_id").agg(count("*").alias("tags")),
            {"columns": "queue_id,tags", "tags": "red"},
        ),
        (lambda frame: frame.where("tags IN ('red', 'green')").select("body"), {"columns": "body,tags",
                                                                             "tags": "red||green"}),
        (lambda frame: frame.where("tags = 'red' OR queue_id = 1").select("body"), {"columns": "queue_id,body,tags"}),
        (lambda frame: frame.where("tags = '||'").select("body"), {"columns": "body,tags"}),
        (lambda frame: frame.where("tags IS NULL").select("body"), {"columns": "body,tags"}),
        (
            lambda frame: frame.where(col("topic") == "payments").select("queue_offset"),
            {"columns": "topic,queue_offset", "subscribePattern": "payments"},
        ),
        (
            lambda frame: frame.where("array_contains(keys, 'k7') AND topic <> 'x'").select("body"),
            {"columns": "topic,body,keys", "keys": "k7"},
        ),
        (
            lambda frame: frame.where(f"store_timestamp >= {at(1)} AND {at(1.5)} > store_timestamp").select("body"),
            {
                "columns": "body,store_timestamp",
                "startingTimestamp": str(RANDOM_T0 + HOUR - 600_000),
                "startingOffsetsByTimestampStrategy": "latest",
                "endingTimestamp": str(RANDOM_T0 + HOUR * 3 // 2 + 600_001),
            },
        ),
        (
            lambda frame: frame.select("body").where("tags = 'red'").union(frame.select("body").where("tags = 'no'")),
            {"columns": "body,tags"},
        ),
        (
            lambda frame: frame.alias("a").join(frame.alias("b"), col("a.queue_offset") == col("b.queue_offset"))
            .select("a.body", "b.msg_id"),
            {"columns": "queue_offset,body,msg_id"},
        ),
        (lambda frame: frame.select("body", "queue_id").orderBy("body").limit(5), {"columns": "queue_id,body"}),
        (lambda frame: frame.groupBy("queue_id").pivot("tags", ["red"]).count(), {"columns": "queue_id,tags"}),
    ],
)  # fmt: skip
def test_a_query_reads_what_its_plan_takes_and_has_the_rows_of_a_plain_read(
    spark: SparkSession,
    home: StoreHome,
    messages: MessageTable,
    build: Callable[[DataFrame], DataFrame],
    expected: dict[str, str],
) -> None:
    given = {"order": "any", "path": str(home.path), "subscribePattern": ".*"}
    assert messages.options_for(build) == {**given, **expected}
    plain = read(spark, home, subscribe="orders,payments")
    assert sorted_rows(messages.query(build)) == sorted_rows(build(plain))


@pytest.mark.smoke
def test_a_table_has_the_methods_of_a_frame(spark: SparkSession, home: StoreHome, messages: MessageTable) -> None:
    red = messages.where("tags = 'red'")
    assert messages.count() == COUNT
    assert red.count() == COUNT // 4
    assert {row.topic: row["count"] for row in red.groupBy("topic").count().collect()} == {"orders": 20, "payments": 10}
    assert red.groupBy("topic").agg(count("*").alias("n")).columns == ["topic", "n"]
    assert red.where("queue_id = 0").selectExpr("count(DISTINCT body) AS n").collect()[0].n == COUNT // 4
    assert messages.select("body").columns == ["body"]
    counted = messages.sql("SELECT tags, count(*) AS n FROM {messages} WHERE topic = 'orders' GROUP BY tags")
    assert sum(row.n for row in counted.collect()) == COUNT * 2 // 3
    scalar = messages.sql("SELECT body FROM {messages} WHERE queue_offset = (SELECT max(queue_offset) FROM {messages})")
    assert scalar.count() == 2
    assert messages.frame().columns == read(spark, home, subscribe="orders").columns
    assert table(spark, home.path, topics="orders", schema="kafka").select("value").count() == COUNT * 2 // 3


def test_a_table_is_limited_by_times_and_options(spark: SparkSession, home: StoreHome, messages: MessageTable) -> None:
    start, stop = RANDOM_T0 + HOUR, RANDOM_T0 + HOUR + 10 * 60_000
    assert table(spark, home.path, since=start, until=stop).count() == 10
    assert table(spark, [home.path], topics=["orders", "payments"], until=0).count() == 0
    assert table(spark, home.path, topics="orders", tags="red").count() == 20
    assert table(spark, home.path, since=RANDOM_T0 + 99 * HOUR).count() == 0
    offsets = '{"orders": {"0": 10, "1": 10}}'
    for option in ("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp"):
        times = offsets.replace("10", str(start))
        limited = table(spark, home.path, topics="orders", **{option: times if "Timestamp" in option else offsets})
        early_and_late = limited.where(f"store_timestamp > {at(-1)} AND store_timestamp < {at(99)}")
        assert 0 < early_and_late.count() == limited.count() < 80
    for wrong, said in (
        ({"since": "yesterday"}, "startingTimestamp: not a valid time: 'yesterday'"),
        ({"colums": "body"}, "did you mean"),
    ):
        with pytest.raises(BadSettings, match=said):
            table(spark, home.path, **wrong)  # type: ignore[arg-type]


def test_messages_that_were_stored_twice_are_there_once(spark: SparkSession, home: StoreHome) -> None:
    with home.open() as store:
        for number in (1, 2, 2, 3, 1):
            assert store.put(Message("T", b"%d" % number, properties={"UNIQ_KEY": f"id{number}"}, queue_id=number)).ok
        for _ in range(2):
            assert store.put(Message("T", b"without a key")).ok
    once = table(spark, home.path, dedupe=True)
    assert once.count() == 5
    assert sorted(row.body for row in once.select("body").collect()) == [b"1", b"2", b"3", *[b"without a key"] * 2]
    assert "unique_key" not in once.frame().columns
    assert once.where("queue_id = 2").count() == 1
    plain = read(spark, home, subscribe="T", columns="unique_key,body")
    assert plain.dropDuplicates(["unique_key"]).count() == 5

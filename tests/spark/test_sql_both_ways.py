"""The same query gives the same rows with DuckDB and on Spark, over the same views."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.documents import ROOT, blocks_of
from support.stores import StoreHome

pytest.importorskip("duckdb", reason="these tests need the extra `sql`")

from penstock.cli.main import main
from penstock.errors import BadQuery
from penstock.pipeline.arrow_scan import ScanOptions
from penstock.sql.duckdb_engine import SqlSession
from penstock.sql.spark_engine import SparkSqlSession
from penstock.store import Message, MessageStore, Settings

COUNT = 240
QUERIES = (
    "SELECT count(*) AS n FROM log",
    "SELECT count(*) AS n FROM orders",
    "SELECT tags, count(*) AS n FROM orders GROUP BY tags ORDER BY tags NULLS LAST",
    "SELECT topic, sum(octet_length(body)) AS bytes FROM log GROUP BY topic ORDER BY topic",
    "SELECT count(*) AS n FROM log WHERE body_text LIKE '%7%'",
    "SELECT queue_id, min(queue_offset) AS low, max(queue_offset) AS high FROM payments GROUP BY queue_id ORDER BY 1",
    "SELECT body_text FROM orders WHERE tags = 'red' AND queue_id = 1 ORDER BY queue_offset LIMIT 5",
    "SELECT DISTINCT topic, broker FROM log ORDER BY topic",
    "SELECT body FROM payments ORDER BY body DESC LIMIT 3",
    "SELECT sum(CAST(get_json_object(body_json, '$.amount') AS INT)) AS total FROM orders",
    "SELECT count(body_json) AS json, count(body_text) AS text, count(body) AS all_of_them FROM log",
    "SELECT date_trunc('hour', store_timestamp) AS hour, count(*) AS n FROM log GROUP BY 1 ORDER BY 1",
    'SELECT count(*) AS n FROM "%RETRY%shop"',
    (
        "SELECT o.body_text FROM orders o JOIN payments p ON o.store_timestamp < p.store_timestamp "
        "WHERE p.queue_offset = 1 AND p.queue_id = 0 ORDER BY o.physical_offset LIMIT 4"
    ),
    "SELECT body_text FROM by_key('orders', 'k6')",
    "SELECT topic, queue_id, min_offset, max_offset, messages FROM queues ORDER BY topic, queue_id",
    "SELECT consumer_group, queue_id, consumer_offset, behind FROM groups ORDER BY queue_id",
    "SELECT properties['color'] AS color, count(*) AS n FROM orders GROUP BY 1 ORDER BY 1",
    (
        "WITH big AS (SELECT topic, store_size FROM log WHERE store_size > 100) "
        "SELECT topic, avg(store_size) AS size FROM big GROUP BY topic HAVING count(*) > 3 ORDER BY topic"
    ),
    "SELECT * FROM orders WHERE queue_offset = 2 ORDER BY queue_id",
    (
        "SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY physical_offset) AS number FROM log "
        "WHERE reconsume_times = 0 ORDER BY topic, number LIMIT 10"
    ),
    "SELECT upper(tags) AS t, msg_id FROM log WHERE tags IS NOT NULL ORDER BY msg_id LIMIT 3",
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreHome]:
    home = StoreHome(tmp_path_factory.mktemp("sql") / "store")
    with home.open(mapped_file_size_commit_log=65_536) as store:
        for number in range(COUNT):
            home.clock.now += 60_000
            body = b'{"amount": %d}' % number if number % 4 else (b"\xff\xfe" if number % 8 else b"text %d" % number)
            message = Message(
                ("orders", "orders", "payments", "%RETRY%shop")[number % 4 if number % 3 else 0],
                body,
                tags=("red", "green", "")[number % 3],
                keys=(f"k{number}",),
                queue_id=number % 2,
                properties={"color": f"c{number % 5}"},
            )
            assert store.put(message).ok
    (home.path / "config").mkdir(exist_ok=True)
    (home.path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable": {"orders@shop": {"0": 4, "1": 9}}}', encoding="utf-8"
    )
    yield home
    home.close_all()


def plain(value: Any) -> Any:
    """A value as both engines have it: DuckDB sums to a decimal, and has maps as pairs."""
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, list):
        return sorted(value, key=str)
    return round(value, 9) if isinstance(value, float) else value


def rows(results: Any) -> list[dict[str, Any]]:
    return [
        {name: plain(value) for name, value in row.items()}
        for result in results
        for row in result.read_all().to_pylist()
    ]


def test_queries_have_the_same_rows_both_ways(spark: SparkSession, home: StoreHome) -> None:
    options = ScanOptions(paths=(str(home.path),))
    on_spark = SparkSqlSession(spark, options)
    assert len(QUERIES) >= 20
    with SqlSession(options) as here:
        for query in QUERIES:
            expected = rows(here.run(query))
            assert expected, query
            assert rows(on_spark.run(query)) == expected, query


@pytest.mark.parametrize("query", ["TABLE payments", "FROM payments |> LIMIT 1"])
def test_a_query_that_names_no_column_may_mean_all_of_them(spark: SparkSession, home: StoreHome, query: str) -> None:
    on_spark = SparkSqlSession(spark, ScanOptions(paths=(str(home.path),)))
    assert rows(on_spark.run(query))[0].keys() == rows(on_spark.run("SELECT * FROM payments LIMIT 1"))[0].keys()


def test_times_limit_both_ways_alike(spark: SparkSession, home: StoreHome) -> None:
    options = ScanOptions(paths=(str(home.path),), since_ms=home.clock.now - 30 * 60_000)
    query = "SELECT topic, count(*) AS n FROM log GROUP BY topic ORDER BY topic"
    with SqlSession(options) as here:
        assert sum(row["n"] for row in rows(here.run(query))) == 31
        assert rows(SparkSqlSession(spark, options).run(query)) == rows(here.run(query))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM ordres", "there is no topic 'ordres'; did you mean 'orders'?"),
        ("SELECT nothing FROM orders", "nothing"),
        ("SELECT * FORM orders", "orders"),
    ],
)
def test_a_bad_query_is_a_sentence_on_spark(spark: SparkSession, home: StoreHome, query: str, said: str) -> None:
    with pytest.raises(BadQuery) as caught:
        rows(SparkSqlSession(spark, ScanOptions(paths=(str(home.path),))).run(query))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_of_the_page_runs_on_spark(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = (each for each in blocks_of(ROOT / "docs/how-to/query-with-sql.md") if each.kind == "bash")
    with MessageStore.open(tmp_path / "data" / "shop", Settings.dev()) as store:
        for number in range(9):
            assert store.put(Message("orders", b"x", tags="paid" if number % 3 else "open")).ok
    monkeypatch.chdir(tmp_path)
    assert main([*shlex.split(block.text)[1:], "--format", "csv"]) == 0
    assert capsys.readouterr().out == "tags,n\nopen,3\npaid,6\n"

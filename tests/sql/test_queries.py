"""Queries with DuckDB over a store: its views, what it may not touch, and its sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.stores import StoreHome, is_one_sentence

pytest.importorskip("duckdb", reason="these tests need the extra `sql`")

from penstock.errors import BadQuery, BadSettings, PenstockError
from penstock.pipeline.arrow_scan import ScanOptions
from penstock.sql.duckdb_engine import SqlSession
from penstock.sql.views import replace_key_views, told_apart
from penstock.store import Message

COUNT = 60


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        for number in range(COUNT):
            home.clock.now += 60_000
            topic = ("orders", "payments", "%RETRY%shop")[number % 3]
            body = b'{"number": %d, "who": "it\'s me"}' % number if number % 2 else b"plain %d" % number
            put = store.put(Message(topic, body, tags=f"t{number % 4}", keys=(f"k{number}",), queue_id=number % 2))
            assert put.ok
    (home.path / "config").mkdir(exist_ok=True)
    (home.path / "config" / "consumerOffset.json").write_text(
        '{"offsetTable": {"orders@shop": {"0": 4, "1": 9}}}', encoding="utf-8"
    )
    yield home
    home.close_all()


@pytest.fixture
def session(home: StoreHome) -> Iterator[SqlSession]:
    with SqlSession(ScanOptions(paths=(str(home.path),))) as opened:
        yield opened


def rows(session: SqlSession, query: str) -> list[dict[str, Any]]:
    return [row for result in session.run(query) for row in result.read_all().to_pylist()]


def values(session: SqlSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rows(session, query)]


def test_each_topic_is_a_view(session: SqlSession) -> None:
    assert values(session, "SELECT count(*) FROM orders") == [(20,)]
    assert values(session, 'SELECT count(*) FROM "%RETRY%shop"') == [(20,)]
    assert values(session, "SELECT min(body_text) FROM ORDERS") == [("plain 0",)]
    found = values(session, "SELECT topic, count(*) FROM log GROUP BY topic ORDER BY topic")
    assert found == [("%RETRY%shop", 20), ("orders", 20), ("payments", 20)]


def test_topics_that_differ_in_case_only_are_never_taken_for_each_other(tmp_path: Path) -> None:
    home = StoreHome(tmp_path / "store")
    with home.open() as store:
        for topic, count in (("Orders", 3), ("orders", 5)):
            for _ in range(count):
                assert store.put(Message(topic, b"x")).ok
    with SqlSession(ScanOptions(paths=(str(home.path),))) as session:
        assert values(session, "SELECT count(*) FROM orders") == [(5,)]
        assert values(session, 'SELECT count(*) FROM "Orders"') == [(3,)]
        assert len(values(session, "PIVOT Orders ON topic USING count(*)")) == 3
        for query in (
            "SELECT topic FROM Orders UNION ALL SELECT topic FROM orders",
            "FROM Orders JOIN orders USING (topic)",
        ):
            with pytest.raises(BadQuery, match="the topics Orders and orders differ in case only") as error:
                values(session, query)
            assert is_one_sentence(str(error.value))
    assert told_apart(["Orders", "orders", "log"], "SELECT * FROM log, orders") == ["orders", "log"]
    with pytest.raises(BadQuery, match="differ in case only"):
        told_apart(["Orders", "orders"], "SELECT * FROM ORDERS")
    home.close_all()


def test_views_are_joined_and_a_view_with_itself(session: SqlSession) -> None:
    query = "SELECT count(*) FROM orders AS a JOIN orders AS b USING (queue_id, queue_offset)"
    assert values(session, query) == [(20,)]
    query = "WITH red AS (SELECT * FROM orders WHERE tags = 't0') SELECT count(*) FROM red, payments"
    assert values(session, query) == [(5 * 20,)]


def test_a_body_is_bytes_text_and_json(session: SqlSession) -> None:
    query = "SELECT body, body_text, body_json->>'$.who' AS who FROM log ORDER BY physical_offset LIMIT 2"
    first, second = rows(session, query)
    assert first == {"body": b"plain 0", "body_text": "plain 0", "who": None}
    assert second["who"] == "it's me"
    assert values(session, "SELECT count(body_json), count(body_text) FROM log") == [(COUNT // 2, COUNT)]
    assert values(session, "SELECT max(CAST(get_json_object(body_json, '$.number') AS INT)) FROM log") == [(COUNT - 1,)]


def test_queues_and_groups_show_offsets_times_and_lag(session: SqlSession) -> None:
    found = rows(session, "SELECT * FROM queues WHERE topic = 'orders' ORDER BY queue_id")
    assert [(row["min_offset"], row["max_offset"], row["messages"]) for row in found] == [(0, 10, 10)] * 2
    assert found[0]["oldest"] < found[0]["newest"]
    query = "SELECT consumer_group, queue_id, consumer_offset, behind FROM groups ORDER BY queue_id"
    assert values(session, query) == [("shop", 0, 4, 6), ("shop", 1, 9, 1)]


def test_by_key_goes_through_the_index(session: SqlSession) -> None:
    query = "SELECT body_text FROM by_key('orders', 'k6') UNION ALL SELECT body_text FROM by_key('payments', 'k4')"
    assert values(session, query) == [("plain 6",), ("plain 4",)]
    assert values(session, "SELECT 'by_key(' AS a, * FROM by_key('orders', 'nothing')") == []
    with pytest.raises(BadQuery, match="by_key takes a topic and a key"):
        rows(session, "SELECT * FROM by_key(topic, 'x')")
    with pytest.raises(BadSettings, match="no topic 'ordres'; did you mean 'orders'"):
        rows(session, "SELECT * FROM by_key('ordres', 'k6')")


def test_by_key_in_texts_names_and_comments_stays() -> None:
    text = """SELECT 'by_key(''a'', 1)', "by_key(x)" -- by_key(
    FROM by_key('it''s', 'k') /* by_key( */"""
    replaced, views = replace_key_views(text, lambda name: f"<{name}>")
    assert replaced == text.replace("by_key('it''s', 'k')", "<by_key_0>")
    assert [(view.topic, view.key) for view in views] == [("it's", "k")]


def test_times_limit_the_views_of_messages(home: StoreHome) -> None:
    since = home.clock.now - 9 * 60_000
    with SqlSession(ScanOptions(paths=(str(home.path),), since_ms=since)) as session:
        assert values(session, "SELECT count(*) FROM log") == [(10,)]
        assert values(session, "SELECT count(*) FROM orders") == [(3,)]


def test_several_statements_run_in_order(session: SqlSession) -> None:
    query = "CREATE TABLE few AS SELECT tags FROM orders LIMIT 3; SELECT count(*) AS n FROM few;"
    assert rows(session, query)[-1] == {"n": 3}
    assert "orders" in {row["name"] for row in rows(session, "SHOW TABLES")}
    assert "body_json" in {row["column_name"] for row in rows(session, "DESCRIBE orders")}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "ATTACH '{folder}/other.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '10GB'",
        "SELECT * FROM '{folder}/data.csv'",
        "EXPORT DATABASE '{folder}/all'",
    ],
)
def test_a_query_touches_no_other_files_and_no_settings(session: SqlSession, tmp_path: Path, query: str) -> None:
    (tmp_path / "data.csv").write_text("a\n1\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BadQuery) as caught:
        rows(session, query.format(folder=tmp_path))
    assert is_one_sentence(str(caught.value).replace('"', "'"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_query_does_not_see_the_programs_variables(session: SqlSession) -> None:
    import pyarrow as pa

    secret = pa.table({"word": ["sesame"]})
    with pytest.raises(BadQuery, match="there is no topic 'secret'"):
        rows(session, "SELECT * FROM secret")
    assert secret.num_rows == 1


def test_files_can_be_allowed(home: StoreHome, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("tags,name\nt0,red\n", encoding="utf-8")
    with SqlSession(ScanOptions(paths=(str(home.path),)), allow_files=True) as session:
        query = f"SELECT name, count(*) FROM orders JOIN '{tmp_path}/names.csv' USING (tags) GROUP BY name"
        assert values(session, query) == [("red", 5)]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FORM orders", 'line 1, column 15: syntax error at or near "orders"'),
        ("SELECT 1,\n  2 +", "syntax error"),
        ("SELECT * FROM ordres", "there is no topic 'ordres'; did you mean 'orders'?"),
        ("SELECT tag FROM orders", 'Referenced column "tag" not found'),
        ("SELECT nofunction(tags) FROM orders", "nofunction does not exist"),
        ("SELECT sum(body) FROM orders", "sum"),
        ("SELECT '" + "x" * 300 + "', FROM FROM", "line 1, column "),
    ],
)
def test_a_bad_query_is_a_sentence(session: SqlSession, query: str, said: str) -> None:
    with pytest.raises(PenstockError) as caught:
        rows(session, query)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_session_sees_new_topics_and_messages(home: StoreHome, session: SqlSession) -> None:
    with home.open() as store:
        assert store.put(Message("late", b"x")).ok
        store.catch_up()
        assert values(session, "SELECT count(*) FROM late") == [(1,)]


def test_a_session_shows_queues_and_groups_as_they_are_at_each_query(home: StoreHome, session: SqlSession) -> None:
    queries = (
        "SELECT max(max_offset) FROM queues WHERE topic = 'orders'",
        "SELECT max(q.max_offset) FROM queues q JOIN groups g ON q.topic = g.topic",
        "SELECT max(max_offset) FROM groups",
        "SELECT count(*) / 2 FROM orders",
    )
    assert [values(session, query) for query in queries] == [[(10,)]] * 4
    with home.open() as store:
        for queue_id in (0, 1):
            assert store.put(Message("orders", b"later", queue_id=queue_id)).ok
    assert [values(session, query) for query in queries] == [[(11,)]] * 4


def test_damaged_places_are_counted(home: StoreHome) -> None:
    path = home.log_files()[0]
    home.flip(path, path.read_bytes().index(b"plain 6"))
    with SqlSession(ScanOptions(paths=(str(home.path),))) as session:
        assert values(session, "SELECT count(body) FROM log") == [(COUNT - 1,)]
        assert session.notes.damaged == 1


def test_what_a_query_spills_is_removed(home: StoreHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with SqlSession(ScanOptions(paths=(str(home.path),))) as session:
        rows(session, "SELECT * FROM log ORDER BY body")
    assert not list(tmp_path.glob("penstock-sql-*"))

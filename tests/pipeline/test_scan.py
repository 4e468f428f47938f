"""`penstock.scan`: stores as Arrow streams, by topic, by key and by log, and what DuckDB and Polars make of them."""

from __future__ import annotations

import gc
import threading
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.stores import StoreHome

import penstock
from penstock.errors import BadSettings, BadStore
from penstock.format.sys_flag import TRANSACTION_PREPARED
from penstock.pipeline import arrow_scan as scans
from penstock.pipeline.arrow_scan import SCAN_SCHEMA, ScanNotes, ScanOptions, StoreScan, plan_scan
from penstock.pipeline.store_read_tasks import LogTask, QueueTask
from penstock.store import Message

COUNT = 300
SIZES = {"mapped_file_size_commit_log": 65_536, "mapped_file_size_consume_queue": 20 * 1000}


def message(number: int) -> Message:
    """Nine of ten messages are orders; the others are payments."""
    return Message(
        "payments" if number % 10 == 0 else "orders",
        b"%04d" % number,
        tags=("red", "green", "")[number % 3],
        keys=(f"k{number}",),
        queue_id=number % 2,
    )


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StoreHome]:
    """A closed store of several log files, one message a minute."""
    home = StoreHome(tmp_path / "store")
    with home.open(**SIZES) as store:
        for number in range(COUNT):
            home.clock.now += 60_000
            assert store.put(message(number)).ok
    yield home
    home.close_all()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many pieces, as of a large store."""
    monkeypatch.setattr(scans, "_LOG_PIECE", 4096)
    monkeypatch.setattr(scans, "_BODY_PIECE", 4096)
    monkeypatch.setattr(scans, "_QUEUE_PIECE", 1024)


def numbers(rows: pa.Table) -> list[int]:
    return [int(body) for body in rows.column("body").to_pylist()]


def test_the_log_is_a_stream_in_its_order(home: StoreHome, small_pieces: None) -> None:
    with penstock.scan(home.path) as reader:
        assert reader.schema == SCAN_SCHEMA
        rows = reader.read_all()
    assert numbers(rows) == list(range(COUNT))
    assert rows.column("body_text").to_pylist() == [f"{number:04d}" for number in range(COUNT)]
    assert set(rows.column("broker").to_pylist()) == {"store"}


@pytest.mark.parametrize(("topic", "kind"), [("orders", LogTask), ("payments", QueueTask)])
def test_a_topic_is_read_from_the_log_if_it_fills_it_and_else_from_its_queues(
    home: StoreHome, small_pieces: None, topic: str, kind: type
) -> None:
    pieces = plan_scan(ScanOptions(paths=(str(home.path),), topics=(topic,)), 4096)
    assert len(pieces) > 1
    assert {type(piece.task) for piece in pieces} == {kind}
    rows = penstock.scan(home.path, topic).read_all()
    assert sorted(numbers(rows)) == [n for n in range(COUNT) if message(n).topic == topic]
    assert set(rows.column("topic").to_pylist()) == {topic}


def test_only_the_named_columns_are_made_in_their_order(home: StoreHome) -> None:
    rows = penstock.scan(home.path, "orders", ["tags", "body_text", "queue_id"])
    assert rows.schema.names == ["tags", "body_text", "queue_id"]
    assert penstock.scan(home.path, columns=["broker"]).read_all().num_rows == COUNT


def test_times_limit_a_scan_of_either_kind(home: StoreHome) -> None:
    times = penstock.scan(home.path, columns=["store_timestamp"]).read_all().column(0).to_pylist()
    since, until = times[100], times[201]
    expected = list(range(100, 201))
    assert numbers(penstock.scan(home.path, since=since, until=until).read_all()) == expected
    texts = since.astimezone(UTC).isoformat(), int(until.timestamp() * 1000)
    payments = penstock.scan(home.path, "payments", since=texts[0], until=texts[1]).read_all()
    assert sorted(numbers(payments)) == [n for n in expected if n % 10 == 0]
    assert penstock.scan(home.path, since="now-1h").read_all().num_rows == 0


def test_a_filter_is_applied_before_other_columns_are_made(home: StoreHome, small_pieces: None) -> None:
    wanted = (pc.field("tags") == "red") & (pc.field("queue_id") == 0)
    for topics in (None, ["orders"], ["payments"]):
        rows = penstock.scan(home.path, topics, ["body"], filter=wanted).read_all()
        expected = [n for n in range(COUNT) if n % 3 == 0 and n % 2 == 0]
        assert sorted(numbers(rows)) == [n for n in expected if topics in (None, [message(n).topic])]


def test_keys_are_found_through_the_index(home: StoreHome) -> None:
    rows = penstock.scan(home.path, "orders", keys=["k7", "k8", "k10"]).read_all()
    assert sorted(numbers(rows)) == [7, 8]  # k10 is a payment
    with pytest.raises(BadSettings, match="name the topics"):
        penstock.scan(home.path, keys="k7")


def test_records_that_are_in_no_queue_are_in_the_log_only(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        assert store.put(Message("orders", b"9999", sys_flag=TRANSACTION_PREPARED)).ok
        assert store.put(message(1)).ok  # what is after it is visible to consumers
    assert numbers(penstock.scan(home.path).read_all())[-2:] == [9999, 1]
    assert 9999 not in numbers(penstock.scan(home.path, "orders").read_all())


def test_a_deleted_topic_that_is_there_again_has_its_new_messages_only(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        assert store.delete_topic("orders")
        for number in range(COUNT):
            assert store.put(Message("orders", b"%04d" % (1000 + number))).ok
    assert sorted(numbers(penstock.scan(home.path, "orders").read_all())) == list(range(1000, 1000 + COUNT))


def test_damage_has_no_row_and_is_counted(home: StoreHome) -> None:
    path = home.log_files()[0]
    home.flip(path, path.read_bytes().index(b"0007"))
    for topics in (None, ("orders",)):
        notes = ScanNotes()
        options = ScanOptions(paths=(str(home.path),), topics=topics)
        found = numbers(StoreScan(options, notes).reader(["body"]).read_all())
        assert 7 not in found
        assert notes.damaged == 1
        assert "no valid record" in notes.first_damage


def test_compressed_bodies_are_unpacked_and_those_that_cannot_be_are_null(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        for body in (zlib.compress(b"1234" * 10), b"not zlib", b"\xff\xfe"):
            flag = 0 if body == b"\xff\xfe" else 0x1
            assert store.put(Message("packed", body, sys_flag=flag)).ok
    notes = ScanNotes()
    rows = StoreScan(ScanOptions(paths=(str(home.path),), topics=("packed",)), notes).reader().read_all()
    assert rows.column("body").to_pylist() == [b"1234" * 10, None, b"\xff\xfe"]
    assert rows.column("body_text").to_pylist() == ["1234" * 10, None, None]
    assert notes.damaged == 1


def test_a_store_in_use_is_read(home: StoreHome) -> None:
    with home.open(**SIZES) as store:
        assert store.put(message(COUNT)).ok
        store.catch_up()
        assert numbers(penstock.scan(home.path).read_all()) == list(range(COUNT + 1))


def test_the_threads_end_with_a_reader_that_leaves_early(home: StoreHome, small_pieces: None) -> None:
    reader = penstock.scan(home.path, threads=3)
    assert reader.read_next_batch().num_rows
    del reader
    gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-scan"]


def test_waiting_batches_are_limited_in_bytes(
    home: StoreHome, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "_BYTES_AHEAD", 1)
    assert numbers(penstock.scan(home.path, threads=3).read_all()) == list(range(COUNT))


def test_errors_are_sentences(home: StoreHome, tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="there is no topic 'order'; did you mean 'orders'"):
        penstock.scan(home.path, "order")
    with pytest.raises(BadSettings, match="there is no column 'tag'; did you mean 'tags'"):
        penstock.scan(home.path, columns=["tag"])
    with pytest.raises(BadStore, match="no such folder"):
        penstock.scan(tmp_path / "nowhere")
    with pytest.raises(BadSettings, match="since: not a valid time: 'yesterday'"):
        penstock.scan(home.path, since="yesterday")


def test_duckdb_pushes_columns_and_filters_down(home: StoreHome) -> None:
    duckdb = pytest.importorskip("duckdb")
    asked: list[tuple[object, object]] = []
    table = penstock.dataset(home.path, "orders")
    plain = type(table).scanner

    class Asked(type(table)):  # type: ignore[misc]
        def scanner(self, columns: object = None, filter: object = None, **more: object) -> object:  # noqa: A002
            asked.append((columns, str(filter)))
            return plain(self, columns, filter)

    with duckdb.connect() as database:
        database.register("orders", Asked(table._scan))
        found = database.execute("SELECT count(tags) FROM orders WHERE queue_id = 1").fetchall()
    assert found == [(sum(1 for n in range(COUNT) if n % 2 and n % 3 != 2),)]
    assert asked == [(["tags"], "(queue_id == 1)")]


def test_a_dataset_is_read_by_pyarrow_itself(home: StoreHome) -> None:
    table = penstock.dataset(home.path, "orders")
    assert table.count_rows() == 270
    assert table.head(3, columns=["tags"]).num_rows == 3
    assert table.to_table(columns=["body"], filter=pc.field("tags") == "red").num_rows == 90
    with pytest.raises(BadSettings):
        penstock.dataset(home.path, "nothing")


def test_polars_pushes_columns_filters_and_limits_down(home: StoreHome) -> None:
    pl = pytest.importorskip("polars")
    frame = penstock.scan_polars(home.path, "orders")
    counted = frame.filter(pl.col("queue_id") == 1).group_by("tags").len().sort("tags").collect()
    orders = [n for n in range(COUNT) if n % 2 == 1]  # payments are even
    assert dict(counted.rows()) == {
        tag: sum(1 for n in orders if n % 3 == rest) for rest, tag in enumerate(("red", "green", None))
    }
    assert frame.select("queue_id", "body_text").head(5).collect().shape == (5, 2)
    late = frame.filter(pl.col("store_timestamp") < datetime(2000, 1, 1, tzinfo=UTC)).collect()
    assert late.height == 0


def test_polars_gets_the_rows_of_a_plain_frame_for_limits_and_filters_in_any_order(home: StoreHome) -> None:
    pl = pytest.importorskip("polars")
    lazy, plain = penstock.scan_polars(home.path, "orders"), pl.from_arrow(penstock.scan(home.path, "orders")).lazy()
    red, late = pl.col("tags") == "red", pl.col("queue_offset") > 20
    for build in (
        lambda frame: frame.head(50).filter(red),
        lambda frame: frame.head(50).filter(red).select("body_text"),
        lambda frame: frame.filter(red).head(50),
        lambda frame: frame.filter(red).head(50).filter(late),
        lambda frame: frame.slice(30, 50).filter(red | late.not_()).select(pl.len()),
        lambda frame: frame.filter(pl.lit(True)).select(pl.len()),
        lambda frame: frame.head(7).filter(pl.lit(True)),
        lambda frame: frame.filter(late & (pl.col("queue_offset") < 40)),
        lambda frame: frame.head(90).filter(late & (pl.col("queue_offset") < 40)).select("body_text"),
        lambda frame: frame.filter(pl.lit(False)),
        lambda frame: frame.filter(pl.lit(None).cast(pl.Boolean)),
        lambda frame: frame.filter(red.is_null()).select("queue_offset", "tags"),
    ):
        assert build(lazy).collect().equals(build(plain).collect())

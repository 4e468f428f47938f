"""Pages of a queue and of the log as Arrow record batches: which rows, in which order, and what is never served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.arrow import expected_row, numbers, put_numbered, read_log, read_queue, rows_of
from support.messages import as_v2, make_record
from support.stores import StoreHome

from penstock.format.arrow_rows import MESSAGE_SCHEMA
from penstock.format.queue_unit import pack_unit
from penstock.format.record import decode_record
from penstock.store import ArrowPage, GetStatus, Message, MessageStore

pytestmark = pytest.mark.usefixtures("kernels_name")

WIDE = "[1050::5:600:300c:326b]:10911"


def write_log(home: StoreHome, records: list[bytes], size: int = 16_384) -> None:
    """A store with nothing but a log file that holds these records."""
    folder = home.path / "commitlog"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(b"".join(records).ljust(size, b"\0"))


# -- rows ----------------------------------------------------------------------------------------------------


def test_every_column_of_every_kind_of_message_is_that_of_the_record(home: StoreHome) -> None:
    store = home.open()
    plain = Message("T", b"body")
    for message in (
        plain,
        Message("T", b"", keys=("k1", "ключ"), tags="中文", properties={"a": "b", "x": "y\x01z"}),
        Message("T", b"x" * 5000, keys="a  b ", flag=-5, born_timestamp=1, born_host=WIDE),
        Message("T", b"w", born_host=WIDE, store_host=WIDE, sys_flag=0x1, reconsume_times=3),
        Message("T", b"c", sys_flag=0x8, prepared_transaction_offset=77),
        plain,
    ):
        assert store.put(message).ok
    page = store.get_arrow("T", 0, 0)
    assert (page.status, page.next_begin_offset, page.min_offset, page.max_offset) == (GetStatus.FOUND, 6, 0, 6)
    assert page.batch.schema.equals(MESSAGE_SCHEMA)
    expected = [expected_row(record) for record in home.read_queue(store, "T")]
    assert rows_of(page.batch) == expected
    assert page.record_bytes == sum(row["store_size"] for row in expected) == store.log.max_offset
    log = store.log_arrow()
    assert (rows_of(log.batch), log.next_offset) == (expected, store.log.max_offset)


def test_prepared_and_rolled_back_messages_are_rows_of_the_log_only(home: StoreHome) -> None:
    store = home.open()
    for flag in (0x4, 0x8, 0xC, 0x0):
        assert store.put(Message("T", b"%d" % flag, sys_flag=flag)).ok
    assert numbers(store.log_arrow().batch) == [4, 8, 12, 0]
    assert numbers(store.get_arrow("T", 0, 0).batch) == [8, 0]


def test_records_of_version_5_are_rows_too(home: StoreHome) -> None:
    first = make_record(0, b"one", topic="T")
    second = as_v2(make_record(len(first), b"two", topic="T", queue_offset=1, properties=b"TAGS\x01t"), b"T")
    write_log(home, [first, second])
    store = home.open(mapped_file_size_commit_log=16_384)
    expected = [expected_row(decode_record(record)) for record in (first, second)]
    assert rows_of(store.log_arrow().batch) == expected
    assert rows_of(store.get_arrow("T", 0, 0).batch) == expected


def test_text_that_is_not_utf8_comes_out_replaced_and_valid(home: StoreHome) -> None:
    broken = b"TAGS\x01a\xffb\x02KEYS\x01\xc3 ok\x02n\xfe\x01\xfd\x02n\xff\x01v\x02good\x01value"
    write_log(
        home, [make_record(0, b"\xff", properties=broken), make_record(91 + 2 + len(broken), properties=b"a\x01b")]
    )
    store = home.open(mapped_file_size_commit_log=16_384)
    first, second = rows_of(store.log_arrow().batch)
    assert (first["body"], first["tags"], first["keys"]) == (b"\xff", "a\ufffdb", ["\ufffd", "ok"])
    assert first["properties"] == [
        ("TAGS", "a\ufffdb"),
        ("KEYS", "\ufffd ok"),
        ("n\ufffd", "v"),
        ("good", "value"),
    ]
    assert (second["tags"], second["keys"], second["properties"]) == (None, [], [("a", "b")])


def test_a_character_cut_in_two_by_the_end_of_a_text_is_replaced(home: StoreHome) -> None:
    first = make_record(0, properties=b"TAGS\x01\xd0")
    write_log(home, [first, make_record(len(first), properties=b"TAGS\x01\xb9")])
    store = home.open(mapped_file_size_commit_log=16_384)
    assert store.log_arrow(columns=["tags"]).batch.column(0).to_pylist() == ["\ufffd", "\ufffd"]


def test_a_time_that_microseconds_cannot_express_is_null(home: StoreHome) -> None:
    store = home.open()
    for born in (2**63 - 1, (2**63 - 1) // 1000, (2**63 - 1) // 1000 + 1, 1):
        assert store.put(Message("T", b"", born_timestamp=born)).ok
    batch = store.log_arrow(columns=["born_timestamp"]).batch
    batch.validate(full=True)
    assert batch.column(0).cast(pa.int64()).to_pylist() == [None, (2**63 - 1) // 1000 * 1000, None, 1000]


def test_rows_outlive_the_store(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3)
    batches = [store.get_arrow("T", 0, 0).batch, store.log_arrow().batch]
    store.close()
    assert [numbers(batch) for batch in batches] == [[0, 1, 2]] * 2


# -- columns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MESSAGE_SCHEMA.names)
def test_a_column_alone_is_what_it_is_among_others(name: str, home: StoreHome) -> None:
    store = home.open()
    assert store.put(Message("T", b"x", keys=("k",), tags="t", properties={"a": "b"}, born_host=WIDE)).ok
    assert store.put(Message("U", b"")).ok
    whole = store.log_arrow().batch
    alone = store.log_arrow(columns=[name]).batch
    assert alone.schema.equals(pa.schema([MESSAGE_SCHEMA.field(name)]))
    assert alone.column(0).equals(whole.column(name))
    assert store.get_arrow("T", 0, 0, columns=[name]).batch.column(0).equals(whole.column(name).slice(0, 1))


def test_columns_come_in_the_order_in_which_they_are_asked_for(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 2)
    assert store.get_arrow("T", 0, 0, columns=("body", "topic")).batch.to_pydict() == {
        "body": [b"0", b"1"],
        "topic": ["T", "T"],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["bodi"], "there is no column 'bodi'; there are topic, queue_id, "),
        ([], "at least one"),
        (["body", "body"], "each only once"),
        ("body", "a list of names"),
    ],
)
def test_wrong_columns_are_an_error_that_says_what_there_is(columns: Any, message: str, home: StoreHome) -> None:
    store = home.open()
    for read in (lambda: store.log_arrow(columns=columns), lambda: store.get_arrow("T", 0, 0, columns=columns)):
        with pytest.raises(ValueError, match=message):
            read()


# -- pages of a queue ----------------------------------------------------------------------------------------


def test_outside_the_queue_the_answer_is_that_of_a_get(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200)
    put_numbered(store, 100)
    store.catch_up()
    store.log.queue.drop_first()
    store.queues.find("T", 0).correct_min_offset(store.log.min_offset)  # type: ignore[union-attr]
    for topic, queue_id, offset in (
        *(("T", 0, offset) for offset in (-1, 0, 99, 100, 101, 10**6)),
        ("T", 1, 0),
        ("U", 0, 7),
        ("no/such", 0, 0),
        ("T", -1, 0),
    ):
        page, arrow = store.get(topic, queue_id, offset, 1), store.get_arrow(topic, queue_id, offset, 1)
        answers = [(a.status, a.next_begin_offset, a.min_offset, a.max_offset) for a in (page, arrow)]
        assert answers[0] == answers[1], (topic, queue_id, offset)
        assert arrow.batch.num_rows == len(page.messages)
        assert arrow.batch.schema.equals(MESSAGE_SCHEMA)


def test_no_rows_asked_for_are_none_given(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 2)
    page = store.get_arrow("T", 0, 1, max_messages=0)
    assert (page.status, page.next_begin_offset, page.batch.num_rows) == (GetStatus.NO_MATCHED_MESSAGE, 1, 0)


def test_a_page_holds_more_than_a_get_would(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 500)
    assert numbers(store.get_arrow("T", 0, 0).batch) == list(range(500))


@pytest.mark.parametrize(("max_bytes", "expected"), [(1000, 10), (999, 9), (100, 1), (99, 1), (0, 1)])
def test_bytes_bound_a_page_that_has_at_least_one_row(max_bytes: int, expected: int, home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 20, size=8)
    assert store.log.max_offset == 2000
    page = store.get_arrow("T", 0, 3, max_bytes=max_bytes)
    assert (page.batch.num_rows, page.next_begin_offset, page.record_bytes) == (expected, 3 + expected, 100 * expected)
    log = store.log_arrow(300, max_bytes=max_bytes)
    assert (log.batch.num_rows, log.next_offset) == (expected, 300 + 100 * expected)


def test_pages_end_where_files_end_and_give_each_row_once(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=300)
    for number in range(150):
        assert store.put(Message("TU"[number % 2], b"%d" % number, queue_id=number % 3)).ok
    assert len(home.log_files()) > 3
    expected = [expected_row(record) for record in home.read_queue(store, "T", 2)]
    assert len(expected) == 25
    for bounds in ({}, {"max_messages": 1}, {"max_messages": 7}, {"max_bytes": 1}, {"max_bytes": 777}):
        assert read_queue(store, "T", 2, **bounds) == expected
    whole = read_log(store)
    assert [int(row["body"]) for row in whole] == list(range(150))
    for max_bytes in (1, 100, 1000, 10**9):
        assert read_log(store, max_bytes=max_bytes) == whole


def test_a_read_only_view_gives_the_same_rows(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    put_numbered(store, 60)
    view = home.open(read_only=True, mapped_file_size_commit_log=4096)
    assert read_queue(view, "T") == read_queue(store, "T")
    assert read_log(view) == read_log(store)


def test_gets_are_counted(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 5)
    store.get_arrow("T", 0, 0)
    store.get_arrow("T", 0, 5)
    figures = store.figures()
    assert (figures.get_total, figures.get_found, figures.got_messages) == (2, 1, 5)
    assert figures.got_bytes == store.log.max_offset


# -- damage --------------------------------------------------------------------------------------------------


@pytest.fixture
def damaged(home: StoreHome) -> MessageStore:
    """Ten messages of 100 bytes, of which the fourth has one bit of its body turned over."""
    store = home.open()
    put_numbered(store, 10, size=8)
    store.catch_up()
    home.flip(home.log_files()[0], 300 + 88)
    return store


def outline(page: ArrowPage) -> tuple[GetStatus, int, list[int], tuple[int, ...]]:
    return page.status, page.next_begin_offset, numbers(page.batch), page.damaged


def test_a_damaged_record_is_passed_over_and_only_that(damaged: MessageStore) -> None:
    assert outline(damaged.get_arrow("T", 0, 0)) == (GetStatus.FOUND, 10, [0, 1, 2, 4, 5, 6, 7, 8, 9], (3,))
    assert outline(damaged.get_arrow("T", 0, 3, 1)) == (GetStatus.MESSAGE_WAS_REMOVING, 4, [], (3,))


def test_the_log_ends_a_page_before_damage_and_passes_over_it_with_the_next(damaged: MessageStore) -> None:
    first = damaged.log_arrow()
    assert (numbers(first.batch), first.next_offset) == ([0, 1, 2], 300)
    second = damaged.log_arrow(first.next_offset)
    assert (numbers(second.batch), second.next_offset) == ([4, 5, 6, 7, 8, 9], 1000)
    assert second.batch.column("physical_offset")[0].as_py() == 400, "the gap says that something was passed over"


def test_without_the_check_on_read_a_damaged_body_is_served(home: StoreHome) -> None:
    store = home.open(verify_crc_on_read=False)
    put_numbered(store, 3, size=8)
    store.catch_up()
    home.flip(home.log_files()[0], 100 + 95)
    assert store.get_arrow("T", 0, 0).batch.num_rows == 3
    assert store.log_arrow().batch.num_rows == 3


def test_damage_up_to_the_end_of_the_log_ends_it(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3, size=8)
    home.write(home.log_files()[0], 200, bytes(100))
    assert store.log_arrow(200).batch.num_rows == 0
    assert store.log_arrow(200).next_offset == 300


@pytest.mark.parametrize(("offset", "size"), [(100, 100), (50, 100), (100, 99), (1, 100)])
def test_a_unit_that_points_elsewhere_serves_nothing(offset: int, size: int, home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 1, "T", size=8)
    put_numbered(store, 1, "U", size=8)
    put_numbered(store, 1, "T", size=8)
    store.catch_up()
    home.write(home.queue_files("T")[0], 0, pack_unit(offset, size, 0))
    page = store.get_arrow("T", 0, 0)
    assert (page.status, page.next_begin_offset) == (GetStatus.FOUND, 2)
    assert page.batch.column("queue_offset").to_pylist() == [1]
    assert page.damaged == store.get("T", 0, 0).damaged


@pytest.mark.parametrize("unit", [pack_unit(10**12, 100, 0), pack_unit(0, 2**31 - 1, 0)])
def test_a_unit_that_points_to_nothing_is_passed_over(unit: bytes, home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 3, size=8)
    store.catch_up()
    home.write(home.queue_files("T")[0], 20, unit)
    assert [int(row["body"]) for row in read_queue(store, "T")] == [0, 2]


def test_rows_whose_log_file_is_gone_are_passed_over(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    put_numbered(store, 90, size=8)
    store.catch_up()
    assert store.log.queue.drop_first()
    first = store.get_arrow("T", 0, 0)
    assert (first.status, first.damaged) == (GetStatus.FOUND, ())
    assert numbers(first.batch) == list(range(40, 80))
    log = store.log_arrow(0)
    assert numbers(log.batch) == list(range(40, 80)), "the log begins where its first file does"


# -- pyarrow -------------------------------------------------------------------------------------------------


def test_without_pyarrow_the_store_works_and_a_batch_is_one_sentence(tmp_path: Path) -> None:
    text = """
import sys
sys.modules["pyarrow"] = None
from penstock.errors import MissingPackage
from penstock.store import ArrowPage, Message, MessageStore, Settings
with MessageStore.open(sys.argv[1], Settings.dev()) as store:
    assert store.put(Message("T", b"x")).ok
    assert store.get("T", 0, 0).messages
    for call in (lambda: store.put_arrow(None), lambda: store.get_arrow("T", 0, 0), lambda: store.log_arrow()):
        try:
            call()
        except MissingPackage as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", text, tmp_path / "s"], capture_output=True, text=True, check=True)
    assert done.stdout == "Arrow batches need the package pyarrow: pip install 'penstock[arrow]'\n" * 3

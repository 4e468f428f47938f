"""Pages of the log as Arrow record batches: where they begin and end."""

from __future__ import annotations

import pytest
from support.arrow import numbers, put_numbered, read_log
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.format.arrow_rows import MESSAGE_SCHEMA
from penstock.store import Message

pytestmark = pytest.mark.usefixtures("kernels_name")


def test_the_log_may_be_entered_at_any_byte(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    put_numbered(store, 60)
    rows = read_log(store)
    for start in (*range(0, 300, 13), 4000, 4090, 4096, store.log.max_offset - 1):
        assert read_log(store, start) == [row for row in rows if row["physical_offset"] >= start], start


def test_behind_the_end_of_the_log_there_are_no_rows_and_the_end_is_told(home: StoreHome) -> None:
    store = home.open()
    assert store.log_arrow() == (store.log_arrow().batch, 0)
    put_numbered(store, 2)
    end = store.log.max_offset
    for start in (end, end + 1, 10**12):
        page = store.log_arrow(start)
        assert (page.batch.num_rows, page.next_offset) == (0, end)
        assert page.batch.schema.equals(MESSAGE_SCHEMA)
    assert store.log_arrow(-5).batch.num_rows == 2


@pytest.mark.parametrize("most", [1, 7, 60, 1000])
def test_rows_bound_a_page_that_has_at_least_one(most: int, home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=16_384)
    put_numbered(store, 60)
    page = store.log_arrow(max_messages=most)
    assert numbers(page.batch) == list(range(min(most, 60)))
    assert read_log(store, max_messages=most) == read_log(store)
    assert store.log_arrow(max_messages=0).batch.num_rows == 1


def test_new_records_are_seen_from_where_the_last_page_ended(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 2)
    page = store.log_arrow()
    assert store.put(Message("T", b"77")).ok
    batch, _ = store.log_arrow(page.next_offset)
    assert numbers(batch) == [77]


def test_a_closed_store_gives_no_rows_but_an_error(home: StoreHome) -> None:
    store = home.open()
    put_numbered(store, 1)
    store.close()
    for read in (store.log_arrow, lambda: store.get_arrow("T", 0, 0)):
        with pytest.raises(StoreFailed):
            read()

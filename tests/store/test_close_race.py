"""Reading while the store is closed: the right answer, or an error that says so; never an empty answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from support.stores import StoreHome

from penstock.errors import StoreFailed
from penstock.store import MessageStore

pytestmark = pytest.mark.usefixtures("kernels_name")

COUNT = 40
Read = Callable[[MessageStore], int]

READS: dict[str, Read] = {
    "get": lambda store: store.get("T", 0, 0, COUNT).count,
    "query": lambda store: len(store.query("T", "k7")) * COUNT,
    "query_many_messages": lambda store: len(
        store.query_many_messages("T", [f"k{number}" for number in range(COUNT)])[1]
    ),
    "query_many": lambda store: len(store.query_many("T", [f"k{number}" for number in range(COUNT)])[0]),
}


def close_while_it_is_read(store: MessageStore, read: Read) -> list[object]:
    """What three readers saw that they should not have."""
    wrong: list[object] = []
    reading = threading.Barrier(4)

    def keep_reading() -> None:
        reading.wait()
        try:
            while True:
                found = read(store)
                if found != COUNT:
                    wrong.append(found)
        except StoreFailed as error:
            if "closed" not in str(error):
                wrong.append(error)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=keep_reading) for _ in range(3)]
    for thread in threads:
        thread.start()
    reading.wait()
    store.close()
    for thread in threads:
        thread.join()
    return wrong


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_read_that_races_with_close_answers_rightly_or_says_that_the_store_is_closed(
    home: StoreHome, read: Read
) -> None:
    with home.open() as store:
        home.put_numbered(store, COUNT)
    for _ in range(20):
        store = home.open(max_transfer_count_on_message_in_memory=COUNT)
        assert close_while_it_is_read(store, read) == []

"""Many threads at once, the store's clock, and callbacks for arrivals."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.stores import StoreHome

from penstock.clock import now_ms
from penstock.format.kernels import java_hash
from penstock.store import GetStatus, Message

pytestmark = pytest.mark.usefixtures("kernels_name")


# -- many at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("real_clock", [True, False], ids=["the_systems_clock", "a_clock_of_ones_own"])
@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_many_threads_put_and_get_at_once(home: StoreHome, sync: bool, real_clock: bool) -> None:
    """Single messages and batches, over file rolls, while others read: every offset is given once, nothing is torn."""
    sizes = {"mapped_file_size_commit_log": 4096, "mapped_file_size_consume_queue": 50 * 20}
    store = home.open(sync=sync, clock=now_ms if real_clock else None, **sizes)
    rounds, writers = 40, 4
    done = threading.Event()

    def write(writer: int) -> list[tuple[int, bytes]]:
        given = []
        for number in range(rounds):
            body = b"%d-%d" % (writer, number)
            if number % 5 == 4:
                batch = store.put_many([Message("T", body + b"a"), Message("T", body + b"b", keys=("k",))])
                given += [(batch.results[0].queue_offset, body + b"a"), (batch.results[1].queue_offset, body + b"b")]
            else:
                given.append((store.put(Message("T", body)).queue_offset, body))
        return given

    def read() -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            last = done.is_set()
            page = store.get("T", 0, len(bodies))
            bodies += [message.body for message in page.messages]
            if last and page.status is not GetStatus.FOUND:
                return bodies

    with ThreadPoolExecutor(writers + 2) as threads:
        reading = [threads.submit(read) for _ in range(2)]
        try:
            given = [pair for each in [threads.submit(write, n) for n in range(writers)] for pair in each.result(120)]
        finally:
            done.set()
        expected = [body for _, body in sorted(given)]
        assert sorted(offset for offset, _ in given) == list(range(len(given)))
        assert [each.result(120) for each in reading] == [expected, expected]
    store.close()
    assert home.bodies(home.open(**sizes), "T") == expected


def test_the_store_time_is_the_systems_unless_told(home: StoreHome) -> None:
    store = home.open(clock=now_ms)
    before = now_ms()
    acks = [store.put(Message("T", b"")), store.put(Message("T", b"")), *store.put_many([Message("T", b"")]).results]
    after = now_ms()
    assert all(before <= ack.store_timestamp <= after for ack in acks)
    messages = home.read_queue(store, "T")
    assert [message.store_timestamp for message in messages] == [ack.store_timestamp for ack in acks]
    assert [message.born_timestamp for message in messages] == [ack.store_timestamp for ack in acks]


# -- following -----------------------------------------------------------------------------------------------


def test_listeners_are_called_for_each_arrival(home: StoreHome) -> None:
    store = home.open()
    arrivals: list[tuple[str, int, int, list[int]]] = []
    called = threading.Event()

    def arrived(topic: str, queue_id: int, max_offset: int, codes: object) -> None:
        arrivals.append((topic, queue_id, max_offset, list(codes)))  # type: ignore[call-overload]
        called.set()

    store.on_arrival(arrived)
    store.put(Message("T", b"", queue_id=2, tags="paid"))
    assert called.wait(30), "dispatch is woken by the put"
    assert arrivals == [("T", 2, 1, [java_hash("paid")])]


def test_a_read_sees_what_was_acknowledged_before_it(home: StoreHome) -> None:
    store = home.open()
    for number in range(200):
        store.put(Message("T", b"%d" % number))
        assert store.max_offset("T", 0) == number + 1

"""One test or more for each status that a put can answer: when, why in one sentence, and what was stored.

MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED and CREATE_MAPEDFILE_FAILED are in test_put_refusals.py;
FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE need replication.
"""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome, assert_nothing_stored, eventually, is_one_sentence

from penstock.store import GetStatus, Message, PutResult, PutStatus

pytestmark = pytest.mark.usefixtures("kernels_name")


# -- PUT_OK --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_put_ok_says_where_the_message_is(home: StoreHome, sync: bool) -> None:
    store = home.open(sync=sync)
    first = store.put(Message("orders", b"one", queue_id=2))
    second = store.put(Message("orders", b"two", queue_id=2))
    assert (first.status, first.ok, first.stored, first.reason) == (PutStatus.PUT_OK, True, True, "")
    assert (first.physical_offset, first.queue_id, first.queue_offset) == (0, 2, 0)
    assert (second.physical_offset, second.queue_offset) == (first.size, 1)
    assert second.store_timestamp == home.clock.now
    found = store.look_up_id(second.msg_id)
    assert found is not None
    assert found.body == b"two"


def test_put_ok_means_on_disk_under_sync_flush(home: StoreHome, disk: FaultyFiles) -> None:
    synced: list[str] = []
    disk.before_sync = lambda path: synced.append(path.parent.name)
    store = home.open(files=disk, sync=True)
    synced.clear()
    for _ in range(3):
        result = store.put(Message("orders", b"safe"))
        assert result.status is PutStatus.PUT_OK
        assert store.log.queue.flushed_where >= result.end_offset
    assert synced.count("commitlog") >= 3


def test_put_ok_comes_at_once_for_a_message_that_does_not_wait(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    go_on = threading.Event()
    disk.before_sync = lambda path: go_on.wait(60) and None
    try:
        by_flag = store.put(Message("orders", b"now", wait=False))
        by_property = store.put(Message("orders", b"now", properties={"WAIT": "false"}))
        assert (by_flag.status, by_property.status) == (PutStatus.PUT_OK, PutStatus.PUT_OK)
        assert store.get("orders", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE
    finally:
        go_on.set()


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_put_async_answers_through_a_future(home: StoreHome, sync: bool) -> None:
    store = home.open(sync=sync)
    futures = [store.put_async(Message("orders", b"%d" % number)) for number in range(50)]
    answers = [future.result(30) for future in futures]
    assert {answer.status for answer in answers} == {PutStatus.PUT_OK}
    assert [answer.queue_offset for answer in answers] == list(range(50))
    assert home.bodies(store, "orders") == [b"%d" % number for number in range(50)]


# -- FLUSH_DISK_TIMEOUT --------------------------------------------------------------------------------------


def test_flush_disk_timeout_says_that_the_message_is_stored_but_not_yet_on_disk(
    home: StoreHome, disk: FaultyFiles
) -> None:
    store = home.open(files=disk, sync=True, sync_flush_timeout=50)
    assert store.append(Message("orders", b"before")).ok
    store.flush()  # however long the disk itself takes
    go_on = threading.Event()
    disk.before_sync = lambda path: go_on.wait(60) and None
    try:
        store.put_async(Message("other", b"the flush thread syncs for it, so that the next put need not"))
        result = store.put(Message("orders", b"slow"))
        assert result.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert result.stored
        assert result.queue_offset == 1
        assert is_one_sentence(result.reason), result.reason
        assert home.bodies(store, "orders") == [b"before"], "consumers must not see what is not on disk"
    finally:
        go_on.set()
    store.flush()
    assert home.bodies(store, "orders") == [b"before", b"slow"]


def test_a_batch_waits_for_the_disk_once_and_not_once_for_each_message(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True, sync_flush_timeout=600)
    assert store.append(Message("orders", b"before")).ok
    store.flush()
    go_on = threading.Event()
    disk.before_sync = lambda path: go_on.wait(60) and None
    try:
        store.put_async(Message("other", b"the flush thread syncs for it, so that the next put need not"))
        started = time.monotonic()
        batch = store.put_many([Message("orders", b"slow")] * 20)
        assert time.monotonic() - started < 10
        assert batch.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert [result.queue_offset for result in batch.results] == list(range(1, 21))
    finally:
        go_on.set()


# -- SERVICE_NOT_AVAILABLE, and UNKNOWN_ERROR for the put that met the failure -------------------------------


def test_a_failed_sync_stops_writes_and_the_next_open_is_sound(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    store.put(Message("orders", b"safe"))
    disk.before_sync = lambda path: refuse(errno.EIO) if path.parent.name == "commitlog" else None

    waiting = store.put(Message("orders", b"doubtful"))
    assert waiting.status is PutStatus.UNKNOWN_ERROR
    assert not waiting.stored
    assert is_one_sentence(waiting.reason), waiting.reason

    synced_later: list[str] = []
    disk.before_sync = lambda path: synced_later.append(path.parent.name)  # it would succeed, and prove nothing
    end = store.log.queue.wrote_offset
    later = store.put(Message("orders", b"refused"))
    assert later.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "sync" in later.reason
    assert_nothing_stored(store, later, end)
    assert store.put_many([Message("orders", b"refused")] * 2).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.put_async(Message("orders", b"refused")).result(30).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert home.bodies(store, "orders") == [b"safe"], "consumers must not see what may not be on disk"

    store.close()
    assert "commitlog" not in synced_later, "a sync that failed is never tried again"
    assert (home.path / "abort").exists()
    again = home.open(sync=True)
    assert not again.report.clean_exit
    assert home.bodies(again, "orders") == [b"safe", b"doubtful"]
    assert again.put(Message("orders", b"goes on")).queue_offset == 2


def test_a_failed_sync_of_a_queue_stops_writes_too(home: StoreHome, disk: FaultyFiles) -> None:
    failed = threading.Event()

    def refuse_queues(path: Path) -> None:
        if "consumequeue" in path.parts:
            failed.set()
            refuse(errno.EIO)

    store = home.open(files=disk, flush_interval_consume_queue=1, flush_consume_queue_thorough_interval=0)
    disk.before_sync = refuse_queues
    assert store.put(Message("orders", b"safe")).ok
    assert failed.wait(30)
    eventually(lambda: not store.put(Message("orders", b"x")).ok, "puts are still taken")
    result = store.put(Message("orders", b"refused"))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert_nothing_stored(store, result, store.log.queue.wrote_offset)
    store.close()
    assert (home.path / "abort").exists()
    assert home.bodies(home.open(), "orders")[0] == b"safe"


def test_a_closed_store_takes_nothing(home: StoreHome) -> None:
    store = home.open()
    store.close()
    result = store.put(Message("orders", b"late"))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "closed" in result.reason
    assert not result.stored
    assert store.put_many([Message("orders", b"late")]).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.put_async(Message("orders", b"late")).result(1).status is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_what_was_acknowledged_while_the_store_was_closing_is_there_afterwards(home: StoreHome, sync: bool) -> None:
    store = home.open(sync=sync, mapped_file_size_commit_log=4096)
    started = threading.Barrier(5)

    def put_until_refused(number: int) -> tuple[list[int], PutResult]:
        offsets = []
        started.wait(30)
        while True:
            result = store.put(Message("orders", b"x" * 50, queue_id=number))
            if not result.ok:
                return offsets, result
            offsets.append(result.queue_offset)

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(put_until_refused, number) for number in range(4)]
        started.wait(30)
        eventually(lambda: store.log.queue.wrote_offset > 20_000, "no put is stored")
        store.close()
        answers = [each.result(60) for each in running]
    assert {last.status for _, last in answers} == {PutStatus.SERVICE_NOT_AVAILABLE}
    again = home.open(mapped_file_size_commit_log=4096)
    assert again.report.clean_exit
    for number, (offsets, _) in enumerate(answers):
        assert [message.queue_offset for message in home.read_queue(again, "orders", number)] == offsets


@pytest.mark.parametrize("sync", [False, True], ids=["async_flush", "sync_flush"])
def test_a_put_that_is_under_way_when_the_store_is_closed_is_finished_first(
    home: StoreHome, disk: FaultyFiles, sync: bool
) -> None:
    store = home.open(files=disk, sync=sync)
    in_allocation, go_on = threading.Event(), threading.Event()

    def wait_in_allocation(path: Path) -> None:
        in_allocation.set()
        go_on.wait(60)

    disk.before_allocate = wait_in_allocation
    with ThreadPoolExecutor(2) as threads:
        putting = threads.submit(store.put, Message("orders", b"just in time"))
        assert in_allocation.wait(30)
        closing = threads.submit(store.close)
        eventually(lambda: not store.flags.writable, "the store is not being closed")
        disk.before_allocate = lambda path: None
        go_on.set()
        closing.result(30)
        assert putting.result(30).status is PutStatus.PUT_OK
    again = home.open()
    assert again.report.clean_exit
    assert home.bodies(again, "orders") == [b"just in time"]


def test_a_disk_without_room_for_a_queue_refuses_puts_until_there_is_room(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk)
    tried = threading.Event()

    def refuse_queues(path: Path) -> None:
        if "consumequeue" in path.parts:
            tried.set()
            refuse(errno.ENOSPC)

    disk.before_allocate = refuse_queues
    assert store.put(Message("orders", b"first")).ok
    assert tried.wait(30)
    eventually(lambda: not store.flags.writable, "puts are still accepted though dispatch is stuck")
    result = store.put(Message("orders", b"refused"))
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no space left" in result.reason
    assert_nothing_stored(store, result, store.log.queue.wrote_offset)
    assert store.get("orders", 0, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE

    disk.before_allocate = lambda path: None
    eventually(lambda: store.flags.writable, "dispatch did not go on")
    assert store.put(Message("orders", b"second")).queue_offset == 1
    assert home.bodies(store, "orders") == [b"first", b"second"]


# -- OS_PAGECACHE_BUSY ---------------------------------------------------------------------------------------


def test_os_pagecache_busy_while_another_put_holds_the_log_for_too_long(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, os_page_cache_busy_time_out_mills=5)
    go_on = threading.Event()
    disk.before_allocate = lambda path: go_on.wait(60) and None
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(store.put, Message("orders", b"slow"))
        try:
            eventually(lambda: store.log.locked_for() > 0.005, "the put lock is free")
            busy = store.put(Message("orders", b"impatient"))
            assert busy.status is PutStatus.OS_PAGECACHE_BUSY
            assert_nothing_stored(store, busy, 0)
        finally:
            go_on.set()
        assert slow.result(30).status is PutStatus.PUT_OK
    assert store.put(Message("orders", b"later")).status is PutStatus.PUT_OK
    assert home.bodies(store, "orders") == [b"slow", b"later"]


def test_a_put_that_finds_the_log_held_for_a_moment_waits_its_turn(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, os_page_cache_busy_time_out_mills=60_000)
    go_on = threading.Event()
    disk.before_allocate = lambda path: go_on.wait(60) and None
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(store.put, Message("orders", b"first"))
        eventually(lambda: store.log.locked_for() > 0, "the put lock is free")
        second = threads.submit(store.put, Message("orders", b"second"))
        go_on.set()
        assert (first.result(30).status, second.result(30).status) == (PutStatus.PUT_OK, PutStatus.PUT_OK)


# -- UNKNOWN_ERROR -------------------------------------------------------------------------------------------


def test_unknown_error_for_every_put_that_waited_for_a_sync_that_failed(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, sync=True)
    store.put(Message("orders", b"safe"))
    in_sync, go_on = threading.Event(), threading.Event()

    def fail_later(path: Path) -> None:
        if path.parent.name == "commitlog":
            in_sync.set()
            go_on.wait(60)
            refuse(errno.EIO)

    disk.before_sync = fail_later
    with ThreadPoolExecutor(1) as threads:
        first = store.put_async(Message("orders", b"one"))
        assert in_sync.wait(30)
        second = store.put_async(Message("orders", b"two"))
        batch = threads.submit(store.put_many, [Message("orders", b"three")] * 2)
        try:
            eventually(lambda: store.log.queue.wrote_offset > 5 * 100, "the batch was not appended")
        finally:
            go_on.set()
        answers = [first.result(30), second.result(30)]
        assert [answer.status for answer in answers] == [PutStatus.UNKNOWN_ERROR] * 2
        assert batch.result(30).status is PutStatus.UNKNOWN_ERROR
        assert batch.result(30).results == ()
    for answer in answers:
        assert is_one_sentence(answer.reason), answer.reason
        assert not answer.stored
    assert home.bodies(store, "orders") == [b"safe"]

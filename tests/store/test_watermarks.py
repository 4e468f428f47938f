"""The watermarks of a log, and the waits for them: who is answered when, with which status, and on which thread."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome, eventually

from penstock.store import Message, PutStatus, Settings
from penstock.store import watermarks as watermarks_module
from penstock.store.files.file_io import Files
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.watermarks import Waiter, Watermarks

DISK = {"flush_disk_type": "SYNC_FLUSH"}
SLAVE = {"broker_role": "SYNC_MASTER"}
BOTH = {**DISK, **SLAVE}
PATIENT = {"sync_flush_timeout": 60_000, "slave_timeout": 60_000}


class Log:
    """Watermarks of a log that a test moves by hand, and the waits that have ended, one list per call of the sink."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.queue = MappedFileQueue(Files(), folder, 1 << 20)
        self.marks = Watermarks(self.queue, Settings.dev(**{**PATIENT, **settings}))
        self.batches: list[list[int]] = []
        self.threads: list[int] = []

    def wait(self, end_offset: int) -> Waiter[None]:
        return self.marks.wait(end_offset, self.sink, None)

    def sink(self, waiters: list[Waiter[None]]) -> None:
        self.batches.append([waiter.end_offset for waiter in waiters])
        self.threads.append(threading.get_ident())

    def flush(self, offset: int) -> None:
        self.queue.flushed_where = offset
        self.marks.advance()


class HandTime:
    """A clock for the module under test."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hand_time(monkeypatch: pytest.MonkeyPatch) -> HandTime:
    clock = HandTime()
    monkeypatch.setattr(watermarks_module, "time", clock)
    return clock


# -- one move ends many waits --------------------------------------------------------------------------------


def test_one_sync_ends_all_waits_that_it_covers_in_one_call_on_its_own_thread(tmp_path: Path) -> None:
    log = Log(tmp_path, **DISK)
    for end in range(100, 600, 100):
        log.wait(end)
    syncing = threading.Thread(target=log.flush, args=(350,))
    syncing.start()
    syncing.join()
    assert log.batches == [[100, 200, 300]]
    assert log.threads == [syncing.ident]
    log.flush(500)
    assert log.batches == [[100, 200, 300], [400, 500]]


def test_one_ack_ends_all_waits_that_it_covers(tmp_path: Path) -> None:
    log = Log(tmp_path, **SLAVE)
    log.marks.slave_connected()
    for end in range(100, 1100, 100):
        log.wait(end)
    log.marks.acknowledge(550)
    assert log.batches == [[100, 200, 300, 400, 500]], "one call for many"
    log.marks.acknowledge(300)
    assert log.marks.replicated == 550, "a watermark only grows"


def test_waits_that_come_in_another_order_than_their_records_are_ended_in_log_order(tmp_path: Path) -> None:
    log = Log(tmp_path, **SLAVE)
    log.marks.slave_connected()
    for end in (300, 100, 500, 200, 400):
        log.wait(end)
    log.marks.acknowledge(250)
    assert log.batches == [[100, 200]], "300 came first and must not hold them up"
    log.marks.acknowledge(500)
    assert log.batches[1:] == [[300, 400, 500]]


def test_a_wait_for_what_is_safe_already_ends_at_once(tmp_path: Path) -> None:
    log = Log(tmp_path, **DISK)
    log.flush(100)
    assert log.wait(100).status is PutStatus.PUT_OK
    assert log.batches == [[100]]
    assert log.threads == [threading.get_ident()]


def test_a_put_that_waits_for_disk_and_slave_needs_both(tmp_path: Path) -> None:
    log = Log(tmp_path, **BOTH)
    log.marks.slave_connected()
    waiter = log.wait(100)
    log.wait(200)
    log.flush(200)
    assert not log.batches
    log.marks.acknowledge(150)
    assert log.batches == [[100]]
    assert waiter.status is PutStatus.PUT_OK


def test_nobody_waits_without_a_reason(tmp_path: Path) -> None:
    log = Log(tmp_path)
    assert not any(log.marks.needs)
    assert log.wait(100).status is PutStatus.PUT_OK


def test_the_server_is_asked_to_send_when_a_put_waits_for_a_slave_and_only_then(tmp_path: Path) -> None:
    log = Log(tmp_path, **SLAVE)
    asked: list[int] = []
    listener = asked.append
    log.marks.on_slave_wait(lambda: listener(1))
    log.wait(100)
    assert not asked, "no slave is connected"
    log.marks.slave_connected()
    log.wait(100)
    assert asked == [1]
    log.marks.acknowledge(100)
    log.wait(100)
    assert asked == [1]


# -- deadlines -----------------------------------------------------------------------------------------------


def test_each_watermark_has_its_own_deadline(tmp_path: Path, hand_time: HandTime) -> None:
    log = Log(tmp_path, **BOTH, sync_flush_timeout=5000, slave_timeout=3000)
    disk_only = log.wait(100)  # no slave is connected
    log.marks.slave_connected()
    both = log.wait(200)
    hand_time.now += 3.0
    assert log.marks.end_overdue() == pytest.approx(2.0)
    assert not log.batches, "the slave is too late, but the disk has time left"
    hand_time.now += 1.99
    log.marks.end_overdue()
    assert not log.batches
    hand_time.now += 0.02
    assert log.marks.end_overdue() is None
    assert log.batches == [[100, 200]]
    assert disk_only.status is PutStatus.SLAVE_NOT_AVAILABLE, "a slave's status wins over the disk's"
    assert both.status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert "after 3 seconds" in both.reason


def test_a_slave_has_its_own_time_when_the_disk_is_too_late(tmp_path: Path, hand_time: HandTime) -> None:
    log = Log(tmp_path, **BOTH, sync_flush_timeout=1000, slave_timeout=3000)
    log.marks.slave_connected()
    waiter = log.wait(100)
    hand_time.now += 1.5
    log.marks.end_overdue()
    assert not log.batches
    log.marks.acknowledge(100)
    assert waiter.status is PutStatus.FLUSH_DISK_TIMEOUT
    assert "not on disk after 1 seconds" in waiter.reason


def test_the_thread_is_woken_once_for_many_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(tmp_path, **DISK)
    woken: list[int] = []
    monkeypatch.setattr(log.marks.deadlines, "wake", lambda: woken.append(1))
    for end in range(100, 1000, 100):
        log.wait(end)
        log.flush(end)
    assert woken == [1], "it sleeps until the first deadline, though that wait has ended long since"
    assert log.marks.end_overdue() is None
    log.wait(2000)
    assert woken == [1, 1]


def test_the_thread_ends_overdue_waits(tmp_path: Path) -> None:
    log = Log(tmp_path, **DISK, sync_flush_timeout=20)
    log.marks.deadlines.start()
    waiter = log.wait(100)
    eventually(lambda: log.batches, "the wait never ended")
    assert waiter.status is PutStatus.FLUSH_DISK_TIMEOUT
    log.marks.deadlines.stop()


# -- failure and end -----------------------------------------------------------------------------------------


def test_after_a_failed_sync_nothing_more_is_reported_as_safe(tmp_path: Path) -> None:
    log = Log(tmp_path, **BOTH)
    moved: list[str | None] = []
    log.marks.on_advance(lambda: moved.append(log.marks.failure))
    log.marks.slave_connected()
    first, second, third = log.wait(100), log.wait(200), log.wait(300)
    log.queue.flushed_where = 200  # one file was synced, the next one failed
    log.marks.acknowledge(100)
    log.marks.fail("EIO")
    assert [waiter.status for waiter in (first, second, third)] == [
        PutStatus.PUT_OK,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.UNKNOWN_ERROR,
    ]
    assert third.reason == "EIO"
    assert moved == ["EIO"]
    assert sorted(end for batch in log.batches for end in batch) == [100, 200, 300]
    log.marks.acknowledge(1000)
    assert log.wait(400).status is PutStatus.UNKNOWN_ERROR


def test_a_wait_that_begins_after_the_last_sync_ends_at_once(tmp_path: Path) -> None:
    """A put may be appended before the store closes and come to wait for its sync after the last one."""
    log = Log(tmp_path, **BOTH)
    log.flush(100)
    log.marks.close("the store is closed")
    assert log.marks.failure is None, "closing is no failure"
    log.marks.acknowledge(100)
    assert log.wait(100).status is PutStatus.PUT_OK
    late = log.wait(101)
    assert late.status is PutStatus.FLUSH_SLAVE_TIMEOUT, "it is in the log, which close has synced or will sync"
    assert late.reason.endswith("in time: the store is closed")
    assert log.batches == [[100], [101]]


def test_waits_for_the_disk_end_at_close_as_stored_and_not_on_disk(tmp_path: Path) -> None:
    """Not with an error, which says that a message is not stored: it is in the log, and slaves may have it."""
    log = Log(tmp_path, **DISK)
    early = log.wait(100)
    log.marks.close("this broker is not the master any more")
    late = log.wait(200)
    for waiter in (early, late):
        assert waiter.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert waiter.reason == "stored, but it was not on disk in time: this broker is not the master any more"


# -- puts ----------------------------------------------------------------------------------------------------


class HeldDisk(FaultyFiles):
    """Syncs of the log wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.before_sync = lambda path: None

    def hold(self) -> None:
        self.before_sync = lambda path: self.go_on.wait(60) and None if path.parent.name == "commitlog" else None


def test_a_put_waits_for_the_disk_as_long_as_the_disk_may_take_whatever_the_slaves_time_is(home: StoreHome) -> None:
    disk = HeldDisk()
    store = home.open(files=disk, **{**BOTH, **PATIENT, "slave_timeout": 1})
    store.watermarks.slave_connected()
    disk.hold()
    with ThreadPoolExecutor(1) as threads:
        try:
            put = threads.submit(store.put, Message("orders", b"one"))
            asynchronous = store.put_async(Message("orders", b"two"))
            waits = store.watermarks._slaves
            eventually(
                lambda: store.log.next_offset("orders", 0) == 2 and waits.next_deadline == float("inf"), "no timeout"
            )
            assert not put.done()
            assert not asynchronous.done()
        finally:
            disk.go_on.set()
        assert put.result(30).status is PutStatus.FLUSH_SLAVE_TIMEOUT
        assert asynchronous.result(30).status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_put_async_answers_flush_disk_timeout_though_the_disk_never_does(home: StoreHome) -> None:
    disk = HeldDisk()
    store = home.open(files=disk, **DISK, sync_flush_timeout=20)
    disk.hold()
    try:
        answer = store.put_async(Message("orders", b"slow")).result(30)
        assert answer.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert answer.stored
    finally:
        disk.go_on.set()


def test_a_put_that_is_on_its_way_to_the_disk_cannot_be_cancelled(home: StoreHome) -> None:
    disk = HeldDisk()
    store = home.open(files=disk, **DISK, **PATIENT)
    disk.hold()
    try:
        answer = store.put_async(Message("orders", b"stored"))
        assert not answer.cancel()
    finally:
        disk.go_on.set()
    assert answer.result(30).ok
    assert store.put(Message("orders", b"the flush thread lives")).ok


def test_a_failed_sync_wins_over_what_the_slaves_did(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, **BOTH, **PATIENT)
    disk.before_sync = lambda path: refuse(errno.EIO) if path.parent.name == "commitlog" else None
    assert store.put(Message("orders", b"no slave, no disk")).status is PutStatus.UNKNOWN_ERROR


def test_a_put_that_waits_for_a_slave_is_answered_when_the_store_closes(home: StoreHome) -> None:
    store = home.open(**SLAVE, **PATIENT)
    store.watermarks.slave_connected()
    answer = store.put_async(Message("orders", b"one"))
    assert not answer.done()
    store.close()
    assert answer.result(0).status is PutStatus.FLUSH_SLAVE_TIMEOUT


def test_an_ordinary_put_touches_no_waiter(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open()
    monkeypatch.setattr(store.watermarks, "wait", lambda *_: pytest.fail("a put waited"))
    assert store.put(Message("orders", b"first")).ok
    assert store.put(Message("orders", b"second")).ok
    assert store.watermarks.appended == store.log.queue.wrote_offset
    assert not store.watermarks.deadlines._thread.is_alive()

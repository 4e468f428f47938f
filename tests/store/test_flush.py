"""Bringing the log to disk: group commit, the timed flush, and what consumers see meanwhile."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.disks import WAIT_SECONDS, FaultyFiles, Gate, WatchedFiles
from support.stores import eventually

from penstock.store import FlushDiskType, GetStatus, Message, MessageStore, PutStatus, Settings
from penstock.store import flush as flush_module
from penstock.store.files.mapped_file_queue import MappedFileQueue
from penstock.store.flush import LogSyncer, TimedFlush
from penstock.store.watermarks import Watermarks

PAGE = 4096
HOUR_MS = 3_600_000

Open = Callable[..., MessageStore]


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def disk(gate: Gate) -> WatchedFiles:
    return WatchedFiles(gate)


@pytest.fixture
def open_store(tmp_path: Path, disk: WatchedFiles, gate: Gate) -> Iterator[Open]:
    opened: list[MessageStore] = []

    def new(**changes: Any) -> MessageStore:
        opened.append(MessageStore.open(tmp_path / "store", Settings.dev(**changes), files=disk))
        return opened[-1]

    yield new
    gate.open()
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> MessageStore:
    """A store that syncs every put, with one message in it."""
    store = open_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=60_000)
    assert store.put(Message("orders", b"first")).ok
    return store


def bodies(store: MessageStore) -> list[bytes]:
    return [message.body for message in store.get("orders", 0, 0).messages]


# -- group commit --------------------------------------------------------------------------------------------


def test_one_sync_answers_all_puts_that_wait_for_the_disk(store: MessageStore, disk: WatchedFiles, gate: Gate) -> None:
    gate.shut()
    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(store.put, Message("orders", b"blocked"))
        gate.wait_until_reached()
        before = disk.syncs["commitlog"]
        waiting = [store.put_async(Message("orders", b"%d" % number)) for number in range(20)]
        assert not any(future.done() for future in [blocked, *waiting])
        gate.open()
        answers = [future.result(WAIT_SECONDS) for future in [blocked, *waiting]]
    assert {answer.status for answer in answers} == {PutStatus.PUT_OK}
    assert disk.syncs["commitlog"] - before == 2, "the one that was under way, and one for all the others"
    assert bodies(store) == [b"first", b"blocked", *(b"%d" % number for number in range(20))]


def test_many_threads_put_with_fewer_syncs_than_puts(store: MessageStore, disk: WatchedFiles) -> None:
    slow = 0.02  # each sync takes 20 ms, as on a disk that turns
    disk.on_sync = lambda path: time.sleep(slow)
    before = disk.syncs["commitlog"]
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: store.put(Message("orders", b"%d" % number)), range(64)))
    assert all(answer.ok for answer in answers)
    assert sorted(answer.queue_offset for answer in answers) == list(range(1, 65))
    assert disk.syncs["commitlog"] - before <= 32


def test_a_put_returns_only_once_its_record_is_on_disk(store: MessageStore, disk: WatchedFiles, gate: Gate) -> None:
    flushed: list[int] = []
    disk.on_sync = lambda path: flushed.append(store.log.queue.flushed_where)
    answer = store.put(Message("orders", b"second"))
    assert answer.ok
    assert flushed == [answer.physical_offset], "it was not on disk before the sync"
    assert store.log.queue.flushed_where == answer.end_offset


def test_a_batch_is_one_sync(store: MessageStore, disk: WatchedFiles) -> None:
    before = disk.syncs["commitlog"]
    assert store.put_many([Message("orders", b"%d" % number) for number in range(50)]).ok
    assert disk.syncs["commitlog"] - before == 1


def test_puts_that_reach_into_the_next_files_are_answered_together(
    open_store: Open, disk: WatchedFiles, gate: Gate
) -> None:
    store = open_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, mapped_file_size_commit_log=4096)
    gate.shut()
    waiting = [store.put_async(Message("orders", bytes(1000))) for _ in range(10)]
    gate.wait_until_reached()
    gate.open()
    answers = [future.result(WAIT_SECONDS) for future in waiting]
    assert all(answer.ok for answer in answers)
    assert answers[-1].physical_offset >= 3 * 4096
    assert store.log.queue.flushed_where == answers[-1].end_offset


def test_a_put_that_waits_too_long_while_another_leads_says_so_and_is_stored(open_store: Open, gate: Gate) -> None:
    store = open_store(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=20)
    gate.shut()
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        gate.wait_until_reached()
        answer = store.put(Message("orders", b"late"))
        assert answer.status is PutStatus.FLUSH_DISK_TIMEOUT
        assert answer.stored
        assert "not on disk after 0.02 seconds" in answer.reason
        assert not leader.done(), "its own sync is still under way"
        gate.open()
        assert leader.result(WAIT_SECONDS).status is PutStatus.FLUSH_DISK_TIMEOUT, "stored, but not in time"
    assert store.append(Message("orders", b"next")).ok
    store.flush()  # however long the disk itself takes
    assert bodies(store) == [b"leads", b"late", b"next"]


# -- who leads -----------------------------------------------------------------------------------------------


class SyncThreads:
    """Records the thread of each sync of the log. The first one waits until it may go on."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.is_reached = threading.Event()
        self.go_on = threading.Event()
        self.fails = False

    def __call__(self, path: Path) -> None:
        if path.parent.name == "commitlog":
            self.threads.append(threading.current_thread().name)
            if len(self.threads) == 1:
                self.is_reached.set()
                assert self.go_on.wait(WAIT_SECONDS), "the sync was never let go on"
            if self.fails:
                refuse(path)


FLUSH_THREAD = "penstock-group-commit"


def waiting(store: MessageStore) -> int:
    return len(store.watermarks._disk)


def test_a_put_that_nobody_syncs_for_syncs_on_its_own_thread(store: MessageStore, disk: WatchedFiles) -> None:
    disk.on_sync = syncs = SyncThreads()
    syncs.go_on.set()
    assert store.put(Message("orders", b"second")).ok
    assert syncs.threads == [threading.current_thread().name]


def test_the_leader_hands_over_to_the_first_who_waits(store: MessageStore, disk: WatchedFiles) -> None:
    disk.on_sync = syncs = SyncThreads()
    with ThreadPoolExecutor(16, "putting") as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        others = [threads.submit(store.put, Message("orders", b"waits")) for _ in range(15)]
        eventually(lambda: waiting(store) == 16, "the others never waited")
        syncs.go_on.set()
        assert all(answer.result(WAIT_SECONDS).ok for answer in [leader, *others])
    assert len(syncs.threads) == 2, "one sync for all 15"
    assert syncs.threads[1].startswith("putting")
    assert syncs.threads[1] != syncs.threads[0]


def test_asynchronous_callers_are_served_by_the_flush_thread(store: MessageStore, disk: WatchedFiles) -> None:
    disk.on_sync = syncs = SyncThreads()
    first = store.put_async(Message("orders", b"first"))
    assert syncs.is_reached.wait(WAIT_SECONDS)
    second = store.put_async(Message("orders", b"second"))
    syncs.go_on.set()
    assert first.result(WAIT_SECONDS).ok
    assert second.result(WAIT_SECONDS).ok
    assert set(syncs.threads) == {FLUSH_THREAD}


@pytest.mark.parametrize("first_is_blocking", [True, False])
def test_callers_that_block_and_callers_that_do_not_share_syncs(
    store: MessageStore, disk: WatchedFiles, first_is_blocking: bool
) -> None:
    disk.on_sync = syncs = SyncThreads()
    with ThreadPoolExecutor(4, "putting") as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        blocking: list[Future[Any]] = []
        answers: list[Future[Any]] = []
        for is_blocking in (first_is_blocking, not first_is_blocking):
            before = waiting(store)
            if is_blocking:
                blocking.append(threads.submit(store.put, Message("orders", b"blocks")))
            else:
                answers.append(store.put_async(Message("orders", b"does not")))
            eventually(lambda before=before: waiting(store) > before, "it never waited")
        syncs.go_on.set()
        assert all(each.result(WAIT_SECONDS).ok for each in [leader, *blocking, *answers])
    assert len(syncs.threads) == 2
    assert syncs.threads[1].startswith("putting" if first_is_blocking else FLUSH_THREAD)


def test_when_the_leaders_sync_fails_all_who_wait_get_the_reason_and_writes_stop(
    store: MessageStore, disk: WatchedFiles
) -> None:
    disk.on_sync = syncs = SyncThreads()
    syncs.fails = True
    with ThreadPoolExecutor(4) as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        others = [threads.submit(store.put, Message("orders", b"waits")) for _ in range(3)]
        others.append(store.put_async(Message("orders", b"does not block")))
        eventually(lambda: waiting(store) == 5, "the others never waited")
        syncs.go_on.set()
        answers = [each.result(WAIT_SECONDS) for each in [leader, *others]]
    assert {answer.status for answer in answers} == {PutStatus.UNKNOWN_ERROR}
    assert all("could not be synced" in (answer.reason or "") for answer in answers)
    assert store.put(Message("orders", b"no")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert len(syncs.threads) == 1, "a failed sync is never tried again"


def test_a_leader_that_raises_in_its_sync_wakes_the_others_with_the_failure(
    store: MessageStore, disk: WatchedFiles
) -> None:
    syncs = SyncThreads()

    def out_of_memory(path: Path) -> None:
        syncs(path)
        if path.parent.name == "commitlog":
            raise MemoryError("planted")

    disk.on_sync = out_of_memory
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        other = threads.submit(store.put, Message("orders", b"waits"))
        eventually(lambda: waiting(store) == 2, "the other never waited")
        syncs.go_on.set()
        assert leader.result(WAIT_SECONDS).status is PutStatus.UNKNOWN_ERROR
        assert other.result(WAIT_SECONDS).status is PutStatus.UNKNOWN_ERROR
    assert not store.put(Message("orders", b"no")).stored
    assert len(syncs.threads) == 1


def test_a_leader_that_is_interrupted_in_its_sync_leaves_it_to_the_flush_thread(
    store: MessageStore, disk: WatchedFiles
) -> None:
    syncs = SyncThreads()

    def interrupt_once(path: Path) -> None:
        syncs(path)
        if path.parent.name == "commitlog" and len(syncs.threads) == 1:
            raise KeyboardInterrupt

    disk.on_sync = interrupt_once
    with ThreadPoolExecutor(2) as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        other = threads.submit(store.put, Message("orders", b"waits"))
        eventually(lambda: waiting(store) == 2, "the other never waited")
        syncs.go_on.set()
        with pytest.raises(KeyboardInterrupt):
            leader.result(WAIT_SECONDS)
        assert other.result(WAIT_SECONDS).ok
    assert syncs.threads[1:] == [FLUSH_THREAD]
    assert store.put(Message("orders", b"goes on")).ok
    assert bodies(store) == [b"first", b"leads", b"waits", b"goes on"]


def test_if_the_next_leader_is_interrupted_the_flush_thread_leads(
    store: MessageStore, disk: WatchedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.on_sync = syncs = SyncThreads()
    lead, leads = store.watermarks._lead, 0

    def interrupted_once() -> None:
        nonlocal leads
        leads += 1
        if leads == 2:
            raise KeyboardInterrupt
        lead()

    monkeypatch.setattr(store.watermarks, "_lead", interrupted_once)
    with ThreadPoolExecutor(2, "putting") as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        second = threads.submit(store.put, Message("orders", b"is interrupted"))
        eventually(lambda: waiting(store) == 2, "the second never waited")
        third = store.put_async(Message("orders", b"third"))
        syncs.go_on.set()
        assert leader.result(WAIT_SECONDS).ok
        with pytest.raises(KeyboardInterrupt):
            second.result(WAIT_SECONDS)
        assert third.result(WAIT_SECONDS).ok
    assert syncs.threads[1:] == [FLUSH_THREAD]
    assert store.put(Message("orders", b"goes on")).ok


def test_a_store_that_closes_while_puts_wait_answers_them(
    store: MessageStore, disk: WatchedFiles, open_store: Open
) -> None:
    disk.on_sync = syncs = SyncThreads()
    with ThreadPoolExecutor(4) as threads:
        leader = threads.submit(store.put, Message("orders", b"leads"))
        assert syncs.is_reached.wait(WAIT_SECONDS)
        others = [threads.submit(store.put, Message("orders", b"waits")) for _ in range(2)]
        eventually(lambda: waiting(store) == 3, "the others never waited")
        closing = threads.submit(store.close)
        eventually(lambda: store._closed, "it never closed")
        assert not any(each.done() for each in [leader, *others])
        syncs.go_on.set()
        assert all(each.result(WAIT_SECONDS).ok for each in [leader, *others])
        closing.result(WAIT_SECONDS)
    again = open_store()
    assert again.report.clean_exit
    assert bodies(again) == [b"first", b"leads", b"waits", b"waits"]


# -- not waiting ---------------------------------------------------------------------------------------------


def test_a_message_that_asks_not_to_wait_is_answered_while_the_disk_is_busy(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    assert store.put(Message("orders", b"second", wait=False)).ok
    gate.wait_until_reached()  # it is synced all the same, though no put waits
    assert store.max_offset("orders", 0) == 1
    gate.open()
    assert store.put(Message("orders", b"third")).ok
    assert bodies(store) == [b"first", b"second", b"third"]


def test_the_property_wait_means_the_same(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    assert store.put(Message("orders", b"second", properties={"WAIT": "false"})).ok
    gate.open()


def test_a_batch_waits_if_one_of_its_messages_does(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    with ThreadPoolExecutor(1) as threads:
        batch = [Message("orders", b"a", wait=False), Message("orders", b"b")]
        answer = threads.submit(store.put_many, batch)
        gate.wait_until_reached()
        assert not answer.done()
        gate.open()
        assert answer.result(WAIT_SECONDS).ok


def test_a_put_without_waiting_is_answered_in_a_future(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    answer = store.put_async(Message("orders", b"second"))
    gate.wait_until_reached()
    assert not answer.done()
    gate.open()
    result = answer.result(WAIT_SECONDS)
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 1)


def test_the_future_of_a_refused_message_is_done_at_once(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    answer = store.put_async(Message("no such/topic", b""))
    assert answer.done()
    assert answer.result().status is PutStatus.MESSAGE_ILLEGAL


def test_under_asynchronous_flush_a_future_does_not_wait_for_the_disk(open_store: Open, gate: Gate) -> None:
    store = open_store()
    gate.shut()
    answer = store.put_async(Message("orders", b"x"))
    assert answer.done()
    assert answer.result().ok


# -- what consumers see --------------------------------------------------------------------------------------


def test_consumers_do_not_see_what_is_not_on_disk(store: MessageStore, gate: Gate) -> None:
    gate.shut()
    answer = store.put_async(Message("orders", b"second", keys="k"))
    gate.wait_until_reached()
    assert store.log.max_offset > store.log.confirmed_offset
    assert store.max_offset("orders", 0) == 1
    assert store.get("orders", 0, 1).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.query("orders", "k") == []
    assert store.dispatcher.position == store.log.confirmed_offset
    gate.open()
    assert answer.result(WAIT_SECONDS).ok
    assert store.max_offset("orders", 0) == 2
    assert [message.body for message in store.get("orders", 0, 1).messages] == [b"second"]
    assert [message.body for message in store.query("orders", "k")] == [b"second"]


def test_under_asynchronous_flush_consumers_see_a_message_at_once(open_store: Open, gate: Gate) -> None:
    store = open_store()
    gate.shut()
    store.put(Message("orders", b"first"))
    assert bodies(store) == [b"first"]


# -- a disk that refuses -------------------------------------------------------------------------------------


def refuse(path: Path) -> None:
    if path.parent.name == "commitlog":
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_failed_sync_is_answered_and_stops_all_puts(store: MessageStore, disk: WatchedFiles) -> None:
    disk.on_sync = refuse
    failed = store.put(Message("orders", b"lost?"))
    assert failed.status is PutStatus.UNKNOWN_ERROR
    assert "could not be synced (Input/output error)" in failed.reason
    disk.on_sync = lambda path: None  # a later sync would succeed, though the pages may be gone
    before = disk.syncs["commitlog"]
    for answer in (store.put(Message("orders", b"no")), store.put_async(Message("orders", b"no")).result()):
        assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "could not be synced" in answer.reason
    assert disk.syncs["commitlog"] == before, "a failed sync is never tried again"
    assert bodies(store) == [b"first"], "what is safe can still be read"


def test_after_a_failed_sync_the_next_start_recovers(store: MessageStore, disk: WatchedFiles, open_store: Open) -> None:
    disk.on_sync = refuse
    store.put(Message("orders", b"lost?"))
    store.close()
    disk.on_sync = lambda path: None
    again = open_store()
    assert not again.report.clean_exit
    assert bodies(again)[0] == b"first"
    assert again.put(Message("orders", b"goes on")).ok


def test_a_failed_sync_stops_puts_under_asynchronous_flush_too(open_store: Open, disk: WatchedFiles) -> None:
    store = open_store(flush_interval_commit_log=1, flush_commit_log_least_pages=0)
    disk.on_sync = refuse
    answer = store.put(Message("orders", b"x"))
    assert answer.ok, "the failure is not known yet"
    deadline = time.monotonic() + WAIT_SECONDS
    while answer.ok and time.monotonic() < deadline:
        answer = store.put(Message("orders", b"x"))
    assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "could not be synced" in answer.reason


# -- the timed flush -----------------------------------------------------------------------------------------


class HandClock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(flush_module.time, "monotonic", clock)
    return clock


@pytest.fixture
def log(tmp_path: Path, disk: WatchedFiles) -> Iterator[MappedFileQueue]:
    queue = MappedFileQueue(disk, tmp_path / "commitlog", 64 * PAGE)
    yield queue
    queue.close()


def append(log: MappedFileQueue, count: int) -> None:
    log.writable(0).wrote += count


def test_the_timed_flush_waits_for_its_pages(log: MappedFileQueue, seconds: HandClock) -> None:
    reported: list[int] = []
    flush = TimedFlush(Settings(), LogSyncer(log, Watermarks(log, Settings()), reported.append, print))
    append(log, 4 * PAGE - 1)
    flush.work()
    assert log.flushed_where == 0
    append(log, 1)
    flush.work()
    assert log.flushed_where == 4 * PAGE


def test_the_timed_flush_is_thorough_now_and_then(log: MappedFileQueue, seconds: HandClock) -> None:
    flush = TimedFlush(Settings(), LogSyncer(log, Watermarks(log, Settings()), lambda timestamp: None, print))
    append(log, 10)
    seconds.seconds += 9.9
    flush.work()
    assert log.flushed_where == 0
    seconds.seconds += 0.1
    flush.work()
    assert log.flushed_where == 10
    append(log, 10)
    seconds.seconds += 9.9
    flush.work()
    assert log.flushed_where == 10, "the interval starts again"


def test_the_last_round_of_the_timed_flush_is_thorough(log: MappedFileQueue) -> None:
    flush = TimedFlush(Settings(), LogSyncer(log, Watermarks(log, Settings()), lambda timestamp: None, print))
    append(log, 10)
    flush.finish()
    assert log.flushed_where == 10


def test_the_timed_flush_happens_without_further_puts(open_store: Open, disk: WatchedFiles) -> None:
    store = open_store(flush_interval_commit_log=1, flush_commit_log_least_pages=0)
    answer = store.put(Message("orders", b"x"))
    disk.wait_for_syncs("commitlog", 1)
    store.close()
    assert answer.ok


def test_a_put_cuts_the_interval_short_if_it_is_not_kept(open_store: Open, disk: WatchedFiles) -> None:
    store = open_store(flush_interval_commit_log=HOUR_MS, flush_commit_log_timed=False, flush_commit_log_least_pages=0)
    for number in range(3):
        store.put(Message("orders", b"x"))
        disk.wait_for_syncs("commitlog", number + 1)


def test_closing_brings_everything_to_disk(open_store: Open, disk: WatchedFiles) -> None:
    store = open_store(flush_interval_commit_log=HOUR_MS)
    store.put(Message("orders", b"x", keys="k"))
    assert disk.syncs["commitlog"] == 0
    store.close()
    assert disk.syncs["commitlog"] == 1
    assert disk.syncs["0"] >= 1, "the queue"
    assert disk.syncs["index"] >= 1


def test_a_flush_ends_although_messages_come_faster_than_the_disk_syncs(tmp_path: Path) -> None:
    """It is for what was put before; else one a millisecond would have it sync for ever, and no put be answered."""
    disk, arrived = FaultyFiles(), 0
    with MessageStore.open(tmp_path, Settings.dev(flush_interval_commit_log=HOUR_MS), files=disk) as store:

        def arrive(path: Path) -> None:
            nonlocal arrived
            if "commitlog" in str(path):
                arrived += 1
                assert arrived < 10, "there is no end to it"
                store.put(Message("orders", b"meanwhile"))

        end = store.put(Message("orders", b"before")).end_offset
        disk.before_sync = arrive
        store.flush()
        disk.before_sync = lambda path: None
        assert store.watermarks.flushed >= end
        assert arrived == 1


def test_a_flush_brings_all_files_to_disk(tmp_path: Path) -> None:
    settings = Settings.dev(mapped_file_size_commit_log=PAGE, flush_interval_commit_log=HOUR_MS)
    with MessageStore.open(tmp_path, settings) as store:
        for _ in range(12):
            store.put(Message("orders", b"x" * 900))
        assert len(store.log.queue.files) > 2
        store.flush()
        assert store.watermarks.flushed == store.log.max_offset

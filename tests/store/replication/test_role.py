"""The role of an open store: it is exchanged as a whole, and every put is answered by the rules of one role."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.disks import FaultyFiles
from support.stores import StoreHome, eventually

from penstock.errors import BadSettings, StoreFailed
from penstock.store import BrokerRole, Dispatch, Message, MessageStore, PutStatus, Settings
from penstock.store.encode_message import PutRefused
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.replication.replica_log import ReplicaLog

ASYNC_MASTER, SYNC_MASTER, SLAVE = BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.SLAVE
FILE = 64 << 10

pytestmark = pytest.mark.usefixtures("kernels_name")


def log_bytes(store: MessageStore) -> bytes:
    return b"".join(bytes(file.map.view[: file.wrote]) for file in store.log.queue.files)


def change(store: MessageStore, name: BrokerRole) -> None:
    store.change_role(store.role.next(name))


def copy_log(of: MessageStore, to: MessageStore, step: int = 10_000) -> None:
    """Replicates what `to` misses of a log, in pieces, as a master sends it."""
    replica = to.replica_log
    assert replica is not None
    at = replica.end
    for file in of.log.queue.files:
        data = bytes(file.map.view[: file.wrote])
        while file.from_offset <= at < file.from_offset + len(data):
            piece = data[at - file.from_offset :][:step]
            replica.append(at, piece)
            at += len(piece)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[MessageStore]:
    settings = Settings.dev(mapped_file_size_commit_log=FILE)
    with MessageStore.open(tmp_path / "other", settings) as store:
        yield store


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slave_becomes_a_master_that_waits_and_a_slave_again(
    home: StoreHome, other: MessageStore, flush: str
) -> None:
    for number in range(20):
        assert other.put(Message("orders", b"%d" % number, queue_id=number % 2)).ok
    store = home.open(broker_role=SLAVE, mapped_file_size_commit_log=FILE, flush_disk_type=flush, slave_timeout=60_000)
    heard: list[Role] = []
    store.on_role_change(heard.append)
    copy_log(other, store)
    replica = store.replica_log
    assert store.put(Message("orders", b"refused")).status is PutStatus.SERVICE_NOT_AVAILABLE
    copied = log_bytes(other)
    assert log_bytes(store) == copied
    assert other.put(Message("orders", b"too late for the copy")).ok

    change(store, SYNC_MASTER)
    assert store.replica_log is None
    assert isinstance(replica, ReplicaLog)
    with pytest.raises(PutRefused, match="no slave any more"):
        replica.append(replica.end, log_bytes(other)[len(copied) :])
    alone = store.put(Message("orders", b"20"))
    assert (alone.status, alone.queue_offset) == (PutStatus.SLAVE_NOT_AVAILABLE, 10), "the queues go on"
    store.watermarks.slave_connected()
    waiting = store.put_async(Message("orders", b"21"))
    batch = store.append_many([Message("orders", b"22", queue_id=1), Message("orders", b"23", queue_id=1)])
    assert [result.queue_offset for result in batch.results] == [10, 11]
    assert not waiting.done()
    store.watermarks.acknowledge(store.watermarks.appended)
    eventually(waiting.done, "the ack ends no wait")
    assert waiting.result(0).status is PutStatus.PUT_OK
    in_flight = store.put_async(Message("orders", b"24"))
    assert not in_flight.done()

    end = store.watermarks.appended
    change(store, SLAVE)
    assert in_flight.result(30).status is PutStatus.FLUSH_SLAVE_TIMEOUT
    assert "became SLAVE" in in_flight.result(0).reason
    assert store.put(Message("orders", b"refused")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.put_many([Message("orders", b"refused")]).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert (store.watermarks.appended, log_bytes(store)[: len(copied)]) == (end, copied)
    assert [(role.name, role.epoch) for role in heard] == [(SYNC_MASTER, 1), (SLAVE, 2)]
    assert store.watermarks.epoch == store.role.epoch == 2
    bodies = sorted(int(body) for queue_id in (0, 1) for body in home.bodies(store, "orders", queue_id))
    assert bodies == list(range(25))
    store.close()
    again = home.open(mapped_file_size_commit_log=FILE)
    assert again.report.clean_exit
    assert again.role == Role(ASYNC_MASTER, 2), "each mastership of a store with epochs has one of its own"
    assert again.put(Message("orders", b"on")).queue_offset == 13


def test_a_promoted_slave_writes_what_a_master_would_write(home: StoreHome, other: MessageStore) -> None:
    for number in range(300):
        assert other.put(Message("orders", b"x" * 500, keys=str(number))).ok
    store = home.open(broker_role=SLAVE, mapped_file_size_commit_log=FILE, clock=lambda: 1_700_000_000_000)
    copy_log(other, store)
    change(store, ASYNC_MASTER)
    for each in (store, other):
        assert each.put(Message("orders", b"next", born_timestamp=5)).queue_offset == 300
        assert each.put(Message("orders", b"fast path", born_timestamp=5)).queue_offset == 301
    ours, theirs = log_bytes(store), log_bytes(other)
    assert len(ours) == len(theirs)
    differences = [at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert len(differences) <= 2 * 8, "only the store times differ"
    assert store.log.appender.is_open, "the fast path is open"


def test_a_slave_that_has_only_a_part_of_a_filler_continues_in_the_next_file(
    home: StoreHome, other: MessageStore
) -> None:
    assert other.put(Message("orders", b"x" * 20_000)).ok
    assert other.put(Message("orders", b"x" * 50_000)).physical_offset == FILE, "a filler ends the first file"
    store = home.open(broker_role=SLAVE, mapped_file_size_commit_log=FILE)
    first = bytes(other.log.queue.files[0].map.view)
    assert store.replica_log is not None
    store.replica_log.append(0, first[:40_000])
    assert store.watermarks.appended == 40_000
    change(store, ASYNC_MASTER)
    result = store.put(Message("orders", b"next"))
    assert (result.physical_offset, result.queue_offset) == (FILE, 1)
    assert home.bodies(store, "orders") == [b"x" * 20_000, b"next"]


def test_a_put_that_waits_for_the_log_while_the_role_changes_is_refused(home: StoreHome) -> None:
    disk, in_allocation, go_on = FaultyFiles(), threading.Event(), threading.Event()
    store = home.open(files=disk, os_page_cache_busy_time_out_mills=60_000)

    def wait_in_allocation(path: Path) -> None:
        in_allocation.set()
        go_on.wait(60)

    disk.before_allocate = wait_in_allocation
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(store.put, Message("orders", b"appended under the old role"))
        try:
            assert in_allocation.wait(30)
            changing = threads.submit(change, store, SLAVE)
            eventually(lambda: store.dispatcher._step_lock.locked(), "the role is not being changed")
        finally:
            go_on.set()
        changing.result(30)
        assert first.result(30).status is PutStatus.PUT_OK
    assert store.put(Message("orders", b"late")).status is PutStatus.SERVICE_NOT_AVAILABLE
    assert home.bodies(store, "orders") == [b"appended under the old role"]


def test_a_put_under_way_gets_the_answer_of_the_role_under_which_it_was_appended(home: StoreHome) -> None:
    store = home.open(broker_role=SYNC_MASTER)
    store.watermarks.slave_connected()
    appended = store.append(Message("orders", b"appended, and not waiting yet"))
    for name in (SLAVE, ASYNC_MASTER):
        change(store, name)
    ended: list[PutStatus] = []
    store.watermarks.wait(appended.end_offset, lambda waiters: ended.extend(each.status for each in waiters), None)
    assert ended == [PutStatus.FLUSH_SLAVE_TIMEOUT], "no slave has it, whatever the role is now"
    assert store.put(Message("orders", b"of the new role")).status is PutStatus.PUT_OK


def test_every_put_is_counted_once_whatever_the_roles_were(home: StoreHome) -> None:
    store = home.open()
    for name in (SYNC_MASTER, ASYNC_MASTER):
        for number in range(3):
            assert store.put(Message("orders", b"%d" % number)).stored
        change(store, name)
    assert store.put(Message("orders", b"last")).ok
    figures = store.figures()
    assert figures.put_total == 7
    assert sum(figures.put_latency_ms.values()) == 7


def test_the_fast_path_follows_flags_and_role(home: StoreHome) -> None:
    store = home.open(broker_role=SLAVE)
    change(store, ASYNC_MASTER)
    assert store.put(Message("orders", b"makes the topic")).ok
    assert store.log.appender.is_open
    store.log.set_open(False)
    change(store, SLAVE)
    store.log.set_open(True)
    assert not store.log.appender.is_open
    change(store, ASYNC_MASTER)
    assert store.log.appender.is_open


def test_deleted_topics_start_again_at_zero_after_a_promotion(home: StoreHome, other: MessageStore) -> None:
    assert other.put(Message("gone", b"x")).ok
    assert other.put(Message("orders", b"x")).ok
    store = home.open(broker_role=SLAVE, mapped_file_size_commit_log=FILE)
    copy_log(other, store)
    change(store, ASYNC_MASTER)
    change(store, SLAVE)
    assert other.delete_topic("gone")
    assert store.delete_as_master(other.deleted_topics()) == ["gone"]
    change(store, ASYNC_MASTER)
    assert store.put(Message("gone", b"y")).queue_offset == 0
    assert store.put(Message("orders", b"y")).queue_offset == 1


def test_a_change_that_cannot_be_made_is_refused_with_a_sentence(home: StoreHome) -> None:
    store = home.open()
    with pytest.raises(BadSettings, match="must be above 0"):
        store.change_role(Role(SLAVE, epoch=0))
    change(store, SYNC_MASTER)
    with pytest.raises(BadSettings, match="must be above 1"):
        store.change_role(Role(SLAVE, epoch=1))
    assert store.role == Role(SYNC_MASTER, 1)
    store.close()
    with pytest.raises(StoreFailed, match="closed"):
        change(store, SLAVE)
    with home.open(dispatch=Dispatch.EXTERNAL) as external, pytest.raises(BadSettings, match="`dispatch` is external"):
        change(external, SLAVE)

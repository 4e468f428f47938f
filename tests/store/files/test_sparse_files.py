"""Files without all their disk blocks: queues and index grow in steps, and a sparse copy of a store is allocated first.

What a full disk does to a process that stores into a missing block is in `test_full_disk.py`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest
from support.disks import ColdFiles, FaultyFiles, make_sparse, refuse
from support.stores import StoreHome, eventually

from penstock.errors import StoreFailed
from penstock.store import GetStatus, Message, MessageStore, PutStatus, Settings
from penstock.store.commit_log import FIRST_STEP
from penstock.store.files.file_io import Files, zero_from
from penstock.store.files.mapped_file_queue import STEP
from penstock.store.rebuild.job import rebuild

QUEUE_FILE = 6_000_000
"""RocketMQ's size of a queue file, in bytes."""


def allocated(path: Path) -> int:
    return Files().allocated(path)


# -- steps ---------------------------------------------------------------------------------------------------


def test_four_hundred_new_queues_cost_little(home: StoreHome) -> None:
    store = home.open(mapped_file_size_consume_queue=QUEUE_FILE)
    for queue_id in range(400):
        assert store.put(Message("T", b"ten bytes.", queue_id=queue_id)).ok
    store.catch_up()
    files = list((home.path / "consumequeue").rglob("0*0"))
    assert {path.stat().st_size for path in files if path.is_file()} == {QUEUE_FILE}
    assert allocated(home.path / "consumequeue") <= 400 * STEP
    store.close()
    again = home.open(mapped_file_size_consume_queue=QUEUE_FILE)
    assert again.get("T", 399, 0).messages[0].body == b"ten bytes."
    assert allocated(home.path / "consumequeue") <= 400 * STEP


def test_a_queue_has_blocks_for_all_its_units(home: StoreHome) -> None:
    store = home.open(mapped_file_size_consume_queue=QUEUE_FILE)
    count = STEP // 20 + 1
    store.put_many([Message("T", b"") for _ in range(count)])
    store.catch_up()
    assert store.max_offset("T", 0) == count
    assert allocated(home.queue_files("T")[0]) == 2 * STEP


def test_the_index_has_blocks_for_its_slots_and_a_step_of_items(home: StoreHome) -> None:
    store = home.open(max_hash_slot_num=50_000, max_index_num=1_000_000)
    store.put(Message("T", b"", keys=("k",)))
    store.catch_up()
    assert home.index_files()[0].stat().st_size == 40 + 4 * 50_000 + 20 * 1_000_000
    assert 4 * 50_000 + (1 << 20) <= allocated(home.index_files()[0]) < 2 << 20


def test_a_rebuild_leaves_sparse_files(home: StoreHome) -> None:
    sizes = {"mapped_file_size_consume_queue": QUEUE_FILE, "max_hash_slot_num": 1000, "max_index_num": 1_000_000}
    store = home.open(**sizes)
    settings = store.settings
    home.put_numbered(store, 10)
    store.close()
    rebuild(home.path, settings)
    assert allocated(home.queue_files("T")[0]) < STEP
    assert allocated(home.index_files()[0]) < 1 << 20
    assert len(home.bodies(home.open(**sizes), "T")) == 10


@pytest.mark.parametrize("folder", ["consumequeue", "index"])
def test_a_disk_without_room_for_a_step_refuses_puts_until_there_is_room(
    home: StoreHome, disk: FaultyFiles, folder: str
) -> None:
    store = home.open(files=disk, mapped_file_size_consume_queue=QUEUE_FILE, max_index_num=1_000_000)
    home.put_numbered(store, 1)
    store.catch_up()
    disk.before_allocate = lambda path: refuse(errno.ENOSPC) if folder in path.parts else None
    count = (1 << 20) // 20 + 1  # more than a step of either file
    for start in range(0, count, 1000):
        result = store.put_many([Message("T", b"", keys=(f"k{start + number}",)) for number in range(1000)])
        if not result.ok:
            break
    eventually(lambda: not store.flags.writable, "puts are still accepted though dispatch is stuck")
    refused = store.put(Message("T", b""))
    assert refused.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert "no space left" in refused.reason
    assert store.get("T", 0, 0).status is GetStatus.FOUND, "what is there can be read"
    disk.before_allocate = lambda path: None
    eventually(lambda: store.flags.writable, "dispatch did not go on")
    stored = store.put(Message("T", b"last", keys=("last",)))
    assert stored.ok
    assert store.get("T", 0, stored.queue_offset).messages[0].body == b"last"
    assert [record.body for record in store.query("T", "last")] == [b"last"]
    assert [record.queue_offset for record in store.query("T", "k999")] == [1000], "indexed once"


# -- a log that grows ----------------------------------------------------------------------------------------


def test_a_store_with_rocketmqs_sizes_starts_small_and_grows(home: StoreHome) -> None:
    settings = Settings(grow_log_files=True)
    with MessageStore.open(home.path, settings) as store:
        assert store.put(Message("T", b"first", keys=("k",))).ok
        store.catch_up()
        assert {path.stat().st_size for path in home.log_files()} == {settings.mapped_file_size_commit_log}
        assert home.index_files()[0].stat().st_size == settings.index_geometry.file_size
        assert allocated(home.path) < 2 << 20
        for _ in range(5):
            assert store.put(Message("T", bytes(1 << 20))).ok
        assert FIRST_STEP * 5 < allocated(home.log_files()[0]) <= 8 << 20
    with MessageStore.open(home.path, settings) as store:
        assert len(home.bodies(store, "T")) == 6
        assert [record.body for record in store.query("T", "k")] == [b"first"]
        assert store.put(Message("T", b"last")).ok
        assert allocated(home.path) < 12 << 20


def test_a_start_after_a_kill_allocates_the_slots_of_the_index_and_no_log_file(home: StoreHome) -> None:
    settings = Settings(grow_log_files=True)
    with MessageStore.open(home.path, settings) as store:
        assert store.put(Message("T", b"first", keys=("k",))).ok
    home.mark_crashed()
    (home.path / "checkpoint").unlink()
    with MessageStore.open(home.path, settings) as store:
        assert not store.report.clean_exit
        assert [record.body for record in store.query("T", "k")] == [b"first"]
        assert store.put(Message("T", b"second", keys=("k",))).ok
        assert len(store.query("T", "k")) == 2
        assert allocated(home.path / "commitlog") < 2 << 20
        assert allocated(home.path) < 24 << 20


@pytest.mark.parametrize("way", ["put", "put_many", "rows", "delayed"])
def test_a_log_that_grows_has_blocks_for_all_that_it_holds(home: StoreHome, way: str) -> None:
    size = 5 * FIRST_STEP + 1000
    store = home.open(grow_log_files=True, mapped_file_size_commit_log=size, max_message_size=FIRST_STEP)
    message = Message("T", bytes(300_000), delay_level=1 if way == "delayed" else 0)
    for _ in range(12):
        if way == "rows":
            assert store.put_arrow(pa.record_batch({"topic": ["T"] * 20, "body": [message.body] * 20})).count == 20
        elif way == "put_many":
            assert store.put_many([message] * 3).ok
        else:
            assert store.put(message).ok
        last = store.log.queue.last
        assert last is not None
        assert last.wrote <= last.map.reserved <= last.size
    for path in home.log_files()[:-1]:
        assert allocated(path) >= size - len(message.body) * 3 - 1000, "a batch that does not fit leaves its room"


def test_a_slaves_log_grows_as_its_masters_bytes_arrive(tmp_path: Path) -> None:
    sizes = {"mapped_file_size_commit_log": 3 * FIRST_STEP, "grow_log_files": True}
    master = StoreHome(tmp_path / "master").open(**sizes)
    slave = StoreHome(tmp_path / "slave").open(broker_role="SLAVE", **sizes)
    assert slave.replica_log is not None
    for _ in range(20):
        assert master.put(Message("T", bytes(300_000))).ok
        start, stop = slave.replica_log.end, master.log.max_offset
        while start < stop:
            length = min(stop, master.log.roll_next(start)) - start
            data = master.log.read(start, length)
            assert data is not None
            slave.replica_log.append(start, data)
            start += length
            last = slave.log.queue.last
            assert last is not None
            assert last.wrote <= last.map.reserved
    assert slave.log.max_offset == master.log.max_offset
    for store in (slave, master):
        store.close()


def test_the_fast_path_serves_a_log_that_grows(home: StoreHome) -> None:
    store = home.open(grow_log_files=True, mapped_file_size_commit_log=64 << 20)
    for _ in range(3000):
        assert store.put(Message("T", bytes(3000))).ok
    declined = 3000 - store.log.appender.count
    assert store.log.appender.count == 0 or declined < 10, "one message a step takes the general path"


def test_without_room_for_a_step_a_put_is_refused_until_there_is_room(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, grow_log_files=True, mapped_file_size_commit_log=64 << 20)
    assert store.put(Message("T", b"first")).ok
    disk.before_allocate = lambda path: refuse(errno.ENOSPC) if path.parent.name == "commitlog" else None
    stored = 1
    while (result := store.put(Message("T", bytes(100_000)))).ok:
        stored += 1
        assert stored < 20, "more than a step is stored, and there is no room for one"
    assert result.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert "no space left" in result.reason
    assert store.put(Message("T", b"small")).ok, "what fits into the step is stored"
    disk.before_allocate = lambda path: None
    assert store.put(Message("T", bytes(100_000))).queue_offset == stored + 1


def test_a_pool_or_a_warm_up_allocates_whole_files(home: StoreHome) -> None:
    for pool in (True, False):
        changes = {"transient_store_pool_enable": pool, "warm_mapped_file_enable": not pool}
        assert not Settings.dev(grow_log_files=True, **changes).log_grows


def test_the_index_gets_all_its_slots_when_it_has_more_than_a_few_items(home: StoreHome) -> None:
    store = home.open(max_hash_slot_num=5_000_000, max_index_num=20_000_000)
    for number in range(500):
        store.put(Message("T", b"", keys=(f"k{number}",)))
    store.catch_up()
    assert allocated(home.index_files()[0]) < 4 << 20
    store.close()
    store = home.open(max_hash_slot_num=5_000_000, max_index_num=20_000_000)
    for number in range(500, 1100):
        store.put(Message("T", b"", keys=(f"k{number}",)))
    store.catch_up()
    assert allocated(home.index_files()[0]) >= 20_000_000
    for number in (0, 499, 500, 1099):
        assert [record.queue_offset for record in store.query("T", f"k{number}")] == [number]


# -- sparse copies -------------------------------------------------------------------------------------------


def test_the_rest_of_a_sparse_log_file_is_allocated_at_the_start(home: StoreHome) -> None:
    store = home.open()
    home.put_numbered(store, 3)
    store.close()
    path = home.log_files()[0]
    make_sparse(path)
    assert allocated(path) < path.stat().st_size // 2
    home.open()
    assert allocated(path) == path.stat().st_size


def test_a_sparse_log_without_room_for_its_rest_refuses_puts_and_serves_the_others(
    home: StoreHome, disk: FaultyFiles
) -> None:
    store = home.open()
    home.put_numbered(store, 3)
    store.close()
    disk.before_allocate = lambda path: refuse(errno.ENOSPC) if path.parent.name == "commitlog" else None
    store = home.open(files=disk)
    refused = store.put(Message("T", b"no"))
    assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert "no space left" in refused.reason
    assert len(home.bodies(store, "T")) == 3
    disk.before_allocate = lambda path: None
    assert store.put(Message("T", b"yes")).queue_offset == 3


def test_zeroing_fills_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Files().create_sparse(path, 4 << 20)
    file = Files().open_map(path)
    file.write(1 << 20, bytearray(b"x"))
    held = allocated(path)
    assert zero_from(file, 0) == 1
    file.sync()
    assert allocated(path) == held
    assert not any(file.view)
    file.close()


def test_a_file_that_is_full_needs_no_blocks(tmp_path: Path) -> None:
    path = tmp_path / "file"
    Files().create_sparse(path, STEP)
    file = Files().open_map(path)
    file.reserve(STEP, STEP, STEP)
    assert file.reserved == STEP
    assert allocated(path) == 0
    file.close()


# -- files that are cut --------------------------------------------------------------------------------------


def test_a_file_that_is_cut_while_it_is_mapped_is_an_error_and_no_signal(home: StoreHome) -> None:
    store = home.open()
    for _ in range(40):
        store.put(Message("T", bytes(5000)))
    store.close()
    cold = ColdFiles()
    store = home.open(files=cold)
    cold.evict()
    os.truncate(home.log_files()[0], 100_000)
    with pytest.raises(StoreFailed, match=r"was cut while the store was open.*found 100000 bytes"):
        store.get("T", 0, 30)
    os.truncate(home.log_files()[0], store.log.queue.file_size)

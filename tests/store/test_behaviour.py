"""How the store behaves, number by number, as RocketMQ's was observed to; deviations on purpose are named."""

from __future__ import annotations

import errno
import shutil
import struct
import threading
from pathlib import Path

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome, eventually

from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import BLANK_MAGIC
from penstock.format.index_layout import IndexHeader
from penstock.format.queue_unit import PRE_BLANK, unpack_unit
from penstock.format.record import Record, encode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.store import GetStatus, Message, MessageStore

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL_LOG = {"mapped_file_size_commit_log": 4096}
SMALL_FILES = {"mapped_file_size_commit_log": 1000, "mapped_file_size_consume_queue": 10 * 20}


def sized(size: int, topic: str = "T") -> Message:
    """A message whose record has exactly this size, for a topic of one letter."""
    return Message(topic, bytes(size - 92))


def put_25_in_files_of_nine(store: MessageStore) -> None:
    for _ in range(25):
        assert store.put(sized(100)).size == 100


def header_of(path: Path) -> IndexHeader:
    return IndexHeader.unpack(path.read_bytes()[:40])


# -- the log -------------------------------------------------------------------------------------------------


def test_a_record_that_leaves_less_than_eight_bytes_goes_to_the_next_file(home: StoreHome) -> None:
    store = home.open(**SMALL_LOG)
    sizes = (2000, 2000, 92, 1996, 2000, 92)
    assert [store.put(sized(size)).physical_offset for size in sizes] == [0, 2000, 4096, 4188, 6184, 8192]
    first, second, _ = home.log_files()
    assert [path.name for path in home.log_files()] == [f"{number * 4096:020d}" for number in range(3)]
    assert first.read_bytes()[4000:] == struct.pack(">iI", 96, BLANK_MAGIC) + bytes(88)
    assert second.read_bytes()[4088:] == struct.pack(">iI", 8, BLANK_MAGIC)
    assert len(home.read_queue(store, "T")) == 6


def test_the_files_of_a_new_store_are_those_of_rocketmq(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("orders", b"x", keys=("k",), queue_id=3))
    assert home.bodies(store, "orders", 3) == [b"x"]
    assert (home.path / "lock").read_bytes() == b"lock"
    assert (home.path / "abort").read_bytes() == b""
    store.close()
    found = {name: len(content) for name, content in home.listing().items()}
    index = home.index_files()[0].name
    assert len(index) == 17
    assert found == {
        "lock": 4,
        "checkpoint": 4096,
        "commitlog/00000000000000000000": 1 << 20,
        "consumequeue/orders/3/00000000000000000000": 20_000,
        f"index/{index}": 420_040,
        "penstock/dispatched.json": len((home.path / "penstock" / "dispatched.json").read_bytes()),  # our own
    }
    assert sum(found.values()) < 2_000_000


def test_a_file_is_allocated_for_real(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"x"))
    assert home.log_files()[0].stat().st_blocks * 512 >= 1 << 20


# -- gets ----------------------------------------------------------------------------------------------------


def test_a_queue_of_three_messages_answers_each_offset(home: StoreHome) -> None:
    store = home.open()
    for _ in range(3):
        store.put(Message("T", b"x"))
    answers = [store.get("T", 0, offset) for offset in (0, 3, 4, -1)] + [store.get("unknown", 0, 0)]
    assert [(page.status.name, page.next_begin_offset) for page in answers] == [
        ("FOUND", 3),
        ("OFFSET_OVERFLOW_ONE", 3),
        ("OFFSET_OVERFLOW_BADLY", 3),
        ("OFFSET_TOO_SMALL", 0),
        ("NO_MESSAGE_IN_QUEUE", 0),
    ]


def test_a_get_stops_at_the_end_of_a_queue_file(home: StoreHome) -> None:
    store = home.open(**SMALL_FILES)
    put_25_in_files_of_nine(store)
    pages = [store.get("T", 0, 0, 32), store.get("T", 0, 9), store.get("T", 0, 10, 4)]
    assert [(len(page.records), page.next_begin_offset) for page in pages] == [(10, 10), (1, 10), (4, 14)]


# -- what is rebuilt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
def test_queues_rebuilt_from_a_log_without_its_first_file_keep_their_offsets(home: StoreHome, crashed: bool) -> None:
    with home.open(**SMALL_FILES) as store:
        for _ in range(8):
            store.put(sized(120))  # eight to a file
        for _ in range(17):
            store.put(sized(100))
    home.log_files()[0].unlink()
    shutil.rmtree(home.path / "consumequeue")
    if crashed:
        home.mark_crashed()
    for _ in range(2):
        with home.open(**SMALL_FILES) as store:
            assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (8, 25)
            page = store.get("T", 0, 0)
            assert (page.status, page.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 8)
            assert [message.queue_offset for message in home.read_queue(store, "T")] == list(range(8, 25))
    first = home.queue_files("T")[0].read_bytes()
    assert first[: 8 * 20] == PRE_BLANK * 8
    assert unpack_unit(first, 8 * 20) == (1000, 100, 0)
    assert home.open(**SMALL_FILES).put(sized(100)).queue_offset == 25


def test_without_the_log_the_store_starts_empty_and_what_described_it_is_kept_aside(home: StoreHome) -> None:
    """RocketMQ destroys the queues and keeps an index that describes nothing."""
    with home.open() as store:
        for number in range(3):
            store.put(Message("T", b"old", keys=(f"k{number}",)))
    queue, index = home.queue_files("T")[0].read_bytes(), home.index_files()[0].read_bytes()
    shutil.rmtree(home.path / "commitlog")
    store = home.open()
    assert (store.log.min_offset, store.log.max_offset) == (-1, 0)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (-1, 0)
    assert store.query("T", "k1") == []
    assert sorted(path.read_bytes() for path in home.kept()) == sorted([queue, index])
    assert len(store.report.notes) == 2
    result = store.put(Message("T", b"new", keys=("k1",)))
    assert (result.physical_offset, result.queue_offset) == (0, 0)
    assert home.bodies(store, "T") == [b"new"]
    assert [record.body for record in store.query("T", "k1")] == [b"new"]


def test_a_log_alone_is_enough(home: StoreHome) -> None:
    """As written by another program: no queues, no index, no checkpoint, no abort."""
    records, offset = b"", 0
    for number in range(20):
        record = encode_record(
            Record(
                topic="T",
                queue_id=number % 2,
                queue_offset=number // 2,
                physical_offset=offset,
                store_timestamp=1_600_000_000_000 + number,
                properties={"KEYS": f"k{number}", "UNIQ_KEY": f"u{number}"},
                body=b"%d" % number,
            )
        )
        records += record
        offset += len(record)
    (home.path / "commitlog").mkdir(parents=True)
    (home.path / "commitlog" / ("0" * 20)).write_bytes(records.ljust(1 << 20, b"\0"))
    store = home.open()
    assert home.bodies(store, "T", 1) == [b"%d" % number for number in range(1, 20, 2)]
    assert [record.body for record in store.query("T", "k7")] == [b"7"]
    assert [record.body for record in store.query("T", "u12")] == [b"12"]
    assert store.put(Message("T", b"next", queue_id=1)).queue_offset == 10


# -- the index -----------------------------------------------------------------------------------------------


def test_an_index_file_rolls_when_it_is_full_and_the_checkpoint_follows(home: StoreHome, disk: FaultyFiles) -> None:
    checkpoint_written = threading.Event()
    disk.before_sync = lambda path: checkpoint_written.set() if path.name == "checkpoint" else None
    store = home.open(files=disk, max_hash_slot_num=100, max_index_num=40, flush_interval_consume_queue=5)
    checkpoint_written.clear()
    for number in range(60):
        home.clock.now += 10
        store.put(Message("T", b"", keys=(f"k{number}",)))
    store.catch_up()
    assert checkpoint_written.wait(30)
    first, second = (header_of(path) for path in home.index_files())
    assert (first.index_count, second.index_count) == (40, 22)
    assert first.end_timestamp == 1_600_000_000_390
    assert second.begin_timestamp == 1_600_000_000_400
    checkpoint = Checkpoint.unpack((home.path / "checkpoint").read_bytes())
    assert checkpoint.index == first.end_timestamp
    assert all(len(store.query("T", f"k{number}")) == 1 for number in range(60))


def test_one_record_may_have_its_keys_in_two_index_files(home: StoreHome) -> None:
    sizes = {"max_hash_slot_num": 10, "max_index_num": 4}
    with home.open(**sizes) as store:
        store.put(Message("T", b"a", keys=("k0", "k1")))
        store.put(Message("T", b"b", keys=("k2", "k3", "k4", "k5", "k6", "k7")))
    assert len(home.index_files()) == 3
    for crashed in (False, True):
        if crashed:
            home.mark_crashed()
        with home.open(**sizes) as store:
            assert [record.body for record in store.query("T", "k1")] == [b"a"]
            for number in range(2, 8):
                assert [record.body for record in store.query("T", f"k{number}")] == [b"b"]
    counts = [header_of(path).index_count for path in home.index_files()]
    assert counts == [4, 4, 3], "nothing was indexed twice"


@pytest.mark.parametrize("closed_meanwhile", [False, True], ids=["goes_on", "opened_again"])
def test_a_record_half_indexed_on_a_full_disk_is_completed_when_space_returns(
    home: StoreHome, disk: FaultyFiles, closed_meanwhile: bool
) -> None:
    sizes = {"max_hash_slot_num": 10, "max_index_num": 4}
    store = home.open(files=disk, **sizes)
    store.put(Message("T", b"a", keys=("k0", "k1")))
    store.catch_up()
    disk.before_allocate = lambda path: refuse(errno.ENOSPC) if path.parent.name == "index" else None
    assert store.put(Message("T", b"b", keys=[f"k{number}" for number in range(2, 8)])).ok
    eventually(lambda: not store.flags.writable, "puts are still accepted though the index cannot grow")
    assert [record.body for record in store.query("T", "k1")] == [b"a"]
    disk.before_allocate = lambda path: None
    if closed_meanwhile:
        store.close()
        home.mark_crashed()
        store = home.open(**sizes)
    eventually(lambda: store.flags.writable, "the index did not go on")
    assert [record.body for record in store.query("T", "k1")] == [b"a"]
    for number in range(2, 8):
        assert [record.body for record in store.query("T", f"k{number}")] == [b"b"]
    assert [header_of(path).index_count for path in home.index_files()] == [4, 4, 3]


# -- transaction types ---------------------------------------------------------------------------------------


def test_prepared_and_rolled_back_messages_take_no_place_in_the_queue(home: StoreHome) -> None:
    with home.open() as store:
        for _ in range(2):
            store.put(Message("T", b"plain"))
        answers = [
            store.put(Message("T", body, sys_flag=flag, properties={"UNIQ_KEY": f"u-{body.decode()}"}))
            for flag, body in (
                (TRANSACTION_PREPARED, b"prepared"),
                (TRANSACTION_ROLLBACK, b"rollback"),
                (TRANSACTION_COMMIT, b"commit"),
            )
        ]
        assert [answer.queue_offset for answer in answers] == [0, 0, 2]
        assert home.bodies(store, "T") == [b"plain", b"plain", b"commit"]
        stored = [store.look_up(answer.physical_offset) for answer in answers]
        assert [record.queue_offset for record in stored if record] == [0, 0, 2]
        assert [len(store.query("T", f"u-{name}")) for name in ("prepared", "rollback", "commit")] == [1, 0, 1]
    home.mark_crashed()
    shutil.rmtree(home.path / "consumequeue")
    shutil.rmtree(home.path / "index")
    with home.open() as store:
        assert home.bodies(store, "T") == [b"plain", b"plain", b"commit"]
        assert [len(store.query("T", f"u-{name}")) for name in ("prepared", "rollback", "commit")] == [1, 0, 1]
        assert store.put(Message("T", b"next")).queue_offset == 3


def test_a_prepared_message_with_a_delay_stays_in_its_topic(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message("T", b"", delay_level=3, sys_flag=TRANSACTION_PREPARED))
    record = store.look_up(ack.physical_offset)
    assert record is not None
    assert record.topic == "T"
    assert store.topics() == []

"""Single statements of the coverage page that no other test shows: names, what is kept as it is, positions, limits."""

from __future__ import annotations

import os
import shutil
import struct
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.stores import StoreHome

from penstock.clock import now_ms
from penstock.format.config_tables import SubscriptionGroup, TopicConfig
from penstock.format.index_layout import IndexHeader
from penstock.format.kernels import java_hash
from penstock.format.queue_unit import pack_unit
from penstock.format.record import Record, encode_record
from penstock.store import GetStatus, Message, MessageStore, PutStatus, Settings, consume_queue
from penstock.store.consume_queue import NO_UNIT, QueueExtensions
from penstock.store.files.file_io import Files
from penstock.store.running_flags import StoreFault

pytestmark = pytest.mark.usefixtures("kernels_name")

HOUR_MS = 3_600_000


# -- the folder ----------------------------------------------------------------------------------------------


def test_an_index_file_is_named_by_the_local_time_of_its_creation(home: StoreHome) -> None:
    home.clock.now += 7
    store = home.open()
    store.put(Message("T", b"", keys=("k",)))
    store.catch_up()
    moment = datetime.fromtimestamp(home.clock.now // 1000)
    assert [path.name for path in home.index_files()] == [f"{moment:%Y%m%d%H%M%S}007"]


def test_an_abort_with_a_process_id_in_it_means_a_crash(home: StoreHome) -> None:
    with home.open() as store:
        home.put_numbered(store, 3)
    (home.path / "abort").write_text("4711\n")
    with home.open() as store:
        assert not store.report.clean_exit
        assert len(home.read_queue(store, "T")) == 3
    assert not (home.path / "abort").exists()


def test_a_folder_that_is_no_queue_id_is_left_alone(home: StoreHome) -> None:
    with home.open() as store:
        home.put_numbered(store, 3)
    aside = home.path / "consumequeue" / "T" / "saved"
    shutil.copytree(home.path / "consumequeue" / "T" / "0", aside)
    (aside / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in aside.iterdir()}
    with home.open() as store:
        home.put_numbered(store, 3)
        store.catch_up()
        assert [(queue.topic, queue.queue_id, queue.max_offset) for queue in store.queues] == [("T", 0, 6)]
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == before


def test_config_files_stay_as_they_are_also_unknown_ones(home: StoreHome) -> None:
    config = home.path / "config"
    config.mkdir(parents=True)
    for name in (
        "subscriptionGroup.json",
        "consumerFilter.json",
        "topicQueueMapping.json",
        "lmqConsumerOffset.json.bak",
    ):
        (config / name).write_text('{"of 5.x":{0:1}}')
    before = {path.name: path.read_bytes() for path in config.iterdir()}
    with home.open() as store:
        home.put_numbered(store, 3)
    home.mark_crashed()
    home.open().close()
    assert {path.name: path.read_bytes() for path in config.iterdir()} == before


def test_topics_and_groups_have_rocketmqs_fields_and_defaults() -> None:
    assert TopicConfig(name="T").to_json() == {
        "order": False,
        "perm": 6,
        "readQueueNums": 16,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "T",
        "topicSysFlag": 0,
        "writeQueueNums": 16,
    }
    assert SubscriptionGroup(name="g").to_json() == {
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "groupName": "g",
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_a_log_file_may_be_larger_than_a_gibibyte(tmp_path: Path) -> None:
    class Sparse(Files):
        def _create_whole(self, path: Path, size: int, allocated: int) -> int:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
            os.ftruncate(descriptor, size)
            return descriptor

    settings = Settings.dev(mapped_file_size_commit_log=3 << 29)
    for number in range(2):
        with MessageStore.open(tmp_path / "store", settings, files=Sparse()) as store:
            assert store.put(Message("T", b"%d" % number)).queue_offset == number
            assert [message.body for message in store.get("T", 0, 0).messages] == [b"0", b"1"][: number + 1]
    assert (tmp_path / "store" / "commitlog" / ("0" * 20)).stat().st_size == 3 << 29


# -- what is kept as it is -----------------------------------------------------------------------------------

NAMES_FOR_OTHERS = [
    "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "TRAN_MSG", "PGROUP",
    "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS", "MIN_OFFSET",
    "MAX_OFFSET", "CLUSTER", "MSG_REGION", "TRACE_ON", "INSTANCE_ID", "CONSUME_START_TIME", "BUYER_ID",
    "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME",
    "PUSH_REPLY_TIME", "MSG_TYPE", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "POP_CK", "POP_CK_OFFSET",
    "1ST_POP_TIME", "INNER_NUM", "INNER_BASE", "DUP_INFO", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "__SHARDINGKEY",
    "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID",
]  # fmt: skip


def test_properties_that_mean_something_to_others_are_kept_and_change_nothing(home: StoreHome) -> None:
    properties = dict.fromkeys(NAMES_FOR_OTHERS, "true")
    with home.open() as store:
        assert store.put(Message("T", b"", properties=properties)).queue_id == 0
    store = home.open()
    assert [message.properties for message in home.read_queue(store, "T")] == [properties]


@pytest.mark.parametrize("flag", [0x2, 0x40, 0x80, 0x101, 0x201, 0x301])
def test_flags_that_mean_something_to_others_are_kept_and_change_no_hash(home: StoreHome, flag: int) -> None:
    store = home.open()
    store.put(Message("T", b"", tags="one||two", sys_flag=flag))
    (message,) = home.read_queue(store, "T")
    assert message.sys_flag == flag
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert queue.unit(0)[2] == java_hash("one||two")


def test_a_compressed_body_is_looked_up_as_it_was_put(home: StoreHome) -> None:
    packed = zlib.compress(b"x" * 10_000)
    store = home.open()
    ack = store.put(Message("T", packed, sys_flag=0x1))
    record = store.look_up_id(ack.msg_id)
    assert record is not None
    assert (record.body, record.body_crc) == (packed, zlib.crc32(packed) & 0x7FFFFFFF)


def test_half_messages_are_ordinary_messages_of_their_topic(home: StoreHome) -> None:
    store = home.open()
    real = {"REAL_TOPIC": "orders", "REAL_QID": "3", "TRAN_MSG": "true", "PGROUP": "g"}
    ack = store.put(Message("RMQ_SYS_TRANS_HALF_TOPIC", b"half", properties=real))
    assert ack.queue_offset == 0
    (message,) = home.read_queue(store, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert (message.properties, message.sys_flag) == (real, 0)
    assert store.get("orders", 3, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE


def test_what_lies_behind_a_filler_is_never_looked_at(home: StoreHome) -> None:
    sizes = {"mapped_file_size_commit_log": 4096}
    with home.open(**sizes) as store:
        for _ in range(5):
            store.put(Message("T", bytes(1500)))
        before = home.state(store)
    end = 2 * (1500 + 92)
    stale = encode_record(Record(topic="T", queue_offset=2, physical_offset=end + 8, body=b"stale"))
    home.write(home.log_files()[0], end + 8, stale + b"\xff" * 100)
    garbage = home.log_files()[0].read_bytes()
    for crashed in (False, True):
        if crashed:
            home.mark_crashed()
            shutil.rmtree(home.path / "consumequeue")
        with home.open(**sizes) as store:
            assert home.state(store) == before
            assert (store.report.damage, store.report.notes) == ([], [])
    assert home.log_files()[0].read_bytes() == garbage


def test_store_times_do_not_fall_along_the_log_however_many_put(home: StoreHome) -> None:
    store = home.open(clock=now_ms)

    def put(number: int) -> None:
        for _ in range(100):
            store.put(Message("T", b"", queue_id=number))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(put, range(4)))
    records = sorted(
        (record for number in range(4) for record in home.read_queue(store, "T", number)),
        key=lambda record: record.physical_offset,
    )
    assert len(records) == 400
    assert all(one.store_timestamp <= next_one.store_timestamp for one, next_one in pairwise(records))


# -- running flags -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trouble", "refused"),
    [
        (StoreFault.NOT_READABLE, False),
        (StoreFault.NOT_WRITEABLE, True),
        (StoreFault.INDEX_FILE_ERROR, True),
        (StoreFault.DISK_FULL, True),
    ],
)
def test_every_trouble_but_that_of_reading_refuses_puts(home: StoreHome, trouble: StoreFault, refused: bool) -> None:
    store = home.open()
    assert store.put(Message("T", b"before")).ok
    store.catch_up()
    store.flags.raise_fault(trouble, "the disk is not well")
    answer = store.put(Message("T", b"meanwhile"))
    if refused:
        assert answer.status is PutStatus.SERVICE_NOT_AVAILABLE
        assert "the disk is not well" in answer.reason
    else:
        assert answer.ok
    store.flags.clear(trouble)
    assert store.put(Message("T", b"after")).ok


def test_queues_are_built_also_while_the_disk_counts_as_full(home: StoreHome) -> None:
    store = home.open(transient_store_pool_enable=True, commit_interval_commit_log=HOUR_MS)
    store.put(Message("T", b"before"))
    store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
    assert home.bodies(store, "T") == []
    store.log.queue.commit_all()  # only now may it be dispatched
    assert home.bodies(store, "T") == [b"before"]


# -- dispatch ------------------------------------------------------------------------------------------------


def test_one_thread_builds_the_queue_and_then_the_index(home: StoreHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store = home.open()
    assert store.index is not None
    steps: list[tuple[str, str]] = []
    indexed = threading.Event()
    append = store.index.append

    def append_noted(*keys: object, **how: object) -> None:
        append(*keys, **how)  # type: ignore[arg-type]
        steps.append(("index", threading.current_thread().name))
        indexed.set()

    monkeypatch.setattr(store.index, "append", append_noted)
    store.on_arrival(lambda *arrived: steps.append(("queue", threading.current_thread().name)))
    store.put(Message("T", b"", keys=("k",)))
    assert indexed.wait(30)
    assert steps == [("queue", "penstock-dispatch"), ("index", "penstock-dispatch")]


def log_of(home: StoreHome, queue_offsets: list[int]) -> MessageStore:
    """A store opened on a log that another program wrote, one record for each queue offset."""
    records = b""
    for number, queue_offset in enumerate(queue_offsets):
        records += encode_record(
            Record(topic="T", queue_offset=queue_offset, physical_offset=len(records), body=b"%d" % number)
        )
    (home.path / "commitlog").mkdir(parents=True)
    (home.path / "commitlog" / ("0" * 20)).write_bytes(records.ljust(1 << 20, b"\0"))
    return home.open()


def test_a_queue_offset_that_comes_twice_is_ignored_the_second_time(home: StoreHome) -> None:
    store = log_of(home, [0, 1, 1, 0, 2])
    assert home.bodies(store, "T") == [b"0", b"1", b"4"]
    assert store.max_offset("T", 0) == 3


def test_a_gap_in_queue_offsets_keeps_its_places(home: StoreHome) -> None:
    """RocketMQ appends all the same, and from there on every unit lies in another message's place."""
    store = log_of(home, [0, 1, 4, 5])
    found = [(message.queue_offset, message.body) for message in home.read_queue(store, "T")]
    assert found == [(0, b"0"), (1, b"1"), (4, b"2"), (5, b"3")]
    assert [message.body for message in store.get("T", 0, 4).messages] == [b"2", b"3"]
    assert store.put(Message("T", b"next")).queue_offset == 6


# -- the index -----------------------------------------------------------------------------------------------


def test_a_count_of_used_slots_that_is_too_high_does_no_harm(home: StoreHome) -> None:
    """RocketMQ up to 4.7.0 counted every key."""
    with home.open() as store:
        home.put_numbered(store, 3)
    header = IndexHeader.unpack(home.index_files()[0].read_bytes()[:40])
    assert header.hash_slot_count == 3
    home.write(home.index_files()[0], 32, (9999).to_bytes(4, "big"))
    with home.open() as store:
        home.put_numbered(store, 3)
        assert [len(store.query("T", f"k{number}")) for number in range(6)] == [1] * 6


def test_an_index_file_does_not_roll_by_time(home: StoreHome) -> None:
    store = home.open()
    for number in range(5):
        home.clock.now += 366 * 24 * HOUR_MS
        store.put(Message("T", b"%d" % number, keys=("k",)))
    assert len(store.query("T", "k")) == 5
    assert [record.body for record in store.query("T", "k", begin_ms=home.clock.now)] == [b"4"]
    assert len(home.index_files()) == 1


# -- reading -------------------------------------------------------------------------------------------------


def test_the_limits_of_a_page_are_those_of_the_settings(home: StoreHome) -> None:
    near = {"max_transfer_count_on_message_in_memory": 3, "max_transfer_bytes_on_message_in_memory": 250}
    far = {"max_transfer_count_on_message_in_disk": 2, "max_transfer_bytes_on_message_in_disk": 1000}
    with home.open(**near) as store:
        store.put_many([Message("T", b"")] * 4)
        store.put_many([Message("T", bytes(8))] * 4)
        assert store.get("T", 0, 4).next_begin_offset == 6, "three would have 300 bytes"
    with home.open(**{**near, "max_transfer_bytes_on_message_in_memory": 1000}) as store:
        assert store.get("T", 0, 0).next_begin_offset == 3
    with home.open(access_message_in_memory_max_ratio=0, **far) as store:
        assert store.get("T", 0, 0).next_begin_offset == 2
    with home.open(access_message_in_memory_max_ratio=0, max_transfer_bytes_on_message_in_disk=200) as store:
        assert store.get("T", 0, 4).next_begin_offset == 6


def test_the_store_time_of_a_record_is_read_from_its_head(home: StoreHome) -> None:
    store = home.open()
    assert store.earliest_time() == -1
    acks = []
    for host in ("10.0.0.1:1", "[::1]:1"):
        home.clock.now += 5
        acks.append(store.put(Message("T", b"", born_host=host)))
    times = [store.records.store_timestamp(ack.physical_offset) for ack in acks]
    assert times == [ack.store_timestamp for ack in acks] == [home.clock.now - 5, home.clock.now]
    assert [store.records.store_timestamp(place) for place in (-1, acks[-1].end_offset, 2**62)] == [-1] * 3
    assert store.earliest_time() == home.clock.now - 5


def test_a_queue_knows_where_its_messages_lie_and_where_the_last_one_ends(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096)
    acks = [store.put(Message("T", bytes(1000))) for _ in range(7)]
    store.catch_up()
    queue = store.queues.find("T", 0)
    assert queue is not None
    assert [queue.unit(number)[:2] for number in range(7)] == [(ack.physical_offset, ack.size) for ack in acks]
    assert queue.unit(7) == queue.unit(-1) == NO_UNIT
    assert queue.max_physical_offset == acks[-1].end_offset
    starts = (0, 4095, 4096, acks[-1].physical_offset)
    assert [store.log.roll_next(offset) for offset in starts] == [4096, 4096, 8192, 12288]


def test_tags_codes_are_read_from_extension_files(tmp_path: Path) -> None:
    folder = tmp_path / "T" / "0"
    folder.mkdir(parents=True)
    first = struct.pack(">hqqh", 24, 77, 1_600_000_000_000, 4) + bytes(4) + struct.pack(">h", -1)
    second = struct.pack(">hqqh", 20, -5, 1_600_000_000_000, 0)
    (folder / f"{0:020d}").write_bytes(first.ljust(100, b"\0"))
    (folder / f"{100:020d}").write_bytes(second.ljust(100, b"\0"))
    extensions = QueueExtensions(Files(), tmp_path, 100)
    addresses = [offset - 2**63 for offset in (0, 100, 24, 50, 200)]
    codes = np.array([*addresses, 12, -12], np.int64)
    assert extensions.resolve("T", 0, codes).tolist() == [77, -5, *addresses[2:], 12, -12]
    assert extensions.resolve("T", 1, codes).tolist() == codes.tolist(), "a queue without such files"
    assert pack_unit(0, 100, addresses[0])[12:].hex() == "8000000000000000"


def test_extension_files_take_little_memory_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consume_queue, "_MAX_EXT_PIECES", 4)
    unit_size, file_size = 30_000, 900_000
    unit = [struct.pack(">hqqh", unit_size, code, 0, unit_size - 20).ljust(unit_size, b"x") for code in range(30)]
    for queue_id in range(10):
        folder = tmp_path / "T" / str(queue_id)
        folder.mkdir(parents=True)
        (folder / f"{0:020d}").write_bytes(b"".join(unit))
    extensions = QueueExtensions(Files(), tmp_path, file_size)
    addresses = np.array([number * unit_size - 2**63 for number in range(30)], np.int64)
    tracemalloc.start()
    try:
        for queue_id in range(10):
            assert extensions.resolve("T", queue_id, addresses).tolist() == list(range(30)), "also across pieces"
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 5 * (64 + 32) << 10

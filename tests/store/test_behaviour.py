"""How the store behaves, number by number, as RocketMQ's was observed to; deviations on purpose are named."""

from __future__ import annotations

import shutil
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.format.checkpoint import Checkpoint
from penstock.format.constants import BLANK_MAGIC, MESSAGE_MAGIC_V2, SCHEDULE_TOPIC
from penstock.format.index_layout import IndexHeader
from penstock.format.kernels import java_hash
from penstock.format.queue_unit import PRE_BLANK, pack_unit, unpack_unit
from penstock.format.record import Record, encode_record
from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.store import BatchResult, GetStatus, Message, MessageStore, PutStatus

if TYPE_CHECKING:
    from store.conftest import FaultyFiles, StoreHome

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


def test_without_the_log_everything_begins_anew_and_what_described_it_is_kept_aside(home: StoreHome) -> None:
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


# -- delayed messages ----------------------------------------------------------------------------------------


def delayed_units(store: MessageStore, level: int) -> list[tuple[int, int, int]]:
    store.catch_up()
    queue = store.queues.find(SCHEDULE_TOPIC, level - 1)
    assert queue is not None
    return [queue.unit(number) for number in range(queue.max_offset)]


def test_a_delayed_message_waits_in_the_queue_of_its_level(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message("orders", b"later", queue_id=5, tags="paid", delay_level=3))
    assert (ack.status, ack.queue_id, ack.queue_offset) == (PutStatus.PUT_OK, 2, 0)
    (message,) = home.read_queue(store, SCHEDULE_TOPIC, 2)
    assert message.body == b"later"
    assert message.properties == {"TAGS": "paid", "DELAY": "3", "REAL_TOPIC": "orders", "REAL_QID": "5"}
    assert delayed_units(store, 3) == [(0, ack.size, home.clock.now + 10_000)]
    assert store.get("orders", 5, 0).status is GetStatus.NO_MESSAGE_IN_QUEUE


def test_a_delay_beyond_the_last_level_is_the_last_level(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message("orders", b"", delay_level=99))
    assert ack.queue_id == 17
    assert delayed_units(store, 18) == [(0, ack.size, home.clock.now + 7_200_000)]
    assert home.read_queue(store, SCHEDULE_TOPIC, 17)[0].properties["DELAY"] == "18"


@pytest.mark.parametrize("level", [0, -1])
def test_a_delay_of_zero_or_less_is_none(home: StoreHome, level: int) -> None:
    store = home.open()
    store.put(Message("orders", b"now", delay_level=level))
    assert home.bodies(store, "orders") == [b"now"]


def test_the_delays_are_those_of_the_settings(home: StoreHome) -> None:
    store = home.open(message_delay_level="7s 2d")
    ack = store.put(Message("orders", b"", properties={"DELAY": "2"}))
    assert delayed_units(store, 2) == [(0, ack.size, home.clock.now + 2 * 86_400_000)]


@pytest.mark.parametrize("lost", ["the queues", "nothing"])
def test_deliver_times_are_right_straight_after_a_crash(home: StoreHome, lost: str) -> None:
    """RocketMQ parses its levels too late, and after a crash delivers at once what should wait for hours."""
    with home.open() as store:
        for level in (1, 3, 18):
            store.put(Message("orders", b"later", tags="paid", delay_level=level))
        before = {level: delayed_units(store, level) for level in (1, 3, 18)}
    home.mark_crashed()
    if lost == "the queues":
        shutil.rmtree(home.path / "consumequeue")
    store = home.open()
    assert {level: delayed_units(store, level) for level in (1, 3, 18)} == before
    assert before[18][0][2] == home.clock.now + 7_200_000


def test_a_message_put_into_the_schedule_topic_itself_is_not_rewritten(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message(SCHEDULE_TOPIC, b"", queue_id=2, properties={"DELAY": "3", "REAL_TOPIC": "orders"}))
    (message,) = home.read_queue(store, SCHEDULE_TOPIC, 2)
    assert message.properties == {"DELAY": "3", "REAL_TOPIC": "orders"}
    assert delayed_units(store, 3) == [(0, ack.size, home.clock.now + 10_000)]


# -- batches -------------------------------------------------------------------------------------------------


def test_a_batch_is_stored_in_one_piece_with_consecutive_offsets(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("T", b"before"))
    batch = store.put_many(
        [Message("T", b"%d" % number, tags=f"t{number}", keys=(f"k{number}",)) for number in range(5)]
    )
    assert batch.status is PutStatus.PUT_OK
    assert [result.queue_offset for result in batch.results] == [1, 2, 3, 4, 5]
    ends = [result.end_offset for result in batch.results]
    assert [result.physical_offset for result in batch.results[1:]] == ends[:-1]
    assert batch.msg_id.split(",") == [result.msg_id for result in batch.results]
    assert home.bodies(store, "T") == [b"before", b"0", b"1", b"2", b"3", b"4"]
    assert [store.look_up_id(each).body for each in batch.msg_id.split(",")] == [b"0", b"1", b"2", b"3", b"4"]
    assert [record.body for record in store.query("T", "k3")] == [b"3"]
    assert {result.store_timestamp for result in batch.results} == {home.clock.now}


def test_a_batch_that_does_not_fit_moves_to_the_next_file_whole(home: StoreHome) -> None:
    store = home.open(**SMALL_LOG)
    store.put(sized(2000))

    def offsets(batch: BatchResult) -> list[int]:
        return [result.physical_offset for result in batch.results]

    assert offsets(store.put_many([sized(1000), sized(1000)])) == [2000, 3000]
    assert offsets(store.put_many([sized(92)])) == [4096], "96 bytes are left, and 100 are needed"
    assert offsets(store.put_many([sized(2000), sized(1996)])) == [4188, 6188], "exactly eight are left"
    assert offsets(store.put_many([sized(2044), sized(2044)])) == [8192, 10236], "a whole file but for the filler"
    assert [message.queue_offset for message in home.read_queue(store, "T")] == list(range(8))


def test_a_batch_may_go_to_several_topics_and_queues(home: StoreHome) -> None:
    store = home.open()
    store.put(Message("U", b"before"))
    batch = store.put_many(
        [Message("T", b"1"), Message("U", b"2"), Message("T", b"3"), Message("T", b"4", queue_id=1), Message("U", b"5")]
    )
    assert [result.queue_offset for result in batch.results] == [0, 1, 1, 0, 2]
    assert home.bodies(store, "T") == [b"1", b"3"]
    assert home.bodies(store, "U") == [b"before", b"2", b"5"]


# -- hosts ---------------------------------------------------------------------------------------------------


def test_ipv6_hosts_are_stored_and_shown(home: StoreHome) -> None:
    address = "1050::5:600:300c:326b"
    with home.open(broker_ip1=address) as store:
        both = store.put(Message("T", b"both", born_host=f"[{address}]:54321"))
        one = store.put(Message("T", b"store", born_host="10.0.0.1:1"))
        assert (both.size, one.size) == (91 + 24 + 1 + 4, 91 + 12 + 1 + 5)
    with home.open() as store:
        born = store.put(Message("T", b"born", born_host=f"[{address}]:54321"))
        messages = home.read_queue(store, "T")
        assert [(message.sys_flag, message.born_host, message.store_host) for message in messages] == [
            (0x30, f"[{address}]:54321", f"[{address}]:10911"),
            (0x20, "10.0.0.1:1", f"[{address}]:10911"),
            (0x10, f"[{address}]:54321", "127.0.0.1:10911"),
        ]
        assert len(one.msg_id) == 56
        assert len(born.msg_id) == 32
        assert store.look_up_id(one.msg_id).body == b"store"
        assert store.look_up_id(born.msg_id.lower()).body == b"born"


def test_an_id_of_another_store_finds_nothing(home: StoreHome) -> None:
    store = home.open()
    ack = store.put(Message("T", b"x"))
    elsewhere = store.put(Message("T", b"y", store_host="10.0.0.9:10911"))
    assert store.look_up_id(elsewhere.msg_id).body == b"y"
    assert store.look_up_id("0A000009" + ack.msg_id[8:]) is None


# -- records and files of other versions ---------------------------------------------------------------------


def as_v2(record: bytes, topic: bytes) -> bytes:
    """The record as 5.x writes it for a long topic: another magic, and two bytes for the topic's length."""
    body_end = 88 + struct.unpack_from(">i", record, 84)[0]
    rest = record[body_end + 1 + record[body_end] :]
    wide = record[8:body_end] + struct.pack(">h", len(topic)) + topic + rest
    return struct.pack(">iI", len(wide) + 8, MESSAGE_MAGIC_V2) + wide


@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200], ids=["short_topic", "topic_of_207_bytes"])
def test_records_of_rocketmq_5_are_read(home: StoreHome, topic: str) -> None:
    with home.open() as store:
        store.put(Message("T", b"before"))
        end = store.put(Message("T", b"before")).end_offset
    wide = as_v2(
        encode_record(
            Record(
                topic="x",
                queue_offset=2 if topic == "T" else 0,
                physical_offset=end,
                body=b"wide",
                store_timestamp=1_600_000_000_001,
                properties={"KEYS": "k", "TAGS": "paid"},
            )
        ),
        topic.encode(),
    )
    behind = encode_record(
        Record(topic="T", queue_offset=3 if topic == "T" else 2, physical_offset=end + len(wide), body=b"behind")
    )
    home.write(home.log_files()[0], end, wide + behind)
    home.mark_crashed()
    store = home.open()
    assert store.report.torn_bytes == 0
    found = store.look_up(end)
    assert found is not None
    assert (found.topic, found.body) == (topic, b"wide")
    assert [record.body for record in store.query(topic, "k")] == [b"wide"]
    page = store.get(topic, 0, found.queue_offset, tags="paid")
    assert [message.body for message in page.messages] == [b"wide"]
    assert home.bodies(store, "T")[-1] == b"behind"


def ext_unit(tags_code: int, bit_map: bytes) -> bytes:
    return struct.pack(">hqqh", 20 + len(bit_map), tags_code, 1_600_000_000_000, len(bit_map)) + bit_map


def test_tags_codes_in_extension_files_are_found_there(home: StoreHome) -> None:
    """Built by hand, as a RocketMQ with enableConsumeQueueExt leaves them: two files of 100 bytes."""
    with home.open() as store:
        acks = [store.put(Message("T", b"", tags=tags)) for tags in ("paid", "refunded", "paid", "paid")]
        assert len(home.read_queue(store, "T")) == 4
    paid, refunded = java_hash("paid"), java_hash("refunded")
    first = ext_unit(paid, b"\x01" * 14) + ext_unit(refunded, b"\x02" * 14)
    second = ext_unit(paid, b"")
    folder = home.path / "consumequeue_ext" / "T" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes((first + struct.pack(">h", -1)).ljust(100, b"\0"))
    (folder / f"{100:020d}").write_bytes(second.ljust(100, b"\0"))
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    addresses = [0, 34, 100, 180]  # the last leads to bytes that were never written
    for number, (ack, address) in enumerate(zip(acks, addresses, strict=True)):
        unit = pack_unit(ack.physical_offset, ack.size, address - 2**63)
        home.write(home.queue_files("T")[0], number * 20, unit)

    with home.open(mapped_file_size_consume_queue_ext=100) as store:
        found = {
            tags: [message.queue_offset for message in store.get("T", 0, 0, tags=tags).messages]
            for tags in ("paid", "refunded", "other", "*")
        }
        assert found == {"paid": [0, 2, 3], "refunded": [1], "other": [], "*": [0, 1, 2, 3]}
        store.put(Message("T", b"", tags="paid"))
        assert [message.queue_offset for message in store.get("T", 0, 2, tags="paid").messages] == [2, 3, 4]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept, "they are read, never written"


def test_addresses_without_extension_files_leave_the_choice_to_the_text(home: StoreHome) -> None:
    with home.open() as store:
        acks = [store.put(Message("T", b"", tags=tags)) for tags in ("paid", "refunded")]
        store.catch_up()
    for number, ack in enumerate(acks):
        unit = pack_unit(ack.physical_offset, ack.size, number * 34 - 2**63)
        home.write(home.queue_files("T")[0], number * 20, unit)
    store = home.open()
    assert [message.queue_offset for message in store.get("T", 0, 0, tags="refunded").messages] == [1]


# -- following -----------------------------------------------------------------------------------------------


def test_whoever_asked_is_told_of_each_arrival(home: StoreHome) -> None:
    store = home.open()
    arrivals: list[tuple[str, int, int, list[int]]] = []
    told = threading.Event()

    def arrived(topic: str, queue_id: int, max_offset: int, codes: object) -> None:
        arrivals.append((topic, queue_id, max_offset, list(codes)))  # type: ignore[call-overload]
        told.set()

    store.on_arrival(arrived)
    store.put(Message("T", b"", queue_id=2, tags="paid"))
    assert told.wait(30), "dispatch is woken by the put"
    assert arrivals == [("T", 2, 1, [java_hash("paid")])]


def test_a_read_sees_what_was_acknowledged_before_it(home: StoreHome) -> None:
    store = home.open()
    for number in range(200):
        store.put(Message("T", b"%d" % number))
        assert store.max_offset("T", 0) == number + 1

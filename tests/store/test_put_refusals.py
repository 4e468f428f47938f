"""Puts that are refused for what they are, or for want of room: why in one sentence, and nothing is stored."""

from __future__ import annotations

import errno

import pytest
from support.disks import FaultyFiles, refuse
from support.stores import StoreHome, assert_nothing_stored, is_one_sentence

from penstock.format.sys_flag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.store import Message, PutStatus

pytestmark = pytest.mark.usefixtures("kernels_name")


# -- MESSAGE_ILLEGAL -----------------------------------------------------------------------------------------

ILLEGAL = {
    "no topic": Message("", b""),
    "a topic of 128 bytes": Message("t" * 128, b""),
    "a topic of 43 characters and 129 bytes": Message("中" * 43, b""),
    "a topic with a letter that is not ASCII": Message("commandé", b""),
    "a topic with a space": Message("two words", b""),
    "a topic with a newline": Message("orders\n", b""),
    "a topic with a zero byte": Message("orders\0", b""),
    "a topic that climbs out of the folder": Message("../orders", b""),
    "a topic that is the parent folder": Message("..", b""),
    "a topic that is a path": Message("a/b", b""),
    "a topic that is half a character": Message("\ud800", b""),
    "a body over maxMessageSize": Message("orders", bytes(10_001)),
    "a separator in a property's name": Message("orders", b"", properties={"a\x01b": "c"}),
    "the other separator in a property's name": Message("orders", b"", properties={"a\x02b": "c"}),
    "a separator in a property's value": Message("orders", b"", properties={"a": "b\x02c"}),
    "a separator in a key": Message("orders", b"", keys=("a\x02b",)),
    "a separator in the tag": Message("orders", b"", tags="a\x02b"),
    "a property without a name": Message("orders", b"", properties={"": "x"}),
    "half a character in a property": Message("orders", b"", properties={"a": "\ud800"}),
    "a delay that is not a number": Message("orders", b"", properties={"DELAY": "soon"}),
    "a delay that is almost a number": Message("orders", b"", properties={"DELAY": "--5"}),
    "a negative queue": Message("orders", b"", queue_id=-1),
    "a queue number of 33 bits": Message("orders", b"", queue_id=2**32),
    "a flag of 33 bits": Message("orders", b"", flag=2**32),
    "a born time before time": Message("orders", b"", born_timestamp=-1),
    "a born host without a port": Message("orders", b"", born_host="127.0.0.1"),
    "a born host that is a name": Message("orders", b"", born_host="localhost:80"),
    "a store host that is garbage": Message("orders", b"", store_host="[::1:10911"),
}


@pytest.mark.parametrize("message", ILLEGAL.values(), ids=ILLEGAL.keys())
def test_message_illegal(home: StoreHome, message: Message) -> None:
    store = home.open(max_message_size=10_000)
    end = store.put(Message("orders", b"before")).end_offset
    result = store.put(message)
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert_nothing_stored(store, result, end)
    assert store.put_many([Message("orders", b"fine"), message]).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.queue.wrote_offset == end, "a batch is stored whole or not at all"
    assert store.put(Message("orders", b"after")).queue_offset == 1
    assert store.topics() == ["orders"]
    assert [path.name for path in (home.path / "consumequeue").iterdir()] == ["orders"]


def test_the_largest_topic_and_body_are_still_legal(home: StoreHome) -> None:
    store = home.open(max_message_size=10_000)
    topic = "%|_-" + "t" * 123
    assert store.put(Message(topic, bytes(10_000))).status is PutStatus.PUT_OK
    assert store.get(topic, 0, 0).messages[0].body == bytes(10_000)


@pytest.mark.parametrize(
    "extra",
    [
        Message("orders", b"", delay_level=3),
        Message("orders", b"", properties={"DELAY": "1"}),
        Message("orders", b"", sys_flag=TRANSACTION_PREPARED),
        Message("orders", b"", sys_flag=TRANSACTION_COMMIT),
        Message("orders", b"", sys_flag=TRANSACTION_ROLLBACK),
    ],
    ids=["delay_level", "delay_property", "prepared", "commit", "rollback"],
)
def test_message_illegal_for_a_batch_with_a_delayed_or_transactional_message(home: StoreHome, extra: Message) -> None:
    store = home.open()
    batch = store.put_many([Message("orders", b"fine"), extra])
    assert (batch.status, batch.results, batch.msg_id) == (PutStatus.MESSAGE_ILLEGAL, (), "")
    assert is_one_sentence(batch.reason), batch.reason
    assert store.log.queue.wrote_offset == 0


def test_a_batch_of_one_delayed_or_transactional_message_is_refused_as_well(home: StoreHome) -> None:
    store = home.open()
    assert store.put_many([Message("orders", b"", delay_level=3)]).status is PutStatus.MESSAGE_ILLEGAL
    assert store.put_many([Message("orders", b"", sys_flag=TRANSACTION_COMMIT)]).status is PutStatus.MESSAGE_ILLEGAL
    assert store.log.queue.wrote_offset == 0


def test_message_illegal_for_a_batch_larger_than_a_file_and_for_an_empty_one(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096, max_message_size=4000)
    large = store.put_many([Message("T", bytes(1000))] * 4)
    assert large.status is PutStatus.MESSAGE_ILLEGAL
    assert "4096" in large.reason
    assert is_one_sentence(large.reason), large.reason
    empty = store.put_many([])
    assert empty.status is PutStatus.MESSAGE_ILLEGAL
    assert is_one_sentence(empty.reason), empty.reason
    assert store.log.queue.wrote_offset == 0


def test_message_illegal_for_a_record_that_fits_no_file(home: StoreHome) -> None:
    store = home.open(mapped_file_size_commit_log=4096, max_message_size=4096)
    room = 4096 - 8 - 92
    refused = store.put(Message("T", bytes(room + 1)))
    assert refused.status is PutStatus.MESSAGE_ILLEGAL
    assert_nothing_stored(store, refused, 0)
    assert store.put(Message("T", bytes(room))).status is PutStatus.PUT_OK
    assert store.put(Message("T", bytes(room))).physical_offset == 4096


# -- PROPERTIES_SIZE_EXCEEDED --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("x" * 32_765, PutStatus.PUT_OK),
        ("x" * 32_766, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ("中" * 10_921, PutStatus.PUT_OK),
        ("中" * 10_922, PutStatus.PROPERTIES_SIZE_EXCEEDED),
    ],
    ids=["32767_bytes", "32768_bytes", "non_ascii_32765_bytes", "non_ascii_32768_bytes"],
)
def test_properties_size_exceeded_counts_bytes_as_stored(home: StoreHome, value: str, status: PutStatus) -> None:
    store = home.open()
    result = store.put(Message("orders", b"", properties={"p": value}))
    assert result.status is status
    if status is PutStatus.PUT_OK:
        assert store.get("orders", 0, 0).messages[0].properties == {"p": value}
    else:
        assert "32767" in result.reason
        assert_nothing_stored(store, result, 0)
        assert store.put_many([Message("orders", b"", properties={"p": value})] * 2).status is status


def test_properties_size_exceeded_counts_what_the_store_adds_for_a_delayed_message(home: StoreHome) -> None:
    store = home.open()
    fits = Message("orders", b"", properties={"p": "x" * 32_750})
    assert store.put(fits).status is PutStatus.PUT_OK
    end = store.log.queue.wrote_offset
    delayed = store.put(Message("orders", b"", properties={"p": "x" * 32_750}, delay_level=1))
    assert delayed.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert_nothing_stored(store, delayed, end)


# -- CREATE_MAPEDFILE_FAILED ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True], ids=["when_needed", "pre_allocated"])
def test_create_mapedfile_failed_on_a_full_disk_and_going_on_when_space_returns(
    home: StoreHome, disk: FaultyFiles, ahead: bool
) -> None:
    sizes = {"mapped_file_size_commit_log": 4096, "pre_allocate_files": ahead}
    store = home.open(files=disk, **sizes)
    disk.before_allocate = lambda path: refuse(errno.ENOSPC)
    refused = store.put(Message("T", bytes(1900)))
    assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert "no space left" in refused.reason
    assert_nothing_stored(store, refused, 0)

    disk.before_allocate = lambda path: None
    assert store.put(Message("T", bytes(1900))).physical_offset == 0
    assert store.put(Message("T", bytes(1900))).physical_offset == 1992
    assert home.read_queue(store, "T"), "the queue's own file is there before the disk is full again"
    if ahead:
        store.put(Message("T", bytes(1900)))  # moves into the file that was made ahead
        store.put(Message("T", bytes(1900)))
    before = len(home.read_queue(store, "T"))

    disk.before_allocate = lambda path: refuse(errno.ENOSPC)
    answers = [store.put(Message("T", bytes(1900))) for _ in range(6)]
    failed = [answer for answer in answers if not answer.ok]
    assert failed
    assert {answer.status for answer in failed} == {PutStatus.CREATE_MAPEDFILE_FAILED}
    stored = before + len(answers) - len(failed)
    assert len(home.read_queue(store, "T")) == stored, "what is stored is still served"

    disk.before_allocate = lambda path: None
    result = store.put(Message("T", b"back"))
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, stored)
    store.close()
    again = home.open(**sizes)
    assert again.report.clean_exit
    assert len(home.read_queue(again, "T")) == stored + 1


def test_a_batch_on_a_full_disk_is_stored_whole_or_not_at_all(home: StoreHome, disk: FaultyFiles) -> None:
    store = home.open(files=disk, mapped_file_size_commit_log=4096)
    store.put(Message("T", bytes(1900)))
    home.read_queue(store, "T")
    disk.before_allocate = lambda path: refuse(errno.ENOSPC)
    batch = store.put_many([Message("T", bytes(1000))] * 3)
    assert (batch.status, batch.results) == (PutStatus.CREATE_MAPEDFILE_FAILED, ())
    assert is_one_sentence(batch.reason), batch.reason
    assert len(home.read_queue(store, "T")) == 1
    disk.before_allocate = lambda path: None
    again = store.put_many([Message("T", bytes(1000))] * 3)
    assert [result.queue_offset for result in again.results] == [1, 2, 3]
    assert again.results[0].physical_offset == 4096


def test_create_mapedfile_failed_when_the_new_files_name_cannot_be_made_durable(
    home: StoreHome, disk: FaultyFiles
) -> None:
    store = home.open(files=disk)
    disk.before_sync_folder = lambda path: refuse(errno.EIO) if path.name == "commitlog" else None
    refused = store.put(Message("T", b"x"))
    assert refused.status is PutStatus.CREATE_MAPEDFILE_FAILED
    assert_nothing_stored(store, refused, 0)
    disk.before_sync_folder = lambda path: None
    assert store.put(Message("T", b"x")).status is PutStatus.PUT_OK

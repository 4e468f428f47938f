"""A record's header has no checksum; its unit is the cross-check. A record in a body is no message."""

from __future__ import annotations

import shutil
import tracemalloc
from contextlib import ExitStack

import msgspec
import pytest
from support.stores import StoreHome

from penstock.format.constants import HALF_TOPIC
from penstock.format.record import Record, encode_record
from penstock.format.sys_flag import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from penstock.store import GetStatus, Message, MessageStore, PutResult
from penstock.store.cold_reads import ColdRead

pytestmark = pytest.mark.usefixtures("kernels_name")

CLEAN_OR_NOT = pytest.mark.parametrize("crashed", [False, True], ids=["clean_exit", "crash"])
FIELDS = pytest.mark.parametrize(
    ("position", "what"),
    [(15, "queue id"), (27, "queue offset"), (20, "high byte of the queue offset"), (88 + 5 + 1, "topic")],
)
"""Places in a record with a body of five bytes."""


def fill(home: StoreHome) -> list[PutResult]:
    with home.open() as store:
        return [
            store.put(Message("orders", b"%05d" % number, keys=f"k{number}", queue_id=number % 2))
            for number in range(10)
        ]


@CLEAN_OR_NOT
@FIELDS
def test_a_record_with_a_damaged_header_is_served_by_nobody(
    home: StoreHome, crashed: bool, position: int, what: str
) -> None:
    hit = fill(home)[4]
    home.flip(home.log_files()[0], hit.physical_offset + position)
    if crashed:
        home.mark_crashed()
    store = home.open()
    assert store.topics() == ["orders"], f"a damaged {what} makes a topic"
    assert [queue.queue_id for queue in store.queues] == [0, 1]
    assert home.bodies(store, "orders", 0) == [b"00000", b"00002", b"00006", b"00008"]
    assert home.bodies(store, "orders", 1) == [b"%05d" % number for number in range(1, 10, 2)]
    page = store.get("orders", 0, 0)
    assert (page.status, page.damaged) == (GetStatus.FOUND, (2,))
    assert store.look_up(hit.physical_offset) is None
    assert not store.query("orders", "k4")
    assert store.query_many("orders", ["k4", "k5"])[0].tolist() == [1]
    assert [hit.body for hit in store.query_many_messages("orders", ["k4", "k5"])[1]] == [b"00005"]
    assert [hit.body for hit in store.query("orders", "k5")] == [b"00005"]
    assert store.put(Message("orders", b"next")).queue_offset == 5


@FIELDS
def test_the_last_unit_of_a_queue_is_not_given_up_for_a_damaged_header(
    home: StoreHome, position: int, what: str
) -> None:
    hit = fill(home)[8]
    home.flip(home.log_files()[0], hit.physical_offset + position)
    home.mark_crashed()
    store = home.open()
    assert [queue.queue_id for queue in store.queues] == [0, 1], what
    assert store.look_up(hit.physical_offset) is None
    assert home.bodies(store, "orders", 0) == [b"00000", b"00002", b"00004", b"00006"]
    assert store.put(Message("orders", b"next")).queue_offset == 5


def test_a_record_with_a_damaged_body_is_found_by_no_key(home: StoreHome) -> None:
    hit = fill(home)[4]
    home.flip(home.log_files()[0], hit.physical_offset + 88)
    store = home.open()
    assert not store.query("orders", "k4")
    assert store.query_many("orders", ["k3", "k4", "k5"])[0].tolist() == [0, 2]
    assert [hit.body for hit in store.query_many_messages("orders", ["k3", "k4", "k5"])[1]] == [b"00003", b"00005"]


@CLEAN_OR_NOT
def test_a_record_without_its_unit_is_believed(home: StoreHome, crashed: bool) -> None:
    hit = fill(home)[4]
    unit = home.queue_files("orders", 0)[0]
    home.write(unit, hit.queue_offset * 20, (1 << 40).to_bytes(8, "big"))
    if crashed:
        home.mark_crashed()
    store = home.open()
    record = store.look_up(hit.physical_offset)
    assert record is not None
    assert record.body == b"00004"
    assert [found.body for found in store.query("orders", "k4")] == [b"00004"]


def test_a_lost_queue_is_built_again_beside_others(home: StoreHome) -> None:
    fill(home)
    shutil.rmtree(home.path / "consumequeue" / "orders" / "1")
    home.mark_crashed()
    store = home.open()
    assert home.bodies(store, "orders", 1) == [b"%05d" % number for number in range(1, 10, 2)]


def test_a_queue_offset_that_no_log_could_have_reached_makes_no_files(home: StoreHome) -> None:
    """Its place would lie behind 2**40 units that stand for nothing."""
    folder = home.path / "commitlog"
    folder.mkdir(parents=True)
    first = encode_record(Record(topic="T", body=b"one"))
    far = encode_record(Record(topic="T", body=b"far", queue_offset=2**40, physical_offset=len(first)))
    (folder / f"{0:020d}").write_bytes((first + far).ljust(1 << 20, b"\0"))
    store = home.open()
    assert home.bodies(store, "T") == [b"one"]
    assert len(home.queue_files("T")) == 1
    assert store.put(Message("T", b"two")).queue_offset == 1


def test_a_record_that_is_not_dispatched_yet_has_no_unit_and_is_found(home: StoreHome) -> None:
    store = home.open(sync=True)
    answer = store.put(Message("T", b"new", wait=False))
    record = store.look_up(answer.physical_offset)
    assert record is not None
    assert record.body == b"new"


def test_behind_known_damage_a_record_without_a_unit_is_found(home: StoreHome) -> None:
    """A half message, and a message of a deleted topic: a walk over the log must lead to them."""
    store = home.open()
    lost = store.put(Message("T", b"lost"))
    deleted = store.put(Message("gone", b"deleted"))
    half = store.put(Message("T", b"half", sys_flag=TRANSACTION_PREPARED))
    assert store.delete_topic("gone")
    store.close()
    home.write(home.log_files()[0], lost.physical_offset, bytes(lost.size))
    home.mark_crashed()
    store = home.open()
    assert [each.physical_offset for each in store.report.damage] == [lost.physical_offset]
    for stored, body in ((deleted, b"deleted"), (half, b"half")):
        record = store.look_up(stored.physical_offset)
        assert record is not None
        assert record.body == body


# -- forged records: a body that contains a record ---------------------------------------------------------------


def put_forged(store: MessageStore, forged: Record) -> int:
    """Puts a message whose body contains `forged`, placed so that its physical offset is right. Returns that offset."""
    begin = store.watermarks.appended
    body_at = 88  # the start of a body in a record with IPv4 addresses
    at = begin + body_at
    body = encode_record(msgspec.structs.replace(forged, physical_offset=at))
    assert store.put(Message("mine", body)).physical_offset == begin
    assert store.records.raw(at, len(body))[0] == body, "the forged record is not placed well"
    return at


FORGERIES = pytest.mark.parametrize(
    "forged",
    [
        Record(topic="mine", body=b"forged", queue_offset=0),
        Record(topic="other", body=b"forged", queue_offset=0),
        Record(topic="none", body=b"forged", queue_id=77777),
        Record(topic=HALF_TOPIC, body=b"forged", sys_flag=TRANSACTION_PREPARED),
        Record(topic="none", body=b"forged", sys_flag=TRANSACTION_ROLLBACK),
    ],
    ids=["own topic", "another's topic", "no topic", "half", "rolled back"],
)


@FORGERIES
@pytest.mark.parametrize("dispatched", [True, False], ids=["dispatched", "not dispatched"])
def test_a_record_in_a_body_is_no_message(home: StoreHome, forged: Record, dispatched: bool) -> None:
    store = home.open()
    with ExitStack() as held:
        before = store.put(Message("other", b"before"))
        store.catch_up()
        if not dispatched:
            held.enter_context(store.dispatcher.paused())
        at = put_forged(store, forged)
        after = store.put(Message("other", b"after"))
        if dispatched:
            store.catch_up()
        assert store.look_up(at) is None
        cold = store.try_look_up(at)
        assert (cold() if isinstance(cold, ColdRead) else cold) is None
        for stored in (before, after):
            record = store.look_up(stored.physical_offset)
            assert record is not None
            assert record.topic == "other"


def test_a_record_in_a_body_is_no_message_after_the_queues_are_lost(home: StoreHome) -> None:
    with home.open() as store:
        at = put_forged(store, Record(topic="mine", body=b"forged", queue_offset=0))
        after = store.put(Message("mine", b"after"))
        store.catch_up()
        store.delete_topic("mine")
        assert store.look_up(at) is None
        found = store.look_up(after.physical_offset)
        assert found is not None
        assert found.body == b"after"


def test_a_size_from_a_stranger_does_not_make_the_reader_copy_it(home: StoreHome) -> None:
    """The header in the body of a message names a size of many messages, which the log has."""
    store = home.open(mapped_file_size_commit_log=32 << 20)
    claimed = 8 << 20
    for offset_error in (0, 1):
        offset = store.watermarks.appended + 88
        forged = Record(topic="orders", queue_offset=0, body=b"x", physical_offset=offset + offset_error)
        assert store.put(Message("mine", claimed.to_bytes(4) + encode_record(forged)[4:])).ok
        while store.watermarks.appended < offset + claimed:
            assert store.put(Message("mine", bytes(store.settings.max_message_size))).ok
        tracemalloc.start()
        try:
            found = store.try_look_up(offset)
            assert isinstance(found, ColdRead) is (offset_error == 0), "what could be a record is read in a thread"
            assert store.look_up(offset) is None
            assert tracemalloc.get_traced_memory()[1] < claimed // 4
        finally:
            tracemalloc.stop()

"""Delayed messages, which wait in the queue of their level, and batches, which are stored in one piece."""

from __future__ import annotations

import shutil

import pytest
from support.stores import StoreHome

from penstock.format.constants import SCHEDULE_TOPIC
from penstock.store import BatchResult, GetStatus, Message, MessageStore, PutStatus

pytestmark = pytest.mark.usefixtures("kernels_name")

SMALL_LOG = {"mapped_file_size_commit_log": 4096}


def sized(size: int, topic: str = "T") -> Message:
    """A message whose record has exactly this size, for a topic of one letter."""
    return Message(topic, bytes(size - 92))


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

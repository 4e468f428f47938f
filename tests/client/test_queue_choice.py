"""Whose turn it is, and who gets which queues."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.rebalance import allocate_averagely
from penstock.client.send_requests import QueueSelector, select_by_hash
from penstock.protocol.bodies.queues import MessageQueue


def queues(*brokers: str, count: int = 2) -> list[MessageQueue]:
    return [
        MessageQueue(broker_name=name, queue_id=queue_id, topic="T") for name in brokers for queue_id in range(count)
    ]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_queue_has_its_turn() -> None:
    choice, all_queues = QueueSelector(), queues("a", "b")
    assert Counter(choice.next(all_queues) for _ in range(40)) == dict.fromkeys(all_queues, 10)


def test_a_retry_goes_to_another_broker_if_there_is_one() -> None:
    choice = QueueSelector()
    assert {choice.next(queues("a", "b"), "a").broker_name for _ in range(10)} == {"b"}
    assert {choice.next(queues("a"), "a").broker_name for _ in range(10)} == {"a"}


def test_a_broker_that_failed_is_avoided_longer_each_time_until_it_works() -> None:
    clock = Clock()
    choice, all_queues = QueueSelector(clock), queues("a", "b")
    for detour in (1, 2, 4, 8, 16, 30, 30):
        choice.mark_failed("a")
        clock.now += detour - 0.01
        assert {choice.next(all_queues).broker_name for _ in range(8)} == {"b"}
        clock.now += 0.02
        assert {choice.next(all_queues).broker_name for _ in range(8)} == {"a", "b"}
    choice.mark_working("a")
    choice.mark_failed("a")
    clock.now += 1.01
    assert {choice.next(all_queues).broker_name for _ in range(8)} == {"a", "b"}


def test_where_all_have_failed_they_take_turns_all_the_same() -> None:
    choice, all_queues = QueueSelector(Clock()), queues("a", "b")
    choice.mark_failed("a")
    choice.mark_failed("b")
    assert {choice.next(all_queues).broker_name for _ in range(8)} == {"a", "b"}


@pytest.mark.parametrize(("key", "queue_id"), [("order_1", 3), ("customer", 6), ("7a9b", 2), ("Grün", 1)])
def test_a_key_has_the_queue_that_java_chooses(key: str, queue_id: int) -> None:
    """What SelectMessageQueueByHash of RocketMQ's client 4.9.8 says for seven queues."""
    assert select_by_hash(queues("a", count=7), key).queue_id == queue_id


@pytest.mark.parametrize(
    ("members", "shares"),
    [
        (1, [[0, 1, 2, 3, 4, 5, 6]]),
        (3, [[0, 1, 2], [3, 4], [5, 6]]),
        (5, [[0, 1], [2, 3], [4], [5], [6]]),
        (9, [[0], [1], [2], [3], [4], [5], [6], [], []]),
    ],
)
def test_queues_are_shared_out_as_java_does(members: int, shares: list[list[int]]) -> None:
    """What AllocateMessageQueueAveragely of RocketMQ's client 4.9.8 says for seven queues."""
    ids = [f"c{number}" for number in range(members)]
    found = [allocate_averagely(each, queues("a", count=7), ids) for each in ids]
    assert [[queue.queue_id for queue in share] for share in found] == shares


@given(st.integers(0, 60), st.integers(1, 12))
def test_all_queues_are_shared_out_evenly_and_none_twice(count: int, members: int) -> None:
    all_queues = queues("a", count=count)
    ids = [f"client-{number:02}" for number in range(members)]
    shares = [allocate_averagely(each, all_queues, ids) for each in ids]
    assert [queue for share in shares for queue in share] == sorted(all_queues)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert [len(share) for share in shares] == sorted(map(len, shares), reverse=True)


def test_the_order_of_the_lists_does_not_matter_and_a_stranger_gets_nothing() -> None:
    all_queues = queues("b", "a", count=3)
    assert allocate_averagely("two", all_queues, ["two", "one"]) == allocate_averagely(
        "two", sorted(all_queues), ["one", "two"]
    )
    assert allocate_averagely("three", all_queues, ["one", "two"]) == []

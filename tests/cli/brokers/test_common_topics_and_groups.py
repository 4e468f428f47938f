"""What the brokers of one supervisor have in common: every order of reports and orders ends with equal tables."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path

import pytest

from penstock.cli.brokers.common_topics_and_groups import Json, MissedDeletions, Order, Report, SharedTables

NAMES = ("broker-a", "broker-b", "broker-c")
TOPIC = ("topics", "orders")


class Broker:
    """A broker's table of topics, and both directions of its link."""

    def __init__(self, name: str, tables: SharedTables, **topics: int) -> None:
        self.name = name
        self.tables = tables
        self.topics: dict[str, Json] = {topic: {"queues": queues} for topic, queues in topics.items()}
        self.reports: deque[Report] = deque()
        self.orders: deque[Order] = deque()
        self.seen = 0

    def greet(self, saved_at: int = 0) -> None:
        self.reports.clear()
        self.orders.clear()
        self.seen = 0
        self.tables.connect(self.name, {"topics": saved_at})
        self.tables.take(self.name, Report("topics", dict(self.topics), 0))
        self.tables.greeted(self.name)
        self.tables.forget_missed(self.name)

    def change(self, topic: str, queues: int | None) -> None:
        """Changes a topic, or deletes it, and sends the report."""
        value: Json | None = None if queues is None else {"queues": queues}
        if queues is None:
            if self.topics.pop(topic, None) is None:
                return
        else:
            self.topics[topic] = {"queues": queues}
        self.reports.append(Report("topics", {topic: value}, self.seen))

    def deliver_report(self) -> None:
        self.tables.take(self.name, self.reports.popleft())

    def fetch_order(self) -> None:
        order = self.tables.next_order(self.name, 2)
        if order is not None:
            self.orders.append(order)

    def apply_order(self) -> None:
        order = self.orders.popleft()
        for topic, value in order.topics.items():
            if value is None:
                self.topics.pop(topic, None)
            else:
                self.topics[topic] = value
        self.seen = order.number


def settle(brokers: list[Broker]) -> None:
    for _ in range(1000):
        for broker in brokers:
            broker.fetch_order()
        if not any(broker.reports or broker.orders for broker in brokers):
            return
        for broker in brokers:
            while broker.reports:
                broker.deliver_report()
            while broker.orders:
                broker.apply_order()
    pytest.fail("the brokers tell each other the same again and again")


@pytest.fixture
def tables() -> SharedTables:
    return SharedTables(NAMES)


@pytest.fixture
def brokers(tables: SharedTables) -> list[Broker]:
    made = [Broker(name, tables) for name in NAMES]
    for broker in made:
        broker.greet()
    return made


def test_what_one_broker_makes_changes_or_deletes_all_do(brokers: list[Broker]) -> None:
    for queues in (4, 8, None):
        brokers[1].change("orders", queues)
        settle(brokers)
        expected = {} if queues is None else {"orders": {"queues": queues}}
        assert [broker.topics for broker in brokers] == [expected] * 3


def test_changes_that_cross_end_with_the_same_tables(brokers: list[Broker]) -> None:
    brokers[0].change("orders", 4)
    brokers[1].change("orders", 8)
    brokers[0].deliver_report()
    for broker in brokers:
        broker.fetch_order()
    settle(brokers)
    assert [broker.topics for broker in brokers] == [{"orders": {"queues": 8}}] * 3, "the later report counts"


@pytest.mark.parametrize("seed", range(200))
def test_whatever_crosses_all_end_with_the_same_tables(brokers: list[Broker], seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(60):
        broker = chance.choice(brokers)
        step = chance.randrange(4)
        if step == 0:
            broker.change(chance.choice(["x", "y", "z"]), chance.choice([None, 1, 2, 3]))
        elif step == 1 and broker.reports:
            broker.deliver_report()
        elif step == 2:
            broker.fetch_order()
        elif step == 3 and broker.orders:
            broker.apply_order()
    settle(brokers)
    assert brokers[0].topics == brokers[1].topics == brokers[2].topics, f"seed {seed}"


def test_all_get_what_only_one_has_when_it_starts(tables: SharedTables) -> None:
    brokers = [Broker("broker-a", tables, orders=4), Broker("broker-b", tables, bills=2)]
    for broker in brokers:
        broker.greet()
    settle(brokers)
    assert brokers[0].topics == brokers[1].topics == {"orders": {"queues": 4}, "bills": {"queues": 2}}


@pytest.mark.parametrize("newer_first", [True, False])
def test_when_all_start_the_table_that_changed_last_counts(tables: SharedTables, newer_first: bool) -> None:
    newer, older = Broker("broker-a", tables, orders=8), Broker("broker-b", tables, orders=4)
    for broker in (newer, older) if newer_first else (older, newer):
        broker.greet(saved_at=2000 if broker is newer else 1000)
    settle([newer, older])
    assert older.topics == newer.topics == {"orders": {"queues": 8}}


def test_a_broker_that_comes_back_takes_what_changed_meanwhile(tables: SharedTables, brokers: list[Broker]) -> None:
    brokers[0].change("orders", 4)
    brokers[0].change("bills", 1)
    settle(brokers)
    tables.disconnect("broker-c")
    brokers[1].change("orders", 8)
    brokers[1].change("bills", None)
    brokers[1].change("news", 1)
    settle(brokers[:2])
    brokers[2].greet(saved_at=2**60)  # a start after a crash may have changed the table
    settle(brokers)
    assert brokers[2].topics == brokers[0].topics == {"orders": {"queues": 8}, "news": {"queues": 1}}


def test_a_missed_deletion_is_sent_once_and_not_if_the_topic_is_there_again(
    tables: SharedTables, brokers: list[Broker], tmp_path: Path
) -> None:
    for topic in ("orders", "bills"):
        brokers[0].change(topic, 4)
    settle(brokers)
    tables.disconnect("broker-c")
    brokers[0].change("orders", None)
    brokers[0].change("bills", None)
    settle(brokers[:2])
    brokers[1].change("bills", 4)
    settle(brokers[:2])
    file = MissedDeletions(tmp_path / "new" / "missed.json")
    assert file.load() == {}
    file.save(tables.missed)
    assert MissedDeletions(tmp_path / "new" / "missed.json").load() == {"broker-c": [TOPIC]}

    later = SharedTables(NAMES, MissedDeletions(tmp_path / "new" / "missed.json").load())
    back = [Broker("broker-a", later, bills=4), Broker("broker-c", later, orders=4, bills=4)]
    for broker in back:
        broker.greet()
    assert not later.missed["broker-c"]
    settle(back)
    assert back[0].topics == back[1].topics == {"bills": {"queues": 4}}
    back[1].change("orders", 4)
    settle(back)
    later.disconnect("broker-c")
    back[1].greet()
    settle(back)
    assert back[0].topics == back[1].topics == {"orders": {"queues": 4}, "bills": {"queues": 4}}

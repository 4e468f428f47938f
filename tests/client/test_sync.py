"""The clients without `await`, from plain code and from several threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.stores import eventually

from penstock.client import admin, producer, pull_consumer, push_consumer, sync, transaction_producer
from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.groups import GroupAdmin
from penstock.client.admin.messages import MessageAdmin
from penstock.client.admin.topics import OffsetAdmin, TopicAdmin
from penstock.client.message import Message, ReceivedMessage
from penstock.client.push_consumer import PushOptions
from penstock.client.sync import Admin, Producer, PullConsumer, PushConsumer, TransactionProducer
from penstock.client.transaction_producer import TransactionState
from penstock.errors import PenstockError, Unreachable

if TYPE_CHECKING:
    from penstock.testing import LocalBroker


def test_messages_go_there_and_come_back_without_await(b: LocalBroker) -> None:
    found: list[bytes] = []
    all_there = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        found.append(message.body)
        if len(found) == 20:
            all_there.set()

    with Producer("PID", b.namesrv) as producer, PushConsumer("CID", handle, b.namesrv) as consumer:
        consumer.subscribe("orders")
        for number in range(10):
            assert producer.send(Message("orders", b"%d" % number)).ok
        producer.send_batch([Message("orders", b"%d" % number) for number in range(10, 19)])
        producer.send_oneway(Message("orders", b"19"))
        assert all_there.wait(30)
        assert {queue.topic for queue in consumer.assigned} == {"orders", "%RETRY%CID"}
        assert consumer.client_id
        consumer.unsubscribe("orders")
    assert sorted(found) == sorted(b"%d" % number for number in range(20))


def test_a_pull_consumer_keeps_its_places(b: LocalBroker) -> None:
    with Producer("PID", b.namesrv) as producer, PullConsumer("CID", b.namesrv) as consumer:
        queue = consumer.queues("orders")[1]
        for number in range(10):
            producer.send(Message("orders", b"%d" % number), queue=queue)
        b.settle()
        assert [message.body for message in consumer.pull(queue, 8).messages] == [b"8", b"9"]
        consumer.assign([queue])
        consumer.seek(queue, 7)
        assert [message.body for message in consumer.poll()] == [b"7", b"8", b"9"]
        consumer.commit()
        assert consumer.position(queue) == 10
        assert consumer.offsets.committed("CID", queue) == 10
        assert consumer.seek_to_time(queue, 0) == 0


def test_transactions(b: LocalBroker) -> None:
    def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    with TransactionProducer("PID", check, b.namesrv) as producer, PullConsumer("CID", b.namesrv) as consumer:
        done = producer.send_in_transaction(Message("orders", b"x"), lambda message: TransactionState.COMMIT)
        assert done.is_ended
        b.settle()
        pages = [consumer.pull(queue, 0) for queue in consumer.queues("orders")]
        assert [message.body for page in pages for message in page.messages] == [b"x"]


def test_an_administrator(b: LocalBroker) -> None:
    with Admin(b.namesrv) as admin:
        admin.topics.create("mine", queues=2)
        assert "mine" in admin.topics.names()
        assert admin.groups.configs() is not None
        assert admin.cluster.masters() == {"broker-a": b.address}
        assert admin.offsets.max_offset(admin.offsets.queues("mine")[0]) == 0
        assert admin.messages.by_key("mine", "k") == []


def test_one_client_serves_many_threads(b: LocalBroker) -> None:
    with Producer("PID", b.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: producer.send(Message("orders", b"%d" % number)), range(200)))
    assert len({result.offset_msg_id for result in results}) == 200


def test_it_works_where_a_loop_is_running_already_as_in_a_notebook(b: LocalBroker) -> None:
    async def cell() -> bool:
        with Producer("PID", b.namesrv) as producer:
            return producer.send(Message("orders", b"x")).ok

    assert asyncio.run(cell())


def test_errors_are_those_of_the_asynchronous_clients(b: LocalBroker) -> None:
    with pytest.raises(Unreachable):
        PushConsumer("CID", print, "127.0.0.1:1", subscriptions={"orders": "*"})
    producer = Producer("PID", b.namesrv)
    producer.close()
    producer.close()
    with pytest.raises(PenstockError, match="after `close`"):
        producer.send(Message("orders", b"x"))


def test_no_thread_is_left_behind(b: LocalBroker) -> None:
    before = set(threading.enumerate())
    with (
        Producer("PID", b.namesrv) as producer,
        PushConsumer("CID", print, b.namesrv, subscriptions={"orders": "*"}, options=PushOptions(max_in_flight=2)),
    ):
        producer.send(Message("orders", b"x"))

    def left() -> list[str]:
        """Threads of a broker and its store, such as penstock-config and penstock-read, start when they are needed."""
        return [each.name for each in set(threading.enumerate()) - before if not each.name.startswith("penstock-")]

    eventually(lambda: not left(), "a thread is left")


@pytest.mark.parametrize(
    ("asynchronous", "plain"),
    [
        (producer.Producer, sync.Producer),
        (transaction_producer.TransactionProducer, sync.TransactionProducer),
        (pull_consumer.PullConsumer, sync.PullConsumer),
        (push_consumer.PushConsumer, sync.PushConsumer),
        (admin.Admin, sync.Admin),
        (ClusterAdmin, sync._Cluster),
        (TopicAdmin, sync._Topics),
        (GroupAdmin, sync._Groups),
        (OffsetAdmin, sync._AdminOffsets),
        (MessageAdmin, sync._Messages),
    ],
)
def test_every_method_is_there_without_await_too(asynchronous: type, plain: type) -> None:
    left_out = {"start"}  # a client without `await` runs from its making
    names = {name for name, _ in inspect.getmembers(asynchronous, inspect.isfunction) if not name.startswith("_")}
    assert names - left_out <= set(dir(plain))
    for name in names - left_out:
        assert getattr(plain, name).__doc__, name

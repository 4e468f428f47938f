"""The clients without `await`, from plain code and from several threads."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import pytest
from support.stores import eventually

from penstock.client import admin, producer, pull_consumer, push_consumer, sync, transaction_producer
from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.groups import GroupAdmin
from penstock.client.admin.messages import MessageAdmin
from penstock.client.admin.topics import OffsetAdmin, TopicAdmin
from penstock.client.event_loop_thread import LoopThread
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


# -- ends ------------------------------------------------------------------------------------------------------------


def committed(b: LocalBroker, group: str) -> int:
    with PullConsumer(group, b.namesrv) as consumer:
        offsets = [consumer.offsets.committed(group, queue, exact=True) for queue in consumer.queues("orders")]
    return sum(offset or 0 for offset in offsets)


def test_run_and_close_in_two_threads_both_wait_for_the_running_handler(b: LocalBroker) -> None:
    began, may_end = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        began.set()
        assert may_end.wait(60)

    with Producer("PID", b.namesrv) as producer:
        producer.send(Message("orders", b"x"))
    options = PushOptions(consume_from="first", close_timeout_s=60)
    consumer = PushConsumer("CID", handle, b.namesrv, subscriptions={"orders": "*"}, options=options)
    with ThreadPoolExecutor(3) as threads:
        running = threads.submit(consumer.run)
        assert began.wait(60)
        closing = [threads.submit(consumer.close) for _ in range(2)]
        eventually(consumer._inner._stop.is_set, "the consumer does not close")
        assert not wait([running, *closing], 0.2).done
        may_end.set()
        for each in (running, *closing):
            each.result(60)
    assert committed(b, "CID") == 1


def test_a_loop_ends_when_another_thread_has_closed_the_consumer(b: LocalBroker) -> None:
    with Producer("PID", b.namesrv) as producer:
        producer.send(Message("orders", b"x"))
    options = PushOptions(consume_from="first", close_timeout_s=0)
    consumer = PushConsumer("CID", None, b.namesrv, subscriptions={"orders": "*"}, options=options)
    for message in consumer:
        assert message.body == b"x"
        with ThreadPoolExecutor(1) as other:
            other.submit(consumer.close).result(60)


def test_a_call_that_comes_while_the_loop_ends_is_refused_and_does_not_hang() -> None:
    thread, refused = LoopThread("penstock test"), threading.Event()

    def call() -> None:
        with pytest.raises(PenstockError, match="after `close`"):
            thread.run(asyncio.sleep(60))
        refused.set()

    async def last() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.to_thread(call)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(thread.run, last())
        eventually(lambda: len(asyncio.all_tasks(thread.loop)) == 1, "the task does not begin")
        thread.close()
        with pytest.raises(CancelledError):
            waiting.result(60)
    assert refused.is_set()


def test_a_coroutine_that_exits_has_failed_and_does_not_end_the_loop(b: LocalBroker) -> None:
    exits, again = [True, True], threading.Event()

    async def handle(message: ReceivedMessage) -> None:
        if exits:
            exits.pop()
            if exits:
                await asyncio.sleep(0)  # the other time it exits at once
            sys.exit(3)
        again.set()

    with Producer("PID", b.namesrv) as producer:
        producer.send(Message("orders", b"x"))
    options = PushOptions(consume_from="first")
    with PushConsumer("CID", handle, b.namesrv, subscriptions={"orders": "*"}, options=options):
        assert again.wait(60)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_create_its_own_client(b: LocalBroker) -> None:
    with Producer("PID", b.namesrv) as producer:
        assert producer.send(Message("orders", b"x")).ok
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(30)  # a call that hangs must not leave a process behind
                with pytest.raises(PenstockError, match="create one after the fork"):
                    producer.send(Message("orders", b"y"))
                producer.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send(Message("orders", b"z")).ok

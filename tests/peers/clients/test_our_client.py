"""Our own client beside Java's: at Java's broker, and in one group with Java's consumers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from peers.clients.conftest import Connect, bodies, message
from support.brokers import Served
from support.peers import JavaServed, until_registered

from penstock.client import Producer as AsyncProducer
from penstock.client import PullConsumer
from penstock.client.message import Message, ReceivedMessage
from penstock.client.producer import ProducerOptions
from penstock.client.pull_requests import Sql92
from penstock.client.push_consumer import PushOptions
from penstock.client.sync import Admin, Producer, PushConsumer, TransactionProducer
from penstock.client.transaction_producer import TransactionState
from penstock.client.user_handlers import Later
from penstock.errors import Refused

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "mappedFileSizeCommitLog": 10 << 20,
    "mappedFileSizeConsumeQueue": 60_000,
    "enablePropertyFilter": "true",
    "messageDelayLevel": "1s 1s 1s 1s 1s 1s",
    "transactionCheckInterval": 1000,
    "transactionTimeOut": 500,
}
FIRST = PushOptions(consume_from="first")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, java_broker_jars: list[Path]) -> Iterator[JavaServed]:
    """A broker of Java's, for all tests here; each has topics and groups of its own."""
    folder = tmp_path_factory.mktemp("java")
    with JavaServed(folder / "home", folder / "store", java_broker_jars, dict(SETTINGS)) as served:
        with Admin(served.namesrv) as admin:
            until_registered(admin)
        yield served


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def of(found: list[ReceivedMessage]) -> list[bytes]:
    return sorted(each.body for each in found)


def test_javas_broker_takes_and_gives_all_kinds_of_messages(theirs: JavaServed) -> None:
    found: list[ReceivedMessage] = []
    with Admin(theirs.namesrv) as admin, Producer("PID", theirs.namesrv) as producer:
        admin.topics.create("orders", queues=4)
        until(lambda: len(producer.queues("orders")) == 4)
        sent = producer.send(Message("orders", b"plain", tags="paid", keys="k1", properties={"colour": "grün"}))
        batch = producer.send_batch([Message("orders", b"batch %d" % number, tags="paid") for number in range(5)])
        assert [each.queue_offset for each in batch] == list(range(batch[0].queue_offset, batch[0].queue_offset + 5))
        producer.send(Message("orders", b"large " * 5000, tags="paid"))
        producer.send_oneway(Message("orders", b"one way", tags="paid"))
        producer.send(Message("orders", b"not wanted", tags="void"))
        producer.send(Message("orders", b"late", tags="paid", delay_level=1))
        assert producer.send(Message("made-by-sending", b"x")).ok
        with PushConsumer("CID", found.append, theirs.namesrv, subscriptions={"orders": "paid"}, options=FIRST):
            until(lambda: len(found) >= 9)
        wanted = [b"plain", b"large " * 5000, b"one way", b"late", *(b"batch %d" % number for number in range(5))]
        assert of(found) == sorted(wanted)
        plain = next(each for each in found if each.body == b"plain")
        assert (plain.properties["colour"], plain.msg_id, plain.offset_msg_id) == (
            "grün",
            sent.msg_id,
            sent.offset_msg_id,
        )
        until(lambda: of(admin.messages.by_key("orders", "k1")) == [b"plain"])
        assert of(admin.messages.by_unique_id("orders", sent.msg_id)) == [b"plain"]
        viewed = admin.messages.by_offset_id(sent.offset_msg_id)
        assert viewed is not None
        assert viewed.body == b"plain"
        assert admin.groups.progress("CID", "orders").lag <= 1  # the last tag that nobody wanted may be left


def test_sends_that_linger_are_batches_at_javas_broker_and_a_handler_gets_lists(theirs: JavaServed) -> None:
    bodies = [b"%d" % number for number in range(200)]
    found: list[ReceivedMessage] = []

    def handle(batch: list[ReceivedMessage]) -> None:
        found.extend(batch)

    with (
        Admin(theirs.namesrv) as admin,
        Producer("PID", theirs.namesrv, options=ProducerOptions(linger=0.02, max_in_flight=50)) as producer,
        ThreadPoolExecutor(50) as threads,
    ):
        admin.topics.create("lingering", queues=4)
        until(lambda: len(producer.queues("lingering")) == 4)
        results = list(threads.map(lambda body: producer.send(Message("lingering", body)), bodies))
        producer.flush()
    options = PushOptions(consume_from="first", batch_size=16)
    with PushConsumer("CID_lists", handle, theirs.namesrv, subscriptions={"lingering": "*"}, options=options):
        until(lambda: len(found) >= 200)
    places = {each.msg_id: (each.body, each.queue_id, each.queue_offset, each.offset_msg_id) for each in found}
    assert len(places) == 200
    for body, sent in zip(bodies, results, strict=True):
        assert places[sent.msg_id] == (body, sent.queue.queue_id, sent.queue_offset, sent.offset_msg_id)


def test_sends_of_one_turn_are_batches_at_javas_broker(theirs: JavaServed) -> None:
    bodies = [b"%d" % number for number in range(300)]

    async def main() -> None:
        async with AsyncProducer("PID", theirs.namesrv) as producer:
            results = await asyncio.gather(*(producer.send(Message("turns", body, tags="t")) for body in bodies))
            assert len({each.queue for each in results}) == 1
            assert sorted(each.queue_offset for each in results) == list(range(300))
        async with PullConsumer("look", theirs.namesrv) as consumer:
            found: list[ReceivedMessage] = []
            while len(found) < 300:
                found += (await consumer.pull(results[0].queue, len(found), wait_s=5.0)).messages
        places = {each.msg_id: (each.body, each.tags, each.queue_offset, each.offset_msg_id) for each in found}
        for body, sent in zip(bodies, results, strict=True):
            assert places[sent.msg_id] == (body, "t", sent.queue_offset, sent.offset_msg_id)

    asyncio.run(main())


def test_retries_dead_letters_order_and_filters_at_javas_broker(theirs: JavaServed) -> None:
    tried: list[ReceivedMessage] = []
    in_order: list[ReceivedMessage] = []
    selected: list[ReceivedMessage] = []

    def fail(received: ReceivedMessage) -> Later:
        tried.append(received)
        return Later()

    with Admin(theirs.namesrv) as admin, Producer("PID", theirs.namesrv) as producer:
        admin.topics.create("steps", queues=4)
        until(lambda: "steps" in admin.topics.names())
        options = PushOptions(consume_from="first", max_reconsume_times=1)
        ordered = PushOptions(consume_from="first", ordered=True)
        with (
            PushConsumer("failing", fail, theirs.namesrv, subscriptions={"steps": "bad"}, options=options),
            PushConsumer("ordered", in_order.append, theirs.namesrv, subscriptions={"steps": "step"}, options=ordered),
            PushConsumer(
                "sql", selected.append, theirs.namesrv, subscriptions={"steps": Sql92("price > 5")}, options=FIRST
            ),
        ):
            producer.send(Message("steps", b"bad", tags="bad"))
            for number in range(10):
                body, price = b"%d" % number, {"price": str(number)}
                producer.send(Message("steps", body, tags="step", sharding_key="k", properties=price))
            until(lambda: len(in_order) >= 10 and len(selected) >= 4 and len(tried) >= 2)
            until(lambda: "%DLQ%failing" in admin.topics.names())
        assert [each.body for each in in_order] == [b"%d" % number for number in range(10)]
        assert of(selected) == [b"6", b"7", b"8", b"9"]
        assert [(each.topic, each.reconsume_times) for each in tried] == [("steps", 0), ("steps", 1)]
        (queue,) = admin.offsets.queues("%DLQ%failing")
        assert of(admin.messages.page(queue, 0).messages) == [b"bad"]
    with pytest.raises(Refused) as caught:
        PushConsumer("sql", print, theirs.namesrv, subscriptions={"steps": Sql92("price >")})
    assert caught.value.code == 23


def test_transactions_and_their_checks_at_javas_broker(theirs: JavaServed) -> None:
    found: list[ReceivedMessage] = []
    asked: list[bytes] = []

    def check(received: ReceivedMessage) -> TransactionState:
        asked.append(received.body)
        return TransactionState.COMMIT

    with (
        TransactionProducer("PID_tx", check, theirs.namesrv) as producer,
        PushConsumer("CID_tx", found.append, theirs.namesrv, subscriptions={"booked": "*"}, options=FIRST),
    ):
        for state in (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN):
            done = producer.send_in_transaction(Message("booked", state.name.encode()), lambda sent, s=state: s)  # type: ignore[misc]
            assert done.is_ended is (state is not TransactionState.UNKNOWN)
        until(lambda: len(found) >= 2)
    assert of(found) == [b"COMMIT", b"UNKNOWN"]
    assert asked == [b"UNKNOWN"]


def test_javas_broker_is_administered(theirs: JavaServed) -> None:
    found: list[ReceivedMessage] = []
    with Admin(theirs.namesrv) as admin, Producer("PID", theirs.namesrv) as producer:
        admin.topics.create("moved", queues=2)
        until(lambda: len(producer.queues("moved")) == 2)
        with PushConsumer("CID_moved", found.append, theirs.namesrv, subscriptions={"moved": "*"}, options=FIRST) as c:
            for number in range(10):
                producer.send(Message("moved", b"%d" % number))
            until(lambda: len(found) == 10)
            until(
                lambda: sum(each.consumer_offset for each in admin.groups.progress("CID_moved", "moved").queues) == 10
            )
            assert set(admin.offsets.reset("CID_moved", "moved", 0).values()) == {0}
            until(lambda: len(found) == 20)
            (mine,) = admin.groups.connections("CID_moved").connection_set
            assert (mine.client_id, mine.language) == (c.client_id, "PYTHON")
            assert len(admin.groups.running_info("CID_moved", c.client_id).mq_table) == 3
        assert sum(at.max_offset for at in admin.topics.stats("moved").values()) == 10
        assert admin.cluster.runtime_info(theirs.address)["brokerVersionDesc"] == "V4_9_7"
        admin.cluster.update_broker_config(theirs.address, {"transactionCheckMax": "9"})
        assert admin.cluster.broker_config(theirs.address)["transactionCheckMax"] == "9"
        admin.groups.delete("CID_moved", remove_offset=True)
        assert "CID_moved" not in admin.groups.configs()
        admin.topics.delete("moved")
        assert "moved" not in admin.topics.names()


def test_a_group_is_shared_with_javas_consumers(served: Served, java: Connect) -> None:
    """Both sides must come to the same shares, or messages would be left out or come twice."""
    theirs = java(served.namesrv)
    theirs.ask("send", group="p", how="sync", messages=[message("shared", "before")])
    mine: list[ReceivedMessage] = []
    with PushConsumer("sharing", mine.append, served.namesrv, subscriptions={"shared": "*"}) as consumer:
        theirs.ask("consume", name="c", group="sharing", topic="shared")
        until(lambda: len([queue for queue in consumer.assigned if queue.topic == "shared"]) == 2)
        time.sleep(2)  # Java's side takes its share a moment later
        sent = [f"m{number}" for number in range(60)]
        theirs.ask("send", group="p", how="sync", messages=[message("shared", body) for body in sent])

        def got() -> tuple[list[str], list[str]]:
            wanted = set(sent)
            ours = [each.body.decode() for each in mine if each.body.decode() in wanted]
            return ours, [body for body in bodies(theirs.ask("consumed", name="c")) if body in wanted]

        until(lambda: sorted(itertools.chain(*got())) == sorted(sent))
        ours, javas = got()
        assert len(ours) == len(javas) == 30

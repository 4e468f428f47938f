"""Messages that come back: retries with growing delays, then dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, RunningBroker, ok, records
from support.stores import is_one_sentence

from penstock.format.config_tables import SubscriptionGroup
from penstock.format.record import Record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


async def sent(broker: RunningBroker, **changes: Any) -> tuple[RawClient, Record]:
    client = await broker.client()
    reply = ok(await client.send("orders", b"two shirts", properties={"KEYS": "k", "TAGS": "t"}, flag=3, **changes))
    record = broker.store.look_up_id(reply.ext["msgId"])
    assert record is not None
    return client, record


async def send_back(client: RawClient, record: Record, level: int = 0, **changes: Any) -> Command:
    arguments = {"offset": record.physical_offset, "group": "CID", "delayLevel": level, **changes}
    version = arguments.pop("version", 409)
    return await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, version=version, **arguments)


def only(broker: RunningBroker, topic: str, queue_id: int) -> Record:
    (record,) = broker.store.get(topic, queue_id, 0).messages
    return record


def test_a_message_comes_back_delayed_in_the_retry_topic(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker, reconsumeTimes=0)
            ok(await send_back(client, record))
            parked = only(broker, SCHEDULE, 2)
            assert (parked.body, parked.flag) == (record.body, 3)
            assert (parked.born_timestamp, parked.born_host) == (record.born_timestamp, record.born_host)
            assert parked.reconsume_times == 1
            assert parked.properties == {
                "KEYS": "k",
                "TAGS": "t",
                "CLUSTER": "DefaultCluster",
                "RETRY_TOPIC": "orders",
                "ORIGIN_MESSAGE_ID": record.msg_id,
                "WAIT": "false",
                "DELAY": "3",
                "REAL_TOPIC": "%RETRY%CID",
                "REAL_QID": "0",
            }
            retry = broker.state.topics.find("%RETRY%CID")
            assert retry is not None
            assert retry.write_queue_nums == 1
            assert broker.state.counters.sent_back["orders", "CID"] == 1

    run(check())


@pytest.mark.parametrize(("times", "level", "expected"), [(0, 0, 3), (4, 0, 7), (15, 0, 18), (0, 5, 5), (3, 1, 1)])
def test_each_retry_waits_longer_unless_the_consumer_says_how_long(
    home: BrokerHome, run: Run, times: int, level: int, expected: int
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker, reconsumeTimes=times)
            ok(await send_back(client, record, level))
            assert only(broker, SCHEDULE, expected - 1).reconsume_times == times + 1

    run(check())


def test_names_of_the_first_copy_stay(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker)
            ok(await send_back(client, record, 1))
            again = only(broker, SCHEDULE, 0)
            ok(await send_back(client, again, 2))
            third = only(broker, SCHEDULE, 1)
            assert third.properties["RETRY_TOPIC"] == "orders"
            assert third.properties["ORIGIN_MESSAGE_ID"] == record.msg_id
            assert third.reconsume_times == 2

    run(check())


@pytest.mark.parametrize(
    ("times", "changes"),
    [
        (16, {}),
        (0, {"level": -1}),
        (2, {"maxReconsumeTimes": 2}),
        (0, {"maxReconsumeTimes": 0}),
        (16, {"maxReconsumeTimes": 99, "version": 63}),
    ],
)
def test_a_message_that_was_retried_often_enough_is_a_dead_letter(
    home: BrokerHome, run: Run, times: int, changes: dict[str, Any]
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker, reconsumeTimes=times)
            ok(await send_back(client, record, **changes))
            (dead,) = records(await client.pull("%DLQ%CID"))
            assert (dead.body, dead.reconsume_times) == (record.body, times + 1)
            assert dead.properties["RETRY_TOPIC"] == "orders"
            assert dead.properties["ORIGIN_MESSAGE_ID"] == record.msg_id
            dead_letters = broker.state.topics.find("%DLQ%CID")
            assert dead_letters is not None
            assert dead_letters.write_queue_nums == 1

    run(check())


def test_an_old_client_does_not_say_how_often(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker, reconsumeTimes=3)
            ok(await send_back(client, record, maxReconsumeTimes=1, version=120))
            assert broker.store.max_offset("%DLQ%CID", 0) == 0
            ok(await send_back(client, record, maxReconsumeTimes=1, version=121))
            assert broker.store.max_offset("%DLQ%CID", 0) == 1

    run(check())


def test_a_group_without_retry_queues_has_its_messages_dropped(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker)
            broker.state.groups.update(SubscriptionGroup(name="CID", retry_queue_nums=0))
            end = broker.store.log.max_offset
            ok(await send_back(client, record))
            assert broker.store.log.max_offset == end

    run(check())


def test_retries_are_spread_over_the_groups_retry_queues(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client, record = await sent(broker)
            broker.state.groups.update(SubscriptionGroup(name="CID", retry_queue_nums=3))
            for _ in range(60):
                ok(await send_back(client, record, 1))
            parked = broker.store.get(SCHEDULE, 0, 0, 32).messages
            assert {message.properties["REAL_QID"] for message in parked} == {"0", "1", "2"}

    run(check())


def test_what_cannot_come_back_is_refused(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(auto_create_subscription_group=False) as broker:
            client, record = await sent(broker)

            async def refused(**changes: Any) -> ResponseCode:
                reply = await send_back(client, record, **changes)
                assert is_one_sentence(reply.remark or ""), reply.remark
                return ResponseCode(reply.code)

            assert await refused() is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            broker.state.groups.update(SubscriptionGroup(name="CID"))
            assert await refused(offset=record.physical_offset + 1) is ResponseCode.SYSTEM_ERROR
            assert await refused(offset=10**12) is ResponseCode.SYSTEM_ERROR
            broker.state.settings.change(broker_permission=4)
            assert await refused() is ResponseCode.NO_PERMISSION

    run(check())


def test_under_sync_flush_it_is_on_disk_when_it_is_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(sync=True) as broker:
            client, record = await sent(broker)
            ok(await send_back(client, record))
            assert broker.store.watermarks.flushed >= broker.store.log.queue.wrote_offset

    run(check())

"""Delayed messages: delivered when they are due, in their order, at least once whatever happens."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RawClient, RunningBroker, ok, records
from support.disks import FaultyFiles, refuse
from support.loopback import until

from penstock.broker import wall_clock_timer
from penstock.clock import now_ms
from penstock.format.record import Record
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Message
from penstock.store.running_flags import StoreFault

if TYPE_CHECKING:
    from broker.conftest import Run

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
AT_ONCE = {"message_delay_level": "0s 1s 1h"}
"""Level 1 is due as soon as it is dispatched, level 3 not within a test."""


async def send_delayed(client: RawClient, level: int, body: bytes = b"x", **changes: Any) -> None:
    properties = {"TAGS": "t", "DELAY": str(level)}
    ok(await client.send("orders", body, properties=properties, **changes))


async def delivered(broker: RunningBroker, count: int, topic: str = "orders", queue_id: int = 0) -> list[Record]:
    """The messages of a queue once there are so many."""
    await until(lambda: broker.store.max_offset(topic, queue_id) >= count)
    client, found = await broker.client(), []
    while len(found) < count:
        found += records(await client.pull(topic, len(found), queueId=queue_id))
    assert len(found) == count
    return found


def test_a_delayed_message_is_delivered_as_it_was_sent(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send_delayed(client, 1, b"later", queueId=2, flag=9, bornTimestamp=1_600_000_000_000)
            (record,) = await delivered(broker, 1, queue_id=2)
            assert (record.body, record.flag, record.born_timestamp) == (b"later", 9, 1_600_000_000_000)
            assert record.properties == {
                "TAGS": "t",
                "CLUSTER": "DefaultCluster",
                "DELAY": "1",
                "REAL_TOPIC": "orders",
                "REAL_QID": "2",
            }
            parked = broker.store.get(SCHEDULE, 0, 0).messages[0]
            assert parked.born_host == record.born_host
            assert (await client.pull("orders", subscription="t", queueId=2)).code == ResponseCode.SUCCESS

    run(check())


def test_nothing_is_delivered_before_it_is_due(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send_delayed(client, 2)
            assert (await client.pull("orders")).code == ResponseCode.PULL_NOT_FOUND
            (record,) = await delivered(broker, 1)
            parked = broker.store.get(SCHEDULE, 1, 0).messages[0]
            assert record.store_timestamp >= parked.store_timestamp + 1000

    run(check())


def test_a_level_beyond_the_last_is_the_last(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 99)
            assert broker.store.max_offset(SCHEDULE, 2) == 1

    run(check())


def test_many_are_delivered_in_their_order_and_others_are_served_meanwhile(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            for number in range(500):
                await send_delayed(client, 1, b"%d" % number)
            found = await delivered(broker, 500)
            assert [record.body for record in found] == [b"%d" % number for number in range(500)]

    run(check())


def test_a_clean_stop_and_start_deliver_nothing_twice_and_go_on(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1, b"before")
            await delivered(broker, 1)
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1, b"after")
            assert [record.body for record in await delivered(broker, 2)] == [b"before", b"after"]

    run(check())


def test_what_came_due_while_nobody_was_there_is_delivered_at_the_start(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "1h"}) as broker:
            await send_delayed(await broker.client(), 1, b"patient")
        async with home.running(store={"message_delay_level": "0s"}) as broker:
            assert [record.body for record in await delivered(broker, 1)] == [b"patient"]

    run(check())


def test_without_its_file_the_log_says_what_was_delivered(home: BrokerHome, run: Run) -> None:
    """What a crash before the file was first written looks like; see test_delay_recovery.py."""

    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1, b"once")
            await delivered(broker, 1)
        for name in ("delayOffset.json", "delayOffset.json.bak"):
            (home.path / "config" / name).unlink(missing_ok=True)
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1, b"after")
            assert [record.body for record in await delivered(broker, 2)] == [b"once", b"after"]

    run(check())


def test_a_store_that_takes_nothing_delays_delivery_and_loses_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            broker.state.delayed.stop()
            await send_delayed(client, 1, b"one")
            await send_delayed(client, 1, b"two")
            broker.store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
            broker.state.delayed.start()
            await until(lambda: broker.store.statistics.put_failed > 0)
            assert broker.store.max_offset("orders", 0) == 0
            broker.store.flags.clear(StoreFault.DISK_FULL)
            assert [record.body for record in await delivered(broker, 2)] == [b"one", b"two"]

    run(check())


def test_what_cannot_be_delivered_is_passed_over(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            put = broker.store.put
            assert put(Message(SCHEDULE, b"no name", properties={"DELAY": "1"})).ok
            half = {"DELAY": "1", "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": "0"}
            assert put(Message(SCHEDULE, b"half", properties=half)).ok
            illegal = {"DELAY": "1", "REAL_TOPIC": "../orders", "REAL_QID": "0"}
            assert put(Message(SCHEDULE, b"illegal", properties=illegal)).ok
            await send_delayed(await broker.client(), 1, b"good")
            assert [record.body for record in await delivered(broker, 1)] == [b"good"]
            assert broker.state.delayed.progress() == {1: (4, 4)}

    run(check())


def test_offsets_outside_the_queue_are_put_right(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1)
            await delivered(broker, 1)
        (home.path / "config" / "delayOffset.json").write_text('{"offsetTable":{1:77}}')
        async with home.running(store=AT_ONCE) as broker:
            await send_delayed(await broker.client(), 1, b"next")
            assert (await delivered(broker, 2))[1].body == b"next"

    run(check())


def test_the_file_says_how_far_each_level_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store=AT_ONCE) as broker:
            client = await broker.client()
            await send_delayed(client, 1)
            await send_delayed(client, 3)
            await delivered(broker, 1)
        text = (home.path / "config" / "delayOffset.json").read_text()
        assert text == '{\n\t"offsetTable":{1:1,3:0\n\t}\n}'

    run(check())


def test_no_message_is_passed_over_after_expired_queues_were_cleaned(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        files = {"mapped_file_size_commit_log": 4096, "file_reserved_time": 0, "max_message_size": 2048}
        async with home.running(store={**AT_ONCE, **files}) as broker:
            client = await broker.client()
            await send_delayed(client, 1, b"1")
            await send_delayed(client, 1, b"2")
            await delivered(broker, 2)
            while len(broker.store.log.queue.files) < 3:
                ok(await client.send("others", b"." * 1000))
            broker.store.flush()
            broker.store.catch_up()
            retention = broker.store.retention
            assert retention is not None
            assert await asyncio.to_thread(retention.cleaner.run, on_request=True)
            ok(await client.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
            await send_delayed(client, 1, b"3", queueId=1)
            (record,) = await delivered(broker, 1, queue_id=1)
            assert record.body == b"3"

    run(check())


def test_nothing_counts_as_delivered_that_is_not_on_disk(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = FaultyFiles()
        async with home.running(store=AT_ONCE, files=disk) as broker:
            await send_delayed(await broker.client(), 1)
            await delivered(broker, 1)
            disk.before_sync = lambda path: refuse(errno.EIO) if "commitlog" in str(path) else None
        assert not (home.path / "config" / "delayOffset.json").exists()

    run(check())


def test_a_retry_goes_all_the_way_to_the_dead_letters(home: BrokerHome, run: Run) -> None:
    """Each delivery of the retry topic is sent back, until there are no more retries."""
    count = 3

    async def check() -> None:
        async with home.running(store={"message_delay_level": "0s 0s 0s 0s 0s 0s"}) as broker:
            client = await broker.client()
            reply = ok(await client.send("orders", b"poison"))
            record = broker.store.look_up_id(reply.ext["msgId"])
            for times in range(count + 1):
                assert record is not None
                assert record.reconsume_times == times
                back = {"offset": record.physical_offset, "group": "CID", "delayLevel": 0, "maxReconsumeTimes": count}
                ok(await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back))
                if times < count:
                    record = (await delivered(broker, times + 1, "%RETRY%CID"))[-1]
            (dead,) = await delivered(broker, 1, "%DLQ%CID")
            assert (dead.body, dead.reconsume_times) == (b"poison", count + 1)
            assert dead.properties["RETRY_TOPIC"] == "orders"

    run(check())


def test_no_message_waits_longer_because_the_clock_was_set_back(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wall_clock_timer, "_LONGEST_SLEEP_S", 0.01)
    set_by = 0

    async def check() -> None:
        nonlocal set_by
        async with home.running(store=AT_ONCE, options={"clock": lambda: now_ms() + set_by}) as broker:
            await send_delayed(await broker.client(), 3, b"in an hour")
            await until(lambda: len(broker.state.scheduler) == 1)
            assert broker.store.max_offset("orders", 0) == 0
            set_by = -86_400_000
            (record,) = await delivered(broker, 1)
            assert record.body == b"in an hour"

    run(check())

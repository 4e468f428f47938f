"""Requests and background work that read what is not in memory: everybody else is served while the disk reads it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import (
    AT_ONCE,
    COMMIT,
    BrokerHome,
    RawClient,
    RunningBroker,
    asked,
    bodies,
    end,
    make_round,
    ok,
    send_half,
)
from support.disks import SlowDisk
from support.loopback import SOON_S, until

from penstock.clock import now_ms
from penstock.format.message_id import decode_message_id
from penstock.format.record import decode_record
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.signing import sign

if TYPE_CHECKING:
    from broker.conftest import Run

SECRET = "very-secret"
HOUR_MS = 3_600_000
ACCOUNTS = f"""
accounts:
- accessKey: the-worker
  secretKey: {SECRET}
  topicPerms: [orders=PUB|SUB, news=PUB|SUB]
  groupPerms: [CID_test=SUB]
- {{accessKey: nothing, secretKey: {SECRET}}}
"""


async def serves_others(other: RawClient, disk: SlowDisk, waiting: asyncio.Future[Any] | None = None) -> None:
    """Checks that a send and a pull are answered while a thread of the store waits for the disk."""
    await until(lambda: bool(disk.waiting))
    assert all(name.startswith("penstock-read") for name in disk.waiting)
    place = int(ok(await other.send("news", b"while")).ext["queueOffset"])
    assert bodies(await other.pull("news", place)) == [b"while"]
    assert waiting is None or not waiting.done()


async def warm_up(other: RawClient) -> None:
    """Has the units of the topic news in memory."""
    ok(await other.send("news", b"before"))
    ok(await other.pull("news"))


class Stored:
    """What the broker stored before its restart."""

    def __init__(self, order: Command, half: Command) -> None:
        self.msg_id = order.ext["msgId"]
        self.offset = decode_message_id(self.msg_id)[1]
        self.half = half


Ask = Callable[[RawClient, Stored], Awaitable[Command]]


def view(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=stored.offset)


def send_back(client: RawClient, stored: Stored) -> Awaitable[Command]:
    arguments = {"offset": stored.offset, "group": "CID_test", "delayLevel": 0, "originMsgId": stored.msg_id}
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **arguments, originTopic="orders", unitMode=False)


def end_transaction(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return end(client, stored.half, COMMIT)


def resume_check(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=stored.half.ext["msgId"])


def query_offset(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="CID_new", topic="orders", queueId=0)


def search_offset(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic="orders", queueId=0, timestamp=1)


def earliest_time(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="orders", queueId=0)


def runtime_info(client: RawClient, stored: Stored) -> Awaitable[Command]:
    return client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)


def reset_offsets(client: RawClient, stored: Stored) -> Awaitable[Command]:
    arguments = {"topic": "orders", "group": "CID_test", "timestamp": 1, "isForce": True}
    return client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **arguments)


REQUESTS: tuple[Ask, ...] = (
    view,
    send_back,
    end_transaction,
    resume_check,
    query_offset,
    search_offset,
    earliest_time,
    runtime_info,
    reset_offsets,
)
OF_A_RECORD: tuple[Ask, ...] = view, send_back, end_transaction


async def store_some(home: BrokerHome) -> Stored:
    async with home.running(transaction_check_interval=3_600_000) as broker:
        client = await broker.client()
        order = ok(await client.send("orders", b"order"))
        half = await send_half(client)
        arguments = {"consumerGroup": "CID_test", "topic": "orders", "commitOffset": 1}
        for queue_id in range(4):
            ok(await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, queueId=queue_id, **arguments))
        return Stored(order, half)


async def asked_with_a_stopped_disk(broker: RunningBroker, disk: SlowDisk, ask: Ask, stored: Stored, **of: Any) -> None:
    disk.evict()  # the start has read something
    slow, other = await broker.client(**of), await broker.client(**of)
    ok(await slow.heartbeat("c", consumes={"CID_test": {"orders": "*"}}))
    await warm_up(other)
    disk.stop()
    waiting = asyncio.ensure_future(ask(slow, stored))
    await serves_others(other, disk, waiting)
    disk.start()
    ok(await waiting)


@pytest.mark.parametrize("ask", REQUESTS, ids=lambda ask: ask.__name__)
def test_a_request_that_waits_for_the_disk_stops_no_other_client(home: BrokerHome, run: Run, ask: Ask) -> None:
    async def check() -> None:
        stored, disk = await store_some(home), SlowDisk()
        async with home.running(files=disk, transaction_check_interval=3_600_000) as broker:
            await asked_with_a_stopped_disk(broker, disk, ask, stored)

    run(check())


@pytest.mark.parametrize("ask", [send_back, end_transaction, resume_check], ids=lambda ask: ask.__name__)
def test_a_broker_that_stops_taking_messages_during_a_look_up_stores_nothing(
    home: BrokerHome, run: Run, ask: Ask
) -> None:
    async def check() -> None:
        stored, disk = await store_some(home), SlowDisk()
        async with home.running(files=disk, transaction_check_interval=3_600_000) as broker:
            disk.evict()
            client = await broker.client()
            ok(await client.heartbeat("c", consumes={"CID_test": {"orders": "*"}}))
            disk.stop()
            waiting = asyncio.ensure_future(ask(client, stored))
            await until(lambda: bool(disk.waiting))
            end_of_log = broker.store.watermarks.appended
            broker.broker.write_guard.close("lease", "the lease may have ended")
            disk.start()
            refused = await waiting
            assert (refused.code, refused.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the lease may have ended")
            assert broker.store.watermarks.appended == end_of_log
            broker.broker.write_guard.open("lease")
            ok(await ask(client, stored))

    run(check())


@pytest.fixture
def controlled(tmp_path: Path) -> dict[str, Any]:
    """Settings of a broker with access control."""
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACCOUNTS)
    path.chmod(0o600)
    return {"acl_enable": True, "acl_file": path, "transaction_check_interval": HOUR_MS}


def by(account: str) -> Callable[[Command], None]:
    return lambda command: sign(command, account, SECRET)


@pytest.mark.parametrize("ask", OF_A_RECORD, ids=lambda ask: ask.__name__)
def test_rights_that_depend_on_a_cold_record_stop_no_other_client(
    home: BrokerHome, run: Run, ask: Ask, controlled: dict[str, Any]
) -> None:
    async def check() -> None:
        stored, disk = await store_some(home), SlowDisk()
        async with home.running(files=disk, **controlled) as broker:
            await asked_with_a_stopped_disk(broker, disk, ask, stored, signer=by("the-worker"))

    run(check())


def test_rights_are_those_of_the_account_that_signed_the_request_whatever_comes_meanwhile(
    home: BrokerHome, run: Run, controlled: dict[str, Any]
) -> None:
    async def check() -> None:
        stored, disk = await store_some(home), SlowDisk()
        async with home.running(files=disk, **controlled) as broker:
            disk.evict()
            nothing = await broker.client(signer=by("nothing"))
            worker = RawClient(nothing.connection, nothing.asked, by("the-worker"))
            disk.stop()
            waiting = asyncio.ensure_future(view(nothing, stored))
            await until(lambda: bool(disk.waiting))
            ok(await worker.send("news"))
            disk.start()
            refused = await waiting
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "it needs SUB on topic 'orders'" in (refused.remark or "")
            ok(await view(worker, stored))

    run(check())


def test_delivery_waits_for_the_disk_and_goes_on(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk, ahead_ms, delays = SlowDisk(), [0], {"message_delay_level": "1h"}
        async with home.running(store=delays) as broker:
            client = await broker.client()
            for number in range(3):
                ok(await client.send("orders", b"%d" % number, properties={"DELAY": "1"}))
        clock = {"clock": lambda: now_ms() + ahead_ms[0]}
        async with home.running(files=disk, store=delays, options=clock) as broker:
            disk.evict()
            other = await broker.client()
            await warm_up(other)
            disk.stop()
            ahead_ms[0] = 2 * HOUR_MS
            broker.state.delayed.start()
            await serves_others(other, disk)
            broker.state.delayed.start()  # as when the clock is set back: a level runs once at a time
            disk.start()
            await until(lambda: broker.store.max_offset("orders", 0) == 3)
            assert bodies(await other.pull("orders")) == [b"0", b"1", b"2"]

    run(check())


def test_a_stop_of_delivery_does_not_wait_for_the_disk_and_loses_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk, ahead_ms, delays = SlowDisk(), [0], {"message_delay_level": "1h"}
        async with home.running(store=delays) as broker:
            ok(await (await broker.client()).send("orders", b"later", properties={"DELAY": "1"}))
        clock = {"clock": lambda: now_ms() + ahead_ms[0]}
        async with home.running(files=disk, store=delays, options=clock) as broker:
            disk.evict()
            disk.stop()
            ahead_ms[0] = 2 * HOUR_MS
            broker.state.delayed.start()
            await until(lambda: bool(disk.waiting))
            broker.state.delayed.stop()
            broker.state.delayed.start()
            disk.start()
            await until(lambda: broker.store.max_offset("orders", 0) > 0)
            assert broker.state.delayed.progress() == {1: (1, 1)}
            assert bodies(await (await broker.client()).pull("orders")) == [b"later"]

    run(check())


def test_a_transaction_check_waits_for_the_disk_and_goes_on(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        await store_some(home)
        disk = SlowDisk()
        async with home.running(files=disk, **AT_ONCE) as broker:
            disk.evict()
            producer, other = await broker.client(), await broker.client()
            ok(await producer.heartbeat("p", produces=("PID_test",)))
            await warm_up(other)
            disk.stop()
            checking = asyncio.ensure_future(make_round(broker))
            await serves_others(other, disk, checking)
            disk.start()
            assert await checking == 1
            assert decode_record((await asked(producer)).body).body == b"paid"

    run(check())


# -- while another thread dispatches -----------------------------------------------------------------------------


@contextlib.contextmanager
def dispatch_held(broker: RunningBroker) -> Iterator[threading.Event]:
    """Another thread keeps dispatch paused until the event is set; or for ten seconds, if the loop hangs by then."""
    is_held, let_go, overdue = threading.Event(), threading.Event(), []

    def hold() -> None:
        with broker.store.dispatcher.paused():
            is_held.set()
            overdue.append(not let_go.wait(10))

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert is_held.wait(SOON_S)
        yield let_go
    finally:
        let_go.set()
        holder.join()
    assert overdue == [False], "the loop waited for dispatch"


async def loop_is_free(broker: RunningBroker, client: RawClient, stored: Command) -> None:
    """Serves what has to look at queues, in a broker whose dispatch is behind."""
    correction = {"topic": "orders", "compareGroup": "CID", "filterGroups": ""}
    ok(await client.ask(RequestCode.QUERY_CORRECTION_OFFSET, **correction))
    info = KVTable.from_bytes(ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
    assert info["scheduleMessageOffset_1"] == "0,1"
    broker.state.delayed.stop()
    broker.state.delayed.start()
    ok(await end(client, stored, COMMIT))


def test_the_loop_never_waits_for_a_thread_that_dispatches(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running(store={"message_delay_level": "1h"}) as broker:
            client = await broker.client()
            half = await send_half(client)
            ok(await client.send("orders", b"0", properties={"DELAY": "1"}))
            broker.state.offsets.commit("CID", "orders", 0, 0)
            broker.store.catch_up()
            with dispatch_held(broker) as let_go:
                ok(await client.send("orders", b"1", properties={"DELAY": "1"}))
                assert broker.store.dispatcher.behind > 0
                await loop_is_free(broker, client, half)
                deleting = asyncio.ensure_future(client.ask(RequestCode.DELETE_EXPIRED_COMMITLOG))
                ok(await client.send("orders", b"2"))
                let_go.set()
                ok(await deleting)

    run(check())

"""Pulls of messages that are not in memory: answered when the disk has read them, while everybody else is served."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RunningBroker, bodies, ok
from support.disks import ColdFiles, SlowDisk
from support.loopback import until

from penstock.protocol.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from broker.conftest import Run


@asynccontextmanager
async def stopped(home: BrokerHome, disk: ColdFiles, **settings: Any) -> AsyncIterator[RunningBroker]:
    """A broker whose topic orders has ten messages that are not in memory."""
    async with home.running() as broker:
        client = await broker.client()
        for number in range(10):
            ok(await client.send("orders", b"%d" % number))
    async with home.running(files=disk, **settings) as broker:
        disk.evict()
        yield broker


def test_a_pull_that_waits_for_the_disk_stops_no_other_client(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with stopped(home, disk) as broker:
            slow, other = await broker.client(), await broker.client()
            ok(await other.send("news", b"before"))
            ok(await other.pull("news"))
            disk.stop()
            waiting = asyncio.create_task(slow.pull("orders"))
            await until(lambda: bool(disk.waiting))
            ok(await other.send("news", b"while"))
            assert bodies(await other.pull("news", 1)) == [b"while"]
            assert not waiting.done()
            assert disk.waiting[0].startswith("penstock-read")
            disk.start()
            assert bodies(await waiting) == [b"%d" % number for number in range(10)]

    run(check())


def test_one_client_has_one_read_under_way_and_others_have_theirs(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with stopped(home, disk) as broker:
            greedy, other = await broker.client(), await broker.client()
            disk.stop()
            pulls = [asyncio.create_task(greedy.pull("orders", offset)) for offset in range(8)]
            await until(lambda: len(disk.waiting) == 1)
            pulls.append(asyncio.create_task(other.pull("orders", 8)))
            await until(lambda: len(disk.waiting) == 2)
            disk.start()
            assert [bodies(await pull)[0] for pull in pulls] == [b"%d" % number for number in range(9)]

    run(check())


def test_a_held_pull_that_wakes_to_a_cold_page_waits_for_it(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with stopped(home, disk) as broker:
            slow, other = await broker.client(), await broker.client()
            waiting = slow.hold("orders", 10)
            await until(lambda: len(broker.broker.held) == 1)
            disk.stop()
            ok(await other.send("orders", b"10"))
            await until(lambda: bool(disk.waiting))
            ok(await other.send("orders", b"11"))
            assert not waiting.done()
            disk.start()
            assert bodies(await waiting)[0] == b"10"
            assert len(broker.broker.held) == 0

    run(check())


def test_a_broker_stops_after_a_held_pull_has_its_cold_page(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with stopped(home, disk) as broker:
            slow, other = await broker.client(), await broker.client()
            waiting = slow.hold("orders", 10)
            await until(lambda: len(broker.broker.held) == 1)
            disk.stop()
            ok(await other.send("orders", b"10"))
            await until(lambda: bool(disk.waiting))
            stopping = asyncio.create_task(broker.broker.stop())
            while (await other.send("orders")).code == ResponseCode.SUCCESS:
                pass  # it has not begun to stop
            assert not stopping.done()
            disk.start()
            assert bodies(await waiting)[0] == b"10"
            assert await stopping

    run(check())


def test_a_broker_that_cannot_wait_for_the_disk_any_longer_refuses_the_pull(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with stopped(home, disk) as broker:
            slow, other = await broker.client(), await broker.client()
            waiting = slow.hold("orders", 10)
            await until(lambda: len(broker.broker.held) == 1)
            disk.stop()
            ok(await other.send("orders", b"10"))
            await until(lambda: bool(disk.waiting))
            stopping = asyncio.create_task(broker.broker.held.drained())
            await asyncio.sleep(0)
            stopping.cancel()
            assert (await waiting).code == ResponseCode.SERVICE_NOT_AVAILABLE
            disk.start()

    run(check())


@pytest.mark.parametrize("flags", [4, 2 | 4], ids=["a pull", "a pull that may be held"])
def test_messages_that_the_disk_cannot_read_are_an_error_of_the_pull(home: BrokerHome, run: Run, flags: int) -> None:
    async def check() -> None:
        disk = ColdFiles()
        async with stopped(home, disk) as broker:
            client = await broker.client()

            def refuse(path: Path, start: int, stop: int) -> None:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            disk.on_read = refuse
            reply = await client.pull("orders", sysFlag=flags)
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "Input/output error" in reply.remark
            disk.on_read = lambda path, start, stop: None
            assert len(bodies(await client.pull("orders"))) == 10

    run(check())


def test_a_pull_during_a_pause_of_dispatch_stops_no_other_client_and_sees_every_message(
    home: BrokerHome, run: Run
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            slow, other = await broker.client(), await broker.client()
            slow.settle = bool
            ok(await other.send("orders", b"0"))
            broker.store.catch_up()
            with broker.store.dispatcher.paused():
                ok(await other.send("orders", b"1"))
                waiting = asyncio.create_task(slow.pull("orders", 1))
                held = slow.hold("orders", 2)
                ok(await other.send("orders", b"2"))
                assert not waiting.done()
            assert bodies(await waiting)[0] == b"1"
            assert bodies(await held) == [b"2"]

    run(check())


def test_a_request_for_the_end_of_a_queue_during_a_pause_of_dispatch_stops_no_other_client(
    home: BrokerHome, run: Run
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            slow, other = await broker.client(), await broker.client()
            with broker.store.dispatcher.paused():
                ok(await other.send("orders", b"0"))
                waiting = asyncio.create_task(slow.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0))
                ok(await other.send("orders", b"1"))
                assert not waiting.done()
            assert ok(await waiting).ext == {"offset": "2"}

    run(check())

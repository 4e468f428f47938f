"""The end of a broker: what was asked is answered, what was changed is saved, the store is closed cleanly."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers import WAIT_S, BrokerHome, ok
from support.disks import FaultyFiles
from support.loopback import until

from penstock.broker.broker import Broker
from penstock.broker.settings import BrokerSettings
from penstock.errors import Unreachable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import FlushDiskType, MessageStore, Settings
from penstock.store.query import Hits

if TYPE_CHECKING:
    from broker.conftest import Run


def slow_disk() -> tuple[FaultyFiles, threading.Event]:
    """A disk that syncs only while the event is set, which it is at first."""
    disk, may_sync = FaultyFiles(), threading.Event()
    may_sync.set()

    def wait(path: Path) -> None:
        assert may_sync.wait(60)

    disk.before_sync = wait
    return disk, may_sync


def test_pulls_that_wait_are_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            waiting = [client.hold("orders", 1) for _ in range(3)]
            await until(lambda: len(broker.broker.held) == 3)
            assert await broker.broker.stop(10)
            assert {(await reply).code for reply in waiting} == {ResponseCode.PULL_NOT_FOUND}
            await until(lambda: client.connection.closed)

    run(check())


def test_the_store_is_closed_cleanly(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            ok(await (await broker.client()).send("orders"))
            assert (home.path / "abort").exists()
        assert not (home.path / "abort").exists()
        async with home.running() as broker:
            assert broker.store.max_offset("orders", 0) == 1

    run(check())


def test_sends_on_their_way_to_disk_are_answered_and_new_ones_refused(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk, may_sync = slow_disk()
        async with home.running(sync=True, files=disk) as broker:
            client, late = await broker.client(), await broker.client()
            ok(await client.send("orders"))
            may_sync.clear()
            waiting = asyncio.create_task(client.send("orders", b"just in time"))
            await until(lambda: len(broker.broker.pending_acks) == 1)
            stopping = asyncio.create_task(broker.broker.stop(10))
            await until(lambda: bool(broker.broker.write_guard.why_not))
            reply = await late.send("orders", b"too late")
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            may_sync.set()
            ok(await waiting)
            assert await stopping
        async with home.running() as broker:
            assert broker.store.max_offset("orders", 0) == 2

    run(check())


def test_a_disk_that_hangs_does_not_keep_it_for_ever(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk, may_sync = slow_disk()
        settings = Settings.dev(flush_disk_type=FlushDiskType.SYNC_FLUSH)
        broker = Broker(MessageStore.open(home.path, settings, files=disk), BrokerSettings())
        await broker.start("127.0.0.1", 0)
        may_sync.clear()
        assert not await broker.stop(0.5)
        may_sync.set()

    run(check())


def test_a_query_that_reads_for_long_does_not_take_the_time_of_the_other_steps(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, began = threading.Event(), threading.Event()

    def slow_query(*arguments: object) -> Hits:
        began.set()
        assert may_end.wait(WAIT_S)
        return Hits([])

    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            monkeypatch.setattr(broker.store, "query", slow_query)
            query = {"topic": "orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
            asked = asyncio.create_task(client.ask(RequestCode.QUERY_MESSAGE, **query))
            waiting = client.hold("orders", 1)
            await until(lambda: began.is_set() and len(broker.broker.held) == 1)
            stopping = asyncio.create_task(broker.broker.stop(6))
            assert (await waiting).code == ResponseCode.PULL_NOT_FOUND, "it is answered while the query runs"
            may_end.set()
            await asked
            assert await stopping
        assert not (home.path / "abort").exists()

    try:
        run(check())
    finally:
        may_end.set()


def test_nobody_gets_in_any_more(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            ok(await (await broker.client()).send("orders"))
            assert await broker.broker.stop(10)
            try:
                await broker.client()
            except Unreachable:
                return
            raise AssertionError("the port is still open")

    run(check())


def test_a_second_stop_does_nothing(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            assert await broker.broker.stop(10)
            assert await broker.broker.stop(10)

    run(check())


def test_an_unknown_code_and_a_handler_that_fails_are_answered(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            reply = await client.ask(99_999)
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "99999" in (reply.remark or "")
            reply = await client.ask(RequestCode.PULL_MESSAGE)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            ok(await client.send("orders"))

    run(check())

"""A store that is full, slow or failed: the right code, and back to work by itself where that is possible."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, ok
from support.disks import FaultyFiles, refuse
from support.stores import is_one_sentence

from penstock.broker import stats
from penstock.broker.send_and_pull_results import code_of
from penstock.broker.stats import StoreWatch
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store.external_dispatch.queue_and_index_builder import Builder
from penstock.store.message import PutResult, PutStatus
from penstock.store.running_flags import StoreFault

if TYPE_CHECKING:
    from broker.conftest import Run


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.PUT_OK, 0),
        (PutStatus.FLUSH_DISK_TIMEOUT, 10),
        (PutStatus.SLAVE_NOT_AVAILABLE, 11),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, 12),
        (PutStatus.MESSAGE_ILLEGAL, 13),
        (PutStatus.PROPERTIES_SIZE_EXCEEDED, 13),
        (PutStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutStatus.CREATE_MAPEDFILE_FAILED, 14),
        (PutStatus.OS_PAGECACHE_BUSY, 2),
        (PutStatus.UNKNOWN_ERROR, 1),
    ],
)
def test_every_status_of_a_put_has_its_code(status: PutStatus, code: int) -> None:
    assert code_of(status) == code


def test_a_full_disk_refuses_sends_and_takes_them_again_when_there_is_room(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = FaultyFiles()
        async with home.running(files=disk) as broker:
            client = await broker.client()
            disk.before_allocate = lambda path: refuse(errno.ENOSPC) if "commitlog" in str(path) else None
            for send in (client.send("orders"), client.send_batch("orders", [(b"x", "")])):
                reply = await send
                assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert is_one_sentence(reply.remark or "")
                assert "no space left" in (reply.remark or "")
                assert str(home.path) not in (reply.remark or ""), "strangers need not know where the store lies"
            disk.before_allocate = lambda path: None
            ok(await client.send("orders"))

    run(check())


def test_a_store_that_is_busy_says_so(home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            monkeypatch.setattr(broker.store.log, "busy", lambda: True)
            monkeypatch.setattr(broker.store.log, "locked_for", lambda: 1.5)
            assert (await client.send("orders")).code == ResponseCode.SYSTEM_BUSY
            monkeypatch.undo()
            ok(await client.send("orders"))

    run(check())


def test_reading_goes_on_while_writing_is_refused(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            broker.store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
            reply = await client.send("orders")
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "the disk is full" in (reply.remark or "")
            ok(await client.pull("orders"))
            broker.store.flags.clear(StoreFault.DISK_FULL)
            ok(await client.send("orders"))

    run(check())


def test_the_log_says_when_the_store_takes_no_messages_and_when_it_does_again(
    home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with home.running() as broker:
            watch = StoreWatch(broker.store)
            watch.check()
            broker.store.flags.raise_fault(StoreFault.DISK_FULL, "the disk is full")
            watch.check()
            watch.check()
            broker.store.flags.clear(StoreFault.DISK_FULL)
            watch.check()

    with caplog.at_level(logging.WARNING, "penstock.broker"):
        run(check())
    said = [record.getMessage() for record in caplog.records]
    assert said == ["the store does not accept messages: the disk is full", "the store accepts messages again"]


def test_slow_puts_are_said(home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        async with home.running() as broker:
            watch = StoreWatch(broker.store)
            broker.store.statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), 0.4)
            watch.check()
            broker.store.statistics.count_put(PutResult(PutStatus.PUT_OK, 0, 1), 0.7)
            watch.check()
            watch.check()

    with caplog.at_level(logging.WARNING, "penstock.broker"):
        run(check())
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "slow puts: 1 took more than 500 ms; slowest so far: 700 ms"


def test_a_missing_dispatch_job_is_in_the_log_at_the_start_and_every_minute_and_in_the_health(
    home: BrokerHome, run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "dispatch" in each.getMessage()]

    async def check() -> None:
        async with home.running(store={"dispatch": "external"}) as broker:
            assert ["no job builds the queues" in line for line in said()] == [True]
            watch, client = StoreWatch(broker.store), await broker.client()
            ok(await client.send("orders"))
            watch.check()
            watch.check()
            assert len(said()) == 2, "not again within a minute"
            monkeypatch.setattr(stats, "REPEAT_S", 0.0)
            watch.check()
            assert len(said()) == 3
            health = broker.broker.health()
            assert not health.ok
            assert "no job builds the queues" in health.reasons[0]
            table = KVTable.from_bytes(ok(await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
            assert "no job builds the queues" in table["brokerHealth"]
            assert int(table["dispatchBehindBytes"]) > 0
            assert int(table["dispatchBehindMillis"]) >= 0
            with Builder.open(home.path):
                assert broker.broker.health().ok
                watch.check()
            assert "messages reach their queues again" in caplog.messages[-1]

    with caplog.at_level(logging.WARNING):
        run(check())

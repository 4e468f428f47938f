"""A background task of the broker that fails is noticed, whatever the error: health names it, and it goes on.

Or, if it must not go on, the broker leaves. tests/store/test_thread_death.py does the same for the store's threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.brokers import BrokerHome, RunningBroker, bodies, ok
from support.clusters import caught_up, master, slave
from support.loopback import until

from penstock import task_supervision
from penstock.broker import broker as broker_module
from penstock.broker.access_file import Accounts
from penstock.broker.admin import BrokerAdmin
from penstock.broker.broker import Broker
from penstock.broker.consumers import ClientTable
from penstock.broker.delayed_delivery import DelayedMessages
from penstock.broker.query import MessageQueries
from penstock.broker.queue_locks import QueueLocks
from penstock.broker.registration import BrokerRegistration
from penstock.broker.replication import config_sync
from penstock.broker.replication.config_sync import ConfigCopy
from penstock.broker.replication.log_bytes_for_slaves import CatchUpSender
from penstock.broker.replication.replication import ReplicationStatus
from penstock.broker.replication.slave import LogReceiver
from penstock.broker.replication.slave_connection import SlaveConnection
from penstock.broker.send_acks import PendingAck
from penstock.broker.settings import BrokerSettings
from penstock.broker.stats import StoreWatch
from penstock.broker.transactions import TransactionCheck
from penstock.namesrv import NameServer, name_server
from penstock.protocol.bodies.admin import KVTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import FlushDiskType, Message, MessageStore, Settings

if TYPE_CHECKING:
    from broker.conftest import Run


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_supervision, "FIRST_PAUSE_S", 0.01)


class Planted:
    """A method that raises what nothing expects while it is told to, and otherwise does what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], method: str) -> None:
        self.fails = True
        self.met = 0
        real = getattr(kind, method)

        def planted(*args: Any, **kwargs: Any) -> Any:
            if self.fails:
                self.met += 1
                raise MemoryError("planted")
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, method, planted)


def reasons(broker: RunningBroker | Broker) -> str:
    running = broker.broker if isinstance(broker, RunningBroker) else broker
    health = running.health()
    assert health.ok == (not health.reasons)
    return "; ".join(health.reasons)


async def noticed(broker: RunningBroker, planted: Planted, name: str) -> None:
    """Waits until health names the task, then until it has recovered."""
    await until(lambda: name in reasons(broker))
    assert "planted" in reasons(broker)
    planted.fails = False
    await until(lambda: name not in reasons(broker))


PERIODIC: list[tuple[str, type[Any], str, str | None]] = [
    ("expiry of clients", ClientTable, "expire", "_EXPIRE_EVERY_S"),
    ("expiry of queue locks", QueueLocks, "drop_expired", "_LOCKS_EVERY_S"),
    ("watch of the store", StoreWatch, "check", "_WATCH_EVERY_S"),
    ("samples of counters", BrokerAdmin, "sample", "SAMPLE_S"),
    ("samples of replication", ReplicationStatus, "sample", "REPLICATION_SAMPLE_S"),
    ("transaction check", TransactionCheck, "round", None),
]


@pytest.mark.parametrize(("name", "kind", "method", "interval"), PERIODIC, ids=[row[0] for row in PERIODIC])
def test_a_periodic_task_goes_on(
    home: BrokerHome,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[Any],
    method: str,
    interval: str | None,
) -> None:
    planted = Planted(monkeypatch, kind, method)
    planted.fails = False
    if interval is not None:
        monkeypatch.setattr(broker_module, interval, 0.01)

    async def check() -> None:
        async with home.running(transaction_check_interval=10) as broker:
            planted.fails = True
            await noticed(broker, planted, name)
            ok(await (await broker.client()).send("orders"))

    run(check())


def test_accounts_are_reloaded_after_a_failure(
    home: BrokerHome, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts: [{accessKey: old-account, secretKey: secret-of-first}]")
    planted = Planted(monkeypatch, Accounts, "load")
    planted.fails = False
    monkeypatch.setattr(broker_module, "RELOAD_EVERY_S", 0.01)

    async def check() -> None:
        async with home.running(acl_enable=True, acl_file=path) as broker:
            access = broker.broker.access
            assert access is not None
            planted.fails = True
            path.write_text("accounts: [{accessKey: newcomer, secretKey: secret-of-newcomer}]")
            await noticed(broker, planted, "reload of accounts")
            await until(lambda: list(access.accounts.by_key) == ["newcomer"])

    run(check())


def test_registration_goes_on(home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch, BrokerRegistration, "register_request")

    async def check() -> None:
        server = NameServer()
        host, port = await server.start("127.0.0.1", 0)
        async with home.running(namesrv_addr=f"{host}:{port}") as broker:
            await noticed(broker, planted, f"registration with name server {host}:{port}")
            await until(lambda: server.routes.brokers)
        await server.stop(1)

    run(check())


def test_delayed_messages_are_delivered_after_a_failure(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(monkeypatch, DelayedMessages, "_deliver")
    monkeypatch.setattr("penstock.broker.delayed_delivery._RETRY_MS", 10)

    async def check() -> None:
        async with home.running(store={"message_delay_level": "0s 1h"}) as broker:
            broker.store.put(Message("orders", b"later", delay_level=1))
            await noticed(broker, planted, "delivery of delay level 1")
            await until(lambda: broker.store.max_offset("orders", 0) == 1)

    run(check())


def test_a_query_that_fails_is_answered_and_the_next_one_works(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = Planted(monkeypatch, MessageQueries, "_find")

    async def check() -> None:
        async with home.running() as broker:
            client = await broker.client()
            ok(await client.send("orders", b"found", properties={"KEYS": "k"}))
            broker.store.catch_up()
            arguments = {"topic": "orders", "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 1 << 60}
            reply = await client.ask(RequestCode.QUERY_MESSAGE, **arguments)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            planted.fails = False
            assert bodies(await client.ask(RequestCode.QUERY_MESSAGE, **arguments)) == [b"found"]

    run(check())


def test_a_slave_follows_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch, LogReceiver, "run")

    async def check() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            m.store.put(Message("orders", b"x"))
            await until(lambda: "following the master" in reasons(s))
            planted.fails = False
            await caught_up(m, s)

    run(check())


def test_a_slave_copies_tables_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch, ConfigCopy, "copy")
    monkeypatch.setattr(config_sync, "_EVERY_S", 0.01)

    async def check() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            await noticed(s, planted, "copy of the master's tables")
            ok(await (await m.client()).send("orders"))
            await until(lambda: s.state.topics.find("orders") is not None)

    run(check())


@pytest.mark.parametrize(
    ("kind", "method"), [(SlaveConnection, "send_more"), (CatchUpSender, "send")], ids=["loop", "thread"]
)
def test_a_master_drops_a_slave_that_it_cannot_send_to_and_serves_it_again(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[Any],
    method: str,
) -> None:
    planted = Planted(monkeypatch, kind, method)
    planted.fails = False
    monkeypatch.setattr("penstock.broker.replication.slave._FIRST_RETRY_S", 0.01)

    async def check() -> None:
        async with master(tmp_path / "m") as m:
            for _ in range(40):
                m.store.put(Message("orders", bytes(50_000)))
            if method == "send_more":
                async with slave(tmp_path / "s", m) as s:
                    await caught_up(m, s)
                    planted.fails = True
                    m.store.put(Message("orders", b"x"))
                    await until(lambda: planted.met)
                    planted.fails = False
                    await caught_up(m, s)
                return
            planted.fails = True
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: planted.met)
                planted.fails = False
                await caught_up(m, s)

    run(check())
    assert "planted" in caplog.text


def test_a_broker_that_cannot_send_acks_leaves(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        store = MessageStore.open(home.path, Settings.dev(flush_disk_type=FlushDiskType.SYNC_FLUSH))
        broker = Broker(store, BrokerSettings(stop_limit_millis=2000))
        running = RunningBroker(broker, await broker.start("127.0.0.1", 0))
        client = await running.client()
        planted = Planted(monkeypatch, PendingAck, "settle")
        asked = asyncio.create_task(client.send("orders"))
        await until(lambda: broker.state.tasks.has_left)
        planted.fails = False
        await until(lambda: store._closed)
        assert await broker.stop(), "it stopped in time by itself"
        assert "acks of sends" in reasons(broker)
        asked.cancel()
        client.close()

    run(check())
    assert any(record.levelno == logging.CRITICAL and "planted" in record.getMessage() for record in caplog.records)
    assert not (home.path / "abort").exists(), "the store is closed cleanly: nothing in it has failed"


def test_a_callback_that_fails_is_in_the_health(home: BrokerHome) -> None:
    def fails() -> None:
        raise MemoryError("planted")

    async def check() -> None:
        async with home.running() as broker:
            asyncio.get_running_loop().call_soon(fails)
            await until(lambda: "event loop: MemoryError" in reasons(broker))

    asyncio.run(check())


def test_a_dead_thread_of_the_store_is_in_the_health_and_in_the_runtime_figures(home: BrokerHome, run: Run) -> None:
    async def health(broker: RunningBroker) -> str:
        reply = ok(await (await broker.client()).ask(RequestCode.GET_BROKER_RUNTIME_INFO))
        return KVTable.from_bytes(reply.body).table["brokerHealth"]

    async def check() -> None:
        async with home.running() as broker:
            assert broker.broker.health() == (True, ())
            assert await health(broker) == "ok"
            broker.store.on_arrival(fail_once())
            ok(await (await broker.client()).send("orders"))
            await until(lambda: broker.store.dead_threads)
            assert "the thread penstock-dispatch ended (MemoryError('planted'))" in reasons(broker)
            assert await health(broker) == reasons(broker)
            refused = await (await broker.client()).send("orders")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "penstock-dispatch" in (refused.remark or "")
        assert (home.path / "abort").exists(), "the next start recovers"

    run(check())


def fail_once() -> Callable[..., None]:
    errors = [MemoryError("planted")]

    def fails(*_: object) -> None:
        if errors:
            raise errors.pop()

    return fails


def test_a_name_server_goes_on_dropping_brokers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = Planted(monkeypatch, NameServer, "expire")
    monkeypatch.setattr(name_server, "_EXPIRE_INTERVAL_S", 0.01)

    async def check() -> None:
        server = NameServer()
        await server.start("127.0.0.1", 0)
        await until(lambda: "expiry of brokers" in server.tasks.problems)
        planted.fails = False
        await until(lambda: not server.tasks.problems)
        await server.stop(1)

    run(check())

"""One replica that a keeper directs, without an engine: what it counts, registers and reports about its health."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.loopback import SOON_S, free_port, until

from penstock.broker.broker import Broker
from penstock.broker.failover import role_switch
from penstock.broker.failover.consensus_engine import STATE, KeyValue, Leader, State, View, boot_time
from penstock.broker.failover.role_switch import BrokerNode, Host
from penstock.broker.settings import BrokerSettings
from penstock.store import MessageStore, Settings

LEADER = Leader(id=1, epoch=4, incarnation="i", address="127.0.0.1:1", ha_address="127.0.0.1:2")


@asynccontextmanager
async def a_node(
    path: Path, open_store: Callable[[Callable[[], MessageStore]], MessageStore] = lambda really: really()
) -> AsyncIterator[BrokerNode]:
    """A slave with the id 2. `open_store` is called with the function that opens its store again."""
    changes = ["failover=etcd", "dcsAddr=127.0.0.1:1", f"haListenPort={free_port()}", "failoverTtlMillis=3000"]
    settings = Settings.load(None, changes, base=Settings.dev(broker_role="SLAVE"))

    def really() -> MessageStore:
        return MessageStore.open(path, settings, in_sync_set=True)

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        host = Host(BrokerSettings.of(settings), lambda: open_store(really), Broker, bound, lambda broker: None)
        node = BrokerNode(host, really())
        node.deadline = lambda: boot_time() + SOON_S
        await node._follow(2, LEADER)
        try:
            yield node
        finally:
            await node.stop(2)


def view(**changes: object) -> View:
    given = {"epoch": 4, "master": 1, "sync": (1, 2), "ids": {"a": 1, "b": 2}, "next_id": 3, **changes}
    return View.of(9, {STATE: KeyValue(State(**given).to_bytes(), 9)})  # type: ignore[arg-type]


def test_only_stores_that_the_engine_knows_are_replicas(tmp_path: Path) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            node.saw(view(ids={"a": 1, "b": 2}))
            assert node._is_replica("a", 1)
            assert not node._is_replica("a", 2)
            assert not node._is_replica("stranger", 1)
            node.saw(view(master=2, sync=(2,), ids={"b": 2}))
            assert not node._is_replica("a", 1), "it was forgotten"

    asyncio.run(go())


@pytest.mark.parametrize(("forced", "accepts"), [(0, False), (2, False), (3, True)])
def test_loss_is_accepted_after_a_forced_failover_that_this_log_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: int, accepts: bool
) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            assert node.broker is not None
            node._store.epochs.begin(2, 0)
            node.saw(view(forced=forced))
            given: list[bool] = []

            async def follow(*where: object, accepts_loss: bool) -> None:
                given.append(accepts_loss)

            monkeypatch.setattr(node.broker.replication, "follow", follow)
            await node._follow(2, LEADER)
            assert given == [accepts]

    asyncio.run(go())


def test_a_disk_that_hangs_in_a_change_of_the_role_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def slowly(really: Callable[[], MessageStore]) -> MessageStore:
        goes_on.wait(SOON_S)
        return really()

    async def go() -> None:
        async with a_node(tmp_path, slowly) as node:
            assert node.health(1.0).why_not == ""
            monkeypatch.setattr(role_switch, "_CHANGE_S", 0.1)
            change = asyncio.create_task(node._lead(2, 5, frozenset({2})))
            await until(lambda: "a change of the role has taken" in node.health(1.0).why_not)
            goes_on.set()
            await change
            assert node.health(1.0).why_not == ""

    asyncio.run(go())


def test_a_master_that_is_not_certain_of_its_lease_does_not_register(tmp_path: Path) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            await node._lead(2, 5, frozenset({2}))
            assert node.broker is not None
            assert node.broker.registration.may_register()
            node.deadline = boot_time
            assert not node.broker.registration.may_register()
            node.deadline = lambda: boot_time() + SOON_S
            assert node.broker.registration.may_register()

    asyncio.run(go())


def test_a_change_of_the_role_unregisters_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's name servers would remove the successor, which has the id 0 by then."""

    async def go() -> None:
        async with a_node(tmp_path) as node:
            await node._lead(2, 5, frozenset({2}))
            assert node.broker is not None
            told: list[bool] = []
            really = node.broker.registration.stop

            async def stop(*, unregister: bool = True) -> None:
                told.append(unregister)
                await really(unregister=unregister)

            monkeypatch.setattr(node.broker.registration, "stop", stop)
            await node._follow(2, LEADER)
            assert told == [False]

    asyncio.run(go())

"""One replica that a keeper directs, without an engine: what it counts, registers and reports about its health."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.clusters import FILE, master
from support.loopback import SOON_S, free_port, until

from penstock.broker.broker import Broker
from penstock.broker.failover import role_switch
from penstock.broker.failover.consensus_engine import ABSENT, STATE, KeyValue, Leader, State, View, boot_time
from penstock.broker.failover.role_switch import BrokerNode, Host
from penstock.broker.settings import BrokerSettings
from penstock.errors import StoreFailed
from penstock.store import Message, MessageStore, Settings
from penstock.store.damage_and_quarantine import DamagedRange

LEADER = Leader(id=1, epoch=4, incarnation="i", address="127.0.0.1:1", ha_address="127.0.0.1:2")


@asynccontextmanager
async def a_node(
    path: Path,
    open_store: Callable[[Callable[[], MessageStore]], MessageStore] = lambda really: really(),
    *more: str,
) -> AsyncIterator[BrokerNode]:
    """A slave with the id 2. `open_store` is called with the function that opens its store again; `more` settings."""
    changes = ["failover=etcd", "dcsAddr=127.0.0.1:1", f"haListenPort={free_port()}", "failoverTtlMillis=3000", *more]
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


@pytest.mark.parametrize("refuses_at", [1, 3, 4])
def test_a_master_that_dies_while_it_is_probed_is_probed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses_at: int
) -> None:
    """The kernel may end its connections before it closes its ports. After three probes it counts as alive."""

    async def go() -> None:
        async with a_node(tmp_path, lambda really: really(), "failoverFast=false") as node:  # it probes only here
            probes: list[str] = []

            async def refuses(address: str) -> bool:
                probes.append(address)
                return len(probes) > 2 * (refuses_at - 1)

            monkeypatch.setattr(role_switch, "_refuses", refuses)
            await node._probe(LEADER, 7)
            assert node._dead_leader == (7 if refuses_at <= 3 else ABSENT)
            assert len(probes) == 2 * min(refuses_at, 3)

    asyncio.run(go())


def test_a_store_that_takes_long_to_close_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        goes_on, asked = threading.Event(), threading.Event()

        def open_store(really: Callable[[], MessageStore]) -> MessageStore:
            asked.set()
            return really()

        async with a_node(tmp_path, open_store) as node:
            really = node._store.close

            def close() -> None:
                goes_on.wait(SOON_S)
                really()

            monkeypatch.setattr(node._store, "close", close)
            monkeypatch.setattr(role_switch, "_STOP_S", 0.2)
            change = asyncio.create_task(node._lead(2, 5, frozenset({2})))
            await until(asked.is_set)
            goes_on.set()
            await change
            assert node.broker is not None
            assert node._store.role.epoch == 5

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


@pytest.mark.parametrize("leads", [True, False])
def test_a_master_that_stops_unregisters_nothing_and_a_slave_its_own_id(tmp_path: Path, leads: bool) -> None:
    """The successor of a master that has handed over has the id 0 by then."""

    async def go() -> None:
        told: list[bool] = []
        async with a_node(tmp_path) as node:
            if leads:
                await node._lead(2, 5, frozenset({2}))
            assert node.broker is not None
            registration = node.broker.registration
            really = registration.stop

            async def stop(*, unregister: bool = True) -> None:
                told.append(unregister)
                await really(unregister=unregister)

            registration.stop = stop  # type: ignore[method-assign]
        assert told == [not leads]

    asyncio.run(go())


# -- what a replica lacks --------------------------------------------------------------------------------------------


def own_view(node: BrokerNode, **changes: object) -> View:
    """A view of a set in which the node's store has the id 2."""
    return view(**{"ids": {"a": 1, node._name: 2}, **changes})


def test_a_replica_that_lacked_messages_is_whole_when_it_has_all_that_its_master_has_confirmed(tmp_path: Path) -> None:
    store, note = {"broker_role": "SYNC_MASTER"}, tmp_path / "s" / "penstock" / "failover.json"
    with MessageStore.open(tmp_path / "m", Settings.dev(mapped_file_size_commit_log=FILE)) as first:
        first.epochs.begin(4, 0)
    note.parent.mkdir(parents=True)
    note.write_text('{"id": 2, "lackingIn": 5, "inSyncIn": 5}')

    async def go() -> None:
        async with (
            master(tmp_path / "m", store=store) as m,
            a_node(tmp_path / "s", lambda really: really(), f"mappedFileSizeCommitLog={FILE}") as node,
        ):
            m.store.require_replicas(frozenset())
            for _ in range(20):
                assert m.store.put(Message("orders", b"x" * 1000)).ok
            assert m.broker.replication.listens_at is not None
            places = (f"{host}:{port}" for host, port in (m.address, m.broker.replication.listens_at))
            leader = Leader(id=1, epoch=5, incarnation="m", address=next(places), ha_address=next(places))

            async def is_lacking(**changes: object) -> bool:
                await asyncio.to_thread(node.saw, own_view(node, **{"epoch": 5, **changes}))
                return node.describe().is_lacking

            assert await is_lacking(), "it follows no master of this epoch"
            await node._follow(2, leader)
            assert node.broker is not None
            await until(lambda: node.broker.replication.follows)  # type: ignore[union-attr]
            await until(lambda: node._store.watermarks.appended == m.store.watermarks.appended)
            await until(lambda: node._store.watermarks.has_confirmed)
            assert await is_lacking(sync=(1,)), "it is not in the set"
            assert await is_lacking(acks="none"), "its master confirms nothing"
            assert await is_lacking(epoch=4), "it follows the master of another epoch"
            node._store.watermarks.confirm(1 << 30)
            assert await is_lacking(), "it does not have all that is confirmed"
            node._store.watermarks.confirm(m.store.watermarks.visible)
            assert not await is_lacking()

    asyncio.run(go())
    assert b'"lackingIn":-1' in note.read_bytes()


def test_a_replica_that_cannot_note_its_gaps_counts_as_one_with_gaps_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            assert not node.describe().is_damaged

            def full(*given: object, **more: object) -> None:
                raise StoreFailed("cannot write: the disk is full", path=tmp_path)

            assert node._store.replica_log is not None
            node._store.replica_log.damaged.append(DamagedRange(0, 100, "DAMAGED_AT_MASTER"))
            with monkeypatch.context() as patch:
                patch.setattr(node._store.engine.io, "replace_bytes", full)
                assert node.describe().is_damaged
                assert node.describe().is_damaged
            assert not node.describe().is_damaged, "both logs lack the same"
            assert caplog.text.count("its gaps cannot be noted") == 1

    asyncio.run(go())


def test_a_replica_that_is_elected_leads_before_it_waits_for_the_disk_to_note_it(tmp_path: Path) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            elected = own_view(node, epoch=5, master=2, sync=(2,))
            node.saw(elected)
            assert b'"inSyncIn":0' in node._store.layout.failover.read_bytes()
            await node._lead(2, 5, frozenset({2}))
            node.saw(elected)
            assert b'"inSyncIn":5' in node._store.layout.failover.read_bytes()

    asyncio.run(go())


def test_a_full_disk_does_not_keep_a_replica_from_seeing_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with a_node(tmp_path) as node:
            node.membership.joined(2)

            def full(*given: object, **more: object) -> None:
                raise StoreFailed("cannot write: the disk is full", path=tmp_path)

            with monkeypatch.context() as patch:
                patch.setattr(node._store.engine.io, "replace_bytes", full)
                node.saw(own_view(node))
            assert b'"inSyncIn":0' in node._store.layout.failover.read_bytes()
            node.saw(own_view(node))
            assert b'"inSyncIn":4' in node._store.layout.failover.read_bytes(), "the next round notes it"

    asyncio.run(go())

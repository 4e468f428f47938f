"""A slave never believes a position of its master's own work that rests on records which its own log does not have."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from broker.conftest import Run
from support.brokers import (
    AT_ONCE,
    COMMIT,
    HALF,
    OP,
    SYSTEM_GROUP,
    RunningBroker,
    end,
    make_round,
    ok,
    send_half,
)
from support.clusters import caught_up, master, slave
from support.loopback import until

from penstock.broker.admin.groups import AdminOffsets
from penstock.broker.replication import config_sync
from penstock.broker.replication.slave import LogReceiver
from penstock.store import Message

LEVELS = {"message_delay_level": "0s 1h"}
DELAYED = Message("orders", b"later", delay_level=1)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves copy the tables all the time."""
    monkeypatch.setattr(config_sync, "_EVERY_S", 0.01)
    monkeypatch.setattr(config_sync, "_MIN_PAUSE_S", 0.01)


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """While it is set, what a slave receives of the log waits; if the slave stops meanwhile, it is lost."""
    held, append = Event(), LogReceiver._append

    def late(self: LogReceiver, *piece: Any) -> None:
        while held.is_set():
            if self.why:
                return
            time.sleep(0.005)
        append(self, *piece)

    monkeypatch.setattr(LogReceiver, "_append", late)
    yield held
    held.clear()


@pytest.fixture(params=["penstock", "rocketmq"])
def of_master(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose master it is: RocketMQ's sends its tables without the log's end."""
    if request.param == "rocketmq":
        monkeypatch.setattr(AdminOffsets, "all_offsets", lambda self, client: self._state.offsets.snapshot())
        monkeypatch.setattr(AdminOffsets, "delay_offsets", lambda self, client: self._state.delayed.snapshot())
    return str(request.param)


async def copied(broker: RunningBroker) -> None:
    """Waits until a slave has copied all tables as they are now."""
    copy = broker.broker.replication._copy
    assert copy is not None
    before = copy.copies
    await until(lambda: copy.copies > before + 1)


async def orders(broker: RunningBroker, count: int) -> list[bytes]:
    """The bodies of the topic once there are so many and each delayed message has been delivered."""
    await until(lambda: broker.store.max_offset("orders", 0) >= count)
    await until(lambda: all(first == last for first, last in broker.state.delayed.progress().values()))
    return [record.body for record in broker.store.get("orders", 0, 0).messages]


def test_a_delivery_that_the_slave_did_not_get_is_made_by_the_slave_that_takes_over(
    run: Run, tmp_path: Path, hold: Event, of_master: str
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=LEVELS) as m:
            m.state.delayed.stop()
            m.store.put(DELAYED)
            async with slave(tmp_path / "s", m, store=LEVELS) as s:
                await caught_up(m, s)
                hold.set()
                m.state.delayed.start()
                await until(lambda: m.state.delayed.snapshot().offsets.get(1) == 1)
                await copied(s)
                assert s.state.delayed.snapshot().offsets.get(1, 0) == 0, "its log has no delivery"
        hold.clear()
        async with master(tmp_path / "s", store=LEVELS) as s:
            assert await orders(s, 1) == [b"later"]

    run(go())


def test_a_position_is_taken_over_once_the_log_has_what_it_rests_on(
    run: Run, tmp_path: Path, hold: Event, of_master: str
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=LEVELS, **AT_ONCE) as m, slave(tmp_path / "s", m, store=LEVELS) as s:
            client = await m.client()
            half = await send_half(client)
            await caught_up(m, s)
            hold.set()
            m.store.put(DELAYED)
            ok(await end(client, half, COMMIT))
            await make_round(m)
            m.state.offsets.commit("CID_any", "orders", 0, 1)
            await until(lambda: m.state.delayed.snapshot().offsets.get(1) == 1)
            await copied(s)
            assert s.state.delayed.snapshot().offsets.get(1, 0) == 0
            assert s.state.offsets.query(SYSTEM_GROUP, HALF, 0) <= 0
            assert s.state.offsets.query("CID_any", "orders", 0) == 1, "consumers' offsets do not wait"
            hold.clear()
            await until(lambda: s.state.delayed.snapshot().offsets.get(1) == 1)
            await until(lambda: s.state.offsets.query(SYSTEM_GROUP, HALF, 0) == 1)
            assert s.state.offsets.query(SYSTEM_GROUP, OP, 0) == m.state.offsets.query(SYSTEM_GROUP, OP, 0)

    run(go())


def test_a_half_message_whose_end_the_slave_did_not_get_is_checked_by_the_slave_that_takes_over(
    run: Run, tmp_path: Path, hold: Event, of_master: str
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", **AT_ONCE) as m:
            client = await m.client()
            half = await send_half(client)
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                hold.set()
                ok(await end(client, half, COMMIT))
                assert await make_round(m) == 0
                assert m.state.offsets.query(SYSTEM_GROUP, HALF, 0) == 1, "the master is done with it"
                await copied(s)
        hold.clear()
        async with master(tmp_path / "s", **AT_ONCE) as s:
            assert await make_round(s) == 1

    run(go())


def test_a_slave_that_takes_over_delivers_nothing_that_its_log_has_delivered(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the table is old, but the log behind its end says what was delivered since."""

    async def go() -> None:
        async with master(tmp_path / "m", store=LEVELS) as m:
            m.store.put(DELAYED)
            await until(lambda: m.state.delayed.snapshot().offsets.get(1) == 1)
            async with slave(tmp_path / "s", m, store=LEVELS) as s:
                await until(lambda: s.state.delayed.snapshot().offsets.get(1) == 1)
                monkeypatch.setattr(config_sync.ConfigCopy, "_take_over", lambda self: False)
                m.store.put(Message("orders", b"since", delay_level=1))
                await until(lambda: m.store.max_offset("orders", 0) == 2)
                await caught_up(m, s)
                assert s.state.delayed.snapshot().offsets.get(1) == 1
        async with master(tmp_path / "s", store=LEVELS) as s:
            s.store.put(Message("orders", b"new", delay_level=1))
            assert await orders(s, 3) == [b"later", b"since", b"new"]

    run(go())


def test_a_table_of_a_connection_that_has_ended_is_not_taken_over(run: Run, tmp_path: Path, hold: Event) -> None:
    """The master may have lost what the table rests on, and have other records at the same offsets now."""

    async def go() -> None:
        async with master(tmp_path / "m", store=LEVELS) as m, slave(tmp_path / "s", m, store=LEVELS) as s:
            m.state.delayed.stop()
            m.store.put(DELAYED)
            await caught_up(m, s)
            hold.set()
            m.state.delayed.start()
            await until(lambda: m.state.delayed.snapshot().offsets.get(1) == 1)
            await copied(s)
            copy, follower = s.broker.replication._copy, s.broker.replication._follower
            assert copy is not None
            assert follower is not None
            await s.state.tasks.end(config_sync._COPY)
            await follower.pause()
            hold.clear()
            follower.start()
            await caught_up(m, s)
            await until(lambda: s.broker.replication.follows)
            assert not copy._take_over()
            assert s.state.delayed.snapshot().offsets.get(1, 0) == 0
            await copy.copy()
            assert s.state.delayed.snapshot().offsets[1] == 1

    run(go())


# -- a part of the log is cut ----------------------------------------------------------------------------------------


@pytest.fixture
def uncopied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves never get to copy a table before the next master is needed."""
    monkeypatch.setattr(config_sync.ConfigCopy, "start", lambda self: None)


def test_what_was_delivered_in_a_part_of_the_log_that_was_cut_is_delivered_again(
    run: Run, tmp_path: Path, uncopied: None
) -> None:
    async def go() -> None:
        async with master(tmp_path / "a", store=LEVELS) as a:
            a.state.delayed.stop()
            a.store.put(Message("orders", b"first", delay_level=1))
            a.store.put(DELAYED)
            async with slave(tmp_path / "b", a, store=LEVELS) as b:
                await caught_up(a, b)
            a.state.delayed.start()
            await until(lambda: a.state.delayed.snapshot().offsets.get(1) == 2)
        await comes_back_without_its_tail(tmp_path)
        async with master(tmp_path / "a", store=LEVELS) as a:
            assert await orders(a, 2) == [b"first", b"later"]

    run(go())


def test_a_half_message_whose_end_was_cut_is_checked_again(run: Run, tmp_path: Path, uncopied: None) -> None:
    async def go() -> None:
        async with master(tmp_path / "a", store=LEVELS, **AT_ONCE) as a:
            client = await a.client()
            half = await send_half(client)
            async with slave(tmp_path / "b", a, store=LEVELS) as b:
                await caught_up(a, b)
            ok(await end(client, half, COMMIT))
            await make_round(a)
            assert a.state.offsets.query(SYSTEM_GROUP, HALF, 0) == 1
        await comes_back_without_its_tail(tmp_path)
        async with master(tmp_path / "a", store=LEVELS, **AT_ONCE) as a:
            assert await make_round(a) == 1

    run(go())


async def comes_back_without_its_tail(folder: Path) -> None:
    """`b` leads, but does not deliver or check anything; `a` comes back as its slave, and is cut; then both end."""
    async with master(folder / "b", store={"message_delay_level": "1h 1h"}, **AT_ONCE) as b:
        b.state.delayed.stop()
        b.store.put(Message("others", b"x" * 5000))
        said: list[str] = []
        async with slave(folder / "a", b, store=LEVELS) as a:
            a.broker.replication.on_cut(said.append)
            await until(lambda: said)
        async with slave(folder / "a", b, store=LEVELS) as a:
            await caught_up(b, a)


# -- handing over ----------------------------------------------------------------------------------------------------


def test_a_master_that_has_closed_writes_delivers_and_checks_nothing_until_it_opens_them(
    run: Run, tmp_path: Path
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=LEVELS, **AT_ONCE) as m:
            await send_half(await m.client())
            m.broker.write_guard.close("failover", "this broker hands over")
            assert m.store.append(DELAYED).stored
            at = m.store.watermarks.appended
            assert await make_round(m) == 0
            await until(lambda: bool(m.state.delayed.progress().get(1)))
            time_to_deliver = m.state.clock() + 100
            await until(lambda: m.state.clock() > time_to_deliver)
            assert m.store.watermarks.appended == at, "nothing was appended"
            assert m.state.offsets.query(SYSTEM_GROUP, HALF, 0) <= 0
            m.broker.write_guard.open("failover")
            assert await orders(m, 1) == [b"later"]
            assert await make_round(m) == 1

    run(go())

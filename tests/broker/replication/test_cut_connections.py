"""A proxy between master and slave: connections are cut in the middle of records, slow, or shut for a while."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from broker.conftest import Run
from support.brokers import ok
from support.clusters import Proxy, ScriptedSlave, caught_up, master, same_log, slave
from support.effort import chosen_seed
from support.loopback import until

from penstock.broker.replication import slave as slave_module
from penstock.store import Message


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "_FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(slave_module, "_MAX_RETRY_S", 0.1)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_slave_whose_connection_is_cut_again_and_again_gets_the_same_log(
    run: Run, tmp_path: Path, flush: str
) -> None:
    seed = chosen_seed()

    async def go() -> None:
        chance = random.Random(seed)
        changes = {"flush_disk_type": flush}
        async with master(tmp_path / "m", store=changes) as m:
            where = m.broker.replication.listens_at
            assert where is not None
            async with Proxy(where, seed) as proxy, slave(tmp_path / "s", m, through=proxy.port, store=changes) as s:
                for _ in range(15):
                    for _ in range(20):
                        m.store.put(Message("orders", chance.randbytes(chance.randrange(6000))))
                    seen = proxy.passed + chance.randrange(1, 30_000)
                    await until(lambda seen=seen: proxy.passed >= seen or _is_even(m, s))
                    proxy.cut()
                await caught_up(m, s)
                same_log(s.store, m.store)
                assert s.store.max_offset("orders", 0) == 300
                assert s.store.dispatcher.skipped_bytes == 0

    run(go())


def _is_even(m: object, s: object) -> bool:
    return m.store.log.queue.wrote_offset == s.store.log.queue.wrote_offset  # type: ignore[attr-defined]


def test_sends_go_on_when_the_only_slave_is_away_and_wait_again_when_it_is_back(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store={"broker_role": "SYNC_MASTER", "slave_timeout": 50_000}) as m:
            where = m.broker.replication.listens_at
            assert where is not None
            async with Proxy(where, 1) as proxy, slave(tmp_path / "s", m, through=proxy.port) as s:
                await until(lambda: m.store.watermarks.connected_slaves)
                client = await m.client()
                ok(await client.send("orders", b"one"))
                proxy.is_shut = True
                proxy.cut()
                await until(lambda: not m.store.watermarks.connected_slaves)
                assert (await client.send("orders", b"two")).code == 11
                proxy.is_shut = False
                await until(lambda: m.store.watermarks.connected_slaves)
                await caught_up(m, s)
                ok(await client.send("orders", b"three"))
                same_log(s.store, m.store)

    run(go())


def test_a_slow_connection_makes_sends_late_and_loses_nothing(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store={"broker_role": "SYNC_MASTER", "slave_timeout": 100}) as m:
            where = m.broker.replication.listens_at
            assert where is not None
            async with Proxy(where, 2) as proxy, slave(tmp_path / "s", m, through=proxy.port) as s:
                proxy.pause_s, proxy.largest = 0.02, 400
                await until(lambda: m.store.watermarks.connected_slaves)
                client = await m.client()
                replies = await asyncio.gather(*(client.send("orders", b"x" * 1000) for _ in range(30)))
                assert {reply.code for reply in replies} <= {0, 12}
                assert 12 in {reply.code for reply in replies}
                await caught_up(m, s)
                assert s.store.max_offset("orders", 0) == 30

    run(go())


def test_a_master_that_is_silent_is_left_and_found_again(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            where = m.broker.replication.listens_at
            assert where is not None
            async with (
                Proxy(where, 3) as proxy,
                slave(tmp_path / "s", m, through=proxy.port, store={"ha_housekeeping_interval": 600}) as s,
            ):
                m.store.put(Message("orders", b"one"))
                await caught_up(m, s)
                proxy.pause_s = 3600.0
                m.store.put(Message("orders", b"two"))
                await until(lambda: "the master was silent for 0.6 s" in caplog.text)
                proxy.pause_s = 0.0
                await caught_up(m, s)

    run(go())


def test_what_a_slave_said_by_an_old_connection_does_no_harm_when_it_comes_late(run: Run, tmp_path: Path) -> None:
    seed = chosen_seed()

    async def go() -> None:
        chance = random.Random(seed)
        safe = {"flush_disk_type": "SYNC_FLUSH"}
        async with master(tmp_path / "m", store={**safe, "broker_role": "SYNC_MASTER", "slave_timeout": 50_000}) as m:
            where = m.broker.replication.listens_at
            assert where is not None
            async with Proxy(where, seed) as proxy, slave(tmp_path / "s", m, through=proxy.port, store=safe) as s:
                await until(lambda: m.store.watermarks.connected_slaves)
                client = await m.client()
                for _ in range(4):
                    swap = asyncio.create_task(proxy.swap(0.1, 0.2))
                    while not swap.done():
                        reply = await client.send("orders", chance.randbytes(chance.randrange(3000)))
                        assert reply.code in (0, 11), "11: just then no slave was connected"
                        if reply.code == 0:
                            assert s.store.log.confirmed_offset >= m.store.watermarks.replicated
                    await swap
                assert proxy.late > 0, "something came late"
                await caught_up(m, s)
                same_log(s.store, m.store)
                assert s.store.dispatcher.skipped_bytes == 0

    run(go())


def test_a_slave_that_is_far_behind_is_sent_the_log_by_a_thread_and_cut_in_between(run: Run, tmp_path: Path) -> None:
    seed = chosen_seed()

    async def go() -> None:
        chance = random.Random(seed)
        changes = {"mapped_file_size_commit_log": 1 << 20}
        async with master(tmp_path / "m", store=changes) as m:
            for _ in range(600):
                m.store.put(Message("orders", chance.randbytes(chance.randrange(30_000))))
            assert m.store.log.max_offset > 6 << 20
            where = m.broker.replication.listens_at
            assert where is not None
            async with Proxy(where, seed) as proxy:
                proxy.largest = 100_000
                async with slave(tmp_path / "s", m, through=proxy.port, store=changes) as s:
                    for _ in range(4):
                        seen = proxy.passed + chance.randrange(1, 2 << 20)
                        await until(lambda seen=seen: proxy.passed >= seen or _is_even(m, s))
                        m.store.put(Message("orders", b"meanwhile"))
                        proxy.cut()
                    await caught_up(m, s)
                    same_log(s.store, m.store)
                    assert s.store.max_offset("orders", 0) == 604

    run(go())


def test_a_slave_that_is_far_behind_and_does_not_read_keeps_nobody_waiting(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        changes = {"mapped_file_size_commit_log": 1 << 20, "ha_housekeeping_interval": 60_000}
        async with master(tmp_path, store=changes) as m:
            for _ in range(300):
                m.store.put(Message("orders", bytes(100_000)))
            stuck = await ScriptedSlave.open(m)
            stuck.report(1 << 20)
            await until(lambda: m.store.watermarks.connected_slaves)
            client = await m.client()
            for _ in range(10):
                ok(await client.send("orders", b"served"))
            [known] = m.broker.replication.status.now().ha_connection_info
            assert known.diff > 1 << 20
        await stuck.close()

    run(go())

"""SYNC_MASTER: a put waits for a slave, and its answer says what became of that. It is stored whatever it says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker.conftest import Run
from support.brokers import RunningBroker, ok
from support.clusters import ScriptedSlave, caught_up, master, same_log, slave
from support.loopback import until

from penstock.broker.replication import master as master_module
from penstock.broker.send_acks import PendingAcks
from penstock.broker.send_and_pull_results import SendOutcome
from penstock.broker.settings import BrokerSettings, SettingsInForce
from penstock.protocol.codes import ResponseCode
from penstock.store import Message, MessageStore, Settings
from penstock.store.message import PutStatus
from penstock.store.replication.master_or_slave_role import Role
from penstock.store.settings import BrokerRole

SYNC: dict[str, Any] = {"broker_role": "SYNC_MASTER"}


async def follows(m: RunningBroker) -> None:
    await until(lambda: m.store.watermarks.connected_slaves > 0)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_send_is_answered_when_a_slave_has_it(run: Run, tmp_path: Path, flush: str) -> None:
    async def go() -> None:
        changes = {**SYNC, "flush_disk_type": flush}
        async with (
            master(tmp_path / "m", store=changes) as m,
            slave(tmp_path / "s", m, store={"flush_disk_type": flush}) as s,
        ):
            await follows(m)
            client = await m.client()
            for number in range(50):
                ok(await client.send("orders", b"%d" % number))
                assert s.store.log.confirmed_offset == m.store.log.max_offset, "answered, so it is there"
            batch = await client.send_batch("orders", [(b"a", ""), (b"b", "")])
            ok(batch)
            assert s.store.log.confirmed_offset == m.store.log.max_offset
            results = await asyncio.gather(*(client.send("orders", b"many") for _ in range(200)))
            assert {reply.code for reply in results} == {ResponseCode.SUCCESS}
            same_log(s.store, m.store)

    run(go())


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_without_a_slave_a_send_is_stored_and_says_so_at_once(run: Run, tmp_path: Path, flush: str) -> None:
    async def go() -> None:
        async with master(tmp_path, store={**SYNC, "flush_disk_type": flush}) as m:
            client = await m.client()
            reply = await client.send("orders", b"one")
            assert reply.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert reply.ext["queueOffset"] == "0"
            assert m.store.max_offset("orders", 0) == 1
            ok(await client.send("orders", b"two", properties={"WAIT": "false"}))

    run(go())


def test_a_slave_that_does_not_acknowledge_is_waited_for_so_long(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={**SYNC, "slave_timeout": 300}) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            first, second = await asyncio.gather(client.send("orders", b"one"), client.send("orders", b"two"))
            assert (first.code, second.code) == (ResponseCode.FLUSH_SLAVE_TIMEOUT,) * 2
            assert "no slave has acknowledged it after 0.3 seconds" in (first.remark or "")
            assert m.store.max_offset("orders", 0) == 2
            scripted.report(m.store.log.max_offset)
            await until(lambda: m.store.watermarks.replicated == m.store.log.max_offset)
            third = asyncio.create_task(client.send("orders", b"three"))
            while not third.done():
                offset, data = await scripted.any_frame()
                scripted.report(offset + len(data))
                await asyncio.sleep(0)
            ok(third.result())
            await scripted.close()

    run(go())


def test_a_slave_that_is_too_far_behind_is_not_waited_for(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={**SYNC, "ha_slave_fallbehind_max": 1000}) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            reply = await client.send("orders", b"x" * 2000)
            assert reply.code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert m.store.max_offset("orders", 0) == 1
            await scripted.close()

    run(go())


def test_puts_into_the_store_itself_wait_for_slaves_too(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            await follows(m)
            results = await asyncio.gather(
                *(asyncio.to_thread(m.store.put, Message("orders", b"%d" % number)) for number in range(20)),
                asyncio.to_thread(m.store.put_many, [Message("orders", b"a"), Message("orders", b"b")]),
                asyncio.wrap_future(m.store.put_async(Message("orders", b"later"))),
            )
            assert {result.status for result in results} == {PutStatus.PUT_OK}
            await caught_up(m, s)
            assert m.store.figures().put_total == 23

    run(go())


def test_a_sync_master_without_a_broker_has_no_slave(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path, Settings.dev(broker_role="SYNC_MASTER")) as store:
        result = store.put(Message("orders", b"one"))
        assert (result.status, result.stored) == (PutStatus.SLAVE_NOT_AVAILABLE, True)
        assert store.put(Message("orders", b"two", wait=False)).ok
        batch = store.put_many([Message("orders", b"three")])
        assert (batch.status, len(batch.results)) == (PutStatus.SLAVE_NOT_AVAILABLE, 1)
        assert store.put_async(Message("orders", b"four")).result(5).status is PutStatus.SLAVE_NOT_AVAILABLE
        assert store.get("orders", 0, 0).count == 4
        assert store.figures().put_total == 4


def test_an_acknowledgement_answers_in_the_same_turn_of_the_loop(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store=SYNC) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            waiting = asyncio.create_task(client.send("orders", b"one"))
            await until(lambda: len(m.broker.pending_acks) == 1)
            m.store.watermarks.acknowledge(m.store.log.max_offset)
            assert len(m.broker.pending_acks) == 0, "nobody had to be woken"
            ok(await waiting)
            await scripted.close()

    run(go())


def test_an_acknowledgement_that_another_thread_tells_answers_too(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store=SYNC) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            waiting = asyncio.create_task(client.send("orders", b"one"))
            await until(lambda: len(m.broker.pending_acks) == 1)
            await asyncio.to_thread(m.store.watermarks.acknowledge, m.store.log.max_offset)
            ok(await waiting)
            await scripted.close()

    run(go())


def test_what_nobody_waits_for_is_gathered_and_a_put_that_waits_takes_it_along(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "_GATHER_S", 3600.0)
    monkeypatch.setattr(master_module, "_POLL_S", 3600.0)

    async def go() -> None:
        async with master(tmp_path, store=SYNC) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            for number in range(3):
                ok(await client.send("orders", b"%d" % number, properties={"WAIT": "false"}))
                m.store.max_offset("orders", 0)  # dispatches, which says that there is something new
            waiting = asyncio.create_task(client.send("orders", b"waits"))
            offset, data = await scripted.frame()
            assert (offset, len(data)) == (0, m.store.log.max_offset), "all four in one frame"
            scripted.report(len(data))
            ok(await waiting)
            await scripted.close()

    run(go())


def test_a_put_that_waits_for_both_disks_is_sent_to_the_slave_as_soon_as_it_is_on_the_first(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_module, "_GATHER_S", 3600.0)
    monkeypatch.setattr(master_module, "_POLL_S", 3600.0)

    async def go() -> None:
        async with master(tmp_path, store={**SYNC, "flush_disk_type": "SYNC_FLUSH", "slave_timeout": 60_000}) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            waiting = asyncio.create_task(client.send("orders", b"one"))
            offset, data = await scripted.frame()
            scripted.report(offset + len(data))
            ok(await waiting)
            await scripted.close()

    run(go())


def test_what_nobody_waits_for_comes_soon(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_module, "_POLL_S", 3600.0)

    async def go() -> None:
        async with master(tmp_path) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            for number in range(3):
                ok(await client.send("orders", b"%d" % number))
                at = 0
                while at < m.store.log.max_offset:
                    offset, data = await scripted.frame()
                    at = offset + len(data)
            await scripted.close()

    run(go())


def test_a_slave_is_sent_a_message_before_consumers_are_looked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer waits for the slave, which can work while the queue is built for the consumers."""

    async def go() -> None:
        async with master(tmp_path, store=SYNC) as m:
            scripted = await ScriptedSlave.open(m)
            scripted.report(0)
            await follows(m)
            client = await m.client()
            order: list[str] = []
            for is_plain in (False, True):  # the first one makes the topic
                waiting = asyncio.create_task(client.send("orders", b"one"))
                await until(lambda: len(m.broker.pending_acks) == 1)
                m.store.watermarks.acknowledge(m.store.log.max_offset)
                ok(await waiting)
                if not is_plain:
                    held = client.hold("orders", 1)
                    await until(lambda: len(m.broker.held) == 1)
                    m.store.watermarks.on_slave_wait(lambda: order.append("slaves"))
                    monkeypatch.setattr(m.broker.held, "_catch_up", lambda: order.append("consumers"))
            assert order == ["slaves", "consumers"]
            held.cancel()
            await scripted.close()

    run(go())


def test_a_message_of_a_former_role_is_not_answered_by_the_rules_of_the_present_one(run: Run, tmp_path: Path) -> None:
    """The role changes between the append and the question whether the message has to wait."""

    async def go() -> None:
        async with master(tmp_path, store=SYNC) as m:
            acks = PendingAcks(m.store, SettingsInForce(BrokerSettings()))
            client: Any = object()
            result = m.store.append(Message("orders", b"one"))
            assert result.stored
            await asyncio.to_thread(m.store.change_role, Role(BrokerRole.SLAVE, m.store.role.epoch + 1))
            outcome = SendOutcome(ResponseCode.SUCCESS)
            assert acks.when_safe(client, result.end_offset, outcome) is outcome
            assert outcome.code == ResponseCode.FLUSH_SLAVE_TIMEOUT, outcome.remark

    run(go())

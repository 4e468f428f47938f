"""A master's side: where a slave begins, what it is sent, and when it is cut off."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from broker.conftest import Run
from support.brokers import ok
from support.clusters import FILE, ScriptedSlave, log_bytes, master
from support.loopback import SOON_S, until

from penstock.broker.replication.log_bytes_for_slaves import CatchUpSender
from penstock.store import Message, MessageStore, Settings


def test_a_slave_that_has_nothing_begins_with_the_last_file(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        changes = {"mapped_file_size_commit_log": 4096, "ha_transfer_batch_size": 1024}
        async with master(tmp_path, store=changes) as running:
            for _ in range(10):
                running.store.put(Message("orders", b"x" * 900))
            end = running.store.log.max_offset
            start = end - end % 4096
            slave = await ScriptedSlave.open(running)
            slave.report(0)
            got, at = b"", start
            while at < end:
                offset, data = await slave.frame()
                assert offset == at
                assert len(data) <= 1024
                got, at = got + data, at + len(data)
            assert got == log_bytes(running.store)[start:]
            assert await slave.any_frame() == (end, b""), "a heartbeat follows"
            await slave.close()

    run(go())


def test_of_reports_that_come_together_the_first_says_where_to_begin(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={"mapped_file_size_commit_log": 4096}) as running:
            for _ in range(10):
                running.store.put(Message("orders", b"x" * 900))
            slave = await ScriptedSlave.open(running)
            slave.report(-1, 0)
            assert (await slave.frame())[0] == 0, "all that there is"
            await slave.close()

    run(go())


def test_frames_go_on_from_where_the_slave_is_and_never_cross_a_file(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={"mapped_file_size_commit_log": 4096}) as running:
            results = [running.store.put(Message("orders", b"x" * 900)) for _ in range(10)]
            begin, end = results[1].physical_offset, running.store.log.max_offset
            slave = await ScriptedSlave.open(running)
            slave.report(begin)
            at = begin
            while at < end:
                offset, data = await slave.frame()
                assert offset == at
                assert offset // 4096 == (offset + len(data) - 1) // 4096
                at += len(data)
            await slave.close()

    run(go())


def test_what_is_put_later_is_sent_and_reports_are_acknowledgements(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path) as running:
            running.store.put(Message("orders", b"one"))
            slave = await ScriptedSlave.open(running)
            slave.report(0)
            await slave.frame()
            client = await running.client()
            ok(await client.send("orders", b"two"))
            offset, data = await slave.frame()
            assert b"two" in data
            slave.report(offset + len(data))
            await slave.any_frame()
            [known] = running.broker.replication.status.now().ha_connection_info
            assert known.slave_ack_offset == offset + len(data) == running.store.watermarks.replicated
            assert (known.diff, known.behind_seconds, known.in_sync) == (0, 0.0, True)
            await slave.close()

    run(go())


@pytest.mark.parametrize(("report", "why"), [(10**9, "the logs differ"), (1, "")])
def test_a_slave_that_is_elsewhere_than_the_log_is_cut_off(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, report: int, why: str
) -> None:
    async def go() -> None:
        async with master(tmp_path) as running:
            running.store.put(Message("orders", b"one"))
            slave = await ScriptedSlave.open(running)
            slave.report(report)
            if why:
                assert await slave.until_closed() == b""
                assert why in caplog.text
                assert running.broker.replication.status.now().ha_connection_info == []
            else:
                assert (await slave.frame())[0] == report, "the master cannot know where records begin"
            await slave.close()

    run(go())


def test_a_slave_that_claims_more_than_it_was_sent_is_cut_off(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path) as running:
            running.store.put(Message("orders", b"one"))
            slave = await ScriptedSlave.open(running)
            slave.report(0)
            await slave.frame()
            slave.report(FILE)
            assert await slave.until_closed() == b""
            assert running.store.watermarks.replicated == 0

    run(go())


def test_a_silent_slave_is_cut_off(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with master(tmp_path, store={"ha_housekeeping_interval": 300}) as running:
            slave = await ScriptedSlave.open(running)
            slave.report(0)
            await slave.until_closed()
            assert "it was silent for 300 ms" in caplog.text
            assert running.store.watermarks.connected_slaves == 0

    run(go())


def test_under_sync_flush_only_what_is_on_disk_is_sent(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}) as running:
            slave = await ScriptedSlave.open(running)
            slave.report(0)
            client = await running.client()
            ok(await client.send("orders", b"safe"))
            offset, data = await slave.frame()
            assert offset + len(data) <= running.store.watermarks.flushed
            await slave.close()

    run(go())


def test_strangers_may_not_follow(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        async with master(tmp_path) as running:
            listener = running.broker.replication._listener
            assert listener is not None
            assert listener._refusal(("127.0.0.1", 1)) == ""
            assert "haAllowFrom" in listener._refusal(("10.1.2.3", 1))
        async with master(tmp_path, ha_allow_from="10.1.0.0/16") as running:
            listener = running.broker.replication._listener
            assert listener is not None
            assert listener._refusal(("10.1.2.3", 1)) == ""
            assert "haAllowFrom" in listener._refusal(("10.2.2.3", 1))

    run(go())


def test_an_ordinary_broker_waits_for_no_slaves(run: Run, tmp_path: Path) -> None:
    from support.brokers import BrokerHome

    async def go() -> None:
        async with BrokerHome(tmp_path).running() as running:
            assert running.broker.replication.listens_at is None

    run(go())


def test_the_thread_of_a_catch_up_closes_its_socket_without_the_loop(tmp_path: Path) -> None:
    with MessageStore.open(tmp_path / "store", Settings.dev(mapped_file_size_commit_log=4 << 20)) as store:
        for _ in range(40):
            store.put(Message("orders", bytes(50_000)))
        here, there = socket.socketpair()
        with here, there, ThreadPoolExecutor(1) as threads:
            here.setblocking(False)
            sender = CatchUpSender.of(store.log.queue, 32 << 10, here.fileno())
            running = threads.submit(sender.send, 0, store.log.max_offset)
            there.recv(1)
            sender.end()
            assert running.exception(SOON_S) is None or isinstance(running.exception(), OSError)
            here.close()
            there.settimeout(SOON_S)
            while there.recv(1 << 20):
                pass
            assert sender.send(7, 8) == 7, "a thread that comes later sends nothing"


def test_a_slave_that_does_not_read_is_cut_off_when_the_master_stops(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path, store={"mapped_file_size_commit_log": 16 << 20}) as running:
            listener, end = running.broker.replication._listener, running.store.log
            assert listener is not None
            running.store.put(Message("orders", b"one"))
            slave = await ScriptedSlave.open(running)
            slave.stop_reading()
            slave.report(-1)
            await until(lambda: any(each.follows for each in listener.slaves))
            [connection] = listener.slaves
            while not connection._paused:
                running.store.put(Message("orders", bytes(500_000)))
                await until(lambda: connection._paused or connection.sent == end.max_offset)
        assert not listener.slaves
        await slave.close()

    run(go())

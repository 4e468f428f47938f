"""A slave's side: the same log, its own queues, no writes; and logs that differ are never mixed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from broker.conftest import Run
from support.brokers import bodies, ok
from support.clusters import caught_up, log_bytes, master, same_log, slave
from support.loopback import until

from penstock.broker.broker import Broker
from penstock.broker.delayed_delivery import DelayedMessages
from penstock.broker.replication import config_sync
from penstock.broker.replication.config_sync import Master
from penstock.broker.replication.handshake import Hello, Welcome
from penstock.broker.replication.slave import LogReceiver
from penstock.broker.settings import BrokerSettings
from penstock.errors import BadSettings, Unreachable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.store import Message, MessageStore, Settings


def test_a_slave_has_the_same_bytes_queues_and_keys(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        random.seed(7)
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            for number in range(300):
                body = random.randbytes(random.choice([10, 500, 9000]))
                m.store.put(Message("orders", body, keys=f"k{number}", queue_id=number % 3))
            await caught_up(m, s)
            assert len(m.store.log.queue.files) > 3, "fillers were copied as well"
            same_log(s.store, m.store)
            for queue_id in range(3):
                assert s.store.max_offset("orders", queue_id) == 100
            assert [each.body for each in s.store.get("orders", 0, 98).messages] == [
                each.body for each in m.store.get("orders", 0, 98).messages
            ]
            assert len(s.store.query("orders", "k17").records) == 1

    run(go())


def test_a_record_larger_than_many_frames_arrives_whole(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with (
            master(tmp_path / "m", store={"ha_transfer_batch_size": 7}) as m,
            slave(tmp_path / "s", m) as s,
        ):
            m.store.put(Message("orders", b"y" * 5000))
            m.store.put(Message("orders", b"z"))
            await caught_up(m, s)
            same_log(s.store, m.store)

    run(go())


def test_a_slave_delivers_no_delayed_messages(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = {"message_delay_level": "0s 1h"}
    delivering: list[MessageStore] = []
    deliver = DelayedMessages._deliver

    def watched(self: DelayedMessages, level: int) -> float:
        delivering.append(self._store)
        return deliver(self, level)

    monkeypatch.setattr(DelayedMessages, "_deliver", watched)

    async def go() -> None:
        async with master(tmp_path / "m", store=at_once) as m, slave(tmp_path / "s", m, store=at_once) as s:
            m.store.put(Message("orders", b"later", delay_level=1))
            await until(lambda: s.store.max_offset("orders", 0) == 1)
            await caught_up(m, s)
            same_log(s.store, m.store)
            await asyncio.sleep(0.05)  # a delivery would have been called in the turn after the arrival
            assert m.store in delivering
            assert s.store not in delivering

    run(go())


def test_a_slave_goes_on_after_its_own_restart_and_after_its_masters(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            m.store.put(Message("orders", b"one"))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
            m.store.put(Message("orders", b"two"))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                assert s.store.max_offset("orders", 0) == 2
        async with master(tmp_path / "m") as m:
            m.store.put(Message("orders", b"three"))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                assert [each.body for each in s.store.get("orders", 0, 0).messages] == [b"one", b"two", b"three"]
                same_log(s.store, m.store)

    run(go())


def test_a_slave_refuses_writes_and_serves_pulls(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m, slave_read_enable=True) as s:
            producer, consumer = await m.client(), await s.client()
            ok(await producer.send("orders", b"one"))
            await caught_up(m, s)
            await until(lambda: s.state.topics.find("orders") is not None)
            refused = await consumer.send("orders", b"two")
            assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "slave" in (refused.remark or "")
            assert bodies(await consumer.pull("orders")) == [b"one"]
            assert not s.store.put(Message("orders", b"two")).stored
            assert (
                await consumer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=0)
            ).code == 14

    run(go())


def test_a_slave_serves_consumers_and_suggests_the_master_for_the_next_time(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            producer = await m.client()
            ok(await producer.send("orders", b"one"))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                await until(lambda: s.state.topics.find("orders") is not None and s.broker.replication.follows)
                consumer = await s.client()
                served = await consumer.pull("orders")
                assert bodies(served) == [b"one"]
                assert served.ext["suggestWhichBrokerId"] == "0"
                await m.broker.stop(5)
                await until(lambda: not s.broker.replication.follows)
                assert bodies(await consumer.pull("orders")) == [b"one"]

    run(go())


def test_a_slave_that_is_ahead_says_so_and_adds_nothing(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        with MessageStore.open(tmp_path / "s", Settings.dev(mapped_file_size_commit_log=64 << 10)) as other:
            for _ in range(5):
                other.put(Message("orders", b"lost by the master"))
            before = log_bytes(other)
        async with master(tmp_path / "m") as m:
            m.store.put(Message("orders", b"one"))
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: "the master has lost messages" in caplog.text)
                status = s.broker.replication.status.now().ha_client_runtime_info
                assert status is not None
                assert "its master only" in status.problem
                assert log_bytes(s.store) == before

    run(go())


def test_logs_that_differ_are_never_mixed(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        with MessageStore.open(tmp_path / "s", Settings.dev(mapped_file_size_commit_log=64 << 10)) as other:
            other.put(Message("orders", b"mine"))
            before = log_bytes(other)
        async with master(tmp_path / "m") as m:
            for _ in range(3):
                m.store.put(Message("orders", b"your"))
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: "the logs differ at 0" in caplog.text)
                assert "message 0 of orders queue 0" in caplog.text
                assert log_bytes(s.store) == before

    run(go())


def test_a_slave_without_epochs_too_far_behind_says_what_is_gone(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            m.store.put(Message("orders", b"one"))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
            for _ in range(20):
                m.store.put(Message("orders", b"x" * 9000))
            m.store.catch_up()
            m.store.log.queue.drop_first(forced=True)
            (tmp_path / "s" / "epochFileCheckpoint").unlink()
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: "is lost" in caplog.text)
                assert s.store.max_offset("orders", 0) == 1

    run(go())


def test_a_new_slave_of_an_old_java_master_gets_its_last_file_and_keeps_the_queues_offsets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def as_with_java(*_: object) -> Master:
        return Master(is_penstock=False, begins_at=0, ends_at=None, shakes_hands=False)

    monkeypatch.setattr("penstock.broker.replication.slave.ask_master", as_with_java)

    async def go() -> None:
        async with master(tmp_path / "m") as m:
            for number in range(20):
                m.store.put(Message("orders", b"%05d" % number + b"x" * 9000))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                first = s.store.log.queue.min_offset
                assert first == m.store.log.queue.files[-1].from_offset > 0
                lowest = s.store.min_offset("orders", 0)
                assert 0 < lowest < 20
                assert s.store.max_offset("orders", 0) == 20
                assert s.store.get("orders", 0, lowest).messages[0].body[:5] == b"%05d" % lowest
        assert (
            f"copying from offset {first}, the master's last file, although the master's log begins at 0" in caplog.text
        )

    run(go())


def test_tables_are_copied_and_kept(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            client = await m.client()
            ok(await client.send("orders", b"one"))
            m.state.offsets.commit("CID_copy", "orders", 0, 1)
            m.state.groups.find_or_create("CID_copy")
            m.state.delayed.replace(type(m.state.delayed.snapshot())(offsets={3: 4}))
            async with slave(tmp_path / "s", m) as s:
                copy = s.broker.replication._copy
                assert copy is not None
                await until(lambda: copy.copies > 0)
                assert s.state.topics.all() == m.state.topics.all()
                assert s.state.topics.data_version == m.state.topics.data_version
                assert s.state.groups.find("CID_copy") is not None
                assert s.state.offsets.query("CID_copy", "orders", 0) == 1
                await until(lambda: s.state.delayed.snapshot().offsets.get(3) == 4)
        for name, text in (
            ("topics", "orders"),
            ("subscriptionGroup", "CID_copy"),
            ("consumerOffset", "orders@CID_copy"),
        ):
            assert text in (tmp_path / "s" / "config" / f"{name}.json").read_text()

    run(go())


def test_offsets_of_a_pull_are_not_the_slaves_to_keep(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m, slave_read_enable=True) as s:
            ok(await (await m.client()).send("orders", b"one"))
            await caught_up(m, s)
            await until(lambda: s.state.topics.find("orders") is not None and s.broker.replication.follows)
            consumer = await s.client()
            await consumer.pull("orders", sysFlag=1 | 4, commitOffset=1)
            assert s.state.offsets.query("CID_test", "orders", 0) == -1

    run(go())


@pytest.mark.parametrize(("corrects", "code", "next_offset"), [(False, 20, "7"), (True, 21, "1")])
def test_a_slave_that_has_less_than_a_consumer_has_seen_does_not_correct_it(
    run: Run, tmp_path: Path, corrects: bool, code: int, next_offset: str
) -> None:
    async def go() -> None:
        changes = {"offset_check_in_slave": corrects}
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m, store=changes, slave_read_enable=True) as s:
            ok(await (await m.client()).send("orders", b"one"))
            await caught_up(m, s)
            await until(lambda: s.state.topics.find("orders") is not None)
            reply = await (await s.client()).pull("orders", 7)
            assert (reply.code, reply.ext["nextBeginOffset"]) == (code, next_offset)

    run(go())


def test_consumers_that_are_far_behind_are_sent_to_a_slave_and_back(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        changes = {"access_message_in_memory_max_ratio": 0}
        async with master(tmp_path / "m", store=changes, slave_read_enable=True) as m:
            client = await m.client()
            for number in range(3):
                ok(await client.send("orders", b"%d" % number))
            far = await client.pull("orders", maxMsgNums=1)
            assert far.ext["suggestWhichBrokerId"] == "1"
        async with master(tmp_path / "m", slave_read_enable=True) as m:
            near = await (await m.client()).pull("orders")
            assert near.ext["suggestWhichBrokerId"] == "0"

    run(go())


@pytest.mark.parametrize(
    ("store", "broker", "why"),
    [
        ({"broker_role": "SLAVE"}, {}, "needs a brokerId above 0"),
        ({}, {"broker_id": 1}, "set brokerRole=SLAVE"),
        ({"broker_role": "SLAVE", "ha_master_address": "127.0.0.1:1"}, {"broker_id": 1}, "needs masterAddr"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    run: Run, tmp_path: Path, store: dict[str, str], broker: dict[str, int], why: str
) -> None:
    async def go() -> None:
        with MessageStore.open(tmp_path, Settings.dev(**store)) as opened, pytest.raises(BadSettings, match=why):
            Broker(opened, BrokerSettings(**broker))
        await asyncio.sleep(0)

    run(go())


def test_a_topic_that_is_deleted_at_the_master_and_made_again_is_the_new_one_at_the_slave(
    run: Run, tmp_path: Path
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            copy = s.broker.replication._copy
            assert copy is not None
            for topic, count in (("orders", 7), ("others", 3)):
                for number in range(count):
                    m.store.put(Message(topic, b"old %d" % number))
            await caught_up(m, s)
            assert s.store.max_offset("orders", 0) == 7
            m.store.delete_topic("orders")
            for number in range(2):
                m.store.put(Message("orders", b"new %d" % number))
            await caught_up(m, s)
            assert [each.body for each in s.store.get("orders", 0, 0).messages] == [b"new 0", b"new 1"]
            m.store.delete_topic("others")
            await copy.copy()
            assert s.store.deleted_topics() == m.store.deleted_topics()
            assert s.store.max_offset("others", 0) == 0
            assert [each.body for each in s.store.get("orders", 0, 0).messages] == [b"new 0", b"new 1"]
        for role in ("SLAVE", "ASYNC_MASTER"):  # as it was, and promoted
            settings = Settings.dev(broker_role=role, mapped_file_size_commit_log=64 << 10)
            with MessageStore.open(tmp_path / "s", settings) as store:
                assert store.max_offset("others", 0) == 0
                assert [each.body for each in store.get("orders", 0, 0).messages] == [b"new 0", b"new 1"]

    run(go())


@pytest.mark.parametrize("loses", ["nothing", "the new queue", "its place"])
def test_a_queue_that_begins_anew_is_right_after_a_crash_too(run: Run, tmp_path: Path, loses: str) -> None:
    """RocketMQ's masters tell nobody what they deleted: the numbers of the messages do."""

    async def go() -> None:
        async with master(tmp_path / "m") as m:
            for number in range(7):
                m.store.put(Message("orders", b"old %d" % number))
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                s.store.catch_up()
                kept = tmp_path / "kept"
                shutil.copytree(tmp_path / "s" / "consumequeue", kept)
                m.store.delete_topic("orders")
                m.store.put(Message("orders", b"new"))
                await caught_up(m, s)
                s.store.catch_up()
                shutil.copytree(tmp_path / "s", tmp_path / "crashed")
        (tmp_path / "crashed" / "abort").write_bytes(b"")
        if loses == "the new queue":
            shutil.rmtree(tmp_path / "crashed" / "consumequeue")
        elif loses == "its place":  # the removal did not reach the disk
            shutil.rmtree(tmp_path / "crashed" / "consumequeue")
            shutil.copytree(kept, tmp_path / "crashed" / "consumequeue")
        with MessageStore.open(tmp_path / "crashed", Settings.dev(mapped_file_size_commit_log=64 << 10)) as promoted:
            assert [each.body for each in promoted.get("orders", 0, 0).messages] == [b"new"]
            assert promoted.put(Message("orders", b"next")).queue_offset == 1

    run(go())


def test_a_slave_that_has_nothing_says_so_until_something_comes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was suspended reads all its reports at once: a 0 among them would get it the last file only."""
    reports: list[int] = []

    async def as_of_before(*_: object) -> Master:
        return Master(is_penstock=True, begins_at=0, ends_at=0, shakes_hands=False)

    monkeypatch.setattr("penstock.broker.replication.slave.ask_master", as_of_before)

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                reports.append(int.from_bytes(await reader.readexactly(8), "big", signed=True))
        writer.close()

    async def go() -> None:
        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, master(tmp_path / "m") as m, slave(tmp_path / "s", m, through=port):
            await until(lambda: len(reports) >= 4)
        assert set(reports) == {-1}

    run(go())


async def cancel_twice(task: asyncio.Task[Any]) -> None:
    """Cancels a task, and cancels its cleaning up, too: nothing waits for what it began."""
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_the_thread_that_follows_closes_its_socket_even_if_nobody_waits_for_it(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            follower = s.broker.replication._follower
            assert follower is not None
            await until(lambda: follower.follows)
            receiver = follower._receiver
            assert receiver is not None
            await cancel_twice(s.state.tasks._tasks["following the master"])
            await until(lambda: receiver._socket.fileno() == -1)
            receiver.report_soon()
            receiver.end("again")

    run(go())


def test_a_watermark_that_moves_wakes_the_thread_that_follows_only_if_it_has_to_report(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            m.store.put(Message("orders", b"one"))
            await caught_up(m, s)
            follower = s.broker.replication._follower
            assert follower is not None
            receiver = follower._receiver
            assert receiver is not None
            await until(lambda: receiver._reported == m.store.log.max_offset)
            woken: list[int] = []
            monkeypatch.setattr(receiver, "_wake", lambda: woken.append(receiver._reported))
            s.store.watermarks.advance()
            assert not woken
            monkeypatch.setattr(receiver, "_reported", 0)
            s.store.watermarks.advance()
            assert woken == [0]
            monkeypatch.undo()

    run(go())


def test_a_handshake_that_nobody_waits_for_any_more_leaves_no_socket(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shaking: list[LogReceiver] = []
    over = threading.Event()

    def shake_hands(receiver: LogReceiver, hello: Hello) -> Welcome:
        shaking.append(receiver)
        assert over.wait(60)
        raise Unreachable("the master did not answer the handshake")

    monkeypatch.setattr(LogReceiver, "shake_hands", shake_hands)

    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            await until(lambda: bool(shaking))
            await cancel_twice(s.state.tasks._tasks["following the master"])
            over.set()
            await until(lambda: shaking[0]._socket.fileno() == -1)

    run(go())


@pytest.mark.parametrize("end", [1 << 50, 2**63 - 1], ids=["far", "last"])
def test_a_master_that_deletes_what_it_does_not_have_takes_nothing_from_its_slave(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    monkeypatch.setattr(config_sync, "_EVERY_S", 0.01)
    monkeypatch.setattr(config_sync, "_MIN_PAUSE_S", 0.01)

    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            copy = s.broker.replication._copy
            assert copy is not None
            m.store.put(Message("orders", b"before"))
            await caught_up(m, s)
            m.store.engine.deleted_topics.ends = {"orders": end}
            before = copy.copies
            await until(lambda: copy.copies > before + 1)
            m.store.put(Message("orders", b"after"))
            await caught_up(m, s)
            assert [each.body for each in s.store.get("orders", 0, 0).messages] == [b"before", b"after"]

    run(go())


def test_a_deletion_that_the_slave_hears_of_before_it_has_the_log_is_repeated_later(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_sync, "_EVERY_S", 0.01)
    monkeypatch.setattr(config_sync, "_MIN_PAUSE_S", 0.01)

    async def go() -> None:
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            copy = s.broker.replication._copy
            assert copy is not None
            m.store.put(Message("orders", b"old"))
            await caught_up(m, s)
            m.store.engine.deleted_topics.ends = {"orders": m.store.log.max_offset + 1}
            before = copy.copies
            await until(lambda: copy.copies > before + 1)
            assert s.store.max_offset("orders", 0) == 1, "it waits for the log"
            m.store.put(Message("others", b"the offset is reached"))
            await until(lambda: bool(s.store.deleted_topics()))
            assert s.store.deleted_topics() == m.store.deleted_topics()
            assert s.store.max_offset("orders", 0) == 0

    run(go())

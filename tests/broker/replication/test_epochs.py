"""Replication with epochs: the handshake, a set of replicas that all must have a message, and a tail that is cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker
from support.clusters import ScriptedSlave, caught_up, log_bytes, master, same_log, slave
from support.loopback import SOON_S, until

from penstock.broker.replication import slave_connection
from penstock.broker.replication.config_sync import MasterLink
from penstock.broker.replication.handshake import EPOCH_FRAME, EPOCH_REPORT, LENGTH, Hello, Welcome, decode, encode
from penstock.broker.replication.slave import MasterFollower
from penstock.protocol.bodies.admin import HaConnection, HaElections, HaRuntimeInfo
from penstock.protocol.codes import ResponseCode
from penstock.store import BrokerRole, Message, MessageStore, PutStatus
from penstock.store.damage_and_quarantine import DamagedRange
from penstock.store.files.file_io import Files
from penstock.store.replication.epochs import EpochEntry, EpochFile
from penstock.store.replication.log_gaps import lacks_messages

Run = Callable[[Coroutine[Any, Any, None]], None]
SYNC = {"broker_role": "SYNC_MASTER", "slave_timeout": 60_000}


def put(broker: RunningBroker, *bodies: bytes) -> None:
    for body in bodies:
        assert broker.store.append(Message("orders", body)).stored


def bodies(broker: RunningBroker) -> list[bytes]:
    return [record.body for record in broker.store.get("orders", 0, 0).messages]


def problem_of(broker: RunningBroker) -> str:
    status = broker.broker.replication.status.now().ha_client_runtime_info
    return "" if status is None else status.problem


def sorted_by_id(status: HaRuntimeInfo) -> list[HaConnection]:
    return sorted(status.ha_connection_info, key=lambda each: each.broker_id)


class EpochSlave:
    """A slave that shakes hands, and says what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.confirm = -1

    @classmethod
    async def open(cls, of: RunningBroker) -> EpochSlave:
        where = of.broker.replication.listens_at
        assert where is not None
        return cls(*await asyncio.open_connection(*where))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def welcome(self, of: RunningBroker, **changes: Any) -> Welcome:
        said: dict[str, Any] = {
            "cluster": of.state.settings.now.broker_cluster_name,
            "broker": of.state.settings.now.broker_name,
            "replica": "f" * 32,
            "id": 7,
            "epoch": 0,
            "entries": [],
            "begin": 0,
            "end": 0,
            **changes,
        }
        self.send(struct.pack(">q", -2) + encode(Hello(**said)))
        async with asyncio.timeout(SOON_S):
            (size,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
            return decode(await self.reader.readexactly(size), Welcome)

    def report(self, epoch: int, offset: int) -> None:
        self.send(EPOCH_REPORT.pack(epoch, offset))

    async def frame(self) -> tuple[int, bytes, int]:
        async with asyncio.timeout(SOON_S):
            at, size, epoch, self.confirm = EPOCH_FRAME.unpack(await self.reader.readexactly(EPOCH_FRAME.size))
            return at, await self.reader.readexactly(size), epoch

    async def until_confirmed(self, offset: int) -> None:
        while self.confirm < offset:
            await self.frame()

    async def until_closed(self) -> None:
        async with asyncio.timeout(SOON_S):
            while await self.reader.read(1 << 16):
                pass
        await self.close()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


# -- following -------------------------------------------------------------------------------------------------------


def test_a_slave_takes_the_masters_epochs_over_and_has_the_same_log(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            put(m, b"before any epoch")
            assert m.store.epochs.entries == (), "a master without slaves has no epochs"
            start = m.store.watermarks.appended
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                put(m, b"in epoch 1")
                await caught_up(m, s)
                same_log(s.store, m.store)
                assert m.store.epochs.entries == s.store.epochs.entries == (EpochEntry(1, start),)
                assert (m.store.role.epoch, s.store.role.epoch) == (1, 1)
        async with master(tmp_path / "m") as m:
            put(m, b"in epoch 2")
            assert [each.epoch for each in m.store.epochs.entries] == [1, 2], "each start as a master is an epoch"
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                same_log(s.store, m.store)
                assert s.store.epochs.entries == m.store.epochs.entries

    run(go())


def test_a_slave_that_does_not_shake_hands_still_follows(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m:
            put(m, b"one")
            old = await ScriptedSlave.open(m)
            old.report(-1)
            assert (await old.frame())[0] == 0
            client = await m.client()
            sending = asyncio.create_task(client.send("orders", b"two"))
            while m.store.watermarks.appended > m.store.watermarks.replicated:
                offset, data = await old.frame()
                old.report(offset + len(data))
                await asyncio.sleep(0.01)
            assert (await sending).code == ResponseCode.SUCCESS
            assert m.store.epochs.entries == ()
            await old.close()

    run(go())


# -- the set ---------------------------------------------------------------------------------------------------------


def test_in_an_elected_set_the_status_shows_who_is_in_the_sync_set(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        elections = HaElections(sync=[3])
        async with master(tmp_path / "m", options={"elections": lambda: elections}) as m, slave(tmp_path / "s", m):
            await until(lambda: m.store.watermarks.reports)
            status = m.broker.replication.status
            assert [(each.broker_id, each.in_sync) for each in status.now().ha_connection_info] == [(1, False)]
            elections.sync = [1, 3]
            assert [(each.broker_id, each.in_sync) for each in status.now().ha_connection_info] == [(1, True)]
            assert status.now().in_sync_slave_nums == 1

    run(go())


def test_a_send_is_answered_and_seen_when_the_whole_set_has_it(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            await until(lambda: m.store.watermarks.reports)
            other = await EpochSlave.open(m)
            answer = await other.welcome(m)
            other.report(answer.epoch, -1)
            await until(lambda: set(m.store.watermarks.reports) == {1, 7})
            m.store.require_replicas(frozenset({1}))
            status = m.broker.replication.status.now()
            assert [(each.broker_id, each.epoch, each.in_sync) for each in sorted_by_id(status)] == [
                (1, 1, True),
                (7, 1, False),
            ]
            assert (status.epoch, status.epochs, status.in_sync_slave_nums) == (1, [[1, 0]], 1)
            m.store.require_replicas(frozenset({1, 7}))
            client = await m.client()
            sending = asyncio.create_task(client.send("orders", b"one"))
            await until(lambda: m.store.watermarks.reports[1] == m.store.watermarks.appended > 0)
            await asyncio.sleep(0.05)
            assert not sending.done(), "one of two has it"
            assert bodies(m) == bodies(s) == []
            assert m.store.max_offset("orders", 0) == 0, "neither is it in the queue"
            other.report(answer.epoch, m.store.watermarks.appended)
            assert (await sending).code == ResponseCode.SUCCESS
            assert bodies(m) == [b"one"]
            await until(lambda: bodies(s) == [b"one"])
            await other.until_confirmed(m.store.watermarks.appended)
            await other.close()

    run(go())


def test_reports_of_another_epoch_and_slaves_outside_the_set_count_for_nothing(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m:
            m.store.require_replicas(frozenset({7}))
            old, other = await ScriptedSlave.open(m), await EpochSlave.open(m)
            old.report(-1)
            answer = await other.welcome(m)
            other.report(answer.epoch, -1)
            await until(lambda: 7 in m.store.watermarks.reports)
            sending = asyncio.create_task((await m.client()).send("orders", b"one"))
            _, data, _ = await other.frame()
            other.report(answer.epoch + 1, m.store.watermarks.appended)
            await other.until_closed()
            await asyncio.sleep(0.05)
            assert not sending.done()
            again = await EpochSlave.open(m)
            await again.welcome(m, end=len(data), epoch=1, entries=[(1, 0)])
            again.report(answer.epoch, len(data))
            assert (await sending).code == ResponseCode.SUCCESS
            await again.close()
            await old.close()

    run(go())


def test_a_slave_without_epochs_gets_only_what_the_whole_set_has(run: Run, tmp_path: Path) -> None:
    """It shows consumers all that it has, and could not find out that a part of it was cut elsewhere."""

    async def go() -> None:
        async with master(tmp_path / "m", store={**SYNC, "ha_send_heartbeat_interval": 20}) as m:
            m.store.require_replicas(frozenset({7}))
            old, replica = await ScriptedSlave.open(m), await EpochSlave.open(m)
            old.report(-1)
            answer = await replica.welcome(m)
            replica.report(answer.epoch, -1)
            sending = asyncio.create_task((await m.client()).send("orders", b"one"))
            offset, data, _ = await replica.frame()
            for _ in range(3):
                assert await old.any_frame() == (0, b""), "heartbeats, but no bytes"
            replica.report(answer.epoch, offset + len(data))
            assert await old.frame() == (0, data)
            assert (await sending).code == ResponseCode.SUCCESS
            await replica.close()
            await old.close()

    run(go())


def test_a_master_with_too_few_replicas_in_sync_refuses_messages(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store={**SYNC, "min_in_sync_replicas": 2}) as m:
            client = await m.client()
            put(m, b"no set is in force")
            m.store.require_replicas(frozenset())
            end = m.store.watermarks.appended
            reply = await client.send("orders", b"refused")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "minInSyncReplicas asks for 2" in (reply.remark or "")
            assert m.store.append(Message("orders", b"x")).status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
            assert m.store.watermarks.appended == end
            m.store.require_replicas(frozenset({7}))
            put(m, b"taken")

    run(go())


def test_a_learner_follows_and_never_counts(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m:
            learner = await EpochSlave.open(m)
            answer = await learner.welcome(m, learner=True)
            learner.report(answer.epoch, -1)
            put(m, b"one")
            at, data, epoch = await learner.frame()
            while not data:
                at, data, epoch = await learner.frame()
            assert (at, epoch) == (0, 1)
            learner.report(1, len(data))
            reply = await (await m.client()).send("orders", b"two")
            assert reply.code == ResponseCode.SLAVE_NOT_AVAILABLE
            await learner.close()

    run(go())


def test_a_slave_that_only_says_the_id_of_a_replica_counts_for_nothing(run: Run, tmp_path: Path) -> None:
    """A slave configured by hand may have any brokerId, also that of a replica which is down."""

    async def go() -> None:
        known: dict[str, int] = {}
        async with master(tmp_path / "m", store=SYNC) as m:
            m.broker.replication.count_only(lambda name, replica_id: known.get(name) == replica_id)
            m.store.require_replicas(frozenset({7}))
            stranger = await EpochSlave.open(m)
            answer = await stranger.welcome(m, replica="stranger")
            stranger.report(answer.epoch, -1)
            sending = asyncio.create_task((await m.client()).send("orders", b"one"))
            _, data, _ = await stranger.frame()
            while not data:
                _, data, _ = await stranger.frame()
            stranger.report(answer.epoch, len(data))
            await asyncio.sleep(0.1)
            assert not sending.done()
            assert m.broker.replication.replicas() == []
            replica = await EpochSlave.open(m)
            await replica.welcome(m, replica="replica", end=len(data), epoch=1, entries=[(1, 0)])
            replica.report(answer.epoch, len(data))
            await asyncio.sleep(0.1)
            assert not sending.done(), "the engine does not know it yet"
            known["replica"] = 7
            replica.report(answer.epoch, len(data))
            assert (await sending).code == ResponseCode.SUCCESS
            assert [each.replica_id for each in m.broker.replication.replicas()] == [7]
            known.clear()
            replica.report(answer.epoch, len(data))
            await until(lambda: not m.broker.replication.replicas())
            await stranger.close()
            await replica.close()

    run(go())


# -- who is refused --------------------------------------------------------------------------------------------------

BAD: dict[str, bytes] = {
    "a length below zero": LENGTH.pack(-1),
    "a length above the limit": LENGTH.pack((1 << 20) + 1),
    "no JSON": LENGTH.pack(4) + b"nope",
    "another type": LENGTH.pack(2) + b"[]",
    "deep JSON": LENGTH.pack(200_000) + b"[" * 200_000,
    "a number too large": LENGTH.pack(12) + b'{"id":1e400}',
    "nothing in it": LENGTH.pack(2) + b"{}",
}


CONTRADICTIONS: tuple[dict[str, Any], ...] = (
    {"entries": [(2, 0), (1, 5)]},
    {"entries": [(0, 0)]},
    {"entries": [(1, -5)]},
    {"begin": 9, "end": 5},
    {"damage": [(4 * number, 1) for number in range(1001)]},
)


def test_a_handshake_that_makes_no_sense_ends_the_connection(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            for data in BAD.values():
                hostile = await EpochSlave.open(m)
                hostile.send(struct.pack(">q", -2) + data)
                await hostile.until_closed()
            for said in CONTRADICTIONS:
                hostile = await EpochSlave.open(m)
                with pytest.raises(asyncio.IncompleteReadError):
                    await hostile.welcome(m, **said)
                await hostile.close()
            assert m.store.epochs.entries == (), "a stranger begins no epoch"
            async with slave(tmp_path / "s", m) as s:
                put(m, b"one")
                await caught_up(m, s)

    run(go())


def test_a_master_stops_reading_its_log_for_a_slave_that_has_gone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, has_ended = threading.Event(), threading.Event()

    def read(store: MessageStore, asked: object, is_wanted: Callable[[], bool]) -> list[DamagedRange]:
        is_reading.set()
        deadline = time.monotonic() + SOON_S
        while is_wanted() and time.monotonic() < deadline:
            time.sleep(0.01)
        if not is_wanted():
            has_ended.set()
        return []

    async def go() -> None:
        monkeypatch.setattr(slave_connection, "damage_beside", read)
        async with master(tmp_path / "m") as m:
            impatient = await EpochSlave.open(m)
            asking = asyncio.create_task(impatient.welcome(m))
            await until(is_reading.is_set)
            asking.cancel()
            await impatient.close()
            await until(has_ended.is_set)

    run(go())


def test_a_slave_of_another_broker_or_a_newer_epoch_is_told_why_it_may_not_follow(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            for said, why in (
                ({"broker": "other"}, "it belongs to other"),
                ({"cluster": "other"}, "of other"),
                ({"epoch": 5, "entries": [(5, 0)]}, "it knows epoch 5, and this master is in epoch 1"),
            ):
                stranger = await EpochSlave.open(m)
                answer = await stranger.welcome(m, **said)
                assert why in answer.why
                await stranger.until_closed()
            assert not m.store.watermarks.connected_slaves

    run(go())


def test_a_slave_does_not_follow_a_master_of_an_older_or_an_unexpected_epoch(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            put(m, b"one")
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                follower = s.broker.replication._follower
                assert follower is not None
                follower._link.expect_epoch(9)
                for connection in list(m.broker.replication._listener.slaves):  # type: ignore[union-attr]
                    connection.abort()
                await until(lambda: "the cluster is in epoch 9" in follower.problem)
                put(m, b"two")
                follower._link.expect_epoch(1)
                await caught_up(m, s)
        (tmp_path / "s" / "epochFileCheckpoint").write_bytes(b"1\n0\n8-0\n")
        async with master(tmp_path / "m") as m, slave(tmp_path / "s", m) as s:
            follower = s.broker.replication._follower
            assert follower is not None
            await until(lambda: "it knows epoch 8" in follower.problem)
            assert m.store.epochs.last == 2

    run(go())


# -- a tail ----------------------------------------------------------------------------------------------------------


def test_an_old_master_with_a_tail_comes_back_as_a_slave(run: Run, tmp_path: Path) -> None:
    """Promotion by hand: the slave is started as a master, and the old master as its slave."""

    async def go() -> None:
        async with master(tmp_path / "a") as a:
            put(a, b"one", b"two")
            async with slave(tmp_path / "b", a) as b:
                await caught_up(a, b)
            put(a, b"only here 1", b"only here 2")
            whole = log_bytes(a.store)
        async with master(tmp_path / "b") as b:
            put(b, b"three")
            cut = b.store.epochs.entries[-1].start
            said: list[str] = []
            async with slave(tmp_path / "a", b) as a:
                a.broker.replication.on_cut(said.append)
                await until(lambda: said)
                assert f"parts from this one at {cut}" in said[0]
                assert log_bytes(a.store) == whole, "nothing is cut while the store is open"
                status = a.broker.replication.status.now().ha_client_runtime_info
                assert status is not None
                assert "are cut when this broker starts again" in status.problem
            async with slave(tmp_path / "a", b) as a:
                await caught_up(b, a)
                same_log(a.store, b.store)
                assert bodies(a) == [b"one", b"two", b"three"]
                assert a.store.epochs.entries == b.store.epochs.entries
            (kept,) = (tmp_path / "a" / "penstock" / "quarantine").glob("*/tail-1-*")
            manifest = json.loads((kept / "manifest.json").read_text())
            assert (manifest["offset"], manifest["masterEpoch"], manifest["messages"]) == (cut, 2, {"orders": 2})

    run(go())


def test_a_slave_that_fell_too_far_behind_is_moved_aside_and_copied(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "m") as m:
            put(m, b"one")
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
            for _ in range(20):
                put(m, b"x" * 9000)
            m.store.catch_up()
            m.store.log.queue.drop_first(forced=True)
            said: list[str] = []
            async with slave(tmp_path / "s", m) as s:
                s.broker.replication.on_cut(said.append)
                await until(lambda: said)
            async with slave(tmp_path / "s", m) as s:
                await caught_up(m, s)
                same_log(s.store, m.store)
            assert list((tmp_path / "s" / "penstock" / "quarantine").glob("*/store-1-0/commitlog"))

    run(go())


@pytest.mark.parametrize("is_proved", [True, False], ids=["of the same history", "of another history"])
def test_a_replica_that_was_away_longer_than_retention_comes_back_if_its_epochs_prove_that_nothing_is_lost(
    run: Run, tmp_path: Path, is_proved: bool
) -> None:
    """Although it has acknowledged messages that the elected master has deleted since, in a later epoch."""

    async def go() -> None:
        async with master(tmp_path / "m", store=SYNC) as m, slave(tmp_path / "s", m) as s:
            await until(lambda: m.store.watermarks.reports)
            m.store.require_replicas(frozenset({1}))
            put(m, b"acknowledged")
            await caught_up(m, s)
            await until(lambda: s.store.watermarks.visible == m.store.watermarks.appended)
        if not is_proved:
            forged = EpochFile(Files(), tmp_path / "m" / "epochFileCheckpoint")
            forged.adopt((EpochEntry(2, 0),))
        async with master(tmp_path / "m", store=SYNC) as m:
            for _ in range(20):
                put(m, b"x" * 9000)
            m.store.catch_up()
            m.store.log.queue.drop_first(forced=True)
            where = m.broker.replication.listens_at
            assert where is not None
            log_address, client_address = (f"{host}:{port}" for host, port in (where, m.address))
            said: list[str] = []
            async with slave(tmp_path / "s", m) as s:
                await until(lambda: "were acknowledged here" in problem_of(s))  # nobody was elected: no proof
                s.broker.replication.on_cut(said.append)
                await s.broker.replication.follow(log_address, client_address, m.store.role.epoch)
                if not is_proved:
                    await until(lambda: "were acknowledged here" in problem_of(s))
                    await asyncio.sleep(0.2)
                    assert not s.store.layout.cut.exists()
                    return
                await until(lambda: said)
            with MessageStore.open(tmp_path / "s", s.store.settings, in_sync_set=True) as store:
                assert not store.log.queue.files
                assert lacks_messages(store), "it may still be in the sync set, and has nothing"
            async with slave(tmp_path / "s", m) as s:
                await s.broker.replication.follow(log_address, client_address, m.store.role.epoch)
                await caught_up(m, s)
                same_log(s.store, m.store)
                await until(lambda: not lacks_messages(s.store))
            assert list((tmp_path / "s" / "penstock" / "quarantine").glob("*/store-*/commitlog"))

    run(go())


def test_logs_whose_bytes_differ_although_their_epochs_agree_are_left_alone(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        for name in ("a", "b"):
            async with master(tmp_path / name) as broker:
                broker.store.roles.begin_epoch()
                put(broker, b"in " + name.encode())
        async with master(tmp_path / "a") as a, slave(tmp_path / "b", a) as b:
            await until(lambda: "the logs differ at 0" in caplog.text)
            assert bodies(b) == [b"in b"]

    run(go())


def test_what_was_acknowledged_here_is_not_cut_without_consent(run: Run, tmp_path: Path) -> None:
    async def go() -> None:
        async with master(tmp_path / "a", store=SYNC) as a:
            a.store.require_replicas(frozenset())
            put(a, b"one")
            async with slave(tmp_path / "b", a) as b:
                await caught_up(a, b)
                copied = b.store.watermarks.appended
            put(a, b"acknowledged by a master that was alone in its set")
            async with master(tmp_path / "b") as b:
                put(b, b"other")
                await asyncio.to_thread(a.store.change_role, a.store.role.next(BrokerRole.SLAVE))
                assert a.store.watermarks.visible > copied
                where = b.broker.replication.listens_at
                assert where is not None
                settings = a.store.settings.with_changes(ha_master_address=f"{where[0]}:{where[1]}")
                served = a.state.settings.now.with_changes(master_addr=f"{b.address[0]}:{b.address[1]}", broker_id=1)
                follower = MasterFollower(a.store, MasterLink(settings, served), a.state.tasks)
                follower.start()
                await until(lambda: "were acknowledged here: the new master lacks them" in follower.problem)
                assert a.store.watermarks.appended > copied
                assert not a.store.layout.cut.exists()
                await follower.pause()
                follower.accept_loss(True)
                follower.start()
                await until(lambda: "are cut when this broker starts again" in follower.problem)
                assert a.store.layout.cut.exists()
                (kept,) = (tmp_path / "a" / "penstock" / "quarantine").glob("*/tail-1-*")
                assert json.loads((kept / "manifest.json").read_text())["confirmedUpTo"] > copied
                await follower.stop()

    run(go())

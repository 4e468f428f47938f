"""Sends under SYNC_FLUSH: answered when the disk has answered, without holding anybody else up."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.brokers import BrokerHome, end, ok, send_arguments, send_half
from support.disks import FaultyFiles, refuse
from support.loopback import until

from penstock.broker import send_acks
from penstock.broker.remoting import compiled_requests
from penstock.format.message_id import decode_message_id
from penstock.format.sys_flag import TRANSACTION_COMMIT
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command

if TYPE_CHECKING:
    from broker.conftest import Run


class SlowDisk(FaultyFiles):
    """Syncs of the log wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.before_sync = self._wait

    def _wait(self, path: Path) -> None:
        if "commitlog" in str(path):
            assert self.may_sync.wait(60)


def test_a_send_is_answered_only_when_it_is_on_disk(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk) as broker:
            client, other = await broker.client(), await broker.client()
            ok(await client.send("orders"))
            disk.may_sync.clear()
            waiting = [asyncio.create_task(client.send("orders", b"%d" % number)) for number in range(20)]
            await until(lambda: len(broker.broker.pending_acks) == 20)
            ok(await other.ask(RequestCode.GET_MAX_OFFSET, topic="orders", queueId=0))
            assert not any(task.done() for task in waiting)
            disk.may_sync.set()
            replies = [ok(reply) for reply in await asyncio.gather(*waiting)]
            assert [reply.ext["queueOffset"] for reply in replies] == [str(number) for number in range(1, 21)]

    run(check())


@pytest.mark.parametrize("properties", ["WAIT\x01false\x02", "WAIT\x01true\x02TAGS\x01a\x02WAIT\x01false"])
def test_who_does_not_want_to_wait_is_answered_at_once(home: BrokerHome, run: Run, properties: str) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk) as broker:
            client = await broker.client()
            ok(await client.send("orders", b"creates the topic"))
            disk.may_sync.clear()
            ok(await client.send("orders", properties=properties))
            disk.may_sync.set()

    run(check())


def test_a_disk_that_takes_too_long_is_said_and_the_message_is_stored(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk, store={"sync_flush_timeout": 50}) as broker:
            client = await broker.client()
            disk.may_sync.clear()
            replies = await asyncio.gather(*(client.send("orders", b"%d" % number) for number in range(3)))
            assert {reply.code for reply in replies} == {ResponseCode.FLUSH_DISK_TIMEOUT}
            assert sorted(reply.ext["queueOffset"] for reply in replies) == ["0", "1", "2"]
            assert all("not on disk" in (reply.remark or "") for reply in replies)
            disk.may_sync.set()
            await until(lambda: broker.store.max_offset("orders", 0) == 3)

    run(check())


def test_the_disk_may_take_its_time_whatever_the_slaves_time_is(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        short = {"broker_role": "SYNC_MASTER", "slave_timeout": 1}
        async with home.running(sync=True, files=disk, store=short) as broker:
            client = await broker.client()
            disk.may_sync.clear()
            alone = asyncio.create_task(client.send("orders", b"no slave is connected"))
            await until(lambda: len(broker.broker.pending_acks) == 1)
            broker.store.watermarks.slave_connected()
            with_slave = asyncio.create_task(client.send("orders", b"a slave is too late"))
            await until(lambda: len(broker.broker.pending_acks) == 2)
            done, _ = await asyncio.wait([alone, with_slave], timeout=0.05)
            assert not done, "the disk's time is not over"
            disk.may_sync.set()
            assert (await alone).code == ResponseCode.SLAVE_NOT_AVAILABLE
            assert (await with_slave).code == ResponseCode.FLUSH_SLAVE_TIMEOUT

    run(check())


def test_a_sync_that_fails_is_an_error_and_no_more_messages_are_taken(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = FaultyFiles()
        async with home.running(sync=True, files=disk) as broker:
            client = await broker.client()
            ok(await client.send("orders"))
            disk.before_sync = lambda path: refuse(errno.EIO) if "commitlog" in str(path) else None
            reply = await client.send("orders")
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert "could not be synced" in (reply.remark or "")
            assert reply.ext["msgId"], "so that clients know that it is in the log"
            reply = await client.send("orders")
            assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert reply.ext["MSG_REGION"] == "DefaultRegion"

    run(check())


def test_one_connection_may_have_only_so_many_sends_waiting(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk, max_unflushed_sends=5) as broker:
            client, other = await broker.client(), await broker.client()
            ok(await client.send("orders"))
            disk.may_sync.clear()
            waiting = [asyncio.create_task(client.send("orders")) for _ in range(5)]
            await until(lambda: len(broker.broker.pending_acks) == 5)
            end = broker.store.log.queue.wrote_offset
            for send in (client.send("orders"), client.send("new"), client.send_batch("orders", [(b"x", "")])):
                reply = await send
                assert reply.code == ResponseCode.SYSTEM_BUSY
                assert "maxUnflushedSends" in (reply.remark or "")
            assert broker.store.log.queue.wrote_offset == end
            waiting.append(asyncio.create_task(other.send("orders")))
            await until(lambda: len(broker.broker.pending_acks) == 6)
            disk.may_sync.set()
            for reply in await asyncio.gather(*waiting):
                ok(reply)

    run(check())


def test_what_is_sent_back_or_committed_counts_like_a_send(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk, max_unflushed_sends=5) as broker:
            client = await broker.client()
            half, sent = await send_half(client), ok(await client.send("orders"))
            back = {"offset": decode_message_id(sent.ext["msgId"])[1], "group": "CID", "delayLevel": 0}
            ok(await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back))
            disk.may_sync.clear()
            waiting = [asyncio.create_task(client.send("orders")) for _ in range(5)]
            await until(lambda: len(broker.broker.pending_acks) == 5)
            stored = broker.store.log.queue.wrote_offset
            for late in (client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back), end(client, half, TRANSACTION_COMMIT)):
                reply = await late
                assert reply.code == ResponseCode.SYSTEM_BUSY
                assert "maxUnflushedSends" in (reply.remark or "")
            assert broker.store.log.queue.wrote_offset == stored
            disk.may_sync.set()
            for reply in await asyncio.gather(*waiting):
                ok(reply)
            ok(await end(client, half, TRANSACTION_COMMIT))

    run(check())


def test_a_batch_waits_for_the_disk_as_one(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk) as broker:
            client = await broker.client()
            disk.may_sync.clear()
            waiting = asyncio.create_task(client.send_batch("orders", [(b"one", ""), (b"two", "")]))
            await until(lambda: len(broker.broker.pending_acks) == 1)
            disk.may_sync.set()
            assert len(ok(await waiting).ext["msgId"].split(",")) == 2

    run(check())


@pytest.mark.parametrize("requests", ["compiled", "general"])
def test_batches_that_wait_count_by_the_bytes_of_their_replies(
    home: BrokerHome, run: Run, monkeypatch: pytest.MonkeyPatch, requests: str
) -> None:
    monkeypatch.setenv(compiled_requests.VARIABLE, requests)
    large = {"max_message_size": 4 << 20, "mapped_file_size_commit_log": 64 << 20}
    batch = [(b"", "")] * 9_900  # a reply of 327 KB, like 160 sends

    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk, store=large, max_unflushed_sends=300) as broker:
            client, other, acks = await broker.client(), await broker.client(), broker.broker.pending_acks
            ok(await client.send("orders"))
            monkeypatch.setattr(send_acks, "MAX_PENDING", 450)
            disk.may_sync.clear()
            waiting = [asyncio.create_task(client.send_batch("orders", batch)) for _ in range(2)]
            await until(lambda: len(acks) == 2)
            end = broker.store.log.queue.wrote_offset
            for reply in await asyncio.gather(*(client.send_batch("orders", batch) for _ in range(2))):
                assert reply.code == ResponseCode.SYSTEM_BUSY
                assert "maxUnflushedSends" in (reply.remark or "")
            assert broker.store.log.queue.wrote_offset == end
            waiting.append(asyncio.create_task(other.send_batch("orders", batch)))
            await until(lambda: len(acks) == 3)
            reply = await other.send("orders")
            assert reply.code == ResponseCode.SYSTEM_BUSY
            assert "all connections" in (reply.remark or "")
            disk.may_sync.set()
            for reply in await asyncio.gather(*waiting):
                ok(reply)
            assert len(acks) == 0
            assert ok(await client.send_batch("orders", batch)), "their places were given back"

    run(check())


def test_the_place_of_a_connection_that_is_gone_is_given_back(home: BrokerHome, run: Run) -> None:
    async def check() -> None:
        disk = SlowDisk()
        async with home.running(sync=True, files=disk) as broker:
            client = await broker.client()
            disk.may_sync.clear()
            ext = {name: str(value) for name, value in send_arguments("orders").items()}
            client.connection.send(Command(RequestCode.SEND_MESSAGE, ext, b"x", opaque=1))
            await until(lambda: len(broker.broker.pending_acks) == 1)
            client.close()
            disk.may_sync.set()
            await until(lambda: len(broker.broker.pending_acks) == 0)
            await broker.broker.pending_acks.drained()

    run(check())

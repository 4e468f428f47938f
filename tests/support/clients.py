"""What talks to a cluster: handlers that gather messages, a scripted cluster, the console as a process, and traffic.

The console process serves the tests and the benchmark.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Self

import httpx

from penstock.client import DeadLetter, Later, Message, Producer, PushConsumer, PushOptions, ReceivedMessage
from penstock.console.end_previous_console import take_over
from penstock.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.handler_types_and_errors import Handler
from penstock.testing import LocalBroker
from support.loopback import serving
from support.stores import eventually

SOON_S = 120.0
"""More than anything here takes, so that a test that fails does not hang."""


class Gathered:
    """Consumes messages; those that `fails` says so of fail."""

    def __init__(self, fails: Callable[[ReceivedMessage], Later | DeadLetter | None] | None = None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails
        self._came = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> Later | DeadLetter | None:
        self.messages.append(message)
        self._came.set()
        return None if self._fails is None else self._fails(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(self.bodies)

    async def until(self, enough: Callable[[], bool]) -> None:
        """Returns when there is enough, as the test sees it."""
        async with asyncio.timeout(SOON_S):
            while not enough():
                self._came.clear()
                await self._came.wait()

    async def until_count(self, count: int) -> None:
        await self.until(lambda: len(self.messages) >= count)

    async def until_has(self, bodies: set[bytes]) -> None:
        await self.until(lambda: bodies <= set(self.bodies))


async def until_true(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something that has no event of its own is so."""
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.005)


class FakeCluster:
    """`asked` is every request that came; routes name the one server, under the broker ids of `broker_ids`."""

    def __init__(self, handlers: Mapping[int, Handler], broker_ids: tuple[int, ...] = (0,)) -> None:
        self.asked: list[Command] = []
        self.namesrv = ""
        self.broker_ids = broker_ids
        self._handlers = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: lambda connection, command: command.reply(ResponseCode.SUCCESS),
            RequestCode.UNREGISTER_CLIENT: lambda connection, command: command.reply(ResponseCode.SUCCESS),
            **handlers,
        }

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeCluster]:
        def note(connection: Connection, command: Command) -> None:
            self.asked.append(command)

        async with serving(self._handlers, before=note) as (_, (host, port)):
            self.namesrv = f"{host}:{port}"
            yield self

    def of(self, code: RequestCode) -> list[Command]:
        return [command for command in self.asked if command.code == code]

    def _route(self, connection: Connection, command: Command) -> Command:
        data = TopicRouteData(
            broker_datas=[
                BrokerData(broker_name="fake", cluster="C", broker_addrs=dict.fromkeys(self.broker_ids, self.namesrv))
            ],
            queue_datas=[QueueData(broker_name="fake", perm=6, read_queue_nums=1, write_queue_nums=1)],
        )
        return command.reply(ResponseCode.SUCCESS, body=data.to_bytes())


TOKEN = "a-token-for-tests-0123456789"
_UP_WITHIN_S = 60.0


class ConsoleProcess:
    """One console. Use it in a `with` block."""

    def __init__(self, namesrv: str, *options: str, folder: Path, planted: str = "") -> None:
        """`planted`: Python code that runs in the console's process before the console."""
        self._said = folder / "console.txt"
        program = ["-c", f"{planted}\nimport sys, penstock.cli.main as command\nsys.exit(command.main())"]
        order = [sys.executable, *program, "console", "--namesrv", namesrv, "--listen", "127.0.0.1:0"]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [*order, "--token", TOKEN, "--json", *options], stdout=subprocess.PIPE, stderr=said, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.said
        self.link: str = json.loads(line)["console"]
        self.address = self.link.partition("/?")[0]
        self._until_up()

    @property
    def said(self) -> str:
        return self._said.read_text()

    def client(self, **headers: str) -> httpx.Client:
        """Somebody with the token, to be closed."""
        return httpx.Client(
            base_url=self.address, headers={"authorization": f"Bearer {TOKEN}", **headers}, timeout=30, verify=False
        )

    def stranger(self, **headers: str) -> httpx.Client:
        """Somebody without one."""
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, verify=False)

    def _until_up(self) -> None:
        deadline = time.monotonic() + _UP_WITHIN_S
        with self.client() as client:
            while True:
                try:
                    client.get("/healthz").raise_for_status()
                    return
                except httpx.TransportError:
                    assert self.process.poll() is None, self.said
                    assert time.monotonic() < deadline, self.said
                    time.sleep(0.05)

    def stop(self) -> int:
        self.process.terminate()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.stop()


def kill_with_console(process: subprocess.Popen[str], store: Path) -> None:
    """Kills a `penstock serve` that still runs, and ends the console that a killed one leaves behind.

    The console lets itself be ended as soon as it has noticed that its broker is dead.
    """
    if process.poll() is None:
        process.kill()
        process.wait()
        eventually(lambda: take_over(store), "the console of the killed broker is left")


MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
ORDERS = 40


def fill_cluster(broker: LocalBroker) -> None:
    """Sends, has groups consume some of it, and leaves dead letters of group `returns`."""
    asyncio.run(_fill(broker))
    broker.settle()


async def _fill(broker: LocalBroker) -> None:
    async with Producer("PID", broker.namesrv) as producer:
        for number in range(ORDERS):
            body = b'{"order": %d, "price": "%d.50"}' % (number, number)
            await producer.send(Message("orders", body, tags="paid", keys=f"order_{number}"))
        await producer.send(Message("oddities", MARKUP.encode(), tags=MARKUP, keys="odd", properties={"note": MARKUP}))
        await producer.send(Message("oddities", bytes(range(256)), keys="binary"))
        await producer.send(Message("refunds", b"broken refund", tags="refund", keys="refund_1"))
        await producer.send(Message("refunds", b"another broken refund", tags="refund", keys="refund_2"))
    await _consume(broker, "warehouse", "orders", ORDERS)
    await _die(broker, "returns", "refunds", 2)


async def _consume(broker: LocalBroker, group: str, topic: str, count: int) -> None:
    seen: set[str] = set()
    enough = asyncio.Event()

    def take(message: ReceivedMessage) -> None:
        seen.add(message.msg_id)
        if len(seen) >= count:
            enough.set()

    async with PushConsumer(group, take, broker.namesrv, subscriptions={topic: "*"}):
        await asyncio.wait_for(enough.wait(), 60)


async def _die(broker: LocalBroker, group: str, topic: str, count: int) -> None:
    """A group that never gets on with its messages, until they are dead letters."""
    options = PushOptions(max_reconsume_times=0)
    failed: set[str] = set()
    enough = asyncio.Event()

    def fail(message: ReceivedMessage) -> Later:
        failed.add(message.msg_id)
        if len(failed) >= count:
            enough.set()
        return Later()

    async with PushConsumer(group, fail, broker.namesrv, subscriptions={topic: "*"}, options=options):
        await asyncio.wait_for(enough.wait(), 60)


def until_dead_letters(broker: LocalBroker, group: str, count: int) -> None:
    """Returns when a group has so many."""
    with broker.admin() as admin:
        while True:
            try:
                stats = admin.topics.stats(f"%DLQ%{group}")
            except Exception:
                stats = {}
            if sum(each.max_offset for each in stats.values()) >= count:
                return

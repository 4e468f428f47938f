"""Masters and slaves: in one loop, as processes with a proxy between them, and as processes under load and faults.

Under load each body is sent once and never again, so a body that is in a store twice was doubled there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from penstock.client.message import Message, SendStatus
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Producer, PullConsumer
from penstock.errors import PenstockError
from penstock.store import MessageStore, Settings
from support.brokers import BrokerHome, RunningBroker, Served
from support.loopback import SOON_S, free_port, until

FAST = {"ha_send_heartbeat_interval": 200, "ha_housekeeping_interval": 5000}
FILE = 64 << 10


@asynccontextmanager
async def master(home: Path, *, store: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[RunningBroker]:
    """A broker that waits for slaves."""
    changes = {"ha_listen_port": 0, "mapped_file_size_commit_log": FILE, **FAST, **(store or {})}
    async with BrokerHome(home).running(store=changes, **settings) as running:
        yield running


@asynccontextmanager
async def slave(
    home: Path, of: RunningBroker, *, store: dict[str, Any] | None = None, through: int | None = None, **settings: Any
) -> AsyncIterator[RunningBroker]:
    """A broker that follows another one; `through` is the port of a proxy."""
    where = of.broker.replication.listens_at
    assert where is not None
    changes = {
        "broker_role": "SLAVE",
        "ha_master_address": f"{where[0]}:{through or where[1]}",
        "mapped_file_size_commit_log": FILE,
        **FAST,
        **(store or {}),
    }
    told = {"broker_id": 1, "master_addr": f"{of.address[0]}:{of.address[1]}", **settings}
    async with BrokerHome(home).running(store=changes, **told) as running:
        yield running


def log_bytes(store: MessageStore) -> bytes:
    """All bytes of a log that are there, from its first file on."""
    return b"".join(bytes(file.map.view[: file.wrote]) for file in store.log.queue.files)


def same_log(one: MessageStore, other: MessageStore) -> None:
    """Asserts that two logs hold the same bytes, without showing them all."""
    ours, theirs = log_bytes(one), log_bytes(other)
    if ours != theirs:
        at = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        pytest.fail(f"{len(ours)} and {len(theirs)} bytes, which differ first at {at}")


async def caught_up(of: RunningBroker, *slaves: RunningBroker) -> None:
    """Waits until slaves have the whole log of their master, as safe as they are to keep it."""
    async with asyncio.timeout(SOON_S):
        await until(lambda: all(each.store.log.confirmed_offset == of.store.log.queue.wrote_offset for each in slaves))


class ScriptedSlave:
    """A slave that says what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, of: RunningBroker) -> ScriptedSlave:
        where = of.broker.replication.listens_at
        assert where is not None
        return cls(*await asyncio.open_connection(*where))

    def report(self, *offsets: int) -> None:
        self._writer.write(struct.pack(f">{len(offsets)}q", *offsets))

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()

    async def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: where, and its bytes."""
        while True:
            offset, data = await self.any_frame()
            if data:
                return offset, data

    async def any_frame(self) -> tuple[int, bytes]:
        async with asyncio.timeout(SOON_S):
            offset, size = struct.unpack(">qi", await self._reader.readexactly(12))
            return offset, await self._reader.readexactly(size)

    async def until_closed(self) -> bytes:
        async with asyncio.timeout(SOON_S):
            try:
                return await self._reader.read(-1)
            except OSError:
                return b""
            finally:
                await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


_SOON_S = 120.0
_GONE = (OSError, RuntimeError)
"""The latter is uvloop's, for who writes to a transport that is closed."""
T = TypeVar("T")


@contextlib.contextmanager
def name_server(host: str = "127.0.0.1", within: Sequence[str] = (), *settings: str) -> Iterator[str]:
    """A name server of its own, which outlives brokers; its address. `within` is as for `Served`."""
    command = [*within, sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", f"{host}:0", "--json"]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield str(json.loads(process.stdout.readline())["namesrv"])
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def member(folder: Path, namesrv: str, **settings: object) -> Served:
    """A broker that registers there; it is not started."""
    common = {"namesrvAddr": namesrv, "haSendHeartbeatInterval": 300, "haHousekeepingInterval": 3000, **settings}
    return Served(folder, *(f"{name}={value}" for name, value in common.items()))


def log_on_disk(folder: Path) -> bytes:
    """The log, up to the last byte that is not zero; a broker that has just started may have none yet."""
    files = sorted((folder / "commitlog").glob("*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for(condition: Callable[[], object], said: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


class Proxy:
    """Passes bytes on in pieces of odd sizes. `cut` ends its connections; while `is_shut` it takes no new ones.

    `swap` has a slave make a new connection, and only then lets its master hear what came last by the old one.
    """

    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)
        self._pairs: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_shut = False
        self.pause_s = 0.0
        self.largest = 1500
        self.passed = 0
        self.late = 0
        """Bytes that a master heard by an old connection, after a new one was made."""
        self._may_report = asyncio.Event()
        self._may_report.set()
        self._is_held = asyncio.Event()
        self._slaves: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_shut:
            writer.close()
            return
        self._pairs.add(writer)  # so that `cut` ends it, whatever ends this task
        try:
            there, here = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            self._pairs.discard(writer)
            return
        self._pairs.add(here)
        self._slaves.add(writer)
        for task in (self._pass_on(reader, here, self._may_report), self._pass_on(there, writer)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: asyncio.Event | None = None
    ) -> None:
        held = b""
        with contextlib.suppress(*_GONE):
            while data := await reader.read(self._random.randrange(1, self.largest)):
                if may is not None and not may.is_set():
                    held += data
                    self._is_held.set()
                    continue
                writer.write(data)
                self.passed += len(data)
                await writer.drain()
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
        if may is not None and held:
            await may.wait()
            self.late += len(held)
            with contextlib.suppress(*_GONE):
                writer.write(held)
                await writer.drain()
        writer.close()
        self._pairs.discard(writer)
        self._slaves.discard(writer)

    async def swap(self, hold_s: float, made_s: float) -> None:
        """Holds reports for so long, and until there is one; cuts the slaves off, and lets go when others were made."""
        old, self._may_report = self._may_report, asyncio.Event()
        self._may_report.set()
        old.clear()
        slaves = list(self._slaves)
        self._is_held.clear()
        await asyncio.sleep(hold_s)
        if slaves:
            with contextlib.suppress(TimeoutError):  # a slave that is dead or stopped has nothing to report
                await asyncio.wait_for(self._is_held.wait(), 10)
        for writer in slaves:
            writer.transport.abort()
        await asyncio.sleep(made_s)
        old.set()

    def cut(self) -> None:
        for writer in list(self._pairs):
            writer.transport.abort()
        self._pairs.clear()

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()


class ProxyThread:
    """A Proxy in a thread of its own, for who has no loop. Use it in a `with` block."""

    def __init__(self, target: tuple[str, int], seed: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._target = target
        self._seed = seed
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._proxy = self.run(self._make())
        self.port = self._proxy.port
        return self

    async def _make(self) -> Proxy:
        return await Proxy(self._target, self._seed).__aenter__()

    def run(self, action: Coroutine[object, object, T]) -> T:
        """What comes of something that the proxy's loop does."""
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(_SOON_S)

    def set(self, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self._proxy, name, value)

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._proxy.cut)

    def swap(self, hold_s: float, made_s: float) -> None:
        self.run(self._proxy.swap(hold_s, made_s))

    def __exit__(self, *error: object) -> None:
        self.run(self._proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


TOPIC = "orders"
SAFE = {"flushDiskType": "SYNC_FLUSH", "defaultTopicQueueNums": 2, "slaveTimeout": 1500}


class Load:
    """Producers that send side by side. Use it in a `with` block."""

    def __init__(self, namesrv: str, name: str, producers: int = 3) -> None:
        self._namesrv = namesrv
        self._name = name
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(producers)]
        self.acknowledged: list[bytes] = []
        """What was answered SEND_OK: at a slave, on its disk."""
        self.others: Counter[str] = Counter()
        """How often something else was answered, or nothing."""

    def _run(self, number: int) -> None:
        chance = random.Random(f"{self._name}{number}")
        options = ProducerOptions(timeout_s=2.5, retries=0)
        with Producer(f"PID_{number}", self._namesrv, options=options) as producer:
            sent = 0
            while not self._stop.is_set():
                body = b"%s-%d-%d " % (self._name.encode(), number, sent) + b"x" * chance.choice((10, 300, 3000))
                sent += 1
                try:
                    status = producer.send(Message(TOPIC, body, keys=f"k{number}-{sent}")).status
                except PenstockError as error:
                    self.others[type(error).__name__] += 1
                    self._stop.wait(0.05)
                    continue
                if status is SendStatus.SEND_OK:
                    self.acknowledged.append(body)
                else:
                    self.others[status] += 1

    def wait_for_more(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        wait_for(lambda: len(self.acknowledged) >= goal, lambda: f"{len(self.acknowledged)} of {goal}, {self.others}")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


class Reader:
    """A consumer that reads all the time, from whichever broker there is. Use it in a `with` block."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.got: list[bytes] = []

    def _run(self) -> None:
        is_assigned = False
        with PullConsumer("CID_reader", self._namesrv) as consumer:
            while not self._stop.is_set():
                with contextlib.suppress(PenstockError):
                    if not is_assigned:
                        consumer.assign(consumer.queues(TOPIC))
                        is_assigned = True
                    self.got += [message.body for message in consumer.poll(0.5)]
                    continue
                self._stop.wait(0.2)

    def has(self, bodies: Iterable[bytes]) -> bool:
        return set(bodies) <= set(self.got)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


class Group:
    """Brokers of one name, one of which is the master; each slave hears of it through a proxy of its own."""

    def __init__(self, root: Path, namesrv: str, count: int, seed: int) -> None:
        self._namesrv = namesrv
        self._folders = [root / f"broker{number}" for number in range(count)]
        self._chance = random.Random(seed)
        self._seed = seed
        self.master_folder = self._folders[0]
        self.running: dict[Path, Served] = {}
        self._proxies: dict[Path, ProxyThread] = {}
        self._stack = contextlib.ExitStack()

    @property
    def master(self) -> Served:
        return self.running[self.master_folder]

    @property
    def slaves(self) -> list[Served]:
        return [self.running[folder] for folder in self._folders if folder != self.master_folder]

    def start(self) -> None:
        """The master, then its slaves."""
        ha_port = free_port()
        changes = {"brokerRole": "SYNC_MASTER", "haListenPort": ha_port, **SAFE}
        master = member(self.master_folder, self._namesrv, **changes)
        self.running[self.master_folder] = self._stack.enter_context(master)
        for number, folder in enumerate((each for each in self._folders if each != self.master_folder), 1):
            proxy = self._stack.enter_context(ProxyThread(("127.0.0.1", ha_port), self._seed + number))
            self._proxies[folder] = proxy
            changes = {"haMasterAddress": f"127.0.0.1:{proxy.port}", "masterAddr": master.address, **SAFE}
            slave = member(folder, self._namesrv, brokerRole="SLAVE", brokerId=number, **changes)
            self.running[folder] = self._stack.enter_context(slave)
        wait_for(lambda: all("following master" in slave.said for slave in self.slaves), self.said)

    def said(self) -> str:
        return "\n".join(f"{folder.name}:\n{broker.said}" for folder, broker in self.running.items())

    def stop(self) -> None:
        """All that still run end cleanly."""
        self._stack.close()
        self.running.clear()
        self._proxies.clear()

    # -- what is done to them --------------------------------------------------------------------------------

    def hurt(self) -> str:
        """One thing, to one of them; returns what."""
        name = self._chance.choice(
            ("kill_slave", "kill_master", "suspend_slave", "suspend_master", "cut", "slow", "silent", "swap")
        )
        getattr(self, f"_{name}")()
        return name

    def _a_slave(self) -> Served:
        return self._chance.choice(self.slaves)

    def _a_proxy(self) -> ProxyThread:
        return self._proxies[self._a_slave().folder]

    def _kill_slave(self) -> None:
        self._restart(self._a_slave())

    def _kill_master(self) -> None:
        self._restart(self.master)

    def _restart(self, broker: Served) -> None:
        broker.kill()
        time.sleep(self._chance.random())
        broker.start()

    def _suspend_slave(self) -> None:
        self._suspend(self._a_slave())

    def _suspend_master(self) -> None:
        self._suspend(self.master)

    def _suspend(self, broker: Served) -> None:
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(self._chance.uniform(0.1, 4.0))
        os.kill(broker.pid, signal.SIGCONT)

    def _cut(self) -> None:
        for _ in range(self._chance.randrange(1, 6)):
            self._a_proxy().cut()
            time.sleep(self._chance.random() / 3)

    def _slow(self) -> None:
        proxy = self._a_proxy()
        proxy.set(pause_s=0.01, largest=400)
        time.sleep(self._chance.uniform(0.5, 3.0))
        proxy.set(pause_s=0.0, largest=1 << 16)

    def _silent(self) -> None:
        """Longer than silence is borne, at times."""
        proxy = self._a_proxy()
        proxy.set(pause_s=3600.0)
        time.sleep(self._chance.uniform(0.5, 5.0))
        proxy.set(pause_s=0.0)
        proxy.cut()

    def _swap(self) -> None:
        self._a_proxy().swap(self._chance.random(), self._chance.uniform(0.0, 2.0))

    # -- losing the master -----------------------------------------------------------------------------------

    def lose_the_masters_disk(self) -> None:
        self.master.kill()
        shutil.rmtree(self.master_folder)

    def promote(self) -> Path:
        """As the how-to says: all stop, and the slave with the longest log goes on as master. Returns its folder."""
        lost = self.master_folder
        self.stop()
        self.master_folder = max(
            (each for each in self._folders if each != lost), key=lambda each: len(log_on_disk(each))
        )
        self.start()
        return self.master_folder


def bodies_in(folder: Path) -> Iterator[bytes]:
    """All messages of the topic, as its queues have them."""
    with MessageStore.open(folder, Settings.dev(), read_only=True) as store:
        for queue in (each for each in store.queues if each.topic == TOPIC):
            at = queue.min_offset
            while (page := store.get(TOPIC, queue.queue_id, at)).count:
                yield from (message.body for message in page.messages)
                at = page.next_begin_offset


def nothing_is_lost(folder: Path, acknowledged: list[bytes]) -> None:
    """Asserts that a store has what was acknowledged, and nothing twice."""
    held = Counter(bodies_in(folder))
    lost = [body[:30] for body in acknowledged if body not in held]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged messages are lost, as {lost[:5]}"
    doubled = [body[:30] for body, count in held.items() if count > 1]
    assert not doubled, f"{len(doubled)} messages are there twice, as {doubled[:5]}"

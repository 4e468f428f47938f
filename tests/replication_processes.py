"""Brokers as processes around one name server, and a proxy between master and slave that is slow, cut, or late."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Self, TypeVar

from clients.served import Served

_SOON_S = 120.0
_GONE = (OSError, RuntimeError)
"""The latter is uvloop's, for who writes to a transport that is closed."""
T = TypeVar("T")


@contextlib.contextmanager
def name_server() -> Iterator[str]:
    """A name server of its own, which outlives brokers; its address."""
    command = [sys.executable, "-m", "penstock.cli.main", "namesrv", "--listen", "127.0.0.1:0", "--json"]
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
        try:
            there, here = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        self._pairs |= {writer, here}
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

"""Brokers as processes around one name server, and a proxy between master and slave that can be slow, or cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from clients.served import Served

_SOON_S = 40.0


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
    """The log, up to the last byte that is not zero."""
    files = sorted((folder / "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def wait_for(condition: Callable[[], object], said: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + _SOON_S
    while not condition():
        assert time.monotonic() < deadline, said()
        time.sleep(0.05)


class Proxy:
    """Passes bytes on in pieces of odd sizes. `cut` ends its connections; while `is_shut` it takes no new ones."""

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
        for task in (self._pass_on(reader, here), self._pass_on(there, writer)):
            running = asyncio.create_task(task)
            self._tasks.add(running)
            running.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(self._random.randrange(1, self.largest)):
                writer.write(data)
                self.passed += len(data)
                await writer.drain()
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
        writer.close()
        self._pairs.discard(writer)

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

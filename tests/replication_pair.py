"""A master and its slaves in one loop, and what tests of replication ask of them."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker.raw_client import BrokerHome, RunningBroker
from loopback import SOON_S, until

from penstock.store import MessageStore

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

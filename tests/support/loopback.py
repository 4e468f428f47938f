"""The loopback interface: a server that echoes, a peer that sends any bytes, free ports, certificates, memory limits.

A port is kept for its process, however often that dies and starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader, encode
from penstock.remoting.connection import Address, Connection
from penstock.remoting.handler_types_and_errors import Handlers
from penstock.remoting.limits import ConnectionLimits
from penstock.remoting.server import Server

ECHO = 1
SOON_S = 60.0
"""More than anything here takes, so that a test that fails does not hang."""


def echo(connection: Connection, command: Command) -> Command:
    return command.reply(ResponseCode.SUCCESS, ext=command.ext, body=command.body)


@contextlib.asynccontextmanager
async def serving(handlers: Handlers | None = None, **options: Any) -> AsyncIterator[tuple[Server, Address]]:
    """A server on a free port that is stopped at the end; it echoes ECHO unless told otherwise."""
    server = Server({ECHO: echo, **(handlers or {})}, **options)
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, address
    finally:
        await server.stop(grace_s=1)


def small_limits(**changes: Any) -> ConnectionLimits:
    return ConnectionLimits(**{"goodbye_s": 0.5, **changes})


def requests(count: int, code: int = ECHO, body: bytes = b"") -> list[Command]:
    return [Command(code, body=body, opaque=number) for number in range(1, count + 1)]


def frames(commands: Iterable[Command]) -> bytes:
    return b"".join(encode(command) for command in commands)


class Raw:
    """A peer that sends any bytes it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._arrived: list[Command] = []

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None = None) -> Raw:
        return cls(*await asyncio.open_connection(*address, ssl=tls, limit=1 << 20))

    @property
    def port(self) -> int:
        port: int = self._writer.get_extra_info("sockname")[1]
        return port

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()

    def read_again(self) -> None:
        self._writer.transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Hands bytes to the system, as far as it takes them; the rest follows when there is room."""
        if not self._writer.is_closing():
            self._writer.write(data)

    async def send_all(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def replies(self, count: int) -> list[Command]:
        async with asyncio.timeout(SOON_S):
            while len(self._arrived) < count:
                data = await self._reader.read(1 << 20)
                assert data, f"the connection was closed after {len(self._arrived)} of {count} replies"
                self._arrived += self._frames.feed(data)
        taken, self._arrived = self._arrived[:count], self._arrived[count:]
        return taken

    async def ask(self, command: Command) -> Command:
        self.send(encode(command))
        [reply] = await self.replies(1)
        return reply

    async def until_closed(self) -> bytes:
        """Waits until the other side closes; returns what it sent before."""
        async with asyncio.timeout(SOON_S):
            try:
                return await self._reader.read(-1)
            except OSError:  # it was cut off
                return b""

    def end_sending(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def __aenter__(self) -> Raw:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def until(condition: Any) -> None:
    """Lets the loop run until something that has no event of its own is so."""
    async with asyncio.timeout(SOON_S):
        while not condition():
            await asyncio.sleep(0.001)


def free_port() -> int:
    return _keep(0)


def free_port_pair() -> int:
    """A free port whose neighbour two below is free as well: Java's broker takes both."""
    while True:
        port = free_port()
        try:
            _keep(port - 2)
        except OSError:
            continue
        return port


def _keep(port: int) -> int:
    """Keeps that port, or one that the system chooses if it is 0, and returns it; OSError if somebody has it."""
    with socket.socket() as keeper:
        keeper.bind(("127.0.0.1", port))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only now: nobody else's is to be shared
        chosen = int(keeper.getsockname()[1])
        keeper.detach()  # so that nothing closes it
    return chosen


class Pair(NamedTuple):
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path


def make_authority(folder: Path, name: str) -> Pair:
    """A certificate that vouches for others."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    _openssl("req", "-x509", *_new_key(pair.key), "-subj", f"/CN={name}", "-days", "2", "-out", str(pair.certificate))
    return pair


def make_certificate(folder: Path, name: str, authority: Pair, password: str = "") -> Pair:
    """A certificate that the authority vouches for; its key is encrypted if there is a password."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    request = folder / f"{name}.csr"
    _openssl("req", *_new_key(pair.key), "-subj", f"/CN={name}", "-out", str(request))
    signing = ("-CA", str(authority.certificate), "-CAkey", str(authority.key), "-CAcreateserial", "-days", "2")
    _openssl("x509", "-req", "-in", str(request), *signing, "-out", str(pair.certificate))
    if password:
        _openssl("ec", "-in", str(pair.key), "-aes128", "-passout", f"pass:{password}", "-out", str(pair.key))
    return pair


def _new_key(path: Path) -> tuple[str, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path))


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is needed to make certificates")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=60)


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """Fails if the block takes more than `limit` bytes at once."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= limit, f"took {peak} bytes, {limit} are allowed"

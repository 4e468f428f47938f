"""What is counted and measured about connections."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import struct
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.loopback import ECHO, Raw, echo, frames, requests, serving, small_limits, until

from penstock.errors import BadRequest
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import MAX_REQUEST_HEADER, encode
from penstock.rate_limited_log import RateLimitedLog
from penstock.remoting import limits as limits_module
from penstock.remoting.event_loop import loop_factory
from penstock.remoting.limits import ConnectionLimits, ServerConnections, raise_open_files
from penstock.remoting.server import Server
from penstock.remoting.sockets import bind, keep_alive

if TYPE_CHECKING:
    from remoting.conftest import Run


@pytest.mark.parametrize("what", ["connections", "connections_per_peer"])
def test_one_connection_too_many_is_closed_and_a_place_that_was_left_is_free(
    run: Run, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    async def main() -> None:
        async with serving(limits=small_limits(**{what: 3})) as (server, address):
            within = [await Raw.open(address) for _ in range(3)]
            for raw in within:
                assert (await raw.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            for _ in range(5):
                async with await Raw.open(address) as raw:
                    assert await raw.until_closed() == b""
            await within.pop().close()
            await until(lambda: len(server.pool) == 2)
            within.append(await Raw.open(address))
            for raw in within:
                assert (await raw.ask(Command(ECHO, opaque=2))).code == ResponseCode.SUCCESS
                await raw.close()

    run(main())
    assert caplog.text.count("3 connections already") == 1  # five were refused, within a second


def test_a_system_without_free_descriptors_is_asked_again_later(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving() as (server, address):
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.create_connection(address) as waiting:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
                try:
                    await until(lambda: "the system cannot accept it (Too many open files)" in caplog.text)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert len(server.pool) == 0
                await until(lambda: len(server.pool) == 1)
                waiting.sendall(frames(requests(1)))
                waiting.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(waiting, 1000)

    run(main())


def test_a_peer_that_waits_for_us_is_not_taken_for_a_silent_one(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Command | None]] = [loop.create_future() for _ in range(4)]
        handed = iter(answers)
        limits = small_limits(deferred=4, slow_frame_s=0.5, idle_s=0.5, first_frame_s=0.5)
        async with (
            serving({2: lambda _connection, _command: next(handed)}, limits=limits) as (server, address),
            await Raw.open(address) as raw,
            await Raw.open(address) as silent,
        ):
            asked = requests(5, 2)
            raw.send(frames(asked)[:-1])
            await until(lambda: any(each.is_held_up for each in server.connections))
            assert await silent.until_closed() == b""  # so the limits have passed
            for answer, command in zip(answers, asked, strict=False):
                answer.set_result(command.reply(ResponseCode.SUCCESS))
            assert [reply.opaque for reply in await raw.replies(4)] == [1, 2, 3, 4]

    run(main())


def test_the_system_watches_over_connections() -> None:
    with socket.socket() as connected:
        keep_alive(connected)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


def test_a_socket_that_is_bound_already_is_listened_to(run: Run) -> None:
    async def main() -> None:
        bound = bind("127.0.0.1", 0)
        server = Server({ECHO: echo})
        address = await server.start("127.0.0.1", 0, bound)
        assert address == bound.getsockname()
        async with await Raw.open(address) as raw:
            assert (await raw.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
        await server.stop(1)

    run(main())


def test_open_files_are_raised_as_far_as_the_system_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1024, 4096]
    monkeypatch.setattr(limits_module.resource, "getrlimit", lambda _: tuple(now))
    monkeypatch.setattr(limits_module.resource, "setrlimit", lambda _, both: now.__setitem__(slice(None), both))
    assert raise_open_files(100) == 1024
    assert now == [1024, 4096]
    assert raise_open_files(1024) == 1536
    assert now == [1536, 4096]
    assert raise_open_files(100_000) == 4096
    now[:] = [resource.RLIM_INFINITY, resource.RLIM_INFINITY]
    assert raise_open_files(100_000) == sys.maxsize
    now[:] = [1024, resource.RLIM_INFINITY]
    assert raise_open_files(100_000) == 100_512


def test_the_sweep_is_as_frequent_as_the_shortest_limit_needs() -> None:
    assert ConnectionLimits().sweep_s == 1.0
    assert ConnectionLimits(stalled_s=0.4).sweep_s == pytest.approx(0.1)


def test_lines_that_strangers_cause_are_counted_not_written(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = RateLimitedLog(logging.getLogger("penstock.remoting"), clock=lambda: now)
    for _ in range(10):
        lines.warn("closed one")
    now = 1.0
    lines.warn("closed another")
    lines.warn("closed another")
    assert [record.getMessage() for record in caplog.records] == [
        "closed one",
        "closed another (and 9 more since the last such line)",
    ]


def test_uvloop_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = loop_factory()()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    loop = loop_factory()()
    assert type(loop).__module__.startswith("asyncio")
    loop.close()


def test_a_body_above_the_limit_of_its_code_is_refused_before_anything_reads_it(run: Run) -> None:
    beat, send = RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2
    most = limits_module.BODY_LIMITS[beat]
    seen: list[tuple[int, int]] = []

    def before(_connection: object, command: Command) -> None:
        seen.append((command.code, len(command.body)))

    async def main() -> None:
        handlers = {code: lambda _, command: command.reply(ResponseCode.SUCCESS) for code in (beat, send)}
        async with serving(handlers, before=before) as (_, address), await Raw.open(address) as raw:
            assert (await raw.ask(Command(beat, opaque=1, body=bytes(most)))).code == ResponseCode.SUCCESS
            refused = await raw.ask(Command(beat, opaque=2, body=bytes(most + 1)))
            assert (refused.code, refused.remark) == (
                ResponseCode.SYSTEM_ERROR,
                f"request code 34 has a body of {most + 1} bytes; at most {most} are allowed",
            )
            assert (await raw.ask(Command(send, opaque=3, body=bytes(most + 1)))).code == ResponseCode.SUCCESS

    run(main())
    assert seen == [(beat, most), (send, most + 1)]


def test_messages_may_be_as_large_as_the_frames_of_the_server(run: Run) -> None:
    send, body = RequestCode.SEND_MESSAGE_V2, bytes((16 << 20) + 1)

    async def main() -> None:
        handlers = {send: lambda _, command: command.reply(ResponseCode.SUCCESS)}
        limits = ConnectionLimits(frame_bytes=17 << 20)
        async with serving(handlers, limits=limits) as (_, address), await Raw.open(address) as raw:
            assert (await raw.ask(Command(send, opaque=1, body=body))).code == ResponseCode.SUCCESS
            refused = await raw.ask(Command(RequestCode.HEART_BEAT, opaque=2, body=body))
            assert refused.code == ResponseCode.SYSTEM_ERROR

    run(main())


def test_a_request_with_a_longer_header_is_refused_by_both_sides(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        handlers = {ECHO: lambda _, command: command.reply(ResponseCode.SUCCESS, ext={"ids": "i" * 1_000_000})}
        async with serving(handlers) as (_, address), await Raw.open(address) as raw:
            fits = Command(ECHO, {"a": "x" * (MAX_REQUEST_HEADER - 1000)}, opaque=1)
            assert len((await raw.ask(fits)).ext["ids"]) == 1_000_000
            longer = Command(ECHO, {"a": "x" * MAX_REQUEST_HEADER})
            with pytest.raises(BadRequest, match="too long for a header; expected 262144"):
                encode(longer)
            raw.send(struct.pack(">II", 1 << 20, MAX_REQUEST_HEADER + 1))
            assert await raw.until_closed() == b""

    run(main())
    assert "a frame's header is too long; expected at most 262144 bytes, found 262145" in caplog.text


def test_every_request_code_has_a_limit_of_its_body() -> None:
    assert set(limits_module.BODY_LIMITS) == set(RequestCode)
    assert min(limits_module.BODY_LIMITS.values()) == limits_module.SMALL_BODY


STRANGERS = """
import asyncio, resource, sys
from penstock.remoting.server import Server

async def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    server = Server({1: lambda _, command: command.reply(0)})
    _, port = await server.start("127.0.0.1", 0)
    print(port, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        files = [open("/dev/null") for _ in range(20)]  # as a store does that rolls and reads
        opened = len(files)
        files.clear()
        print(len(server.pool), opened, flush=True)

asyncio.run(main())
"""


def test_idle_strangers_leave_descriptors_to_the_store() -> None:
    """128 files are allowed: a quarter is reserved, and one host has at most three quarters of the rest."""
    with subprocess.Popen([sys.executable, "-c", STRANGERS], stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        connected = []
        for source, count in ("127.0.0.1", 160), ("127.0.0.2", 60):
            strangers = [socket.create_connection(address, 10, (source, 0)) for _ in range(count)]
            assert strangers[-1].recv(1) == b""  # they are accepted in order, and the last one is refused
            print("open files", file=process.stdin, flush=True)
            total, files = map(int, process.stdout.readline().split())
            assert files == 20
            strangers[0].sendall(frames([Command(1, opaque=7)]))
            assert strangers[0].recv(1000)
            connected.append((total, strangers))
        assert connected[0][0] == 72
        assert 72 < connected[1][0] < 96
        for _, strangers in connected:
            for stranger in strangers:
                stranger.close()
        process.stdin.close()


def test_memory_of_buffers_that_are_gone_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an attack of large frames C's allocator may keep what they took: see `failure/fuzz/conftest.py`."""
    trims: list[int] = []
    monkeypatch.setattr(
        "penstock.remoting.limits.ctypes.CDLL",
        lambda name: SimpleNamespace(malloc_trim=lambda left: trims.append(left)),
    )

    async def main() -> None:
        pool = ServerConnections(ConnectionLimits())
        peer: Any = SimpleNamespace(held_bytes=0, unsent_bytes=0, deferred_bytes=0)
        pool.set_held(peer, 63 << 20)
        pool.set_held(peer, 0)
        pool.sweep(0.0)
        assert trims == [], "little is kept for the next one"
        pool.set_held(peer, 40 << 20)
        pool.add_deferred(peer, 40 << 20)
        pool.set_held(peer, 0)
        pool.sweep(1.0)
        assert trims == [], "requests are still there"
        pool.add_deferred(peer, -(40 << 20))
        pool.sweep(2.0)
        pool.sweep(3.0)
        assert trims == [0], "once"

    asyncio.run(main())

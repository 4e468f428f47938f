"""Peers that send rubbish, too much, too slowly or nothing: they are closed, and everybody else is served."""

from __future__ import annotations

import asyncio
import json
import resource
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.loopback import ECHO, SOON_S, Raw, frames, requests, serving, small_limits, until

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import encode
from penstock.remoting.connection import Address, connect
from penstock.remoting.event_loop import run
from penstock.remoting.server import Server

MANY = 2000
GOOD = encode(Command(ECHO, {"a": "b"}, b"body", opaque=1))
NO_FRAMES = {
    "zeros": bytes(64),
    "a frame of nothing": struct.pack(">I", 0) + bytes(8),
    "longer than any frame": struct.pack(">II", 0x7FFFFFFF, 0),
    "one byte too long": struct.pack(">II", (16 << 20) - 3, 10),
    "a header beyond its frame": struct.pack(">II", 10, 11) + bytes(20),
    "an unknown serialisation": struct.pack(">II", 14, 10 | 9 << 24) + b"{}" + bytes(8),
    "a header that is no JSON": struct.pack(">II", 14, 10) + b"0123456789",
    "a header that is a list": struct.pack(">II", 6, 2) + b"[]",
    "a header without a code": struct.pack(">II", 6, 2) + b"{}",
    "a short binary header": struct.pack(">II", 7, 3 | 1 << 24) + b"abc",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS handshake": bytes.fromhex("1603010200010001fc0303"),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def with_server(scenario: Callable[[Server, Address], Awaitable[None]], **limits: float) -> None:
    """Runs a scenario beside a client that must be served throughout."""

    async def main() -> None:
        async with serving(limits=small_limits(**limits)) as (server, address):
            good = await connect(address)
            served = asyncio.Event()

            async def ask_all_the_time() -> None:
                while True:
                    reply = await good.request(Command(ECHO, body=b"still here"), SOON_S)
                    assert reply.body == b"still here"
                    served.set()
                    await asyncio.sleep(0.01)

            asking = asyncio.create_task(ask_all_the_time())
            await scenario(server, address)
            served.clear()
            done, _ = await asyncio.wait({asking, asyncio.create_task(served.wait())}, return_when="FIRST_COMPLETED")
            assert asking not in done, asking.exception()
            asking.cancel()
            await asyncio.wait({asking})
            good.close()

    run(main())


@pytest.mark.parametrize("name", NO_FRAMES)
@pytest.mark.parametrize("after", [b"", GOOD])
def test_what_is_no_frame_closes_its_connection_and_no_other(
    caplog: pytest.LogCaptureFixture, name: str, after: bytes
) -> None:
    async def scenario(server: Server, address: Address) -> None:
        async with await Raw.open(address) as raw:
            if after:
                raw.send(after)
                await raw.replies(1)
            raw.send(NO_FRAMES[name])
            assert await raw.until_closed() == b""
        await until(lambda: server.pool.held_bytes == 0)

    with_server(scenario)
    assert "closed a connection from 127.0.0.1" in caplog.text
    assert "Traceback" not in caplog.text


def test_arguments_that_are_none_are_an_answer_not_an_end() -> None:
    async def scenario(server: Server, address: Address) -> None:
        async with await Raw.open(address) as raw:
            for ext in (b'"text"', b"[1]", b'{"a":{"b":1}', b"7"):
                header = b'{"code":1,"opaque":5,"extFields":' + ext + b"}"
                raw.send(struct.pack(">II", 4 + len(header), len(header)) + header)
                if ext.startswith(b"{"):  # the header itself is broken
                    assert await raw.until_closed() == b""
                    return
                [reply] = await raw.replies(1)
                assert (reply.code, reply.opaque) == (ResponseCode.SYSTEM_ERROR, 5)

    with_server(scenario)


def test_a_frame_that_trickles_in_times_out(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, address: Address) -> None:
        async with await Raw.open(address) as raw:
            raw.send(GOOD)
            await raw.replies(1)
            closed = asyncio.ensure_future(raw.until_closed())
            for byte in GOOD:
                if closed.done():
                    break
                raw.send(bytes((byte,)))
                await asyncio.wait({closed}, timeout=0.02)
            assert await closed == b""

    with_server(scenario, slow_frame_s=0.5)
    assert "a frame took longer than 0.5 s" in caplog.text


def test_whoever_connects_and_says_nothing_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, address: Address) -> None:
        silent = [await Raw.open(address) for _ in range(20)]
        for raw in silent:
            assert await raw.until_closed() == b""
            await raw.close()
        await until(lambda: len(server.pool) == 1)

    with_server(scenario, first_frame_s=0.5)
    assert "no complete frame arrived within 0.5 s" in caplog.text


def test_a_connection_that_falls_silent_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: Server, address: Address) -> None:
        async with await Raw.open(address) as raw:
            raw.send(GOOD)
            await raw.replies(1)
            assert await raw.until_closed() == b""

    with_server(scenario, idle_s=0.8)  # the client beside it must not be silent for so long
    assert "it sent nothing for 0.8 s" in caplog.text


def test_announced_lengths_take_no_memory_before_their_bytes_come() -> None:
    async def scenario(server: Server, address: Address) -> None:
        announced = [await Raw.open(address) for _ in range(200)]
        for raw in announced:
            raw.send(struct.pack(">II", 16_000_000, 100) + b"{")
        await until(lambda: server.pool.held_bytes == 200 * 9)
        for raw in announced:
            await raw.close()

    with_server(scenario)


def test_two_thousand_connections_are_served() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * MANY + 512:
        pytest.skip(f"the system allows {hard} open files only")

    async def scenario(server: Server, address: Address) -> None:
        opened: list[Raw] = []
        for _ in range(0, MANY, 200):
            opened += await asyncio.gather(*(Raw.open(address) for _ in range(200)))
        for raw in opened:
            raw.send(GOOD)
        for raw in opened:
            [reply] = await raw.replies(1)
            assert reply.body == b"body"
        assert len(server.pool) == MANY + 1
        for raw in opened:
            await raw.close()
        await until(lambda: len(server.pool) == 1)

    with_server(scenario)


def test_connections_that_come_and_go_leave_nothing_behind() -> None:
    async def scenario(server: Server, address: Address) -> None:
        before = open_files()
        for number in range(300):
            raw = await Raw.open(address)
            raw.send((b"", GOOD[:7], frames(requests(20)), NO_FRAMES["HTTP"])[number % 4])
            await raw.close()
        await until(lambda: len(server.pool) == 1)
        await until(lambda: open_files() <= before)
        assert server.pool.held_bytes == 0

    with_server(scenario)


# -- random input ---------------------------------------------------------------------------------------------

headers = st.one_of(
    st.binary(max_size=60),
    st.dictionaries(
        st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "extFields", "other"]),
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2)),
    ).map(lambda fields: json.dumps(fields).encode()),
)


@st.composite
def almost_frames(draw: st.DrawFn) -> bytes:
    """A frame with a header that may be anything, lengths that may be wrong, and the binary bit at will."""
    header, body = draw(headers), draw(st.binary(max_size=40))
    wrong = draw(st.sampled_from([0, 0, 0, 1, -1, 1000]))
    kind = draw(st.sampled_from([0, 0, 1, 2]))
    total = max(0, 4 + len(header) + len(body) + wrong)
    return struct.pack(">II", total, (len(header) & 0xFFFFFF) | kind << 24) + header + body


inputs = st.lists(st.one_of(st.binary(max_size=80), almost_frames(), st.just(GOOD)), max_size=6)


@settings(max_examples=150)
@given(batches=st.lists(inputs, min_size=1, max_size=4))
def test_random_bytes_and_frames_disturb_nobody(batches: list[list[bytes]]) -> None:
    async def main() -> None:
        async with serving() as (server, address):
            for pieces in batches:
                async with await Raw.open(address) as raw:
                    for piece in pieces:
                        raw.send(piece)
                        await asyncio.sleep(0)
                    raw.end_sending()
                    await raw.until_closed()
            async with await Raw.open(address) as raw:
                assert (await raw.ask(Command(ECHO, body=b"good", opaque=9))).body == b"good"
            await until(lambda: len(server.pool) == 0)

    run(main())

"""Starting and stopping a server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

import pytest
from support.loopback import ECHO, SOON_S, Raw, echo, frames, requests, serving, small_limits, until

from penstock.errors import Unreachable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection, connect
from penstock.remoting.limits import ServerConnections
from penstock.remoting.server import Acceptor, Server
from penstock.remoting.sockets import bind, listen
from penstock.remoting.tls import PLAIN

if TYPE_CHECKING:
    from remoting.conftest import Run

LATER, BIG = 2, 3


def test_replies_under_way_go_out_and_then_connections_are_closed(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def later(connection: Connection, command: Command) -> Command:
            await gate.wait()
            return command.reply(ResponseCode.SUCCESS)

        server = Server({LATER: later})
        address = await server.start("127.0.0.1", 0)
        async with await Raw.open(address) as raw, await Raw.open(address) as idle:
            raw.send(frames(requests(3, LATER)))
            await until(lambda: len(server.connections) == 2)
            [busy] = [each for each in server.connections if each.peer[1] == raw.port]
            await until(lambda: busy.has_spoken)
            stopping = asyncio.ensure_future(server.stop(SOON_S))
            assert await idle.until_closed() == b""
            with pytest.raises(Unreachable):
                await connect(address)
            gate.set()
            assert len(await raw.replies(3)) == 3
            assert await raw.until_closed() == b""
            await stopping
            assert len(server.pool) == 0

    run(main())


def test_what_takes_longer_than_the_grace_is_cut_off(run: Run) -> None:
    async def main() -> None:
        forever = asyncio.get_running_loop().create_future()
        server = Server({LATER: lambda _connection, _command: forever}, limits=small_limits())
        address = await server.start("127.0.0.1", 0)
        async with await Raw.open(address) as raw:
            raw.send(frames(requests(1, LATER)))
            await until(lambda: any(each.has_spoken for each in server.connections))
            await server.stop(0.05)
            assert await raw.until_closed() == b""
            assert len(server.pool) == 0
        forever.cancel()

    run(main())


def test_a_peer_that_does_not_read_does_not_hold_up_the_end(run: Run) -> None:
    async def main() -> None:
        server = Server({BIG: lambda _, command: command.reply(0, body=bytes(1 << 20))})
        address = await server.start("127.0.0.1", 0)
        async with await Raw.open(address) as raw:
            raw.send(frames(requests(100, BIG)))
            await until(lambda: any(each.congested for each in server.connections))
            await server.stop(0.1)
            assert len(server.pool) == 0

    run(main())


def test_a_stopped_server_stays_stopped_and_its_port_is_free_again(run: Run) -> None:
    async def main() -> None:
        async with serving() as (server, address):
            await server.stop(1)
            await server.stop(1)
            again = Server({ECHO: echo})
            assert await again.start(*address) == address
            await again.stop(1)

    run(main())


@pytest.mark.parametrize("ended_by", ["close", "cancellation of all tasks"])
def test_a_connection_that_is_accepted_in_the_turn_in_which_the_server_stops_is_closed(run: Run, ended_by: str) -> None:
    async def main() -> None:
        loop, pool = asyncio.get_running_loop(), ServerConnections(small_limits())
        with socket.socket() as listener, socket.socket() as peer:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.setblocking(False)
            peer.connect(listener.getsockname())
            stopped = loop.create_future()

            class StopsAtOnce(Acceptor):
                def _accept(self) -> None:
                    super()._accept()
                    if ended_by == "close":
                        self.close()
                    else:
                        for task in asyncio.all_tasks() - {here}:
                            task.cancel()
                    stopped.set_result(len(pool))

            here = asyncio.current_task()
            acceptor = StopsAtOnce(listener, pool, small_limits(), PLAIN, lambda: Connection({}, small_limits()))
            assert await asyncio.wait_for(stopped, SOON_S) == 1, "a connection was accepted"
            await asyncio.wait_for(pool.empty.wait(), SOON_S)
            peer.setblocking(False)
            assert await asyncio.wait_for(loop.sock_recv(peer, 1), SOON_S) == b"", "the accepted socket is closed"
            if ended_by != "close":
                acceptor.close()

    run(main())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0.0.0.0"])
def test_a_name_with_both_kinds_of_address_means_ipv4(run: Run, host: str) -> None:
    async def main() -> None:
        server = Server({})
        address, port = await server.start(host, 0)
        assert address == ("0.0.0.0" if host == "0.0.0.0" else "127.0.0.1")
        assert port > 0
        await server.stop(1)

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "256.1.1.1", "192.0.2.1"])
def test_a_port_that_cannot_be_had_is_said_in_one_sentence(run: Run, host: str) -> None:
    async def main() -> None:
        async with serving() as (_, (_, taken)):
            with pytest.raises(Unreachable, match=rf"^cannot listen at {host}:{taken}: "):
                await Server({}).start(host, taken)

    run(main())


def test_a_port_that_the_system_chose_cannot_be_taken_before_it_listens() -> None:
    with contextlib.closing(bind("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(Unreachable, match="already in use"):
            bind("127.0.0.1", port)


def test_a_port_that_the_system_chose_can_be_served_again_at_once() -> None:
    with contextlib.closing(listen("127.0.0.1", 0)) as first, socket.create_connection(first.getsockname()):
        first.setblocking(True)
        accepted, _ = first.accept()
        accepted.close()  # the first to close: the system remembers this connection for a minute
        port = first.getsockname()[1]
    with contextlib.closing(listen("127.0.0.1", port)) as again:
        assert again.getsockname()[1] == port

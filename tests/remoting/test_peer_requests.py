"""Requests that a connection sends to its peer: ids, time-outs, ends."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import pytest
from support.loopback import ECHO, SOON_S, Raw, echo, frames, serving, small_limits, until

from penstock.errors import BadRequest, NoAnswer, Unreachable
from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection, connect

if TYPE_CHECKING:
    from remoting.conftest import Run

ASK_BACK, NEVER = 2, 3


def never(connection: Connection, command: Command) -> None:
    return None


def test_a_server_asks_its_client_while_it_is_asked(run: Run) -> None:
    async def ask_back(connection: Connection, command: Command) -> Command:
        back = await connection.request(Command(ECHO, body=b"from the server"), SOON_S)
        return command.reply(ResponseCode.SUCCESS, body=back.body)

    async def main() -> None:
        async with serving({ASK_BACK: ask_back}) as (_, address):
            connection = await connect(address, handlers={ECHO: echo})
            replies = await asyncio.gather(*(connection.request(Command(ASK_BACK), SOON_S) for _ in range(100)))
            assert {bytes(reply.body) for reply in replies} == {b"from the server"}
            connection.close()

    run(main())


def test_replies_find_their_requests_in_any_order(run: Run) -> None:
    async def main() -> None:
        kept: list[tuple[Connection, Command]] = []

        def keep(connection: Connection, command: Command) -> None:
            kept.append((connection, command))

        async with serving({NEVER: keep}) as (_, address):
            connection = await connect(address)
            bodies = [b"%d" % number for number in range(50)]
            asked = [asyncio.ensure_future(connection.request(Command(NEVER, body=body), SOON_S)) for body in bodies]
            await until(lambda: len(kept) == 50)
            for server_side, command in reversed(kept):
                server_side.send(command.reply(ResponseCode.SUCCESS, body=command.body))
            assert [(await reply).body for reply in asked] == bodies
            connection.close()

    run(main())


def test_a_request_without_an_answer_times_out_and_a_late_answer_is_ignored(run: Run) -> None:
    async def main() -> None:
        kept: list[tuple[Connection, Command]] = []

        def keep(connection: Connection, command: Command) -> None:
            kept.append((connection, command))

        async with serving({NEVER: keep}) as (_, address):
            connection = await connect(address)
            patient = asyncio.ensure_future(connection.request(Command(NEVER, body=b"patient"), SOON_S))
            with pytest.raises(NoAnswer, match=r"127\.0\.0\.1:\d+ did not answer in time"):
                await connection.request(Command(NEVER), 0.05)
            await until(lambda: len(kept) == 2)
            for server_side, command in reversed(kept):
                server_side.send(command.reply(ResponseCode.SUCCESS, body=command.body))
            assert (await patient).body == b"patient"
            assert (await connection.request(Command(ECHO), SOON_S)).code == ResponseCode.SUCCESS
            connection.close()

    run(main())


def test_a_shorter_time_limit_is_kept_behind_a_longer_one(run: Run) -> None:
    async def main() -> None:
        async with serving({NEVER: never}) as (_, address):
            connection = await connect(address)
            limits = (SOON_S, 0.5, 0.1, 0.3)
            asked = [asyncio.ensure_future(connection.request(Command(NEVER), limit)) for limit in limits]
            ended: list[int] = []
            for number, request in enumerate(asked):
                request.add_done_callback(lambda _, number=number: ended.append(number))
            await asyncio.wait(asked[1:])
            assert ended == [2, 3, 1]
            connection.close()
            with pytest.raises(Unreachable):
                await asked[0]

    run(main())


def test_a_request_that_is_cancelled_leaves_nothing_behind(run: Run) -> None:
    async def main() -> None:
        async with serving({NEVER: never}) as (_, address):
            connection = await connect(address)
            asked = asyncio.ensure_future(connection.request(Command(NEVER), SOON_S))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert connection.unanswered == 0
            connection.close()

    run(main())


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_requests_under_way_fail_when_the_connection_ends(run: Run, side: str) -> None:
    async def main() -> None:
        async with serving({NEVER: never}) as (server, address):
            connection = await connect(address)
            asked = [asyncio.ensure_future(connection.request(Command(NEVER), SOON_S)) for _ in range(3)]
            await until(lambda: server.connections)
            await asyncio.sleep(0)
            (connection if side == "ours" else next(iter(server.connections))).close()
            for request in asked:
                with pytest.raises(Unreachable, match="is closed"):
                    await request
            with pytest.raises(Unreachable):
                await connection.request(Command(ECHO), SOON_S)
            connection.send(Command(ECHO))  # dropped, not an error: the end may come at any time
            connection.request_oneway(Command(ECHO))

    run(main())


def test_a_request_that_cannot_be_written_is_the_callers_error(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address):
            connection = await connect(address)
            with pytest.raises(BadRequest):
                await connection.request(Command(100_000, binary=True), SOON_S)
            assert (await connection.request(Command(ECHO), SOON_S)).code == ResponseCode.SUCCESS
            connection.close()

    run(main())


def test_a_peer_that_does_not_read_delays_requests_and_they_time_out(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:  # connections stay in its backlog
            connection = await connect(deaf.getsockname(), limits=small_limits(high_water=1024))
            connection.send(Command(ECHO, body=bytes(16 << 20)))
            await until(lambda: connection.congested)
            with pytest.raises(NoAnswer, match="did not read"):
                await connection.request(Command(ECHO), 0.05)
            connection.abort()
            await asyncio.sleep(0)

    run(main())


def test_nobody_there_is_said_in_one_sentence(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address):
            pass
        with pytest.raises(Unreachable, match=rf"^cannot connect to 127\.0\.0\.1:{address[1]}: "):
            await connect(address)
        with pytest.raises(Unreachable, match=r"^cannot connect to name\.invalid:1: "):
            await connect(("name.invalid", 1))

    run(main())


def test_a_stranger_with_a_reply_is_ignored(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            assert (await raw.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            raw.send(frames(Command(ECHO, opaque=number).reply(0) for number in range(100)))
            assert (await raw.ask(Command(ECHO, opaque=2))).opaque == 2

    run(main())

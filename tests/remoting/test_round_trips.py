"""Requests and replies between a server and its peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.loopback import ECHO, Raw, echo, frames, requests, serving, until

from penstock.errors import BadMessage, BadRequest, CorruptData, StoreFailed, Unreachable
from penstock.protocol.codes import Refusal, ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.remoting.connection import Connection, connect

if TYPE_CHECKING:
    from remoting.conftest import Run

ASK, LATER = 2, 3


def test_a_request_is_answered_with_its_own_id(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            reply = await raw.ask(Command(ECHO, {"name": "value"}, b"body", opaque=77))
            assert (reply.code, reply.opaque, reply.is_response) == (ResponseCode.SUCCESS, 77, True)
            assert (reply.ext, reply.body) == ({"name": "value"}, b"body")

    run(main())


@pytest.mark.parametrize("binary", [False, True])
def test_a_reply_has_the_serialisation_of_its_request(run: Run, binary: bool) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            reply = await raw.ask(Command(ECHO, {"a": "b"}, opaque=1, binary=binary))
            assert (reply.binary, reply.ext) == (binary, {"a": "b"})

    run(main())


def test_thousands_of_requests_in_one_write_are_answered_in_their_order(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            raw.send(frames(requests(5000, body=b"x" * 128)))
            replies = await raw.replies(5000)
            assert [reply.opaque for reply in replies] == list(range(1, 5001))
            assert {bytes(reply.body) for reply in replies} == {b"x" * 128}

    run(main())


def test_a_request_may_come_byte_by_byte(run: Run) -> None:
    async def main() -> None:
        async with serving() as (server, address), await Raw.open(address) as raw:
            data = frames(requests(2, body=b"ab"))
            for at in range(len(data)):
                await raw.send_all(data[at : at + 1])
                await asyncio.sleep(0)
            assert [reply.opaque for reply in await raw.replies(2)] == [1, 2]
            assert server.pool.held_bytes == 0

    run(main())


def test_large_bodies_go_both_ways(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address):
            connection = await connect(address)
            body = bytes(range(256)) * (8 << 12)
            reply = await connection.request(Command(ECHO, body=body), 20)
            assert reply.body == body
            connection.close()

    run(main())


def test_a_one_way_request_is_served_and_not_answered(run: Run) -> None:
    async def main() -> None:
        served: list[int] = []

        def handle(connection: Connection, command: Command) -> Command:
            served.append(command.opaque)
            return command.reply(ResponseCode.SUCCESS)

        async with serving({ASK: handle}) as (_, address), await Raw.open(address) as raw:
            raw.send(frames([Command(ASK, opaque=1, flag=ONE_WAY), Command(ECHO, opaque=2)]))
            assert [reply.opaque for reply in await raw.replies(1)] == [2]
            assert served == [1]
            connection = await connect(address)
            connection.request_oneway(Command(ASK, opaque=3))
            await until(lambda: served == [1, 3])
            connection.close()

    run(main())


def test_an_unknown_code_is_answered_with_a_remark(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            reply = await raw.ask(Command(4711, opaque=1))
            assert reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert reply.remark == "request code 4711 is not supported"

    run(main())


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (
            RuntimeError("secret"),
            ResponseCode.SYSTEM_ERROR,
            "the request failed unexpectedly; see the server's log",
        ),
        (BadRequest("no such field"), ResponseCode.SYSTEM_ERROR, "no such field"),
        (BadMessage("too long"), ResponseCode.MESSAGE_ILLEGAL, "too long"),
        (StoreFailed("the disk is full", path="/a/b"), ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full"),
        (Refusal(ResponseCode.NO_PERMISSION, "not you"), ResponseCode.NO_PERMISSION, "not you"),
    ],
)
@pytest.mark.parametrize("deferred", [False, True])
def test_an_error_in_a_handler_becomes_a_reply_and_the_connection_lives(
    run: Run, caplog: pytest.LogCaptureFixture, error: Exception, code: int, remark: str, deferred: bool
) -> None:
    def fail(connection: Connection, command: Command) -> Command:
        raise error

    async def fail_later(command: Command) -> Command:
        raise error

    async def main() -> None:
        handle = (lambda _, command: fail_later(command)) if deferred else fail
        async with serving({ASK: handle}) as (_, address), await Raw.open(address) as raw:
            reply = await raw.ask(Command(ASK, body=b"the body", opaque=1))
            assert (reply.code, reply.remark, reply.opaque) == (code, remark, 1)
            assert (await raw.ask(Command(ECHO, opaque=2))).code == ResponseCode.SUCCESS

    run(main())
    assert "the body" not in caplog.text
    assert ("secret" in caplog.text) == isinstance(error, RuntimeError)


def test_requests_that_fail_do_not_fill_the_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def fail(connection: Connection, command: Command) -> Command:
        raise CorruptData("damaged", path="/a/b") if command.opaque % 2 else ZeroDivisionError

    async def main() -> None:
        async with serving({ASK: fail}) as (_, address), await Raw.open(address) as raw:
            raw.send(frames(requests(200, ASK)))
            assert len(await raw.replies(200)) == 200

    run(main())
    assert 1 <= caplog.text.count("ZeroDivisionError\n") < 10
    assert 1 <= caplog.text.count(f"request {ASK} failed: /a/b: damaged") < 10


def test_a_reply_that_cannot_be_written_becomes_an_error(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    def handle(connection: Connection, command: Command) -> Command:
        return command.reply(100_000)  # a binary header has no room for it

    async def main() -> None:
        async with serving({ASK: handle}) as (_, address), await Raw.open(address) as raw:
            raw.send(frames([Command(ASK, opaque=1, binary=True), Command(ECHO, opaque=2, binary=True)]))
            replies = await raw.replies(2)
            assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]

    run(main())


@pytest.mark.parametrize("deferred", [False, True])
def test_a_handler_that_returns_nonsense_is_an_error_too(
    run: Run, caplog: pytest.LogCaptureFixture, deferred: bool
) -> None:
    async def nonsense() -> Any:
        return "nonsense"

    async def main() -> None:
        handlers: dict[int, Any] = {ASK: lambda _connection, _command: nonsense() if deferred else "nonsense"}
        async with serving(handlers) as (_, address), await Raw.open(address) as raw:
            raw.send(frames([Command(ASK, opaque=1), Command(ECHO, opaque=2)]))
            replies = await raw.replies(2)
            assert {reply.opaque: reply.code for reply in replies} == {1: ResponseCode.SYSTEM_ERROR, 2: 0}

    run(main())


def test_deferred_replies_are_overtaken_by_those_at_once(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def later(command: Command) -> Command | None:
            await gate.wait()
            return command.reply(ResponseCode.SUCCESS) if command.opaque != 2 else None

        async with serving({LATER: lambda _, command: later(command)}) as (_, address), await Raw.open(address) as raw:
            raw.send(frames([*requests(3, LATER), Command(ECHO, opaque=9)]))
            assert [reply.opaque for reply in await raw.replies(1)] == [9]
            gate.set()
            assert [reply.opaque for reply in await raw.replies(2)] == [1, 3]

    run(main())


def test_a_handler_may_return_a_future_or_answer_later_by_itself(run: Run) -> None:
    async def main() -> None:
        future: asyncio.Future[Command | None] = asyncio.get_running_loop().create_future()
        kept: list[tuple[Connection, Command]] = []

        def keep(connection: Connection, command: Command) -> None:
            kept.append((connection, command))

        handlers = {ASK: lambda _connection, _command: future, LATER: keep}
        async with serving(handlers) as (_, address), await Raw.open(address) as raw:
            raw.send(frames([Command(ASK, opaque=1), Command(LATER, opaque=2), Command(ECHO, opaque=3)]))
            assert [reply.opaque for reply in await raw.replies(1)] == [3]
            [(connection, command)] = kept
            connection.send(command.reply(ResponseCode.SUCCESS, "late"))
            assert [reply.remark for reply in await raw.replies(1)] == ["late"]
            future.set_result(command.reply(ResponseCode.SUCCESS, "later"))
            assert [reply.remark for reply in await raw.replies(1)] == ["later"]

    run(main())


def test_what_looks_before_may_refuse_and_its_errors_are_answers_too(run: Run) -> None:
    def before(connection: Connection, command: Command) -> Command | None:
        if command.ext.get("key") == "wrong":
            return command.reply(ResponseCode.NO_PERMISSION, "wrong key")
        if "key" not in command.ext:
            raise BadRequest("no key")
        return None

    async def main() -> None:
        async with serving(before=before) as (_, address), await Raw.open(address) as raw:
            for ext, code in (({"key": "right"}, 0), ({"key": "wrong"}, 16), ({}, 1), ({"key": "right"}, 0)):
                assert (await raw.ask(Command(ECHO, ext, opaque=1))).code == code

    run(main())


def test_a_connection_knows_both_ends(run: Run) -> None:
    async def main() -> None:
        seen: list[Connection] = []

        def handle(connection: Connection, command: Command) -> Command:
            seen.append(connection)
            return echo(connection, command)

        async with serving({ASK: handle}) as (_, address), await Raw.open(address) as raw:
            await raw.ask(Command(ASK, opaque=1))
            [connection] = seen
            assert connection.peer == ("127.0.0.1", raw.port)
            assert connection.local == address
            assert (connection.is_loopback, connection.secure, connection.closed) == (True, False, False)
            gone: list[Connection] = []
            connection.on_close.append(gone.append)
            await raw.close()
            await until(lambda: gone)
            assert (gone, connection.closed) == ([connection], True)

    run(main())


def test_a_half_closed_connection_gets_its_replies_and_is_closed(run: Run) -> None:
    async def main() -> None:
        async with serving() as (_, address), await Raw.open(address) as raw:
            raw.send(frames(requests(100)))
            raw.end_sending()
            assert len(await raw.replies(100)) == 100
            assert await raw.until_closed() == b""

    run(main())


@pytest.mark.parametrize("host", ["a..b", f"{'x' * 70}.example", "a\0b"])
def test_a_name_that_no_host_can_have_is_unreachable(host: str) -> None:
    with pytest.raises(Unreachable, match="cannot connect to"):
        asyncio.run(connect((host, 9876)))

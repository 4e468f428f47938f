"""What one read brings is answered with one write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.loopback import ECHO, echo, frames, requests

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import ONE_WAY, Command
from penstock.protocol.frame import FrameReader, encode
from penstock.remoting.connection import Connection
from penstock.remoting.limits import ConnectionLimits

if TYPE_CHECKING:
    from remoting.conftest import Run

LARGE = 2


class Recorder(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[list[bytes | memoryview]] = []

    def write(self, data: Any) -> None:
        self.writes.append([data])

    def writelines(self, list_of_data: Any) -> None:
        self.writes.append(list(list_of_data))

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def connected(handlers: dict[int, Any]) -> tuple[Connection, Recorder]:
    connection, transport = Connection(handlers, ConnectionLimits()), Recorder()
    connection.connection_made(transport)
    return connection, transport


def test_all_replies_to_one_read_leave_together(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected({ECHO: echo})
        connection.data_received(frames(requests(1000, body=b"x" * 20)))
        [[written]] = transport.writes
        assert len(FrameReader().feed(bytes(written))) == 1000

    run(main())


def test_what_is_sent_in_one_turn_of_the_loop_leaves_together(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected({})
        connection.send(Command(1))
        connection.send(Command(2))
        assert transport.writes == []
        await asyncio.sleep(0)
        [[written]] = transport.writes
        assert [command.code for command in FrameReader().feed(bytes(written))] == [1, 2]

    run(main())


def test_what_is_laid_down_leaves_with_the_flush_and_needs_no_other_turn_of_the_loop(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected({})
        connection.enqueue(Command(1))
        connection.enqueue(Command(2))
        assert transport.writes == []
        connection.flush()
        [[written]] = transport.writes
        assert [command.code for command in FrameReader().feed(bytes(written))] == [1, 2]
        connection.connection_lost(None)
        connection.enqueue(Command(3))
        connection.flush()
        assert len(transport.writes) == 1, "dropped, as the connection is closed"

    run(main())


def test_a_flush_while_requests_are_served_leaves_it_to_their_replies(run: Run) -> None:
    async def main() -> None:
        def answers_at_once(connection: Connection, command: Command) -> Command:
            connection.enqueue(Command(7))
            connection.flush()
            return command.reply(ResponseCode.SUCCESS)

        connection, transport = connected({ECHO: answers_at_once})
        connection.data_received(frames(requests(2)))
        [[written]] = transport.writes
        assert len(FrameReader().feed(bytes(written))) == 4

    run(main())


@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
def test_a_large_body_is_not_copied(run: Run, size: int) -> None:
    body = memoryview(bytes(size))

    async def main() -> None:
        connection, transport = connected({LARGE: lambda _, command: command.reply(ResponseCode.SUCCESS, body=body)})
        connection.data_received(frames(requests(1, LARGE)))
        [parts] = transport.writes
        assert any(part is body for part in parts) == (size == 1 << 20)

    run(main())


@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 16])
def test_a_reply_in_two_pieces_leaves_in_its_place(run: Run, size: int) -> None:
    """A handler may encode its reply itself, and give the body apart from what comes before it."""
    body = bytes(size)

    def pieces(connection: Connection, command: Command) -> tuple[bytes, bytes]:
        whole = encode(command.reply(ResponseCode.SUCCESS, body=body))
        return whole[:-size], body

    async def main() -> None:
        connection, transport = connected({ECHO: echo, LARGE: pieces})
        asked = [Command(LARGE if number % 2 else ECHO, opaque=number) for number in range(6)]
        asked.append(Command(LARGE, opaque=6, flag=ONE_WAY))
        connection.data_received(frames(asked))
        [parts] = transport.writes
        replies = FrameReader().feed(b"".join(parts))
        assert [(reply.opaque, len(reply.body)) for reply in replies] == [
            (number, size if number % 2 else 0) for number in range(6)
        ]
        assert any(part is body for part in parts) == (size == 1 << 16)

    run(main())


def test_what_is_still_to_be_written_goes_out_before_a_close(run: Run) -> None:
    async def main() -> None:
        connection, transport = connected({})
        transport.close = lambda: transport.writes.append([b"closed"])  # type: ignore[method-assign]
        transport.get_write_buffer_size = lambda: 0  # type: ignore[method-assign]
        connection.send(Command(1))
        connection.close()
        connection.send(Command(2))
        await asyncio.sleep(0)
        assert len(transport.writes) == 2
        assert transport.writes[-1] == [b"closed"]

    run(main())

"""Frames that are served without commands: in order with the others, and within the same limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from support.loopback import ECHO, Raw, frames, requests, serving, small_limits, until

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import FrameReader, encode
from penstock.remoting.connection import Connection
from penstock.remoting.limits import FLUSH_AT, ConnectionLimits, ServerConnections

if TYPE_CHECKING:
    from remoting.conftest import Run

DIRECT = 7
REPLY = bytes(64 << 10)


class DirectFrames:
    """Serves whole frames of the request DIRECT, a few for each call, with a large reply; leaves all others."""

    def __init__(self) -> None:
        self.served: list[int] = []

    def __call__(self, connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
        replies: list[bytes] = []
        while at + 8 <= len(data) and len(replies) < 4:
            stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if stop > len(data):
                break
            (command,) = FrameReader().feed(data[at:stop])
            if command.code != DIRECT:
                return at, stop, replies
            self.served.append(command.opaque)
            replies.append(encode(command.reply(ResponseCode.SUCCESS, body=REPLY)))
            at = stop
        return at, at, replies


def test_replies_come_in_order_whoever_serves_the_requests(run: Run) -> None:
    async def main() -> None:
        direct = DirectFrames()
        mixed = [Command((ECHO, DIRECT, DIRECT)[number % 3], opaque=number) for number in range(60)]
        options = {"limits": small_limits(turn_s=60.0), "serve_frames": direct}  # what waits is left to the handlers
        async with serving({}, **options) as (_, address), await Raw.open(address) as peer:
            data = frames(mixed)
            peer.send(data[:-5])
            peer.send(data[-5:])
            replies = await peer.replies(60)
            assert [reply.opaque for reply in replies] == list(range(60))
            assert direct.served == [command.opaque for command in mixed if command.code == DIRECT]

    run(main())


def test_a_flood_of_such_frames_waits_until_its_replies_are_read(run: Run) -> None:
    async def main() -> None:
        direct, limits = DirectFrames(), small_limits(high_water=256 << 10)
        options = {"limits": limits, "serve_frames": direct}
        async with serving({}, **options) as (server, address), await Raw.open(address) as flood:
            flood.stop_reading()
            flood.send(frames(requests(2000, DIRECT)))  # 125 MiB of replies
            await until(lambda: server.pool.unsent_bytes > limits.high_water)
            assert len(direct.served) < 2000
            assert server.pool.unsent_bytes < limits.high_water + (1 << 20)
            flood.read_again()
            assert [reply.opaque for reply in await flood.replies(2000)] == list(range(1, 2001))

    run(main())


def test_a_bad_frame_behind_others_still_closes_the_connection(run: Run) -> None:
    async def main() -> None:
        direct = DirectFrames()
        async with serving({}, serve_frames=direct) as (server, address), await Raw.open(address) as peer:
            peer.send(frames([Command(DIRECT, opaque=1), Command(ECHO, opaque=2)]) + b"\x00\x00\x00\x05\x09bad")
            await until(lambda: not server.connections)
            assert direct.served == [1]

    run(main())


class BrokenPipe(asyncio.Transport):
    """Its peer is gone: the first write fails, and the loop tells the protocol in its next turn."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.writes += 1
        self._is_closing = True

    def writelines(self, list_of_data: Any) -> None:
        self.write(list_of_data)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def test_frames_behind_a_write_that_failed_are_not_served_for_nobody(run: Run) -> None:
    async def main() -> None:
        calls: list[int] = []

        def serve(connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
            calls.append(at)
            assert len(calls) < 10, "it would never end"
            return (at, at, []) if at == len(data) else (at + 8, at + 8, [bytes(FLUSH_AT)])

        limits = ConnectionLimits(high_water=1)
        connection = Connection({}, limits, pool=ServerConnections(limits), serve_frames=serve)
        transport = BrokenPipe()
        connection.connection_made(transport)
        connection.data_received(bytes(24))
        assert calls == [0]
        assert transport.writes == 1
        connection.send(Command(1))
        await asyncio.sleep(0)
        assert not connection.is_behind, "what cannot be sent is dropped"

    run(main())


def test_commands_behind_a_write_that_failed_are_not_served_for_nobody(run: Run) -> None:
    async def main() -> None:
        served: list[int] = []

        def large(connection: Connection, command: Command) -> Command:
            served.append(command.opaque)
            return command.reply(ResponseCode.SUCCESS, body=bytes(FLUSH_AT))

        def leave(connection: Connection, data: bytes, at: int) -> tuple[int, int, list[bytes]]:
            left = len(data) > at
            return at, at + 4 + int.from_bytes(data[at : at + 4], "big") if left else at, []

        for serve in (None, leave):
            served.clear()
            limits = ConnectionLimits(high_water=1)
            connection = Connection({2: large}, limits, pool=ServerConnections(limits), serve_frames=serve)
            transport = BrokenPipe()
            connection.connection_made(transport)
            connection.data_received(frames(requests(700, 2)))
            assert served == [1]
            assert transport.writes == 1
            assert not connection.is_behind

    run(main())

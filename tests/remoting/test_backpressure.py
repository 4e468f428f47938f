"""A peer that sends more than it reads: it waits, or goes; others do not notice, and memory stays bounded."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
from support.loopback import ECHO, SOON_S, Raw, frames, requests, serving, small_limits, until

from penstock.protocol.codes import ResponseCode
from penstock.protocol.command import Command
from penstock.protocol.frame import encode
from penstock.remoting.connection import Connection, connect

if TYPE_CHECKING:
    from remoting.conftest import Run

BIG, LATER = 2, 3
BODY = bytes(64 << 10)


def big(connection: Connection, command: Command) -> Command:
    return command.reply(ResponseCode.SUCCESS, body=bytes(len(BODY)))


def test_a_flood_without_reading_stops_being_served_and_goes_on_when_it_reads(run: Run) -> None:
    async def main() -> None:
        served = 0

        def count(connection: Connection, command: Command) -> Command:
            nonlocal served
            served += 1
            return big(connection, command)

        limits = small_limits(high_water=256 << 10)
        async with serving({BIG: count}, limits=limits) as (server, address), await Raw.open(address) as flood:
            flood.stop_reading()
            flood.send(frames(requests(2000, BIG)))  # 125 MiB of replies for 200 KiB of requests
            await until(lambda: server.pool.unsent_bytes > limits.high_water)
            connection = await connect(address)
            await connection.request(Command(ECHO), SOON_S)
            before = served
            for _ in range(100):
                assert (await connection.request(Command(ECHO), SOON_S)).code == ResponseCode.SUCCESS
            connection.close()
            assert served == before < 2000
            assert server.pool.unsent_bytes < limits.high_water + (1 << 20)
            flood.read_again()
            replies = await flood.replies(2000)
            assert [reply.opaque for reply in replies] == list(range(1, 2001))
            assert (await flood.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            await until(lambda: server.pool.unsent_bytes == 0)

    run(main())


def test_many_floods_take_little_memory(run: Run) -> None:
    async def main() -> None:
        limits = small_limits(high_water=64 << 10)
        async with serving({BIG: big}, limits=limits) as (server, address):
            floods = [await Raw.open(address) for _ in range(20)]
            data = frames(requests(1000, BIG))
            tracemalloc.start()
            for flood in floods:
                flood.stop_reading()
                flood.send(data)
            await until(lambda: sum(each.congested for each in server.connections) == len(floods))
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert peak < 40 << 20  # and 1,250 MiB were asked for
            for flood in floods:
                await flood.close()

    run(main())


def test_a_peer_that_never_reads_is_cut_off(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        limits = small_limits(high_water=64 << 10, stalled_s=0.5)
        async with serving({BIG: big}, limits=limits) as (server, address), await Raw.open(address) as flood:
            flood.send(frames(requests(1000, BIG)))
            await until(lambda: server.connections)
            await until(lambda: not server.connections)
            assert (server.pool.unsent_bytes, len(server.pool)) == (0, 0)

    run(main())
    assert "it has not read its replies for 0.5 s" in caplog.text


def test_when_too_much_waits_in_all_the_worst_one_goes(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        limits = small_limits(high_water=1 << 20, outgoing_bytes=3 << 20)
        async with serving({BIG: big}, limits=limits) as (server, address):
            floods = [await Raw.open(address) for _ in range(8)]
            for flood in floods:
                flood.stop_reading()
                flood.send(frames(requests(1000, BIG)))
            await until(lambda: 0 < len(server.connections) < len(floods))
            assert server.pool.unsent_bytes <= limits.outgoing_bytes
            async with await Raw.open(address) as other:
                assert (await other.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            for flood in floods:
                await flood.close()

    run(main())
    assert "bytes wait for peers that do not read" in caplog.text


def test_when_unfinished_frames_take_too_much_the_largest_goes(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(limits=small_limits(incoming_bytes=1 << 20)) as (server, address):
            small, large = await Raw.open(address), await Raw.open(address)
            frame = frames(requests(1, body=bytes(2 << 20)))
            await small.send_all(frame[: 100 << 10])
            await until(lambda: server.pool.held_bytes == 100 << 10)
            large.send(frame[:-1])
            assert await large.until_closed() == b""
            assert server.pool.held_bytes <= 1 << 20
            await small.close()
            await until(lambda: server.pool.held_bytes == 0)
            await large.close()

    run(main())
    assert "its own is the largest" in caplog.text


def test_so_many_deferred_replies_and_no_more(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        begun: list[int] = []

        async def later(connection: Connection, command: Command) -> Command:
            begun.append(command.opaque)
            await gate.wait()
            return command.reply(ResponseCode.SUCCESS)

        async with (
            serving({LATER: later}, limits=small_limits(deferred=8)) as (_, address),
            await Raw.open(address) as greedy,
            await Raw.open(address) as other,
        ):
            await greedy.send_all(frames(requests(50, LATER)))
            await until(lambda: len(begun) == 8)
            assert (await other.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            await greedy.send_all(frames([Command(LATER, opaque=51)]))
            assert (await other.ask(Command(ECHO, opaque=2))).code == ResponseCode.SUCCESS
            assert begun == [1, 2, 3, 4, 5, 6, 7, 8]
            gate.set()
            assert sorted(reply.opaque for reply in await greedy.replies(51)) == list(range(1, 52))

    run(main())


def test_large_frames_share_the_loop_with_small_requests(run: Run) -> None:
    """Eight frames of 1 MiB become complete at the same moment, and a small request comes: it waits for two of them at
    most."""

    async def main() -> None:
        turn, served = 0, []
        loop = asyncio.get_running_loop()

        def count_turns() -> None:
            nonlocal turn, counting
            turn += 1
            counting = loop.call_soon(count_turns)

        counting = loop.call_soon(count_turns)

        def handle(connection: Connection, command: Command) -> Command:
            served.append((turn, command.code, command.opaque))
            return command.reply(ResponseCode.SUCCESS)

        limits = small_limits(turn_bytes=1 << 20, incoming_bytes=64 << 20, frame_bytes=16 << 20)
        async with serving({BIG: handle, LATER: handle}, limits=limits) as (server, address), AsyncExitStack() as stack:
            large = [await stack.enter_async_context(await Raw.open(address)) for _ in range(8)]
            small = await stack.enter_async_context(await Raw.open(address))
            whole = [encode(Command(BIG, body=bytes(1 << 20), opaque=number)) for number in range(8)]
            for raw, frame in zip(large, whole, strict=True):
                await raw.send_all(frame[:-1])
            await until(lambda: server.pool.held_bytes == sum(map(len, whole)) - 8)
            for raw, frame in zip(large, whole, strict=True):
                raw.send(frame[-1:])
            small.send(encode(Command(LATER, opaque=99)))
            for raw in large:
                await raw.replies(1)
            await small.replies(1)
            assert server.pool.held_bytes == 0
        counting.cancel()
        by_turn = Counter(turn for turn, code, _ in served if code == BIG)
        assert max(by_turn.values()) == 1
        assert [each[0] for each in served if each[1] == LATER] <= [min(by_turn) + 1]
        assert sorted(opaque for _, code, opaque in served if code == BIG) == list(range(8))

    run(main())


def test_one_connection_does_not_keep_the_loop_while_it_sends(run: Run) -> None:
    async def main() -> None:
        turn, bytes_by_turn = 0, Counter[int]()
        loop = asyncio.get_running_loop()

        def count_turns() -> None:
            nonlocal turn, counting
            turn += 1
            counting = loop.call_soon(count_turns)

        counting = loop.call_soon(count_turns)

        def handle(connection: Connection, command: Command) -> Command:
            bytes_by_turn[turn] += len(command.body)
            return command.reply(ResponseCode.SUCCESS)

        limits = small_limits(turn_bytes=256 << 10, incoming_bytes=64 << 20, frame_bytes=16 << 20)
        async with serving({BIG: handle}, limits=limits) as (_, address), await Raw.open(address) as raw:
            many = frames([Command(BIG, body=bytes(100_000), opaque=number) for number in range(100)])
            sending = asyncio.create_task(raw.send_all(many))
            assert len(await raw.replies(100)) == 100
            await sending
        counting.cancel()
        assert sum(bytes_by_turn.values()) == 100 * 100_000
        assert max(bytes_by_turn.values()) < 2 << 20

    run(main())


@pytest.mark.parametrize("turn_s", [0.002, 60.0])
def test_requests_that_take_long_share_the_loop_with_those_of_others(run: Run, turn_s: float) -> None:
    """A hundred requests of a millisecond come with one read, and so does one of another connection."""

    async def main() -> None:
        served: list[int] = []

        def slow(connection: Connection, command: Command) -> Command:
            time.sleep(0.001)
            served.append(command.opaque)
            return command.reply(ResponseCode.SUCCESS)

        limits = small_limits(turn_s=turn_s)
        async with serving({BIG: slow}, limits=limits) as (_, address), AsyncExitStack() as stack:
            greedy, other = [await stack.enter_async_context(await Raw.open(address)) for _ in range(2)]
            await greedy.send_all(frames(requests(100, BIG)))
            at_once = [0]
            while sum(at_once) < 100:
                assert (await other.ask(Command(ECHO, opaque=2))).code == ResponseCode.SUCCESS
                at_once.append(len(served) - sum(at_once))
            assert max(at_once) <= (20 if turn_s < 1 else 100)
            assert [reply.opaque for reply in await greedy.replies(100)] == served == list(range(1, 101))

    run(main())


def test_only_so_many_connections_wait_in_line_with_their_requests(run: Run) -> None:
    async def main() -> None:
        most = 0

        def slow(connection: Connection, command: Command) -> Command:
            nonlocal most
            time.sleep(0.001)
            most = max(most, sum(each._in_line for each in server.connections))
            return command.reply(ResponseCode.SUCCESS)

        limits = small_limits(turn_s=0.001, in_line=2)
        async with serving({BIG: slow}, limits=limits) as (server, address), AsyncExitStack() as stack:
            greedy = [await stack.enter_async_context(await Raw.open(address)) for _ in range(6)]
            for each in greedy:
                await each.send_all(frames(requests(20, BIG)))
            for each in greedy:
                assert [reply.opaque for reply in await each.replies(20)] == list(range(1, 21))
        assert 0 < most <= 2

    run(main())


def test_a_connection_that_fails_in_line_does_not_stop_the_others(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def slow(connection: Connection, command: Command) -> Command:
            time.sleep(0.002)
            return command.reply(ResponseCode.SUCCESS)

        async with (
            serving({BIG: slow}, limits=small_limits(turn_s=0.001)) as (server, address),
            await Raw.open(address) as failing,
            await Raw.open(address) as other,
        ):
            assert (await failing.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            (served,) = [each for each in server.connections if each.peer[1] == failing.port]
            served.go_on = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
            failing.send(frames(requests(20, BIG)))
            await failing.until_closed()
            await other.send_all(frames(requests(20, BIG)))
            assert len(await other.replies(20)) == 20

    run(main())
    assert "division by zero" in caplog.text


def test_deferred_requests_are_limited_by_their_bytes(run: Run) -> None:
    async def main() -> None:
        gate = asyncio.Event()
        begun: list[int] = []

        async def later(connection: Connection, command: Command) -> Command:
            begun.append(command.opaque)
            await gate.wait()
            return command.reply(ResponseCode.SUCCESS)

        async with (
            serving({LATER: later}, limits=small_limits(deferred=100, deferred_bytes=100_000)) as (server, address),
            await Raw.open(address) as greedy,
            await Raw.open(address) as other,
        ):
            large = [Command(LATER, {"a": "x" * 10_000}, bytes(20_000), opaque) for opaque in range(1, 21)]
            await greedy.send_all(frames(large))
            await until(lambda: len(begun) == 3)
            assert (await other.ask(Command(ECHO, opaque=1))).code == ResponseCode.SUCCESS
            assert begun == [1, 2, 3]
            assert 100_000 <= server.pool.deferred_bytes < 200_000
            gate.set()
            assert len(await greedy.replies(20)) == 20
            assert server.pool.deferred_bytes == 0

    run(main())


def test_when_deferred_requests_take_too_much_in_all_the_worst_one_goes(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def later(connection: Connection, command: Command) -> Command:
            await gate.wait()
            return command.reply(ResponseCode.SUCCESS)

        async with serving({LATER: later}, limits=small_limits(waiting_bytes=100_000)) as (server, address):
            async with await Raw.open(address) as greedy, await Raw.open(address) as other:
                await other.send_all(frames([Command(LATER, body=bytes(20_000), opaque=1)]))
                await until(lambda: server.pool.deferred_bytes > 0)
                await greedy.send_all(frames([Command(LATER, body=bytes(60_000), opaque=each) for each in (1, 2)]))
                await until(lambda: len(server.connections) == 1)
                gate.set()
                assert [reply.opaque for reply in await other.replies(1)] == [1]
            assert server.pool.deferred_bytes == 0
        assert "it has most of them" in caplog.text

    run(main())


def test_a_closed_peer_that_does_not_read_is_not_waited_for(run: Run) -> None:
    async def main() -> None:
        limits = small_limits(goodbye_s=0.1)
        async with serving({BIG: big}, limits=limits) as (server, address), await Raw.open(address) as flood:
            flood.send(frames(requests(1000, BIG)))
            await until(lambda: any(each.congested for each in server.connections))
            [connection] = server.connections
            connection.close()
            await until(lambda: not server.connections)

    run(main())

"""More sends at once than a broker can answer: how many are under way, and what each of them reports."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.test_kill_and_restart import Server
from client.test_what_brokers_answer import STORED, answers
from support.clients import FakeCluster, until_true

from penstock.client import Message, Producer, ProducerOptions, PullConsumer, SendResult
from penstock.client.send_window import SendTurn, SendWindow
from penstock.errors import BadMessage, BadSettings, NoAnswer, NoRoute, PenstockError, Refused, Unreachable
from penstock.protocol.bodies.routes import BrokerData, QueueData, TopicRouteData
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection
from penstock.remoting.pending_requests import SILENT_S

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

IN_FLIGHT = 200


async def stored(namesrv: str, topic: str) -> Counter[bytes]:
    """How often each body is in a topic."""
    found: Counter[bytes] = Counter()
    async with PullConsumer("look", namesrv, max_messages=1000) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = 0, await consumer.offsets.max_offset(queue)
            while offset < end:
                page = await consumer.pull(queue, offset, wait_s=1.0)
                found.update(message.body for message in page.messages)
                offset = page.next_offset
    return found


async def report(producer: Producer, number: int, progress: list[int]) -> SendResult | PenstockError:
    """What a send says. The message with number 7 has a body that is text."""
    body: Any = b"%d" % number if number != 7 else "7"
    try:
        return await producer.send(Message("flood", body))
    except PenstockError as error:
        return error
    finally:
        progress[0] += 1


def test_a_broker_that_stands_still_costs_no_more_than_what_is_in_flight(run: Run, tmp_path: Path) -> None:
    server, count = Server(tmp_path / "store"), 6000
    options = ProducerOptions(timeout_s=1.0, max_in_flight=IN_FLIGHT)

    async def main() -> None:
        async with Producer("PID", server.namesrv, options=options) as producer:
            await producer.send(Message("flood", b"first"))
            progress = [0]
            sends = [asyncio.create_task(report(producer, number, progress)) for number in range(count)]
            await until_true(lambda: progress[0] > count // 10)
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(2.5)  # the stall: longer than two timeouts
            server.signal(signal.SIGCONT)
            reports = await asyncio.gather(*sends)
        kinds = Counter(type(each).__name__ for each in reports)
        assert kinds["BadMessage"] == 1
        assert isinstance(reports[7], BadMessage)
        assert 0 < kinds["NoAnswer"] <= IN_FLIGHT, kinds
        assert kinds["SendResult"] == count - 1 - kinds["NoAnswer"], kinds
        found = await stored(server.namesrv, "flood")
        acknowledged = {b"%d" % number for number, each in enumerate(reports) if isinstance(each, SendResult)}
        assert acknowledged <= set(found)
        assert set(found.values()) == {1}

    server.start()
    run(main())
    assert server.end(signal.SIGTERM) == 0


def test_the_report_of_every_send_is_right_when_the_broker_is_killed_and_restarted(run: Run, tmp_path: Path) -> None:
    server, count = Server(tmp_path / "store"), 4000
    options = ProducerOptions(timeout_s=2.0, max_in_flight=IN_FLIGHT)

    async def main() -> None:
        async with Producer("PID", server.namesrv, options=options) as producer:
            await producer.send(Message("flood", b"first"))
            progress = [0]
            sends = [asyncio.create_task(report(producer, number, progress)) for number in range(count)]
            await until_true(lambda: progress[0] > count // 10)
            server.kill()
            await asyncio.to_thread(server.start)
            reports = await asyncio.gather(*sends)
        found = await stored(server.namesrv, "flood")
        for number, each in enumerate(reports):
            body = b"%d" % number
            if isinstance(each, SendResult):
                assert body in found, f"{number} is acknowledged and gone"
            elif not isinstance(each, NoAnswer):
                assert body not in found, f"{number} is stored, and its send says: {each}"
        assert sum(isinstance(each, SendResult) for each in reports) > count // 10

    server.start()
    run(main())
    assert server.end(signal.SIGTERM) == 0


def test_a_refusal_after_a_lost_connection_does_not_say_that_nothing_is_stored(run: Run) -> None:
    came: list[Command] = []

    def send(connection: Connection, command: Command) -> Command | None:
        came.append(command)
        if len(came) == 1:
            connection.abort()  # the message may be stored by now
            return None
        return command.reply(ResponseCode.NO_PERMISSION, "not any more")

    async def main() -> None:
        async with (
            FakeCluster({RequestCode.SEND_MESSAGE_V2: send}).running() as fake,
            Producer("PID", fake.namesrv) as producer,
        ):
            with pytest.raises(NoAnswer, match=r"not any more .*; the message may be stored, with the id [0-9A-F]{32}"):
                await producer.send(Message("T", b"x"))
            assert len(came) == 2

    run(main())


def test_a_message_that_never_left_is_reported_as_not_sent(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            await producer.queues("orders")
            await asyncio.to_thread(b.stop)
            with pytest.raises(Unreachable):
                await producer.send(Message("orders", b"x"))
            await asyncio.to_thread(b.start)

    run(main())


async def answer_slowly(connection: Connection, command: Command) -> Command:
    await asyncio.sleep(0.2)
    return command.reply(0, None, STORED)


def test_the_time_until_its_turn_does_not_count_for_a_send(run: Run) -> None:
    async def main() -> None:
        options = ProducerOptions(timeout_s=0.6, max_in_flight=1)
        async with (
            FakeCluster({RequestCode.SEND_MESSAGE_V2: answer_slowly}).running() as fake,
            Producer("PID", fake.namesrv, options=options) as producer,
        ):
            results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(5)))
            assert all(result.ok for result in results)

    run(main())


def test_the_deadline_of_a_send_starts_when_its_frame_is_written(run: Run) -> None:
    async def main() -> None:
        async with (
            FakeCluster({RequestCode.SEND_MESSAGE_V2: answer_slowly}).running() as fake,
            Producer("PID", fake.namesrv, options=ProducerOptions(timeout_s=0.5)) as producer,
        ):
            await producer.send(Message("T", b"first"))
            send = asyncio.create_task(producer.send(Message("T", b"x")))
            asyncio.get_running_loop().call_soon(time.sleep, 0.6)  # runs before the frame is written
            assert (await send).ok

    run(main())


def test_an_answer_that_has_arrived_counts_although_the_loop_was_busy(run: Run, b: LocalBroker) -> None:
    """A callback of another socket takes longer than the timeout; some loops run timers before they read again."""
    ours, theirs = socket.socketpair()

    def block() -> None:
        ours.recv(1)
        time.sleep(1.5)

    async def main() -> None:
        asyncio.get_running_loop().add_reader(ours, block)
        async with Producer("PID", b.namesrv, options=ProducerOptions(timeout_s=1.0)) as producer:
            await producer.send(Message("orders", b"first"))
            sends = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(10)]
            for _ in range(2):
                await asyncio.sleep(0)  # the sends begin, then their frames are written
            theirs.send(b"x")
            assert all(result.ok for result in await asyncio.gather(*sends))
        asyncio.get_running_loop().remove_reader(ours)

    with ours, theirs:
        run(main())


def test_a_late_answer_gives_the_turn_back(run: Run) -> None:
    held: list[tuple[Connection, Command]] = []

    def hold(connection: Connection, command: Command) -> None:
        held.append((connection, command))

    async def main() -> None:
        options = ProducerOptions(timeout_s=0.1, max_in_flight=2)
        async with (
            FakeCluster({RequestCode.SEND_MESSAGE_V2: hold}).running() as fake,
            Producer("PID", fake.namesrv, options=options) as producer,
        ):
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            reports = await asyncio.gather(*sends[:2], return_exceptions=True)
            assert [type(each) for each in reports] == [NoAnswer, NoAnswer]
            assert len(held) == 2, "the third may not be sent before the broker answers one"
            connection, command = held[0]
            connection.send(command.reply(0, None, STORED))
            await until_true(lambda: len(held) == 3)
            connection, command = held[2]
            connection.send(command.reply(0, None, STORED))
            assert (await sends[2]).ok

    run(main())


def test_a_broker_that_stands_still_does_not_hold_up_what_can_go_to_another_one(run: Run) -> None:
    def ok(connection: Connection, command: Command) -> Command:
        return command.reply(0, None, STORED)

    async def main() -> None:
        silent = FakeCluster({RequestCode.SEND_MESSAGE_V2: lambda connection, command: None})
        working = FakeCluster(
            {
                RequestCode.SEND_MESSAGE_V2: ok,
                RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda connection, command: both(command),
            }
        )

        def both(command: Command) -> Command:
            data = TopicRouteData(
                broker_datas=[
                    BrokerData(broker_name=name, cluster="C", broker_addrs={0: cluster.namesrv})
                    for name, cluster in (("silent", silent), ("working", working))
                ],
                queue_datas=[
                    QueueData(broker_name=name, perm=6, read_queue_nums=1, write_queue_nums=1)
                    for name in ("silent", "working")
                ],
            )
            return command.reply(ResponseCode.SUCCESS, body=data.to_bytes())

        options = ProducerOptions(timeout_s=0.1, max_in_flight=4)
        async with (
            silent.running(),
            working.running(),
            Producer("PID", working.namesrv, options=options) as producer,
            asyncio.timeout(SILENT_S / 2),  # less than a turn is held for a broker without an answer
        ):
            sends = (producer.send(Message("T", b"x")) for _ in range(40))
            reports = await asyncio.gather(*sends, return_exceptions=True)
        kinds = Counter(type(each) for each in reports)
        assert kinds[NoAnswer] <= 4
        assert kinds[SendResult] == 40 - kinds[NoAnswer]

    run(main())


def test_a_producer_that_closes_says_which_messages_it_did_not_send(run: Run) -> None:
    silent = {RequestCode.SEND_MESSAGE_V2: lambda connection, command: None}

    async def main() -> None:
        async with FakeCluster(silent).running() as fake:
            producer = await Producer("PID", fake.namesrv, options=ProducerOptions(max_in_flight=1)).start()
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            await until_true(lambda: len(fake.of(RequestCode.SEND_MESSAGE_V2)) == 1)
            await producer.close()
            first, *others = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(first, NoAnswer)
            assert [str(each) for each in others] == [
                "this producer is closed, and the message was not sent; create a new `Producer`"
            ] * 2
            with pytest.raises(Unreachable, match="this producer is closed"):
                await producer.send(Message("T", b"x"))

    run(main())


def test_a_turn_that_nobody_takes_goes_to_the_next_one(run: Run) -> None:
    async def main() -> None:
        window = SendWindow(1)
        first = window.take()
        assert first
        assert not window.take()
        gone, later, last = (asyncio.create_task(window.wait()) for _ in range(3))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        SendTurn(window, (first,)).end()
        later.cancel()  # in the moment in which its turn has come
        SendTurn(window, (await last,)).end()
        await window.drain()
        assert window.take()

    run(main())


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"retries": -1}, {"timeout_s": 0.0}])
def test_limits_that_send_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        ProducerOptions(**options)


def test_errors_that_are_answers_stay_as_they_are(run: Run) -> None:
    async def main() -> None:
        async with FakeCluster(answers(13)).running() as fake, Producer("PID", fake.namesrv) as producer:  # type: ignore[arg-type]
            with pytest.raises(Refused):
                await producer.send(Message("T", b"x"))
            other = (await producer.queues("U"))[0]
            with pytest.raises(NoRoute):
                await producer.send(Message("T", b"x"), queue=other)

    run(main())

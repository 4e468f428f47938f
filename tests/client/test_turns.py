"""Sends of one turn of the event loop leave in one request, and each has the report of its own message."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from client.test_kill_and_restart import Server
from client.test_linger import Broker
from client.test_producer import everything
from client.test_what_brokers_answer import STORED
from support.clients import FakeCluster, until_true
from support.effort import chosen_seed

from penstock.client import Message, Producer, ProducerOptions, PullConsumer, ReceivedMessage, SendResult, sync
from penstock.errors import BadMessage, NoAnswer, PenstockError, Refused
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.protocol.bodies.queues import MessageQueue
    from penstock.testing import LocalBroker


async def send_all(producer: Producer, *messages: Message) -> list[SendResult]:
    return await asyncio.gather(*(producer.send(message) for message in messages))


# -- what leaves together --------------------------------------------------------------------------------------------


def test_the_sends_of_one_turn_are_one_request_and_a_send_alone_is_no_batch(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv) as producer:
            await send_all(producer, *(Message("T", b"%d" % number) for number in range(30)))
            assert server.sizes == [30]
            await producer.send(Message("T", b"alone"))
            assert server.sizes == [30, 1]
            assert len(fake.of(RequestCode.SEND_MESSAGE_V2)) == 1

    run(main())


def test_many_tasks_that_wait_for_their_reports_stay_together(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv) as producer:

            async def work() -> None:
                for _ in range(10):
                    await producer.send(Message("T", b"x"))

            await asyncio.gather(*(work() for _ in range(16)))
            assert server.sizes == [16] * 10

    run(main())


def test_with_a_limit_of_one_byte_every_message_leaves_alone(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        options = ProducerOptions(batch_bytes=1)
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv, options=options) as producer:
            await send_all(producer, *(Message("T", b"x") for _ in range(5)))
            assert server.sizes == [1] * 5

    run(main())


def test_a_request_stays_below_its_limit(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        options = ProducerOptions(batch_bytes=2000)
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv, options=options) as producer:
            await send_all(producer, *(Message("T", b"x" * 500) for _ in range(7)))
            assert server.sizes == [3, 3, 1]

    run(main())


@pytest.mark.parametrize(
    "alone",
    [
        {"delay_level": 3},
        {"properties": {"DELAY": "3"}},
        {"properties": {"TRAN_MSG": "true"}},
        {"properties": {"TIMER_DELAY_SEC": "5"}},
        {"body": b"x" * 5000},
        {"topic": "%RETRY%CID"},
    ],
)
def test_what_a_batch_cannot_have_goes_alone(run: Run, alone: dict[str, Any]) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv) as producer:
            await send_all(producer, *(Message(**{"topic": "T", "body": b"x", **alone}) for _ in range(3)))
            assert server.sizes == [1] * 3

    run(main())


def test_what_goes_alone_keeps_its_place_between_the_others(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        bodies = [b"first", b"second", b"x" * 10_000, b"third", b"fourth", b"y" * 10_000, b"last"]
        async with Producer("PID", b.namesrv) as producer:
            queue = (await producer.queues("orders"))[2]
            await producer.send(Message("orders", b"open"), queue=queue)  # the connection is there from now on
            results = await asyncio.gather(*(producer.send(Message("orders", body), queue=queue) for body in bodies))
        assert [result.queue_offset for result in results] == list(range(1, 8))
        assert [message.body for message in await everything(b, "orders")] == [b"open", *bodies]

    run(main())


def test_turns_take_the_queues_in_turn(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            await producer.send(Message("orders", b"open"))
            counts: Counter[int] = Counter()
            for _ in range(12):
                results = await send_all(producer, *(Message("orders", b"x") for _ in range(5)))
                assert len({result.queue for result in results}) == 1
                counts.update(result.queue.queue_id for result in results)
            assert counts == dict.fromkeys(range(4), 15)

    run(main())


def test_a_blocking_producer_of_many_threads_sends_batches(b: LocalBroker) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with sync.Producer("PID", b.namesrv) as producer, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda number: producer.send(Message("orders", b"%d" % number)), range(200)))
    assert len({(result.queue, result.queue_offset) for result in results}) == 200


# -- what each of them reports ---------------------------------------------------------------------------------------


def test_a_message_that_is_refused_fails_alone(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv) as producer:
            sends = (producer.send(Message("T", body)) for body in (b"good", b"bad", b"better"))
            good, bad, better = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(good, SendResult)
            assert isinstance(bad, Refused)
            assert isinstance(better, SendResult)
            assert server.sizes == [3, 1, 1, 1]

    run(main())


def test_an_answer_that_cannot_be_read_does_not_say_that_nothing_is_stored(run: Run) -> None:
    unreadable = {RequestCode.SEND_MESSAGE_V2: lambda connection, command: command.reply(0, None, {"msgId": "x"})}

    async def main() -> None:
        async with FakeCluster(unreadable).running() as fake, Producer("PID", fake.namesrv) as producer:
            await producer.queues("T")
            for _ in range(2):  # the first opens the connection
                with pytest.raises(NoAnswer, match="may be stored, with the id"):
                    await producer.send(Message("T", b"x"))

    run(main())


@pytest.mark.parametrize(("names", "error"), [({"msgId": "7F0000010000"}, NoAnswer), ({}, Refused)])
def test_an_error_that_names_the_message_does_not_say_that_nothing_is_stored(
    run: Run, names: dict[str, str], error: type[Exception]
) -> None:
    """As of a broker that has the message in its log and could not sync it."""

    def fail(connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.SYSTEM_ERROR, "the log could not be synced", names)

    async def main() -> None:
        sends = dict.fromkeys((RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), fail)
        async with FakeCluster(sends).running() as fake, Producer("PID", fake.namesrv) as producer:
            await producer.queues("T")
            for messages in (1, 1, 3):  # the first opens the connection
                several = (producer.send(Message("T", b"x")) for _ in range(messages))
                for failure in await asyncio.gather(*several, return_exceptions=True):
                    assert type(failure) is error
                    assert "could not be synced" in str(failure)
                    assert ("; the message may be stored, with the id" in str(failure)) is (error is NoAnswer)

    run(main())


def test_a_batch_that_all_callers_have_left_is_not_sent_again(run: Run) -> None:
    came: list[Command] = []

    def drop(connection: Connection, command: Command) -> Command | None:
        came.append(command)
        return command.reply(0, None, STORED) if len(came) == 1 else command.reply(ResponseCode.SYSTEM_BUSY, "later")

    async def main() -> None:
        async with (
            FakeCluster({RequestCode.SEND_MESSAGE_V2: drop, RequestCode.SEND_BATCH_MESSAGE: drop}).running() as fake,
            Producer("PID", fake.namesrv) as producer,
        ):
            await producer.send(Message("T", b"first"))
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            await asyncio.sleep(0)
            for send in sends:
                send.cancel()
            await asyncio.wait(sends)
            await producer.flush()
            assert len(came) == 2

    run(main())


def test_a_producer_that_closes_before_a_route_is_there_reports_every_send(run: Run) -> None:
    def no_route(connection: Connection, command: Command) -> None:
        asked.set()

    asked = asyncio.Event()

    async def main() -> None:
        async with FakeCluster({RequestCode.GET_ROUTEINFO_BY_TOPIC: no_route}).running() as fake:
            producer = await Producer("PID", fake.namesrv).start()
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            await asked.wait()
            await producer.close()
            reports = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(each, PenstockError) for each in reports), reports
            assert not any(isinstance(each, NoAnswer) for each in reports)

    run(main())


# -- anything at once ------------------------------------------------------------------------------------------------


class Mix:
    """Random messages of all kinds, and what their sends reported."""

    def __init__(self, seed: int, topics: list[str]) -> None:
        self._random = random.Random(seed)
        self._topics = topics
        self.reports: dict[bytes, SendResult | PenstockError] = {}
        self.messages: dict[bytes, Message] = {}
        self.given: dict[bytes, MessageQueue | None] = {}

    def message(self) -> Message:
        chance, number = self._random.random(), len(self.messages)
        body = b"%d " % number + b"x" * self._random.choice([0, 10, 100, 3000])
        more: dict[str, Any] = {}
        if chance < 0.1:
            body += bytes(self._random.randbytes(6000))  # is compressed
        elif chance < 0.2:
            more["delay_level"] = 1
        elif chance < 0.4:
            more["sharding_key"] = f"customer {self._random.randrange(5)}"
        elif chance < 0.5:
            more["wait"] = False
        elif chance < 0.6:
            more |= {"tags": "t", "keys": f"k{number}", "properties": {"colour": "grün"}}
        elif chance < 0.65:
            more["properties"] = {"long": "x" * 40_000}  # no broker can store it
        message = self.messages[body] = Message(self._random.choice(self._topics), body, **more)
        return message

    async def send(self, producer: Producer, queues: dict[str, list[MessageQueue]]) -> None:
        message = self.message()
        queue = self._random.choice(queues[message.topic]) if self._random.random() < 0.2 else None
        self.given[message.body] = queue
        try:
            self.reports[message.body] = await producer.send(message, queue=queue)
        except PenstockError as error:
            self.reports[message.body] = error

    def check(self, found: list[ReceivedMessage]) -> None:
        """Every report is right: what is acknowledged is where it says, and what failed is not there."""
        places = {(each.queue, each.queue_offset): each for each in found}
        stored = {each.body for each in found}
        for body, report in self.reports.items():
            message, queue = self.messages[body], self.given[body]
            if isinstance(report, SendResult):
                if message.delay_level:
                    assert body in stored
                    continue
                there = places[report.queue, report.queue_offset]
                assert (there.body, there.msg_id, there.offset_msg_id) == (body, report.msg_id, report.offset_msg_id)
                assert (there.tags, there.keys) == (message.tags, (message.keys,) if message.keys else ())
                assert queue is None or queue == report.queue
            elif not isinstance(report, NoAnswer):
                assert body not in stored, report
        assert {body for body, each in self.reports.items() if isinstance(each, BadMessage)} >= {
            body for body, message in self.messages.items() if "long" in message.properties
        }


async def all_of(namesrv: str, topics: list[str]) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    async with PullConsumer("look", namesrv) as consumer:
        for topic in topics:
            for queue in await consumer.queues(topic):
                offset, end = 0, await consumer.offsets.max_offset(queue)
                while offset < end:
                    page = await consumer.pull(queue, offset, wait_s=1.0)
                    found += page.messages
                    offset = page.next_offset
    return found


@pytest.mark.parametrize("linger", [0.0, 0.01])
def test_every_report_of_a_mix_of_messages_is_right(run: Run, b: LocalBroker, linger: float) -> None:
    seed, topics = chosen_seed(), ["orders", "other", "third"]

    async def main() -> None:
        mix, dice = Mix(seed, topics), random.Random(seed)
        options = ProducerOptions(linger=linger, batch_bytes=8000, max_in_flight=40)
        async with Producer("PID", b.namesrv, options=options) as producer:
            queues = {topic: await producer.queues(topic) for topic in topics}

            async def work() -> None:
                for _ in range(6):
                    await mix.send(producer, queues)
                    if dice.random() < 0.2:
                        await asyncio.sleep(0)

            await asyncio.gather(*(work() for _ in range(60)))
        delayed = {
            body
            for body, message in mix.messages.items()
            if message.delay_level and isinstance(mix.reports[body], SendResult)
        }
        while True:
            found = await all_of(b.namesrv, topics)
            if delayed <= {each.body for each in found}:
                break
            await asyncio.sleep(0.1)  # a delayed message is not there before its time
        mix.check(found)
        assert set(Counter(each.body for each in found).values()) == {1}
        keys: dict[str, set[int]] = {}
        for body, message in mix.messages.items():
            report = mix.reports[body]
            if message.sharding_key and mix.given[body] is None and isinstance(report, SendResult):
                keys.setdefault(f"{message.topic} {message.sharding_key}", set()).add(report.queue.queue_id)
        assert {len(ids) for ids in keys.values()} == {1}

    run(main())


@pytest.mark.rest
def test_every_report_is_right_when_the_broker_is_killed_between_batches(run: Run, tmp_path: Path) -> None:
    server, seed, topics = Server(tmp_path / "store"), chosen_seed(), ["orders", "other"]
    options = ProducerOptions(timeout_s=2.0, max_in_flight=100, batch_bytes=8000)

    async def main() -> None:
        mix = Mix(seed, topics)
        async with Producer("PID", server.namesrv, options=options) as producer:
            for topic in topics:
                await producer.send(Message(topic, b"first of " + topic.encode()))
            queues = {topic: await producer.queues(topic) for topic in topics}
            stop = False

            async def work() -> None:
                while not stop:
                    await mix.send(producer, queues)

            work_of_all = [asyncio.create_task(work()) for _ in range(80)]
            for _ in range(3):
                count = len(mix.reports)
                await until_true(lambda count=count: len(mix.reports) > count + 400)
                server.kill()
                await asyncio.to_thread(server.start)
            stop = True
            await asyncio.gather(*work_of_all)
        for body, message in list(mix.messages.items()):
            if message.delay_level:
                mix.reports.pop(body, None)  # may be on its way for long
        mix.check(await all_of(server.namesrv, topics))
        assert sum(isinstance(each, SendResult) for each in mix.reports.values()) > 400

    server.start()
    run(main())
    assert server.end(signal.SIGTERM) == 0

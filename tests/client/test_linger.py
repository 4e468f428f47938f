"""Messages that wait for each other and leave in one request, each with a result of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from client.test_back_pressure import stored
from client.test_producer import everything
from client.test_what_brokers_answer import STORED
from support.clients import FakeCluster, until_true

from penstock.client import Message, Producer, ProducerOptions, SendResult, batching, sync
from penstock.errors import BadMessage, BadSettings, NoAnswer, Refused
from penstock.format.batch import decode_batch_body
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.command import Command
from penstock.remoting.connection import Connection

if TYPE_CHECKING:
    from client.conftest import Run

    from penstock.testing import LocalBroker

LONG_S = 50.0
"""Longer than any test: what leaves, leaves for another reason."""


def lingering(**options: Any) -> ProducerOptions:
    return ProducerOptions(linger=LONG_S, **options)


class Broker:
    """A scripted cluster that notes how many messages each request had, and refuses those whose body is `bad`."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.cluster = FakeCluster(
            {RequestCode.SEND_BATCH_MESSAGE: self._batch, RequestCode.SEND_MESSAGE_V2: self._single}
        )

    def _batch(self, connection: Connection, command: Command) -> Command:
        bodies = [item.body for item in decode_batch_body(command.body)]
        return self._answer(command, bodies)

    def _single(self, connection: Connection, command: Command) -> Command:
        return self._answer(command, [bytes(command.body)])

    def _answer(self, command: Command, bodies: list[bytes]) -> Command:
        self.sizes.append(len(bodies))
        if b"bad" in bodies:
            return command.reply(ResponseCode.MESSAGE_ILLEGAL, "one of them is bad")
        ids = ",".join(STORED["msgId"] for _ in bodies)
        return command.reply(0, None, {**STORED, "msgId": ids})


def test_messages_leave_together_and_each_has_its_own_result(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv, options=ProducerOptions(linger=0.05)) as producer:
            bodies = [b"%d" % number for number in range(100)]
            results = await asyncio.gather(*(producer.send(Message("orders", body, tags="t")) for body in bodies))
        found = {message.msg_id: message for message in await everything(b, "orders")}
        assert len({result.queue for result in results}) == 1
        for body, result in zip(bodies, results, strict=True):
            message = found[result.msg_id]
            assert (message.body, message.queue_offset, message.offset_msg_id, message.tags) == (
                body,
                result.queue_offset,
                result.offset_msg_id,
                "t",
            )

    run(main())


def test_a_batch_leaves_when_it_is_full_or_when_everything_waits_in_batches(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake:
            async with Producer("PID", fake.namesrv, options=lingering(batch_bytes=2000)) as producer:
                sends = [asyncio.create_task(producer.send(Message("T", b"x" * 500))) for _ in range(7)]
                await until_true(lambda: len(server.sizes) == 2)
                await producer.flush()
                assert all(task.done() for task in sends)
                assert server.sizes == [3, 3, 1]
            server.sizes.clear()
            async with Producer("PID", fake.namesrv, options=lingering(max_in_flight=5)) as producer:
                await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(20)))
                assert server.sizes == [5, 5, 5, 5]

    run(main())


def test_a_batch_never_has_more_messages_than_a_reply_has_room_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_BATCH_LIMIT", 30)

    async def main() -> None:
        server, options = Broker(), lingering(max_in_flight=1000, batch_bytes=4 << 20)
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv, options=options) as producer:
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(70)]
            await until_true(lambda: len(server.sizes) == 2)
            await producer.flush()
            assert all(task.done() for task in sends)
            assert server.sizes == [30, 30, 10]

    run(main())


def test_what_cannot_be_in_a_batch_goes_alone_and_at_once(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with (
            server.cluster.running() as fake,
            Producer("PID", fake.namesrv, options=lingering(compress_over=1000)) as producer,
        ):
            await asyncio.gather(
                producer.send(Message("T", b"later", delay_level=3)),
                producer.send(Message("T", b"later", properties={"DELAY": "3"})),
                producer.send(Message("T", b"x" * 1000)),
                producer.send(Message("T", b"in its own time"), timeout_s=1.0),
                producer.send(Message("%RETRY%CID", b"x")),
            )
            assert server.sizes == [1] * 5

    run(main())


def test_messages_of_other_topics_queues_or_keys_are_in_other_batches(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        keys = [f"customer_{number}" for number in range(12)]
        async with Producer("PID", b.namesrv, options=ProducerOptions(linger=0.05)) as producer:
            last = (await producer.queues("orders"))[3]
            results = await asyncio.gather(
                *(
                    producer.send(Message("orders", b"%d" % step, sharding_key=key))
                    for step in range(5)
                    for key in keys
                ),
                producer.send(Message("other", b"x")),
                producer.send(Message("orders", b"to the last"), queue=last),
                producer.send(Message("orders", b"do not wait", wait=False)),
            )
        assert results[-3].queue.topic == "other"
        assert results[-2].queue == last
        found = await everything(b, "orders")
        queues: dict[str, set[int]] = {key: set() for key in keys}
        for message in found:
            if key := message.properties.get("__SHARDINGKEY"):
                queues[key].add(message.queue_id)
        assert {len(ids) for ids in queues.values()} == {1}
        in_order = [message.body for message in found if message.properties.get("__SHARDINGKEY") == keys[0]]
        assert in_order == [b"%d" % step for step in range(5)]

    run(main())


def test_a_message_that_is_refused_fails_alone(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with server.cluster.running() as fake, Producer("PID", fake.namesrv, options=lingering()) as producer:
            bodies = [b"good", b"bad", b"better"]
            sends = [asyncio.create_task(producer.send(Message("T", body))) for body in bodies]
            await asyncio.sleep(0)
            with pytest.raises(BadMessage, match="properties of a message in a batch are too long"):
                await producer.send(Message("T", b"x", properties={"long": "x" * 40_000}))
            await producer.flush()
            good, bad, better = await asyncio.gather(*sends, return_exceptions=True)
            assert isinstance(good, SendResult)
            assert isinstance(better, SendResult)
            assert isinstance(bad, Refused)
            assert server.sizes == [3, 1, 1, 1]
            ids = [command.ext["i"] for command in fake.of(RequestCode.SEND_MESSAGE_V2)]
            batch = fake.of(RequestCode.SEND_BATCH_MESSAGE)[0].body
            assert all(good.msg_id in text or good.msg_id.encode() in batch for text in ids)

    run(main())


def test_a_broker_that_refuses_any_message_is_not_asked_for_each(run: Run) -> None:
    def refuse(connection: Connection, command: Command) -> Command:
        return command.reply(ResponseCode.NO_PERMISSION, "read-only")

    async def main() -> None:
        async with (
            FakeCluster({RequestCode.SEND_BATCH_MESSAGE: refuse}).running() as fake,
            Producer("PID", fake.namesrv, options=lingering()) as producer,
        ):
            sends = [asyncio.create_task(producer.send(Message("T", b"x"))) for _ in range(3)]
            await producer.flush()
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert [getattr(error, "code", 0) for error in errors] == [ResponseCode.NO_PERMISSION] * 3
            assert len({id(error) for error in errors}) == 3
            assert not fake.of(RequestCode.SEND_MESSAGE_V2)

    run(main())


def test_the_messages_of_a_batch_without_an_answer_may_all_be_stored(run: Run) -> None:
    silent = {RequestCode.SEND_BATCH_MESSAGE: lambda connection, command: None}

    async def main() -> None:
        options = lingering(timeout_s=0.1)
        async with (
            FakeCluster(silent).running() as fake,
            Producer("PID", fake.namesrv, options=options) as producer,
        ):
            sends = [asyncio.create_task(producer.send(Message("T", b"%d" % number))) for number in range(3)]
            await asyncio.sleep(0)
            await producer.flush()
            errors = await asyncio.gather(*sends, return_exceptions=True)
            assert [type(error) for error in errors] == [NoAnswer] * 3
            ids = {str(error).rpartition(" ")[2] for error in errors}
            batch = fake.of(RequestCode.SEND_BATCH_MESSAGE)[0].body
            assert len(ids) == 3
            assert all(msg_id.encode() in batch for msg_id in ids)

    run(main())


def test_a_send_that_is_cancelled_does_not_disturb_its_batch(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv, options=lingering(max_in_flight=3)) as producer:
            await producer.queues("orders")
            sends = [asyncio.create_task(producer.send(Message("orders", b"%d" % number))) for number in range(2)]
            await asyncio.sleep(0)
            sends[0].cancel()
            await producer.flush()
            assert (await sends[1]).ok
            again = [asyncio.create_task(producer.send(Message("orders", b"again"))) for _ in range(3)]
            assert all(result.ok for result in await asyncio.gather(*again)), "all three turns are free again"

    run(main())


def test_closing_sends_what_lingers(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv, options=lingering()) as producer:
            sends = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(10)]
            await asyncio.sleep(0.01)
        assert all(result.ok for result in await asyncio.gather(*sends))
        assert await stored(b.namesrv, "orders") == Counter({b"x": 10})

    run(main())


def test_flush_without_linger_waits_for_the_sends_before_it(run: Run, b: LocalBroker) -> None:
    async def main() -> None:
        async with Producer("PID", b.namesrv) as producer:
            await producer.flush()
            sends = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(10)]
            await producer.flush()
            assert all(task.done() for task in sends)

    run(main())


def test_a_blocking_producer_lingers_and_flushes_too(b: LocalBroker) -> None:
    with sync.Producer("PID", b.namesrv, options=ProducerOptions(linger=0.01)) as producer:
        assert producer.send(Message("orders", b"x")).ok
        producer.flush()


@pytest.mark.parametrize("options", [{"linger": -1}, {"linger": 61}, {"batch_bytes": 0}, {"batch_bytes": 5 << 20}])
def test_options_that_make_no_batch_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadSettings):
        ProducerOptions(**options)


def test_a_full_batch_is_written_at_once_over_an_open_connection(run: Run) -> None:
    async def main() -> None:
        server = Broker()
        async with (
            server.cluster.running() as fake,
            Producer("PID", fake.namesrv, options=lingering(batch_bytes=2000)) as producer,
        ):
            first = asyncio.create_task(producer.send(Message("T", b"connects")))
            await producer.flush()
            await first
            sends = [asyncio.create_task(producer.send(Message("T", b"x" * 500))) for _ in range(4)]
            async with asyncio.timeout(LONG_S / 2):
                await asyncio.gather(*sends[:3])
            assert server.sizes == [1, 3]
            await producer.flush()
            await sends[3]

    run(main())

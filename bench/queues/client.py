"""One client of `bench queues`, in a process of its own: a line of JSON in, a line of JSON out.

    python bench/queues/client.py penstock|redis|nats|confluent|aiokafka

It uses nothing of `bench`, so that it runs in an environment that has the clients of the others. Orders: `open` (which
connects, and creates the topic), `send` with a number of messages in flight until each is acknowledged, `drain` which
consumes a backlog with a new group, acknowledges, and stops at the last message; `close`. Each client is used as its
documentation shows it; what can be in flight on one connection is. Seconds are those of the work alone, not of
connecting or of joining a group. All of them run on uvloop. An order that takes five minutes fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Protocol

import uvloop

Order = dict[str, Any]
HOST = "127.0.0.1"
QUEUES = 4
PAGE = 100
"""Messages that a consumer asks for at once, where it has to say so."""
_WITHIN_S = 120.0
_JOB_WITHIN_S = 300.0


class Client(Protocol):
    """One system's client. A job that fails raises whatever the client raises."""

    async def open(self, order: Order) -> None:
        """Connects; the topic of the order exists then."""

    async def send(self, order: Order) -> float:
        """Sends `count` bodies of `body` bytes, `window` in flight, and returns the seconds to the last answer."""

    async def drain(self, order: Order) -> float:
        """Consumes `count` messages with the new group `group`; returns the seconds from the first to the last."""

    async def close(self) -> None:
        """Disconnects."""


class Drained:
    """Counts messages and notes when the first and the last one came."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen = 0
        self._lock = threading.Lock()
        self._begin = self._end = 0.0
        self.is_done = False

    def add(self, messages: int) -> bool:
        """Returns whether these were the last ones."""
        with self._lock:
            self._begin = self._begin or time.perf_counter()
            self._seen += messages
            self._end = time.perf_counter()
            self.is_done = self._seen >= self._count
            return self.is_done

    @property
    def seconds(self) -> float:
        """From the first to the last message, or to the end of what acknowledges them."""
        return self._end - self._begin

    def acknowledged(self) -> None:
        self._end = time.perf_counter()


async def windowed(send: Callable[[], Awaitable[object]], count: int, window: int) -> float:
    """Calls `send` so often, `window` calls at a time; returns the seconds."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await send()

    begin = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(window)))
    return time.perf_counter() - begin


class PenstockClient:
    """`penstock.client`; `order["how"]` of a drain: push, batch (lists of 32) or sync (the blocking client)."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._producer: Any = None
        self._namesrv = ""

    async def open(self, order: Order) -> None:
        from penstock.client import Admin, Producer

        self._namesrv = order["namesrv"]
        async with Admin(self._namesrv) as admin:
            await admin.topics.create(order["topic"], queues=QUEUES)
        self._producer = await self._stack.enter_async_context(Producer("bench", self._namesrv))

    async def send(self, order: Order) -> float:
        from penstock.client import Message, SendStatus

        topic, body = order["topic"], bytes(order["body"])

        async def one() -> None:
            result = await self._producer.send(Message(topic, body))
            if result.status is not SendStatus.SEND_OK:
                raise RuntimeError(f"a send was answered with {result.status.name}")

        return await windowed(one, order["count"], order["window"])

    async def drain(self, order: Order) -> float:
        drained = Drained(order["count"])
        if order["how"] == "sync":
            await asyncio.to_thread(self._drain_blocking, order, drained)
        else:
            await self._drain(order, drained)
        return drained.seconds

    async def _drain(self, order: Order, drained: Drained) -> None:
        from penstock.client import PushConsumer, PushOptions

        done = asyncio.Event()

        async def one(message: object) -> None:
            if drained.add(1):
                done.set()

        async def many(messages: list[object]) -> None:
            if drained.add(len(messages)):
                done.set()

        batch = order["how"] == "batch"
        options = PushOptions(consume_from="first", batch_size=32 if batch else None)
        subscriptions = {order["topic"]: "*"}
        handler: Any = many if batch else one
        async with PushConsumer(order["group"], handler, self._namesrv, subscriptions=subscriptions, options=options):
            await asyncio.wait_for(done.wait(), _WITHIN_S)

    def _drain_blocking(self, order: Order, drained: Drained) -> None:
        from penstock.client import PushOptions
        from penstock.client.sync import PushConsumer

        done = threading.Event()

        def one(message: object) -> None:
            if drained.add(1):
                done.set()

        options, subscriptions = PushOptions(consume_from="first"), {order["topic"]: "*"}
        with PushConsumer(order["group"], one, self._namesrv, subscriptions=subscriptions, options=options):
            if not done.wait(_WITHIN_S):
                raise TimeoutError(f"the backlog was not consumed within {_WITHIN_S:g} s")

    async def close(self) -> None:
        await self._stack.aclose()


class RedisClient:
    """Streams with `redis`: one connection; several in flight are a pipeline."""

    def __init__(self) -> None:
        self._redis: Any = None

    async def open(self, order: Order) -> None:
        from redis.asyncio import Redis

        self._redis = Redis(host=HOST, port=order["port"])
        await self._redis.ping()

    async def send(self, order: Order) -> float:
        topic, fields, count, window = order["topic"], {"body": bytes(order["body"])}, order["count"], order["window"]
        begin = time.perf_counter()
        if window == 1:
            for _ in range(count):
                await self._redis.xadd(topic, fields)
        else:
            for first in range(0, count, window):
                pipe = self._redis.pipeline(transaction=False)
                for _ in range(min(window, count - first)):
                    pipe.xadd(topic, fields)
                await pipe.execute()
        return time.perf_counter() - begin

    async def drain(self, order: Order) -> float:
        topic, group, drained = order["topic"], order["group"], Drained(order["count"])
        await self._redis.xgroup_create(topic, group, id="0")
        while not drained.is_done:
            found = await self._redis.xreadgroup(group, "bench", {topic: ">"}, count=PAGE)
            if not found:
                raise RuntimeError("the stream has fewer messages than were sent")
            entries = found[topic.encode()][0] if isinstance(found, dict) else found[0][1]
            drained.add(len(entries))
            await self._redis.xack(topic, group, *(entry[0] for entry in entries))
        drained.acknowledged()
        return drained.seconds

    async def close(self) -> None:
        await self._redis.aclose()


class NatsClient:
    """JetStream with `nats-py`: a stream in files, and a durable pull consumer that acknowledges each message."""

    def __init__(self) -> None:
        self._nats: Any = None
        self._stream: Any = None

    async def open(self, order: Order) -> None:
        import nats

        self._nats = await nats.connect(f"nats://{HOST}:{order['port']}")
        self._stream = self._nats.jetstream(timeout=60)
        await self._stream.add_stream(name=order["topic"], subjects=[order["topic"]])

    async def send(self, order: Order) -> float:
        topic, body = order["topic"], bytes(order["body"])
        return await windowed(lambda: self._stream.publish(topic, body), order["count"], order["window"])

    async def drain(self, order: Order) -> float:
        drained = Drained(order["count"])
        consumer = await self._stream.pull_subscribe(order["topic"], durable=order["group"])
        while not drained.is_done:
            found = await consumer.fetch(PAGE, timeout=_WITHIN_S)
            drained.add(len(found))
            for message in found:
                await message.ack()
        await self._nats.flush()
        drained.acknowledged()
        return drained.seconds

    async def close(self) -> None:
        await self._nats.close()


class ConfluentClient:
    """Kafka with `confluent-kafka`, which blocks; it sends without lingering and commits after each page."""

    def __init__(self) -> None:
        self._producer: Any = None
        self._servers = ""

    async def open(self, order: Order) -> None:
        from confluent_kafka import Producer

        self._servers = f"{HOST}:{order['port']}"
        self._producer = Producer({"bootstrap.servers": self._servers, "acks": "all", "linger.ms": 0})
        await create_kafka_topic(self._servers, order["topic"])

    async def send(self, order: Order) -> float:
        topic, body, count, window = order["topic"], bytes(order["body"]), order["count"], order["window"]
        sent = answered = 0
        failed: list[object] = []

        def answer(error: object, message: object) -> None:
            nonlocal answered
            answered += 1
            if error is not None:
                failed.append(error)

        begin = time.perf_counter()
        while answered < count:
            while sent < count and sent - answered < window:
                self._producer.produce(topic, body, on_delivery=answer)
                sent += 1
            self._producer.poll(1.0)
            if failed or time.perf_counter() - begin > _WITHIN_S:
                raise RuntimeError(f"a send failed: {failed[:1] or 'it was not answered'}")
        return time.perf_counter() - begin

    async def drain(self, order: Order) -> float:
        from confluent_kafka import Consumer

        drained, deadline = Drained(order["count"]), time.perf_counter() + _WITHIN_S
        how = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": order["group"], **how})
        consumer.subscribe([order["topic"]])
        try:
            while not drained.is_done:
                found = consumer.consume(PAGE, 1.0)
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"the backlog was not consumed within {_WITHIN_S:g} s")
                if found:
                    drained.add(len(found))
                    consumer.commit(asynchronous=not drained.is_done)
            drained.acknowledged()
        finally:
            consumer.close()
        return drained.seconds

    async def close(self) -> None:
        self._producer.flush()


class AiokafkaClient:
    """Kafka with `aiokafka`; it commits after each page."""

    def __init__(self) -> None:
        self._producer: Any = None
        self._servers = ""

    async def open(self, order: Order) -> None:
        from aiokafka import AIOKafkaProducer

        self._servers = f"{HOST}:{order['port']}"
        await create_kafka_topic(self._servers, order["topic"])
        self._producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks="all")
        await self._producer.start()

    async def send(self, order: Order) -> float:
        topic, body = order["topic"], bytes(order["body"])
        return await windowed(lambda: self._producer.send_and_wait(topic, body), order["count"], order["window"])

    async def drain(self, order: Order) -> float:
        from aiokafka import AIOKafkaConsumer

        drained, deadline = Drained(order["count"]), time.perf_counter() + _WITHIN_S
        how: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        servers = self._servers
        async with AIOKafkaConsumer(order["topic"], bootstrap_servers=servers, group_id=order["group"], **how) as found:
            while not drained.is_done:
                pages = await found.getmany(timeout_ms=1000, max_records=PAGE)
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"the backlog was not consumed within {_WITHIN_S:g} s")
                if pages:
                    drained.add(sum(map(len, pages.values())))
                    await found.commit()
            drained.acknowledged()
        return drained.seconds

    async def close(self) -> None:
        await self._producer.stop()


async def create_kafka_topic(servers: str, topic: str) -> None:
    """Does nothing if it exists."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})  # what it has asked for ends with it
    try:
        await asyncio.to_thread(admin.create_topics([NewTopic(topic, QUEUES, 1)])[topic].result, _WITHIN_S)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise


CLIENTS: dict[str, type[Client]] = {
    "penstock": PenstockClient,
    "redis": RedisClient,
    "nats": NatsClient,
    "confluent": ConfluentClient,
    "aiokafka": AiokafkaClient,
}


async def answer(kind: str, current: list[Client], order: Order) -> dict[str, Any]:
    """Does one order; `current` holds the client between `open` and `close`."""
    do = order["do"]
    if do == "open":
        current.append(CLIENTS[kind]())
        await current[0].open(order)
        return {}
    if do == "close":
        await current.pop().close()
        return {}
    work = current[0].send if do == "send" else current[0].drain
    return {"seconds": await work(order), "messages": order["count"]}


def main(kind: str) -> None:
    """Answers orders until its input ends."""
    current: list[Client] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            try:
                said = runner.run(asyncio.wait_for(answer(kind, current, json.loads(line)), _JOB_WITHIN_S))
            except Exception as error:  # any error goes to the process that asked
                said = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""Producers and consumers of our client that note every answer, for a `History`. Use them in `with` blocks.

A body is its token, repeated up to a size, so a reader can tell whether all of it arrived. Each token is sent once,
without retries.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Self

from penstock.client.message import Message, ReceivedMessage, SendResult
from penstock.client.producer import ProducerOptions
from penstock.client.sync import Producer, PullConsumer, PushConsumer, PushOptions
from penstock.errors import NoAnswer, PenstockError
from penstock.format.message_id import decode_message_id
from penstock.protocol.bodies.queues import MessageQueue
from support.failover.history import Commit, Consumption, Outcome, Send

TOPIC = "orders"
BROKER_NAME = "broker-a"
_SIZES = (16, 300, 3000)
_BATCHES = 0.1
"""Share of requests that carry several messages."""
_PAUSE_S = 0.02
"""After an error."""


def queue_name(topic: str, queue_id: int) -> str:
    return f"{topic}-{queue_id}"


def make_body(token: str, size: int) -> bytes:
    word = f"{token} ".encode()
    return (word * (size // len(word) + 1))[: max(size, len(word))]


def token_of(body: bytes) -> str:
    """Returns the token of a body; with a remark if the body is not what was made of it."""
    token = body.partition(b" ")[0].decode("utf-8", "replace")
    return token if body == make_body(token, len(body)) else f"{token} (damaged)"


def _queues(count: int) -> list[MessageQueue]:
    return [MessageQueue(topic=TOPIC, broker_name=BROKER_NAME, queue_id=number) for number in range(count)]


class Acknowledged:
    """What all kinds of producers note."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.acknowledged = 0

    def wait_for_more(self, count: int, within_s: float) -> bool:
        """Returns whether so many more messages are acknowledged in time."""
        goal, deadline = self.acknowledged + count, time.monotonic() + within_s
        while self.acknowledged < goal and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.acknowledged >= goal


class Producers(Acknowledged):
    """Producers that send side by side, each waiting for its answer before it sends again."""

    def __init__(
        self, namesrv: str, queues: int, seed: int, *, count: int = 4, timeout_s: float = 1.0, pause_s: float = 0.0
    ) -> None:
        super().__init__()
        self._namesrv = namesrv
        self._queues = _queues(queues)
        self._options = ProducerOptions(timeout_s=timeout_s, retries=0)
        self._pause_s = pause_s
        self._stop = threading.Event()
        names = [f"p{number}" for number in range(count)]
        self._threads = [threading.Thread(target=self._run, args=(name, f"{seed}{name}")) for name in names]

    def _run(self, name: str, seed: str) -> None:
        chance, number = random.Random(seed), 0
        with Producer(f"PID_{name}", self._namesrv, options=self._options) as producer:
            while not self._stop.is_set():
                count = chance.randrange(2, 6) if chance.random() < _BATCHES else 1
                numbers = range(number, number + count)
                number += count
                self._send(producer, name, numbers, chance.choice(self._queues), chance.choice(_SIZES))

    def _send(self, producer: Producer, name: str, numbers: range, queue: MessageQueue, size: int) -> None:
        tokens = [f"{name}-{number}" for number in numbers]
        messages = [Message(TOPIC, make_body(token, size), keys=token) for token in tokens]
        began = time.monotonic()
        try:
            if len(messages) == 1:
                results: Sequence[SendResult | None] = [producer.send(messages[0], queue=queue)]
            else:
                results = producer.send_batch(messages, queue=queue)
            outcome, said = Outcome.OK, ""
        except PenstockError as error:
            results = [None] * len(messages)
            outcome = Outcome.UNKNOWN if isinstance(error, NoAnswer) else Outcome.REFUSED
            said = f"{type(error).__name__}: {error}"
        ended = time.monotonic()
        where = queue_name(TOPIC, queue.queue_id)
        for number, token, result in zip(numbers, tokens, results, strict=True):
            if result is None:
                self.sends.append(Send(name, number, token, where, began, ended, outcome, said=said))
            else:
                self.sends.append(_answered(name, number, token, result, began, ended))
        self.acknowledged += len(tokens) if results[0] is not None and results[0].ok else 0
        self._stop.wait(_PAUSE_S if results[0] is None else self._pause_s)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def _answered(name: str, number: int, token: str, result: SendResult, began: float, ended: float) -> Send:
    broker, physical = decode_message_id(result.offset_msg_id)
    return Send(
        name,
        number,
        token,
        queue_name(result.queue.topic, result.queue.queue_id),
        began,
        ended,
        Outcome.OK if result.ok else Outcome.STORED,
        result.queue_offset,
        physical,
        broker,
        str(result.status),
    )


class Consumers:
    """What all kinds of consumers note."""

    group = ""
    is_ordered = False

    def __init__(self) -> None:
        self.consumptions: list[Consumption] = []
        self.commits: list[Commit] = []
        self._tokens: set[str] = set()

    def _note(self, consumer: str, message: ReceivedMessage) -> None:
        record = message.record
        where, token = queue_name(record.topic, record.queue_id), token_of(message.body)
        self._tokens.add(token)
        self.consumptions.append(Consumption(self.group, consumer, where, record.queue_offset, token, time.monotonic()))

    def wait_for(self, tokens: Iterable[str], within_s: float) -> bool:
        """Returns whether all of these were received in time."""
        wanted, deadline = set(tokens), time.monotonic() + within_s
        while not wanted <= self._tokens and time.monotonic() < deadline:
            time.sleep(0.05)
        return wanted <= self._tokens


class PullGroup(Consumers):
    """One consumer that reads all queues in order by pulls, and stores the group's offsets now and then."""

    group = "CID_pull"
    is_ordered = True

    def __init__(self, namesrv: str, queues: int) -> None:
        super().__init__()
        self._namesrv = namesrv
        self._queues = _queues(queues)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        positions: dict[str, int] = defaultdict(int)
        with PullConsumer(self.group, self._namesrv) as consumer:
            consumer.assign(self._queues)
            while not self._stop.is_set():
                with contextlib.suppress(PenstockError):
                    messages = consumer.poll(0.3)
                    for message in messages:
                        self._note("pull", message)
                        where = queue_name(message.record.topic, message.record.queue_id)
                        positions[where] = message.record.queue_offset + 1
                    if messages:
                        self._commit(consumer, dict(positions))
                    continue
                self._stop.wait(0.1)

    def _commit(self, consumer: PullConsumer, positions: dict[str, int]) -> None:
        now = time.monotonic()
        consumer.commit()
        self.commits += [Commit(self.group, queue, offset, now) for queue, offset in positions.items()]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


class PushGroup(Consumers):
    """Two consumers that share the queues."""

    group = "CID_push"

    def __init__(self, namesrv: str, count: int = 2) -> None:
        super().__init__()
        self._namesrv = namesrv
        self._count = count
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for number in range(self._count):
            name = f"push{number}"

            def handle(message: ReceivedMessage, name: str = name) -> None:
                self._note(name, message)

            options = PushOptions(consume_from="first", close_timeout_s=5.0)
            consumer = PushConsumer(self.group, handle, self._namesrv, subscriptions={TOPIC: "*"}, options=options)
            self._stack.enter_context(consumer)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

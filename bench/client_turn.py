"""One turn of `bench client`: a program that sends or consumes with `penstock.client`.

`python -P bench/client_turn.py ORDER` runs it, with a tree's `src` on PYTHONPATH. It uses the public names of
`penstock.client` only, and nothing of `bench`, so that it runs on trees whose inner modules have other names. It prints
CPU seconds for one message, of itself and of the broker, as one line of JSON.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import penstock
from penstock.client import Message, Producer, PullConsumer, PushConsumer, PushOptions, ReceivedMessage, sync
from penstock.remoting.event_loop import loop_factory

TOPIC, IN_FLIGHT, BATCH, PAGE = "bench", 64, 64, 32
Slice = Callable[[dict[str, Any], int], Awaitable[None]]
_groups = itertools.count()


# -- sending -------------------------------------------------------------------------------------------------


async def send(producer: Producer, body: bytes, count: int, in_flight: int) -> None:
    """Sends messages, each with `send`, from so many tasks; each task waits for the report of its message."""

    async def work() -> None:
        for _ in range(count // in_flight):
            if not (await producer.send(Message(TOPIC, body))).ok:
                raise SystemExit("a message was not stored in time")

    await asyncio.gather(*(work() for _ in range(in_flight)))


async def send_batches(producer: Producer, body: bytes, count: int) -> None:
    """Sends messages with `send_batch`, one request at a time."""
    for _ in range(count // BATCH):
        await producer.send_batch([Message(TOPIC, body) for _ in range(BATCH)])


# -- consuming -----------------------------------------------------------------------------------------------


class Countdown:
    """Handlers that count messages, and what waits for the last one. For any thread."""

    def __init__(self, count: int, done: Callable[[], object]) -> None:
        self._left = count
        self._done = done
        self._lock = threading.Lock()

    def count(self, number: int) -> None:
        with self._lock:
            self._left -= number
            if self._left == 0:
                self._done()

    async def one(self, message: ReceivedMessage) -> None:
        self.count(len(message.body) > 0)

    async def many(self, messages: list[ReceivedMessage]) -> None:
        self.count(sum(len(message.body) > 0 for message in messages))

    def in_thread(self, message: ReceivedMessage) -> None:
        self.count(len(message.body) > 0)


def options(**more: Any) -> PushOptions:
    return PushOptions(consume_from="first", **more)


async def push(namesrv: str, count: int, *, batch: bool) -> None:
    done = asyncio.Event()
    countdown = Countdown(count, done.set)
    handler = countdown.many if batch else countdown.one
    chosen = options(batch_size=PAGE) if batch else options()
    async with PushConsumer(group(), handler, namesrv, subscriptions={TOPIC: "*"}, options=chosen):
        await done.wait()


def push_sync(namesrv: str, count: int) -> None:
    done = threading.Event()
    countdown = Countdown(count, done.set)
    with sync.PushConsumer(group(), countdown.in_thread, namesrv, subscriptions={TOPIC: "*"}, options=options()):
        done.wait()


async def pull(namesrv: str, count: int) -> None:
    async with PullConsumer(group(), namesrv) as consumer:
        consumer.assign(await consumer.queues(TOPIC))
        while count > 0:
            count -= sum(len(message.body) > 0 for message in await consumer.poll())


def group() -> str:
    """A group without offsets."""
    return f"bench-{time.monotonic_ns():x}-{next(_groups)}"


# -- the turn ------------------------------------------------------------------------------------------------


def broker_cpu(pids: list[int]) -> float:
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)  # Linux: the CPU-time clock of another process


async def turn(order: dict[str, Any]) -> dict[str, Any]:
    """Does the work of an order once to warm up, and then slice by slice. Figures are those of the cheapest slice."""
    namesrv, count, body, kind = order["namesrv"], order["count"], bytes(order["body"]), order["do"]
    slices = []
    async with Producer("bench-producer", namesrv) as producer:
        if kind in ("push", "push-batch", "push-sync", "pull"):
            await send_batches(producer, body, count)
        for number in range(order["slices"] + 1):
            gc.collect()
            own, brokers = time.process_time(), broker_cpu(order["pids"])
            if kind == "send":
                await send(producer, body, count, IN_FLIGHT)
            elif kind == "send-alone":
                await send(producer, body, count, 1)
            elif kind == "send-batch":
                await send_batches(producer, body, count)
            elif kind == "push-sync":
                await asyncio.to_thread(push_sync, namesrv, count)
            elif kind == "pull":
                await pull(namesrv, count)
            else:
                await push(namesrv, count, batch=kind == "push-batch")
            took = (time.process_time() - own) / count, (broker_cpu(order["pids"]) - brokers) / count
            if number:
                slices.append(took)
    client, broker = min(slices, key=sum)
    figures = {"both": client + broker, "client": client, "broker": broker}
    return {"from": penstock.__file__, "figures": figures, "cpu": sum(map(sum, slices)) * count}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        print(json.dumps(runner.run(turn(json.loads(sys.argv[1])))))

"""Calls the user's handler for a message, wherever that has to run, and says what came of it.

An asynchronous handler runs on the client's loop, a plain one in a thread of its own pool, so that it may block. A
handler that takes longer than its time counts as failed: an asynchronous one is cancelled, a thread cannot be.


Gives a message back to its broker, to come again later or to become a dead letter: 36.

Where the broker that has the message cannot take it back, a copy is sent to the group's retry topic at any broker.


Consumes messages of all queues side by side, a number of them at once, in no particular order.

What fails goes back to the broker, which brings it again later; where even that fails it is tried again here. A
broadcast message that fails is lost to this consumer, and logged. Belongs to the loop's thread.


Consumes each queue in order: one message at a time, and the next only when that one is done.

A message that fails is tried again in place, after a pause, and holds up its queue until it is consumed, or has failed
so often that it becomes a dead letter. In a group that shares its queues a message is begun only while the broker says
that the queue is ours. Whoever lost that, and gets it back, goes on where the group is by then. Belongs to the loop's
thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.client.assignment import ProcessQueue
from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import OffsetStore
from penstock.client.queue_locks import ClientQueueLocks
from penstock.client.routes import TEMPLATE_TOPIC
from penstock.clock import now_ms
from penstock.errors import PenstockError
from penstock.format.constants import DELAY, ORIGIN_MESSAGE_ID, RETRY_PREFIX, RETRY_TOPIC
from penstock.format.properties import encode_properties
from penstock.format.sys_flag import COMPRESSED, COMPRESSION_MASK
from penstock.protocol.codes import RequestCode
from penstock.protocol.headers.groups import SendBack
from penstock.protocol.headers.send import SendMessageV2

log = logging.getLogger("penstock.client")


@dataclass(frozen=True, slots=True)
class Later:
    """What a handler returns for a message that it could not consume: it is to come again.

    `delay_level` is how much later: 0 leaves it to the broker, longer each time; 1 to 18 as for a delayed message; a
    negative one sends it to the dead letters at once. Ordered consumers retry in place and take no level but that.
    """

    delay_level: int = 0


Outcome: TypeAlias = Later | None
"""None: the message is consumed."""
MessageHandler: TypeAlias = Callable[[ReceivedMessage], Awaitable[Outcome] | Outcome]
"""What consumes a message: a function or a coroutine function. What it raises means: not consumed, try again later."""


class Handling:
    """Runs one handler, at most `max_in_flight` times at once in threads."""

    def __init__(self, handler: MessageHandler, max_in_flight: int, timeout_s: float) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        call = getattr(handler, "__call__", None)  # noqa: B004  # of an object with an asynchronous __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._threads = None if is_async else ThreadPoolExecutor(max_in_flight, "penstock handler")

    async def run(self, message: ReceivedMessage) -> Outcome:
        """What the handler says; Later for whatever it raises, which is logged."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._threads is None:
                    result = self._handler(message)
                else:
                    result = await asyncio.get_running_loop().run_in_executor(self._threads, self._handler, message)
                if inspect.isawaitable(result):
                    result = await result
        except asyncio.CancelledError:
            raise
        except TimeoutError:
            log.warning(
                "%r was not consumed: its handler took longer than %g s, or timed out", message, self._timeout_s
            )
            return Later()
        except Exception:
            log.warning("%r was not consumed, its handler failed", message, exc_info=True)
            return Later()
        if result is None or isinstance(result, Later):
            return result
        log.warning(
            "%r: the handler returned %r, which is neither None nor Later; it counts as consumed", message, result
        )
        return None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


_FIRST_LEVEL: Final = 3
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"


class SendBackRequests:
    """For one group. `max_times` is how often a message is retried before it is a dead letter."""

    def __init__(self, instance: ClientInstance, group: str, max_times: int) -> None:
        self._instance = instance
        self._group = group
        self.max_times = max_times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Whether the message is the broker's business again; a negative level makes it a dead letter at once."""
        try:
            await self._give_back(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be given back: %s", message, error)
        try:
            await self._send_copy(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be sent to be retried either: %s", message, error)
        return False

    async def _give_back(self, message: ReceivedMessage, delay_level: int) -> None:
        header = SendBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self.max_times,
        )
        address = self._instance.routes.address(message.broker_name)
        await self._instance.ask(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def _send_copy(self, message: ReceivedMessage, delay_level: int) -> None:
        record, topic = message.record, f"{RETRY_PREFIX}{self._group}"
        times = self.max_times if delay_level < 0 else message.reconsume_times + 1
        properties = {
            **record.properties,
            RETRY_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: record.properties.get(ORIGIN_MESSAGE_ID, message.msg_id),
            DELAY: str(max(delay_level, 0) or _FIRST_LEVEL + message.reconsume_times),
        }
        header = SendMessageV2(
            producer_group=_PRODUCER_GROUP,
            topic=topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=record.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            born_timestamp=now_ms(),
            flag=record.flag,
            properties=encode_properties(properties).decode("utf-8", "surrogateescape"),
            reconsume_times=times,
            max_reconsume_times=self.max_times,
        )
        route = await self._instance.routes.find(topic)
        for address in route.masters.values():
            await self._instance.ask(address, RequestCode.SEND_MESSAGE_V2, header, record.body)
            return
        raise PenstockError(f"no broker has topic '{topic}'")


_AGAIN_S: Final = 5.0


class ConcurrentConsumption:
    """A number of workers that share what was pulled. Without `send_backs` it is a broadcast."""

    def __init__(
        self, handling: Handling, offsets: OffsetStore, send_backs: SendBackRequests | None, max_in_flight: int
    ) -> None:
        self._handling = handling
        self._offsets = offsets
        self._send_backs = send_backs
        self._waiting: asyncio.Queue[tuple[ProcessQueue, ReceivedMessage] | None] = asyncio.Queue()
        self._workers = [asyncio.create_task(self._work()) for _ in range(max_in_flight)]
        self._again: set[asyncio.TimerHandle] = set()

    def begin(self, process_queue: ProcessQueue) -> None:
        """Nothing to prepare for a queue."""

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._waiting.put_nowait((process_queue, message))

    async def end(self, process_queue: ProcessQueue) -> None:
        """What is under way of a queue goes on, and whatever comes of it is ignored."""
        process_queue.drop()

    async def close(self, timeout_s: float) -> None:
        """Begins no message any more, and waits for those under way."""
        for timer in self._again:
            timer.cancel()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        for _ in self._workers:
            self._waiting.put_nowait(None)
        _, late = await asyncio.wait(self._workers, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _work(self) -> None:
        while (taken := await self._waiting.get()) is not None:
            process_queue, message = taken
            if not process_queue.dropped:
                try:
                    await self._consume(process_queue, message)
                except Exception:
                    log.exception("%r could not be dealt with", message)
                    self._try_again(process_queue, message)

    async def _consume(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        outcome = await self._handling.run(message)
        if process_queue.dropped:
            return
        if outcome is not None and not await self._give_back(message, outcome):
            message.reconsume_times += 1
            self._try_again(process_queue, message)
            return
        process_queue.remove(message)
        if not process_queue.dropped:
            self._offsets.note(process_queue.queue, process_queue.commit_offset)

    async def _give_back(self, message: ReceivedMessage, outcome: Later) -> bool:
        if self._send_backs is None:
            log.warning("%r is not consumed, and a broadcast message is not retried", message)
            return True
        return await self._send_backs.send_back(message, outcome.delay_level)

    def _try_again(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        def again() -> None:
            self._again.discard(timer)
            self.submit(process_queue, [message])

        timer = asyncio.get_running_loop().call_later(_AGAIN_S, again)
        self._again.add(timer)


_LOCK_AGAIN_S: Final = 0.5
Restart = Callable[[ProcessQueue, int], None]
"""Has a queue begin anew at an offset."""


class _Line:
    """The messages of one queue that are next."""

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.waiting: deque[ReceivedMessage] = deque()
        self.arrived = asyncio.Event()
        self.busy = asyncio.Lock()
        """Held while a message is with its handler, and until its offset is noted."""
        self.task: asyncio.Task[None] | None = None


class OrderedConsumption:
    """One line for each queue. Without `locks` it is a broadcast."""

    def __init__(
        self,
        handling: Handling,
        offsets: OffsetStore,
        send_backs: SendBackRequests | None,
        locks: ClientQueueLocks | None,
        restart: Restart,
        *,
        max_in_flight: int,
        suspend_s: float,
    ) -> None:
        self._handling = handling
        self._offsets = offsets
        self._send_backs = send_backs
        self._locks = locks
        self._restart = restart
        self._slots = asyncio.Semaphore(max_in_flight)
        self._suspend_s = suspend_s
        self._lines: dict[ProcessQueue, _Line] = {}

    def begin(self, process_queue: ProcessQueue) -> None:
        line = self._lines[process_queue] = _Line(process_queue)
        line.task = asyncio.create_task(self._run(line))

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        line = self._lines.get(process_queue)
        if line is not None:
            line.waiting.extend(messages)
            line.arrived.set()

    async def end(self, process_queue: ProcessQueue) -> None:
        """Returns when the message under way is done, and its offset noted; no other is begun."""
        line = self._lines.pop(process_queue, None)
        if line is None or line.task is None:
            return
        line.waiting.clear()
        async with line.busy:
            process_queue.drop()
        line.task.cancel()
        await asyncio.gather(line.task, return_exceptions=True)

    async def close(self, timeout_s: float) -> None:
        """Begins no message any more, and waits for those under way."""
        tasks = [line.task for line in self._lines.values() if line.task is not None]
        ending = [asyncio.create_task(self.end(process_queue)) for process_queue in list(self._lines)]
        if ending:
            _, late = await asyncio.wait(ending, timeout=timeout_s)
            for task in (*late, *tasks):
                task.cancel()
            await asyncio.gather(*late, *tasks, return_exceptions=True)

    # -- one line --------------------------------------------------------------------------------------------

    async def _run(self, line: _Line) -> None:
        while not line.process_queue.dropped:
            try:
                await self._consume(line)
                return
            except Exception:
                queue = line.process_queue.queue
                log.exception("%s/%d could not be dealt with", queue.topic, queue.queue_id)
                await asyncio.sleep(self._suspend_s)

    async def _consume(self, line: _Line) -> None:
        process_queue = line.process_queue
        while not process_queue.dropped:
            if not line.waiting:
                line.arrived.clear()
                await line.arrived.wait()
                continue
            if not await self._own(process_queue):
                return
            async with self._slots, line.busy:
                if not line.waiting or process_queue.dropped or not self._is_ours(process_queue):
                    continue
                message = line.waiting[0]
                if await self._consume_one(message):
                    self._done(line, message)
                    continue
            await asyncio.sleep(self._suspend_s)

    def _done(self, line: _Line, message: ReceivedMessage) -> None:
        if line.waiting:  # unless the queue is being given up
            line.waiting.popleft()
        process_queue = line.process_queue
        process_queue.remove(message)
        if not process_queue.dropped:
            self._offsets.note(process_queue.queue, process_queue.commit_offset)

    async def _consume_one(self, message: ReceivedMessage) -> bool:
        """Whether the queue may go on."""
        outcome = await self._handling.run(message)
        if outcome is None:
            return True
        message.reconsume_times += 1
        if self._send_backs is None:
            return False
        is_dead = outcome.delay_level < 0 or message.reconsume_times > self._send_backs.max_times
        return is_dead and await self._send_backs.send_back(message, -1)

    def _is_ours(self, process_queue: ProcessQueue) -> bool:
        return self._locks is None or self._locks.holds(process_queue.queue)

    async def _own(self, process_queue: ProcessQueue) -> bool:
        """Returns when the queue is ours; False if it was not, and others have come further: it begins anew then."""
        if self._locks is None or self._is_ours(process_queue):
            return True
        queue = process_queue.queue
        log.info("the lock of %s/%d is lost", queue.topic, queue.queue_id)
        while not process_queue.dropped:
            await self._locks.lock([queue])
            if self._locks.holds(queue):
                try:
                    stored = await self._offsets.load(queue)
                except PenstockError as error:
                    log.debug("%s", error)
                else:
                    if stored is None or stored <= process_queue.commit_offset:
                        return True
                    self._restart(process_queue, stored)
                    return False
            await asyncio.sleep(_LOCK_AGAIN_S)
        return False

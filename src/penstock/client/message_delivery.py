"""Delivery of messages to the user's handler: handler calls, concurrent and ordered consumption, and retries.

A coroutine function runs on the client's event loop. Any other handler runs in a thread pool, so it may block. A
handler that exceeds its timeout counts as failed: a coroutine is cancelled, but a thread keeps running. A failed
message is sent back to its broker. If that fails, a copy is sent to the group's retry topic. The classes are not
thread-safe: use them from the event loop's thread only.
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

_FIRST_LEVEL: Final = 3
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_LOCAL_RETRY_S: Final = 5.0
_LOCK_RETRY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Later:
    """A handler's result for a message that it could not consume and that must be delivered again later.

    `delay_level` 0 lets the broker choose the delay, which grows with each retry. Levels 1 to 18 are those of
    `Message.delay_level`. A negative level makes the message a dead letter at once. Ordered consumers retry in place:
    they support negative levels, and treat all others alike.
    """

    delay_level: int = 0


Outcome: TypeAlias = Later | None
"""A handler's result. None means that the message is consumed."""
MessageHandler: TypeAlias = Callable[[ReceivedMessage], Awaitable[Outcome] | Outcome]
"""A function or a coroutine function. If it raises, the message is not consumed and is retried later."""


class HandlerRunner:
    """Calls one handler. A handler that is not a coroutine function runs in a pool of `max_in_flight` threads."""

    def __init__(self, handler: MessageHandler, max_in_flight: int, timeout_s: float) -> None:
        self._handler = handler
        self._timeout_s = timeout_s
        call = getattr(handler, "__call__", None)  # noqa: B004  # of an object with an asynchronous __call__
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._threads = None if is_async else ThreadPoolExecutor(max_in_flight, "penstock handler")

    async def run(self, message: ReceivedMessage) -> Outcome:
        """Calls the handler and returns its outcome. An exception or a timeout is logged and becomes `Later`."""
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
                "%r not consumed: the handler took longer than %g s, or raised TimeoutError", message, self._timeout_s
            )
            return Later()
        except Exception:
            log.warning("%r not consumed: the handler failed", message, exc_info=True)
            return Later()
        if result is None or isinstance(result, Later):
            return result
        log.warning("%r: the handler returned %r instead of None or Later; treated as consumed", message, result)
        return None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class SendBackRequests:
    """Sends failed messages of one group back to the broker (request code 36) for a retry.

    After `max_times` retries the broker makes a message a dead letter.
    """

    def __init__(self, instance: ClientInstance, group: str, max_times: int) -> None:
        self._instance = instance
        self._group = group
        self.max_times = max_times

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        """Sends a message back for a retry; a negative level makes it a dead letter. Returns False if no broker
        accepted it.
        """
        try:
            await self._request_send_back(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be sent back: %s", message, error)
        try:
            await self._send_copy(message, delay_level)
            return True
        except PenstockError as error:
            log.warning("%r cannot be sent to the retry topic either: %s", message, error)
        return False

    async def _request_send_back(self, message: ReceivedMessage, delay_level: int) -> None:
        header = SendBack(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=message.topic,
            max_reconsume_times=self.max_times,
        )
        address = self._instance.routes.address(message.broker_name)
        await self._instance.request(address, RequestCode.CONSUMER_SEND_MSG_BACK, header)

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
            await self._instance.request(address, RequestCode.SEND_MESSAGE_V2, header, record.body)
            return
        raise PenstockError(f"no broker has topic '{topic}'")


class ConcurrentConsumption:
    """Workers that consume the messages of all queues concurrently, in no particular order.

    A failed message is sent back to the broker. If no broker accepts it, this client calls the handler again later.
    Without `send_backs` (broadcast), a failed message is logged and not retried.
    """

    def __init__(
        self, runner: HandlerRunner, offsets: OffsetStore, send_backs: SendBackRequests | None, max_in_flight: int
    ) -> None:
        self._runner = runner
        self._offsets = offsets
        self._send_backs = send_backs
        self._waiting: asyncio.Queue[tuple[ProcessQueue, ReceivedMessage] | None] = asyncio.Queue()
        self._workers = [asyncio.create_task(self._run_worker()) for _ in range(max_in_flight)]
        self._retry_timers: set[asyncio.TimerHandle] = set()

    def begin(self, process_queue: ProcessQueue) -> None:
        """Does nothing: all queues share the workers."""

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        for message in messages:
            self._waiting.put_nowait((process_queue, message))

    async def end(self, process_queue: ProcessQueue) -> None:
        """Drops a queue. Handlers that still run finish; their outcomes are ignored."""
        process_queue.drop()

    async def close(self, timeout_s: float) -> None:
        """Starts no more handler calls, and waits up to `timeout_s` for the running ones."""
        for timer in self._retry_timers:
            timer.cancel()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        for _ in self._workers:
            self._waiting.put_nowait(None)
        _, late = await asyncio.wait(self._workers, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _run_worker(self) -> None:
        while (item := await self._waiting.get()) is not None:
            process_queue, message = item
            if not process_queue.dropped:
                try:
                    await self._consume(process_queue, message)
                except Exception:
                    log.exception("delivery of %r failed", message)
                    self._retry_later(process_queue, message)

    async def _consume(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        outcome = await self._runner.run(message)
        if process_queue.dropped:
            return
        if outcome is not None and not await self._send_back(message, outcome):
            message.reconsume_times += 1
            self._retry_later(process_queue, message)
            return
        process_queue.remove(message)
        if not process_queue.dropped:
            self._offsets.update(process_queue.queue, process_queue.commit_offset)

    async def _send_back(self, message: ReceivedMessage, outcome: Later) -> bool:
        if self._send_backs is None:
            log.warning("%r not consumed; a broadcast message is not retried", message)
            return True
        return await self._send_backs.send_back(message, outcome.delay_level)

    def _retry_later(self, process_queue: ProcessQueue, message: ReceivedMessage) -> None:
        def retry() -> None:
            self._retry_timers.discard(timer)
            self.submit(process_queue, [message])

        timer = asyncio.get_running_loop().call_later(_LOCAL_RETRY_S, retry)
        self._retry_timers.add(timer)


Restart = Callable[[ProcessQueue, int], None]
"""A function that restarts a queue at an offset."""


class _QueueWorker:
    """The task that consumes one queue, and the messages that it has not consumed yet."""

    def __init__(self, process_queue: ProcessQueue) -> None:
        self.process_queue = process_queue
        self.waiting: deque[ReceivedMessage] = deque()
        self.arrived = asyncio.Event()
        self.busy = asyncio.Lock()
        """Held from the start of a handler call until the message's offset is updated."""
        self.task: asyncio.Task[None] | None = None


class OrderedConsumption:
    """Consumes each queue in order, one message at a time. `locks` is None for a broadcast consumer.

    A failed message is retried in place after a pause of `suspend_s`. It blocks its queue until it is consumed or
    becomes a dead letter. In a group, the handler is called only while this client holds the queue's lock. After a lost
    lock, the queue continues at the group's stored offset if that is higher.
    """

    def __init__(
        self,
        runner: HandlerRunner,
        offsets: OffsetStore,
        send_backs: SendBackRequests | None,
        locks: ClientQueueLocks | None,
        restart: Restart,
        *,
        max_in_flight: int,
        suspend_s: float,
    ) -> None:
        self._runner = runner
        self._offsets = offsets
        self._send_backs = send_backs
        self._locks = locks
        self._restart = restart
        self._slots = asyncio.Semaphore(max_in_flight)
        self._suspend_s = suspend_s
        self._workers: dict[ProcessQueue, _QueueWorker] = {}

    def begin(self, process_queue: ProcessQueue) -> None:
        worker = self._workers[process_queue] = _QueueWorker(process_queue)
        worker.task = asyncio.create_task(self._run(worker))

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None:
        worker = self._workers.get(process_queue)
        if worker is not None:
            worker.waiting.extend(messages)
            worker.arrived.set()

    async def end(self, process_queue: ProcessQueue) -> None:
        """Waits for a running handler call and its offset update, then drops the queue."""
        worker = self._workers.pop(process_queue, None)
        if worker is None or worker.task is None:
            return
        worker.waiting.clear()
        async with worker.busy:
            process_queue.drop()
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)

    async def close(self, timeout_s: float) -> None:
        """Starts no more handler calls, and waits up to `timeout_s` for the running ones."""
        tasks = [worker.task for worker in self._workers.values() if worker.task is not None]
        ending = [asyncio.create_task(self.end(process_queue)) for process_queue in list(self._workers)]
        if ending:
            _, late = await asyncio.wait(ending, timeout=timeout_s)
            for task in (*late, *tasks):
                task.cancel()
            await asyncio.gather(*late, *tasks, return_exceptions=True)

    # -- one queue -------------------------------------------------------------------------------------------

    async def _run(self, worker: _QueueWorker) -> None:
        while not worker.process_queue.dropped:
            try:
                await self._consume(worker)
                return
            except Exception:
                queue = worker.process_queue.queue
                log.exception("delivery of %s/%d failed", queue.topic, queue.queue_id)
                await asyncio.sleep(self._suspend_s)

    async def _consume(self, worker: _QueueWorker) -> None:
        process_queue = worker.process_queue
        while not process_queue.dropped:
            if not worker.waiting:
                worker.arrived.clear()
                await worker.arrived.wait()
                continue
            if not await self._acquire_lock(process_queue):
                return
            async with self._slots, worker.busy:
                if not worker.waiting or process_queue.dropped or not self._is_locked(process_queue):
                    continue
                message = worker.waiting[0]
                if await self._consume_one(message):
                    self._mark_consumed(worker, message)
                    continue
            await asyncio.sleep(self._suspend_s)

    def _mark_consumed(self, worker: _QueueWorker, message: ReceivedMessage) -> None:
        if worker.waiting:  # `end` may have cleared it during the handler call
            worker.waiting.popleft()
        process_queue = worker.process_queue
        process_queue.remove(message)
        if not process_queue.dropped:
            self._offsets.update(process_queue.queue, process_queue.commit_offset)

    async def _consume_one(self, message: ReceivedMessage) -> bool:
        """Calls the handler. Returns True if the message is consumed or dead, so that the queue can continue with the
        next one.
        """
        outcome = await self._runner.run(message)
        if outcome is None:
            return True
        message.reconsume_times += 1
        if self._send_backs is None:
            return False
        is_dead = outcome.delay_level < 0 or message.reconsume_times > self._send_backs.max_times
        return is_dead and await self._send_backs.send_back(message, -1)

    def _is_locked(self, process_queue: ProcessQueue) -> bool:
        return self._locks is None or self._locks.holds(process_queue.queue)

    async def _acquire_lock(self, process_queue: ProcessQueue) -> bool:
        """Waits for the queue's lock. Returns False if the queue was dropped, or restarted because the group's offset
        is higher.
        """
        if self._locks is None or self._is_locked(process_queue):
            return True
        queue = process_queue.queue
        log.info("lost the lock of %s/%d", queue.topic, queue.queue_id)
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
            await asyncio.sleep(_LOCK_RETRY_S)
        return False

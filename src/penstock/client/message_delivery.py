"""Delivery of messages to the handlers: concurrent and ordered consumption, and retries.

A failed message is sent back to its broker. If that fails, a copy is sent to the group's retry topic. Each failed
delivery is one line in the log, with the attempt and what comes next. The classes are not thread-safe: use them from
the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from penstock.client.assigned_queues import ProcessQueue
from penstock.client.client_instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import OffsetStore
from penstock.client.queue_locks import ClientQueueLocks
from penstock.client.routes import TEMPLATE_TOPIC
from penstock.client.user_handlers import DeadLetter, HandlerRunner, Later, Outcome
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
_DELAYS: Final = (
    "1 s",
    "5 s",
    "10 s",
    "30 s",
    *(f"{minutes} min" for minutes in (*range(1, 11), 20, 30)),
    "1 h",
    "2 h",
)
"""RocketMQ's default delay of each level, from level 1 on."""
_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_LOCAL_RETRY_S: Final = 5.0
_LOCK_RETRY_S: Final = 0.5
UNLIMITED: Final = 2**31 - 1
"""The number of retries that stands for any number."""


class SendBackRequests:
    """Sends failed messages of one group back to the broker (request code 36) for a retry.

    After `max_times` retries the broker makes a message a dead letter.
    """

    def __init__(self, instance: ClientInstance, group: str, max_times: int) -> None:
        self._instance = instance
        self._group = group
        self.max_times = max_times

    def next_step(self, message: ReceivedMessage, outcome: Later | DeadLetter) -> str:
        """Says for the log what happens to a failed message once the broker has it."""
        if isinstance(outcome, DeadLetter) or message.reconsume_times >= self.max_times:
            return f"it becomes a dead letter of group {self._group}"
        level = min(outcome.delay_level or _FIRST_LEVEL + message.reconsume_times, len(_DELAYS))
        return f"again at delay level {level} (usually {_DELAYS[level - 1]})"

    async def send_back(self, message: ReceivedMessage, outcome: Later | DeadLetter) -> bool:
        """Sends a message back for a retry, or to be a dead letter. Returns False if no broker accepted it."""
        delay_level = -1 if isinstance(outcome, DeadLetter) else outcome.delay_level
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


def log_failure(message: ReceivedMessage, outcome: Later | DeadLetter, max_times: int | None, next_step: str) -> None:
    """Writes the line of one failed delivery. `max_times` is the number of retries, None without a limit."""
    of = "" if max_times is None or max_times >= UNLIMITED else f" of {max_times + 1}"
    why = outcome.reason or f"the handler returned {type(outcome).__name__}"
    log.warning("%r not consumed at attempt %d%s: %s; %s", message, message.reconsume_times + 1, of, why, next_step)


# -- concurrent ------------------------------------------------------------------------------------------------------


class FairQueues:
    """Messages that wait for a worker, by queue. The queues take turns, so none waits behind a long one."""

    def __init__(self, limit: Callable[[str, int], int] = lambda topic, waiting: 1) -> None:
        """`limit` returns how many messages of a topic are taken at once if so many of all topics wait."""
        self._limit = limit
        self._by_queue: dict[ProcessQueue, deque[ReceivedMessage]] = {}
        """Only queues with messages, the one whose turn is next first."""
        self._count = 0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def put(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if messages and not self._closed:
            self._by_queue.setdefault(process_queue, deque()).extend(messages)
            self._count += len(messages)
            self._wake()

    def put_back(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Makes messages that were taken the first ones of their queue."""
        if messages and not self._closed:
            self._by_queue.setdefault(process_queue, deque()).extendleft(reversed(messages))
            self._count += len(messages)
            self._wake()

    async def take(self) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        """Returns messages of one topic, of the next queue in turn; None after `close`."""
        while not self._closed:
            taken = self.take_now()
            if taken is not None:
                return taken
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        return None

    def take_now(self) -> tuple[ProcessQueue, list[ReceivedMessage]] | None:
        """Like `take`, but returns None if no message waits."""
        while self._by_queue:
            process_queue = next(iter(self._by_queue))
            waiting = self._by_queue.pop(process_queue)
            if process_queue.dropped:
                self._count -= len(waiting)
                continue
            topic = process_queue.queue.topic
            limit = self._limit(topic, self._count)
            if limit > 1 and topic.startswith(RETRY_PREFIX):
                limit = len(first_alike(waiting, limit))
            taken = [waiting.popleft() for _ in range(min(limit, len(waiting)))]
            self._count -= len(taken)
            if waiting:
                self._by_queue[process_queue] = waiting  # behind all others
            if self._by_queue:
                self._wake()  # the taker may be busy for long
            return process_queue, taken
        return None

    def close(self) -> None:
        """Drops all messages and lets every `take` return None."""
        self._closed = True
        self._by_queue.clear()
        while self._idle:
            self._wake()

    def _wake(self) -> None:
        """Wakes one taker, which wakes the next one if there is more."""
        while self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                return


def first_alike(waiting: Iterable[ReceivedMessage], limit: int) -> list[ReceivedMessage]:
    """Returns the first messages, as long as they have the topic of the first one: a retry queue has messages of all
    topics.
    """
    first: list[ReceivedMessage] = []
    for message in waiting:
        if len(first) == limit or (first and message.topic != first[0].topic):
            break
        first.append(message)
    return first


class ConcurrentConsumption:
    """Workers that consume the messages of all queues concurrently, in no particular order, with a fair share for each
    queue.

    A failed message is sent back to the broker. If no broker accepts it, this client calls the handler again later.
    Without `send_backs` (broadcast), a failed message is logged and not retried.
    """

    def __init__(
        self, runner: HandlerRunner, offsets: OffsetStore, send_backs: SendBackRequests | None, max_in_flight: int
    ) -> None:
        self._runner = runner
        self._offsets = offsets
        self._send_backs = send_backs
        self._waiting = FairQueues(runner.limit)
        self._workers = [asyncio.create_task(self._run_worker()) for _ in range(max_in_flight)]
        self._retry_timers: set[asyncio.TimerHandle] = set()

    def begin(self, process_queue: ProcessQueue) -> None:
        """Does nothing: all queues share the workers."""

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        self._waiting.put(process_queue, messages)

    async def end(self, process_queue: ProcessQueue) -> None:
        """Drops a queue. Handlers that still run finish; their outcomes are ignored."""
        process_queue.drop()
        self._runner.stream.withdraw(process_queue.queue)

    async def close(self, timeout_s: float) -> None:
        """Starts no more handler calls, and waits up to `timeout_s` for the running ones."""
        for timer in self._retry_timers:
            timer.cancel()
        self._waiting.close()
        _, late = await asyncio.wait(self._workers, timeout=timeout_s)
        for worker in late:
            worker.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def _run_worker(self) -> None:
        waiting = self._waiting
        while (taken := waiting.take_now() or await waiting.take()) is not None:
            process_queue, messages = taken
            try:
                await self._consume(process_queue, messages)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not process_queue.dropped:
                    raise
                # only the messages were withdrawn
            except Exception:
                log.exception("delivery of %r failed", messages[0])
                self._retry_later(process_queue, [each for each in messages if process_queue.holds(each)])

    async def _consume(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        outcomes = await self._runner.run(messages, partial(self._waiting.put_back, process_queue))
        if len(outcomes) < len(messages):
            del messages[len(outcomes) :]  # they were given back
        if any(outcomes):
            await self._consume_each(process_queue, messages, outcomes)
        elif not process_queue.dropped:
            process_queue.remove(messages)
            self._offsets.update(process_queue.queue, process_queue.commit_offset)

    async def _consume_each(
        self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage], outcomes: Sequence[Outcome]
    ) -> None:
        for message, outcome in zip(messages, outcomes, strict=True):
            if process_queue.dropped:
                return
            if outcome is not None and not await self._send_back(message, outcome):
                message.reconsume_times += 1
                self._retry_later(process_queue, [message])
                continue
            process_queue.remove([message])
            if not process_queue.dropped:
                self._offsets.update(process_queue.queue, process_queue.commit_offset)

    async def _send_back(self, message: ReceivedMessage, outcome: Later | DeadLetter) -> bool:
        if self._send_backs is None:
            log_failure(message, outcome, 0, "a broadcast message is not retried")
            return True
        log_failure(message, outcome, self._send_backs.max_times, self._send_backs.next_step(message, outcome))
        return await self._send_backs.send_back(message, outcome)

    def _retry_later(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        def retry() -> None:
            self._retry_timers.discard(timer)
            self.submit(process_queue, messages)

        timer = asyncio.get_running_loop().call_later(_LOCAL_RETRY_S, retry)
        self._retry_timers.add(timer)


# -- ordered ---------------------------------------------------------------------------------------------------------


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
    """Consumes each queue in order, one call of the handler at a time. `locks` is None for a broadcast consumer.

    A failed message is retried in place after a pause of `suspend_s`. It blocks its queue until it is consumed or,
    after `max_times` retries, a dead letter. A broadcast consumer, which has no dead letters, skips it. In a group, the
    handler is called only while this client holds the queue's lock. After a lost lock, the queue continues at the
    group's stored offset if that is higher.
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
        max_times: int,
        suspend_s: float,
    ) -> None:
        self._max_times = max_times
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

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
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
        self._runner.stream.withdraw(process_queue.queue)
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
                if await self._consume_first(worker):
                    continue
            await asyncio.sleep(self._suspend_s)

    async def _consume_first(self, worker: _QueueWorker) -> bool:
        """Calls the handler with the first messages of a queue. Returns True if all of them are consumed or dead, so
        that the queue can continue.
        """
        messages = first_alike(worker.waiting, self._runner.batch_size)
        outcomes = await self._runner.run(messages)
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome is not None and not await self._is_dead(message, outcome):
                return False
            self._mark_consumed(worker, message)
        return True

    def _mark_consumed(self, worker: _QueueWorker, message: ReceivedMessage) -> None:
        if worker.waiting:  # `end` may have cleared it during the handler call
            worker.waiting.popleft()
        process_queue = worker.process_queue
        process_queue.remove([message])
        if not process_queue.dropped:
            self._offsets.update(process_queue.queue, process_queue.commit_offset)

    async def _is_dead(self, message: ReceivedMessage, outcome: Later | DeadLetter) -> bool:
        """Counts a failed delivery. Returns True if it was the last one: the message is a dead letter, or skipped."""
        is_last = isinstance(outcome, DeadLetter) or message.reconsume_times >= self._max_times
        end = "it is skipped" if self._send_backs is None else "it becomes a dead letter"
        log_failure(message, outcome, self._max_times, end if is_last else f"again in {self._suspend_s:g} s")
        message.reconsume_times += 1
        if not is_last or self._send_backs is None:
            return is_last
        return await self._send_backs.send_back(message, DeadLetter())

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

"""The queues assigned to a push consumer: their pull loops, and the messages pulled but not consumed yet.

`ProcessQueue` caches the messages of one queue. Its commit offset is the lowest cached offset or, if the cache is
empty, the offset of the next pull. So a crash loses no message, but messages may be delivered again.

`Assignments` adds a queue at the group's offset. When it removes a queue, it stores the offset and releases the lock. A
broker or an administrator can restart a queue at another offset. The classes are not thread-safe: use them from the
event loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from penstock.client.client_instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import OffsetStore
from penstock.client.pull_requests import Fetcher, Pull, PullStatus
from penstock.client.queue_locks import ClientQueueLocks
from penstock.clock import now_ms
from penstock.errors import PenstockError, Refused
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.subscription import SubscriptionData

log = logging.getLogger("penstock.client")

_MAX_COUNT = 1000
_MAX_BYTES = 100 << 20
_MAX_SPAN = 2000
"""Pulling pauses at this many offsets from the lowest cached message to the next pull.

It limits the messages that are delivered again after a crash.
"""
_LONG_POLL_S: Final = 15.0
_MIN_PAUSE_S: Final = 0.2
_MAX_PAUSE_S: Final = 3.0
_NOT_HELD: Final = frozenset({PullStatus.NO_MATCHED_MSG, PullStatus.OFFSET_ILLEGAL})
"""Answers without messages that a broker gives at once, also to a long poll."""
_UNKNOWN_SUBSCRIPTION: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""Response codes of a broker that has not received this client's last heartbeat."""


class ProcessQueue:
    """The cached messages of one queue, in offset order. Once it is `dropped`, the outcomes of its messages are
    ignored.
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        """The offset of the next pull."""
        self.dropped = False
        self.pulled_at = self.consumed_at = 0
        """Times of the last pull and of the last consumed message, in epoch milliseconds; 0 before the first."""
        self._cached: dict[int, ReceivedMessage] = {}
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._cached)

    def holds(self, message: ReceivedMessage) -> bool:
        """Whether a message was neither consumed nor sent back yet."""
        return message.queue_offset in self._cached

    @property
    def cached_bytes(self) -> int:
        return self._bytes

    @property
    def cached_offsets(self) -> list[int]:
        return list(self._cached)

    @property
    def commit_offset(self) -> int:
        """The offset to commit: all messages before it are consumed or sent back."""
        return next(iter(self._cached), self.next_offset)

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Caches the messages of a pulled page and sets `next_offset`."""
        cached = self._cached
        for message in messages:
            cached[message.queue_offset] = message
            self._bytes += message.size
        self.next_offset = next_offset
        self.pulled_at = now_ms()
        self._update_room()

    def remove(self, messages: Iterable[ReceivedMessage]) -> None:
        """Removes messages that were consumed or sent back."""
        for message in messages:
            if self._cached.pop(message.queue_offset, None) is not None:
                self._bytes -= message.size
        self.consumed_at = now_ms()
        if not self._has_room.is_set():
            self._update_room()

    def drop(self) -> None:
        """Marks the queue as no longer owned by this consumer."""
        self.dropped = True
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Returns once the cache is below its limits of messages, bytes and offset span (back-pressure)."""
        await self._has_room.wait()

    def _update_room(self) -> None:
        span = self.next_offset - self.commit_offset
        if self.dropped or (len(self._cached) < _MAX_COUNT and self._bytes < _MAX_BYTES and span < _MAX_SPAN):
            self._has_room.set()
        else:
            self._has_room.clear()


class Consumption(Protocol):
    """Passes pulled messages to the handler, concurrently or in order."""

    def begin(self, process_queue: ProcessQueue) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None: ...

    async def end(self, process_queue: ProcessQueue) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class _NoConsumption:
    """Placeholder until the consumer starts."""

    def begin(self, process_queue: ProcessQueue) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None: ...

    async def end(self, process_queue: ProcessQueue) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class Assignments:
    """The queues of one push consumer, each with its cache and its pull task."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        locks: ClientQueueLocks | None,
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        *,
        commit_on_pull: bool,
        pull_batch: int,
        body_limit: int,
    ) -> None:
        """`commit_on_pull`: whether each pull also commits the group's offset."""
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._locks = locks
        self._start_offset = start_offset
        self._commit_on_pull = commit_on_pull
        self._pull_batch = pull_batch
        self._fetcher = Fetcher(instance, body_limit)
        self._pull_tasks: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._release_tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._closed = False
        self.table: dict[MessageQueue, ProcessQueue] = {}
        self.consumption: Consumption = _NoConsumption()
        """The consumer sets this before the first `update`."""
        self.on_released: Callable[[], None] = lambda: None
        """Called when a removed or restarted queue may be assigned again."""

    # -- queues ----------------------------------------------------------------------------------------------

    def locked(self) -> list[MessageQueue]:
        """Returns the queues whose locks this consumer keeps: its own, and those that it loses or restarts while their
        handler still runs. Without its lock, another client would handle the same message meanwhile.
        """
        locks = self._locks
        return [*self.table, *(queue for queue in self._release_tasks if locks is not None and locks.holds(queue))]

    async def update(self, topic: str, queues: set[MessageQueue]) -> bool:
        """Makes `queues` the consumer's queues of a topic: removes all others and adds new ones. Returns False if a new
        queue could not be added yet.
        """
        owned = {queue for queue in self.table if queue.topic == topic}
        for queue in owned - queues:
            self.remove(queue)
        new = queues - owned
        free = {queue for queue in new if queue not in self._release_tasks}
        if self._locks is not None and free:
            await self._locks.lock(free)
            free = {queue for queue in free if self._locks.holds(queue)}
        added = [await self._add(queue) for queue in sorted(free)]
        return len(free) == len(new) and all(added)

    async def _add(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._start_offset(queue)
        except PenstockError as error:
            log.warning("%s/%d of %s not started yet: %s", queue.topic, queue.queue_id, queue.broker_name, error)
            return False
        self._start(queue, offset)
        return True

    def _start(self, queue: MessageQueue, offset: int) -> None:
        if self._closed:
            return
        log.info("consuming %s/%d of %s from offset %d", queue.topic, queue.queue_id, queue.broker_name, offset)
        process_queue = self.table[queue] = ProcessQueue(queue, offset)
        self._offsets.update(queue, offset)
        self.consumption.begin(process_queue)
        self._pull_tasks[process_queue] = asyncio.create_task(self._pull_loop(process_queue))

    def remove(self, queue: MessageQueue) -> None:
        """Removes a queue. A background task stores its offset and releases its lock."""
        process_queue = self.table.pop(queue)
        log.info("released %s/%d of %s", queue.topic, queue.queue_id, queue.broker_name)
        self._stop_pulling(process_queue)
        task = self._release_tasks[queue] = asyncio.create_task(self._release(process_queue))
        task.add_done_callback(lambda _: self._released(queue))

    def restart(self, process_queue: ProcessQueue, offset: int) -> None:
        """Drops a queue's cached messages and continues the queue at `offset`."""
        queue = process_queue.queue
        if self.table.get(queue) is not process_queue:
            return
        del self.table[queue]
        self._stop_pulling(process_queue)
        process_queue.drop()
        self._offsets.update(queue, offset)
        task = self._release_tasks[queue] = asyncio.create_task(self._restart(process_queue, offset))
        task.add_done_callback(lambda _: self._released(queue))

    async def _restart(self, process_queue: ProcessQueue, offset: int) -> None:
        await self.consumption.end(process_queue)
        await self._offsets.save([process_queue.queue])
        self._start(process_queue.queue, offset)

    async def _release(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        await self.consumption.end(process_queue)
        await self._offsets.save([queue])
        self._offsets.remove(queue)
        if self._locks is not None:
            await self._locks.unlock([queue])

    def _released(self, queue: MessageQueue) -> None:
        self._release_tasks.pop(queue, None)
        self.on_released()

    def _stop_pulling(self, process_queue: ProcessQueue) -> None:
        task = self._pull_tasks.pop(process_queue, None)
        if task is not None:
            task.cancel()

    async def close(self, timeout_s: float) -> None:
        """Stops pulling, waits for messages in flight, stores all offsets and releases all locks."""
        self._closed, self.on_released = True, lambda: None
        tasks = list(self._pull_tasks.values())
        for process_queue in list(self._pull_tasks):
            self._stop_pulling(process_queue)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.consumption.close(timeout_s)
        releasing = list(self._release_tasks.values())
        if releasing:
            await asyncio.wait(releasing, timeout=timeout_s)
        for task in releasing:
            task.cancel()
        await asyncio.gather(*releasing, return_exceptions=True)
        await self._offsets.save()
        if self._locks is not None:
            await self._locks.unlock(list(self.table))
        self.table.clear()

    # -- pulling ---------------------------------------------------------------------------------------------

    async def _pull_loop(self, process_queue: ProcessQueue) -> None:
        queue, pause_s = process_queue.queue, _MIN_PAUSE_S
        while not process_queue.dropped:
            await process_queue.wait_for_room()
            try:
                await self._pull_page(process_queue)
                pause_s = _MIN_PAUSE_S
            except PenstockError as error:
                log.log(
                    logging.WARNING if pause_s >= _MAX_PAUSE_S else logging.INFO,
                    "cannot pull %s/%d of %s: %s",
                    queue.topic,
                    queue.queue_id,
                    queue.broker_name,
                    error,
                )
                if isinstance(error, Refused) and error.code in _UNKNOWN_SUBSCRIPTION:
                    await self._instance.send_heartbeats()
                else:
                    self._instance.routes.refresh_soon(queue.topic)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            except Exception:
                log.exception("cannot pull %s/%d of %s", queue.topic, queue.queue_id, queue.broker_name)
                await asyncio.sleep(_MAX_PAUSE_S)

    async def _pull_page(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:  # unsubscribed; the next rebalance removes the queue
            await asyncio.sleep(_MIN_PAUSE_S)
            return
        may_commit = self._commit_on_pull and (self._locks is None or self._locks.holds(queue))
        offset = self._offsets.current(queue) if may_commit else None
        page = await self._fetcher.fetch(
            Pull(
                group=self._group,
                queue=queue,
                offset=process_queue.next_offset,
                subscription=subscription,
                max_messages=self._pull_batch,
                wait_s=_LONG_POLL_S,
                commit_offset=-1 if offset is None else offset,
                is_subscribed=True,
            )
        )
        if process_queue.dropped:
            return
        if page.status in _NOT_HELD and page.next_offset == process_queue.next_offset:
            await asyncio.sleep(_MIN_PAUSE_S)  # a slave that does not have the offset yet says so at once, each time
            return
        if page.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "%s/%d of %s has offsets %d to %d, not %d; continuing at %d",
                queue.topic,
                queue.queue_id,
                queue.broker_name,
                page.min_offset,
                page.max_offset,
                process_queue.next_offset,
                page.next_offset,
            )
            self.restart(process_queue, page.next_offset)
            return
        process_queue.put(page.messages, page.next_offset)
        self._offsets.update(queue, process_queue.commit_offset)
        if page.messages:
            self.consumption.submit(process_queue, page.messages)

"""What a push consumer has in hand of one queue: the messages that were pulled and are not consumed yet.

From it follows what may be committed: the lowest offset in hand, or, with nothing in hand, where the next pull begins.
So a crash brings messages again, and never loses one. Belongs to the loop's thread.


The queues that a push consumer has now: each is pulled, one page after the other, and what comes is consumed.

A queue is added where the group stands, taken away with its offset stored (and its lock given up), and begun anew
where a broker, or an administrator, says that it has to. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from penstock.client.fetch import Fetcher, Pull, PullStatus
from penstock.client.instance import ClientInstance
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import OffsetStore
from penstock.client.queue_locks import ClientQueueLocks
from penstock.clock import now_ms
from penstock.errors import PenstockError, Refused
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.codes import ResponseCode
from penstock.protocol.subscription import SubscriptionData

_MAX_COUNT = 1000
_MAX_BYTES = 100 << 20
_MAX_SPAN = 2000
"""Offsets from the lowest in hand to the next pull: what a crash may bring again."""


class ProcessQueue:
    """One queue's messages in hand, in the order of their offsets. Once `dropped`, what comes of them is ignored."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        """Where the next pull begins."""
        self.dropped = False
        self.pulled_at = self.consumed_at = 0
        """When that was last done, in epoch milliseconds."""
        self._in_hand: dict[int, ReceivedMessage] = {}
        self._bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def __len__(self) -> int:
        return len(self._in_hand)

    @property
    def bytes_in_hand(self) -> int:
        return self._bytes

    @property
    def offsets_in_hand(self) -> list[int]:
        return list(self._in_hand)

    @property
    def commit_offset(self) -> int:
        """Everything before it has been consumed."""
        return next(iter(self._in_hand), self.next_offset)

    def put(self, messages: Iterable[ReceivedMessage], next_offset: int) -> None:
        """Takes a page that was pulled at `next_offset`, which moves on."""
        for message in messages:
            self._in_hand[message.queue_offset] = message
            self._bytes += message.size
        self.next_offset = next_offset
        self.pulled_at = now_ms()
        self._look_for_room()

    def remove(self, message: ReceivedMessage) -> None:
        """A message has been consumed, or sent back."""
        if self._in_hand.pop(message.queue_offset, None) is not None:
            self._bytes -= message.size
        self.consumed_at = now_ms()
        self._look_for_room()

    def drop(self) -> None:
        """Somebody else has the queue now, or nobody."""
        self.dropped = True
        self._has_room.set()

    async def room(self) -> None:
        """Returns when more may be pulled: when not too much is in hand, and the lowest of it is not too far back."""
        await self._has_room.wait()

    def _look_for_room(self) -> None:
        span = self.next_offset - self.commit_offset
        if self.dropped or (len(self._in_hand) < _MAX_COUNT and self._bytes < _MAX_BYTES and span < _MAX_SPAN):
            self._has_room.set()
        else:
            self._has_room.clear()


log = logging.getLogger("penstock.client")
_HOLD_S: Final = 15.0
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 3.0
_NOT_KNOWN: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    }
)
"""The broker has not heard our last heartbeat."""


class Consumption(Protocol):
    """What consumes: side by side, or in order."""

    def begin(self, process_queue: ProcessQueue) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None: ...

    async def end(self, process_queue: ProcessQueue) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class _Nothing:
    """Consumes nothing, since nothing has begun."""

    def begin(self, process_queue: ProcessQueue) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: Iterable[ReceivedMessage]) -> None: ...

    async def end(self, process_queue: ProcessQueue) -> None: ...

    async def close(self, timeout_s: float) -> None: ...


class Assignments:
    """Queues and what is in hand of them."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        subscriptions: dict[str, SubscriptionData],
        offsets: OffsetStore,
        locks: ClientQueueLocks | None,
        start_offset: Callable[[MessageQueue], Awaitable[int]],
        *,
        commits: bool,
        pull_batch: int,
        body_limit: int,
    ) -> None:
        """`commits`: pulls carry the group's offset."""
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._locks = locks
        self._start_offset = start_offset
        self._commits = commits
        self._pull_batch = pull_batch
        self._fetcher = Fetcher(instance, body_limit)
        self._pulling: dict[ProcessQueue, asyncio.Task[None]] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._closed = False
        self.table: dict[MessageQueue, ProcessQueue] = {}
        self.consumption: Consumption = _Nothing()
        """What consumes; set before the first queue is added."""
        self.on_left: Callable[[], None] = lambda: None
        """Called when a queue that was taken away is free."""

    # -- which -----------------------------------------------------------------------------------------------

    async def update(self, topic: str, queues: set[MessageQueue]) -> bool:
        """Has exactly these queues of a topic from now on; says whether that is done, or needs another round."""
        have = {queue for queue in self.table if queue.topic == topic}
        for queue in have - queues:
            self.remove(queue)
        new = queues - have
        free = {queue for queue in new if queue not in self._leaving}
        if self._locks is not None and free:
            await self._locks.lock(free)
            free = {queue for queue in free if self._locks.holds(queue)}
        added = [await self._add(queue) for queue in sorted(free)]
        return len(free) == len(new) and all(added)

    async def _add(self, queue: MessageQueue) -> bool:
        try:
            offset = await self._start_offset(queue)
        except PenstockError as error:
            log.warning("%s/%d of %s waits: %s", queue.topic, queue.queue_id, queue.broker_name, error)
            return False
        self._begin(queue, offset)
        return True

    def _begin(self, queue: MessageQueue, offset: int) -> None:
        if self._closed:
            return
        log.info("%s/%d of %s from offset %d on", queue.topic, queue.queue_id, queue.broker_name, offset)
        process_queue = self.table[queue] = ProcessQueue(queue, offset)
        self._offsets.note(queue, offset)
        self.consumption.begin(process_queue)
        self._pulling[process_queue] = asyncio.create_task(self._pull(process_queue))

    def remove(self, queue: MessageQueue) -> None:
        """Takes a queue away; what has to be finished first is finished meanwhile."""
        process_queue = self.table.pop(queue)
        log.info("%s/%d of %s is given up", queue.topic, queue.queue_id, queue.broker_name)
        self._stop_pulling(process_queue)
        task = self._leaving[queue] = asyncio.create_task(self._leave(process_queue))
        task.add_done_callback(lambda _: self._left(queue))

    def restart(self, process_queue: ProcessQueue, offset: int) -> None:
        """Begins a queue anew at an offset; what is in hand of it is dropped."""
        queue = process_queue.queue
        if self.table.get(queue) is not process_queue:
            return
        del self.table[queue]
        self._stop_pulling(process_queue)
        process_queue.drop()
        self._offsets.note(queue, offset)
        task = self._leaving[queue] = asyncio.create_task(self._begin_anew(process_queue, offset))
        task.add_done_callback(lambda _: self._left(queue))

    async def _begin_anew(self, process_queue: ProcessQueue, offset: int) -> None:
        await self.consumption.end(process_queue)
        await self._offsets.save([process_queue.queue])
        self._begin(process_queue.queue, offset)

    async def _leave(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        await self.consumption.end(process_queue)
        await self._offsets.save([queue])
        self._offsets.forget(queue)
        if self._locks is not None:
            await self._locks.unlock([queue])

    def _left(self, queue: MessageQueue) -> None:
        self._leaving.pop(queue, None)
        self.on_left()

    def _stop_pulling(self, process_queue: ProcessQueue) -> None:
        task = self._pulling.pop(process_queue, None)
        if task is not None:
            task.cancel()

    async def close(self, timeout_s: float) -> None:
        """Pulls no more, waits for the messages under way, stores all offsets and gives up all locks."""
        self._closed, self.on_left = True, lambda: None
        tasks = list(self._pulling.values())
        for process_queue in list(self._pulling):
            self._stop_pulling(process_queue)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.consumption.close(timeout_s)
        leaving = list(self._leaving.values())
        if leaving:
            await asyncio.wait(leaving, timeout=timeout_s)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await self._offsets.save()
        if self._locks is not None:
            await self._locks.unlock(list(self.table))
        self.table.clear()

    # -- pulling ---------------------------------------------------------------------------------------------

    async def _pull(self, process_queue: ProcessQueue) -> None:
        queue, pause_s = process_queue.queue, _FIRST_PAUSE_S
        while not process_queue.dropped:
            await process_queue.room()
            try:
                await self._pull_page(process_queue)
                pause_s = _FIRST_PAUSE_S
            except PenstockError as error:
                log.log(
                    logging.WARNING if pause_s >= _LONGEST_PAUSE_S else logging.INFO,
                    "%s/%d of %s cannot be pulled: %s",
                    queue.topic,
                    queue.queue_id,
                    queue.broker_name,
                    error,
                )
                if isinstance(error, Refused) and error.code in _NOT_KNOWN:
                    await self._instance.beat()
                else:
                    self._instance.routes.refresh_soon(queue.topic)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            except Exception:
                log.exception("%s/%d of %s cannot be pulled", queue.topic, queue.queue_id, queue.broker_name)
                await asyncio.sleep(_LONGEST_PAUSE_S)

    async def _pull_page(self, process_queue: ProcessQueue) -> None:
        queue = process_queue.queue
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:  # given up; the next round takes the queue away
            await asyncio.sleep(_FIRST_PAUSE_S)
            return
        may_commit = self._commits and (self._locks is None or self._locks.holds(queue))
        noted = self._offsets.noted(queue) if may_commit else None
        page = await self._fetcher.fetch(
            Pull(
                group=self._group,
                queue=queue,
                offset=process_queue.next_offset,
                subscription=subscription,
                max_messages=self._pull_batch,
                wait_s=_HOLD_S,
                commit_offset=-1 if noted is None else noted,
                is_subscribed=True,
            )
        )
        if process_queue.dropped:
            return
        if page.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "%s/%d of %s has offsets %d to %d, and not %d; going on at %d",
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
        self._offsets.note(queue, process_queue.commit_offset)
        if page.messages:
            self.consumption.submit(process_queue, page.messages)

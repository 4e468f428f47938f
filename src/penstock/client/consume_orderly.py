"""Consumes each queue in order: one message at a time, and the next only when that one is done.

A message that fails is tried again in place, after a pause, and holds up its queue until it is consumed, or has failed
so often that it becomes a dead letter. In a group that shares its queues a message is begun only while the broker says
that the queue is ours. Whoever lost that, and gets it back, goes on where the group is by then. Belongs to the loop's
thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from penstock.client.handling import Handling
from penstock.client.message import ReceivedMessage
from penstock.client.offset_store import OffsetStore
from penstock.client.process_queue import ProcessQueue
from penstock.client.queue_locks import QueueLocks
from penstock.client.send_back import SendBacks
from penstock.errors import PenstockError

log = logging.getLogger("penstock.client")

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
        send_backs: SendBacks | None,
        locks: QueueLocks | None,
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

"""Consumes messages of all queues side by side, a number of them at once, in no particular order.

What fails goes back to the broker, which brings it again later; where even that fails it is tried again here. A
broadcast message that fails is lost to this consumer, and logged. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from penstock.client.handling import Handling, Later
from penstock.client.message import ReceivedMessage
from penstock.client.offset_store import OffsetStore
from penstock.client.process_queue import ProcessQueue
from penstock.client.send_back import SendBacks

log = logging.getLogger("penstock.client")

_AGAIN_S: Final = 5.0


class ConcurrentConsumption:
    """A number of workers that share what was pulled. Without `send_backs` it is a broadcast."""

    def __init__(
        self, handling: Handling, offsets: OffsetStore, send_backs: SendBacks | None, max_in_flight: int
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

"""The pull consumer: reads queues at the caller's own pace.

    async with PullConsumer("reports", "127.0.0.1:9876") as consumer:
        for queue in await consumer.queues("orders"):
            page = await consumer.pull(queue, 0)

`pull` is stateless: it returns one page of a queue from an offset. After `assign`, `poll` tracks a position for each
queue, and `commit` stores the positions as the group's offsets. A pull consumer is not a member of its group and does
not take part in rebalancing. It is not thread-safe: use it from its event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Self

from penstock.client.client_instance import ClientInstance, ClientLifecycle, check_group
from penstock.client.config import Namesrv
from penstock.client.message import ReceivedMessage
from penstock.client.offsets import QueueOffsets
from penstock.client.pull_requests import Fetcher, Pull, PullResult, PullStatus, make_subscription
from penstock.errors import BadSettings, PenstockError
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.subscription import EVERYTHING, SubscriptionData

_LONG_POLL_S = 15.0


class PullConsumer(ClientLifecycle):
    """Reads queues on behalf of a group. Start it once and close it once; `async with` does both."""

    def __init__(self, group: str, namesrv: Namesrv = None, *, max_messages: int = 32) -> None:
        """Raises BadSettings for an invalid group or number of messages per page."""
        check_group(group)
        if max_messages < 1:
            raise BadSettings("`max_messages` of a pull consumer must be at least 1")
        self.group = group
        self._instance = ClientInstance(namesrv)
        self._fetcher = Fetcher(self._instance)
        self._max_messages = max_messages
        self.offsets = QueueOffsets(self._instance)
        """Queries and commits offsets of queues, for any group."""
        self._positions: dict[MessageQueue, int] = {}
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[PullResult]] = {}

    async def start(self) -> Self:
        self._instance.start()
        return self

    async def close(self) -> None:
        """Closes all connections. Does not commit positions."""
        pulls = list(self._pulls.values())
        self.assign(())
        await asyncio.gather(*pulls, return_exceptions=True)
        await self._instance.close()

    # -- one page --------------------------------------------------------------------------------------------

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the readable queues of a topic."""
        return list((await self._instance.routes.find(topic)).subscribe_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str = EVERYTHING,
        max_messages: int | None = None,
        wait_s: float = 0.0,
    ) -> PullResult:
        """Returns one page of the messages that match `expression`, from `offset`. Waits up to `wait_s` for the first
        message.
        """
        await self._instance.routes.find(queue.topic)
        return await self._fetcher.fetch(
            Pull(
                group=self.group,
                queue=queue,
                offset=offset,
                subscription=make_subscription(queue.topic, expression),
                max_messages=max_messages or self._max_messages,
                wait_s=wait_s,
            )
        )

    # -- with positions --------------------------------------------------------------------------------------

    def assign(self, queues: Iterable[MessageQueue], *, expression: str = EVERYTHING) -> None:
        """Makes `poll` read these queues, each from the group's offset or, if it has none, from the queue's start."""
        assigned = set(queues)
        for queue in self._positions.keys() - assigned:
            del self._positions[queue]
        for queue in self._pulls.keys() - assigned:
            self._pulls.pop(queue).cancel()
        self._subscriptions = {queue.topic: make_subscription(queue.topic, expression) for queue in assigned}
        self._positions.update({queue: -1 for queue in assigned if queue not in self._positions})

    @property
    def assigned(self) -> list[MessageQueue]:
        return sorted(self._positions)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Makes the next poll read the queue from `offset`."""
        self._check(queue)
        self._positions[queue] = offset
        if queue in self._pulls:
            self._pulls.pop(queue).cancel()

    async def seek_to_time(self, queue: MessageQueue, timestamp: int) -> int:
        """Makes the next poll read the queue from a message stored at or near `timestamp` (epoch milliseconds). Returns
        its offset.
        """
        offset = await self.offsets.offset_by_time(queue, timestamp)
        self.seek(queue, offset)
        return offset

    async def position(self, queue: MessageQueue) -> int:
        """Returns the offset from which the next poll reads the queue."""
        self._check(queue)
        return await self._resolve_position(queue)

    async def poll(self, timeout_s: float = 3.0) -> list[ReceivedMessage]:
        """Returns new messages of the assigned queues, or an empty list if none arrives within `timeout_s`."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._positions:
            for queue in self._positions:
                if queue not in self._pulls:
                    self._pulls[queue] = asyncio.create_task(self._pull_next(queue))
            left = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait(self._pulls.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            messages = self._collect(done)
            if messages or not done:
                return messages
        return []

    async def commit(self) -> None:
        """Commits the position of each queue as the group's offset, so that all messages returned by `poll` count as
        consumed.
        """
        known = {queue: offset for queue, offset in self._positions.items() if offset >= 0}
        await asyncio.gather(*(self.offsets.commit(self.group, queue, offset) for queue, offset in known.items()))

    async def _pull_next(self, queue: MessageQueue) -> PullResult:
        return await self._fetcher.fetch(
            Pull(
                group=self.group,
                queue=queue,
                offset=await self._resolve_position(queue),
                subscription=self._subscriptions[queue.topic],
                max_messages=self._max_messages,
                wait_s=_LONG_POLL_S,
            )
        )

    async def _resolve_position(self, queue: MessageQueue) -> int:
        """Returns the queue's position. Fetches it from the broker if it is not known yet."""
        if self._positions[queue] < 0:
            offset = await self.offsets.committed(self.group, queue)
            if offset is None:
                offset = await self.offsets.min_offset(queue)
            self._positions[queue] = offset
        return self._positions[queue]

    def _collect(self, done: set[asyncio.Task[PullResult]]) -> list[ReceivedMessage]:
        """Returns the messages of finished pulls. If there are none, raises the error of the first failed pull."""
        messages: list[ReceivedMessage] = []
        errors = []
        for queue in [queue for queue, task in self._pulls.items() if task in done]:
            task = self._pulls.pop(queue)
            error = task.exception()
            if error is not None:
                errors.append(error)
                continue
            page = task.result()
            self._positions[queue] = page.next_offset
            if page.status is PullStatus.FOUND:
                messages += page.messages
        if errors and not messages:
            raise errors[0]
        return messages

    def _check(self, queue: MessageQueue) -> None:
        if queue not in self._positions:
            raise PenstockError(f"queue {queue.queue_id} of topic '{queue.topic}' is not assigned; call `assign` first")

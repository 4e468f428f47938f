"""Offsets of queues and of groups, asked of the brokers: 29 to 32, 14 and 15.

Keeps nothing but which groups it has committed for. Belongs to the loop's thread.
"""

from __future__ import annotations

import asyncio

from penstock.client.instance import ClientInstance
from penstock.protocol.bodies.queues import MessageQueue
from penstock.protocol.bodies.route import MASTER
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.offsets import (
    EarliestTimeReply,
    GetEarliestTime,
    GetMaxOffset,
    GetMinOffset,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)

_KNOWN_OR_NOT = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class QueueOffsets:
    """Every method raises NoRoute, Unreachable, NoAnswer or Refused."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._begun: set[tuple[str, str, str]] = set()
        self._beginning: dict[tuple[str, str, str], asyncio.Lock] = {}

    async def min_offset(self, queue: MessageQueue) -> int:
        """Of the oldest message that is there."""
        header = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_MIN_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def max_offset(self, queue: MessageQueue) -> int:
        """Of the message that will come next."""
        header = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_MAX_OFFSET, header)
        return reply.read(OffsetReply).offset

    async def offset_by_time(self, queue: MessageQueue, timestamp: int, *, boundary: str | None = None) -> int:
        """Of the message stored at a time, in epoch milliseconds, or close to it.

        `boundary` "lower" is the first at or after the time, "upper" the last at or before it; brokers of RocketMQ 4
        do not know them.
        """
        header = SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp, boundary_type=boundary)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return reply.read(OffsetReply).offset

    async def earliest_time(self, queue: MessageQueue) -> int:
        """When the oldest message was stored, in epoch milliseconds; negative if there is none."""
        header = GetEarliestTime(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._instance.ask(await self._keeper(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        return reply.read(EarliestTimeReply).timestamp

    async def committed(self, group: str, queue: MessageQueue, *, exact: bool = False) -> int | None:
        """Where a group goes on; None if it has committed nothing.

        Brokers answer 0 for such a group while the queue is young enough to be read whole. With `exact` they do not;
        those of RocketMQ 4 do all the same.
        """
        header = QueryConsumerOffset(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False if exact else None,
        )
        reply = await self._instance.ask(
            await self._keeper(queue), RequestCode.QUERY_CONSUMER_OFFSET, header, good=_KNOWN_OR_NOT
        )
        return None if reply.code == ResponseCode.QUERY_NOT_FOUND else reply.read(OffsetReply).offset

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """From now on the group goes on at `offset`.

        Java's brokers lose one of two commits that come at the same time if they are the group's first in a topic, so
        the first goes alone.
        """
        table = group, queue.broker_name, queue.topic
        if table not in self._begun:
            async with self._beginning.setdefault(table, asyncio.Lock()):
                if table not in self._begun:
                    await self._commit(group, queue, offset)
                    self._begun.add(table)
                    return
        await self._commit(group, queue, offset)

    async def _commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffset(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._instance.ask(await self._keeper(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _keeper(self, queue: MessageQueue) -> str:
        """Who keeps the offsets of a queue: the master, or while there is none the slave with the lowest id."""
        await self._instance.routes.find(queue.topic)
        ids = self._instance.routes.brokers().get(queue.broker_name, {})
        return self._instance.routes.address(queue.broker_name, min(ids, default=MASTER))

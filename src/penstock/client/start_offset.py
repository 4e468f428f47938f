"""Where a group begins to consume a queue: where it stands, or, if it is new, where its consumer says."""

from __future__ import annotations

from typing import Literal, TypeAlias

from penstock.client.offset_store import OffsetStore
from penstock.client.queue_offsets import QueueOffsets
from penstock.format.constants import RETRY_PREFIX
from penstock.protocol.bodies.heartbeat import ConsumeFromWhere
from penstock.protocol.bodies.queues import MessageQueue

ConsumeFrom: TypeAlias = Literal["first", "last"] | int
"""The oldest message, those to come, or those stored from a time on, in epoch milliseconds."""


class StartOffset:
    """Asked for each queue that a consumer gets.

    A new group that asks for the last offset begins at the first all the same where the broker still has the whole
    queue: that is RocketMQ's rule, so that what was sent just before a group first came is not lost to it.
    """

    def __init__(self, consume_from: ConsumeFrom, store: OffsetStore, offsets: QueueOffsets) -> None:
        self._consume_from = consume_from
        self._store = store
        self._offsets = offsets

    @property
    def where(self) -> ConsumeFromWhere:
        """The same in the protocol's words."""
        if self._consume_from == "first":
            return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        if self._consume_from == "last":
            return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP

    async def find(self, queue: MessageQueue) -> int:
        """Raises what asking a broker raises."""
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        by_time = isinstance(self._consume_from, int) and not is_retry
        stored = await self._store.load(queue, exact=by_time)
        if stored is not None:
            return stored
        if self._consume_from == "first" or is_retry:
            return await self._offsets.min_offset(queue)
        if self._consume_from == "last":
            return await self._offsets.max_offset(queue)
        return await self._offsets.offset_by_time(queue, self._consume_from)

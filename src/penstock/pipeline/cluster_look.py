"""Looks into queues of a cluster without reading them: where a time lies, and how large messages are.

Belongs to the link's loop. Keeps nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.client.fetch import PullStatus
from penstock.pipeline.cluster_link import ClusterLink, message_queue
from penstock.pipeline.cluster_pull import sound_rows
from penstock.pipeline.ranges import Queue

_LOOKED_AT: Final = 32
_NEVER: Final = 1 << 63


class _Moment(NamedTuple):
    """The first message that can be read at or after an offset, and when it was stored."""

    offset: int
    timestamp: int


class QueueLook:
    """Every method raises Unreachable or Refused."""

    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    async def offset_at(self, queue: Queue, timestamp: int, low: int, high: int) -> int:
        """The first message of a queue that was stored at or after a time; `high`, its end, if there is none.

        Brokers of RocketMQ 4 give a message close to the time, before or after it. From there the border is looked for
        in steps that grow, and then halved, so that a good answer costs two looks and a bad one a few more.
        """
        if low >= high:
            return high
        begin, step = min(max(await self._hint(queue, timestamp), low), high - 1), 1
        found = await self._moment(queue, begin, high)
        if found.timestamp >= timestamp:  # the border is here or before: find one that is too early
            below, above = low - 1, found
            while (at := begin - step) >= low:
                looked = await self._moment(queue, at, high)
                if looked.timestamp < timestamp:
                    below = looked.offset
                    break
                above, begin, step = looked, at, 2 * step
        else:  # the border is behind: find one that is late enough
            below, above = found.offset, _Moment(high, _NEVER)
            while (at := below + step) < high:
                looked = await self._moment(queue, at, high)
                if looked.timestamp >= timestamp:
                    above = looked
                    break
                below, step = looked.offset, 2 * step
        return await self._halve(queue, timestamp, below, above, high)

    async def _halve(self, queue: Queue, timestamp: int, below: int, above: _Moment, high: int) -> int:
        """`below` is too early and `above` is not; what lies between is not known."""
        top = above.offset
        while below + 1 < top:
            middle = (below + top) // 2
            looked = await self._moment(queue, middle, high)
            if looked.timestamp < timestamp:
                below = looked.offset
            else:
                top, above = middle, looked
        return above.offset

    async def _hint(self, queue: Queue, timestamp: int) -> int:
        """About where a time lies. `lower` is exact, at brokers that know the word."""

        async def ask() -> int:
            return await self._link.offsets.offset_by_time(message_queue(queue), timestamp, boundary="lower")

        doing = f"a time in topic {queue.topic} queue {queue.queue_id} was being looked for"
        return await self._link.steadily(ask, doing, (queue.topic,))

    async def _moment(self, queue: Queue, offset: int, high: int) -> _Moment:
        at = offset
        while at < high:
            page = await self._link.pull(queue, at, 1)
            if page.status is PullStatus.FOUND:
                rows, _ = sound_rows(page.body, queue, at)
                if len(rows):
                    return _Moment(int(rows["queue_offset"][0]), int(rows["store_timestamp"][0]))
            if page.next_offset <= at:
                break
            at = page.next_offset
        return _Moment(high, _NEVER)

    async def mean_size(self, queue: Queue, low: int, high: int) -> int | None:
        """Bytes of a record, by the newest ones, as a power of two so that it rarely differs; None without any."""
        if low >= high:
            return None
        at = max(low, high - _LOOKED_AT)
        page = await self._link.pull(queue, at, _LOOKED_AT)
        rows, _ = sound_rows(page.body, queue, at)
        return None if not len(rows) else 1 << (int(rows["size"].mean()) - 1).bit_length()

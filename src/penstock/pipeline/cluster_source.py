"""Looks into queues of a cluster without reading them: where a time lies, and how large messages are.

Belongs to the link's loop. Keeps nothing.


A cluster as a place to read from: what its name servers and brokers say, kept until the next refresh.

A refresh asks all brokers at once, one request for each topic and broker, so it takes about one round trip; routes are
asked for anew once a second at most. Only queues whose master is there are seen. A broker that is away for a moment is
waited for. Lives on the driver; one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.topics import REPLY_TOPIC_SUFFIX, is_system_topic
from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.topics import TopicAdmin
from penstock.client.fetch import PullStatus
from penstock.client.routes import Route
from penstock.errors import NoRoute, Refused
from penstock.pipeline.cluster_tasks import ClusterAccess, ClusterLink, ClusterTask, all_of, message_queue, sound_rows
from penstock.pipeline.options import Options
from penstock.pipeline.ranges import OffsetRange, Queue, ReadTask
from penstock.protocol.bodies.stats import TopicStatsTable
from penstock.protocol.bodies.tables import GroupList
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import TopicName

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


_ROUTES_LAST_S: Final = 1.0
_GUESSED_SIZE: Final = 1024
"""Of a message in a queue where none can be looked at."""
Bounds = dict[Queue, tuple[int, int]]


class ClusterPlace:
    """Raises Unreachable where no name server or broker answers, Refused where one refuses, each in one sentence."""

    def __init__(self, options: Options) -> None:
        self.name = options.namesrv
        self._options = options
        self._access = ClusterAccess.of(options)
        self._link = ClusterLink(self._access)
        self._look = QueueLook(self._link)
        self._topics: list[str] | None = None
        self._routes: dict[str, Route | None] = {}
        self._routes_of = 0.0
        self._bounds: Bounds = {}
        self._sizes: dict[Queue, int] = {}
        self._asks_by_queue: set[str] = set()
        """Brokers that do not tell this account how a whole topic stands."""

    def close(self) -> None:
        self._link.close()

    def refresh(self) -> None:
        if time.monotonic() - self._routes_of >= _ROUTES_LAST_S:
            self._topics = None
            if self._routes:
                self._link.run(self._learn(self._routes))
        measured = {queue.topic for queue in self._bounds}
        self._bounds = self._link.run(self._measure(measured))

    # -- what is there ---------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Without those that the cluster has for itself; retry and dead-letter topics are among them."""
        if self._topics is None:
            self._topics = self._link.run(
                self._link.steadily(self._names_for_people, "the topics were being asked for")
            )
        return list(self._topics)

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        unknown = [topic for topic in topics if topic not in self._routes]
        if unknown:
            self._link.run(self._learn(unknown))
        return sorted({queue for topic in topics for queue in _readable(self._routes[topic])})

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """Raises NoRoute for a queue that no broker has."""
        if queue not in self._bounds and queue in self.queues([queue.topic]):
            self._bounds |= self._link.run(self._measure([queue.topic]))
        found = self._bounds.get(queue)
        if found is None:
            raise NoRoute(
                f"queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker} is not in the cluster "
                f"{self.name} now; start that broker, or begin anew without its offsets"
            )
        return found

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        low, high = self.bounds(queue)
        return self._link.run(self._look.offset_at(queue, timestamp, low, high))

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self._link.run(self._progress(group, queue))

    def size(self, queue: Queue, start: int, stop: int) -> int:
        """By the mean size of some messages, which are looked at once for each queue."""
        if start < stop and queue not in self._sizes:
            self._sizes |= self._link.run(self._mean_sizes())
        return self._sizes.get(queue, _GUESSED_SIZE) * max(0, stop - start)

    # -- what is done ----------------------------------------------------------------------------------------

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        tags, fail = self._options.tags, self._options.fail_on_data_loss
        return [ClusterTask(self._access, tuple(group), tags, fail) for group in spans]

    def commit_group(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Has a consumer group go on at these offsets."""

        async def commit() -> None:
            told = ((message_queue(queue), offset) for queue, offset in offsets.items())
            await all_of(self._link.offsets.commit(group, queue, offset) for queue, offset in told)

        topics = tuple({queue.topic for queue in offsets})
        self._link.run(self._link.steadily(commit, f"the progress of group {group} was being stored", topics))

    # -- within the link's loop ------------------------------------------------------------------------------

    async def _names(self) -> list[str]:
        return await TopicAdmin(self._link.instance, ClusterAdmin(self._link.instance)).names()

    async def _names_for_people(self) -> list[str]:
        names, info = await asyncio.gather(self._names(), ClusterAdmin(self._link.instance).info())
        # Brokers have a topic of their own name, of their cluster's, and one for replies.
        own = {*info.broker_addr_table, *info.cluster_addr_table}
        own |= {f"{name}{REPLY_TOPIC_SUFFIX}" for name in info.cluster_addr_table}
        return [name for name in names if name not in own and not is_system_topic(name)]

    async def _learn(self, topics: Iterable[str]) -> None:
        """Asks for the routes of topics; one that nobody has has none."""
        routes = self._link.instance.routes
        topics = list(topics)

        async def find(topic: str, there: set[str]) -> Route | None:
            if self._routes.get(topic) is not None:
                await routes.refresh([topic])
            elif topic not in there:
                return None  # name servers may have a route for it all the same: the one it would be made with
            return await routes.find(topic)

        async def find_all() -> list[Route | None]:
            is_new = any(self._routes.get(topic) is None for topic in topics)
            there = set(await self._names()) if is_new else set()
            return await all_of(find(topic, there) for topic in topics)

        found = await self._link.steadily(find_all, "routes were being asked for")
        self._routes |= dict(zip(topics, found, strict=True))
        self._routes_of = time.monotonic()

    async def _measure(self, topics: Iterable[str]) -> Bounds:
        topics = tuple(topics)
        doing = f"the offsets of {', '.join(sorted(topics)[:3])} were being asked for"

        async def measure() -> Bounds:
            routes = [await self._link.instance.routes.find(topic) for topic in topics]
            some = await all_of(self._stand(route, broker) for route in routes for broker in route.masters)
            return {queue: bounds for each in some for queue, bounds in each.items()}

        return await self._link.steadily(measure, doing, topics) if topics else {}

    async def _stand(self, route: Route, broker: str) -> Bounds:
        """The bounds of a topic's queues at one broker: in one answer, and queue by queue what is not in it."""
        wanted = [queue for queue in _readable(route) if queue.broker == broker]
        found: Bounds = {}
        if broker not in self._asks_by_queue:
            header = TopicName(topic=route.topic)
            try:
                reply = await self._link.instance.request(
                    route.masters[broker], RequestCode.GET_TOPIC_STATS_INFO, header
                )
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    self._asks_by_queue.add(broker)
            else:
                table = TopicStatsTable.from_bytes(reply.body).offset_table
                found = {
                    Queue(queue.topic, queue.broker_name, queue.queue_id): (
                        max(0, at.min_offset),
                        max(0, at.max_offset),
                    )
                    for queue, at in table.items()
                }
        missing = [queue for queue in wanted if queue not in found]
        found |= dict(zip(missing, await all_of(self._ask_bounds(queue) for queue in missing), strict=True))
        return {queue: found[queue] for queue in wanted}

    async def _ask_bounds(self, queue: Queue) -> tuple[int, int]:
        offsets, asked = self._link.offsets, message_queue(queue)
        low, high = await asyncio.gather(offsets.min_offset(asked), offsets.max_offset(asked))
        return max(0, low), max(0, high)

    async def _progress(self, group: str, queue: Queue) -> int | None:
        offsets, instance = self._link.offsets, self._link.instance

        async def ask() -> int | None:
            found = await offsets.committed(group, message_queue(queue), exact=True)
            if found != 0:
                return found
            # Brokers of RocketMQ 4 say 0 also of a group that they have never seen.
            address, header = instance.routes.address(queue.broker), TopicName(topic=queue.topic)
            try:
                reply = await instance.request(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            except Refused:
                return found
            return found if group in GroupList.from_bytes(reply.body).group_list else None

        return await self._link.steadily(ask, f"the progress of group {group} was being asked for", (queue.topic,))

    async def _mean_sizes(self) -> dict[Queue, int]:
        """Of all queues of which it is not known yet: it will be asked of the others next."""
        unknown = [queue for queue in self._bounds if queue not in self._sizes]
        found = await all_of(self._look.mean_size(queue, *self._bounds[queue]) for queue in unknown)
        return {queue: size for queue, size in zip(unknown, found, strict=True) if size is not None}


def _readable(route: Route | None) -> list[Queue]:
    """The queues that may be read, at brokers whose master is there."""
    if route is None:
        return []
    return [
        Queue(queue.topic, queue.broker_name, queue.queue_id)
        for queue in route.subscribe_queues
        if queue.broker_name in route.masters
    ]

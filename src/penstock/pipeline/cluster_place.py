"""A cluster as a place to read from: what its name servers and brokers say, kept until the next refresh.

A refresh asks all brokers at once, one request for each topic and broker, so it takes about one round trip; routes are
asked for anew once a second at most. Only queues whose master is there are seen. A broker that is away for a moment is
waited for. Lives on the driver; one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.broker.system_topics import REPLY_TOPIC_SUFFIX, is_system_topic
from penstock.client.admin_cluster import ClusterAdmin
from penstock.client.admin_topics import TopicAdmin
from penstock.client.routes import Route
from penstock.errors import NoRoute, Refused
from penstock.pipeline.cluster_link import ClusterAccess, ClusterLink, all_of, message_queue
from penstock.pipeline.cluster_look import QueueLook
from penstock.pipeline.cluster_task import ClusterTask
from penstock.pipeline.options import Options
from penstock.pipeline.places import Task
from penstock.pipeline.ranges import Queue, Span
from penstock.protocol.bodies.lists import GroupList
from penstock.protocol.bodies.stats import TopicStatsTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.topics import TopicName

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

    def tasks(self, spans: Sequence[Sequence[Span]]) -> list[Task]:
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
                reply = await self._link.instance.ask(route.masters[broker], RequestCode.GET_TOPIC_STATS_INFO, header)
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
                reply = await instance.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
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

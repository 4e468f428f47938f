"""The message source over a cluster: topics, offsets and sizes from its name servers and brokers. Runs on the driver.

The source keeps its state until the next refresh. A refresh sends one request per topic and broker, all at once, so it
takes about one round trip. It reloads routes at most once a second. The source shows only queues whose master is up. It
retries requests while a broker is briefly unreachable. Not thread-safe.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.broker.topics import REPLY_TOPIC_SUFFIX, is_system_topic
from penstock.client.admin.brokers import ClusterAdmin
from penstock.client.admin.topics import TopicAdmin
from penstock.client.pull_requests import PullStatus
from penstock.client.routes import Route
from penstock.errors import NoRoute, Refused
from penstock.pipeline.cluster_read_tasks import (
    ClusterAccess,
    ClusterLink,
    ClusterTask,
    gather_limited,
    message_queue,
    valid_rows,
)
from penstock.pipeline.offset_ranges import OffsetRange, Queue, ReadTask, Witness
from penstock.pipeline.options import Options
from penstock.protocol.bodies.admin import GroupList
from penstock.protocol.bodies.routes import MASTER
from penstock.protocol.bodies.stats import TopicStatsTable
from penstock.protocol.codes import RequestCode, ResponseCode
from penstock.protocol.headers.admin import TopicName
from penstock.protocol.headers.pull import ViewMessage

# -- probing queues --------------------------------------------------------------------------------------------------

_SAMPLE_SIZE: Final = 32
_NEVER: Final = 1 << 63


class _StoredMessage(NamedTuple):
    """The offset and store time (epoch ms) of the first readable message at or after a given offset."""

    offset: int
    timestamp: int


class QueueProbe:
    """Finds offsets by time and estimates record sizes, with small pulls. It keeps no state.

    Run its coroutines in the link's event loop. Every method raises Unreachable or Refused.
    """

    def __init__(self, link: ClusterLink) -> None:
        self._link = link

    async def offset_at(self, queue: Queue, timestamp: int, low: int, high: int) -> int:
        """Returns the offset of the first message stored at or after `timestamp` (epoch ms), or `high` without one.

        `low` and `high` are the queue's bounds. The search starts at the broker's answer, which on RocketMQ 4 may lie
        before or after the exact offset. It moves on in doubling steps, then bisects. An exact answer costs two pulls;
        a bad answer costs a few more.
        """
        if low >= high:
            return high
        start, step = min(max(await self._hint(queue, timestamp), low), high - 1), 1
        found = await self._message_at(queue, start, high)
        if found.timestamp >= timestamp:  # the result is here or before: find a message that is too early
            below, above = low - 1, found
            while (at := start - step) >= low:
                probed = await self._message_at(queue, at, high)
                if probed.timestamp < timestamp:
                    below = probed.offset
                    break
                above, start, step = probed, at, 2 * step
        else:  # the result is after: find a message that is late enough
            below, above = found.offset, _StoredMessage(high, _NEVER)
            while (at := below + step) < high:
                probed = await self._message_at(queue, at, high)
                if probed.timestamp >= timestamp:
                    above = probed
                    break
                below, step = probed.offset, 2 * step
        return await self._bisect(queue, timestamp, below, above, high)

    async def _bisect(self, queue: Queue, timestamp: int, below: int, above: _StoredMessage, high: int) -> int:
        """Returns the result of `offset_at` by bisection. The message at `below` is too early, `above` is not."""
        top = above.offset
        while below + 1 < top:
            middle = (below + top) // 2
            probed = await self._message_at(queue, middle, high)
            if probed.timestamp < timestamp:
                below = probed.offset
            else:
                top, above = middle, probed
        return above.offset

    async def _hint(self, queue: Queue, timestamp: int) -> int:
        """Returns the broker's offset for a time. The offset is exact if the broker supports the boundary `lower`."""

        async def ask() -> int:
            return await self._link.offsets.offset_by_time(message_queue(queue), timestamp, boundary="lower")

        doing = f"looking up a time in topic {queue.topic} queue {queue.queue_id}"
        return await self._link.with_retries(ask, doing, (queue.topic,))

    async def _message_at(self, queue: Queue, offset: int, high: int) -> _StoredMessage:
        at = offset
        while at < high:
            page = await self._link.pull(queue, at, 1)
            if page.status is PullStatus.FOUND:
                rows, _ = valid_rows(page.body, queue, at)
                if len(rows):
                    return _StoredMessage(int(rows["queue_offset"][0]), int(rows["store_timestamp"][0]))
            if page.next_offset <= at:
                break
            at = page.next_offset
        return _StoredMessage(high, _NEVER)

    async def witness(self, queue: Queue, offset: int) -> Witness | None:
        """Returns the witness of the message before `offset`, or None if the broker does not return that message."""
        page = await self._link.pull(queue, offset - 1, 1)
        rows, _ = valid_rows(page.body, queue, offset - 1)
        if page.status is not PullStatus.FOUND or not len(rows) or int(rows["queue_offset"][0]) != offset - 1:
            return None
        return Witness(int(rows["physical_offset"][0]), int(rows["store_timestamp"][0]))

    async def still_has(self, queue: Queue, offset: int, witness: Witness) -> bool:
        """Returns whether the broker's log still has the message of `witness`, which was the one before `offset`."""
        address = self._link.instance.routes.address(queue.broker)
        header = ViewMessage(offset=witness.physical_offset)
        try:
            reply = await self._link.instance.request(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except Refused:
            return False
        rows, _ = valid_rows(reply.body, queue, offset - 1)
        return bool(len(rows)) and int(rows["store_timestamp"][0]) == witness.store_timestamp

    async def mean_size(self, queue: Queue, low: int, high: int) -> int | None:
        """Returns the mean bytes of the newest records, or None if the queue has no readable record.

        Rounds up to a power of two, so that the result rarely changes.
        """
        if low >= high:
            return None
        at = max(low, high - _SAMPLE_SIZE)
        page = await self._link.pull(queue, at, _SAMPLE_SIZE)
        rows, _ = valid_rows(page.body, queue, at)
        return None if not len(rows) else 1 << (int(rows["size"].mean()) - 1).bit_length()


# -- the source ------------------------------------------------------------------------------------------------------

_ROUTES_TTL_S: Final = 1.0
_DEFAULT_SIZE: Final = 1024
"""The assumed bytes of a message in a queue that has no message to sample."""
Bounds = dict[Queue, tuple[int, int]]


class ClusterSource:
    """A MessageSource over a cluster. Methods raise Unreachable if no server answers, Refused if a server refuses."""

    def __init__(self, options: Options) -> None:
        self.name = options.namesrv
        self._options = options
        self._access = ClusterAccess.of(options)
        self._link = ClusterLink(self._access)
        self._probe = QueueProbe(self._link)
        self._topics: list[str] | None = None
        self._routes: dict[str, Route | None] = {}
        self._routes_loaded_at = 0.0
        self._bounds: Bounds = {}
        self._sizes: dict[Queue, int] = {}
        self._without_topic_stats: set[str] = set()
        """Brokers that refused GET_TOPIC_STATS_INFO to this account."""

    def close(self) -> None:
        self._link.close()

    def refresh(self) -> None:
        if time.monotonic() - self._routes_loaded_at >= _ROUTES_TTL_S:
            self._topics = None
            if self._routes:
                self._link.run(self._load_routes(self._routes))
        measured = {queue.topic for queue in self._bounds}
        self._bounds = self._link.run(self._load_bounds(measured))

    # -- queues and offsets ----------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Returns all topics, including retry and dead-letter topics, without the cluster's system topics."""
        if self._topics is None:
            self._topics = self._link.run(self._link.with_retries(self._user_topic_names, "listing topics"))
        return list(self._topics)

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        unknown = [topic for topic in topics if topic not in self._routes]
        if unknown:
            self._link.run(self._load_routes(unknown))
        return sorted({queue for topic in topics for queue in _readable_queues(self._routes[topic])})

    def bounds(self, queue: Queue) -> tuple[int, int]:
        """Returns the queue's minimum and maximum offset; both are 0 if its topic was deleted.

        Raises NoRoute for another queue that no broker has.
        """
        if queue not in self._bounds and queue in self.queues([queue.topic]):
            self._bounds |= self._link.run(self._load_bounds([queue.topic]))
        bounds = self._bounds.get(queue)
        if bounds is None and self._routes[queue.topic] is None and self._link.run(self._is_up(queue.broker)):
            return 0, 0  # a broker registers with all of its topics
        if bounds is None:
            raise NoRoute(
                f"queue {queue.queue_id} of topic {queue.topic} at broker {queue.broker} is not in the cluster "
                f"{self.name} now; start that broker, or start a new query without its offsets"
            )
        return bounds

    def offset_at(self, queue: Queue, timestamp: int) -> int:
        low, high = self.bounds(queue)
        return self._link.run(self._probe.offset_at(queue, timestamp, low, high))

    def group_offset(self, group: str, queue: Queue) -> int | None:
        return self._link.run(self._committed(group, queue))

    def size(self, queue: Queue, start: int, stop: int) -> int:
        """Returns bytes estimated from the mean size of a few messages, which are sampled once per queue."""
        if start < stop and queue not in self._sizes:
            self._sizes |= self._link.run(self._mean_sizes())
        return self._sizes.get(queue, _DEFAULT_SIZE) * max(0, stop - start)

    # -- witnesses -------------------------------------------------------------------------------------------

    def witnesses(self, offsets: Mapping[Queue, int]) -> dict[Queue, Witness]:
        """Pulls the message before each offset. A broker that does not return a message leaves its queue out."""
        asked = []
        for queue, offset in offsets.items():
            low, high = self.bounds(queue)
            if low < offset <= high:
                asked.append((queue, offset))
        found = self._link.run(gather_limited(self._probe.witness(queue, offset) for queue, offset in asked))
        return {queue: witness for (queue, _), witness in zip(asked, found, strict=True) if witness is not None}

    def first_records(self) -> dict[str, Witness]:
        """Returns none: a broker does not say how its log begins."""
        return {}

    def why_replaced(self, queue: Queue, offset: int, witness: Witness, first_record: Witness | None) -> str:
        if self._routes.get(queue.topic) is None:
            return "the topic was deleted"
        if self._link.run(self._probe.still_has(queue, offset, witness)):
            return "the topic was deleted and created again"
        return "the topic was deleted and created again, or the broker's log was truncated, or it is another broker"

    # -- tasks and progress ----------------------------------------------------------------------------------

    def tasks(self, spans: Sequence[Sequence[OffsetRange]]) -> list[ReadTask]:
        tags, fail = self._options.tags, self._options.fail_on_data_loss
        return [ClusterTask(self._access, tuple(group), tags, fail) for group in spans]

    def commit_group(self, group: str, offsets: Mapping[Queue, int]) -> None:
        """Commits the offsets of queues for a consumer group."""

        async def commit() -> None:
            committed = ((message_queue(queue), offset) for queue, offset in offsets.items())
            await gather_limited(self._link.offsets.commit(group, queue, offset) for queue, offset in committed)

        topics = tuple({queue.topic for queue in offsets})
        self._link.run(self._link.with_retries(commit, f"committing offsets of group {group}", topics))

    # -- in the link's loop ----------------------------------------------------------------------------------

    async def _topic_names(self) -> list[str]:
        return await TopicAdmin(self._link.instance, ClusterAdmin(self._link.instance)).names()

    async def _user_topic_names(self) -> list[str]:
        names, info = await asyncio.gather(self._topic_names(), ClusterAdmin(self._link.instance).info())
        # Brokers register topics with their own name, their cluster's name, and a reply topic per cluster.
        own = {*info.broker_addr_table, *info.cluster_addr_table}
        own |= {f"{name}{REPLY_TOPIC_SUFFIX}" for name in info.cluster_addr_table}
        return [name for name in names if name not in own and not is_system_topic(name)]

    async def _is_up(self, broker: str) -> bool:
        """Returns whether the broker's master is registered, whatever topics it has. Its address is known then."""
        await self._link.with_retries(self._link.instance.routes.load_brokers, "listing brokers")
        info = await ClusterAdmin(self._link.instance).info()
        return broker in info.broker_addr_table and MASTER in info.broker_addr_table[broker].broker_addrs

    async def _load_routes(self, topics: Iterable[str]) -> None:
        """Loads the routes of `topics` into `_routes`. The route of a topic that does not exist is None."""
        routes = self._link.instance.routes
        topics = list(topics)

        async def find(topic: str, existing: set[str]) -> Route | None:
            if self._routes.get(topic) is not None:
                await routes.refresh([topic])
            elif topic not in existing:
                return None  # a name server may still return the route that the topic would be created with
            return await routes.find(topic)

        async def find_all() -> list[Route | None]:
            is_new = any(self._routes.get(topic) is None for topic in topics)
            existing = set(await self._topic_names()) if is_new else set()
            return await gather_limited(find(topic, existing) for topic in topics)

        loaded = await self._link.with_retries(find_all, "loading routes")
        self._routes |= dict(zip(topics, loaded, strict=True))
        self._routes_loaded_at = time.monotonic()

    async def _load_bounds(self, topics: Iterable[str]) -> Bounds:
        topics = tuple(topics)
        doing = f"reading offsets of {', '.join(sorted(topics)[:3])}"

        async def load() -> Bounds:
            routes = [await self._link.instance.routes.find(topic) for topic in topics]
            by_broker = await gather_limited(
                self._broker_bounds(route, broker) for route in routes for broker in route.masters
            )
            return {queue: bounds for each in by_broker for queue, bounds in each.items()}

        return await self._link.with_retries(load, doing, topics) if topics else {}

    async def _broker_bounds(self, route: Route, broker: str) -> Bounds:
        """Returns the bounds of a topic's queues at one broker.

        Asks for all queues with one GET_TOPIC_STATS_INFO, then singly for each queue that the reply lacks.
        """
        wanted = [queue for queue in _readable_queues(route) if queue.broker == broker]
        found: Bounds = {}
        if broker not in self._without_topic_stats:
            header = TopicName(topic=route.topic)
            try:
                reply = await self._link.instance.request(
                    route.masters[broker], RequestCode.GET_TOPIC_STATS_INFO, header
                )
            except Refused as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:
                    self._without_topic_stats.add(broker)
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
        found |= dict(zip(missing, await gather_limited(self._queue_bounds(queue) for queue in missing), strict=True))
        return {queue: found[queue] for queue in wanted}

    async def _queue_bounds(self, queue: Queue) -> tuple[int, int]:
        offsets, queue_name = self._link.offsets, message_queue(queue)
        low, high = await asyncio.gather(offsets.min_offset(queue_name), offsets.max_offset(queue_name))
        return max(0, low), max(0, high)

    async def _committed(self, group: str, queue: Queue) -> int | None:
        offsets, instance = self._link.offsets, self._link.instance

        async def ask() -> int | None:
            offset = await offsets.committed(group, message_queue(queue), exact=True)
            if offset != 0:
                return offset
            # RocketMQ 4 brokers also return 0 for a group that they have never seen.
            address, header = instance.routes.address(queue.broker), TopicName(topic=queue.topic)
            try:
                reply = await instance.request(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            except Refused:
                return offset
            return offset if group in GroupList.from_bytes(reply.body).group_list else None

        return await self._link.with_retries(ask, f"reading offsets of group {group}", (queue.topic,))

    async def _mean_sizes(self) -> dict[Queue, int]:
        """Samples the mean record sizes of all queues that have no size yet, since a plan asks for every queue's."""
        unknown = [queue for queue in self._bounds if queue not in self._sizes]
        found = await gather_limited(self._probe.mean_size(queue, *self._bounds[queue]) for queue in unknown)
        return {queue: size for queue, size in zip(unknown, found, strict=True) if size is not None}


def _readable_queues(route: Route | None) -> list[Queue]:
    """Returns a route's readable queues at brokers whose master is up."""
    if route is None:
        return []
    return [
        Queue(queue.topic, queue.broker_name, queue.queue_id)
        for queue in route.subscribe_queues
        if queue.broker_name in route.masters
    ]
